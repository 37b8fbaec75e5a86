"""Whole steps: parts add up, better hardware is not slower, buckets agree with a bucket-by-bucket loop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim_core import (
    METRICS,
    PARTS,
    REASON,
    REASONS,
    Facts,
    HardwareTable,
    Plans,
    Workload,
    hardware_table,
    read_hardware,
    read_workload,
    simulate,
    trace,
)
from sim_core.costing.collectives import collective_s
from sim_core.hardware.table import device_at
from sim_core.planning.placement import Placement
from sim_core.workloads.workload import ALL_GATHER, REDUCE_SCATTER
from tests.aicb import gpt_text, read, write
from tests.conftest import ROOT, make_plans

STEP = METRICS.index("step_time_s")
LAYER = (4 * 4096**2 + 2 * 4096 * 10880) // 4
EMBEDDING = 4 * 50688 // 4 * 4096 + 2048 * 4096
"""Parameters of GPT-7B on a rank at tp 4: of one of 36 layers; of the embedding, four times 50,257 words (padded to a multiple
of 512) and once 2,048 positions, as the generator counts them."""


def one(workload: Workload, hardware: HardwareTable, **plan: int) -> dict[str, float]:
    results = simulate(workload, hardware, make_plans(workload, **plan))
    assert [REASONS[code] for code in results.reason] == [""]
    return dict(zip(METRICS, results.metrics[:, 0].tolist(), strict=True))


plan_columns = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8, 16]),
        "pp": st.sampled_from([1, 2, 3, 4, 8]),
        "vpp": st.sampled_from([1, 2, 3]),
        "all_gpus": st.sampled_from([64, 96, 512, 4096]),
        "micro_batch": st.sampled_from([1, 4]),
        "ga": st.sampled_from([1, 6, 8, 24]),
        "schedule": st.sampled_from([0, 1]),
        "checkpointing": st.sampled_from([0, 1, 2, 4, 5]),
        "checkpoint_layers": st.sampled_from([1, 2]),
        "overlap_tp": st.sampled_from([0, 1]),
        "overlap_pp": st.sampled_from([0, 1]),
        "overlap_grad": st.sampled_from([0, 1]),
        "overlap_param": st.sampled_from([0, 1]),
        "bucket_bytes": st.sampled_from([0, 2**22, 2**28]),
    }
)


@given(plan_columns)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_the_parts_add_up_to_the_step(gpt7b: Workload, h100: HardwareTable, plan: dict[str, int]) -> None:
    results = simulate(gpt7b, h100, make_plans(**plan))
    parts = {name: results.metrics[METRICS.index(name), 0] for name in METRICS}
    if results.reason[0]:
        assert np.isnan(results.metrics).all()
        return
    assert sum(parts[name] for name in PARTS) == pytest.approx(parts["step_time_s"], rel=1e-9)
    assert all(value >= -1e-12 for value in parts.values())
    for group in ("tp", "ep", "pp"):
        assert parts[f"{group}_exposed_s"] <= parts[f"{group}_total_s"] * (1 + 1e-9)


@given(plan_columns, st.sampled_from(["nvlink_bandwidth", "nic_bandwidth"]), st.sampled_from([1.5, 4.0]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_more_bandwidth_is_never_slower(gpt7b: Workload, plan: dict[str, Any], key: str, factor: float) -> None:
    plain = read_hardware("A100-80G-SXM")
    table = hardware_table([plain, plain.with_values({key: f"{plain.value(key) * factor} B/s"})], None)
    results = simulate(gpt7b, table, make_plans(**{**plan, "hardware": [0, 1]}))
    if results.reason[0] == 0:
        slow, fast = results.metrics[STEP]
        assert fast <= slow * (1 + 1e-12)


@given(plan_columns, st.sampled_from(["overlap_tp", "overlap_grad", "overlap_param"]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_overlap_is_never_slower(gpt7b: Workload, h100: HardwareTable, plan: dict[str, Any], switch: str) -> None:
    results = simulate(gpt7b, h100, make_plans(**{**plan, switch: [0, 1]}))
    if results.reason[0] == 0:
        off, on = results.metrics[STEP]
        assert on <= off * (1 + 1e-9)


def test_a_row_does_not_depend_on_its_neighbours(gpt7b: Workload, h100: HardwareTable) -> None:
    """Bit for bit: alone, in a batch, in another order."""
    rng = np.random.default_rng(0)
    plans = make_plans(
        pp=rng.choice([1, 2, 4, 8], 300).tolist(),
        ga=rng.choice([1, 4, 8], 300).tolist(),
        vpp=rng.choice([1, 2], 300).tolist(),
        overlap_pp=rng.choice([0, 1], 300).tolist(),
    )
    together = simulate(gpt7b, h100, plans)
    backwards = simulate(gpt7b, h100, Plans(**{name: column[::-1].copy() for name, column in plans._asdict().items()}))
    assert together.metrics.tobytes() == backwards.metrics[:, ::-1].copy(order="C").tobytes()
    for k in (0, 17, 299):
        alone = simulate(gpt7b, h100, Plans(**{name: column[k : k + 1].copy() for name, column in plans._asdict().items()}))
        assert alone.metrics[:, 0].tobytes() == together.metrics[:, k].tobytes()


def buckets(kind: int, size: float, bucket: float, table: HardwareTable, dp: int, nodes: int, per_node: int) -> list[float]:
    count = max(1, int(np.ceil(size / bucket)))
    at = Placement(ranks=dp, nodes=nodes, fewest=per_node, most=per_node, stride=8 // per_node)  # all NICs of a node at once
    return [collective_s(kind, size / count, at, device_at(table.columns, 0))] * count


@pytest.mark.parametrize("bucket", [2**24, 2**27, 2**30, 2**34])
@pytest.mark.parametrize("nic", [1e9, 10e9, 100e9])
@pytest.mark.parametrize(("pp", "vpp", "ga"), [(1, 1, 1), (4, 1, 4), (4, 3, 8)])
def test_gradients_flow_bucket_by_bucket(gpt7b: Workload, bucket: int, nic: float, pp: int, vpp: int, ga: int) -> None:
    """The closed form of the stream against a loop over its buckets, on the block times of the trace; nothing shares NICs."""
    network = read_hardware("H100-SXM").with_values({"nic_bandwidth": f"{nic} B/s", "shared_nics": False})
    table = hardware_table([network], None)
    plan = {"tp": 4, "pp": pp, "vpp": vpp, "ga": ga, "overlap_grad": 1, "bucket_bytes": bucket}
    events = trace(gpt7b, table, make_plans(**plan))
    dp = 512 // (4 * pp)
    barrier = 0.0

    def held(stage: int, chunk: int) -> int:
        """Parameters of a virtual stage."""
        at_end = (stage, chunk) in ((0, 0), (pp - 1, vpp - 1))
        return 36 // (pp * vpp) * LAYER + (EMBEDDING if at_end else 0)

    for stage in range(pp):
        stream = 0.0
        for chunk in reversed(range(vpp)):
            last = (events.stage == stage) & (events.chunk == chunk) & (events.backward == 1) & (events.micro_batch == ga - 1)
            start, end = events.start_s[last][0], events.end_s[last][0]
            costs = buckets(REDUCE_SCATTER, 4 * held(stage, chunk), bucket, table, dp, dp // 2, 2)
            for j, cost in enumerate(costs):
                stream = max(stream, start + (j + 1) / len(costs) * (end - start)) + cost
        barrier = max(barrier, stream, events.end_s[events.stage == stage].max())
    found = one(gpt7b, table, **plan)
    after = found["step_time_s"] - barrier
    alone = one(gpt7b, table, **{**plan, "overlap_grad": 0})
    gather_s, reduce_s = (
        [
            sum(sum(buckets(kind, width * held(stage, chunk), limit, table, dp, dp // 2, 2)) for chunk in range(vpp))
            for stage in range(pp)
        ]
        for kind, width, limit in ((ALL_GATHER, 2, bucket / 2), (REDUCE_SCATTER, 4, bucket))
    )
    assert alone["dp_total_s"] == pytest.approx((sum(gather_s) + sum(reduce_s)) / pp, rel=1e-9)
    # what follows the barrier is the same with and without overlap
    ends = max(events.end_s[events.stage == s].max() + reduce_s[s] for s in range(pp))
    assert alone["step_time_s"] - ends == pytest.approx(after, rel=1e-6)


@pytest.mark.parametrize("nic", [0.5e9, 5e9, 100e9])
def test_parameters_arrive_bucket_by_bucket(gpt7b: Workload, nic: float) -> None:
    """One stage, one micro-batch: the forward's end against a loop over buckets and equal parts of the forward."""
    bucket = 2**28
    table = hardware_table([read_hardware("H100-SXM").with_values({"nic_bandwidth": f"{nic} B/s"})], None)
    plain = trace(gpt7b, table, make_plans(bucket_bytes=bucket))
    gated = trace(gpt7b, table, make_plans(bucket_bytes=bucket, overlap_param=1))
    forward_s = plain.end_s[0] - plain.start_s[0]
    costs = buckets(ALL_GATHER, 3244294144, bucket / 2, table, 128, 64, 2)
    arrived = done = 0.0
    for cost in costs:
        arrived += cost
        done = max(done, arrived) + forward_s / len(costs)
    assert gated.end_s[0] == pytest.approx(done, rel=1e-9)


