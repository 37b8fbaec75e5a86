"""Collectives inside the layers of a job: how often, of which size, and what they take without waits; the pace of layers."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Final, NamedTuple

import numpy as np

from sim_core.terms import ALL_GATHER, ALL_TO_ALL, EP, NO_COMM, TP, kinds_by
from sim_core.workloads.traces.job import Call, Job, Operation
from sim_core.workloads.traces.stage import Phases
from sim_core.workloads.traces.stages import Costs
from sim_core.workloads.traces.text import BLOCKS

KIND_OF_CALL: Final = kinds_by("call")
GROUP_OF_CALL: Final = {"tp": TP, "exp": EP}
BEST: Final = 0.1
"""Part of the large calls of a kind that are taken to be free of waits: the slowest of them has the rate of the kind. A single
fastest one may be a call that only starts its transfer."""
LARGE: Final = 0.5
"""A call is large from this part of the largest of its kind on; smaller ones are latency."""
UNEVEN: Final = 1.5
"""Times between the calls of the first layer and those of the last that differ by more are not those of equal layers."""


@dataclass(frozen=True, kw_only=True)
class Comm:
    """A collective of a layer, in its forward and its backward: calls, bytes of a call, seconds of all of them."""

    kind: int
    group: int
    calls: tuple[int, int]
    bytes: Phases
    seconds: Phases


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
    calls), and stays in the block, as do calls without a cost model (broadcasts).
    """
    sent = list(_sent(job, costs, imbalance))
    named: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for call in sent:
        named[call.named].append((call.bytes, call.seconds))
    rates = {name: _rate(calls) for name, calls in named.items()}
    layers = [len(job.named(name)) * a_block for name in BLOCKS]
    kinds = sorted({(call.kind, call.group) for call in sent if call.kind != NO_COMM and call.phase >= 0})
    return [
        _comm(
            [call for call in sent if (call.kind, call.group) == kind],
            rates,
            layers,
            job.layout.ep if kind[1] == EP else job.layout.tp,
        )
        for kind in kinds
    ]


def _sent(job: Job, costs: Costs, imbalance: float) -> Iterator[_Sent]:
    """The calls of all ranks; an all-to-all in a block carries the mean tokens of its phase x `imbalance`."""
    tokens: list[list[float]] = [[], []]
    for phase, name in enumerate(BLOCKS):
        for operation in job.named(name):
            # those out are every rank's own tokens, those back what it got; the first of each pair is the mean of all ranks
            calls = [call.bytes for call in operation.expert_exchanges]
            tokens[phase] += calls[::2] if len(calls) % 2 == 0 else calls
    carried = [float(np.mean(sizes or [0.0])) * imbalance for sizes in tokens]
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            phase = BLOCKS.index(operation.name) if operation.name in BLOCKS else -1
            for c, call in enumerate(operation.calls):
                if call.bytes > 0:
                    kind, group = kind_of(job, call)
                    size = carried[phase] if phase >= 0 and kind == ALL_TO_ALL else call.bytes
                    seconds = costs.get((number, k, c), call.duration_s)
                    yield _Sent(kind, group, phase, (call.group, call.name), size, seconds)


def kind_of(job: Job, call: Call) -> tuple[int, int]:
    """Collective and group of a call inside a block; NO_COMM where it has no cost model."""
    group = GROUP_OF_CALL.get(call.group, -1)
    spans = (group == TP and job.layout.tp > 1) or group == EP  # what one rank sends to the others is known
    return (KIND_OF_CALL.get(call.name, NO_COMM), group) if spans and call.bytes > 0 else (NO_COMM, -1)


def _rate(calls: list[tuple[float, float]]) -> float:
    """Seconds per byte of the best of the large ones of some calls, given as bytes and seconds."""
    size, seconds = np.array(calls).T
    large = size >= LARGE * size.max()
    return float(np.quantile(seconds[large] / size[large], BEST, method="higher"))


def _comm(sent: list[_Sent], rates: dict[tuple[str, str], float], layers: list[float], ranks: int) -> Comm:
    """Calls of one kind per layer on a group of so many ranks: those of a block over its layers, rounded up; total bytes and
    seconds are kept. `layers` are those of all blocks, by phase."""
    calls, size, seconds = [0, 0], [0.0, 0.0], [0.0, 0.0]
    for phase in range(2):
        own = [call for call in sent if call.phase == phase]
        if own:
            calls[phase] = max(int(np.ceil(len(own) / layers[phase] - 1e-6)), 1)
            size[phase] = sum(call.bytes for call in own) / layers[phase] / calls[phase]
            # a call records its own input, a gather's tensor is the group's
            size[phase] *= ranks if own[0].kind == ALL_GATHER else 1
            if ranks > 1:  # a group of one copies in memory, which is compute
                seconds[phase] = sum(call.bytes * rates[call.named] for call in own) / layers[phase]
    first = sent[0]
    return Comm(
        kind=first.kind,
        group=first.group,
        calls=(calls[0], calls[1]),
        bytes=(size[0], size[1]),
        seconds=(seconds[0], seconds[1]),
    )


def pace_s(job: Job, name: str, a_block: float) -> float | None:
    """Seconds from layer to layer inside the blocks of this name: from the end of a call to that of the same call of the last
    layer. None where no kind of call is made equally often by each of several layers."""
    layers = round(a_block)
    if layers < 2 or layers != a_block:
        return None
    paces = [pace for operation in job.named(name) if (pace := _pace_of(operation, layers)) is not None]
    return fmean(paces) if paces else None


def _pace_of(operation: Operation, layers: int) -> float | None:
    """Every layer makes the same calls, at least two: each of them says how far it is from the first layer to the last."""
    counts = Counter((call.group, call.name) for call in operation.calls if call.group in GROUP_OF_CALL)
    regular = [kind for kind, count in counts.most_common() if count % layers == 0 and count // layers > 1]
    if not regular:
        return None
    ends = [call.end_s for call in operation.calls if (call.group, call.name) == regular[0]]
    of_layer = len(ends) // layers
    spans = [last - first for first, last in zip(ends[:of_layer], ends[-of_layer:], strict=True)]
    return spans[0] / (layers - 1) if max(spans) <= UNEVEN * min(spans) else None
