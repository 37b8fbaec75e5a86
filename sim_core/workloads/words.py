"""Groups of collectives in recorded tables: how words name them, and the rules that move their messages."""

from collections.abc import Iterable

from sim_core.workloads import moving
from sim_core.workloads.workload import DP, DP_EP, EP, TP, WEIGHT_GRADIENT

SUFFIXES = {"_DP_EP": DP_EP, "_EP": EP}
"""Groups that a word names at its end; the longer suffix is the first."""
RULE_OF_GROUP = {
    TP: moving.ACTIVATION,
    EP: moving.SHARDED_ACTIVATION,
    DP: moving.PARAMETERS,
    DP_EP: moving.EXPERT_PARAMETERS,
}


def words_of(kinds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Collective and suffix of each word that kinds of collectives and SUFFIXES make; NONE has no suffix."""
    pairs = ((kind, suffix) for kind in kinds for suffix in ("", *SUFFIXES) if not (kind == "NONE" and suffix))
    return {kind + suffix: (kind, suffix) for kind, suffix in pairs}


def group_of(suffix: str, phase: int) -> int:
    """The group of a suffix; without one: TP in forward and input gradient, DP in weight gradient."""
    return SUFFIXES[suffix] if suffix else DP if phase == WEIGHT_GRADIENT else TP