@pytest.mark.parametrize("bucket", [2**23, 2**26, 2**30])
@pytest.mark.parametrize("nic", [0.5e9, 4e9, 50e9])
def test_gradients_of_experts_flow_beside_the_dense_ones(tmp_path: Path, bucket: int, nic: float) -> None:
    """Two kinds of buckets on one stream, each taken as it gets ready, against a loop over all of them."""
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=64, ep=8, experts=2**33, parameters=2**31, layers=32))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    table = hardware_table([read_hardware("H100-SXM").with_values({"nic_bandwidth": f"{nic} B/s", "memory": "1 TB"})], None)
    plan = {"tp": 1, "ep": 8, "all_gpus": 64, "overlap_grad": 1, "bucket_bytes": bucket}
    events = trace(workload, table, make_plans(workload, **plan))
    start, end = events.start_s[-1], events.end_s[-1]
    ready = []
    for size, dp, nodes, per_node in ((4 * 2**31, 64, 8, 8), (4 * 2**33 / 8, 8, 8, 1)):
        costs = buckets(REDUCE_SCATTER, size, bucket, table, dp, nodes, per_node)
        ready += [(start + (j + 1) / len(costs) * (end - start), cost) for j, cost in enumerate(costs)]
    stream = 0.0
    for moment, cost in sorted(ready):
        stream = max(stream, moment) + cost
    exposed = max(stream - end, 0.0)
    gather_s = one(workload, table, **{**plan, "overlap_grad": 0})["dp_exposed_s"] - sum(cost for _, cost in ready)
    found = one(workload, table, **plan)["dp_exposed_s"] - gather_s
    assert found == pytest.approx(exposed, abs=max(cost for _, cost in ready))
    if bucket == 2**30:  # few enough buckets that none is left out
        assert found == pytest.approx(exposed, rel=1e-6, abs=1e-9)


