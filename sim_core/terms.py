"""Words that files, models and the engine share: phases, collectives, groups, sharding; as numbers in columns."""

from typing import Literal, NamedTuple

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2


class Collective(NamedTuple):
    """A kind of message and its words; "" where a format has none."""

    name: str  # in summaries
    operation: str  # measured by itself
    simai: str  # in SimAI texts
    op_table: str  # in operator tables
    call: str  # in traces


COLLECTIVES = (
    Collective("none", "", simai="NONE", op_table="NONE", call=""),
    Collective("all-reduce", "all_reduce", simai="ALLREDUCE", op_table="ALLREDUCE", call="allreduce"),
    Collective("all-gather", "all_gather", simai="ALLGATHER", op_table="ALLGATHER", call="allgather"),
    Collective("reduce-scatter", "reduce_scatter", simai="REDUCESCATTER", op_table="REDUCESCATTER", call="reduce_scatter"),
    Collective("all-to-all", "all_to_all", simai="ALLTOALL", op_table="ALLTOALL", call="all_to_all"),
    Collective("send", "send_receive", simai="", op_table="SENDRECV", call=""),
)
"""All kinds of messages; columns hold their positions."""
NO_COMM, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECEIVE = range(len(COLLECTIVES))


def kinds_by(words: Literal["operation", "simai", "op_table", "call"]) -> dict[str, int]:
    """Kinds of messages by their words of one sort."""
    return {getattr(row, words): kind for kind, row in enumerate(COLLECTIVES) if getattr(row, words)}


GROUP_NAMES = ("TP", "EP", "DP", "DP_EP", "EMBEDDING", "CP_A2A", "CP_RING")
TP, EP, DP, DP_EP, EMBEDDING, CP_A2A, CP_RING = range(len(GROUP_NAMES))
"""EMBEDDING: a rank of the first stage and its partner on the last, which share tied weights. CP_A2A: context-parallel ranks
that exchange heads for tokens; CP_RING: those that pass or gather keys and values. One of the two may be all of them."""

SHARDINGS = ("stack", "none", "optimizer", "gradients", "parameters")
AS_STACK, UNSHARDED, OPTIMIZER_SHARDED, GRADIENTS_SHARDED, PARAMETERS_SHARDED = range(len(SHARDINGS))
"""What data-parallel ranks divide among themselves: as the software stack (or the file) does; nothing; the optimizer (ZeRO-1,
Megatron-LM's distributed optimizer); gradients, too (ZeRO-2); parameters, too (ZeRO-3, FSDP). Rajbhandari et al. 2019."""
