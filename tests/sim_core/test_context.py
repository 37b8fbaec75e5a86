"""Context parallelism: what it moves and computes by the papers' closed forms, where its ranks are, what it is refused for."""

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
    slice_plans,
    workload_from_model,
)
from sim_core.costing.groups import group_plans
from sim_core.limits import LARGEST
from sim_core.models.description import LAYER
from sim_core.models.keys import Keys, make_keys
from sim_core.models.messages import messages
from sim_core.models.operators import operators
from sim_core.terms import (
    ALL_GATHER,
    ALL_TO_ALL,
    CP_A2A,
    CP_RING,
    DP,
    FORWARD,
    INPUT_GRADIENT,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    TP,
)
from tests.conftest import make_plans
from tests.facts import stack_with

NAME = "llama3-8b"  # 32 heads, 8 key-value heads of 128, 4096 hidden
SEQUENCE = 8192


def workload(name: str = NAME, stack: str = "megatron-core", **sizes: Any) -> Workload:
    return workload_from_model(read_model(name, {"sequence": SEQUENCE, **sizes}), read_stack(stack), sequence_parallel=True)


def table(**numbers: Any) -> HardwareTable:
    return hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB", **numbers})], None)


def run(work: Workload | None = None, on: HardwareTable | None = None, **plan: Any) -> Results:
    work = work or workload()
    return simulate(work, on or table(), plans(work, **{"micro_batch": 1, **plan}))


def reasons(work: Workload, **plan: Any) -> list[str]:
    return [REASONS[code] for code in run(work, **plan).reason]


def sent(keys: Keys, phase: int, kind: int, **sizes: Any) -> float:
    """Bytes of the messages of one layer's attention, of the first key."""
    model = read_model(NAME, {"sequence": SEQUENCE, **sizes})
    unit = next(unit for unit in model.units if unit.kind == LAYER)
    found = messages(model, unit, keys, stack_with())
    mine = (found.phase == phase) & (found.kind == kind) & np.isin(found.group, (CP_A2A, CP_RING))
    return float(found.bytes[0, mine].sum())


def test_a_ring_passes_the_keys_and_values_of_a_rank() -> None:
    """2 tensors x 2 bytes x b x (s / c) x k d / t for each hop (arXiv 2310.01889, section 3); with gradients twice as many."""
    keys = make_keys(tp=2, cp=4, micro_batch=3, sequence_parallel=1)
    hop = 2 * 2 * 3 * (SEQUENCE / 4) * 8 * 128 / 2
    assert sent(keys, FORWARD, SEND_RECEIVE) == hop
    assert sent(keys, INPUT_GRADIENT, SEND_RECEIVE) == 2 * hop
    assert sent(keys, FORWARD, ALL_TO_ALL) == sent(keys, FORWARD, ALL_GATHER) == 0


def test_an_all_to_all_exchanges_four_hidden_states() -> None:
    """DeepSpeed-Ulysses (arXiv 2309.14509), section 3.2: 4 N h elements over P ranks, with as many key-value heads as heads."""
    keys = make_keys(cp=8, a2a=8)
    for phase in (FORWARD, INPUT_GRADIENT):
        assert sent(keys, phase, ALL_TO_ALL, kv_heads=32) == 2 * 4 * SEQUENCE * 4096 / 8
        assert sent(keys, phase, SEND_RECEIVE) == 0


def test_gathered_keys_and_values_are_those_of_the_whole_sequence() -> None:
    """Llama 3 (arXiv 2407.21783), section 3.3.2: gathered before attention, once more and scattered in the backward."""
    keys, whole = make_keys(cp=4, gathers=1), 2 * 2 * SEQUENCE * 8 * 128
    assert sent(keys, FORWARD, ALL_GATHER) == sent(keys, INPUT_GRADIENT, ALL_GATHER) == whole
    assert sent(keys, INPUT_GRADIENT, REDUCE_SCATTER) == whole