def test_a_kind_of_parameters_that_costs_nothing_gates_nothing(tmp_path: Path, h100: HardwareTable) -> None:
    """Experts on as many ranks as there are replicas: only the dense parameters are gathered."""
    path = write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=8, ep=8, experts=2**31, layers=4))
    workload, _ = read_workload(path, Facts(micro_batch=1))
    plain = one(workload, h100, tp=1, ep=8, all_gpus=8)
    gated = one(workload, h100, tp=1, ep=8, all_gpus=8, overlap_param=1)
    assert 0 < plain["dp_exposed_s"] - gated["dp_exposed_s"] < plain["dp_exposed_s"]


def test_the_fullest_stage_counts_for_the_state(tmp_path: Path, h100: HardwareTable) -> None:
    """Nine layers in 2 x 2 chunks: 2, 2, 2, 3; the second stage holds 5."""
    workload = read(write(tmp_path, gpt_text(tp=1, pp=1, all_gpus=4, layers=9, parameters=9 * 2**20)))
    found = simulate(workload, h100, make_plans(workload, tp=1, pp=2, vpp=2, ga=2, all_gpus=4))
    assert found.state_bytes[0] == pytest.approx(5 * 2**20 * (6 + 12 / 2))


@pytest.mark.parametrize(
    "plan", [{"all_gpus": 2**41, "tp": 1}, {"micro_batch": 2**20, "ga": 2**24, "all_gpus": 2**40, "tp": 1}]
)
def test_numbers_beyond_counting_are_infeasible(gpt7b: Workload, h100: HardwareTable, plan: dict[str, int]) -> None:
    assert [REASONS[code] for code in simulate(gpt7b, h100, make_plans(**plan)).reason] == ["numbers_too_large"]


