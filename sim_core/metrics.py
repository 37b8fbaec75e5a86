"""The metrics of a step: names and rows of a result."""

from __future__ import annotations

from typing import Final

METRICS: Final = (
    "compute_forward_s",
    "compute_backward_s",
    "compute_recompute_s",
    "launch_s",
    "tp_total_s",
    "tp_exposed_s",
    "ep_total_s",
    "ep_exposed_s",
    "cp_total_s",
    "cp_exposed_s",
    "dp_total_s",
    "dp_exposed_s",
    "pp_total_s",
    "pp_exposed_s",
    "bubble_s",
    "optimizer_s",
    "step_time_s",
)
"""Rows of a result in seconds, means over the stages. The rows in PARTS add up to step_time_s."""

FORWARD_S: Final = METRICS.index("compute_forward_s")
BACKWARD_S: Final = METRICS.index("compute_backward_s")
RECOMPUTE_S: Final = METRICS.index("compute_recompute_s")
LAUNCH_S: Final = METRICS.index("launch_s")
TP_TOTAL: Final = METRICS.index("tp_total_s")
TP_EXPOSED: Final = METRICS.index("tp_exposed_s")
EP_TOTAL: Final = METRICS.index("ep_total_s")
EP_EXPOSED: Final = METRICS.index("ep_exposed_s")
CP_TOTAL: Final = METRICS.index("cp_total_s")
CP_EXPOSED: Final = METRICS.index("cp_exposed_s")
DP_TOTAL: Final = METRICS.index("dp_total_s")
DP_EXPOSED: Final = METRICS.index("dp_exposed_s")
PP_TOTAL: Final = METRICS.index("pp_total_s")
PP_EXPOSED: Final = METRICS.index("pp_exposed_s")
BUBBLE: Final = METRICS.index("bubble_s")
OPTIMIZER: Final = METRICS.index("optimizer_s")
STEP_TIME: Final = METRICS.index("step_time_s")

N_SUMS: Final = PP_TOTAL
"""The block table has the rows before this one, as sums over the pieces of a unit."""

_PARTS: Final = (
    *(FORWARD_S, BACKWARD_S, RECOMPUTE_S, LAUNCH_S),
    *(TP_EXPOSED, EP_EXPOSED, CP_EXPOSED, PP_EXPOSED, DP_EXPOSED),
    *(BUBBLE, OPTIMIZER),
)
PARTS: Final = tuple(METRICS[part] for part in _PARTS)
"""The parts of a step, in the order of display."""

MEMORY: Final = (
    "state_bytes",
    "activation_bytes",
    "logits_bytes",
    "communication_bytes",
    "allocator_bytes",
    "reserved_bytes",
    "peak_memory_bytes",
)
"""Bytes on a rank of the fullest stage; the last one, the sum of the others, is what its device must have.

Weights, gradients and optimizer; activations at their peak, without logits; logits and loss; buffers of messages: the first
four are what a framework reports as allocated. What the allocator loses to fragments; context and communicators.
"""
STATE_BYTES, ACTIVATION_BYTES, LOGITS_BYTES, COMMUNICATION_BYTES, ALLOCATOR_BYTES, RESERVED_BYTES, PEAK_BYTES = range(
    len(MEMORY)
)
ALLOCATED: Final = slice(STATE_BYTES, ALLOCATOR_BYTES)
"""Rows of what tensors take."""
