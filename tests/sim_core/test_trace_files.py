"""Trace files that hold several steps, do not belong together, or lack their times: said in one line, or read right."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim_core import (
    Facts,
    Job,
    SimError,
    hardware_table,
    plans,
    read_hardware,
    read_traces,
    read_workload,
    recorded_step,
    replay,
    simulate,
    start_of,
)
from sim_core.workloads.traces.replay import recorded_waits
from sweep.commands.recorded_commands import replay_command
from tests.trace_jobs import JobSpec, file_name, make_job

SPEC = JobSpec(pp=2, dp=1, ga=4, seed=51)
UNLIKE = JobSpec(pp=2, dp=4, ep=2, ga=4, moe=True, tied=False, layers=4, popularity=(5.0, 1.0, 1.0, 1.0), seed=54)


def steps(folder: Path, lengths: list[float]) -> Path:
    """Files of several steps, one after another on each rank's clock; the longest work is in the longest step."""
    jobs = [make_job(replace(SPEC, forward_ms=ms, seed=number)) for number, ms in enumerate(lengths)]
    folder.mkdir()
    for rank in range(SPEC.world):
        texts = [job.rank_text(rank, start_ms=number * 10_000.0) for number, job in enumerate(jobs)]
        (folder / file_name(SPEC, rank)).write_text("".join(texts))
    return folder


def test_the_median_of_several_steps_is_taken_and_told(tmp_path: Path) -> None:
    folder = steps(tmp_path / "job", [12.0, 40.0, 20.0])
    job = read_traces(str(folder))
    assert job.layout.ga == SPEC.ga
    assert any("3 steps of" in warning and "step 3 is taken, the median" in warning for warning in job.warnings)
    assert replay(job).step_s == pytest.approx(make_job(replace(SPEC, forward_ms=20.0, seed=2)).step_s, rel=0.01)
    chosen = read_traces(str(folder), Facts(step=2))
    assert replay(chosen).step_s == pytest.approx(make_job(replace(SPEC, forward_ms=40.0, seed=1)).step_s, rel=0.01)
    assert not any("median" in warning for warning in chosen.warnings)
    with pytest.raises(SimError, match=r"workload.step: found 4, expected a whole number from 1 to 3"):
        read_traces(str(folder), Facts(step=4))


def test_another_number_of_steps_is_another_run(tmp_path: Path) -> None:
    folder = steps(tmp_path / "job", [12.0, 13.0])
    one = folder / file_name(SPEC, 1)
    one.write_text(make_job(SPEC).rank_text(1))
    with pytest.raises(SimError, match=rf"{one.name}:1: number of steps: found 1, expected 2, as in .*rank0"):
        read_traces(str(folder))


def test_messages_of_two_sizes_are_of_two_jobs(tmp_path: Path) -> None:
    folder = make_job(SPEC).write(tmp_path)
    other = folder / file_name(SPEC, 1)
    other.write_text(other.read_text().replace("[1024, 1, 1024]", "[4096, 1, 1024]"))
    with pytest.raises(SimError, match=r"rank1.*: size of recv_forward.*: found 8.389 MB, expected 2.097 MB, as in .*rank0"):
        read_traces(str(folder))


def test_gradients_of_two_sizes_are_of_two_jobs(tmp_path: Path) -> None:
    """Two replicas of a stage sum as many gradients: 4 bytes of 145 million, or of 72 million."""
    folder = make_job(replace(SPEC, dp=2)).write(tmp_path)
    other = folder / file_name(replace(SPEC, dp=2), 1)
    other.write_text(other.read_text().replace("input__shape=[145006592]", "input__shape=[72503296]"))
    with pytest.raises(SimError, match=r"rank1.*: size of dp_allreduce.*: found 290 MB, expected 580 MB, as in .*rank0"):
        read_traces(str(folder))