def test_a_part_that_is_not_a_number_is_failed(gpt7b: Workload) -> None:
    values = {"nvlink_bandwidth": "1e-305 B/s", "nvlink_efficiency": 0.01}
    table = hardware_table([read_hardware("H100-SXM").with_values(values)], None)
    assert simulate(gpt7b, table, make_plans()).reason.tolist() == [REASON["result_not_finite"]]


def test_recompute_runs_the_forward_again(gpt7b: Workload, h100: HardwareTable) -> None:
    """Full and every:k run each layer once more, block:k the first k of a stage, none nothing; the embedding never."""
    layer_s = 355767e-9 + 449675e-9
    for checkpointing, layers, again in ((0, 0, 0), (2, 0, 9), (4, 3, 9), (5, 4, 4), (5, 9, 9)):
        found = one(gpt7b, h100, pp=4, ga=2, checkpointing=checkpointing, checkpoint_layers=layers)
        assert found["compute_recompute_s"] == pytest.approx(2 * again * layer_s, rel=1e-12), (checkpointing, layers)
    plain, full = one(gpt7b, h100, checkpointing=0), one(gpt7b, h100, checkpointing=2)
    assert full["tp_total_s"] > plain["tp_total_s"]  # its collectives run again, too


def test_model_state_is_eighteen_bytes_a_parameter_less_what_dp_shards(gpt7b: Workload, h100: HardwareTable) -> None:
    """The first and the last stage hold the embedding besides their layers."""
    assert 36 * LAYER + EMBEDDING == 6488588288 / 4  # all that the file has
    found = simulate(gpt7b, h100, make_plans(pp=[1, 4], all_gpus=[512, 512]))
    assert found.state_bytes[0] == pytest.approx((36 * LAYER + EMBEDDING) * (6 + 12 / 128))
    assert found.state_bytes[1] == pytest.approx((9 * LAYER + EMBEDDING) * (6 + 12 / 32))


ILLEGAL: dict[str, dict[str, Any]] = {
    "tp_pp_exceeds_gpus": {"tp": 16, "pp": 4, "all_gpus": 32},
    "gpus_not_divisible": {"tp": 4, "pp": 3, "all_gpus": 128},
    "global_batch_not_divisible": {"ga": 0},
    "ep_not_dividing_dp": {"ep": 3},
    "vpp_needs_pp": {"vpp": 2},
    "vpp_needs_1f1b": {"vpp": 2, "pp": 2, "ga": 2, "schedule": 0},
    "v_needs_vpp_2": {"pp": 2, "ga": 2, "schedule": 7},
    "dualpipe_needs_even_pp": {"pp": 3, "ga": 6, "schedule": 10, "all_gpus": 12},
    "dualpipe_needs_more_microbatches": {"pp": 2, "ga": 5, "schedule": 10},
    "microbatch_group_does_not_fit": {"vpp": 2, "pp": 2, "ga": 4, "microbatch_group_size": 3},
    "microbatches_not_in_rounds": {"pp": 2, "ga": 5, "vpp": 2, "schedule": 6},
    "schedule_needs_overlap_pp": {"pp": 2, "ga": 4, "schedule": 4, "overlap_pp": 0},
    "deepspeed_overlaps_nothing": {"pp": 2, "ga": 4, "schedule": 2, "overlap_pp": 1},
    "more_chunks_than_layers": {"pp": 32, "vpp": 2, "ga": 32},
    "layers_not_divisible": {"pp": 8, "layer_split": 0},
    "straggler_beyond_pp": {"pp": 4, "straggler_factor": 1.5, "straggler_stage": 4},
    "not_in_simai": {"fidelity": 1, "layers": 40},
    "optimizer_not_recorded": {"optimizer": 1},
    "microbatches_not_multiple_of_pp": {"pp": 4, "vpp": 2, "ga": 6},
    "vpp_needs_overlap_pp": {"pp": 4, "vpp": 2, "ga": 8, "overlap_pp": 0},
    "no_experts": {"ep": 2},
    "attention_unknown": {"checkpointing": 3},
    "checkpoint_span_exceeds_stage": {"checkpointing": 5, "checkpoint_layers": 37},
    "step_too_large": {"ga": 2**24},
}


