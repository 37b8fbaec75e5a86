"""Words that files, models and the engine share: phases, collectives, groups; as numbers in columns."""

from __future__ import annotations

from typing import Final

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 0, 1, 2

NO_COMM: Final = 0
ALL_REDUCE: Final = 1
ALL_GATHER: Final = 2
REDUCE_SCATTER: Final = 3
ALL_TO_ALL: Final = 4
SEND_RECEIVE: Final = 5

TP: Final = 0
EP: Final = 1
DP: Final = 2
DP_EP: Final = 3
EMBEDDING: Final = 4
CP_A2A: Final = 5
CP_RING: Final = 6
GROUP_NAMES: Final = ("TP", "EP", "DP", "DP_EP", "EMBEDDING", "CP_A2A", "CP_RING")
"""EMBEDDING: a rank of the first stage and its partner on the last, which share tied weights. CP_A2A: context-parallel ranks
that exchange heads for tokens; CP_RING: those that pass or gather keys and values. One of the two may be all of them."""
