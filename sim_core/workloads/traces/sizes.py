"""Sizes of a recorded layer, as its messages and gradients tell them, and what is assumed where a plan has others."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.once import Once
from sim_core.workloads.workload import DP, REDUCE_GRADIENTS, RecordedLayer

DTYPE_OF_WIDTH: Final = {2.0: "bf16", 4.0: "fp32"}
ATTENTION: Final = 4
"""Weights of attention are at most so many squares of the hidden size: queries, keys, values, output."""


def layer_of(job: Job, once: Once, a_stage: float) -> RecordedLayer | None:
    """Sizes of a layer, `a_stage` of them on a stage; None where no pipeline message or no dense gradient tells them.

    Without the trace of an inner stage nobody knows what of the gradients is the embedding's; a layer with experts then has
    no more dense parameters than attention.
    """
    layout = job.layout
    sent = [o for rank in job.ranks for o in rank.operations if o.parts and o.bytes > 0 and o.width in DTYPE_OF_WIDTH]
    reduced = (once.step.role == REDUCE_GRADIENTS) & (once.step.comm_group == DP)
    elements = float(once.step.comm_bytes[reduced].sum()) / once.width * (1 - once.shares.ends)
    if not sent or not job.sequence or not elements > 0:
        return None
    hidden = median(o.bytes / o.width for o in sent) / (job.sequence * layout.micro_batch)
    if hidden != int(hidden):
        return None
    parameters = elements / a_stage
    if job.has_experts and not any(0 < rank.stage < layout.pp - 1 for rank in job.ranks):
        parameters = min(parameters, ATTENTION * hidden**2 / layout.tp)
    return RecordedLayer(hidden=int(hidden), parameters=parameters, dtype=DTYPE_OF_WIDTH[sent[0].width])


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
