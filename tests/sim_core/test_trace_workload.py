"""A job's traces as a workload: at its own plan the simulated step is the replayed one; axes do what they say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASONS,
    Facts,
    HardwareTable,
    Workload,
    hardware_table,
    read_hardware,
    read_traces,
    read_workload,
    replay,
    simulate,
)
from sim_core.workloads import moving
from tests.conftest import EXAMPLES, make_plans
from tests.trace_jobs import JobSpec, make_job

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SPEC = JobSpec(pp=4, dp=2, ga=8, tied=False, p2p_ms=0.1, seed=31)
GRADIENT_BYTES = 290_013_184 // 4 * 4.0
"""Of a stage: a quarter of the elements, 4 bytes each; reduced in 11.9 ms (trace_jobs.py)."""


@pytest.fixture(scope="module")
def hardware() -> HardwareTable:
    """One GPU a node, and NICs on which two ranks reduce the gradients in as long as in the synthetic job."""
    values = {"gpus_per_node": 1, "nics_per_node": 1, "nic_bandwidth": f"{GRADIENT_BYTES / 12.1e-3} B/s", "nic_efficiency": 1}
    return hardware_table([read_hardware("A800-80G-SXM").with_values(values)], None)


def workload_of(spec: JobSpec, folder: Path) -> tuple[Workload, float]:
    """The workload of a synthetic job, and its replayed step in seconds."""
    path = str(make_job(spec).write(folder))
    return read_workload(path, Facts(vpp=spec.vpp))[0], replay(read_traces(path)).step_s


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workload, float]:
    return workload_of(SPEC, tmp_path_factory.mktemp("dense"))


def metrics(workload: Workload, hardware: HardwareTable, **plan: float) -> dict[str, float]:
    base = workload.base
    own = {"tp": base.tp, "pp": base.pp, "vpp": base.vpp, "ep": base.ep, "all_gpus": base.all_gpus, "ga": base.ga}
    interleaved = plan.get("vpp", base.vpp) > 1
    columns: dict[str, float] = {**own, "micro_batch": 1, "overlap_pp": int(interleaved), **plan}
    results = simulate(workload, hardware, make_plans(workload, **columns))
    assert [REASONS[code] for code in results.reason] == [""]
    return dict(zip(METRICS, results.metrics[:, 0].tolist(), strict=True))


def faster(hardware: HardwareTable, times: float) -> HardwareTable:
    """Hardware with `times` the bandwidth of the NICs."""
    columns = hardware.columns
    quick = columns._replace(nic_bandwidth=columns.nic_bandwidth * times, one_nic_bandwidth=columns.one_nic_bandwidth * times)
    return replace(hardware, columns=quick)


def step_s(workload: Workload, hardware: HardwareTable, **plan: float) -> float:
    return metrics(workload, hardware, **plan)["step_time_s"]


def test_plan_and_sizes_are_those_of_the_files(dense: tuple[Workload, float]) -> None:
    workload, _ = dense
    assert workload.kind == "trace"
    assert tuple(workload.base) == (1, 4, 1, 1, 8, 8, 1)
    assert workload.layers == 8
    assert workload.arrays.p2p_bytes == 1024 * 1024 * 2
    assert workload.sequence == 1024
    reduced = workload.arrays.step.comm_bytes[workload.arrays.step.comm_bytes > 0]
    assert reduced.tolist() == [GRADIENT_BYTES]
    assert not workload.has_experts


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        JobSpec(pp=1, dp=2, ga=8, tied=False, seed=32),
        JobSpec(pp=4, dp=1, ga=8, tied=False, p2p_ms=0.1, head_ms=0.0, loss_ms=0.01, seed=33),
        JobSpec(pp=4, dp=2, ga=16, tied=False, p2p_ms=0.1, head_ms=4.0, seed=34),
    ],
    ids=["dense", "one stage", "one replica", "heavy last stage"],
)
def test_step_at_the_own_plan_is_the_replayed_one(spec: JobSpec, hardware: HardwareTable, tmp_path: Path) -> None:
    workload, replayed_s = workload_of(spec, tmp_path)
    assert step_s(workload, hardware) == pytest.approx(replayed_s, rel=0.01)
    elsewhere = hardware_table([read_hardware("H100-SXM")], None)  # the first hardware is taken as that of the recording
    assert step_s(workload, elsewhere) == pytest.approx(replayed_s, rel=0.01)


def test_micro_batches_come_at_the_pace_of_the_slowest_stage(dense: tuple[Workload, float], hardware: HardwareTable) -> None:
    workload, _ = dense
    steps = [step_s(workload, hardware, ga=ga) for ga in (8, 16, 24)]
    assert steps[2] - steps[1] == pytest.approx(steps[1] - steps[0], rel=1e-6)
    last_stage_s = (SPEC.forward_ms + SPEC.backward_ms + 2 * SPEC.head_ms + SPEC.loss_ms + 0.2) / 1e3
    assert (steps[1] - steps[0]) / 8 == pytest.approx(last_stage_s, rel=0.05)


def test_pipeline_axis_moves_layers_between_stages(dense: tuple[Workload, float], hardware: HardwareTable) -> None:
    workload, _ = dense
    for pp in (1, 2, 8):
        found = metrics(workload, hardware, pp=pp, all_gpus=2 * pp)
        whole_s = 4 * (SPEC.forward_ms + SPEC.backward_ms) / 1e3
        assert found["step_time_s"] > (8 + pp - 1) * whole_s / pp  # the layers alone
        assert found["step_time_s"] < (8 + pp - 1) * (whole_s / pp + 8e-3) + 0.14 / pp + 0.03  # and gradients, optimizer


def test_straggler_and_device_speed_scale_compute(dense: tuple[Workload, float], hardware: HardwareTable) -> None:
    workload, _ = dense
    plain = step_s(workload, hardware, pp=1, all_gpus=1)
    assert step_s(workload, hardware, pp=1, all_gpus=1, straggler_factor=1.5) > 1.3 * plain
    assert step_s(workload, hardware, pp=1, all_gpus=1, device_speed=2.0) == pytest.approx(plain / 2, rel=1e-3)
    slower_s = step_s(workload, hardware, straggler_stage=1, straggler_factor=1.5) - step_s(workload, hardware)
    stage_s = (SPEC.forward_ms + SPEC.backward_ms) / 1e3
    assert 8 * (0.5 * stage_s - 6.5e-3) < slower_s < (8 + 3) * 0.5 * stage_s  # the last stage is slower by 6 ms already


def test_replicas_cost_what_the_ring_costs(dense: tuple[Workload, float], hardware: HardwareTable) -> None:
    workload, _ = dense
    alone, pair, many = (step_s(workload, hardware, all_gpus=4 * dp) for dp in (1, 2, 64))
    assert pair - alone == pytest.approx(12.1e-3, rel=0.02)
    assert many - alone == pytest.approx(2 * 63 / 64 * 12.1e-3, rel=0.2)  # and the latency of 126 hops, for each of two buckets


def test_more_bandwidth_is_never_slower(dense: tuple[Workload, float], hardware: HardwareTable) -> None:
    workload, _ = dense
    table = [faster(hardware, times) for times in (0.5, 1.0, 4.0)]
    steps = [step_s(workload, one) for one in table]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] - steps[1] > 12e-3  # at least the gradients, in twice the time


def test_experts_tell_their_exchanges_and_reductions(tmp_path: Path) -> None:
    spec = JobSpec(dp=4, ep=2, moe=True, seed=35)
    workload, _ = workload_of(spec, tmp_path)
    assert workload.has_experts
    assert workload.base.ep == 2
    reduced = sorted(workload.arrays.step.comm_bytes[workload.arrays.step.comm_bytes > 0].tolist())
    assert GRADIENT_BYTES in reduced
    assert 4 * GRADIENT_BYTES in reduced
    sent = workload.arrays.pieces.comm_bytes[workload.arrays.pieces.comm_bytes > 0]
    assert set(sent.tolist()) == {2048 * 4096 * 2.0}


def test_virtual_stages_keep_all_of_the_end_stages_own_work(tmp_path: Path) -> None:
    """Logits and loss run once a micro-batch, however many chunks a stage has: compute of the step is that of the replay."""
    path = str(make_job(JobSpec(pp=2, vpp=2, dp=1, ga=8, head_ms=8.0, tied=False, jitter=0.0, hosts=1)).write(tmp_path))
    workload, _ = read_workload(path)
    assert workload.base.vpp == 2
    job = read_traces(path)
    recorded_s = sum(o.compute_s + o.gap_s for rank in job.ranks for o in rank.named("forward_step", "get_batch", "loss_func"))
    pieces = workload.arrays.pieces
    units = workload.arrays.unit_layers
    runs = units[:, -1] + np.isin(np.arange(len(units)), (workload.arrays.first_unit, workload.arrays.last_unit))
    found_s = float((pieces.compute_s[:, 0] * runs[pieces.unit]).sum()) * workload.base.ga
    assert found_s == pytest.approx(recorded_s, rel=0.02)


def reasons_of(workload: Workload, hardware: HardwareTable, **plan: float) -> str:
    columns: dict[str, float] = {**workload.base._asdict(), "overlap_pp": 0, **plan}
    return REASONS[int(simulate(workload, hardware, make_plans(workload, **columns)).reason[0])]


def test_gradients_that_were_not_recorded_are_not_free(hardware: HardwareTable, tmp_path: Path) -> None:
    """At dp 1 nothing is reduced, at ep = dp no experts': plans that would are infeasible, their state is not known."""
    alone, _ = workload_of(replace(SPEC, dp=1), tmp_path / "alone")
    assert reasons_of(alone, hardware) == ""
    assert reasons_of(alone, hardware, all_gpus=16) == "gradients_unknown"
    spread, _ = workload_of(replace(SPEC, moe=True, dp=2, ep=2), tmp_path / "spread")
    assert reasons_of(spread, hardware) == ""
    assert reasons_of(spread, hardware, all_gpus=32, ep=8) == ""
    assert reasons_of(spread, hardware, all_gpus=32, ep=2) == "gradients_unknown"
    results = simulate(spread, hardware, make_plans(spread, **spread.base._asdict()))
    assert np.isnan(results.state_bytes[0])


