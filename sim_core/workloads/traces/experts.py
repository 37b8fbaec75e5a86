"""The load of experts: how many tokens each rank of an expert-parallel group got, and what they cost.

An all-to-all ends for all of its ranks at once, so the fullest rank sets the pace. Between the all-to-all that brings the
tokens and the one that takes them back a rank runs its experts; the second one's input is what it got. What it waits there is
what the fullest rank still works.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Floats
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.popularity import FULL, Likely, Waited, drawn, likely, parts_of
from sim_core.workloads.traces.stage import Phases
from sim_core.workloads.traces.text import BLOCKS, EXPERT_REDUCTIONS
from sim_core.workloads.workload import NO_LOAD

EVEN = 0.01
"""Relative spread of the ranks' tokens below which they count as equal."""
APART = 0.1
"""Standard deviation of tokens over the mean from which they tell what a token costs."""
FREE = 0.1
"""Part of the all-to-alls that are taken to be free of waits: the longest of them has the cost of all."""
WEIGHT_BYTES = 2.0
"""Of an expert's parameter in 16 bits."""
GROWTH = 5.0
"""Bytes of weights and gradients in a backward over those in a forward, gradients in 32 bits."""
PRODUCTS = 2.0
"""Products of a backward over those of a forward: seconds of a token, where no wait tells them."""
LEAST_FIXED = 0.02
"""Part of the experts' seconds that launches and weights take at least."""


class ExpertLoad(NamedTuple):
    """`imbalance` and `table[ep]`: tokens of the fullest rank over the mean at the recorded ep; at any ep over those recorded.

    `loaded_s`: seconds of a layer's forward and backward that are in proportion to the tokens of the fullest rank.
    `weight_bytes`: bytes of weights and gradients that the experts of a rank read and write in a layer's forward and backward.
    `whole`: whether a whole group has traces, so that the load is as recorded. `known`: whether anything tells it.
    """

    imbalance: float = 1.0
    table: Floats = NO_LOAD
    loaded_s: Phases = (0.0, 0.0)
    weight_bytes: Phases = (0.0, 0.0)
    whole: bool = False
    known: bool = True


Passes = npt.NDArray[np.void]
_COLUMNS = np.dtype([("group", "i8"), ("place", "i8"), ("turn", "i8"), ("tokens", "f8"), ("seconds", "f8"), ("wait_s", "f8")])
"""Of the passes of a layer's experts: the group, the rank's place in it, which pass of the rank it is; tokens over the mean of
ranks, seconds of the experts and of what the rank then waited for the fullest one."""


def expert_load(job: Job, a_block: float, notes: list[str]) -> ExpertLoad:
    """The load that a job recorded; not known for a job without all-to-alls in pairs. `a_block`: layers of a block.

    Whole groups tell it. Of others it is what the tokens and waits of their ranks make likely.
    """
    passes = [_passes(job, name) for name in BLOCKS]
    forward, ep = passes[0], job.layout.ep
    if not len(forward) or ep == 1:
        return ExpertLoad(known=False)
    bytes_ = _weight_bytes(job, a_block)
    tokens_of: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
    for group, place, turn, tokens, *_ in forward.tolist():
        tokens_of[group, turn][place] = tokens
    # tokens of all ranks of a group over the mean, for each pass of a group with all its traces
    groups = [np.array([got[r] for r in sorted(got)]) for got in tokens_of.values() if len(got) == ep]
    seen = [] if groups else [_waited(own, passes, bytes_) for own in _alike(passes)]
    spread = float(np.sqrt(np.mean((forward["tokens"] - 1.0) ** 2)))
    if spread < EVEN and all(waited.full for waited in seen):
        return ExpertLoad(weight_bytes=bytes_, whole=bool(groups))
    loads: list[tuple[float, ...]]
    if groups:
        fullest = _as_recorded(job, groups, spread)
        loads = [tuple(max(_slope(each), 0.0) * fullest[ep] for each in passes)]
        notes.append(_told(job, fullest))
    else:
        experts = job.layout.experts or ep
        guesses = [likely(waited, ep, ep if experts % ep else experts) for waited in seen]
        fullest = np.mean([guess.fullest for guess in guesses], axis=0)
        loads = [*(waited.loaded_s(guess.fixed_s) for waited, guess in zip(seen, guesses, strict=True))]
        notes.append(_told_likely(job, guesses, any(waited.full for waited in seen)))
    loaded_s = [
        float(np.mean(of_phase)) * (len(each) / max(len(job.named(name)), 1) / a_block)
        for of_phase, each, name in zip(zip(*loads, strict=True), passes, BLOCKS, strict=True)
    ]
    return ExpertLoad(float(fullest[ep]), fullest / fullest[ep], (loaded_s[0], loaded_s[1]), bytes_, whole=bool(groups))


def _told(job: Job, fullest: Floats) -> str:
    ep, at = job.layout.ep, _others(job, len(fullest))
    fewer, more = (", ".join(f"{fullest[e]:.2f} at ep {e}" for e in at if (e < ep) == less) for less in (True, False))
    text = f"expert load: the fullest rank gets {fullest[ep]:.2f} x the mean of the tokens at ep {ep}, as recorded"
    if fewer:
        text += f"; {fewer}, merged"
    if more:
        text += f"; {more}, if popularity is spread among experts as it is among ranks (Dirichlet)"
    return text


