"""What a traced job tells of its experts: bytes of weights that a layer reads and writes, loads of more ranks and of fewer."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sim_core import Workload, read_workload
from tests.trace_jobs import JobSpec, make_job

JOB = JobSpec(pp=2, dp=8, ep=4, ga=2, moe=True, tied=False, layers=4, popularity=(6.0, 1.0, 2.0, 1.0, 1.5, 0.5, 2.0, 2.0))
GRADIENTS = 4 * 290_013_184
"""fp32 gradients of all experts of a model on one rank that the jobs of tests/trace_jobs.py reduce."""


def read(spec: JobSpec, folder: Path) -> Workload:
    return read_workload(str(make_job(spec).write(folder)))[0]


@pytest.mark.parametrize(("pp", "vpp", "layers"), [(2, 1, 4), (2, 1, 8), (4, 1, 8), (2, 2, 8)])
def test_a_layer_reads_its_weights_and_adds_to_its_gradients(pp: int, vpp: int, layers: int, tmp_path: Path) -> None:
    """2 bytes of each of the layer's parameters forward; backward these, and 4 of gradients read and 4 written."""
    workload = read(replace(JOB, pp=pp, vpp=vpp, layers=layers), tmp_path)
    parameters = GRADIENTS / pp / (layers / pp)
    assert workload.expert_weights == pytest.approx((2 * parameters, (2 + 4 + 4) * parameters))


ONE_HOT = (15 / 7, 15 / 7, *(1.0,) * 30)
"""One of 16 ranks gets 2 x the mean: more than popularities with such a spread give the fullest of 32."""


@pytest.mark.parametrize(("ep", "popularity"), [(4, JOB.popularity), (4, (9.0, 9.0, *(1.0,) * 6)), (16, ONE_HOT)])
def test_more_ranks_never_have_a_fullest_one_with_less(ep: int, popularity: tuple[float, ...], tmp_path: Path) -> None:
    """Tokens of the fullest rank over the mean: of twice as many ranks at least as much; of fewer those that they merge."""
    arrays = read(replace(JOB, pp=1, dp=max(ep, 8), ep=ep, popularity=popularity), tmp_path).arrays
    every = [ranks for ranks in (2, 4, 8, 16, 32) if ranks <= len(popularity)]
    loads = {ranks: arrays.expert_load[ranks] * arrays.recorded_load for ranks in every}
    assert all(loads[fewer] <= loads[more] * (1 + 1e-9) for fewer, more in pairwise(every)), loads
    for ranks in (each for each in every if each <= ep):
        held = len(popularity) // ranks
        fullest = max(sum(popularity[k * held : (k + 1) * held]) for k in range(ranks))
        assert loads[ranks] == pytest.approx(fullest * ranks / sum(popularity), rel=1e-3)
