"""Dispatchers of tokens to experts: what leaves a node, against routing drawn at random, and what hides it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    REASONS,
    HardwareTable,
    Results,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.costing.collectives import RING_BASE_S, SIMPLE, all_to_all_s, dispatch_s, two_stage_s
from sim_core.costing.fabric import Routing, reached, routing_of
from sim_core.hardware.table import Device, device_at
from sim_core.planning.placement import Placement
from tests.conftest import make_plans
from tests.facts import FREE_HOST, stack_with
from tests.oracle.pipeline import WEIGHTS
from tests.oracle.split import DUALPIPE, dual


def table(**numbers: Any) -> HardwareTable:
    return hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB", **numbers})], None)


def links(**numbers: Any) -> Device:
    return device_at(table(**numbers).columns, 0)


def run(name: str = "deepseek-v3", **plan: Any) -> Results:
    work = workload_from_model(read_model(name, {"sequence": 4096}), stack_with(**FREE_HOST), sequence_parallel=True)
    return simulate(work, table(), plans(work, **{"micro_batch": 1, "ga": 2, "layer_split": "balanced", **plan}))


@pytest.mark.parametrize(("nodes", "latency_s"), [(1, 2e-6), (4, 2e-6 + 50e-6)])
def test_a_short_dispatch_takes_its_start_and_a_hop_of_each_network(nodes: int, latency_s: float) -> None:
    network = links(nvlink_latency="2 us", nic_latency="50 us")
    at = Placement(ranks=8 * nodes, nodes=nodes, fewest=8, most=8)
    assert dispatch_s(1.0, Routing(8, 1, 1), at, network) == pytest.approx(RING_BASE_S[SIMPLE] + latency_s, rel=1e-6)


@pytest.mark.parametrize(("nodes", "topk"), [(2, 8), (4, 8), (8, 4), (8, 2)])
def test_copies_that_leave_a_node_are_those_of_random_routing(nodes: int, topk: int) -> None:
    """Tokens of one rank, each to `topk` experts anywhere: distinct remote nodes, counted."""
    rng, tokens, width = np.random.default_rng(1), 20_000, 2 * 7168
    reached = np.zeros((tokens, nodes), np.bool_)
    for _ in range(topk):
        reached[np.arange(tokens), rng.integers(nodes, size=tokens)] = True
    leaving = float(reached[:, 1:].sum()) * width
    network = links(nvlink_bandwidth="1e6 GB/s", fabric_efficiency=1, nic_latency="0 s")
    at = Placement(ranks=8 * nodes, nodes=nodes, fewest=8, most=8)
    seconds = dispatch_s(float(tokens * topk * width), Routing(topk, 1, 1), at, network)
    assert seconds == pytest.approx(leaving / network.nic_bandwidth, rel=0.02)
    copies = topk * (nodes - 1) / nodes * tokens * width
    assert all_to_all_s(float(tokens * topk * width), at, network) == pytest.approx(copies / network.nic_bandwidth, rel=0.02)


def test_deepep() -> None:
    """DeepEP's table (deepseek-ai/DeepEP, README: H800, 400 Gb/s; 4,096 tokens of 7,168, top-4 groups and top-8 experts,
    combined in bf16). Its script takes a node as a group.

    It counts copies to distinct ranks (8 ranks, NVLink, 158 GB/s) or to distinct nodes, the own one included (16 to 64
    ranks). An H800 has 200 GB/s of NVLink in each direction. The two at which we are too fast are those whose NVLink is as
    busy as the network.
    """
    of_h800, tokens, topk = links(nvlink_bandwidth="200 GB/s"), 4096 * 7168 * 2.0, 8
    for nodes, rate, error in ((1, 158e9, -0.135), (2, 43e9, -0.229), (4, 57e9, -0.021), (8, 50e9, -0.001)):
        routing = Routing(topk, nodes, min(nodes, 4))
        measured_s = _copies(8 if nodes == 1 else nodes, routing) * tokens / rate
        seconds = dispatch_s(topk * tokens, routing, Placement(ranks=8 * nodes, nodes=nodes, fewest=8, most=8), of_h800)
        assert seconds / measured_s - 1 == pytest.approx(error, abs=0.02)


def _copies(places: int, routing: Routing, experts: int = 256, tokens: int = 4_000) -> float:
    """Distinct places of a token's experts, drawn: groups first, then experts of those, none of them twice."""
    rng = np.random.default_rng(places)
    scores = rng.random((tokens, routing.groups, experts // routing.groups))
    order = np.argsort(rng.random((tokens, routing.groups)), axis=1)[:, routing.topk_groups :]
    np.put_along_axis(scores, order[:, :, None], -1.0, axis=1)
    chosen = np.argsort(-scores.reshape(tokens, experts), axis=1)[:, : routing.topk]
    hit = np.zeros((tokens, places), np.bool_)
    np.put_along_axis(hit, chosen // (experts // places), True, axis=1)
    return float(hit.sum(axis=1).mean())


@pytest.mark.parametrize(
    ("routing", "places"),
    [
        (Routing(8, 8, 4), (1, 2, 4, 8, 16, 64)),
        (Routing(6, 8, 3), (4, 8, 32)),
        (Routing(8, 1, 1), (2, 8)),
        (Routing(4, 2, 1), (2, 4)),
    ],
)
def test_routing_to_some_groups_by_drawing(routing: Routing, places: tuple[int, ...]) -> None:
    for count in places:
        assert reached(count, routing) == pytest.approx(_copies(count, routing), rel=0.03)


def test_at_most_four_nodes() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 2.1.2): 4 of 8 nodes with a group each; 4 (1 - 0.75^8) in the mean."""
    limited = routing_of(read_model("deepseek-v3").experts)
    assert limited == Routing(8, 8, 4)
    assert reached(8, limited) == pytest.approx(4 * (1 - 0.75**8), rel=1e-12)
    assert reached(8, Routing(8, 1, 1)) == pytest.approx(8 * (1 - 0.875**8), rel=1e-12)
    free = read_model("deepseek-v3", {"sequence": 4096, "experts.groups": 1, "experts.topk_groups": 1})
    seconds = []
    for model in (read_model("deepseek-v3", {"sequence": 4096}), free):
        work = workload_from_model(model, read_stack("hai-llm"), sequence_parallel=True)
        grid = plans(work, pp=4, ep=64, dp=64, micro_batch=1, ga=2, layer_split="balanced", dispatcher=["alltoall", "flex"])
        seconds.append(simulate(work, table(), grid).named()["ep_total_s"])
    assert seconds[0][0] == seconds[1][0], "a copy for each expert: as many bytes"
    assert seconds[0][1] / seconds[1][1] == pytest.approx(4 * (1 - 0.75**8) / (8 * (1 - 0.875**8)), rel=0.02)


def test_a_plan_over_nodes_gains_by_one_copy_per_node() -> None:
    found = run(tp=1, pp=4, ep=32, dp=32, dispatcher=["alltoall", "flex"]).named()
    missed = (15 + 40 * 0.75**8 + 15 * 0.5**8) / 70  # 0, 1 or 2 of the 4 groups that a token may use are on a node's 2 of 8
    assert found["ep_total_s"][1] / found["ep_total_s"][0] == pytest.approx(4 * (1 - missed) / 8, rel=0.1)
    assert found["step_time_s"][1] < found["step_time_s"][0]


def test_the_fullest_rank_receives_more_and_a_capacity_drops_it() -> None:
    """Twice the tokens take twice the seconds on slow NICs; a capacity of 1.25 cuts them there."""
    slow, routed = table(nic_bandwidth="8 Gb/s"), {"count": 8, "topk": 2, "ffn": 14336}
    seconds = []
    for capacity in (None, 1.25):
        experts = routed | ({"capacity_factor": capacity} if capacity else {})
        model = read_model("mixtral-8x7b", {"sequence": 4096, "experts": experts})
        work = workload_from_model(model, stack_with(**FREE_HOST), sequence_parallel=True)
        grid = plans(work, ep=8, tp=8, all_gpus=64, micro_batch=64, ga=1, expert_imbalance=[1.0, 2.0])
        seconds.append(simulate(work, slow, grid).named()["ep_total_s"])
    assert seconds[0][1] / seconds[0][0] == pytest.approx(2, rel=0.02)
    assert seconds[1][1] / seconds[1][0] == pytest.approx(1.25, rel=0.02)


@pytest.mark.parametrize(("nodes", "here"), [(2, 8), (4, 4), (8, 1), (1, 8), (3, 2)])
def test_two_stages_by_counting(nodes: int, here: int) -> None:
    """Every chunk from rank to rank by its route: between nodes to the same place, then inside the node. Bytes of each link."""
    ranks, chunk = nodes * here, 1e9
    network, inside = np.zeros(ranks), np.zeros(ranks)
    for source in range(ranks):
        for target in range(ranks):
            entry = target // here * here + source % here
            network[source] += chunk * (entry // here != source // here)
            inside[entry] += chunk * (entry != target)
    at = Placement(ranks=ranks, nodes=nodes, fewest=here, most=here)
    on = links(fabric_efficiency=1)
    expected = network.max() / on.nic_bandwidth + inside.max() / on.nvlink_bandwidth
    assert two_stage_s(ranks * chunk, at, on) == pytest.approx(expected, rel=2e-3)


def test_a_plan_in_two_stages() -> None:
    """Inside one node nothing changes but that both directions of NVLink wait for nothing; over nodes the stages add up."""
    inside = run(tp=1, pp=4, ep=8, dp=32, dispatcher=["alltoall", "hierarchical"]).named()["ep_total_s"]
    assert inside[1] == pytest.approx(inside[0], rel=1e-9)
    found = run(tp=1, pp=4, ep=32, dp=32, dispatcher=["alltoall", "flex", "hierarchical"]).named()
    assert found["ep_total_s"][1] < found["ep_total_s"][0] < found["ep_total_s"][2] < 1.4 * found["ep_total_s"][0]


def test_shared_experts_alone_hide_dispatch_and_combine() -> None:
    """On a slow network all of their compute hides: what a model with them computes more, less `contention` of it."""
    slow = table(nic_bandwidth="20 Gb/s")
    routed = {"count": 256, "topk": 8, "ffn": 2048, "dense_layers": 3}
    compute_s = []
    for shared in (0, 2048):
        model = read_model("deepseek-v3", {"sequence": 4096, "mtp_layers": 0, "experts": {**routed, "shared_ffn": shared}})
        work = workload_from_model(model, stack_with(**FREE_HOST), sequence_parallel=True)
        overlaps = [False, True] if shared else [False]
        plan: dict[str, Any] = {"pp": 4, "ep": 32, "dp": 32, "micro_batch": 1, "ga": 4, "layer_split": "balanced"}
        found = simulate(work, slow, plans(work, **plan, overlap_shared_experts=overlaps)).named()
        compute_s.append(float(found["compute_forward_s"][0] + found["compute_backward_s"][0]))
    hidden_s = found["ep_exposed_s"][0] - found["ep_exposed_s"][1]
    assert hidden_s == pytest.approx(0.7 * (compute_s[1] - compute_s[0]), rel=0.15)
    assert found["ep_total_s"][0] == found["ep_total_s"][1]
    assert found["step_time_s"][1] < found["step_time_s"][0]


@pytest.mark.parametrize(
    ("name", "plan", "reason"),
    [
        ("mixtral-8x7b", {}, "shared_experts_unknown"),
        ("llama3-8b", {}, "shared_experts_unknown"),
        ("deepseek-v3", {"overlap_ep": True}, "shared_experts_beside_twice"),
    ],
)
def test_shared_experts_that_cannot_overlap(name: str, plan: dict[str, Any], reason: str) -> None:
    found = run(name, **plan, overlap_shared_experts=True)
    assert [REASONS[code] for code in found.reason] == [reason]


@pytest.mark.parametrize(
    ("plan", "fits"),
    [
        ({"pp": 8, "vpp": 1}, False),
        ({"pp": 8, "vpp": 1, "ep": 1}, True),
        ({"pp": 8, "vpp": 2}, True),
        ({"pp": 1, "vpp": 1}, True),
        ({"pp": 8, "vpp": 2, "checkpointing": "full"}, False),
        ({"pp": 8, "vpp": 2, "checkpointing": "block:1"}, False),
        ({"pp": 8, "vpp": 2, "checkpointing": "mlp"}, True),
        ({"pp": 8, "vpp": 1, "schedule": "dualpipe"}, True),
    ],
)
def test_overlapped_experts_as_megatron_accepts_them(plan: dict[str, Any], fits: bool) -> None:
    """Its asserts, and all nine published runs with pp > 1 (docs/validation.md): each has vpp > 1 and no full recompute."""
    found = run("deepseek-v3", **{"ep": 8, "dp": 8, "ga": 16, "layer_split": "balanced", **plan}, overlap_ep=True)
    assert [REASONS[code] == "overlap_ep_unfit" for code in found.reason] == [not fits]


def test_shared_experts_hide_dispatch_and_combine() -> None:
    """The same routed experts, with and without a shared one, messages beside compute."""
    routed = {"count": 256, "topk": 8, "ffn": 2048, "dense_layers": 3}
    hidden = []
    for shared in (0, 2048):
        model = read_model("deepseek-v3", {"sequence": 4096, "experts": {**routed, "shared_ffn": shared}})
        work = workload_from_model(model, stack_with(**FREE_HOST), sequence_parallel=True)
        grid = plans(work, pp=4, vpp=2, ep=32, dp=32, micro_batch=1, ga=4, layer_split="balanced", overlap_ep=True)
        found = simulate(work, table(), grid).named()
        hidden.append(float(found["ep_total_s"][0] - found["ep_exposed_s"][0]))
    assert hidden[1] > hidden[0] > 0


def test_files_have_their_own(gpt7b: Workload, h100: HardwareTable) -> None:
    found = simulate(gpt7b, h100, make_plans(dispatcher=1))
    assert [REASONS[code] for code in found.reason] == ["dispatcher_not_recorded"]


def test_a_dispatcher_of_tokens_that_stay_changes_no_other_message() -> None:
    """Mixtral with all experts on each rank: nothing is dispatched, and NICs are shared by gradients and context messages."""
    work = workload_from_model(read_model("mixtral-8x7b", {"sequence": 4096}), stack_with(**FREE_HOST), sequence_parallel=True)
    plan: dict[str, Any] = {"tp": 4, "cp": 4, "ep": 1, "all_gpus": 64, "micro_batch": 1, "ga": 2, "overlap_grad": True}
    steps = []
    for shared in (True, False):
        grid = plans(work, **plan, dispatcher=["alltoall", "flex", "hierarchical"])
        found = simulate(work, table(nic_bandwidth="100 Gb/s", shared_nics=shared), grid)
        assert not found.reason.any()
        np.testing.assert_array_equal(found.metrics, np.repeat(found.metrics[:, :1], 3, axis=1))
        steps.append(found.named()["step_time_s"][0])
    assert steps[0] > steps[1], "both send at the same time"


@pytest.mark.parametrize(("pp", "ga"), [(2, 8), (4, 8), (4, 20)])
def test_all_to_alls_are_exposed_in_the_blocks_that_dualpipe_runs_alone(pp: int, ga: int) -> None:
    """On a fast network a pair hides all of them (DeepSeek-V3, arXiv 2412.19437, section 3.2.1): those left are of the blocks
    that the authors' own order (dualpipe.py) does not pair."""
    blocks = alone = 0
    for stage in range(pp):
        for item in dual(DUALPIPE, stage, pp, ga):
            sending = sum(block.way != WEIGHTS for block in item)
            blocks += sending
            alone += sending if len(item) == 1 else 0
    stack = stack_with(**FREE_HOST).model_copy(update={"jitter": 0.0, "pair_contention": 0.0})
    work = workload_from_model(read_model("qwen3-30b-a3b", {"layers": 4, "sequence": 2048}), stack, sequence_parallel=True)
    grid = plans(work, tp=2, ep=16, pp=pp, all_gpus=32 * pp, ga=ga, schedule="dualpipe", overlap_grad=0)
    found = simulate(work, table(nic_bandwidth="4000 Gb/s", shared_nics=False), grid).named()
    assert found["ep_exposed_s"] / found["ep_total_s"] == pytest.approx(alone / blocks, rel=1e-9)


def test_what_pairs_already_hide_overlap_ep_does_not_hide_again() -> None:
    """DualPipe runs a forward beside a backward itself; 1F1B does with `overlap_ep` (Megatron-LM, combined_1f1b.py)."""
    stack = stack_with(**FREE_HOST | {"overlap_ep_hidden": read_stack("megatron-core").overlap_ep_hidden})
    work = workload_from_model(read_model("qwen3-30b-a3b", {"layers": 8, "sequence": 4096}), stack, sequence_parallel=True)
    gained = {}
    for schedule in ("1f1b", "dualpipe"):
        vpp = 2 if schedule == "1f1b" else 1
        plan = {"pp": 2, "vpp": vpp, "ep": 16, "dp": 16, "ga": 16, "schedule": schedule, "overlap_pp": True}
        found = simulate(work, table(), plans(work, **plan, overlap_ep=[False, True]))
        assert not found.reason.any()
        gained[schedule] = -float(np.diff(found.named()["step_time_s"])[0])
    assert gained["1f1b"] > 0 == gained["dualpipe"]


def test_a_pair_of_dualpipe_takes_longer_by_what_it_hides() -> None:
    """DeepSeek's profile of a pair (deepseek-ai/profile-data, train.json: 4 layers, ep 64, H800s) tells both numbers.

    80.45 ms of dispatches and combines: their kernels hold 20 of 132 SMs (arXiv 2412.19437, section 3.2.2) for 110.27 ms of
    compute, and 4.25 ms are beside none; the pair takes 128.5 ms. `overlap_ep` adds nothing to it.
    """
    stack = read_stack("hai-llm").model_copy(
        update={"jitter": read_stack("megatron-core").jitter}
    )  # experts are balanced there
    model = read_model("deepseek-v3", {"layers": 8, "experts.dense_layers": 0, "vocabulary": 1024, "mtp_layers": 0})
    device = read_hardware("H800-SXM")
    told = device.kernels.sustained_scale.told
    assert told is not None
    cool = {"memory": "1e6 GB", "sustained_scale": told.prior}  # a profile of a few steps, not hours of load
    h800 = hardware_table([device.with_values(cool)], None)
    grown = []
    for part in (0.0, stack.pair_contention):
        work = workload_from_model(model, stack.model_copy(update={"pair_contention": part}), sequence_parallel=True)
        grid = plans(
            work,
            pp=2,
            ep=64,
            dp=64,
            micro_batch=1,
            ga=[16, 24],
            schedule="dualpipe",
            dispatcher="flex",
            precision="fp8_blockwise",
            checkpointing="layernorm+mla_up_proj+moe_act",
            overlap_ep=[False, True],
        )
        found = simulate(work, h800, grid).named()
        steps, messages = found["step_time_s"].reshape(2, 2), found["ep_total_s"].reshape(2, 2)
        assert steps[0] == pytest.approx(steps[1])
        grown.append((np.ptp(steps) / 8, np.ptp(messages) / 8))
    assert stack.pair_contention == pytest.approx((20 / 132 * 110.27 + 4.25) / 80.45, rel=0.01)
    assert grown[1][0] - grown[0][0] == pytest.approx(stack.pair_contention * grown[0][1], rel=0.02)
    assert grown[1][0] == pytest.approx(128.5e-3, rel=0.03)
