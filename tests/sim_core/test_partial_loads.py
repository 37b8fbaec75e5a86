"""The load of experts from ranks that are not a whole group: what one rank waited tells how full the fullest one is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim_core import HardwareTable, Workload, hardware_table, plans, read_hardware, read_workload, simulate
from sim_core.workloads.traces.popularity import Waited, likely
from tests.trace_jobs import JobSpec, make_job

SKEWED = (6.0, 1.0, 2.0, 1.0, 1.5, 0.5, 2.0, 2.0)
JOB = JobSpec(
    pp=2,
    dp=8,
    ep=4,
    ga=4,
    moe=True,
    tied=False,
    layers=4,
    popularity=SKEWED,
    forward_ms=6.0,
    backward_ms=6.0,
    expert_ms=4.0,
    expert_backward=2.0,
    seed=41,
)
"""The ranks of a group get 1.75, 0.75, 0.5 and 1 x the mean of the tokens, merged in pairs 1.25 x at most."""


@pytest.fixture(scope="module")
def hardware() -> HardwareTable:
    return hardware_table([read_hardware("A800-80G-SXM")], None)


def of_ranks(spec: JobSpec, folder: Path, ranks: list[int]) -> Workload:
    return read_workload(str(make_job(spec).write(folder, ranks=ranks)))[0]


@pytest.mark.parametrize("place", range(4))
def test_any_rank_tells_the_fullest(place: int, tmp_path: Path) -> None:
    whole = read_workload(str(make_job(JOB).write(tmp_path / "all")))[0]
    alone = of_ranks(JOB, tmp_path / "one", [place])
    assert alone.arrays.recorded_load == pytest.approx(1.75, rel=0.12)
    row = whole.names.index("experts")
    found, expected = (each.arrays.pieces.compute_s[row].sum() for each in (alone, whole))
    assert found == pytest.approx(expected, rel=0.12)
    note = next(note for note in alone.notes if note.startswith("expert load"))
    assert "no group of ep 4 has the traces of all its ranks" in note
    assert ("it is recorded itself" in note) == (place == 0)


def test_the_other_of_two_ranks_is_known(tmp_path: Path) -> None:
    """At ep 2 one rank got what the other did not."""
    for place in range(2):
        alone = of_ranks(replace(JOB, ep=2), tmp_path / f"{place}", [place])
        assert alone.arrays.recorded_load == pytest.approx(1.25, rel=1e-3)


@pytest.mark.parametrize("ranks", [[0, 1], [1, 2, 3]], ids=["one of them full", "all but the fullest"])
def test_more_ranks_of_a_group_tell_more(ranks: list[int], tmp_path: Path) -> None:
    """The fullest of them is known where it is one of them, and by the others' tokens where it is the only one missing."""
    alone = of_ranks(JOB, tmp_path, ranks)
    assert alone.arrays.recorded_load == pytest.approx(1.75, rel=0.05)


def test_moves_from_single_ranks(hardware: HardwareTable, tmp_path: Path) -> None:
    """Against jobs run at ep 2 by the synthetic engine, where experts take as long to reduce and to update at any ep."""
    errors = []
    for seed in range(3):
        popular = tuple(np.random.default_rng(seed).permutation(SKEWED).tolist())
        spec = replace(JOB, popularity=popular)
        truth_s = make_job(replace(spec, ep=2)).step_s
        for place in range(4):
            workload = replace(of_ranks(spec, tmp_path / f"{seed}-{place}", [8 + place]), expert_weights=(0.0, 0.0))
            found = simulate(workload, hardware, plans(workload, ep=[4, 2])).named()
            once_s = found["dp_total_s"] + found["optimizer_s"]
            errors.append((found["step_time_s"][1] - once_s[1] + once_s[0]) / truth_s - 1)
    assert np.mean(np.abs(errors)) < 0.05


def test_bounds_hold_nine_in_ten() -> None:
    """Popularities drawn at random, one rank's tokens and waits: the loads of the others lie within the bounds."""
    chance = np.random.default_rng(1)
    inside = []
    for _ in range(60):
        popular = chance.dirichlet(np.full(16, np.exp(chance.uniform(np.log(0.3), np.log(100.0)))))
        tokens = popular.reshape(8, 2).sum(axis=1) * 8
        own, pace_s = tokens[0], 1e-3
        fixed_s = 0.3e-3 * np.exp(0.25 + 0.5 * chance.standard_normal())
        seen = Waited(
            tokens={0: own},
            seconds=(fixed_s + pace_s * own, 2 * pace_s * own + fixed_s),
            wait_s=(pace_s * (tokens.max() - own), 2 * pace_s * (tokens.max() - own)),
            fixed_s=0.3e-3,
            pace=2.0,
            full=bool(own == tokens.max()),
        )
        found = likely(seen, 8, 16)
        for ep, of_ranks in ((4, tokens.reshape(4, 2).mean(axis=1)), (8, tokens), (16, popular * 16)):
            inside.append(found.low[ep] * 0.99 <= of_ranks.max() <= found.high[ep] * 1.01)
    assert 0.84 <= np.mean(inside) <= 0.97


def test_more_ranks_than_recorded_experts_are_spread_further(hardware: HardwareTable, tmp_path: Path) -> None:
    """Against popularities drawn at random: what is 4 ranks' load is that of 8, 16 or 24 where experts are as many."""
    total, chance = 5.0, np.random.default_rng(2)
    loads = {ep: chance.dirichlet(np.full(ep, total / ep), 60_000).max(axis=1).mean() * ep for ep in (4, 8, 16, 24)}
    job = replace(JOB, popularity=SKEWED[:4])
    workload, _ = read_workload(str(make_job(job).write(tmp_path)))
    assert len(workload.arrays.expert_load) == 5
    workload = replace(workload, arrays=workload.arrays._replace(recorded_load=float(loads[4])))
    for ep in (8, 16, 24):
        sizes = {"ep": ep, "experts": ep, "all_gpus": 2 * ep}
        found, known = (
            simulate(workload, hardware, plans(workload, **sizes, expert_imbalance=load)).named()["step_time_s"][0]
            for load in ("recorded", float(loads[ep]))
        )
        assert found == pytest.approx(known, rel=0.02)


def test_an_end_stage_alone_tells_its_embedding(tmp_path: Path) -> None:
    """Dense gradients of a layer with experts are at most attention's: the rest stays on the end stages."""
    hidden, layers = 1024, 4
    spec = replace(JOB, popularity=SKEWED, embedding=200_000_000)
    workload = of_ranks(spec, tmp_path, [0])
    size = 290_013_184 // spec.pp + spec.embedding
    attention = 4 * hidden**2 * layers / spec.pp
    assert workload.arrays.shares.ends == pytest.approx(1 - attention / size)
    assert workload.layer is not None
    assert workload.layer.parameters == pytest.approx(4 * hidden**2)
