"""Who communicates with whom in a trace: the groups of each rank against Megatron's order, as lists."""

from __future__ import annotations

import itertools

import pytest

from sim_core.workloads.traces.layout import Layout
from sim_core.workloads.traces.meeting import group_of
from sim_core.workloads.workload import DP, DP_EP, EMBEDDING, EP, TP
from tests.oracle.groups import Grid

NAMES = {"tp": TP, "dp": DP, "exp": EP, "ep_dp": DP_EP, "exp_dp": DP_EP}
GRIDS = [Grid(tp, pp, ep, dp) for tp, pp, (ep, dp) in itertools.product((1, 2, 3), (1, 2, 3), ((1, 1), (1, 3), (2, 4), (3, 6)))]


def groups(grid: Grid, rank: int, name: str) -> tuple[int, ...]:
    """Numbers of the ranks of a rank's group in the product."""
    layout = Layout(
        tp=grid.tp, pp=grid.pp, vpp=1, ep=grid.ep, dp=grid.dp, ga=1, micro_batch=1, layers=None, experts=None, notes=()
    )
    per_stage = grid.tp * grid.dp
    return tuple(stage * per_stage + index for stage, index in group_of(layout, *divmod(rank, per_stage), name))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_groups_are_those_of_the_rank_order(grid: Grid) -> None:
    world = range(grid.tp * grid.pp * grid.dp)
    for name, kind in NAMES.items():
        expected = {rank: members for members in grid.groups(kind) for rank in members}
        assert {rank: groups(grid, rank, name) for rank in world} == expected, name
    ends = {rank: members for members in grid.groups(EMBEDDING) for rank in members}
    for rank in world:
        assert groups(grid, rank, "ep") == ends.get(rank, (rank,))
        stage_and_replica = rank % (grid.tp * grid.dp) // grid.tp
        model = [grid.rank(stage, stage_and_replica, shard) for stage in range(grid.pp) for shard in range(grid.tp)]
        assert groups(grid, rank, "mp") == tuple(model)
        assert groups(grid, rank, "none") == (rank,)
