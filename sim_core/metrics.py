"""The ledger of what a simulation gives of a step: one row per metric and per term of memory, and their places in results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Seconds of a step, a mean over the stages. The parts of a step add up to it; an exposed part follows its total."""

    name: str
    of: Literal["step", "part", "total"]
    summed: bool  # over the pieces of a unit, in the block table; else from the run of the pipeline
    heading: str = ""  # of a column in a table
    later: bool = False  # results of version 0.1.0 lack it: 0 there
    doc: str


@dataclass(frozen=True, kw_only=True)
class MemoryTerm:
    """Bytes on a rank of the fullest stage."""

    name: str
    of: Literal["tensors", "beside", "sum"]  # what a framework reports as allocated; what it needs beside; all of it
    doc: str


_COMPUTE: Final = "compute, mean over the stages"
_LAUNCH: Final = (
    "what layers take longer because the host launches their kernels too slowly (`host_forward`, `host_backward` of the "
    "[stack](stacks.md)); 0 of files, whose recorded compute holds it"
)
_TOTAL: Final = "communication, hidden or not"
_EXPOSED: Final = "communication that nothing hides"
_BUBBLE: Final = (
    "all other waiting: for other stages, for micro-batches, for the slowest stage at the end; `sweep explain` "
    "[takes it apart](explain.md)"
)

METRIC_ROWS: Final = (
    Metric(name="compute_forward_s", of="part", summed=True, heading="fwd", doc=_COMPUTE),
    Metric(name="compute_backward_s", of="part", summed=True, heading="bwd", doc=_COMPUTE),
    Metric(name="compute_recompute_s", of="part", summed=True, heading="recomp", doc=_COMPUTE),
    Metric(name="launch_s", of="part", summed=True, heading="launch", later=True, doc=_LAUNCH),
    Metric(name="tp_total_s", of="total", summed=True, doc=_TOTAL),
    Metric(name="tp_exposed_s", of="part", summed=True, heading="TP", doc=_EXPOSED),
    Metric(name="ep_total_s", of="total", summed=True, doc=_TOTAL),
    Metric(name="ep_exposed_s", of="part", summed=True, heading="EP", doc=_EXPOSED),
    Metric(name="cp_total_s", of="total", summed=True, doc=_TOTAL),
    Metric(name="cp_exposed_s", of="part", summed=True, heading="CP", later=True, doc=_EXPOSED),
    Metric(name="pp_total_s", of="total", summed=False, doc=_TOTAL),
    Metric(name="pp_exposed_s", of="part", summed=False, heading="PP", doc=_EXPOSED),
    Metric(name="dp_total_s", of="total", summed=True, doc=_TOTAL),
    Metric(name="dp_exposed_s", of="part", summed=True, heading="DP", doc=_EXPOSED),
    Metric(name="bubble_s", of="part", summed=False, heading="bubble", doc=_BUBBLE),
    Metric(name="optimizer_s", of="part", summed=False, heading="optim", doc="optimizer and other once-per-step compute"),
    Metric(name="step_time_s", of="step", summed=False, heading="step", doc="seconds of a training step"),
)
"""In the order of display."""

METRICS: Final = tuple(row.name for row in sorted(METRIC_ROWS, key=lambda row: not row.summed))
"""Rows of a result; the block table has the first N_SUMS of them."""
N_SUMS: Final = sum(row.summed for row in METRIC_ROWS)
PARTS: Final = tuple(row.name for row in METRIC_ROWS if row.of == "part")

(
    FORWARD_S, BACKWARD_S, RECOMPUTE_S, LAUNCH_S, TP_TOTAL, TP_EXPOSED, EP_TOTAL, EP_EXPOSED, CP_TOTAL, CP_EXPOSED, DP_TOTAL,
    DP_EXPOSED, PP_TOTAL, PP_EXPOSED, BUBBLE, OPTIMIZER, STEP_TIME,
) = map(METRICS.index, (
    "compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s", "tp_total_s", "tp_exposed_s", "ep_total_s",
    "ep_exposed_s", "cp_total_s", "cp_exposed_s", "dp_total_s", "dp_exposed_s", "pp_total_s", "pp_exposed_s", "bubble_s",
    "optimizer_s", "step_time_s",
))  # fmt: skip
"""Places in METRICS."""

MEMORY_ROWS: Final = (
    MemoryTerm(name="state_bytes", of="tensors", doc="weights, gradients and optimizer state"),
    MemoryTerm(name="activation_bytes", of="tensors", doc="activations in flight at their peak, without logits"),
    MemoryTerm(name="logits_bytes", of="tensors", doc="logits and loss"),
    MemoryTerm(name="communication_bytes", of="tensors", doc="buffers of gathered and received activations"),
    MemoryTerm(name="allocator_bytes", of="beside", doc="what the allocator loses to fragments (5 % of the tensors)"),
    MemoryTerm(
        name="reserved_bytes",
        of="beside",
        doc="context, communicators and their buffers (2 GiB, of `megatron-deepspeed` 2 GB more; see the [stack](stacks.md))",
    ),
    MemoryTerm(name="peak_memory_bytes", of="sum", doc="the sum of all these, which the device must have"),
)
MEMORY: Final = tuple(row.name for row in MEMORY_ROWS)
(
    STATE_BYTES, ACTIVATION_BYTES, LOGITS_BYTES, COMMUNICATION_BYTES, ALLOCATOR_BYTES, RESERVED_BYTES, PEAK_BYTES,
) = map(MEMORY.index, (
    "state_bytes", "activation_bytes", "logits_bytes", "communication_bytes", "allocator_bytes", "reserved_bytes",
    "peak_memory_bytes",
))  # fmt: skip
"""Places in MEMORY."""
ALLOCATED: Final = slice(0, sum(row.of == "tensors" for row in MEMORY_ROWS))
"""Places of what tensors take: the first ones."""

_SLOWED: Final = ("compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s")
"""The first metrics: `Lowered.extra_s` (sim_core/step/lower.py) has a place for each of these."""


def check_order(metrics: Sequence[str], memory: Sequence[MemoryTerm]) -> None:
    """Raise ValueError for rows out of the order that kernels rely on; `metrics` as in METRICS."""
    for name in metrics[:N_SUMS]:
        exposed = name.replace("_total_s", "_exposed_s")
        if exposed != name and exposed not in metrics[metrics.index(name) + 1 :][:1]:
            raise ValueError(f"metric {name}: expected {exposed} in the row after it")
    if tuple(metrics[: len(_SLOWED)]) != _SLOWED:
        raise ValueError(f"metrics: found {', '.join(metrics[: len(_SLOWED)])} first, expected {', '.join(_SLOWED)}")
    kinds = [row.of for row in memory]
    if kinds != sorted(kinds, key=("tensors", "beside", "sum").index) or kinds.count("sum") != 1:
        raise ValueError(f"memory terms: found {', '.join(kinds)}, expected tensors, then those beside them, then one sum")


check_order(METRICS, MEMORY_ROWS)
