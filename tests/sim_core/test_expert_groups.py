"""Whole experts, whose groups span tensor-parallel ranks: ep divides tp x cp x dp (Megatron-LM), held against lists of ranks.

Megatron-LM core 0.20, parallel_state.py: experts have a rank order of their own, expert tensor parallelism fastest (here 1),
then ep, then their replicas, then pp; the GPUs must be a multiple of etp x ep x pp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model
from sim_core.costing.groups import group_plans
from sim_core.models.keys import make_keys
from sim_core.models.weights import held
from sim_core.workloads.workload import DP_EP, EP

GPUS_PER_NODE = 8
TABLE = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)


def work(stack: str = "megatron-core") -> Any:
    model = read_model("mixtral-8x7b", {"sequence": 1024, "experts.count": 64})
    return workload_from_model(model, read_stack(stack), sequence_parallel=True)


def run(stack: str = "megatron-core", **plan: Any) -> dict[str, Any]:
    given = work(stack)
    found = simulate(given, TABLE, plans(given, **plan)).named()
    return {name: column[0] for name, column in found.items()}


def on_nodes(groups: list[list[int]]) -> set[tuple[int, int, int]]:
    """(nodes, fewest, most ranks on a node) of each group."""
    counts = [np.bincount([rank // GPUS_PER_NODE for rank in group]) for group in groups]
    return {(int((n > 0).sum()), int(n[n > 0].min()), int(n.max())) for n in counts}


@pytest.mark.parametrize("seed", range(12))
def test_groups_are_those_of_the_ranks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tp, cp, pp, dp = (int(rng.choice(sizes)) for sizes in ([2, 4, 8], [1, 2], [1, 2, 4], [1, 2, 3]))
    stage = tp * cp * dp
    ep = int(rng.choice([each for each in (2, 4, 6, 8, 16, 32) if stage % each == 0]))
    ranks = np.arange(pp * stage).reshape(pp, stage // ep, ep)
    of_experts = [list(group) for group in ranks.reshape(-1, ep)]
    replicas = [list(group) for group in ranks.transpose(0, 2, 1).reshape(-1, stage // ep)]
    given = work()
    grid = plans(given, tp=tp, cp=cp, pp=pp, ep=ep, dp=dp)
    groups = group_plans(TABLE.columns, grid, np.array([0]), whole_experts=True)
    for kind, expected in ((EP, of_experts), (DP_EP, replicas)):
        placed = groups.placed[groups.first[0, kind] : groups.end[0, kind]]
        assert groups.ranks[0, kind] == len(expected[0])
        if len(expected[0]) > 1:
            assert {(int(a), int(b), int(c)) for a, b, c in placed} == on_nodes(expected)


@pytest.mark.parametrize(("dp", "ep"), [(1, 2), (1, 4), (2, 8), (2, 4), (3, 4), (4, 16)])
def test_what_megatron_allows_runs_with_its_memory(dp: int, ep: int) -> None:
    """A rank holds 1/ep of the experts; GPUs / ep ranks share their optimizer."""
    tp = 4
    model = work().modelled.model
    keys = make_keys(tp=tp, ep=ep, sequence_parallel=1)
    dense = sum(unit.number * float(held(model, unit, keys).dense[0]) for unit in model.units)
    experts = 32 * 64 * 3 * 4096 * 14336 / ep
    state = dense * (6 + 12 / dp) + experts * (6 + 12 / (tp * dp / ep))
    found = run(tp=tp, dp=dp, ep=ep, ga=2)
    assert found["reason"] == ""
    assert found["state_bytes"] == pytest.approx(state, rel=1e-3)  # norms and router count as divided
    assert found["peak_memory_bytes"] > found["state_bytes"]


def test_exchanges_cost_what_they_cost_where_dp_is_larger() -> None:
    """The same eight GPUs of a node exchange the same tokens, whether ep divides dp or not."""
    narrow, wide = (run(tp=4, dp=dp, ep=8, ga=2) for dp in (2, 8))
    assert narrow["ep_total_s"] == pytest.approx(wide["ep_total_s"], rel=1e-12)
    assert narrow["compute_forward_s"] == pytest.approx(wide["compute_forward_s"], rel=0.01)  # more GPUs wait longer


def test_gradients_of_experts_without_replicas_are_not_reduced() -> None:
    alone, shared = (run(tp=4, dp=2, ep=ep, ga=2) for ep in (8, 4))
    dense = run(tp=4, dp=2, ep=1, ga=2)
    assert alone["dp_total_s"] < shared["dp_total_s"] < dense["dp_total_s"]


@pytest.mark.parametrize(
    ("stack", "plan", "reason"),
    [
        ("megatron-core", {"tp": 4, "dp": 2, "ep": 3}, "ep_not_dividing_dp"),
        ("megatron-core", {"tp": 2, "dp": 1, "ep": 4}, "ep_not_dividing_dp"),
        ("megatron-core", {"tp": 2, "cp": 2, "dp": 1, "ep": 4}, ""),
        ("nemo-24", {"tp": 4, "dp": 2, "ep": 8}, "ep_not_dividing_dp"),  # tp divides experts, too
        ("nemo-24", {"tp": 4, "dp": 8, "ep": 8}, ""),
    ],
)
def test_which_ep_a_plan_may_have(stack: str, plan: dict[str, int], reason: str) -> None:
    assert run(stack, **plan)["reason"] == reason
