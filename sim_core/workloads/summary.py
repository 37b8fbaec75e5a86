"""Summary of a workload under the plan of its recording, for `sweep inspect`."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sim_core.arrays import Floats
from sim_core.terms import COLLECTIVES
from sim_core.workloads.workload import DP, DP_EP, FORWARD, GROUP_NAMES, NO_COMM, REDUCE_GRADIENTS, Workload


@dataclass(frozen=True)
class Traffic:
    """Bytes and number of one collective on one group, for one rank, per step if `per_step`, else per micro-batch."""

    group: str
    collective: str
    per_step: bool
    count: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Seconds of one rank's stage per micro-batch; `step_compute_s` is per step."""

    layers_per_stage: float
    forward_s: float
    backward_s: float
    step_compute_s: float
    parameters_per_rank: float | None
    expert_parameters_per_rank: float | None
    pieces: tuple[tuple[str, float, float, float], ...]  # name, runs per micro-batch, total forward s and backward s
    traffic: tuple[Traffic, ...]


def summarize(workload: Workload) -> Summary:
    """The summary of a workload, for the recorded stage: its layers, its embedding and its last layers."""
    arrays, pp = workload.arrays, workload.base.pp
    of_stage = workload.layers // pp
    times = (arrays.unit_layers[:, of_stage] if arrays.dense_layers else arrays.unit_layers[:, -1] / pp).astype(float)
    for unit in (arrays.first_unit, arrays.last_unit):
        if unit >= 0:
            times[unit] += 1
    runs = times[arrays.pieces.unit]
    compute_s = arrays.pieces.compute_s * runs[:, None]
    by_name: dict[str, Floats] = {}
    for name, count, (forward_s, *backward_s) in zip(workload.names, runs, compute_s, strict=False):
        by_name[name] = by_name.get(name, np.zeros(3)) + np.array((count, forward_s, sum(backward_s)))
    return Summary(
        layers_per_stage=workload.layers / pp,
        forward_s=float(compute_s[:, FORWARD].sum()),
        backward_s=float(compute_s[:, FORWARD + 1 :].sum()),
        step_compute_s=float(arrays.step.compute_s.sum()),
        parameters_per_rank=_parameters(workload, DP, runs),
        expert_parameters_per_rank=_parameters(workload, DP_EP, runs),
        pieces=tuple((name, count, ahead_s, back_s) for name, (count, ahead_s, back_s) in by_name.items()),
        traffic=_traffic(workload, runs),
    )


def _parameters(workload: Workload, group: int, runs: Floats) -> float | None:
    """Parameters of one rank: bytes of its gradients over bytes of an element."""
    arrays, step = workload.arrays, workload.arrays.step
    if arrays.layered_gradients and group == DP:
        return float((arrays.pieces.gradient_bytes * runs).sum()) / arrays.gradient_width
    rows = (step.role == REDUCE_GRADIENTS) & (step.comm_group == group)
    return float(step.comm_bytes[rows].sum()) / arrays.gradient_width if rows.any() else None


def _traffic(workload: Workload, runs: Floats) -> tuple[Traffic, ...]:
    pieces, step = workload.arrays.pieces, workload.arrays.step
    sums: dict[tuple[bool, int, int], Floats] = defaultdict(lambda: np.zeros(2))
    of_layers = pieces.comm_group, pieces.comm_kind, np.repeat(runs, 3), pieces.comm_bytes
    of_step = step.comm_group, step.comm_kind, np.ones(len(step.role)), step.comm_bytes
    for per_step, columns in ((False, of_layers), (True, of_step)):
        for group, kind, count, size in zip(*(column.ravel() for column in columns), strict=True):
            if kind != NO_COMM and size > 0:
                sums[per_step, int(group), int(kind)] += (count, count * size)
    return tuple(
        Traffic(GROUP_NAMES[group], COLLECTIVES[kind].name, per_step, float(n), float(total))
        for (per_step, group, kind), (n, total) in sorted(sums.items(), key=lambda each: each[0])
    )
