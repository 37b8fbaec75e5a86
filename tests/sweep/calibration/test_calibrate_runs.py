"""`sweep calibrate runs`: numbers that made the steps are found again, and those that the steps cannot tell are refused."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sim_core import (
    Floats,
    Hardware,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sweep.calibration.fitting import Problem, fit, left_out
from sweep.calibration.report import hardware_of_fit
from sweep.calibration.steps import NOISE, OF_DEVICE, PLAN, SURE, fit_runs
from sweep.runs.simulation import seconds_on
from sweep.runs.table import published_rows
from tests.offline.free_text import convert
from tests.sweep.commands import sweep

MODEL = {
    "set": "mine", "framework": "Megatron-Core", "hw": "H100-80GB-SXM", "model": "llama2-7b", "layers": "32", "hidden": "4096",
    "heads": "32", "kv_heads": "32", "ffn": "11008", "vocab": "32000", "seq": "4096", "dtype": "bf16", "sp": "1",
    "recompute": "none", "quality": "ok",
}  # fmt: skip
PLANS = (
    (8, 1, 1, 1, 16),
    (8, 2, 1, 1, 32),
    (8, 2, 2, 1, 32),
    (16, 8, 1, 1, 16),
    (16, 1, 1, 1, 16),
    (32, 2, 2, 1, 64),
    (64, 1, 1, 1, 64),
)
"""gpus, tp, pp, mbs, gbs"""
TRUTH = {"sustained_scale": 1.13 * 1.15, "nic_efficiency": 0.97 * 0.5, "step_overhead": "50 ms"}


def steps_of(hardware: Hardware, chosen: Sequence[tuple[int, ...]]) -> list[float]:
    """Milliseconds of each plan, by sim_core alone."""
    workload = workload_from_model(read_model("llama2-7b"), read_stack("megatron-core"), sequence_parallel=True)
    table, found = hardware_table([hardware.with_values({"memory": "1 PB"})], None), []
    for gpus, tp, pp, mbs, gbs in chosen:
        one = plans(
            workload, all_gpus=gpus, tp=tp, pp=pp, micro_batch=mbs, global_batch=gbs, overlap_pp=False,
            overlap_grad=False, overlap_param=False, overlap_tp=False, layer_split="balanced",
        )  # fmt: skip
        found.append(float(simulate(workload, table, one).named()["step_time_s"][0]) * 1e3)
    return found


def table(path: Path, chosen: Sequence[tuple[int, ...]], times: Sequence[float], **changes: str) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, [*MODEL, "gpus", "gpus_per_node", "tp", "pp", "mbs", "gbs", "iter_ms"])
        out.writeheader()
        for (gpus, tp, pp, mbs, gbs), time in zip(chosen, times, strict=True):
            plan = {"gpus": gpus, "gpus_per_node": 8, "tp": tp, "pp": pp, "mbs": mbs, "gbs": gbs, "iter_ms": time}
            out.writerow({**MODEL, **plan, **changes})
    return convert(path)


@pytest.fixture(scope="module")
def true_ms() -> list[float]:
    return steps_of(read_hardware("H100-SXM").with_values(TRUTH), PLANS)


def test_the_numbers_that_made_the_steps_are_found_again(true_ms: list[float], tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", PLANS, true_ms)
    told = sweep("calibrate", "runs", path, "-o", tmp_path / "mine.yaml")
    assert told.returncode == 0, told.stderr
    mine = read_hardware(str(tmp_path / "mine.yaml"))
    assert mine.value("sustained_scale") == pytest.approx(1.13 * 1.15, rel=0.01)
    assert mine.value("nic_efficiency") == pytest.approx(0.97 * 0.5, rel=0.04)
    assert mine.value("step_overhead") == pytest.approx(0.05, rel=0.04)
    assert mine.name == "H100-SXM calibrated"
    assert "fitted to 7 runs of" in mine.kernels.sustained_scale.source
    assert "mean error of 7 runs: " in told.stdout
    assert " % before, 0." in told.stdout
    again = steps_of(mine, PLANS)
    assert again == pytest.approx(true_ms, rel=0.01), "the file, used"


def test_runs_on_one_node_tell_nothing_of_the_network(true_ms: list[float], tmp_path: Path) -> None:
    inside = [(8, 1, 1, 1, 16), (8, 2, 1, 1, 32), (8, 2, 2, 1, 32), (8, 4, 1, 1, 64), (8, 1, 2, 1, 8)]
    times = steps_of(read_hardware("H100-SXM").with_values({"sustained_scale": 1.13 * 1.15}), inside)
    path = table(tmp_path / "runs.csv", inside, times)
    told = sweep("calibrate", "runs", path)
    assert "network: left as it is (nic_efficiency 0.97): no step of these runs depends on it" in told.stderr
    assert "compute: 1.150, +- " in told.stderr
    assert "fixed: left as it is (step_overhead 0)" in told.stderr


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (2, "found 2 runs of 2 plans to fit, expected at least 3 plans"),
        (1, "found 1 run of 1 plan to fit, expected at least 3 plans"),
    ],
)
def test_too_few_runs_are_refused(rows: int, told: str, true_ms: list[float], tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", PLANS[:rows], true_ms[:rows])
    done = sweep("calibrate", "runs", path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {path}: {told}\n")


def test_one_plan_measured_often_tells_nothing(true_ms: list[float], tmp_path: Path) -> None:
    path = table(tmp_path / "runs.csv", [PLANS[0]] * 5, [true_ms[0] * x for x in (1, 1.01, 0.99, 1.005, 0.995)])
    done = sweep("calibrate", "runs", path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "found 5 runs of 1 plan to fit, expected at least 3 plans" in done.stderr


def test_runs_of_two_networks_are_refused(true_ms: list[float], tmp_path: Path) -> None:
    one, other = (table(tmp_path / name, PLANS, true_ms) for name in ("a.csv", "b.csv"))
    lines = other.read_text().replace("H100-SXM", "H200-SXM").splitlines()[1:]
    one.write_text(one.read_text() + "\n".join(lines) + "\n", encoding="utf-8")
    done = sweep("calibrate", "runs", one)
    assert done.returncode == 1
    assert f"{one}:9: other hardware or network than the rows before" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 1])
def test_half_of_the_published_runs_of_a_stack_predict_the_other_half(first: int) -> None:
    """tr11's runs take 1.2 x the physics, and nobody knows why: half of the plans tell how much, of the others, too."""
    rows = [row for row in published_rows() if row.text("set") == "bigscience-tr11-prequel" and row.quality == "ok"]
    plans_of = [tuple(row.text(key) for key in PLAN) for row in rows]
    number = {plan: i for i, plan in enumerate(dict.fromkeys(plans_of))}
    told, others = (
        [row for row, plan in zip(rows, plans_of, strict=True) if number[plan] % 2 == half] for half in (first, 1 - first)
    )
    done = fit_runs(told, None, "half")
    assert list(done.facts) == ["sustained_scale"]
    timed = [row for row in others if row.number("step_time_s") is not None]
    for hardware, least, most in ((timed[0].hardware, 11, 20), (hardware_of_fit(done, "half"), 0, 9)):
        measured = [row.number("step_time_s") or 0 for row in timed]
        off = [abs(seconds_on(row, [hardware])[0] / second - 1) * 100 for row, second in zip(timed, measured, strict=True)]
        assert least < np.mean(off) < most


