"""The load of experts: how many tokens each rank of an expert-parallel group got, and what they cost.

An all-to-all ends for all of its ranks at once, so the fullest rank sets the pace. Between the all-to-all that brings the
tokens and the one that takes them back a rank runs its experts; the second one's input is what it got.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.units import short
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job, Operation
from sim_core.workloads.traces.stage import BLOCKS, Phases

Floats = npt.NDArray[np.float64]

EVEN: Final = 0.01
"""Relative spread of the ranks' tokens below which they count as equal."""
DRAWS: Final = 4000
"""Loads drawn for the mean load of the fullest rank: its error is about 1 %."""
WEIGHT_BYTES: Final = 2.0
"""Of an expert's parameter in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class ExpertLoad:
    """`imbalance` and `table[ep]`: tokens of the fullest rank over the mean at the recorded ep; at any ep over those recorded.

    `loaded_s`: seconds of a layer's forward and backward that are in proportion to the tokens of the fullest rank.
    `weight_bytes`: bytes of weights and gradients that the experts of a rank read and write in a layer's forward and backward.
    """

    imbalance: float
    table: Floats
    loaded_s: Phases
    weight_bytes: Phases


@dataclass(kw_only=True)
class _Seen:
    """Tokens over the mean of ranks, and the seconds of their experts, by phase; tokens of whole groups."""

    tokens: list[list[float]]
    seconds: list[list[float]]
    groups: dict[tuple[int, ...], dict[int, float]]
    blocks: list[int]


def expert_load(job: Job, a_block: float, notes: list[str]) -> ExpertLoad | None:
    """The load that a job recorded; None for a job without all-to-alls in pairs. `a_block`: layers of a block."""
    seen = _seen(job)
    ep, experts = job.layout.ep, job.layout.experts
    if not seen.tokens[0] or ep == 1:
        return None
    bytes_ = _weight_bytes(job, a_block)
    spread = float(np.sqrt(np.mean((np.array(seen.tokens[0]) - 1.0) ** 2)))
    most = max(experts or ep, ep)
    if spread < EVEN:
        return ExpertLoad(imbalance=1.0, table=np.zeros(0), loaded_s=(0.0, 0.0), weight_bytes=bytes_)
    whole = [np.array([got[r] for r in sorted(got)]) for got in seen.groups.values() if len(got) == ep]
    drawn = _drawn(ep, most, spread) if experts else None
    fullest = np.ones(most + 1)
    for other in range(2, most + 1):
        if whole and ep % other == 0:
            fullest[other] = np.mean([got.reshape(other, -1).mean(axis=1).max() / got.mean() for got in whole])
        elif drawn is not None:
            fullest[other] = drawn[other]
    if whole and drawn is not None and drawn[ep] > fullest[ep]:  # fewer full ranks than the spread alone would give
        fullest[ep + 1 :] = 1 + (fullest[ep] - 1) * (fullest[ep + 1 :] - 1) / (drawn[ep] - 1)
    fullest[ep + 1 :] = np.maximum(fullest[ep + 1 :], fullest[ep])
    _tell(job, fullest, bool(whole), notes)
    slopes = [max(_slope(seen.tokens[phase], seen.seconds[phase]), 0.0) for phase in range(2)]
    of_layer = [len(seen.tokens[phase]) / max(seen.blocks[phase], 1) / a_block for phase in range(2)]
    loaded_s = (slopes[0] * fullest[ep] * of_layer[0], slopes[1] * fullest[ep] * of_layer[1])
    return ExpertLoad(imbalance=float(fullest[ep]), table=fullest / fullest[ep], loaded_s=loaded_s, weight_bytes=bytes_)


def _tell(job: Job, fullest: Floats, whole: bool, notes: list[str]) -> None:
    ep = job.layout.ep
    source = "as recorded" if whole else "from the spread of the recorded ranks"
    fewer = ", ".join(f"{fullest[e]:.2f} at ep {e}" for e in range(2, ep) if ep % e == 0)
    more = ", ".join(f"{fullest[e]:.2f} at ep {e}" for e in range(2 * ep, len(fullest), ep) if e & (e - 1) == 0)
    text = f"expert load: the fullest rank gets {fullest[ep]:.2f} x the mean of the tokens at ep {ep}, {source}"
    if fewer:
        text += f"; {fewer}, merged" if whole else f"; {fewer}"
    if more:
        text += f"; {more}, if popularity is spread among experts as it is among ranks (Dirichlet)"
    elif not job.layout.experts:
        text += "; the same at any larger ep (set workload.experts)"
    notes.append(text)


def _seen(job: Job) -> _Seen:
    seen = _Seen(tokens=[[], []], seconds=[[], []], groups=defaultdict(dict), blocks=[0, 0])
    for rank in job.ranks:
        group, own = divmod(rank.index // job.layout.tp, job.layout.ep)
        turns = [0, 0]
        for operation in rank.operations:
            if operation.name not in BLOCKS:
                continue
            phase = BLOCKS.index(operation.name)
            seen.blocks[phase] += 1
            for layer, (tokens, seconds) in enumerate(_experts(operation)):
                seen.tokens[phase].append(tokens)
                seen.seconds[phase].append(seconds)
                if phase == 0:
                    seen.groups[rank.stage, group, rank.index % job.layout.tp, turns[0], layer][own] = tokens
            turns[phase] += 1
    return seen


def _experts(operation: Operation) -> list[tuple[float, float]]:
    """Tokens over the mean and seconds of the experts of each layer in a block."""
    calls = [call for call in operation.calls if (call.group, call.name) == ("exp", "all_to_all")]
    if len(calls) % 2 or any(call.bytes <= 0 for call in calls):
        return []
    return [
        (back.bytes / out.bytes, back.begin_s - out.begin_s - out.duration_s)
        for out, back in zip(calls[::2], calls[1::2], strict=True)
    ]


def _slope(tokens: list[float], seconds: list[float]) -> float:
    """Seconds per mean load, by least squares: what remains without tokens is launches and weights."""
    at, took = np.array(tokens) - np.mean(tokens), np.array(seconds)
    return float(at @ took / (at @ at)) if len(took) and at @ at > 0 else 0.0


def _drawn(ep: int, experts: int, spread: float) -> Floats:
    """Mean load of the fullest of 1, 2, ... ranks over the mean: popularity of experts drawn from a symmetric Dirichlet
    distribution whose sums over a rank's experts have the recorded spread at `ep`.

    A rank of n has a share of mean 1/n and relative variance (n - 1) / (experts x concentration + 1).
    """
    concentration = max(((ep - 1) / spread**2 - 1) / experts, 1e-2)
    popular = np.random.default_rng(0).gamma(concentration, size=(DRAWS, experts))
    fullest = np.ones(experts + 1)
    for n in range(2, experts + 1):
        if experts % n == 0:
            held = popular.reshape(DRAWS, n, -1).sum(axis=2)
            fullest[n] = np.mean(held.max(axis=1) / held.mean(axis=1))
    return fullest


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