def test_a_next_step_that_only_begins_is_none(tmp_path: Path) -> None:
    """Recording ended a few operations after the optimizer: there is one step, and nothing to choose."""
    made = make_job(SPEC)
    for rank in range(SPEC.world):
        later = made.rank_text(rank, start_ms=1000 * made.step_s + 5).splitlines()
        (tmp_path / file_name(SPEC, rank)).write_text(made.rank_text(rank) + "\n".join(later[:3]) + "\n", encoding="utf-8")
    job = read_traces(str(tmp_path))
    assert replay(job).step_s == pytest.approx(made.step_s, rel=1e-2)
    assert not any("step" in warning for warning in job.warnings)


def test_first_operations_without_stamps_end_where_the_next_begins(tmp_path: Path) -> None:
    """Of four without one: each as long as recorded, back to back before the first that has one."""
    made = make_job(SPEC)
    path = made.write(tmp_path) / file_name(SPEC, 0)
    lines = path.read_text().splitlines(keepends=True)
    lines[:4] = [re.sub(r"timestamp=[0-9.]+(?=,sub)", "timestamp=0", line) for line in lines[:4]]
    path.write_text("".join(lines))
    first = read_traces(str(tmp_path)).ranks[0].operations[:5]
    durations_s = [operation.end_ms / 1e3 - operation.start_ms / 1e3 for operation in made.programs[0][:4]]
    assert [operation.start_s for operation in first] == pytest.approx([sum(durations_s[:k]) for k in range(5)], abs=2e-4)


def test_other_micro_batches_are_of_another_job(tmp_path: Path) -> None:
    folder = make_job(replace(SPEC, dp=2, pp=1)).write(tmp_path)
    made = make_job(replace(SPEC, dp=2, pp=1, ga=6))
    (folder / file_name(made.spec, 1)).write_text(made.rank_text(1))
    with pytest.raises(SimError, match=r"rank1.*:1: number of forwards: found 6, expected 4, as in .*rank0"):
        read_traces(str(folder))


def test_calls_inside_a_send_are_drawn(tmp_path: Path) -> None:
    folder = make_job(SPEC).write(tmp_path)
    call = "trace_src_func=_send,duration=0.05,timestamp=1.0,input__shape=[4],input__dtype=torch.int64,group=pp,comm_func=send"
    path = folder / file_name(SPEC, 0)
    text = re.sub(r"(send_forward\(.*sub_operations=)\[\]", rf"\1['{call}']", path.read_text())
    assert call in text
    path.write_text(text)
    events = recorded_step(read_traces(str(folder)))
    drawn = [event for event in events if event.name == "pp send"]
    assert drawn
    inside = {(e.start_s, e.end_s) for e in events if "send_forward" in e.name}
    assert all(any(start_s <= e.start_s and e.end_s <= end_s + 1e-9 for start_s, end_s in inside) for e in drawn)


def test_no_operation_waits_longer_than_it_takes(tmp_path: Path) -> None:
    """With calls inside messages, whose wait is that of the message."""
    folder = make_job(SPEC).write(tmp_path)
    call = "trace_src_func=_send,duration=0.05,timestamp=1.0,input__shape=[4],input__dtype=torch.int64,group=pp,comm_func=send"
    path = folder / file_name(SPEC, 0)
    path.write_text(re.sub(r"(send_forward\(.*sub_operations=)\[\]", rf"\1['{call}']", path.read_text()))
    job = read_traces(str(folder))
    assert any(operation.calls for operation in job.messages)
    for rank, waits in zip(job.ranks, recorded_waits(job)[0], strict=True):
        for operation, waited in zip(rank.operations, waits, strict=True):
            assert len(waited) == 1 + len(operation.calls)
            assert 0 <= sum(waited) <= operation.duration_s


def test_durations_of_zero_are_no_trace(tmp_path: Path) -> None:
    folder = make_job(SPEC).write(tmp_path)
    path = folder / file_name(SPEC, 0)
    path.write_text(re.sub(r"duration=[0-9.]+", "duration=0", path.read_text()))
    with pytest.raises(SimError, match=rf"{path.name}:1: all durations are 0: expected the milliseconds of operations"):
        read_traces(str(folder))


