"""Sizes of a recorded layer, as its messages and gradients tell them, and what is assumed where a plan has others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.once import Once, hidden_of
from sim_core.workloads.workload import DP, REDUCE_GRADIENTS, RecordedLayer

DTYPE_OF_WIDTH: Final = {2.0: "bf16", 4.0: "fp32"}


def layer_of(job: Job, once: Once, a_stage: float) -> RecordedLayer | None:
    """Sizes of a layer, `a_stage` of them on a stage; None where no pipeline message or no dense gradient tells them."""
    widths = [o.width for rank in job.ranks for o in rank.operations if o.parts and o.bytes > 0 and o.width in DTYPE_OF_WIDTH]
    reduced = (once.step.role == REDUCE_GRADIENTS) & (once.step.comm_group == DP)
    elements = float(once.step.comm_bytes[reduced].sum()) / once.width * (1 - once.shares.ends)
    hidden = hidden_of(job)
    if not widths or not hidden or hidden != int(hidden) or not elements > 0:
        return None
    return RecordedLayer(hidden=int(hidden), parameters=elements / a_stage, dtype=DTYPE_OF_WIDTH[widths[0]])


def moving_notes(layer: RecordedLayer | None, experts: int | None) -> Iterator[tuple[str, str]]:
    """What is assumed of plans with another value, by column."""
    if layer is None:
        text = "compute is in proportion to micro_batch and 1/tp: the sizes of a layer are unknown (set workload.model)"
        yield from ((name, text) for name in ("micro_batch", "tp"))
    else:
        text = (
            "compute of a layer with another micro_batch, sequence or tp is the longer of launching its kernels, as recorded "
            "where they take less, and running them, by the device's tables: "
            f"{layer.parameters / 1e6:.1f} M dense parameters of a rank, causal flash attention of hidden size {layer.hidden} "
            "(the square of the sequence); experts, embedding and head are in proportion to the tokens"
        )
        yield from ((name, text) for name in ("micro_batch", "sequence", "tp"))
    if experts:
        yield "experts", f"experts: ranks get the tokens they got with {experts}; weights, gradients, optimizer grow with them"