def _told_likely(job: Job, guesses: list[Likely], full: bool) -> str:
    ep = job.layout.ep
    fullest, low, high = (np.mean([getattr(guess, name) for guess in guesses], axis=0) for name in ("fullest", "low", "high"))
    others = ", ".join(f"{fullest[e]:.2f} ({low[e]:.2f} to {high[e]:.2f}) at ep {e}" for e in _others(job, len(fullest)))
    text = (
        f"expert load: no group of ep {ep} has the traces of all its ranks; the fullest rank gets {fullest[ep]:.2f} x the mean "
        f"of the tokens ({low[ep]:.2f} to {high[ep]:.2f} in nine of ten cases that fit "
    )
    text += "the files: it is recorded itself, so its waits do not tell those of others)" if full else "the waits of its ranks)"
    return f"{text}; {others}" if others else text


def _others(job: Job, most: int) -> list[int]:
    """Smaller groups that merge the recorded ones, and larger ones that experts are often divided among."""
    ep = job.layout.ep
    return [e for e in parts_of(ep) if e < ep] + [e for e in range(2 * ep, most, ep) if e & (e - 1) == 0]


def _passes(job: Job, name: str) -> Passes:
    """The passes of experts in blocks of this name, in _COLUMNS."""
    rows: list[tuple[int, int, int, float, float, float]] = []
    free = []
    numbers: dict[tuple[int, int, int], int] = {}
    for rank in job.ranks:
        replica, place = divmod(rank.index // job.layout.tp, job.layout.ep)
        group = numbers.setdefault((rank.stage, replica, rank.index % job.layout.tp), len(numbers))
        turn = 0
        for operation in rank.named(name):
            calls = operation.expert_exchanges
            if len(calls) % 2 or any(call.bytes <= 0 for call in calls) or not any(call.begin_s for call in calls):
                continue  # calls without times or sizes
            for out, back in zip(calls[::2], calls[1::2], strict=True):
                rows.append(
                    (group, place, turn, back.bytes / out.bytes, back.begin_s - out.begin_s - out.duration_s, back.duration_s)
                )
                free += [out.duration_s, back.duration_s]
                turn += 1
    passes = np.array(rows, _COLUMNS)
    passes["wait_s"] -= np.quantile(free, FREE, method="higher") if free else 0.0
    return passes


def _as_recorded(job: Job, groups: list[Floats], spread: float) -> Floats:
    """Load of the fullest of 0, 1, ... ranks over the mean: merged where ep goes down, spread further where it goes up."""
    ep, experts = job.layout.ep, job.layout.experts
    most = max(experts or ep, ep)
    fullest = np.ones(most + 1)
    for other in parts_of(ep):
        fullest[other] = np.mean([got.reshape(other, -1).mean(axis=1).max() / got.mean() for got in groups])
    if experts:
        more = drawn(ep, most, spread)
        fullest[ep + 1 :] = more[ep + 1 :]
        if more[ep] > fullest[ep]:  # fewer full ranks than the spread alone would give
            fullest[ep + 1 :] = 1 + (fullest[ep] - 1) * (more[ep + 1 :] - 1) / (more[ep] - 1)
    fullest[ep + 1 :] = np.maximum(fullest[ep + 1 :], fullest[ep])
    return fullest


def _alike(passes: Sequence[Passes]) -> Iterator[list[Passes]]:
    """The passes of groups of which the same places have a trace, of those groups that have most of them."""
    places = defaultdict(set)
    for group, place in passes[0][["group", "place"]].tolist():
        places[group].add(place)
    most = max(len(of_group) for of_group in places.values())
    alike = defaultdict(list)
    for group, of_group in places.items():
        if len(of_group) == most:
            alike[tuple(sorted(of_group))].append(group)
    for groups in alike.values():
        yield [each[np.isin(each["group"], groups)] for each in passes]


def _waited(own: Sequence[Passes], passes: Sequence[Passes], weights: Phases) -> Waited:
    """What some ranks did and waited for.

    The seconds without tokens: where `passes` have different tokens, by least squares. Else a token takes `pace` times as long
    in a backward as in a forward, as the waits do. What a backward takes beyond `pace` forwards is that weights take `growth`
    times as long there; what it takes less, that launches take as long in both.
    """
    forward = own[0]
    seconds, waits_s = ([_mean(each[name]) for each in own] for name in ("seconds", "wait_s"))
    wait_s = max(waits_s[0], 0.0), max(waits_s[1], 0.0)
    pace = PRODUCTS
    if passes[0]["tokens"].std() >= APART:
        slopes = [max(_slope(each), 0.0) for each in passes]
        pace = slopes[1] / slopes[0] if min(slopes) > 0 else PRODUCTS
        fixed_s = seconds[0] - slopes[0] * _mean(forward["tokens"])
    else:
        if wait_s[0] > FULL * seconds[0]:
            pace = wait_s[1] / wait_s[0]
        growth = weights[1] / weights[0] if weights[0] else GROWTH
        beyond_s = seconds[1] - pace * seconds[0]
        fixed_s = beyond_s / max(growth - pace, 1.0) if beyond_s > 0 else -beyond_s / max(pace - 1.0, 0.5)
    ranks = {int(place): forward[forward["place"] == place] for place in np.unique(forward["place"])}
    return Waited(
        tokens={place: _mean(each["tokens"]) for place, each in ranks.items()},
        seconds=(seconds[0], seconds[1]),
        wait_s=wait_s,
        pace=pace,
        full=any(each["wait_s"].mean() <= FULL * each["seconds"].mean() for each in ranks.values()),
        fixed_s=float(np.clip(fixed_s, LEAST_FIXED * seconds[0], seconds[0])),
    )


def _mean(column: Floats) -> float:
    return float(column.mean()) if len(column) else 0.0


def _slope(passes: Passes) -> float:
    """Seconds per mean load, by least squares: what remains without tokens is launches and weights."""
    at = passes["tokens"] - _mean(passes["tokens"])
    return float(at @ passes["seconds"] / (at @ at)) if at @ at > 0 else 0.0


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
