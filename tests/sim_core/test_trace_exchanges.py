"""Pipeline messages of interleaved jobs: a rank exchanges with both neighbours at once, and records the slower of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import read_traces, replay
from tests.trace_jobs import JobSpec, make_job


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(vpp=2, ga=8, dp=1, seed=5, p2p_ms=6.0, jitter=0.1),
        JobSpec(pp=3, vpp=3, ga=9, dp=1, seed=5, p2p_ms=6.0, jitter=0.5),
    ],
    ids=["two chunks", "three chunks"],
)
def test_an_exchange_with_two_neighbours_does_not_cost_the_slower_one_twice(spec: JobSpec, tmp_path: Path) -> None:
    """Messages of 6 ms, of which every one takes its own time; the shortest recorded ones make the step 1.2 % too long."""
    job = make_job(spec)
    found = replay(read_traces(str(job.write(tmp_path))), of_ranks=True)
    assert found.step_s / job.step_s == pytest.approx(1, abs=4e-3)
