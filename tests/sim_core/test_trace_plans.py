"""A job's traces under plans: the recorded one costs what was recorded, from any of its files; others follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import (
    Facts,
    HardwareTable,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_traces,
    read_workload,
    replay,
    simulate,
)
from sim_core.terms import DP, DP_EP, SEND_RECEIVE
from sim_core.workloads import moving
from sim_core.workloads.workload import RecordedMessages
from tests.trace_jobs import JobSpec, SyntheticJob, make_job

SKEWED = (6.0, 1.0, 2.0, 1.0, 1.5, 0.5, 2.0, 2.0)
EXPERTS = JobSpec(pp=2, dp=8, ep=4, ga=4, moe=True, tied=False, popularity=SKEWED, layers=4, seed=41)
"""The first rank of each group gets 1.75 x the mean of the tokens, merged in pairs 1.25 x."""


@pytest.fixture(scope="module")
def hardware() -> HardwareTable:
    return hardware_table([read_hardware("A800-80G-SXM")], None)


def step_s(workload: Workload, hardware: HardwareTable, **plan: int) -> float:
    results = simulate(workload, hardware, plans(workload, **plan))
    assert results.reason[0] == 0
    return float(results.named()["step_time_s"][0])


def error(made: SyntheticJob, folder: Path, hardware: HardwareTable, ranks: list[int] | None = None) -> float:
    """Relative error of the step at the recorded plan, from the files of some ranks."""
    made.write(folder, ranks=ranks)
    return step_s(read_workload(str(folder))[0], hardware) / made.step_s - 1


@pytest.mark.parametrize(
    "spec",
    [
        EXPERTS,
        replace(EXPERTS, popularity=(), straggler=1, straggler_factor=1.1),
        JobSpec(tp=2, pp=2, dp=1, ga=2, seed=42),
        JobSpec(pp=4, dp=2, moe=True, embedding=200_000_000, tied=False, seed=43),
    ],
    ids=["loaded experts", "straggler among experts", "tensor parallel", "large ends"],
)
def test_the_recorded_plan_costs_what_was_recorded(spec: JobSpec, hardware: HardwareTable, tmp_path: Path) -> None:
    made = make_job(spec)
    assert error(made, tmp_path / "all", hardware) == pytest.approx(0.0, abs=0.01)
    assert error(made, tmp_path / "one", hardware, [0]) == pytest.approx(0.0, abs=0.07)  # it cannot know of others


UNEQUAL = [
    replace(EXPERTS, dp=4, straggler=2, straggler_factor=1.2),
    JobSpec(pp=2, dp=4, ga=1, layers=4, skew_ms=10.0, optimizer_ms=5.0, jitter=0.2, seed=44),
    JobSpec(tp=2, pp=2, dp=2, ga=2, jitter=0.05, norm_ms=6.0, seed=45),
]
"""A straggler; replicas that start apart with one micro-batch each; tensor-parallel ranks that wait for a norm."""


@pytest.mark.parametrize("spec", UNEQUAL, ids=["straggler", "apart", "tensor parallel"])
def test_more_ranks_are_never_worse_than_the_worst_one(spec: JobSpec, hardware: HardwareTable, tmp_path: Path) -> None:
    made = make_job(spec)
    alone = [error(made, tmp_path / f"{rank}", hardware, [rank]) for rank in range(spec.world)]
    node, chance = list(range(spec.world // 2)), np.random.default_rng(spec.seed)
    several = [node, [rank + len(node) for rank in node], [0, 3, 5], [1, 2, 4, 5, 7]]
    several += [sorted(chance.permutation(spec.world)[:n].tolist()) for n in (2, 2, 3, 4, 6, 7)]
    for number, ranks in enumerate(several):
        off = error(made, tmp_path / f"some{number}", hardware, ranks)
        assert abs(off) <= max(map(abs, alone)) + 1e-9, ranks
        own = [alone[rank] for rank in ranks]
        assert min(own) - 1e-9 <= off <= max(own) + 1e-9, ranks  # whatever the truth is


@pytest.mark.parametrize("spec", UNEQUAL, ids=["straggler", "apart", "tensor parallel"])
def test_a_sweep_starts_where_the_replay_is(spec: JobSpec, hardware: HardwareTable, tmp_path: Path) -> None:
    """From all files and from one; on the hardware of the recording and, taken as that, any other."""
    made = make_job(spec)
    for name, ranks in (("all", None), ("one", [0])):
        path = str(made.write(tmp_path / name, ranks=ranks))
        replayed_s = replay(read_traces(path), of_ranks=ranks is None).step_s
        workload = read_workload(path)[0]
        assert step_s(workload, hardware) == pytest.approx(replayed_s, rel=1e-9)
        assert step_s(workload, hardware_table([read_hardware("H100-SXM")], None)) == pytest.approx(replayed_s, rel=1e-9)


def test_end_stages_keep_their_own_gradients_and_optimizer(hardware: HardwareTable, tmp_path: Path) -> None:
    spec = JobSpec(pp=4, dp=2, embedding=200_000_000, tied=False)
    workload, _ = read_workload(str(make_job(spec).write(tmp_path)))
    inner = 290_013_184 // 4
    assert workload.arrays.shares.ends == pytest.approx(200_000_000 / (200_000_000 + inner))
    assert workload.arrays.step.comm_bytes.max() == 4.0 * (200_000_000 + inner)
    assert workload.recorded is not None
    recorded_s = workload.recorded.seconds[workload.recorded.group == DP]  # of each stage
    assert len(recorded_s) == spec.pp
    reduced_s = simulate(workload, hardware, plans(workload)).named()["dp_total_s"][0]
    assert reduced_s == pytest.approx(recorded_s.mean(), rel=0.01)


def test_the_optimizer_of_an_end_stage_takes_as_long_as_its_parameters_are_many(tmp_path: Path) -> None:
    """20 ms for a stage's 1/4 of 290 million dense weights and four times as many of experts, which an end has 200 million
    beyond; each at that pace."""
    spec = JobSpec(pp=4, dp=4, ep=2, moe=True, embedding=200_000_000, tied=False, jitter=0.0)
    step = read_workload(str(make_job(spec).write(tmp_path)))[0].arrays.step
    inner = 290_013_184 // 4
    pace_s = spec.optimizer_ms / 1e3 / (inner + 4 * inner)
    found = {int(rule): step.compute_s[k] for k, rule in enumerate(step.compute_rule) if step.compute_s[k] > 1e-3}
    assert found[moving.PARAMETERS] == pytest.approx(pace_s * (inner + 200_000_000), rel=0.01)
    assert found[moving.EXPERT_PARAMETERS] == pytest.approx(pace_s * 4 * inner, rel=0.01)


def test_what_inner_stages_wait_for_ends_is_no_pace(tmp_path: Path) -> None:
    """Ends with 200 million weights more than inner stages, which wait for them before they scale: once 60 % too much."""
    spec = JobSpec(pp=4, dp=2, embedding=200_000_000, tied=False, jitter=0.0)
    job = make_job(spec)
    step = read_workload(str(job.write(tmp_path)))[0].arrays.step
    found = {int(rule): step.compute_s[k] for k, rule in enumerate(step.compute_rule)}
    inner = 290_013_184 // 4
    assert found[moving.PARAMETERS] == pytest.approx(spec.optimizer_ms / 1e3 * (inner + 200_000_000) / inner, rel=0.02)


def test_recorded_load_merges_at_a_lower_ep(hardware: HardwareTable, tmp_path: Path) -> None:
    """What is recorded at ep 4, summed over pairs of ranks, is the load of the same experts at ep 2."""
    workload, _ = read_workload(str(make_job(EXPERTS).write(tmp_path / "4")))
    assert EXPERTS.load(0) == 1.75
    load = workload.arrays.expert_load
    assert load[4] == 1.0
    assert load[2] == pytest.approx(1.25 / 1.75, rel=2e-3)
    assert load[8] > 1.0  # single experts are spread further than pairs of them
    assert any(
        "the fullest rank gets 1.75 x the mean of the tokens at ep 4, as recorded; 1.25 at ep 2" in n for n in workload.notes
    )
    row = workload.names.index("experts")
    assert workload.arrays.pieces.compute_s[row, 0] == pytest.approx(1.75 * EXPERTS.expert_ms / 1e3, rel=0.02)
    fewer = replace(EXPERTS, ep=2)
    truth_s = make_job(fewer).step_s
    workload = replace(workload, expert_weights=(0.0, 0.0))  # the synthetic job has no memory
    moved_s = step_s(workload, hardware, ep=2)
    # in the synthetic job they are reduced in 20 ms at any ep, and the optimizer takes as long
    own = simulate(workload, hardware, plans(workload, ep=2)).named()
    reduced_s, optimizer_s = own["dp_total_s"][0] - 11.9e-3, own["optimizer_s"][0] - EXPERTS.optimizer_ms / 1e3
    assert moved_s - reduced_s - optimizer_s + 20e-3 == pytest.approx(truth_s, rel=0.03)


def test_tokens_that_are_spread_evenly_are_no_load(tmp_path: Path) -> None:
    workload, _ = read_workload(str(make_job(replace(EXPERTS, popularity=(1.0,) * 8)).write(tmp_path)))
    assert len(workload.arrays.expert_load) == 0
    assert not any("fullest" in note for note in workload.notes)


def test_recorded_messages_follow_the_hardware(tmp_path: Path) -> None:
    """As recorded where they were recorded; on a faster network faster by as much as the model says."""
    workload, _ = read_workload(str(make_job(JobSpec(pp=2, dp=4, tied=False)).write(tmp_path)), Facts(layers=8))
    own = read_hardware("A800-80G-SXM")
    other = own.with_values({"nvlink_bandwidth": "800 GB/s"})
    table = hardware_table([own, other], own)
    times = [simulate(workload, table, plans(workload, hardware=k)).named() for k in (0, 1)]
    assert times[0]["dp_total_s"][0] == pytest.approx(12.1e-3, rel=0.03)
    assert times[1]["dp_total_s"][0] == pytest.approx(times[0]["dp_total_s"][0] / 4, rel=0.1)
    assert times[1]["compute_forward_s"] == times[0]["compute_forward_s"]


def test_messages_not_recorded_in_a_place_are_the_model_s(hardware: HardwareTable, tmp_path: Path) -> None:
    """Gradients reduced inside a node say nothing about the network."""
    workload, _ = read_workload(str(make_job(JobSpec(pp=2, dp=4, tied=False)).write(tmp_path)))
    workload = replace(workload, replayed_s=None)
    slow = replace(workload, recorded=workload.recorded._replace(seconds=10 * workload.recorded.seconds))  # type: ignore[union-attr]
    steps = [simulate(each, hardware, plans(each, all_gpus=64)).named()["dp_total_s"][0] for each in (workload, slow)]
    assert steps[0] == steps[1]
    assert np.diff([step_s(each, hardware) for each in (workload, slow)])[0] > 0.05


def test_a_group_that_was_not_recorded_is_as_fast_as_its_kin(hardware: HardwareTable, tmp_path: Path) -> None:
    """Gradients of experts of which no time was recorded are as slow as recorded dense ones, in the same place."""
    workload, _ = read_workload(str(make_job(EXPERTS).write(tmp_path)))
    assert workload.recorded is not None
    dense = RecordedMessages(*(column[workload.recorded.group != DP_EP] for column in workload.recorded))
    slower = dense._replace(seconds=np.where(dense.group == DP, 3.0, 1.0) * dense.seconds)
    times = [
        simulate(with_seconds(workload, each), hardware, plans(workload)).named()["dp_total_s"] for each in (dense, slower)
    ]
    assert times[1] == pytest.approx(3 * times[0], rel=1e-9)


def with_seconds(workload: Workload, messages: RecordedMessages) -> Workload:
    """The workload with other recorded messages, and no replayed step to meet."""
    return replace(workload, recorded=messages, replayed_s=None)


def test_what_a_send_takes_to_start_it_takes_between_nodes_too(hardware: HardwareTable, tmp_path: Path) -> None:
    """A millisecond more for each send recorded inside a node is one more for each over the network."""
    workload, _ = read_workload(str(make_job(JobSpec(pp=2, dp=4, tied=False)).write(tmp_path)))
    assert workload.recorded is not None
    recorded = workload.recorded
    of_sends = recorded.kind == SEND_RECEIVE
    longer = of_sends * recorded.number * 1e-3
    waited_s = recorded.seconds[of_sends].sum() / recorded.number[of_sends].sum()
    slower = [with_seconds(workload, recorded._replace(seconds=recorded.seconds + times * longer)) for times in (0, 1, 2)]
    total = {}
    for gpus in (8, 64):  # on one node, and each stage on several
        total[gpus] = [simulate(each, hardware, plans(each, all_gpus=gpus)).named()["pp_total_s"][0] for each in slower]
    assert np.diff(total[8]) == pytest.approx(total[8][0] / waited_s * 1e-3, rel=1e-6)
    assert np.diff(total[64]) == pytest.approx(np.diff(total[8]), rel=1e-6)


def test_recorded_messages_count_in_any_order(hardware: HardwareTable, tmp_path: Path) -> None:
    workload, _ = read_workload(str(make_job(EXPERTS).write(tmp_path)))
    assert workload.recorded is not None
    order = np.argsort(-workload.recorded.number, kind="stable")
    assert workload.recorded.number[order[0]] > 1 == workload.recorded.number[0]
    columns: dict[str, Any] = {name: column[order] for name, column in workload.recorded._asdict().items()}
    sorted_ = with_seconds(workload, workload.recorded._replace(**columns))
    found = [simulate(each, hardware, plans(each)).metrics for each in (with_seconds(workload, workload.recorded), sorted_)]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9)


def experts_s(workload: Workload, hardware: HardwareTable, **plan: int | float | str) -> float:
    """Seconds of a plan without what the synthetic jobs take from no rule: reductions and optimizer."""
    found = simulate(workload, hardware, plans(workload, **plan)).named()
    return float(found["step_time_s"][0] - found["dp_total_s"][0] - found["optimizer_s"][0])


@pytest.mark.parametrize(
    ("label", "ep", "popularity"),
    [
        ("balanced", 4, (1.0,) * 8),
        (2.5, 4, (20.0, 5.0, 3.0, 1.0, 2.0, 3.0, 4.0, 2.0)),  # two experts on a rank: 25 of 40 on the first
        ("zipf:2", 8, tuple(k**-2.0 for k in range(1, 9))),  # an expert on each rank: in whatever order
    ],
)
def test_another_load_of_experts_is_that_of_a_job_with_it(
    label: str | float, ep: int, popularity: tuple[float, ...], hardware: HardwareTable, tmp_path: Path
) -> None:
    """Moved from one recorded load, the step differs as it does between jobs run by the synthetic engine."""
    spec = replace(EXPERTS, ep=ep)
    own, other = make_job(spec), make_job(replace(spec, popularity=popularity))
    workload, _ = read_workload(str(own.write(tmp_path)))
    workload = replace(workload, expert_weights=(0.0, 0.0))  # the synthetic job has no memory
    moved = experts_s(workload, hardware, expert_imbalance=label) - experts_s(workload, hardware)
    assert moved == pytest.approx(other.step_s - own.step_s, rel=0.08)
    assert abs(other.step_s / own.step_s - 1) > 0.02


def test_a_load_that_nobody_recorded_is_refused(hardware: HardwareTable, tmp_path: Path) -> None:
    dense, _ = read_workload(str(make_job(JobSpec(pp=2, dp=2, tied=False)).write(tmp_path)))
    found = simulate(dense, hardware, plans(dense, expert_imbalance=["recorded", "balanced", 1.5, "zipf:1"]))
    assert [str(reason) for reason in found.named()["reason"]] == ["", *["expert_load_unknown"] * 3]