WIDTHS, MOST = np.array(list(OF_DEVICE.values())).T


def made(compute: float, network: float, fixed: float, shares: Floats) -> Problem:
    """Steps of compute, messages and the rest, that are known in closed form; measured with given factors.

    The third number is a part of the median step."""
    work, message, rest = shares.T
    measured = work * compute + message / network + rest + fixed

    def simulate(values: Floats) -> Floats:
        far = values * WIDTHS
        return np.asarray(work * np.exp(far[0]) + message / np.exp(far[1]) + rest + far[2] * np.median(measured), np.float64)

    low, high = np.array([-8.0, -8.0, 0.0]), np.full(3, 8.0)
    return Problem(simulate, measured, low, high, np.ones(len(shares), np.bool_), MOST / WIDTHS, NOISE, SURE)


def shares(rows: int, seed: int = 5) -> Floats:
    random = np.random.default_rng(seed)
    return np.stack([random.uniform(0.5, 8, rows), random.uniform(0.05, 3, rows), random.uniform(0.05, 1, rows)], 1)


def test_noise_widens_the_standard_errors_and_the_truth_stays_within_three() -> None:
    random = np.random.default_rng(3)
    for noise in (0.005, 0.02):
        problem = made(1.2, 0.7, 0.1, shares(24))
        known = np.array([np.log(1.2), np.log(0.7), 0.1 / np.median(problem.measured_s)])
        problem = problem._replace(measured_s=problem.measured_s * np.exp(random.normal(0, noise, 24)))
        found, told, left = fit(problem, [np.zeros(3)])
        assert told[0]
        off = np.abs(found.values * WIDTHS - known)
        assert (off[told] < 3 * (left * WIDTHS)[told] + 0.01).all()


def test_runs_left_out_take_no_part() -> None:
    """A run that was measured wrongly cannot draw its own prediction."""
    problem = made(1.2, 1.0, 0.0, shares(8))
    measured = problem.measured_s.copy()
    measured[3] *= 2
    off = left_out(problem._replace(measured_s=measured), [np.zeros(3)], np.arange(8))
    assert off[3] == pytest.approx(-50, abs=1)


def test_what_grows_together_is_not_told_apart() -> None:
    """Compute and messages are the same part of every step; nothing else changes."""
    alike = np.outer([1.0, 2, 3, 4, 5, 6], [1.0, 0.5, 0.2])
    _, told, _ = fit(made(1.3, 1.0, 0.0, alike), [np.zeros(3)])
    assert told.tolist() == [True, False, False]


def test_steps_that_are_as_predicted_are_left_alone() -> None:
    random = np.random.default_rng(1)
    problem = made(1.0, 1.0, 0.0, shares(12))
    problem = problem._replace(measured_s=problem.measured_s * np.exp(random.normal(0, 0.03, 12)))
    found, told, _ = fit(problem, [np.zeros(3)])
    assert not told.any()
    assert (found.values == 0).all()
