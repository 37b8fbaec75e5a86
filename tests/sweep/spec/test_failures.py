"""Goodput under failures: against published figures, and against a simulation of random failures."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from sim_core import SpecError
from sweep.columns import measures_of
from sweep.spec.failures import LLAMA_3, Failures, best_interval_s, goodput, with_failures
from tests.sweep.commands import sweep
from tests.sweep.conftest import MODEL, SpecWriter
from tests.sweep.spec.test_model_specs import prepared_of, rows_of

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(("between_s", "minutes"), [(24 * HOUR, 117), (6 * HOUR, 57), (15 * MINUTE, 9.1)])
def test_the_best_interval_is_that_of_daly(between_s: float, minutes: float) -> None:
    """J. Daly 2006, figures 3 to 5: 5 minutes to write, and a failure every 24 h, 6 h, 15 min."""
    found = best_interval_s(np.array([5 * MINUTE]), np.array([between_s]))[0]
    assert found / MINUTE == pytest.approx(minutes, rel=0.01)


def simulated(interval_s: float, write_s: float, restart_s: float, between_s: float, intervals: int) -> float:
    """Part of the time that is saved work, by events: a failure throws away all since the last checkpoint."""
    rng = random.Random(7)
    now, failure, done = 0.0, rng.expovariate(1 / between_s), 0
    while done < intervals:
        if now + interval_s + write_s <= failure:
            now, done = now + interval_s + write_s, done + 1
            continue
        now = failure
        failure = now + rng.expovariate(1 / between_s)
        while failure < now + restart_s:  # again while it restarts
            now = failure
            failure = now + rng.expovariate(1 / between_s)
        now += restart_s
    return intervals * interval_s / now


@pytest.mark.parametrize(
    ("interval_s", "write_s", "restart_s", "between_s"),
    [
        (30 * MINUTE, MINUTE, 10 * MINUTE, 3 * HOUR),
        (9 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE),
        (HOUR, 20, 300, 24 * HOUR),
    ],
)
def test_the_goodput_is_that_of_random_failures(interval_s: float, write_s: float, restart_s: float, between_s: float) -> None:
    found = goodput(*(np.array([value]) for value in (interval_s, write_s, restart_s, between_s)))[0]
    assert found == pytest.approx(simulated(interval_s, write_s, restart_s, between_s, 100_000), rel=0.01)


def test_no_other_interval_is_better() -> None:
    write_s, restart_s, between_s = np.array([90.0]), np.array([700.0]), np.array([3 * HOUR])
    best = best_interval_s(write_s, between_s)
    top = goodput(best, write_s, restart_s, between_s)[0]
    others = goodput(np.linspace(0.2, 5, 200) * best, write_s, restart_s, between_s)
    assert top >= others.max() * (1 - 1e-4)


def test_llama_3_trained_for_more_than_90_percent_of_the_time() -> None:
    """405B on 16,384 GPUs: a failure every 3 h (7.8 a day), 5.7 TB at 2 TB/s; published: more than 90 % (section 3.3.4)."""
    assert pytest.approx(419 / 54) == 24 * 16384 * LLAMA_3
    found = with_failures(Failures(), 405e9 * 14, np.array([16384]), np.array([1.0]))
    assert 0.90 < found["goodput"][0] < 0.95
    assert found["effective_tokens_per_s"][0] == found["goodput"][0]


def test_columns_of_failures(write_spec: SpecWriter) -> None:
    """Mixtral has 46.7 G parameters, of which 14 bytes are saved; costs count what is left."""
    path = write_spec(**MODEL, failures={"interval": "600 s"}, budget={"tokens": "1T"})
    ok = [row for row in rows_of(prepared_of(path)) if row["status"] == "ok"]
    assert ok
    between, write = HOUR / (LLAMA_3 * 64), 46.703e9 * 14 / (64 * 2e12 / 16384)
    expected = 600 / (between * math.exp((600 + write) / between) * math.expm1((600 + write) / between))
    for row in ok:
        assert row["checkpoint_interval_s"] == 600
        assert row["goodput"] == pytest.approx(expected, rel=1e-4)
        assert row["effective_tokens_per_s"] == pytest.approx(row["goodput"] * row["tokens_per_s"])
        assert row["training_days"] == pytest.approx(1e12 / row["effective_tokens_per_s"] / 86400)
    (row, *_) = rows_of(prepared_of(path, "failures=null"))
    assert [row[name] for name in measures_of("goodput")] == [None] * 3
    assert prepared_of(path).sweep.identity != prepared_of(path, "failures.restart=900 s").sweep.identity


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["failures.per_gpu_hour=0"], "failures.per_gpu_hour: found '0', expected a number above 0"),
        (["failures.restart=10"], "failures.restart: found '10', expected a number with its unit"),
        (["failures=null"], "objectives: goodput needs failures (failures: {} takes Llama 3's rate)"),
        (["failures.mtbf=1"], "failures.mtbf: unknown key, "),
    ],
)
def test_failures_that_cannot_be_used_are_refused(write_spec: SpecWriter, sets: list[str], message: str) -> None:
    path = write_spec(**MODEL, failures={}, objectives=[{"maximize": "goodput"}])
    with pytest.raises(SpecError) as refused:
        prepared_of(path, *sets)
    assert message in str(refused.value)


def test_one_plan_tells_its_goodput() -> None:
    told = sweep("simulate", "--model", "gpt2", "--set", "failures.restart=600 s")
    assert told.returncode == 0, told.stderr
    assert "goodput 100.0% with failures and a checkpoint every " in told.stdout
    assert "note: failures: 1.97e-05 a GPU-hour (Llama 3's rate)" in told.stdout


def test_the_optimum_is_daly_s_equation_37() -> None:
    """By hand, where its last term tells, with failures as long apart as a checkpoint: sqrt(2) (1 + 1/sqrt(18) + 1/18) - 1."""
    assert best_interval_s(np.array([1000.0]), np.array([1000.0]))[0] == pytest.approx(826.114, rel=1e-6)


def test_a_restart_reads_the_checkpoint() -> None:
    """100 GPUs that fail once in 100 hours each: every hour. 36 TB at 1 GB/s each are written, and read again, in 360 s."""
    given = {"per_gpu_hour": 0.01, "write_bandwidth_per_gpu": "1 GB/s", "restart": "60 s", "interval": "1800 s"}
    found = with_failures(Failures.model_validate(given), 36e12, np.array([100]), np.array([1e6]))
    wall_s = 3600 * math.exp((60 + 360) / 3600) * (math.exp((1800 + 360) / 3600) - 1)
    assert found["goodput"][0] == pytest.approx(1800 / wall_s, rel=1e-12)
