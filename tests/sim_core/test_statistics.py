"""Statistics of traces against jobs whose every wait is known (tests/trace_jobs.py)."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import pytest

from sim_core import JobStatistics, read_traces, statistics
from tests.trace_jobs import JobSpec, Op, SyntheticJob, make_job

COMPUTE = ("get_batch", "forward_step", "loss_func", "backward_step", "optimizer_step")
ROUNDED_S = 2e-4
"""Traces hold hundredths of a millisecond; this is more than they add up to over a rank."""

GRID = {
    "dense": JobSpec(pp=2, ga=4, seed=5),
    "experts": JobSpec(dp=4, ep=2, moe=True, tied=False, ga=4, seed=2),
    "tensor parallel": JobSpec(tp=2, pp=2, ga=4, seed=9),
    "interleaved": JobSpec(vpp=2, dp=1, seed=3),
    "one stage": JobSpec(pp=1, dp=3, ga=2, seed=4),
}


def told(job: SyntheticJob, folder: Path) -> JobStatistics:
    return statistics(read_traces(str(job.write(folder / "ranks"))))


def waited_s(op: Op) -> float:
    return (op.wait_ms + sum(part.wait_ms for part in op.parts)) / 1e3


def computed_s(op: Op) -> float:
    """Seconds of an operation that are neither waiting nor in a call."""
    if op.rows[0] not in COMPUTE:
        return 0.0
    return (op.end_ms - op.start_ms - op.wait_ms - sum(part.end_ms - part.start_ms for part in op.parts)) / 1e3


@pytest.mark.parametrize("name", GRID)
def test_shares_are_the_true_seconds_and_add_up_to_the_span(name: str, tmp_path: Path) -> None:
    job = make_job(GRID[name])
    found = told(job, tmp_path)
    assert [shares.stage for shares in found.shares] == list(range(job.spec.pp))
    for shares in found.shares:
        ranks = [ops for rank, ops in enumerate(job.programs) if job.spec.place(rank)[0] == shares.stage]
        assert shares.ranks == len(ranks)
        span_s = fmean(ops[-1].end_ms - ops[0].start_ms for ops in ranks) / 1e3
        gap_s = fmean(sum(b.start_ms - a.end_ms for a, b in pairwise(ops)) for ops in ranks) / 1e3
        wait_s = fmean(sum(map(waited_s, ops)) for ops in ranks)
        compute_s = fmean(sum(map(computed_s, ops)) for ops in ranks)
        assert shares.wait_s == pytest.approx(wait_s, abs=ROUNDED_S)
        assert shares.compute_s == pytest.approx(compute_s, abs=ROUNDED_S)
        assert shares.gap_s == pytest.approx(gap_s, abs=ROUNDED_S)
        whole_s = shares.compute_s + shares.communication_s + shares.wait_s + shares.gap_s
        assert whole_s == pytest.approx(span_s, abs=ROUNDED_S)
    assert found.unknown_waits == ()


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_operations_are_summed_up_by_stage(name: str, tmp_path: Path) -> None:
    job = make_job(GRID[name])
    truth: dict[tuple[int, str], list[Op]] = defaultdict(list)
    for rank, ops in enumerate(job.programs):
        for op in ops:
            truth[job.spec.place(rank)[0], op.rows[0]].append(op)
    found = {(row.stage, row.name): row for row in told(job, tmp_path).operations if row.name in COMPUTE}
    assert found.keys() == {key for key in truth if key[1] in COMPUTE}
    assert [key[0] for key in found] == sorted(key[0] for key in found)
    for key, row in found.items():
        seconds = [(op.end_ms - op.start_ms) / 1e3 for op in truth[key]]
        assert row.count == len(seconds)
        expected = (fmean(seconds), min(seconds), max(seconds), sum(seconds))
        assert (row.mean_s, row.least_s, row.most_s) == pytest.approx(expected[:3], abs=2e-5)
        assert (row.total_s, row.wait_s) == pytest.approx((expected[3], sum(map(waited_s, truth[key]))), abs=4 * ROUNDED_S)


def test_a_straggler_is_told_by_its_factor(tmp_path: Path) -> None:
    """Rank 6 is the third of four on the second stage; loss and batch are no work of its device."""
    found = told(make_job(JobSpec(pp=2, dp=4, ga=4, straggler=6, straggler_factor=1.3, jitter=0.001, seed=5)), tmp_path)
    assert [(s.rank, s.stage, s.name) for s in found.stragglers] == [(6, 1, "forward_step"), (6, 1, "backward_step")]
    assert [s.factor for s in found.stragglers] == pytest.approx([1.3, 1.3], rel=0.01)


def test_a_rank_within_the_usual_spread_is_no_straggler(tmp_path: Path) -> None:
    job = make_job(JobSpec(pp=2, dp=4, ga=4, straggler=6, straggler_factor=1.02, jitter=0.001, seed=5))
    assert told(job, tmp_path).stragglers == ()


def test_waits_for_ranks_that_are_not_at_hand_are_unknown(tmp_path: Path) -> None:
    job = make_job(JobSpec(pp=2, ga=4, seed=5))
    found = statistics(read_traces(str(job.write(tmp_path / "ranks", ranks=[0, 2]))))
    assert "dp_allreduce" in found.unknown_waits
    assert [shares.ranks for shares in found.shares] == [1, 1]


@pytest.mark.parametrize(
    ("spec", "schedule"),
    [
        (JobSpec(pp=2, dp=1, ga=4), "1f1b"),
        (JobSpec(pp=2, dp=1, ga=2), "1f1b"),
        (JobSpec(pp=1, dp=2, ga=1), "1f1b"),
        (JobSpec(pp=2, vpp=2, dp=1, ga=4), "interleaved 1f1b"),
    ],
)
def test_the_schedule_is_told_by_the_order_of_the_blocks(spec: JobSpec, schedule: str, tmp_path: Path) -> None:
    assert told(make_job(spec), tmp_path).schedule == schedule
