"""The ledger of what a simulation gives of a step: one row per metric and per term of memory, and their places in results."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """Seconds of a step, a mean over the stages. The parts of a step add up to it; an exposed part follows its total."""

    name: str
    of: Literal["step", "part", "total"]
    doc: str
    _: KW_ONLY
    summed: bool  # over the pieces of a unit, in the block table; else from the run of the pipeline
    heading: str = ""  # of a column in a table
    later: bool = False  # results of version 0.1.0 lack it: 0 there


@dataclass(frozen=True)
class MemoryTerm:
    """Bytes on a rank of the fullest stage."""

    name: str
    of: Literal[
        "tensors", "beside", "sum", "host"
    ]  # what a framework reports as allocated; what it needs beside; both; elsewhere
    doc: str


_COMPUTE = "compute, mean over the stages"
_LAUNCH = (
    "what layers take longer because the host launches their kernels too slowly (`host_forward`, `host_backward` of the "
    "[stack](stacks.md)); 0 of files, whose recorded compute holds it"
)
_TOTAL = "communication, hidden or not"
_EXPOSED = "communication that nothing hides"
_OFFLOAD = (
    "waiting for copies to and from the host, and for what it updates ([layers.md](layers.md#offload)); those of sharded "
    "parameters and gradients are part of `dp_exposed_s`"
)
_BUBBLE = (
    "all other waiting: for other stages, for micro-batches, for the slowest stage at the end; `sweep explain` "
    "[takes it apart](explain.md)"
)

METRIC_ROWS = (
    Metric("compute_forward_s", "part", _COMPUTE, summed=True, heading="fwd"),
    Metric("compute_backward_s", "part", _COMPUTE, summed=True, heading="bwd"),
    Metric("compute_recompute_s", "part", _COMPUTE, summed=True, heading="recomp"),
    Metric("launch_s", "part", _LAUNCH, summed=True, heading="launch", later=True),
    Metric("tp_total_s", "total", _TOTAL, summed=True),
    Metric("tp_exposed_s", "part", _EXPOSED, summed=True, heading="TP"),
    Metric("ep_total_s", "total", _TOTAL, summed=True),
    Metric("ep_exposed_s", "part", _EXPOSED, summed=True, heading="EP"),
    Metric("cp_total_s", "total", _TOTAL, summed=True),
    Metric("cp_exposed_s", "part", _EXPOSED, summed=True, heading="CP", later=True),
    Metric("pp_total_s", "total", _TOTAL, summed=False),
    Metric("pp_exposed_s", "part", _EXPOSED, summed=False, heading="PP"),
    Metric("pp_queued_s", "part", "pipeline messages that wait for each other", summed=False, heading="queue", later=True),
    Metric("dp_total_s", "total", _TOTAL, summed=True),
    Metric("dp_exposed_s", "part", _EXPOSED, summed=True, heading="DP"),
    Metric("offload_s", "part", _OFFLOAD, summed=True, heading="host", later=True),
    Metric("bubble_s", "part", _BUBBLE, summed=False, heading="bubble"),
    Metric("optimizer_s", "part", "optimizer and other once-per-step compute", summed=False, heading="optim"),
    Metric("step_time_s", "step", "seconds of a training step", summed=False, heading="step"),
)
"""In the order of display."""

METRICS = tuple(row.name for row in sorted(METRIC_ROWS, key=lambda row: not row.summed))
"""Rows of a result; the block table has the first N_SUMS of them."""
N_SUMS = sum(row.summed for row in METRIC_ROWS)
PARTS = tuple(row.name for row in METRIC_ROWS if row.of == "part")

(
    FORWARD_S, BACKWARD_S, RECOMPUTE_S, LAUNCH_S, TP_TOTAL, TP_EXPOSED, EP_TOTAL, EP_EXPOSED, CP_TOTAL, CP_EXPOSED, DP_TOTAL,
    DP_EXPOSED, OFFLOAD_S, PP_TOTAL, PP_EXPOSED, PP_QUEUED, BUBBLE, OPTIMIZER, STEP_TIME,
) = map(METRICS.index, (
    "compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s", "tp_total_s", "tp_exposed_s", "ep_total_s",
    "ep_exposed_s", "cp_total_s", "cp_exposed_s", "dp_total_s", "dp_exposed_s", "offload_s", "pp_total_s", "pp_exposed_s",
    "pp_queued_s", "bubble_s", "optimizer_s", "step_time_s",
))  # fmt: skip
"""Places in METRICS."""

MEMORY_ROWS = (
    MemoryTerm("state_bytes", "tensors", "weights, gradients and optimizer state"),
    MemoryTerm("activation_bytes", "tensors", "activations in flight at their peak, without logits"),
    MemoryTerm("logits_bytes", "tensors", "logits and loss"),
    MemoryTerm("communication_bytes", "tensors", "buffers of gathered and received activations"),
    MemoryTerm("allocator_bytes", "beside", "what the allocator loses to fragments (5 % of the tensors)"),
    MemoryTerm(
        "reserved_bytes",
        "beside",
        "context, communicators and their buffers (2 GiB, of `megatron-deepspeed` 2 GB more; see the [stack](stacks.md))",
    ),
    MemoryTerm("peak_memory_bytes", "sum", "the sum of all these, which the device must have"),
    MemoryTerm("host_bytes", "host", "of a rank in the memory of its host, on the stage with the most"),
)
MEMORY = tuple(row.name for row in MEMORY_ROWS)
(
    STATE_BYTES, ACTIVATION_BYTES, LOGITS_BYTES, COMMUNICATION_BYTES, ALLOCATOR_BYTES, RESERVED_BYTES, PEAK_BYTES, HOST_BYTES,
) = map(MEMORY.index, (
    "state_bytes", "activation_bytes", "logits_bytes", "communication_bytes", "allocator_bytes", "reserved_bytes",
    "peak_memory_bytes", "host_bytes",
))  # fmt: skip
"""Places in MEMORY."""
ALLOCATED = slice(0, sum(row.of == "tensors" for row in MEMORY_ROWS))
"""Places of what tensors take: the first ones."""

_SLOWED = ("compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s")
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
    if kinds != sorted(kinds, key=("tensors", "beside", "sum", "host").index) or kinds.count("sum") != 1:
        raise ValueError(f"memory terms: found {', '.join(kinds)}, expected tensors, then those beside them, then one sum")


check_order(METRICS, MEMORY_ROWS)