def test_values_of_another_width_are_exchanged_in_theirs() -> None:
    """DeepSeek-V3: queries and keys of 192, values of 128. Queries, keys and values go one way, the output the other."""
    model = read_model("deepseek-v3", {"sequence": SEQUENCE})
    unit = next(unit for unit in model.units if unit.kind == LAYER)
    found = messages(model, unit, make_keys(cp=8, a2a=8), stack_with())
    mine = (found.phase == FORWARD) & (found.kind == ALL_TO_ALL) & (found.group == CP_A2A)
    assert sorted(found.bytes[0, mine]) == [2 * SEQUENCE / 8 * 128 * 128, 2 * SEQUENCE / 8 * 128 * (192 + 192 + 128)]


@pytest.mark.parametrize(("a2a", "gathers", "steps"), [(1, 0, 7), (2, 0, 3), (8, 0, 0), (1, 1, 0)])
def test_each_further_step_of_a_ring_adds_up_outputs_and_gradients(a2a: int, gathers: int, steps: int) -> None:
    """Two reads and a write of 2 bytes for three quarters of the elements: the output, then gradients of 32 + 2 x 8 heads."""
    model = read_model(NAME, {"sequence": SEQUENCE})
    unit = next(unit for unit in model.units if unit.kind == LAYER)
    found = operators(model, unit, make_keys(cp=8, a2a=a2a, gathers=gathers), stack_with())
    for phase, heads in ((FORWARD, 32), (INPUT_GRADIENT, 32 + 2 * 8)):
        mine = np.array([name == "attention_sums" for name in found.names]) & (found.phase == phase)
        assert found.bytes[0, mine].sum() == pytest.approx(steps * 3 / 4 * 6 * SEQUENCE / 8 * heads * 128)


def test_an_all_to_all_divides_key_value_heads() -> None:
    model = read_model(NAME, {"sequence": SEQUENCE})
    unit = next(unit for unit in model.units if unit.kind == LAYER)
    shape = operators(model, unit, make_keys(tp=2, cp=8, a2a=4, sequence_parallel=1), stack_with()).attention
    assert shape is not None
    assert (shape.heads[0], shape.kv_heads[0], shape.queries[0], shape.keys[0]) == (4, 1, SEQUENCE / 2, SEQUENCE)


@pytest.mark.parametrize(("a2a", "gathers"), [(1, 0), (8, 0), (2, 0), (1, 1)])
def test_the_work_of_all_ranks_is_that_of_one(a2a: int, gathers: int) -> None:
    """Two chunks of 2 cp balance the causal half: every rank does 1/cp of it."""
    model = read_model(NAME, {"sequence": SEQUENCE})
    for unit in model.units:
        whole, part = (
            operators(model, unit, keys, stack_with()).flops.sum()
            for keys in (make_keys(), make_keys(cp=8, a2a=a2a, gathers=gathers))
        )
        assert part * 8 == pytest.approx(whole, rel=1e-12)


def test_one_rank_is_no_context_parallelism_however_it_would_communicate() -> None:
    found = run(tp=2, dp=4, ga=2, cp=1, cp_comm_type=["p2p", "all_gather", "a2a"]).metrics
    assert (found == found[:, :1]).all()


@pytest.mark.parametrize("how", ["p2p", "all_gather", "a2a"])
def test_parts_add_up(how: str) -> None:
    found = run(tp=2, cp=4, pp=2, dp=2, ga=4, cp_comm_type=how, checkpointing=["none", "selective", "full"]).named()
    parts = [
        name
        for name in found
        if name.endswith(("_exposed_s",)) or name.startswith(("compute", "launch", "bubble", "optimizer"))
    ]
    assert found["step_time_s"] == pytest.approx(sum(found[name] for name in parts))
    totals = found["cp_total_s"]
    assert totals[0] < totals[1] == totals[2]  # recompute of core attention sends again


