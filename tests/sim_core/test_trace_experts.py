"""What a traced job tells of its experts: bytes of weights that a layer reads and writes, loads of more ranks and of fewer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sim_core import Job, Workload, read_traces, read_workload
from sim_core.workloads.traces.experts import _COLUMNS, Passes, _passes, _waited, expert_load
from sim_core.workloads.traces.job import Operation
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


TWO_OF_FOUR = (3.0,) * 4 + (1.0,) * 4
"""Two of four ranks get 1.5 x the mean: less than popularities with such a spread give the fullest of four."""


@pytest.mark.parametrize(
    ("ep", "popularity"), [(4, JOB.popularity), (4, (9.0, 9.0, *(1.0,) * 6)), (16, ONE_HOT), (4, TWO_OF_FOUR)]
)
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


def changed(job: Job, of: Callable[[Operation], Operation]) -> Job:
    """The job with other operations on all ranks."""
    return job._replace(ranks=tuple(replace(rank, operations=tuple(map(of, rank.operations))) for rank in job.ranks))


def test_a_pass_that_begins_with_its_all_to_all_counts(tmp_path: Path) -> None:
    """What runs before the first call of an operation says nothing of its experts."""
    job = read_traces(str(make_job(JOB).write(tmp_path)))

    def at_once(operation: Operation) -> Operation:
        before_s = operation.calls[0].begin_s if operation.calls else 0.0
        return operation._replace(calls=tuple(call._replace(begin_s=call.begin_s - before_s) for call in operation.calls))

    same = changed(job, at_once)
    assert all(operation.calls[0].begin_s == 0 for operation in same.named("forward_step"))
    assert len(_passes(job, "forward_step")) == JOB.world * JOB.ga * 2, "two layers with experts in each"
    for name in ("forward_step", "backward_step"):
        found, expected = (_passes(each, name) for each in (same, job))
        assert all(found[column] == pytest.approx(expected[column]) for column in found.dtype.names or ())


def test_all_to_alls_without_sizes_tell_no_load(tmp_path: Path) -> None:
    job = read_traces(str(make_job(JOB).write(tmp_path)))
    nothing = changed(job, lambda operation: operation._replace(calls=()))
    assert job.layout.ep == 4
    assert not expert_load(nothing, 2.0, []).known
    assert expert_load(job, 2.0, []).known


def passes(fixed_s: float, a_token_s: float, tokens: tuple[float, ...]) -> Passes:
    """Passes of the ranks of one group whose experts take so long without tokens, and for the mean of the tokens."""
    found = np.zeros(len(tokens), _COLUMNS)
    found["place"], found["tokens"] = np.arange(len(tokens)), tokens
    found["seconds"] = fixed_s + a_token_s * found["tokens"]
    return found


def test_unlike_tokens_tell_what_a_token_takes_and_what_no_token_takes() -> None:
    """Three of four ranks, 1 ms and 4 ms a mean load forward, 2 ms and 10 ms backward: a line through their points."""
    both = [passes(fixed, slope, (0.5, 1.0, 1.7)) for fixed, slope in ((1e-3, 4e-3), (2e-3, 10e-3))]
    found = _waited(both, both, (0.0, 0.0))
    assert found.fixed_s == pytest.approx(1e-3)
    assert found.pace == pytest.approx(10 / 4)
    assert found.tokens == pytest.approx({0: 0.5, 1: 1.0, 2: 1.7})


def test_launches_and_weights_take_a_fiftieth_of_a_forward_at_least() -> None:
    """Where seconds are in proportion to tokens: of the forward, however long the backward takes."""
    both = [passes(0.0, slope, (0.5, 1.0, 1.5)) for slope in (4e-3, 40e-3)]
    assert _waited(both, both, (0.0, 0.0)).fixed_s == pytest.approx(4e-3 / 50)
