"""Collectives inside the blocks of a job: what a layer sends, and what it costs without waiting."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sim_core.terms import kinds_by
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.stage import BLOCKS, Phases
from sim_core.workloads.traces.stamps import Call
from sim_core.workloads.workload import ALL_GATHER, ALL_TO_ALL, EP, NO_COMM, TP

KIND_OF_CALL: Final = kinds_by("call")
GROUP_OF_CALL: Final = {"tp": TP, "exp": EP}
BEST: Final = 0.1
"""Part of the large calls of a kind that are taken to be free of waits: the slowest of them has the rate of the kind. A single
fastest one may be a call that only starts its transfer."""
LARGE: Final = 0.5
"""A call is large from this part of the largest of its kind on; smaller ones are latency."""
Costs = Mapping[tuple[int, int, int], float]
"""Seconds without known waits of operations and calls, by (rank, operation, call or -1)."""


@dataclass(frozen=True, kw_only=True)
class Comm:
    """A collective of a layer, in its forward and its backward: calls, bytes of a call, seconds of all of them."""

    kind: int
    group: int
    calls: tuple[int, int]
    bytes: Phases
    seconds: Phases


def collectives(job: Job, costs: Costs, a_block: float, imbalance: float = 1.0) -> list[Comm]:
    """Collectives of a layer on TP and EP groups; `a_block`: layers of a block.

    An all-to-all carries the tokens of the fullest rank, `imbalance` times the mean.

    A call costs its bytes x the best rate of its kind in the job. All else is waiting or compute beside it (asynchronous
    calls), and stays in the block, as do calls without a cost model (broadcasts).
    """
    carried = [size * imbalance for size in _mean_tokens_bytes(job)]
    rates = _rates(job, costs, carried)
    sent: dict[tuple[int, int], list[list[tuple[float, float]]]] = defaultdict(lambda: [[], []])
    blocks = [0, 0]
    for rank in job.ranks:
        for operation in rank.operations:
            if operation.name not in BLOCKS:
                continue
            phase = BLOCKS.index(operation.name)
            blocks[phase] += 1
            for call in operation.calls:
                kind, group = kind_of(job, call)
                if kind == NO_COMM:
                    continue
                size = carried[phase] if kind == ALL_TO_ALL else call.bytes
                sent[kind, group][phase].append((size, size * rates[call.group, call.name]))
    return [_comm(kind, group, found, blocks, a_block, job) for (kind, group), found in sorted(sent.items())]


def _mean_tokens_bytes(job: Job) -> Phases:
    """Bytes that a rank sends in an all-to-all of experts, in a forward and a backward: those out are every rank's own tokens,
    those back what it got; the first of each pair is the mean of all ranks."""
    sizes: list[list[float]] = [[], []]
    for rank in job.ranks:
        for operation in rank.operations:
            calls = [call.bytes for call in operation.calls if (call.group, call.name) == ("exp", "all_to_all")]
            if operation.name in BLOCKS:
                sizes[BLOCKS.index(operation.name)] += calls[::2] if len(calls) % 2 == 0 else calls
    return float(np.mean(sizes[0] or [0.0])), float(np.mean(sizes[1] or [0.0]))


def kind_of(job: Job, call: Call) -> tuple[int, int]:
    """Collective and group of a call inside a block; NO_COMM where it has no cost model."""
    group = GROUP_OF_CALL.get(call.group, -1)
    kind = KIND_OF_CALL.get(call.name, NO_COMM)
    spans = (group == TP and job.layout.tp > 1) or group == EP  # what one rank sends to the others is known
    return (kind, group) if spans and call.bytes > 0 else (NO_COMM, -1)


def _rates(job: Job, costs: Costs, carried: Sequence[float]) -> dict[tuple[str, str], float]:
    """Seconds per byte of each kind of call: the best of the large ones. `carried`: bytes of an all-to-all by phase."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            for c, call in enumerate(operation.calls):
                if call.bytes > 0:
                    tokens = operation.name in BLOCKS and kind_of(job, call)[0] == ALL_TO_ALL
                    size = carried[BLOCKS.index(operation.name)] if tokens else call.bytes
                    found[call.group, call.name].append((size, costs.get((number, k, c), call.duration_s)))
    rates = {}
    for kind, calls in found.items():
        size, seconds = np.array(calls).T
        large = size >= LARGE * size.max()
        rates[kind] = float(np.quantile(seconds[large] / size[large], BEST, method="higher"))
    return rates


def _comm(kind: int, group: int, found: list[list[tuple[float, float]]], blocks: list[int], a_block: float, job: Job) -> Comm:
    """Calls of one kind per layer: those of a block over its layers, rounded up; total bytes and seconds are kept."""
    calls, size, seconds = [0, 0], [0.0, 0.0], [0.0, 0.0]
    whole = job.layout.ep if group == EP else job.layout.tp
    for phase in range(2):
        if not (found[phase] and blocks[phase]):
            continue
        layers = blocks[phase] * a_block
        calls[phase] = max(int(np.ceil(len(found[phase]) / layers - 1e-6)), 1)
        size[phase] = sum(sent for sent, _ in found[phase]) / layers / calls[phase]
        size[phase] *= whole if kind == ALL_GATHER else 1  # a call records its own input, a gather's tensor is the group's
        if whole > 1:  # a group of one copies in memory, which is compute
            seconds[phase] = sum(cost_s for _, cost_s in found[phase]) / layers
    return Comm(kind=kind, group=group, calls=(calls[0], calls[1]), bytes=(size[0], size[1]), seconds=(seconds[0], seconds[1]))