def test_gradients_and_optimizer_are_shared_by_data_and_context_ranks() -> None:
    """8 ranks with the same weights either way (Megatron-LM: with_context_parallel)."""
    with_context, without = (run(tp=2, cp=cp, dp=dp, ga=4).named() for cp, dp in ((4, 2), (1, 8)))
    for name in ("state_bytes", "dp_total_s", "optimizer_s"):
        assert with_context[name] == without[name]


def test_activations_are_divided() -> None:
    kept = run(dp=1, ga=1, cp=[1, 2, 8]).named()["activation_bytes"]
    assert kept * np.array([1, 2, 8]) == pytest.approx(kept[0], rel=1e-6)


def ranks_of(tp: int, cp: int, a2a: int, pp: int, dp: int) -> dict[int, set[tuple[int, ...]]]:
    """Groups as Megatron-LM numbers ranks (parallel_state.py, order tp-cp-ep-dp-pp)."""
    found: dict[int, dict[tuple[int, ...], list[int]]] = {TP: {}, CP_A2A: {}, CP_RING: {}, DP: {}}
    rank = 0
    for stage in range(pp):
        for replica in range(dp):
            for part in range(cp):
                for shard in range(tp):
                    outer, inner = divmod(part, a2a)
                    found[TP].setdefault((stage, replica, part), []).append(rank)
                    found[CP_A2A].setdefault((stage, replica, outer, shard), []).append(rank)
                    found[CP_RING].setdefault((stage, replica, inner, shard), []).append(rank)
                    found[DP].setdefault((stage, shard), []).append(rank)
                    rank += 1
    return {kind: {tuple(group) for group in groups.values()} for kind, groups in found.items()}


