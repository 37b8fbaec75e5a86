"""The load of experts: how many tokens each rank of an expert-parallel group got, and what they cost.

An all-to-all ends for all of its ranks at once, so the fullest rank sets the pace. Between the all-to-all that brings the
tokens and the one that takes them back a rank runs its experts; the second one's input is what it got. What it waits there is
what the fullest rank still works.

Where some ranks have no trace, popularities of experts are drawn from symmetric Dirichlet distributions of many
concentrations. Given what the known ranks got, the others share out the rest by a Dirichlet distribution, too. A draw weighs as
much as it makes likely what the files hold: the tokens of the known ranks, and their waits, each of which is the fullest rank's
surplus of tokens at the pace of all.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import lgamma
from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.units import short
from sim_core.workloads.traces.job import Job, Operation
from sim_core.workloads.traces.stage import Phases
from sim_core.workloads.traces.text import BLOCKS, EXPERT_REDUCTIONS
from sim_core.workloads.workload import NO_LOAD

CONCENTRATIONS: Final = np.geomspace(0.3, 100.0, 12)
"""Of an expert: from nearly all tokens to one of them, to all alike."""
DRAWS: Final = 500
"""Of each concentration; fewer of many experts."""
MOST: Final = 2**18
"""Popularities of each concentration."""
LEAST_SHARE: Final = 1e-3
"""A rank with fewer of the tokens is as one with so many: popularity is never quite 0."""
UNSURE: Final = 0.5
"""Of the logarithm of the seconds that experts take without tokens (launches, weights) around the estimate; measured: 0.4."""
FULL: Final = 0.05
"""A rank that waits for less than this part of its own work is the fullest."""
OF_SPREAD: Final = 4000
"""Draws for a spread: the mean load of the fullest rank is known to about 1 %."""
LEVELS: Final = (0.05, 0.95)


@dataclass(frozen=True, kw_only=True)
class Waited:
    """Means of the known ranks of a group: `tokens` over the mean of all ranks, by place in the group; seconds of their
    experts, and of what they waited for the fullest rank, in a forward and a backward.

    `full`: whether one of them is the fullest; `fixed_s`: an estimate of the forward's seconds without tokens; `pace`: seconds
    of a token in a backward over those in a forward.
    """

    tokens: Mapping[int, float]
    seconds: tuple[float, float]
    wait_s: tuple[float, float]
    fixed_s: float
    pace: float
    full: bool

    def loaded_s(self, fixed_s: float) -> tuple[float, float]:
        """Seconds of the fullest rank that are in proportion to its tokens, in a forward and a backward."""
        own_s = self.seconds[0] - fixed_s
        return own_s + self.wait_s[0], min(self.pace * own_s, self.seconds[1]) + self.wait_s[1]


@dataclass(frozen=True, kw_only=True)
class Likely:
    """Tokens of the fullest of 0, 1, ... ranks over the mean: mean, and bounds of nine in ten draws; 1 where experts do not
    divide. `fixed_s`: as `Waited` has it, as the waits make it likely."""

    fullest: Floats
    low: Floats
    high: Floats
    fixed_s: float


def likely(seen: Waited, ep: int, experts: int) -> Likely:
    """What is likely of a group of `ep` ranks that share out `experts`."""
    draws = [_draws(seen.tokens, ep, experts, concentration) for concentration in CONCENTRATIONS.tolist()]
    popular, weight = (np.concatenate(columns) for columns in zip(*draws, strict=True))
    others = [rank for rank in range(ep) if rank not in seen.tokens]
    fixed_s = np.full(len(weight), seen.fixed_s)
    if others:
        most, known = popular.sum(axis=2)[:, others].max(axis=1), max(seen.tokens.values())
        if seen.full:
            weight = np.where(most <= known * (1 + FULL), weight, -np.inf)
        else:
            mean = float(np.mean(list(seen.tokens.values())))
            a_token_s = seen.wait_s[0] / np.maximum(most - mean, 1e-9)
            fixed_s = np.maximum(seen.seconds[0] - a_token_s * mean, 1e-6 * seen.seconds[0])
            off = np.log(fixed_s / seen.fixed_s) / UNSURE
            weight = np.where(most > known, weight - off**2 / 2, -np.inf)
    if np.isneginf(weight).all():  # the known ranks contradict each other
        weight = np.zeros(len(weight))
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    fullest, low, high = np.ones((3, experts + 1))
    for n in range(2, experts + 1):
        if experts % n == 0:
            load = _load_of_fullest(popular, n)
            order = np.argsort(load)
            fullest[n] = weight @ load
            low[n], high[n] = load[order][np.searchsorted(np.cumsum(weight[order]), LEVELS).clip(max=len(order) - 1)]
    return Likely(fullest=fullest, low=low, high=high, fixed_s=float(weight @ fixed_s))


def _draws(tokens: Mapping[int, float], ep: int, experts: int, concentration: float) -> tuple[Floats, Floats]:
    """Tokens of each expert over the mean of ranks, [draws, ep, experts of a rank]; logarithm of the weight of each draw."""
    of_rank, number = experts // ep, max(min(DRAWS, MOST // experts), 1)
    popular = np.random.default_rng(0).gamma(concentration, size=(number, ep, of_rank)) + 1e-12
    others = [rank for rank in range(ep) if rank not in tokens]
    for rank, got in tokens.items():
        popular[:, rank] *= got / popular[:, rank].sum(axis=1, keepdims=True)
    shares = np.maximum(np.array(list(tokens.values())) / ep, LEAST_SHARE)
    each = concentration * of_rank
    density = lgamma(each * ep) - len(tokens) * lgamma(each) + float(((each - 1) * np.log(shares)).sum())
    if others:
        left = max(ep - sum(tokens.values()), LEAST_SHARE * ep)
        popular[:, others] *= left / popular[:, others].sum(axis=(1, 2), keepdims=True)
        rest = each * len(others)
        density += (rest - 1) * float(np.log(left / ep)) - lgamma(rest)
    return popular, np.full(number, density)


def drawn(ep: int, experts: int, spread: float) -> Floats:
    """Mean load of the fullest of 0, 1, ... ranks over the mean, where the shares of `ep` ranks have this standard deviation.

    A rank of n has a share of mean 1/n and relative variance (n - 1) / (experts x concentration + 1).
    """
    concentration = max(((ep - 1) / spread**2 - 1) / experts, 1e-2)
    popular = np.random.default_rng(0).gamma(concentration, size=(OF_SPREAD, experts))
    fullest = np.ones(experts + 1)
    for n in range(2, experts + 1):
        if experts % n == 0:
            fullest[n] = np.mean(_load_of_fullest(popular, n))
    return fullest


def _load_of_fullest(popular: Floats, ranks: int) -> Floats:
    """Tokens of the fullest of `ranks` ranks over the mean, for each draw of popularities, [draws, ...]."""
    load = popular.reshape(len(popular), ranks, -1).sum(axis=2)
    fullest: Floats = load.max(axis=1) / load.mean(axis=1)
    return fullest


EVEN: Final = 0.01
"""Relative spread of the ranks' tokens below which they count as equal."""
APART: Final = 0.1
"""Standard deviation of tokens over the mean from which they tell what a token costs."""
FREE: Final = 0.1
"""Part of the all-to-alls that are taken to be free of waits: the longest of them has the cost of all."""
WEIGHT_BYTES: Final = 2.0
"""Of an expert's parameter in 16 bits."""
GROWTH: Final = 5.0
"""Bytes of weights and gradients in a backward over those in a forward, gradients in 32 bits."""
PRODUCTS: Final = 2.0
"""Products of a backward over those of a forward: seconds of a token, where no wait tells them."""
LEAST_FIXED: Final = 0.02
"""Part of the experts' seconds that launches and weights take at least."""


