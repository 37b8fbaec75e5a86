"""The replay against jobs whose true step is known (tests/trace_jobs.py), with ranks missing, and on the example traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from sim_core import Facts, Replay, SimError, SpecError, read_traces, replay
from sim_core.workloads.traces.stages import mean_stages
from tests.conftest import EXAMPLES
from tests.trace_jobs import JobSpec, SyntheticJob, file_name, make_job

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
SMALL = EXAMPLES / "workloads" / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt"
DENSE = JobSpec(seed=1)
EXPERTS = JobSpec(dp=4, ep=2, moe=True, tied=False, seed=2)
INTERLEAVED = JobSpec(vpp=2, ga=8, dp=1, seed=3)

GRID = {
    "dense": DENSE,
    "one stage": JobSpec(pp=1, dp=4, seed=4),
    "two stages, two micro-batches": JobSpec(pp=2, ga=2, seed=5),
    "fewer micro-batches than stages": JobSpec(ga=2, seed=6),
    "one micro-batch": JobSpec(ga=1, seed=7),
    "three stages, three replicas": JobSpec(pp=3, dp=3, ga=7, seed=8),
    "tensor parallel": JobSpec(tp=2, seed=9),
    "32 ranks": JobSpec(dp=8, seed=10),
    "untied": JobSpec(tied=False, seed=11),
    "heavy last stage": JobSpec(head_ms=6.0, seed=12),
    "experts": EXPERTS,
    "experts over all replicas": JobSpec(dp=4, ep=4, moe=True, seed=13),
    "experts without pipeline": JobSpec(pp=1, dp=4, ep=2, moe=True, seed=14),
    "experts and tensor parallel": JobSpec(tp=2, dp=4, ep=2, moe=True, ga=6, seed=15),
    "interleaved": INTERLEAVED,
    "interleaved, all in the warm-up": JobSpec(vpp=2, ga=4, seed=16),
    "three chunks on two stages": JobSpec(pp=2, vpp=3, ga=8, seed=17),
    "interleaved experts": JobSpec(vpp=2, ga=8, dp=4, ep=2, moe=True, seed=18),
}


@pytest.fixture(params=list(GRID.values()), ids=list(GRID))
def job(request: pytest.FixtureRequest) -> SyntheticJob:
    made: SyntheticJob = make_job(request.param)
    return made


def replayed(folder: Path, facts: Facts | None = None, *, of_ranks: bool = False) -> Replay:
    return replay(read_traces(str(folder), facts), of_ranks=of_ranks)


def off(of: Replay, truth: SyntheticJob) -> float:
    """Relative error of a predicted step."""
    return of.step_s / truth.step_s - 1


def replica(spec: JobSpec, number: int) -> list[int]:
    return [rank for rank in range(spec.world) if spec.place(rank)[1] == number]


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Jobs of 2 to 32 ranks of every kind."""
    tp, pp, dp = draw(st.sampled_from([1, 2])), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    moe = draw(st.booleans())
    vpp = draw(st.integers(1, 3)) if pp > 1 else 1
    return JobSpec(
        tp=tp,
        pp=pp,
        vpp=vpp,
        dp=dp,
        ep=draw(st.sampled_from([e for e in range(1, dp + 1) if dp % e == 0])) if moe else 1,
        moe=moe,
        ga=pp * draw(st.integers(1, 3)) if vpp > 1 else draw(st.integers(1, 10)),
        tied=draw(st.booleans()),
        head_ms=draw(st.sampled_from([0.0, 1.0, 4.0])),
        hosts=draw(st.sampled_from([1, 2])),
        seed=draw(st.integers(0, 999)),
    )


# --- all ranks ------------------------------------------------------------------------------------------------------


def test_step_of_all_ranks_is_the_true_step(job: SyntheticJob, tmp_path: Path) -> None:
    folder = job.write(tmp_path)
    of_ranks = replayed(folder, of_ranks=True)
    assert of_ranks.recorded_s == pytest.approx(job.step_s, rel=1e-4)
    assert off(of_ranks, job) == pytest.approx(0.0, abs=1e-3)
    assert off(replayed(folder), job) == pytest.approx(0.0, abs=1e-2)
    assert of_ranks.error == pytest.approx(of_ranks.step_s / of_ranks.recorded_s - 1)
    assert replayed(folder).notes == ()


