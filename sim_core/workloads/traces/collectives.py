"""Collectives inside the layers of a job: how often, of which size, and what they take without waits; the pace of layers."""

from collections import Counter
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import numpy as np

from sim_core.terms import ALL_GATHER, ALL_TO_ALL, EP, NO_COMM, TP, kinds_by
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.stages import Costs
from sim_core.workloads.traces.text import BLOCKS

KIND_OF_CALL = kinds_by("call")
GROUP_OF_CALL = {"tp": TP, "exp": EP}
BEST = 0.1
"""Part of the large calls of a kind that are taken to be free of waits: the slowest of them has the rate of the kind. A single
fastest one may be a call that only starts its transfer."""
LARGE = 0.5
"""A call is large from this part of the largest of its kind on; smaller ones are latency."""
UNEVEN = 1.5
"""Times between the calls of the first layer and those of the last that differ by more are not those of equal layers."""


class Comm(NamedTuple):
    """A collective of a layer, in its forward and its backward: calls, bytes of a call, seconds of all of them."""

    kind: int
    group: int
    calls: list[int]
    bytes: list[float]
    seconds: list[float]


class _Sent(NamedTuple):
    """A call that moves bytes; `phase`: index of its block, -1 outside of blocks; `named`: its group and name."""

    kind: int
    group: int
    phase: int
    named: tuple[str, str]
    bytes: float
    seconds: float


def collectives(job: Job, costs: Costs, a_block: float, imbalance: float) -> list[Comm]:
    """Collectives of a layer on TP and EP groups; `a_block`: layers of a block.

    An all-to-all carries the tokens of the fullest rank, `imbalance` times the mean.

    A call costs its bytes x the best rate of its kind in the job. All else is waiting or compute beside it (asynchronous
    calls), and stays in the block, as do calls without a cost model (broadcasts). Calls of a layer are those of a block over
    its layers, rounded up; total bytes and seconds are kept.
    """
    sent = list(_sent(job, costs, imbalance))
    rates = {}  # seconds per byte of the best of the large ones
    for name in {call.named for call in sent}:
        size, seconds = np.array([(call.bytes, call.seconds) for call in sent if call.named == name]).T
        large = size >= LARGE * size.max()
        rates[name] = float(np.quantile(seconds[large] / size[large], BEST, method="higher"))
    layers = [len(job.named(name)) * a_block for name in BLOCKS]
    comms = []
    for kind, group in sorted({(call.kind, call.group) for call in sent if call.kind != NO_COMM and call.phase >= 0}):
        comm, ranks = Comm(kind, group, [0, 0], [0.0, 0.0], [0.0, 0.0]), job.layout.ep if group == EP else job.layout.tp
        for phase, number in enumerate(layers):
            own = [call for call in sent if (call.kind, call.group, call.phase) == (kind, group, phase)]
            if own:
                comm.calls[phase] = max(int(np.ceil(len(own) / number - 1e-6)), 1)
                comm.bytes[phase] = sum(call.bytes for call in own) / number / comm.calls[phase]
                # a call records its own input, a gather's tensor is the group's
                comm.bytes[phase] *= ranks if kind == ALL_GATHER else 1
            if own and ranks > 1:  # a group of one copies in memory, which is compute
                comm.seconds[phase] = sum(call.bytes * rates[call.named] for call in own) / number
        comms.append(comm)
    return comms


def _sent(job: Job, costs: Costs, imbalance: float) -> Iterator[_Sent]:
    """The calls of all ranks; an all-to-all in a block carries the mean tokens of its phase x `imbalance`.

    One without a cost model is of no kind: what a rank sends to others is known of its groups of TP and EP.
    """
    carried = []
    for name in BLOCKS:
        sizes = []
        for operation in job.named(name):
            # those out are every rank's own tokens, those back what it got; the first of each pair is the mean of all ranks
            tokens = [call.bytes for call in operation.expert_exchanges]
            sizes += tokens[::2] if len(tokens) % 2 == 0 else tokens
        carried.append(float(np.mean(sizes or [0.0])) * imbalance)
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            phase = BLOCKS.index(operation.name) if operation.name in BLOCKS else -1
            for c, call in enumerate(operation.calls):
                if call.bytes > 0:
                    kind, group = KIND_OF_CALL.get(call.name, NO_COMM), GROUP_OF_CALL.get(call.group, -1)
                    if group != EP and not (group == TP and job.layout.tp > 1):
                        kind, group = NO_COMM, -1
                    size = carried[phase] if phase >= 0 and kind == ALL_TO_ALL else call.bytes
                    yield _Sent(kind, group, phase, (call.group, call.name), size, costs.get((number, k, c), call.duration_s))


def pace_s(job: Job, name: str, a_block: float) -> float | None:
    """Seconds from layer to layer inside the blocks of this name: from the end of a call to that of the same call of the last
    layer. None where no kind of call is made equally often, at least twice, by each of several layers."""
    layers = round(a_block)
    if layers < 2 or layers != a_block:
        return None
    paces = []
    for operation in job.named(name):
        counts = Counter((call.group, call.name) for call in operation.calls if call.group in GROUP_OF_CALL)
        regular = [kind for kind, count in counts.most_common() if count % layers == 0 and count // layers > 1]
        ends = [call.end_s for call in operation.calls if (call.group, call.name) in regular[:1]]
        of_layer = len(ends) // layers
        spans = [last - first for first, last in zip(ends[:of_layer], ends[-of_layer:], strict=True)]
        if spans and max(spans) <= UNEVEN * min(spans):
            paces.append(spans[0] / (layers - 1))
    return fmean(paces) if paces else None
