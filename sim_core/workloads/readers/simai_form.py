"""The messages that AICB writes into each record where tp > 1 and where ep > 1: a file of another plan lacks them.

Names, kinds and sizes are those of the generator (aliyun/aicb, workload_generator/AIOB_simAI_workload_generator.py), as its
files show them (docs/aicb.md), also where they are no training's: 0 bytes for the reduce-scatter of a column-parallel GEMM, no
all-reduce in the backward.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim_core.workloads import moving
from sim_core.workloads.workload import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, EP, REDUCE_SCATTER, TP

EXPERTS: Final = "mlp_moelayer"
RECORDS_OF_EXPERTS: Final = 5
"""A layer's: counts of tokens, dispatch, gather of the ranks of an expert, their reduction, combine."""
COUNT_BYTES: Final = 2
"""Of the number of tokens for one expert and rank."""
FP8_DISPATCH: Final = (1 + 4 / 128) / 2
"""Bytes of a dispatch in fp8 with a scale of 4 bytes for each 128 elements, over those in bf16: DeepSeek's, forward only."""
EMBEDDING_GRADIENT: Final = "embedding_grads"


class Sizes(NamedTuple):
    """Bytes under the recorded plan."""

    activation: float  # sequence x micro-batch x hidden
    routed: float  # the same of all copies of tokens that experts receive, of a tensor-parallel group
    counts: float  # numbers of tokens, for each expert and rank
    tp: int
    dispatch: float = 1.0  # bytes of a forward dispatch, over those of a combine


class Message(NamedTuple):
    """One collective and the rule that moves it."""

    kind: int
    group: int
    bytes: float
    rule: int


def messages_of_record(name: str, nth: int, sizes: Sizes) -> tuple[Message | None, Message | None]:
    """The messages of forward and input gradient; `nth`: records of this name that precede it in the layer."""
    whole, routed = sizes.activation, sizes.routed
    if name == EXPERTS:
        exchanged = Message(ALL_TO_ALL, EP, routed / sizes.tp, moving.SHARDED_ACTIVATION)
        gathered, scattered = _on_tp(ALL_GATHER, routed), _on_tp(REDUCE_SCATTER, routed)
        each = (
            (Message(ALL_GATHER, TP, sizes.counts, moving.EXPERT_COUNTS), None),
            (exchanged._replace(bytes=exchanged.bytes * sizes.dispatch), exchanged),
            (gathered, scattered),
            (scattered, gathered),
            (exchanged, exchanged),
        )
        return each[nth] if nth < len(each) else (None, None)
    if name in ("embedding_layer", "attention_layer", "mlp_layer"):
        return _on_tp(ALL_REDUCE, whole), None
    if name.endswith("_column"):
        return _on_tp(ALL_GATHER, whole), _on_tp(REDUCE_SCATTER, 0.0)
    if name.endswith("_row"):
        return _on_tp(REDUCE_SCATTER, whole), _on_tp(ALL_GATHER, whole)
    return None, None


def _on_tp(kind: int, size: float) -> Message:
    return Message(kind, TP, size, moving.ACTIVATION)
