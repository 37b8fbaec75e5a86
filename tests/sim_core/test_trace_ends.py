"""What the end stages of a traced job do beside their layers: in the forward, and again in the backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim_core import read_workload
from tests.trace_jobs import JobSpec, make_job


@pytest.mark.parametrize("head_ms", [3.0, 8.0])
def test_the_head_takes_its_time_both_ways(head_ms: float, tmp_path: Path) -> None:
    """Beyond a layer's part of the stage, with the loss in the forward; the other stages have nothing besides."""
    spec = JobSpec(pp=4, dp=2, ga=8, layers=8, head_ms=head_ms, loss_ms=0.9, jitter=0.002, seed=4)
    arrays = read_workload(str(make_job(spec).write(tmp_path)))[0].arrays
    of_head = arrays.pieces.compute_s[arrays.pieces.unit == arrays.last_unit].sum(axis=0) * 1e3
    assert of_head[1:].sum() == pytest.approx(head_ms, abs=0.5)
    assert head_ms - 0.5 < of_head[0] < head_ms + 3