def test_experts_have_their_traffic_also_from_a_job_without_expert_groups(hardware: HardwareTable, tmp_path: Path) -> None:
    workload, _ = workload_of(replace(SPEC, moe=True, dp=4, ep=1), tmp_path)
    assert metrics(workload, hardware, ep=1)["ep_total_s"] == 0
    assert metrics(workload, hardware, ep=4)["ep_total_s"] > 0


def test_the_optimizer_follows_the_experts_too(hardware: HardwareTable, tmp_path: Path) -> None:
    workload, _ = workload_of(replace(SPEC, moe=True, dp=4, ep=2), tmp_path)
    assert metrics(workload, hardware, ep=4)["optimizer_s"] < metrics(workload, hardware, ep=2)["optimizer_s"]
    assert metrics(workload, hardware, ep=2)["optimizer_s"] == pytest.approx(SPEC.optimizer_ms / 1e3, rel=0.05)


def test_buckets_beside_the_backward_are_gradients(tmp_path: Path) -> None:
    """Newer traces tell them by bucket, hidden behind the backward; the same bucket in two lines is one."""
    bucket = (
        "rank:0:ddp_grad_comm(comm_uid=c{0},stage_id=0,mg_state=steady,group_kind=dp,buffer_id=0,bucket_id={0},"
        "bucket_numel=1000,trigger_cmd_uid=u,duration=0.1,timestamp=105.0,grad_dtype=torch.bfloat16)"
    )
    lines = [
        "rank:0:forward_step(stage_id=0,batch_id=0,mg_state=steady,duration=4.0,timestamp=100.0)",
        *(bucket.format(number) for number in (0, 1, 1)),
        "rank:0:backward_step(stage_id=0,batch_id=0,mg_state=steady,duration=6.0,timestamp=106.0,cmd_uid=u)",
    ]
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    workload, _ = read_workload(str(path), Facts(all_gpus=2))
    assert workload.arrays.step.comm_bytes.tolist() == [2 * 1000 * 2]
    assert workload.recorded_fields["overlap_grad"] is True