@settings(max_examples=30, deadline=None)
@given(specs())
def test_step_of_any_job_is_the_true_step(spec: JobSpec) -> None:
    made = make_job(spec)
    with TemporaryDirectory() as folder:
        job = read_traces(str(made.write(Path(folder))))
    of_ranks = replay(job, of_ranks=True)
    own_s = 0.02 * spec.optimizer_ms / 1e3  # ranks' own work behind the gradient norm is taken as that of the last to arrive
    assert of_ranks.step_s == pytest.approx(made.step_s, abs=1e-3 * made.step_s + own_s)
    assert off(replay(job), made) == pytest.approx(0.0, abs=1e-2)


def test_no_recorded_wait_is_an_input(job: SyntheticJob, tmp_path: Path) -> None:
    """One rank's waits recorded three times as long: its span grows, the prediction does not follow."""
    folder = job.write(tmp_path / "told")
    waits_ms = [sum(op.wait_ms + sum(part.wait_ms for part in op.parts) for op in ops) for ops in job.programs]
    rank = waits_ms.index(max(waits_ms))
    longer = job.stretched(rank, 2.0)
    assert longer.programs[rank][-1].end_ms == pytest.approx(job.programs[rank][-1].end_ms + 2 * waits_ms[rank])
    stretched = longer.write(tmp_path / "stretched")
    for of_ranks in (True, False):
        before, after = replayed(folder, of_ranks=of_ranks), replayed(stretched, of_ranks=of_ranks)
        assert after.recorded_s == pytest.approx(longer.span_s, rel=1e-4)
        assert after.step_s == pytest.approx(before.step_s, rel=5e-4)


def test_straggler_is_followed_by_the_replay_of_ranks(tmp_path: Path) -> None:
    plain = make_job(DENSE)
    for rank in (2, 7):
        slow = make_job(JobSpec(straggler=rank, straggler_factor=1.3, seed=1))
        assert slow.step_s > 1.03 * plain.step_s
        folder = slow.write(tmp_path / str(rank))
        assert off(replayed(folder, of_ranks=True), slow) == pytest.approx(0.0, abs=1e-3)


def test_ranks_that_start_apart_are_taken_to_start_together(tmp_path: Path) -> None:
    late = make_job(JobSpec(skew_ms=1.0, seed=1))
    of_ranks = replayed(late.write(tmp_path), of_ranks=True)
    assert of_ranks.step_s == pytest.approx(late.step_s, abs=1.1e-3)


def test_events_of_a_rank_follow_each_other_and_waits_lie_inside(tmp_path: Path) -> None:
    made = make_job(EXPERTS)
    of_ranks = replayed(made.write(tmp_path), of_ranks=True)
    assert {event.row for event in of_ranks.events} == set(range(EXPERTS.world))
    for rank in range(EXPERTS.world):
        events = [event for event in of_ranks.events if event.row == rank]
        assert all(a.end_s <= b.start_s + 1e-12 for a, b in pairwise(events))
        assert all(0 <= event.wait_s <= event.end_s - event.start_s + 1e-12 for event in events)
        recorded_ms = sum(op.wait_ms + sum(part.wait_ms for part in op.parts) for op in made.programs[rank])
        assert sum(event.wait_s for event in events) == pytest.approx(recorded_ms / 1e3, rel=0.02, abs=1e-3)


# --- some ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [DENSE, EXPERTS, INTERLEAVED, JobSpec(tp=2, seed=19)], ids=["dense", "moe", "vpp", "tp"])
def test_one_replica_stands_for_all(spec: JobSpec, tmp_path: Path) -> None:
    made = make_job(JobSpec(**{**vars(spec), "dp": max(spec.dp, 2)}))
    kept = replica(made.spec, 0)
    found = replayed(made.write(tmp_path, ranks=kept))
    assert off(found, made) == pytest.approx(0.0, abs=1e-2)
    assert found.notes == (f"{len(kept)} of {made.spec.world} ranks have a trace; others are taken as equal",)
    with pytest.raises(SpecError, match=f"{len(kept)} of {made.spec.world} ranks have a trace"):
        replayed(tmp_path, of_ranks=True)


