"""A model in numbers as a workload: parameters, seconds and memory of its plans against independent counts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sim_core import (
    REASONS,
    Hardware,
    HardwareTable,
    Results,
    SpecError,
    Workload,
    hardware_table,
    legality,
    model_flops_per_token,
    parameters,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    slice_plans,
    stack_names,
    summarize,
    workload_from_model,
)
from sim_core.costing import peak
from sim_core.costing.groups import group_plans
from sim_core.metrics import ALLOCATED, HOST_BYTES, PEAK_BYTES
from sim_core.models.keys import make_keys
from sim_core.models.weights import held
from sim_core.terms import DP_EP, EP

GIB = 2**30
NAMES = ("llama3-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "gpt2-xl")


def table(**values: object) -> HardwareTable:
    return hardware_table([device(**values)], None)


def device(**values: object) -> Hardware:
    return read_hardware("H100-SXM").with_values({"memory": "1e6 GB", **values})


def workload(name: str, *, sequence: int = 1024, stack: str = "megatron-core", parallel: bool = True) -> Workload:
    return workload_from_model(read_model(name, {"sequence": sequence}), read_stack(stack), sequence_parallel=parallel)


def run(work: Workload, machine: HardwareTable, **plan: Any) -> Results:
    return simulate(work, machine, plans(work, **plan))


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_one_gpu_is_that_of_all_parameters(name: str) -> None:
    """18 bytes per parameter with fp32 gradients and nothing shared (Rajbhandari et al. 2019, section 3.1, and 2 more)."""
    model = read_model(name, {"sequence": 1024})
    found = run(workload(name, sequence=1024), table(), tp=1, all_gpus=1)
    padded = -(-model.vocabulary // 128) * 128 - model.vocabulary
    rows = 1 if model.tied else 2
    counted = parameters(model).total + rows * padded * model.hidden + (0 if not model.mtp_layers else np.nan)
    if model.mtp_layers:
        assert found.state_bytes[0] > 18 * parameters(model).total
    else:
        assert found.state_bytes[0] == pytest.approx(18 * counted, rel=1e-9)


def test_gradients_are_of_all_parameters_each_in_its_group() -> None:
    """GPT-2's 124,439,808 weights with the table of positions, its vocabulary padded by 47 rows of 768; Mixtral's 46.7e9, of
    which those of 8 experts in 32 layers are summed among the ranks that hold the same experts."""
    gpt2 = summarize(workload("gpt2"))
    assert (gpt2.parameters_per_rank, gpt2.expert_parameters_per_rank) == (124_439_808 + 47 * 768, None)
    mixtral, experts = summarize(workload("mixtral-8x7b")), 32 * 8 * 3 * 4096 * 14336
    assert mixtral.expert_parameters_per_rank == experts
    assert mixtral.parameters_per_rank == parameters(read_model("mixtral-8x7b")).total - experts


@pytest.mark.parametrize("name", NAMES)
def test_what_stages_and_ranks_hold_adds_up(name: str) -> None:
    """More pp, tp or ep never holds more on a rank; stages together hold at least the model."""
    work = workload(name)
    for axis in ("pp", "tp", "ep"):
        if axis == "ep" and not work.has_experts:
            continue
        grid: dict[str, Any] = {axis: [1, 2, 4], "all_gpus": 64, "micro_batch": 1, "ga": 8, "layer_split": "balanced"}
        state = run(work, table(), **grid).state_bytes
        assert all(a > b for a, b in pairwise(state)), (axis, state)


@pytest.mark.parametrize("stack", ["megatron-core", "nemo", "nemo-24"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_experts_on_a_rank_are_those_of_its_expert_tensor_parallelism(stack: str, tp: int) -> None:
    """A rank holds experts / (ep x etp), and GPUs / (ep x etp) ranks share their optimizer (Megatron-LM's etp)."""
    model, chosen = read_model("mixtral-8x7b", {"sequence": 1024}), read_stack(stack)
    etp = tp if chosen.experts_with_tp else 1
    ep, dp = 4, 8
    experts = 32 * 8 * 3 * 4096 * 14336 / (ep * etp)
    keys = make_keys(tp=tp, ep=ep, etp=etp, sequence_parallel=1)
    dense = sum(unit.number * float(held(model, unit, keys).dense[0]) for unit in model.units)
    kept = 2 + chosen.gradient_bytes  # weights of bf16 and gradients
    state = dense * (kept + 12 / dp) + experts * (kept + 12 / (tp * dp / (ep * etp)))
    plan = {"tp": tp, "ep": ep, "dp": dp}
    found = run(workload("mixtral-8x7b", stack=stack), table(), **plan).named()
    assert found["state_bytes"][0] == pytest.approx(state, rel=1e-3)  # norms and router count as divided


def test_groups_of_whole_experts_span_tensor_parallel_ranks() -> None:
    """8 GPUs a node, tp 4, ep 8: a group of experts is one node, its replicas one GPU of each; else it spans four nodes."""
    work = workload("mixtral-8x7b")
    grid = plans(work, tp=4, ep=8, dp=8)
    rows = np.array([0])
    for whole, nodes, replicas in ((True, 1, 4), (False, 4, 1)):
        groups = group_plans(table().columns, grid, rows, whole)
        assert groups.ranks[0, EP] == 8
        assert set(groups.placed[groups.first[0, EP] : groups.end[0, EP], 0].tolist()) == {nodes}
        assert groups.ranks[0, DP_EP] == replicas


def test_a_step_takes_what_its_flops_take_at_a_plausible_rate() -> None:
    """One GPU, no communication: 40 to 80 % of the peak for a large model, and all parts add up."""
    model = read_model("llama3-8b", {"sequence": 8192})
    found = run(workload("llama3-8b", sequence=8192), table(), all_gpus=1, micro_batch=1, ga=4).named()
    rate = model_flops_per_token(model) * 4 * 8192 / found["step_time_s"][0]
    assert 0.4 < rate / 989.4e12 < 0.8
    assert found["tp_total_s"][0] == found["dp_total_s"][0] == found["pp_total_s"][0] == 0


def test_backward_takes_about_twice_the_forward_and_recompute_one_more() -> None:
    work = workload("gpt3-175b")
    grid: dict[str, Any] = {"tp": 8, "pp": 8, "all_gpus": 64, "ga": 8, "checkpointing": ["none", "selective", "full"]}
    found = run(work, table(), **grid).named()
    forward, backward, again = (found[f"compute_{what}_s"] for what in ("forward", "backward", "recompute"))
    assert backward[0] / forward[0] == pytest.approx(2.3, abs=0.4)
    assert again[0] == 0
    assert 0 < again[1] < 0.2 * forward[0]
    assert again[2] == pytest.approx(forward[0], rel=0.15)  # not that of embedding and head
    assert found["tp_total_s"][2] == pytest.approx(found["tp_total_s"][0] * 6 / 5, rel=0.2)  # two of four collectives again


def test_memory_in_flight_is_that_of_the_schedules() -> None:
    """1F1B keeps pp micro-batches on the first stage, GPipe all; interleaving (1 + (pp - 1) / (pp vpp)) x more.

    Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; Korthikanti et al. 2022 (arXiv 2205.05198), section 4.2.3.
    """
    work = workload("gpt3-175b", parallel=True)
    plan: dict[str, Any] = {"tp": 8, "all_gpus": 64, "micro_batch": 1, "ga": 32, "overlap_pp": True}

    def kept(**more: Any) -> float:
        return float(run(work, table(), **plan, **more).named()["activation_bytes"][0])

    alone = kept(pp=1)
    for pp in (2, 4, 8):
        assert kept(pp=pp) == pytest.approx(alone, rel=0.05)  # pp micro-batches of 1/pp of the layers
        assert kept(pp=pp, schedule="gpipe") == pytest.approx(alone * 32 / pp, rel=0.1)  # and 32 of logits
        for vpp in (2, 3):
            assert kept(pp=pp, vpp=vpp) == pytest.approx(alone * (1 + (pp - 1) / (pp * vpp)), rel=0.05)


def test_memory_of_weight_gradients_apart_is_that_of_their_orders() -> None:
    """Micro-batches of a stage's activations over those of 1F1B on its first stage; see test_schedules."""
    work, pp = workload("gpt3-175b", parallel=True), 8
    plan: dict[str, Any] = {"tp": 8, "all_gpus": 64, "micro_batch": 1, "ga": 32, "pp": pp}

    def kept(schedule: str, vpp: int = 1, checkpointing: str = "none") -> float:
        more = {"schedule": schedule, "vpp": vpp, "checkpointing": checkpointing}
        return float(run(work, table(), **plan, **more).named()["activation_bytes"][0])

    alone = kept("1f1b")
    in_a_v = {"zb-v": pp, "v-half": (pp + 2) // 2, "v-min": (pp + 4) // 3 - 1}  # others have one more than the fullest stage
    for schedule, most in in_a_v.items():
        assert kept(schedule, 2) == pytest.approx(alone * most / pp, rel=0.15)  # logits are on the first stage, too
    assert kept("zb-h1") == pytest.approx(alone, rel=0.1)
    assert kept("zb-h2") == pytest.approx(alone * (2 * pp - 1) / pp, rel=0.1)
    assert kept("dualpipe") == pytest.approx(alone * (pp + 1) / pp, rel=0.15)
    # what recompute restores stays until the weight gradients, most of it on the last stage
    assert kept("1f1b", checkpointing="full") < 0.2 * alone
    assert kept("zb-h1", checkpointing="full") > 0.6 * alone


def test_two_copies_of_the_model_share_the_optimizer() -> None:
    """6 bytes per parameter for weights and gradients, twice; 12 for the optimizer on all 2 dp ranks, so once."""
    work = workload("llama3-8b")
    found = run(work, table(), tp=1, pp=2, all_gpus=8, ga=8, layer_split="balanced", schedule=["1f1b", "dualpipe"]).state_bytes
    every = run(work, table(), tp=1, pp=1, all_gpus=4, ga=8).state_bytes[0]
    assert found[1] == pytest.approx(every * (6 + 12 / 8) / (6 + 12 / 4), rel=1e-9)
    assert found[1] > 1.5 * found[0]


def test_recompute_trades_memory_for_time() -> None:
    work = workload("llama3-8b", sequence=8192)
    modes = ["none", "block:4", "every:2", "full"]
    found = run(work, table(), tp=2, all_gpus=8, ga=4, checkpointing=modes).named()
    step, kept = found["step_time_s"], found["activation_bytes"]
    assert step[0] < step[1] < step[3]
    assert kept[0] > kept[1] > kept[3]
    assert kept[2] < kept[1]


@pytest.mark.parametrize(
    ("name", "layers", "plan", "gib"),
    [
        ("llama3-70b", 12, {"tp": 1, "pp": 2, "ga": 4}, 65.37),
        ("llama3-70b", 12, {"tp": 8, "pp": 1, "ga": 4}, None),
        ("llama3-8b", 32, {"tp": 1, "pp": 2, "ga": 4}, None),
    ],
)
def test_memory_of_measured_runs(name: str, layers: int, plan: dict[str, Any], gib: float | None) -> None:
    """Peak allocated on 8 A100 (MooreThreads/SimuMax 4dcaae5, docs/FULL_RESULTS.md), 4,096 tokens."""
    model = read_model(name, {"sequence": 4096, "layers": layers})
    work = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    tensors = run(work, table(), **plan, all_gpus=8, micro_batch=1).memory[ALLOCATED, 0].sum() / GIB
    assert tensors == pytest.approx(gib or tensors, rel=0.03)


def test_the_parts_of_the_peak_add_up_to_what_the_device_must_have() -> None:
    """One byte less than the peak is too little: the row's peak is what is compared."""
    work = workload("llama3-8b", sequence=8192)
    plan: dict[str, Any] = {"tp": 4, "pp": 2, "all_gpus": 8, "ga": 4, "checkpointing": ["none", "full"]}
    found = run(work, table(), **plan)
    assert work.modelled
    stack, peak = work.modelled.stack, found.memory[PEAK_BYTES]
    assert peak.tolist() == pytest.approx(found.memory[:PEAK_BYTES].sum(axis=0).tolist(), rel=1e-12)
    tensors = found.memory[ALLOCATED].sum(axis=0)
    assert peak.tolist() == pytest.approx((tensors * stack.fragmentation + stack.reserved).tolist(), rel=1e-12)
    for row, need in enumerate(peak.tolist()):
        for memory, reason in ((need * (1 - 1e-9), "memory_exceeds_device"), (need * (1 + 1e-9), "")):
            checked = legality(work, table(memory=f"{memory!r} B"), plans(work, **plan))[0]
            assert REASONS[checked[row]] == reason


def test_a_part_of_memory_that_nothing_fills_is_no_part_of_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the reserve were a new row of METRICS that peak_memory does not know: else all plans would need nan bytes."""
    monkeypatch.setattr(peak, "RESERVED_BYTES", HOST_BYTES)
    work = workload("gpt2")
    with pytest.raises(ValueError, match=r"memory term reserved_bytes: .* has a row for it, but peak_memory does not fill it"):
        peak.peak_memory(work, plans(work, dp=1), np.zeros(1, int))


def test_logits_and_buffers_are_their_closed_forms() -> None:
    """On one stage 8 bytes a logit (bf16 with its gradient, fp32 softmax); the gathered input of Megatron-LM's buffer."""
    model = read_model("llama3-8b", {"sequence": 8192})
    for tp, parallel in ((1, True), (4, True), (4, False)):
        plan: dict[str, Any] = {"tp": tp, "all_gpus": 4, "micro_batch": 2}
        found = run(workload("llama3-8b", sequence=8192, parallel=parallel), table(), **plan).named()
        rows = -(-model.vocabulary // (128 * tp)) * 128 * tp
        assert found["logits_bytes"][0] == pytest.approx(8 * 2 * 8192 * rows / tp)
        gathered = 2 * 2 * 8192 * 4096 if tp > 1 and parallel else 0
        assert found["communication_bytes"][0] == gathered
    staged = run(workload("llama3-8b", sequence=8192), table(), tp=4, pp=2, all_gpus=8, ga=8).named()
    assert staged["logits_bytes"][0] == 0  # the first stage is fuller
    assert staged["communication_bytes"][0] == 2 * 8192 * 4096 * (1 + 1 / 4)


@pytest.mark.parametrize(("pp", "vpp", "ga"), [(2, 1, 8), (2, 2, 8), (4, 2, 4), (1, 1, 8)])
def test_pytorchs_pipelines_have_a_receive_buffer_for_each_micro_batch(pp: int, vpp: int, ga: int) -> None:
    """The first stage gets forwards of all its virtual stages but the first, and backwards of all: listed one by one."""
    message = 2 * 4096 * 4096
    received = [
        (chunk, way, batch)
        for chunk in range(vpp)
        for way in ("forward", "backward")
        for batch in range(ga)
        if (chunk > 0 if way == "forward" else pp > 1)
    ]
    for name, buffers in (("torchtitan", len(received)), ("nemo-automodel", len(received)), ("nemo", min(pp - 1, 1))):
        work = workload_from_model(read_model("llama3-8b", {"sequence": 4096}), read_stack(name), sequence_parallel=True)
        found = run(work, table(), tp=1, pp=pp, vpp=vpp, ga=ga, all_gpus=pp, micro_batch=1, sharding="none").named()
        assert found["communication_bytes"][0] == buffers * message, name


def test_a_plan_that_does_not_fit_is_refused_with_what_it_needs() -> None:
    found = run(workload("llama3-70b", sequence=8192), table(memory="80 GB"), tp=8, pp=[1, 8], all_gpus=64, ga=8)
    assert [REASONS[code] for code in found.reason] == ["memory_exceeds_device", ""]
    needed = found.named()["peak_memory_bytes"]
    assert needed[0] > 80e9 > needed[1]


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_alone_and_among_others_has_the_same_numbers(name: str) -> None:
    """Distinct keys are costed once, in columns: sharing must not change a bit."""
    work = workload(name)
    machines = hardware_table([device(), device(nic_bandwidth="200 Gb/s"), read_hardware("A100-80G-SXM")], None)
    axes: dict[str, Any] = {
        "tp": [1, 2, 8],
        "pp": [1, 4],
        "micro_batch": [1, 2],
        "checkpointing": ["none", "selective", "full"],
    }
    if work.has_experts:
        axes["ep"] = [1, 4]
    grid = plans(work, **axes, all_gpus=128, ga=8, hardware=[0, 1, 2], overlap_tp=[False, True], layer_split="balanced")
    together = simulate(work, machines, grid)
    rng = np.random.default_rng(1)
    for row in rng.choice(len(grid.tp), 12, replace=False):
        alone = simulate(work, machines, slice_plans(grid, slice(row, row + 1)))
        assert alone.reason[0] == together.reason[row]
        np.testing.assert_array_equal(alone.metrics[:, 0], together.metrics[:, row])
        np.testing.assert_array_equal(alone.memory[:, 0], together.memory[:, row])


def test_faster_parts_never_make_a_slower_step() -> None:
    work = workload("mixtral-8x7b")
    plan: dict[str, Any] = {"tp": 2, "pp": 2, "ep": 8, "all_gpus": 64, "ga": 8}
    base = run(work, table(), **plan).named()["step_time_s"][0]
    for better in ({"nic_bandwidth": "800 Gb/s"}, {"nvlink_bandwidth": "900 GB/s"}, {"gemm_scale": 0.5}, {"hbm_efficiency": 1}):
        assert run(work, table(**better), **plan).named()["step_time_s"][0] <= base, better
    assert run(work, table(), **plan, device_speed=2.0).named()["step_time_s"][0] < base


def test_every_stack_costs_every_kind_of_model() -> None:
    for stack in stack_names():
        for name in NAMES:
            tp = 1 if name == "gpt2-xl" else 2  # 25 heads
            found = run(workload(name, stack=stack), table(), tp=tp, all_gpus=16, ga=2)
            assert REASONS[found.reason[0]] == "", (stack, name)


def test_an_unknown_stack_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="unknown stack 'megatron-cor', nearest valid: megatron-core"):
        read_stack("megatron-cor")


def test_a_model_without_a_sequence_is_refused() -> None:
    model = read_model("llama3-8b").model_copy(update={"sequence": None})
    with pytest.raises(SpecError, match="sequence: missing"):
        workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