@dataclass(frozen=True, kw_only=True)
class ExpertLoad:
    """`imbalance` and `table[ep]`: tokens of the fullest rank over the mean at the recorded ep; at any ep over those recorded.

    `loaded_s`: seconds of a layer's forward and backward that are in proportion to the tokens of the fullest rank.
    `weight_bytes`: bytes of weights and gradients that the experts of a rank read and write in a layer's forward and backward.
    `whole`: whether a whole group has traces, so that the load is as recorded. `known`: whether anything tells it.
    """

    imbalance: float = 1.0
    table: Floats = field(default_factory=lambda: NO_LOAD)
    loaded_s: Phases = (0.0, 0.0)
    weight_bytes: Phases = (0.0, 0.0)
    whole: bool = False
    known: bool = True


class _Calls(NamedTuple):
    """Passes of a layer's experts, [n]: the group, the rank's place in it, which pass of the rank it is; tokens over the mean
    of ranks, seconds of the experts and of what the rank then waited for the fullest one."""

    group: Ints
    place: Ints
    turn: Ints
    tokens: Floats
    seconds: Floats
    wait_s: Floats

    def of(self, rows: Bools) -> "_Calls":
        group, place, turn, tokens, seconds, wait_s = self
        return _Calls(group[rows], place[rows], turn[rows], tokens[rows], seconds[rows], wait_s[rows])