@pytest.mark.parametrize(
    ("tp", "cp", "a2a", "pp", "dp"),
    [(4, 2, 1, 2, 3), (2, 8, 4, 1, 2), (8, 2, 1, 1, 2), (1, 16, 16, 3, 1), (1, 3, 1, 1, 2), (1, 3, 3, 2, 1)],
)
def test_ranks_are_placed_between_tensor_and_data_parallel_ones(tp: int, cp: int, a2a: int, pp: int, dp: int) -> None:
    how = {1: "p2p", cp: "a2a"}.get(a2a, "a2a+p2p")
    grid = plans(workload(), tp=tp, cp=cp, pp=pp, dp=dp, cp_comm_type=how, cp_a2a_size=a2a if how == "a2a+p2p" else 1)
    groups = group_plans(table().columns, grid, np.array([0]))
    for kind, members in ranks_of(tp, cp, a2a, pp, dp).items():
        shapes = set()
        for group in members:
            nodes, count = np.unique(np.array(group) // 8, return_counts=True)
            shapes.add((len(nodes), int(count.min()), int(count.max())))
        placed = groups.placed[groups.first[0, kind] : groups.end[0, kind]]
        assert groups.ranks[0, kind] == len(next(iter(members)))
        assert {tuple(row) for row in placed.tolist()} == shapes


def test_hops_hide_behind_attention_unless_they_are_longer() -> None:
    """What is hidden costs the stack's contention, 0.3 of it."""
    plan: dict[str, Any] = {"tp": 8, "cp": 2, "dp": 1, "ga": 1}
    work = workload(sequence=32768)
    fast = run(work, table(), **plan).named()
    assert fast["cp_exposed_s"] == pytest.approx(0.3 * fast["cp_total_s"])
    slow = run(work, table(nic_bandwidth="1 Gb/s"), **plan).named()
    hidden = (slow["cp_total_s"] - slow["cp_exposed_s"]) / 0.7
    assert 0 < hidden < 0.05 * slow["cp_total_s"]
    assert slow["step_time_s"] > 10 * fast["step_time_s"]


def test_a_ring_has_a_hop_less_than_ranks() -> None:
    """On a slow network: (c - 1) hops of s/c tokens, three times the bytes of the forward; behind them all steps but one."""
    on, work = table(nic_bandwidth="8 Gb/s", nic_efficiency=1, fabric_efficiency=1), workload(sequence=65536)
    hidden = []
    for cp in (2, 4):
        found = run(work, on, tp=8, cp=cp, dp=1, ga=1).named()
        hop = 2 * 2 * 65536 / cp * 128  # keys and values of one head
        assert found["cp_total_s"][0] == pytest.approx(32 * 3 * (cp - 1) * hop / 1e9, rel=0.02)
        hidden.append(float(found["cp_total_s"][0] - found["cp_exposed_s"][0]))
    assert hidden[1] / hidden[0] == pytest.approx((1 / 4 * 3 / 4) / (1 / 2 * 1 / 2), rel=0.1)


def test_plans_that_the_frameworks_refuse() -> None:
    work = workload()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"cp": 4}, ""),
        ({"cp": 3}, "sequence_not_divisible_by_cp"),
        ({"tp": 2, "cp": 4, "cp_comm_type": "a2a"}, ""),
        ({"tp": 2, "cp": 8, "cp_comm_type": "a2a"}, "heads_not_divisible_by_cp"),  # 8 key-value heads / 2
        ({"tp": 2, "cp": 8, "cp_comm_type": "a2a+p2p", "cp_a2a_size": 4}, ""),
        ({"tp": 2, "cp": 8, "cp_comm_type": "a2a+p2p"}, "cp_a2a_size_unfit"),
        ({"tp": 2, "cp": 8, "cp_comm_type": "a2a+p2p", "cp_a2a_size": 3}, "cp_a2a_size_unfit"),
        ({"cp": 4, "cp_a2a_size": 2}, "cp_a2a_size_unfit"),
    ]
    for plan, reason in cases:
        assert reasons(work, **{"dp": 1, "ga": 1, **plan}) == [reason], plan
    assert reasons(workload(sequence=8200), cp=8, dp=1, ga=1) == ["sequence_not_divisible_by_cp"], "8 ranks, not 16 chunks"
    assert reasons(work, tp=2, cp=4, pp=2, all_gpus=8, ga=1) == ["tp_pp_exceeds_gpus"]
    assert reasons(work, cp=4, all_gpus=10, ga=1) == ["gpus_not_divisible"]
    assert reasons(work, cp=4, all_gpus=8, micro_batch=1, global_batch=3) == ["global_batch_not_divisible"]
    assert reasons(workload(stack="megatron-2022"), cp=2, dp=1, ga=1) == ["cp_needs_flash_attention"]
    windows = workload("gpt-oss-20b")
    assert reasons(windows, cp=2, dp=1, ga=1, cp_comm_type=["p2p", "all_gather"]) == ["window_needs_whole_keys", ""]


def test_files_do_not_tell(gpt7b: Workload, h100: HardwareTable) -> None:
    for fidelity in (0, 1):
        found = simulate(gpt7b, h100, make_plans(cp=2, fidelity=fidelity))
        assert [REASONS[code] for code in found.reason] == ["cp_not_recorded"]


def test_sizes_beyond_64_bits_are_refused() -> None:
    most = {name: LARGEST[name] for name in ("tp", "cp", "pp", "dp")}
    assert reasons(workload(), **most, ga=1) == ["numbers_too_large"]


def test_plans_with_other_context_parallelism_do_not_share_a_cost() -> None:
    work, on = workload(), table()
    ways = [("p2p", 1), ("all_gather", 1), ("a2a", 1), ("a2a+p2p", 2), ("a2a+p2p", 4)]
    grids = [plans(work, tp=1, cp=8, dp=2, ga=2, cp_comm_type=how, cp_a2a_size=size) for how, size in ways]
    grids += [plans(work, tp=1, cp=cp, all_gpus=16, ga=2) for cp in (1, 2, 4)]
    columns = [np.concatenate(column) for column in zip(*grids, strict=True)]
    together = type(grids[0])(*columns)
    found = simulate(work, on, together).metrics
    for k, grid in enumerate(grids):
        assert (simulate(work, on, grid).metrics[:, 0] == found[:, k]).all()
        assert (slice_plans(together, slice(k, k + 1)).cp == grid.cp).all()
    assert len(np.unique(found[-1])) == len(grids)


