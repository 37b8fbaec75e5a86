"""A job's traces as a workload: at its own plan the simulated step is the replayed one; axes do what they say."""

from __future__ import annotations

from pathlib import Path

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
from tests.conftest import make_plans
from tests.trace_jobs import JobSpec, make_job

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
    return hardware._replace(
        nic_bandwidth=hardware.nic_bandwidth * times, nic_bandwidth_per_gpu=hardware.nic_bandwidth_per_gpu * times
    )


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
    times = 1 if spec.pp == 4 else 4  # a single stage holds all gradients, and reduces them as fast
    table = faster(hardware, times)
    assert step_s(workload, table) == pytest.approx(replayed_s, rel=0.015)


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
    assert many - alone == pytest.approx(2 * 63 / 64 * 12.1e-3, rel=0.15)  # and the latency of 126 hops


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
    assert GRADIENT_BYTES in reduced and 4 * GRADIENT_BYTES in reduced
    sent = workload.arrays.pieces.comm_bytes[workload.arrays.pieces.comm_bytes > 0]
    assert set(sent.tolist()) == {2048 * 4096 * 2.0}
