"""Collectives and groups of recorded tables: the words for them, and the rules that move their messages."""

from __future__ import annotations

from typing import Final

from sim_core.workloads import moving
from sim_core.workloads.workload import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DP,
    DP_EP,
    EP,
    NO_COMM,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    TP,
    WEIGHT_GRADIENT,
)

KINDS: Final = {
    "NONE": NO_COMM,
    "ALLREDUCE": ALL_REDUCE,
    "ALLGATHER": ALL_GATHER,
    "REDUCESCATTER": REDUCE_SCATTER,
    "ALLTOALL": ALL_TO_ALL,
    "SENDRECV": SEND_RECEIVE,
}
SUFFIXES: Final = {"_DP_EP": DP_EP, "_EP": EP}
"""Groups that a word names at its end; the longer suffix is the first."""
RULE_OF_GROUP: Final = {
    TP: moving.ACTIVATION,
    EP: moving.SHARDED_ACTIVATION,
    DP: moving.PARAMETERS,
    DP_EP: moving.EXPERT_PARAMETERS,
}


def group_of(suffix: str, phase: int) -> int:
    """The group of a suffix; without one: TP in forward and input gradient, DP in weight gradient."""
    return SUFFIXES[suffix] if suffix else DP if phase == WEIGHT_GRADIENT else TP