def expert_load(job: Job, a_block: float, notes: list[str]) -> ExpertLoad:
    """The load that a job recorded; not known for a job without all-to-alls in pairs. `a_block`: layers of a block.

    Whole groups tell it. Of others it is what the tokens and waits of their ranks make likely.
    """
    passes = _passes(job, 0), _passes(job, 1)
    ep = job.layout.ep
    if not len(passes[0].tokens) or ep == 1:
        return ExpertLoad(known=False)
    bytes_ = _weight_bytes(job, a_block)
    groups = _whole_groups(passes[0], ep)
    seen = [] if groups else [_waited(own, passes, bytes_) for own in _alike(*passes)]
    spread = float(np.sqrt(np.mean((passes[0].tokens - 1.0) ** 2)))
    if spread < EVEN and all(waited.full for waited in seen):
        return ExpertLoad(weight_bytes=bytes_, whole=bool(groups))
    if groups:
        fullest = _as_recorded(job, groups, spread)
        slopes = [max(_slope(each), 0.0) for each in passes]
        loaded_s = slopes[0] * fullest[ep], slopes[1] * fullest[ep]
        notes.append(_told(job, fullest))
    else:
        experts = job.layout.experts or ep
        guesses = [likely(waited, ep, ep if experts % ep else experts) for waited in seen]
        fullest = np.mean([guess.fullest for guess in guesses], axis=0)
        loads = [waited.loaded_s(guess.fixed_s) for waited, guess in zip(seen, guesses, strict=True)]
        loaded_s = float(np.mean([f for f, _ in loads])), float(np.mean([b for _, b in loads]))
        notes.append(_told_likely(job, guesses, any(waited.full for waited in seen)))
    blocks = [len(job.named(name)) for name in BLOCKS]
    a_layer = [len(each.tokens) / max(number, 1) / a_block for each, number in zip(passes, blocks, strict=True)]
    return ExpertLoad(
        imbalance=float(fullest[ep]),
        table=fullest / fullest[ep],
        loaded_s=(loaded_s[0] * a_layer[0], loaded_s[1] * a_layer[1]),
        weight_bytes=bytes_,
        whole=bool(groups),
    )


def _told(job: Job, fullest: Floats) -> str:
    ep = job.layout.ep
    fewer = ", ".join(f"{fullest[e]:.2f} at ep {e}" for e in range(2, ep) if ep % e == 0)
    more = ", ".join(f"{fullest[e]:.2f} at ep {e}" for e in _more(job, len(fullest)))
    text = f"expert load: the fullest rank gets {fullest[ep]:.2f} x the mean of the tokens at ep {ep}, as recorded"
    if fewer:
        text += f"; {fewer}, merged"
    if more:
        text += f"; {more}, if popularity is spread among experts as it is among ranks (Dirichlet)"
    return text