def test_a_reduction_that_took_no_time_costs_what_the_model_says(tmp_path: Path) -> None:
    folder = make_job(JobSpec(pp=2, dp=2, ga=4)).write(tmp_path, ranks=[0])
    path = next(iter(folder.iterdir()))
    path.write_text(re.sub(r"(dp_allreduce\(.*?duration=)[0-9.]+", r"\g<1>0", path.read_text()))
    workload, _ = read_workload(str(folder))
    assert workload.arrays.step.comm_bytes.max() == 4.0 * (290_013_184 // 2)


def alone(folder: Path, *, told: str, key: str = "") -> Path:
    """The files of a job as if each rank had been profiled by itself: no pipeline messages, reductions in 20 us."""
    make_job(UNLIKE).write(folder)
    for path in folder.iterdir():
        lines = [line for line in path.read_text().splitlines() if "group_kind=pp" not in line]
        lines = [re.sub(r"(_allreduce\(.*?duration=)[0-9.]+", r"\g<1>0.02", line) for line in lines]
        lines = [re.sub(r"description=None", f"description={told}", line) for line in lines]
        path.write_text("\n".join(line.replace(",sub_operations", f"{key},sub_operations") for line in lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("told", "key"), [("simulation", ""), ("None", ",op_semantics=metadata_placeholder")], ids=["description", "semantics"]
)
def test_profiles_of_single_ranks_are_no_step(told: str, key: str, tmp_path: Path) -> None:
    folder = str(alone(tmp_path, told=told, key=key))
    job = read_traces(folder)
    assert any("scaling mode" in warning and "compute is taken" in warning for warning in job.warnings)
    with pytest.raises(SimError, match=r"scaling mode.*no step to replay"):
        replay(job)
    workload, _ = read_workload(folder, Facts(sequence=1024))
    assert (workload.recorded, workload.recorded_step_s, workload.replayed_s) == (None, None, None)
    assert workload.arrays.p2p_bytes == 1024 * 4096 * 2.0  # of the rows that experts exchange
    table = hardware_table([read_hardware("A800-80G-SXM")], None)
    found, model = (simulate(workload, table, plans(workload, pp=pp)).named() for pp in (2, 1))
    ends_ms = 0.2 + (UNLIKE.head_ms + UNLIKE.loss_ms) / 2
    forward_ms = UNLIKE.forward_ms + ends_ms + 2 * UNLIKE.expert_ms * UNLIKE.load(0)
    assert found["compute_forward_s"][0] * 1e3 == pytest.approx(UNLIKE.ga * forward_ms, rel=0.03)
    assert model["dp_total_s"][0] > 10e-3  # gigabytes: not in 20 us


def test_a_step_without_pipeline_messages_calibrates_nothing(tmp_path: Path) -> None:
    workload, _ = read_workload(str(alone(tmp_path, told="None")))
    assert workload.replayed_s is None
    assert workload.recorded is not None
    assert not (workload.recorded.bytes > 1e8).any()  # reductions of gigabytes in 20 us
    assert any("faster than any network" in note for note in workload.notes)


def distances(job: Job) -> list[float]:
    """Seconds between the calls inside the operations of a job."""
    inside = [operation.calls for rank in job.ranks for operation in rank.operations]
    return [after.begin_s - call.begin_s for calls in inside for call, after in itertools.pairwise(calls)]


@pytest.mark.parametrize("spec", [SPEC, JobSpec(pp=2, dp=2, ep=2, ga=4, moe=True, layers=4, seed=53)], ids=["dense", "experts"])
def test_stamps_of_zero_leave_the_order_of_the_lines(spec: JobSpec, tmp_path: Path) -> None:
    made = make_job(spec)
    folder = made.write(tmp_path)
    between_s = distances(read_traces(str(folder)))
    for path in folder.iterdir():
        path.write_text(re.sub(r"timestamp=[0-9.]+(?=,sub)", "timestamp=0", path.read_text()))
    job = read_traces(str(folder))
    assert sum("rank0" in told and "no timestamps (nor in" in told for told in job.warnings) == 1
    assert not any("moved" in told for told in job.warnings)
    assert distances(job) == pytest.approx(between_s, abs=2e-5)
    assert job.span_s == pytest.approx(made.step_s, rel=0.02)
    for of_ranks in (False, True):
        assert replay(job, of_ranks=of_ranks).step_s == pytest.approx(made.step_s, rel=0.02)
    assert read_workload(str(folder))[0].recorded_step_s is not None


@pytest.mark.parametrize("spec", [UNLIKE, JobSpec(tp=2, pp=2, dp=2, ga=4, seed=55)], ids=["experts", "dense"])
@pytest.mark.parametrize("rank", [0, 7], ids=["first", "last"])
def test_a_file_without_stamps_among_stamped_ones(rank: int, spec: JobSpec, tmp_path: Path) -> None:
    """Its calls are where those of like ranks are: all at once, they would hold up everyone."""
    made = make_job(spec)
    path = made.write(tmp_path) / file_name(spec, rank)
    path.write_text(re.sub(r"timestamp=[0-9.]+", "timestamp=0", path.read_text()))
    job = read_traces(str(tmp_path))
    for of_ranks in (False, True):
        assert replay(job, of_ranks=of_ranks).step_s == pytest.approx(made.step_s, rel=0.02)
    assert any("no timestamps" in warning for warning in job.warnings)


def test_a_file_that_ends_before_its_first_backward_is_refused(tmp_path: Path) -> None:
    path = make_job(SPEC).write(tmp_path) / file_name(SPEC, 1)
    lines = path.read_text().splitlines()
    first = next(k for k, line in enumerate(lines) if "backward_step" in line)
    path.write_text("\n".join(lines[:first]) + "\n")
    with pytest.raises(SimError, match=rf"{path.name}:{first}: no backward_step in the trace: expected a complete step"):
        read_traces(str(tmp_path))


@pytest.mark.parametrize("outer", [True, False], ids=["no stamps", "of operations only"])
def test_calls_without_stamps_keep_their_order(outer: bool, tmp_path: Path) -> None:
    folder = make_job(JobSpec(pp=2, dp=2, ep=2, ga=4, moe=True, layers=4, seed=53)).write(tmp_path)
    recorded = [[call.duration_s for call in o.calls] for rank in read_traces(str(folder)).ranks for o in rank.operations]
    for path in folder.iterdir():
        what = r"timestamp=[0-9.]+" if outer else r"timestamp=[0-9.]+(?!,sub)(?![0-9.])"
        path.write_text(re.sub(what, "timestamp=0", path.read_text()))
    job = read_traces(str(folder))
    assert [[call.duration_s for call in o.calls] for rank in job.ranks for o in rank.operations] == recorded


def test_stages_that_the_warm_up_contradicts_are_refused(tmp_path: Path) -> None:
    folder = make_job(JobSpec(pp=4, dp=1, seed=52)).write(tmp_path, ranks=[0])
    with pytest.raises(SimError, match=r":1: pp: found 2, but 4 forwards before the first backward on stage 0, expected 4"):
        read_traces(str(folder), Facts(pp=2))


def test_a_replay_is_held_against_what_was_recorded(tmp_path: Path) -> None:
    """One rank of the last stage ends before the first stage does: its own end is compared, the step is that of all."""
    made = make_job(replace(SPEC, moe=True, tied=False))
    found = replay(read_traces(str(made.write(tmp_path, ranks=[1]))))
    assert found.compared_s < found.step_s
    assert found.error == pytest.approx(found.compared_s / found.recorded_s - 1)
    assert abs(found.error) < 0.02


def test_every_rank_s_own_times_where_all_ranks_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(make_job(SPEC).write(tmp_path))
    replay_command(trace=folder)
    assert "each rank with its own times" in capsys.readouterr().out


def test_the_start_is_the_recorded_plan(tmp_path: Path) -> None:
    made = make_job(SPEC)
    workload, _ = read_workload(str(made.write(tmp_path)))
    table = hardware_table([read_hardware("A800-80G-SXM")], None)
    start = start_of(workload, table)
    assert start is not None
    assert start.recorded_s == pytest.approx(made.step_s, rel=1e-4)
    assert start.error == pytest.approx(0.0, abs=0.01)
    small = hardware_table([read_hardware("A800-80G-SXM").with_values({"memory": "1 GB"})], None)
    full = start_of(replace(workload, gradients_known=(True, True)), small)
    assert full is not None
    assert full.reason == "" or np.isnan(full.simulated_s)


def test_a_step_that_is_cut_is_not_the_median(tmp_path: Path) -> None:
    """Recording began in the middle of a step: the complete one is taken, though the cut one is the shorter."""
    made = make_job(SPEC)
    for rank in range(SPEC.world):
        lines = (made.rank_text(rank) + made.rank_text(rank, start_ms=1000 * made.step_s + 5)).splitlines()
        (tmp_path / file_name(SPEC, rank)).write_text("\n".join(lines[9:]) + "\n", encoding="utf-8")
    job = read_traces(str(tmp_path))
    assert replay(job).step_s == pytest.approx(made.step_s, rel=1e-2)
    assert any("step 2 is taken, the median of 1 complete ones" in warning for warning in job.warnings)


def test_timestamps_in_another_unit_are_refused(tmp_path: Path) -> None:
    """Milliseconds of durations beside microseconds of stamps would make a step a thousand times as long."""
    text = re.sub(r"timestamp=([0-9.]+)", lambda m: f"timestamp={1000 * float(m[1]):.1f}", make_job(SPEC).rank_text(0))
    path = tmp_path / file_name(SPEC, 0)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SimError, match=r":1: timestamps: found operations fill 0\.1% of the time .*, expected milliseconds"):
        read_traces(str(path))


def twice(path: Path, name: str) -> None:
    """Write the last line of an operation twice."""
    lines = path.read_text().splitlines()
    at = [k for k, line in enumerate(lines) if f":{name}(" in line][-1]
    path.write_text("\n".join([*lines[: at + 1], *lines[at:]]) + "\n")


@pytest.mark.parametrize("name", ["forward_step", "send_forward", "backward_step", "dp_allreduce", "optimizer_step"])
def test_an_operation_that_is_recorded_twice_counts_once(name: str, tmp_path: Path) -> None:
    folder = make_job(replace(SPEC, dp=2)).write(tmp_path)
    step_s = replay(read_traces(str(folder))).step_s
    twice(folder / file_name(replace(SPEC, dp=2), 0), name)
    job = read_traces(str(folder))
    assert replay(job).step_s == step_s
    assert re.search(rf"rank0.*\.txt:\d+: {name} is recorded on line \d+, too: skipped", job.warnings[0])


def test_files_of_equal_jobs_are_told_apart_by_their_clocks(tmp_path: Path) -> None:
    """One file of a job that ran 94 s later; by its name, and where it has none, by the clock of its host."""
    spec = replace(SPEC, pp=4, hosts=1)
    folder = make_job(spec).write(tmp_path / "clock")
    assert not read_traces(str(folder)).warnings
    (folder / file_name(spec, 2)).write_text(make_job(spec).rank_text(2, start_ms=93_700.0))
    (warning,) = read_traces(str(folder)).warnings
    assert re.search(r"rank2_.*:1: begins 93.7 s from .*rank1_.*, but ranks 1 and 3 run at the same time", warning)
    folder = make_job(spec).write(tmp_path / "name")
    old = folder / file_name(spec, 3)
    old.rename(folder / re.sub(r"_2025\d+", "_20250818090400", old.name))
    (warning,) = read_traces(str(folder)).warnings
    assert re.search(r"rank3_20250818090400.*:1: named 0:01:37 .* later than .*rank0_20250818090223", warning)


def test_the_start_of_some_stages_is_held_against_their_own_end(tmp_path: Path) -> None:
    """The last stage ends before the first does: the whole step is longer than its file, which is no error."""
    made = make_job(replace(SPEC, moe=True, tied=False))
    workload, _ = read_workload(str(made.write(tmp_path, ranks=[1])))
    start = start_of(workload, hardware_table([read_hardware("A800-80G-SXM")], None))
    assert start is not None
    assert start.simulated_s > 1.02 * start.recorded_s
    assert abs(start.error) < 0.01


def test_no_more_stages_than_are_played_in_seconds() -> None:
    """All stages of a trace meet: 65,535, which a user stated of one rank, took half an hour."""
    with pytest.raises(SimError, match=r"workload\.pp: found '65535', expected a whole number from 1 to 4,096"):
        Facts(pp=65_535)
