"""How stable the pick is: draws against simulations of the same inputs, shares of wins, options."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sim_core import SpecError
from sweep.answers.stability import SIGMAS, response, sigmas_of, stability, step_s
from sweep.columns import describe_rows
from sweep.evaluation.moved import with_slower
from sweep.evaluation.preparation import prepare
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.ranking.ranking import rank
from sweep.reopening import Reopened, reopened
from sweep.results.store import Store
from sweep.spec.spec import load_spec
from tests.sweep.commands import sweep

SPEC = """
name: small
model: llama2-7b
workload: {sequence: 4096, stack: megatron-core}
hardware: {preset: H100-SXM, memory: 1 TB}
axes: {tp: [1, 2, 4, 8], pp: [1, 2, 4], micro_batch: [1, 2], "hardware.nic_bandwidth": [400 Gb/s, 100 Gb/s]}
fixed: {all_gpus: 64, global_batch: 128}
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Reopened:
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.yaml").write_text(SPEC, encoding="utf-8")
    store = Store(directory=folder / "result")
    run_sweep(prepare(load_spec(folder / "small.yaml", []), folder), store, InlineExecutor())
    return reopened(folder / "result")


def test_draws_are_what_a_simulation_gives(opened: Reopened) -> None:
    """Several inputs moved at once (compute 10 % slower, NICs at 0.8 of their bandwidth), simulated: the same winner."""
    numbers = rank(opened.folder, top=48, per=[]).rows["plan"].to_numpy()
    prepared = opened.prepared.sweep
    given = (prepared.workload, prepared.hardware, describe_rows(prepared.space, numbers)[1])
    now = step_s(*given)
    factors = [
        {"compute": 1.1, "nic": 1.25},
        {"compute": 0.95, "nic": 1.3},
        {"compute": 1.05, "nvlink": 0.85, "jitter": 2.0},
        {"compute": 0.92, "nvlink": 1.2, "nic": 0.8, "jitter": 0.7},
    ]
    drawn = {name: np.array([np.log(each.get(name, 1.0)) / SIGMAS[name] for each in factors]) for name in SIGMAS}
    found = now * np.exp(response(opened, numbers, SIGMAS, drawn))
    for told, each in zip(found, factors, strict=True):
        moved = given
        for name, times in each.items():
            moved = with_slower(name, times, *moved)
        truth = step_s(*moved)
        assert np.abs(told / truth - 1).max() < 0.03
        assert np.abs(told / truth - 1).mean() < 0.003
        assert told.argmin() == truth.argmin()


def test_slower_is_slower(opened: Reopened) -> None:
    numbers = rank(opened.folder, top=48, per=[]).rows["plan"].to_numpy()
    prepared = opened.prepared.sweep
    given = (prepared.workload, prepared.hardware, describe_rows(prepared.space, numbers)[1])
    for name in SIGMAS:
        change = step_s(*with_slower(name, 1.2, *given)) / step_s(*given)
        assert (change >= 1 - 1e-9).all()
        assert change.max() > 1.0005


def test_shares_of_wins(opened: Reopened) -> None:
    """They add up to one in each group; without draws of constants the errors of single plans remain."""
    groups = stability(opened, per=["nic_bandwidth"], draws=200)
    assert [group.group["nic_bandwidth"] for group in groups] == [12.5e9, 50e9]
    for group in groups:
        assert group.wins.sum() == pytest.approx(1)
        assert group.wins[0] > 0.3
        assert group.beyond == 0
    (few,) = stability(opened, per=[], draws=200, candidates=3, sigmas=dict.fromkeys(SIGMAS, 0.0))
    assert few.wins[0] > 0.3
    assert few.beyond == 1
    assert len(few.rows) == 3
    assert few.behind > 0


def test_the_command(opened: Reopened) -> None:
    told = sweep("rank", opened.folder.given, "--stable", "--per", "nic_bandwidth", "--sigma", "network=0.3", "--top", "2")
    assert told.returncode == 0, told.stderr
    assert "nvlink 0.3, nic 0.3" in told.stdout
    assert "there are no more" in told.stdout
    found = json.loads(sweep("rank", opened.folder.given, "--stable", "--top", "3", "--format", "json").stdout)
    assert len(found) == 3
    assert found[0]["wins"] >= found[1]["wins"] >= found[2]["wins"]
    wrong = sweep("rank", opened.folder.given, "--stable", "--by", "peak_memory")
    assert wrong.returncode == 2
    assert "in proportion to time" in wrong.stderr


def test_sigmas() -> None:
    assert sigmas_of([]) == SIGMAS
    assert sigmas_of(["compute=0.1", "network = 0.2"]) == SIGMAS | {"compute": 0.1, "nvlink": 0.2, "nic": 0.2}
    for wrong in ("compute", "compute=fast", "compute=-1", "compute=9", "comput=0.1", "=1"):
        with pytest.raises(SpecError, match="--sigma"):
            sigmas_of([wrong])