def _told_likely(job: Job, guesses: list[Likely], full: bool) -> str:
    ep = job.layout.ep
    fullest, low, high = (np.mean([getattr(guess, name) for guess in guesses], axis=0) for name in ("fullest", "low", "high"))
    at = [e for e in range(2, ep) if ep % e == 0] + list(_more(job, len(fullest)))
    others = ", ".join(f"{fullest[e]:.2f} ({low[e]:.2f} to {high[e]:.2f}) at ep {e}" for e in at)
    text = (
        f"expert load: no group of ep {ep} has the traces of all its ranks; the fullest rank gets {fullest[ep]:.2f} x the mean "
        f"of the tokens ({low[ep]:.2f} to {high[ep]:.2f} in nine of ten cases that fit "
    )
    text += "the files: it is recorded itself, so its waits do not tell those of others)" if full else "the waits of its ranks)"
    return f"{text}; {others}" if others else text


def _more(job: Job, most: int) -> Iterator[int]:
    """Larger groups that experts are often divided among."""
    yield from (e for e in range(2 * job.layout.ep, most, job.layout.ep) if e & (e - 1) == 0)


def _passes(job: Job, phase: int) -> _Calls:
    """The passes of experts in blocks of this phase."""
    rows: list[tuple[int, int, int, float, float, float]] = []
    free: list[float] = []
    numbers: dict[tuple[int, int, int], int] = {}
    for rank in job.ranks:
        replica, place = divmod(rank.index // job.layout.tp, job.layout.ep)
        group = numbers.setdefault((rank.stage, replica, rank.index % job.layout.tp), len(numbers))
        turn = 0
        for operation in rank.named(BLOCKS[phase]):
            for got, took_s, out_s, back_s in _experts(operation):
                rows.append((group, place, turn, got, took_s, back_s))
                free += [out_s, back_s]
                turn += 1
    whole, real = np.array([row[:3] for row in rows], np.int64), np.array([row[3:] for row in rows], np.float64)
    cost_s = float(np.quantile(free, FREE, method="higher")) if free else 0.0
    groups, places, turns = whole.reshape(-1, 3).T
    tokens, seconds, backs_s = real.reshape(-1, 3).T
    return _Calls(groups, places, turns, tokens, seconds, backs_s - cost_s)


def _experts(operation: Operation) -> list[tuple[float, float, float, float]]:
    """Tokens over the mean and seconds of the experts of each layer in a block, and of the all-to-alls before and after; none
    where the calls have no times."""
    calls = operation.expert_exchanges
    if len(calls) % 2 or any(call.bytes <= 0 for call in calls) or not any(call.begin_s for call in calls):
        return []
    return [
        (back.bytes / out.bytes, back.begin_s - out.begin_s - out.duration_s, out.duration_s, back.duration_s)
        for out, back in zip(calls[::2], calls[1::2], strict=True)
    ]


def _whole_groups(passes: _Calls, ep: int) -> list[Floats]:
    """Tokens of all ranks of a group over the mean, for each pass of a group with all its traces."""
    tokens_of: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for group, place, turn, tokens in zip(*(column.tolist() for column in passes[:4]), strict=True):
        tokens_of[group, turn][place] = tokens
    return [np.array([got[r] for r in sorted(got)]) for got in tokens_of.values() if len(got) == ep]


def _as_recorded(job: Job, groups: list[Floats], spread: float) -> Floats:
    """Load of the fullest of 0, 1, ... ranks over the mean: merged where ep goes down, spread further where it goes up."""
    ep, experts = job.layout.ep, job.layout.experts
    most = max(experts or ep, ep)
    fullest = np.ones(most + 1)
    for other in range(2, ep + 1):
        if ep % other == 0:
            fullest[other] = np.mean([got.reshape(other, -1).mean(axis=1).max() / got.mean() for got in groups])
    if experts:
        more = drawn(ep, most, spread)
        fullest[ep + 1 :] = more[ep + 1 :]
        if more[ep] > fullest[ep]:  # fewer full ranks than the spread alone would give
            fullest[ep + 1 :] = 1 + (fullest[ep] - 1) * (more[ep + 1 :] - 1) / (more[ep] - 1)
    fullest[ep + 1 :] = np.maximum(fullest[ep + 1 :], fullest[ep])
    return fullest


def _alike(forward: _Calls, backward: _Calls) -> Iterator[tuple[_Calls, _Calls]]:
    """The passes of groups of which the same places have a trace, of those groups that have most of them."""
    places: dict[int, set[int]] = defaultdict(set)
    for group, place in zip(forward.group.tolist(), forward.place.tolist(), strict=True):
        places[group].add(place)
    most = max(len(of_group) for of_group in places.values())
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for group, of_group in places.items():
        if len(of_group) == most:
            alike[tuple(sorted(of_group))].append(group)
    for groups in alike.values():
        yield forward.of(np.isin(forward.group, groups)), backward.of(np.isin(backward.group, groups))


def _waited(own: tuple[_Calls, _Calls], passes: tuple[_Calls, _Calls], weights: Phases) -> Waited:
    """What some ranks did and waited for.

    The seconds without tokens: where `passes` have different tokens, by least squares. Else a token takes `pace` times as long
    in a backward as in a forward, as the waits do. What a backward takes beyond `pace` forwards is that weights take `growth`
    times as long there; what it takes less, that launches take as long in both.
    """
    forward, backward = own
    tokens = float(forward.tokens.mean())
    seconds = float(forward.seconds.mean()), _mean(backward.seconds)
    wait_s = max(float(forward.wait_s.mean()), 0.0), max(_mean(backward.wait_s), 0.0)
    pace = PRODUCTS
    if passes[0].tokens.std() >= APART:
        slopes = [max(_slope(each), 0.0) for each in passes]
        pace = slopes[1] / slopes[0] if min(slopes) > 0 else PRODUCTS
        fixed_s = seconds[0] - slopes[0] * tokens
    else:
        if wait_s[0] > FULL * seconds[0]:
            pace = wait_s[1] / wait_s[0]
        growth = weights[1] / weights[0] if weights[0] else GROWTH
        beyond_s = seconds[1] - pace * seconds[0]
        fixed_s = beyond_s / max(growth - pace, 1.0) if beyond_s > 0 else -beyond_s / max(pace - 1.0, 0.5)
    ranks = {int(place): forward.of(forward.place == place) for place in np.unique(forward.place)}
    return Waited(
        tokens={place: float(each.tokens.mean()) for place, each in ranks.items()},
        seconds=seconds,
        wait_s=wait_s,
        pace=pace,
        full=any(each.wait_s.mean() <= FULL * each.seconds.mean() for each in ranks.values()),
        fixed_s=float(np.clip(fixed_s, LEAST_FIXED * seconds[0], seconds[0])),
    )


def _mean(column: Floats) -> float:
    return float(column.mean()) if len(column) else 0.0


def _slope(passes: _Calls) -> float:
    """Seconds per mean load, by least squares: what remains without tokens is launches and weights."""
    at = passes.tokens - _mean(passes.tokens)
    return float(at @ passes.seconds / (at @ at)) if at @ at > 0 else 0.0


def _weight_bytes(job: Job, a_block: float) -> Phases:
    """A forward reads the weights; a backward reads them, and reads and writes the gradients it adds to."""
    sizes = [
        (sum(o.bytes for o in reduced), reduced[0].width)
        for rank in job.ranks
        if (reduced := rank.named(*EXPERT_REDUCTIONS)) and reduced[0].width
    ]
    if not sizes:
        return 0.0, 0.0
    size, width = sizes[0]
    parameters = size / width / (a_block * job.layout.vpp)
    return WEIGHT_BYTES * parameters, (WEIGHT_BYTES + 2 * width) * parameters


def weights_note(load: ExpertLoad) -> str:
    """What is assumed of the experts' weights."""
    forward, backward = (short(size, "B") for size in load.weight_bytes)
    return (
        f"a rank's experts read and write {forward} of weights and gradients in a layer's forward, {backward} in its backward"
    )
