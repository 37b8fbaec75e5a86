"""Which ranks communicate: every group of a plan as a list of ranks, and the node of each rank.

Megatron's rank order: tp is the fastest, then dp (with ep inside dp: neighbours in dp share experts), then pp. Experts that tp
does not divide have an order of their own, without tp: all neighbours share experts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sim_core.workloads.workload import DP, DP_EP, EMBEDDING, EP, TP

Ranks = tuple[int, ...]
Placement = tuple[int, ...]
"""Ranks of a group on each node that it touches, fewest first."""
Place = tuple[Placement, int]
"""Where a group sits, and how many groups of its kind lie side by side there, each with NICs of its own."""


@dataclass(frozen=True)
class Grid:
    """The ranks of a plan."""

    tp: int
    pp: int
    ep: int
    dp: int
    whole_experts: bool = False

    def rank(self, stage: int, replica: int, shard: int) -> int:
        """Number of a rank by its place in pp, dp and tp."""
        return (stage * self.dp + replica) * self.tp + shard

    def groups(self, kind: int) -> list[Ranks]:
        """All groups of a kind. Of EMBEDDING: a rank of the first stage with its partner on the last."""
        if kind == EMBEDDING:
            ends = sorted({0, self.pp - 1})
            return [
                tuple(self.rank(stage, replica, shard) for stage in ends)
                for replica in range(self.dp)
                for shard in range(self.tp)
            ]
        same: dict[int, Callable[[int, int], tuple[int, ...]]] = {
            TP: lambda replica, shard: (replica,),
            EP: lambda replica, shard: (shard, replica // self.ep),
            DP: lambda replica, shard: (shard,),
            DP_EP: lambda replica, shard: (shard, replica % self.ep),
        }
        if self.whole_experts:
            same[EP] = lambda replica, shard: ((replica * self.tp + shard) // self.ep,)
            same[DP_EP] = lambda replica, shard: ((replica * self.tp + shard) % self.ep,)
        members: dict[tuple[int, ...], list[int]] = {}
        for stage in range(self.pp):
            for replica in range(self.dp):
                for shard in range(self.tp):
                    key = (stage, *same[kind](replica, shard))
                    members.setdefault(key, []).append(self.rank(stage, replica, shard))
        return [tuple(ranks) for ranks in members.values()]

    def sends(self, stage: int) -> list[tuple[int, int]]:
        """Pairs of ranks between a stage and the next; the last stage's next is the first."""
        following = (stage + 1) % self.pp
        return [
            (self.rank(stage, replica, shard), self.rank(following, replica, shard))
            for replica in range(self.dp)
            for shard in range(self.tp)
        ]


def placement(ranks: Iterable[int], gpus_per_node: int) -> Placement:
    """Where a group sits."""
    return tuple(sorted(Counter(rank // gpus_per_node for rank in ranks).values()))


def side_by_side(grid: Grid, kind: int, ranks: Ranks, gpus_per_node: int) -> int:
    """Groups of a kind from one rank of a group to its next one: each GPU between belongs to one of its own.

    Of EMBEDDING over nodes only the ranks of a stage: those between belong to stages without such groups.
    """
    if len(ranks) == 1:
        return 1
    apart = ranks[1] - ranks[0]
    return grid.tp * grid.dp if kind == EMBEDDING and apart >= gpus_per_node else apart