def test_pipeline_with_a_gap_is_left_out(tmp_path: Path) -> None:
    made = make_job(DENSE)
    found = replayed(made.write(tmp_path, ranks=[r for r in range(8) if r != 3]))
    assert off(found, made) == pytest.approx(0.0, abs=1e-2)
    assert found.notes[1] == "ranks 1, 5, 7 are skipped: other ranks of their pipelines have no trace"


@pytest.mark.parametrize("ga", [1, 2, 8, 16])
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("spec", [DENSE, EXPERTS], ids=["dense", "moe"])
def test_one_rank_tells_the_step_and_what_was_assumed(spec: JobSpec, stage: int, ga: int, tmp_path: Path) -> None:
    made = make_job(JobSpec(**{**vars(spec), "ga": ga}))
    found = replayed(made.write(tmp_path, ranks=[spec.rank(stage, 1, 0)]))
    assert off(found, made) == pytest.approx(0.0, abs=0.04)
    missing = ", ".join(str(other) for other in range(4) if other != stage)
    assert found.notes[0].startswith(f"stages {missing} are not recorded: assumed")


@pytest.mark.parametrize("head_ms", [0.0, 2.0, 5.0])
def test_work_of_the_last_stage_is_read_from_the_waits_of_the_first(head_ms: float, tmp_path: Path) -> None:
    made = make_job(JobSpec(ga=16, head_ms=head_ms, seed=20))
    found = replayed(made.write(tmp_path, ranks=[0]))
    assert off(found, made) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize("stage", [0, 1])
def test_one_micro_batch_tells_the_last_stage_by_how_long_its_gradient_takes_to_come(stage: int, tmp_path: Path) -> None:
    """Messages of 4 ms, of which the wait for the gradient has one for each stage after this one and back, but the first."""
    made = make_job(JobSpec(ga=1, dp=1, head_ms=6.0, p2p_ms=4.0, jitter=0.0, gap_ms=0.0, tied=False, moe=True))
    found = read_traces(str(made.write(tmp_path, ranks=[stage])))
    assert off(replay(found), made) == pytest.approx(0.0, abs=0.01)


def test_stages_are_the_means_of_their_replicas(tmp_path: Path) -> None:
    """Forwards of all replicas, the slow one among them, and what they took in the reduction that ends for all at once."""
    made = make_job(JobSpec(pp=2, dp=2, ga=4, straggler=0, straggler_factor=1.5, seed=61))
    stages = mean_stages(read_traces(str(made.write(tmp_path)))).stages
    for stage, mean in enumerate(stages):
        ranks = [ops for rank, ops in enumerate(made.programs) if made.spec.place(rank)[0] == stage]
        for name in ("forward_step", "dp_allreduce"):
            own_ms = [[op.end_ms - op.start_ms for op in ops if op.rows == (name,)] for ops in ranks]
            assert [op.duration_s for op in mean.named(name)] == pytest.approx(np.mean(own_ms, axis=0) / 1e3, rel=1e-3)


def test_some_ranks_of_an_interleaved_job_are_refused(tmp_path: Path) -> None:
    made = make_job(INTERLEAVED)
    for stage in range(4):
        folder = made.write(tmp_path / str(stage), ranks=[stage])
        with pytest.raises(SpecError, match=rf"an interleaved job needs a rank of each of its .* stages {stage} only"):
            replayed(folder)


@pytest.mark.parametrize(("path", "step_s"), [(MOE, 0.71891), (SMALL, 0.16587)], ids=["experts", "small"])
def test_example_trace_of_one_rank_within_two_percent(path: Path, step_s: float) -> None:
    found = replayed(path)
    assert found.recorded_s == pytest.approx(step_s, abs=1e-5)
    assert found.step_s == pytest.approx(step_s, rel=0.02)
    assert "not recorded: assumed" in found.notes[0]


# --- what the files say, and do not say -----------------------------------------------------------------------------


def test_names_that_say_nothing_leave_the_layout_to_the_operations(job: SyntheticJob, tmp_path: Path) -> None:
    folder = job.write(tmp_path, named=False)
    spec = job.spec
    told = Facts(tp=spec.tp, ep=spec.ep)
    layout = read_traces(str(folder), told).layout
    assert (layout.tp, layout.pp, layout.vpp, layout.dp, layout.ep, layout.ga) == (
        *(spec.tp, spec.pp, spec.vpp, spec.dp, spec.ep, spec.ga),
    )
    assert off(replayed(folder, told, of_ranks=True), job) == pytest.approx(0.0, abs=1e-3)
    found = replayed(folder)
    assert "tp is unknown: taken as 1 (set workload.tp)" in found.notes
    assert any(note.startswith("ep is unknown: taken as dp") for note in found.notes) == spec.moe