def test_sequence_parallelism_is_seen_in_its_gathers(tmp_path: Path) -> None:
    call = (
        "'trace_src_func=_gather,duration=0.1,timestamp=99.0,input__shape=[512, 1, 64],input__dtype=torch.bfloat16,"
        "group=tp,comm_func=allgather'"
    )
    lines = [
        f"rank:0:forward_step(stage_id=0,batch_id=0,mg_state=warmup,duration=4.0,timestamp=100.0,sub_operations=[{call}])",
        "rank:0:send_forward(stage_id=0,batch_id=0,mg_state=warmup,duration=0.1,group_kind=pp,input__shape=[512, 1, 64],"
        "input__dtype=torch.bfloat16,timestamp=100.2)",
        "rank:0:recv_backward(stage_id=0,batch_id=0,mg_state=cooldown,duration=9.0,group_kind=pp,input__shape=[512, 1, 64],"
        "input__dtype=torch.bfloat16,timestamp=110.0)",
        "rank:0:backward_step(stage_id=0,batch_id=0,mg_state=cooldown,duration=6.0,timestamp=116.0)",
    ]
    path = tmp_path / "trace.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    workload, _ = read_workload(str(path), Facts(tp=2, pp=2, all_gpus=4))
    assert workload.sequence == 1024
    assert workload.arrays.p2p_rule == moving.SHARDED_ACTIVATION


def test_more_groups_than_experts_are_not_possible(hardware: HardwareTable, tmp_path: Path) -> None:
    workload, _ = workload_of(replace(SPEC, moe=True, dp=4, ep=2), tmp_path)
    few = replace(workload, experts=2)
    assert reasons_of(few, hardware, ep=4) == "ep_exceeds_experts"


def test_a_first_stamp_that_is_missing_costs_no_gap(tmp_path: Path) -> None:
    text = MOE.read_text(encoding="utf-8")
    first, rest = text.split("\n", 1)
    path = tmp_path / MOE.name
    path.write_text(re.sub(r"timestamp=[0-9.]+", "timestamp=0", first) + "\n" + rest, encoding="utf-8")
    assert read_traces(str(path)).span_s == pytest.approx(read_traces(str(MOE)).span_s, abs=2e-4)
