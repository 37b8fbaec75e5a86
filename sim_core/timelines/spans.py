"""Spans of a timeline as columns: where, what, when, and which parts of the step their seconds are."""

from typing import Any, NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.metrics import METRICS, PARTS

STREAMS = ("compute", "beside", "sends", "gradients", "parameters")
"""Rows of a stage: its blocks and waits; the other block of a pair; messages to other stages; gradients and parameters of
data-parallel ranks, on their own communicator."""
COMPUTE, BESIDE, SENDS, GRADIENTS, PARAMETERS = range(len(STREAMS))

KINDS = (
    "forward",
    "backward",
    "input gradient",
    "weight gradient",
    "wait for a message",
    "wait for another stage",
    "wait for parameters",
    "wait for gradients",
    "slower beside messages",
    "wait for other messages",
    "wait for the host",
    "optimizer",
    "collective",
    "gather parameters",
    "reduce gradients",
    "send activations",
    "send gradients",
)
FORWARD, BACKWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, MESSAGE_WAIT, STAGE_WAIT, PARAMETER_WAIT, GRADIENT_WAIT = range(8)
CONTENTION, QUEUE_WAIT, HOST_WAIT, OPTIMIZER_STEP, COLLECTIVE, GATHER, REDUCE, SEND_DOWN, SEND_UP = range(8, len(KINDS))

_OF = {name: at for at, name in enumerate(PARTS)}
FORWARD_PART, BACKWARD_PART, RECOMPUTE_PART = (_OF[f"compute_{name}_s"] for name in ("forward", "backward", "recompute"))
EP_PART, PP_PART, DP_PART = (_OF[f"{name}_exposed_s"] for name in ("ep", "pp", "dp"))
LAUNCH_PART, QUEUED_PART, BUBBLE_PART, OPTIMIZER_PART, OFFLOAD_PART = (
    _OF[f"{name}_s"] for name in ("launch", "pp_queued", "bubble", "optimizer", "offload")
)
PART_OF = {METRICS.index(name): at for name, at in _OF.items()}
"""The part that is a metric."""


class Spans(NamedTuple):
    """Spans in columns of equal length; seconds from the start of the step."""

    stage: Ints
    stream: Ints  # index into STREAMS
    kind: Ints  # index into KINDS
    chunk: Ints  # of a block or its message; -1: none
    micro_batch: Ints  # -1: none
    start_s: Floats
    end_s: Floats
    parts: Floats  # [n, PARTS] seconds by part of the step; 0 for what runs behind the blocks
    shared_s: Floats  # of them, what is there because messages share NICs


_WHOLE = ("stage", "stream", "kind", "chunk", "micro_batch")


def spans(rows: int, **columns: Ints | Floats | int) -> Spans:
    """Spans from columns and scalars; without `parts` they are behind the blocks."""
    given = {"chunk": -1, "micro_batch": -1, "parts": 0.0, "shared_s": 0.0, **columns}

    def column(name: str) -> Any:
        values = np.asarray(given[name], int if name in _WHOLE else float)
        return np.broadcast_to(values, (rows, len(PARTS)) if name == "parts" else rows)

    return Spans(*map(column, Spans._fields))


def joined(parts: list[Spans]) -> Spans:
    """All spans, by stage and start; those without length are left out."""
    whole = Spans(*[np.concatenate(column) for column in zip(*parts, strict=True)])
    kept = np.flatnonzero(whole.end_s > whole.start_s)
    order = kept[np.lexsort((whole.stream[kept], whole.start_s[kept], whole.stage[kept]))]
    return Spans(**{name: column[order] for name, column in whole._asdict().items()})