def test_one_rank_without_a_telling_name_says_what_it_takes(tmp_path: Path) -> None:
    made = make_job(DENSE)
    found = read_traces(str(made.write(tmp_path, ranks=[0], named=False)))
    assert found.layout.pp == 4
    assert any(note.startswith("pp is unknown: 4 forwards before the first backward") for note in found.layout.notes)
    assert any(note.startswith("the number of ranks is unknown") for note in found.layout.notes)


def test_lines_in_any_order_replay_alike(tmp_path: Path) -> None:
    for spec in (DENSE, INTERLEAVED):
        made = make_job(spec)
        folder = made.write(tmp_path / f"{spec.vpp}")
        before = replayed(folder, of_ranks=True)
        shuffle = random.Random(1)
        for path in folder.iterdir():
            lines = path.read_text().splitlines()
            shuffle.shuffle(lines)
            path.write_text("\n".join(lines) + "\n")
        job = read_traces(str(folder))
        assert replay(job, of_ranks=True).step_s == pytest.approx(before.step_s, rel=1e-9)
        assert sum("not sorted by time: sorted" in warning for warning in job.warnings) == spec.world


def test_cut_last_line_is_warned_of_and_the_rest_replayed(tmp_path: Path) -> None:
    made = make_job(DENSE)
    folder = made.write(tmp_path)
    path = folder / file_name(DENSE, 5)
    path.write_bytes(path.read_bytes()[:-120])
    job = read_traces(str(folder))
    assert any(f"{path}:" in warning and "is truncated" in warning for warning in job.warnings)
    assert off(replay(job, of_ranks=True), made) == pytest.approx(0.0, abs=1e-2)
    assert off(replay(job), made) == pytest.approx(0.0, abs=1e-2)


def twice(made: SyntheticJob, folder: Path) -> str:
    other = make_job(JobSpec(seed=99))
    name = file_name(DENSE, 1).replace("20250818", "20250819")
    (folder / name).write_text(other.rank_text(1))
    return rf"{name}:1: rank 1 is repeated: found also in .*, expected one file per rank"


def two_jobs(made: SyntheticJob, folder: Path) -> str:
    make_job(JobSpec(pp=2)).write(folder)
    return r":1: several jobs: found 2: wd4_.*, wd8_.*, expected the ranks of one \(give a glob\)"


def beyond_pp(made: SyntheticJob, folder: Path) -> str:
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("pp4", "pp2"))
    return r":1: stage_id: found 3, expected less than pp 2"


def wrong_stage(made: SyntheticJob, folder: Path) -> str:
    path = folder / file_name(DENSE, 6)
    path.write_text(path.read_text().replace("stage_id=3", "stage_id=2"))
    return rf"{path.name}:1: rank: found 6, expected a rank of stage 2: 4 to 5"


def odd_world(made: SyntheticJob, folder: Path) -> str:
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace("wd8", "wd9"))
    return r":1: world size: found all_gpus 9, pp 4, expected a multiple of pp"


@pytest.mark.parametrize("damage", [twice, two_jobs, beyond_pp, wrong_stage, odd_world])
def test_contradiction_is_one_line(damage: Callable[[SyntheticJob, Path], str], tmp_path: Path) -> None:
    made = make_job(DENSE)
    expected = damage(made, made.write(tmp_path))
    with pytest.raises(SimError, match=expected) as error:
        replayed(tmp_path)
    assert "\n" not in str(error.value)


def test_same_file_twice_is_skipped(tmp_path: Path) -> None:
    made = make_job(DENSE)
    folder = made.write(tmp_path)
    before = replayed(folder, of_ranks=True).step_s
    again = folder / file_name(DENSE, 1).replace("20250818", "20250819")
    again.write_text(made.rank_text(1))
    job = read_traces(str(folder))
    assert any("skipped" in warning for warning in job.warnings)
    assert replay(job, of_ranks=True).step_s == before