@pytest.mark.parametrize("reason", ILLEGAL)
def test_an_illegal_plan_has_its_reason_and_no_result(gpt7b: Workload, h100: HardwareTable, reason: str) -> None:
    results = simulate(gpt7b, h100, make_plans(**ILLEGAL[reason]))
    assert [REASONS[code] for code in results.reason] == [reason]
    assert np.isnan(results.metrics).all()


def test_state_that_does_not_fit_is_infeasible(llama: Workload, h100: HardwareTable) -> None:
    results = simulate(llama, h100, make_plans(llama, tp=1, pp=1, all_gpus=1024))
    assert results.reason.tolist() == [REASON["memory_exceeds_device"]]


def test_a_step_that_is_not_finite_is_failed_not_reported(gpt7b: Workload) -> None:
    table = hardware_table(
        [read_hardware("H100-SXM").with_values({"nic_bandwidth": "1e-300 B/s", "nic_efficiency": 1e-10})], None
    )
    results = simulate(gpt7b, table, make_plans())
    assert results.reason.tolist() == [REASON["result_not_finite"]]


def test_events_come_in_the_same_order_every_time(gpt7b: Workload, h100: HardwareTable) -> None:
    """Ties included: the order is by start, then stage."""
    plans = make_plans(pp=4, vpp=3, ga=8)
    first, second = trace(gpt7b, h100, plans), trace(gpt7b, h100, plans)
    for a, b in zip(first, second, strict=True):
        assert a.tobytes() == b.tobytes()
    keys = list(zip(first.start_s, first.stage, strict=True))
    assert keys == sorted(keys)
    assert len(keys) == 2 * 4 * 3 * 8


@pytest.fixture
def reference_run() -> Iterator[subprocess.Popen[str]]:
    """The same plans in a process that runs the engine as plain Python."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.conftest import GPT7B, make_plans\n"
        "from tests.sim_core.test_simulator import SAMPLE\n"
        "from sim_core import Facts, hardware_table, read_hardware, read_workload, simulate\n"
        "w = read_workload(str(GPT7B), Facts(micro_batch=1, sequence=2048))[0]\n"
        "t = hardware_table([read_hardware('H100-SXM')], None)\n"
        "r = simulate(w, t, make_plans(**SAMPLE))\n"
        "print(r.reason.tolist(), r.metrics.tobytes().hex())\n"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


SAMPLE: dict[str, int | list[int]] = {
    "tp": [1, 4, 4, 8, 2, 16, 4],
    "pp": [1, 4, 4, 2, 8, 1, 3],
    "vpp": [1, 1, 3, 1, 1, 1, 1],
    "ga": [2, 5, 8, 4, 8, 3, 2],
    "schedule": [1, 0, 1, 1, 1, 1, 1],
    "overlap_pp": [1, 1, 1, 0, 0, 1, 1],
    "overlap_grad": [0, 1, 1, 1, 1, 1, 1],
    "overlap_param": [1, 0, 1, 1, 1, 0, 1],
    "checkpointing": [0, 2, 5, 0, 1, 4, 0],
    "checkpoint_layers": [0, 0, 1, 0, 0, 2, 0],
}


def test_compiled_and_plain_python_agree_to_the_last_bit(
    gpt7b: Workload, h100: HardwareTable, reference_run: subprocess.Popen[str]
) -> None:
    compiled = simulate(gpt7b, h100, make_plans(**SAMPLE))
    told, _ = reference_run.communicate(timeout=120)
    assert told.strip() == f"{compiled.reason.tolist()} {compiled.metrics.tobytes().hex()}"


@pytest.mark.parametrize(("precision", "width"), [(1, 4), (2, 2)])
def test_megatrons_bucket_holds_as_many_gradients_of_any_width(
    gpt7b: Workload, h100: HardwareTable, precision: int, width: int
) -> None:
    """max(40e6, 1e6 dp) parameters (Megatron-LM core/distributed/distributed_data_parallel.py), of 32 bits or of 16."""
    bytes_ = width * 128 * 1_000_000
    plans = make_plans(all_gpus=512, overlap_grad=1, gradient_precision=precision, bucket_bytes=[0, bytes_, 2 * bytes_])
    steps = simulate(gpt7b, h100, plans).named()["step_time_s"]
    assert steps[0] == steps[1] != steps[2]