@pytest.mark.parametrize(
    ("name", "layers", "plan", "measured_s"),
    [
        ("llama3-8b", 32, {"cp": 2, "all_gpus": 8, "global_batch": 128}, 12.91),
        ("llama3-70b", 80, {"tp": 4, "cp": 2, "pp": 4, "vpp": 5, "all_gpus": 64, "global_batch": 128}, 14.72),
        ("llama3.1-405b", 42, {"tp": 8, "cp": 2, "pp": 3, "vpp": 7, "all_gpus": 192, "global_batch": 252}, 16.93),
    ],
)
def test_measured_runs(name: str, layers: int, plan: dict[str, Any], measured_s: float) -> None:
    """NeMo on H100s, bf16, sequence 8192, micro-batch 1 (NVIDIA/dgxc-benchmarking, README of each recipe). No constant of
    context parallelism was fitted to them."""
    work = workload(name, stack="nemo-24", layers=layers)
    on = table(nic_efficiency=0.85)
    overlaps = dict.fromkeys(("overlap_tp", "overlap_grad", "overlap_param"), True)
    found = run(work, on, layer_split="balanced", **overlaps, **plan).named()
    assert found["step_time_s"][0] == pytest.approx(measured_s, rel=0.06)


def test_what_a_ring_passes_is_in_memory() -> None:
    """Keys and values of this hop and the next (6 blocks of b c h elements, arXiv 2310.01889, section 3, of which a rank's own
    keys, values, queries and output are kept in any case), and as many gradients; gathered: those of all ranks."""
    block = 2 * 2 * SEQUENCE / 4 * 8 * 128 / 2  # keys and values of a rank: cp 4, tp 2
    queries = 2 * SEQUENCE / 4 * 32 * 128 / 2
    hows = ["p2p", "all_gather", "a2a"]
    found = run(tp=2, cp=4, dp=1, ga=1, cp_comm_type=hows).named()["communication_bytes"]
    gathered = 2 * SEQUENCE / 4 * 4096  # the input of a linear layer, whole over tp
    assert found - gathered == pytest.approx([4 * block, 2 * 4 * block, queries + block], rel=1e-9)
    alone = run(tp=2, cp=1, dp=1, ga=1).named()["communication_bytes"]
    assert alone == pytest.approx(2 * SEQUENCE * 4096)


@pytest.mark.parametrize(
    ("gpus", "cp", "sequence", "measured_s"), [(8, 8, 131_072, 138.2), (8, 8, 262_144, 485.4), (32, 16, 1_048_576, 7848.6)]
)
def test_long_sequences_of_few_heads(gpus: int, cp: int, sequence: int, measured_s: float) -> None:
    """Llama 2 7B in XTuner on A100s, Ulysses of 8 and 16 (InternLM/xtuner, docs/zh_cn/legacy/acceleration/benchmark.rst):
    beyond what was measured a rank's two to four heads fill the device by their blocks of queries, as many heads do."""
    model = read_model("llama2-7b", {"sequence": sequence})
    workload = workload_from_model(model, read_stack("torchtitan"), sequence_parallel=False)
    device = read_hardware("A100-80G-SXM").with_values({"memory": "10 TB"})
    plan: dict[str, Any] = {"tp": 1, "pp": 1, "cp": cp, "all_gpus": gpus, "global_batch": gpus, "sharding": "parameters"}
    given = plans(workload, **plan, cp_comm_type="a2a", checkpointing="full", micro_batch=1)
    found = simulate(workload, hardware_table([device], None), given)
    assert found.named()["step_time_s"][0] == pytest.approx(measured_s, rel=0.2)
