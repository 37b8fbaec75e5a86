"""Evidence from residuals: the recorded one, and fits to runs whose errors were drawn from a known distribution."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from benchmarks.error_bars import (
    TRAITS,
    Pairs,
    Residuals,
    coverage,
    fit,
    fit_differences,
    fit_moves,
    fit_widths,
    holds,
    pairs_of,
    record,
    spreads,
    weighted,
)
from sim_core import Bools, Floats
from sweep.uncertainty.evidence import DENSE, EXPERTS, Evidence, recorded, t3_cdf, t3_quantile


def drawn(generator: np.random.Generator, sets: int, runs: int, between: float, within: float, experts: int = 0) -> Residuals:
    """Runs of sets whose means differ by `between`, with `within` inside a set; the last `experts` sets are of experts."""
    number = np.repeat(np.arange(sets), runs)
    error = between * generator.standard_normal(sets)[number] + within * generator.standard_normal(sets * runs)
    return Residuals(
        error=error,
        set=np.array([f"set {one:02}" for one in number]),
        experts=number >= sets - experts,
        job=np.arange(sets * runs),
        sizes=np.zeros((sets * runs, 1)),
        choices=np.zeros((sets * runs, 0), np.str_),
        traits=traits(number >= sets - experts),
    )


def traits(experts: Bools) -> Floats:
    """Those of runs that have no other than experts."""
    return np.column_stack([experts, np.zeros((len(experts), len(TRAITS) - 1))])


def test_intervals_hold_the_runs_of_sets_they_never_saw() -> None:
    """Means over ten tables of 12 sets, and 2,000 new sets each: 85 to 95 % held, by leaving out and by truth."""
    generator = np.random.default_rng(1)
    left_out, held = [], []
    for _ in range(10):
        runs = drawn(generator, 12, 30, 0.06, 0.06)
        left_out.append(coverage(runs)["all"])
        found = spreads(runs)[DENSE]
        new = drawn(generator, 2000, 1, 0.06, 0.06).error
        held.append(float(((new >= found.low) & (new <= found.high)).mean() * 100))
    assert 85 <= np.mean(left_out) <= 95
    assert 85 <= np.mean(held) <= 95


def test_a_class_of_few_sets_borrows_from_all() -> None:
    """Of experts there is one set that happens to agree with itself: its interval is wider than its own runs."""
    generator = np.random.default_rng(2)
    runs = drawn(generator, 12, 20, 0.08, 0.05, experts=1)
    found = spreads(runs)
    own = runs.error[runs.experts]
    assert found[EXPERTS].high - found[EXPERTS].low > np.quantile(own, 0.95) - np.quantile(own, 0.05)
    assert (found[EXPERTS].runs, found[EXPERTS].sets, found[DENSE].sets) == (20, 1, 11)


def test_a_large_set_counts_no_more_than_a_small_one() -> None:
    """A set of 1,000 runs that are 20 % too slow, eleven of 10 runs that are right: the middle is right."""
    generator = np.random.default_rng(3)
    error = np.concatenate([0.01 * generator.standard_normal(110), 0.2 + 0.01 * generator.standard_normal(1000)])
    sets = np.array([f"small {k // 10}" for k in range(110)] + ["large"] * 1000)
    n = len(error)
    runs = Residuals(
        error=error, set=sets, experts=np.zeros(n, np.bool_), job=np.arange(n),
        sizes=np.zeros((n, 1)), choices=np.zeros((n, 0), np.str_), traits=np.zeros((n, len(TRAITS))),
    )  # fmt: skip
    assert abs(spreads(runs)[DENSE].middle) < 0.01


def test_differences_are_found_again() -> None:
    """Pairs with a known size: the fit finds it, and intervals of sets left out hold nine of ten pairs."""
    generator = np.random.default_rng(4)
    n = 3000
    doublings = generator.integers(1, 6, n).astype(np.float64)
    squares = doublings * generator.integers(1, 4, n)
    scale = 0.5 * np.sqrt(2 * 0.03**2 + 2 * 0.12**2 * (1 - np.exp(-doublings / 4)) + 0.06**2 * squares)
    sets = np.array([f"set {k % 8}" for k in range(n)])
    pairs = Pairs(scale * generator.standard_t(3, n), doublings, squares, sets, np.zeros(n, np.bool_))
    found = fit_differences(pairs, 2.0)
    assert found[DENSE].size == pytest.approx(0.5, rel=0.08)
    assert found[EXPERTS].size == pytest.approx(2 * found[DENSE].size)
    assert 0.88 <= holds(pairs, 2.0).mean() <= 0.92


def test_a_plan_measured_twice_is_one_plan() -> None:
    runs = Residuals(
        error=np.array([0.1, 0.3, 0.0, 9.0]), set=np.array(["a"] * 4), experts=np.zeros(4, np.bool_),
        job=np.array([0, 0, 0, 1]),
        sizes=np.log2([[2, 1], [2, 1], [8, 2], [1, 1]]), choices=np.array([["x"], ["x"], ["y"], ["x"]]),
        traits=np.zeros((4, len(TRAITS))),
    )  # fmt: skip
    pairs = pairs_of(runs)
    assert abs(pairs.error.item()) == pytest.approx(0.2)
    assert pairs.doublings.item() == 4  # tp 2 to 8, pp 1 to 2, one choice
    assert pairs.squares.item() == 6


def test_recorded_evidence_reads_back(tmp_path: Path) -> None:
    found = recorded()
    assert 85 <= found.coverage["all"] <= 95
    assert len(found.coverage) > 10
    generator = np.random.default_rng(5)
    again = fit(drawn(generator, 6, 5, 0.05, 0.05, experts=2))
    path = tmp_path / "evidence.json"
    record(path, asdict(again))
    read: Evidence = recorded(path)
    assert read.spreads[DENSE].low == pytest.approx(again.spreads[DENSE].low, rel=1e-3)
    assert read.coverage["all"] == pytest.approx(again.coverage["all"], rel=1e-3)


def test_quantiles() -> None:
    assert t3_cdf(np.array([0.0, 1.6377443536962102, 2.3533634348018264])) == pytest.approx([0.5, 0.9, 0.95])  # tables of t
    assert t3_quantile(0.9) == pytest.approx(1.6377443536962102)
    equal = weighted(np.array([3.0, 1.0, 2.0]), np.ones(3), np.array([0.0, 0.5, 1.0]))
    assert equal == pytest.approx([1.0, 2.0, 3.0])
    assert weighted(np.array([1.0, 2.0]), np.array([1.0, 3.0]), np.array([0.4]))[0] > 1.5


def test_bounds_of_moves_hold_as_many_as_they_say() -> None:
    """Against normal errors of a known spread; a job of many moves counts as one of few."""
    chance = np.random.default_rng(3)
    errors = {f"job{k}": chance.normal(0.01, 0.03, 4000 if k else 40).tolist() for k in range(10)}
    found = fit_moves(errors)
    assert (found.low, found.middle, found.high) == pytest.approx((0.01 - 1.645 * 0.03, 0.01, 0.01 + 1.645 * 0.03), abs=0.003)
    assert found.inside == pytest.approx(90, abs=1)
    assert found.left_out == pytest.approx(90, abs=2)
    assert found.mean == pytest.approx(0.0253, abs=0.001)
    assert fit_moves({"low": [-0.1] * 9, "high": [0.1]}).left_out == 0.0


def test_what_widens_an_interval_is_found_again() -> None:
    """Errors 1.5 times as large with experts and twice with the last trait, in 80 sets: these factors, nine of ten held."""
    generator = np.random.default_rng(8)
    number = np.repeat(np.arange(80), 20)
    experts, last = number % 2 == 0, generator.random(len(number)) < 0.5
    known = traits(experts)
    known[:, -1] = last
    size = 0.05 * np.where(experts, 1.5, 1) * np.where(last, 2, 1)
    runs = drawn(generator, 80, 20, 0, 0)
    runs = runs._replace(error=size * generator.standard_normal(len(number)), experts=experts, traits=known)
    widths = fit_widths(runs)
    assert np.exp(widths.by_trait[0]) == pytest.approx(1.5, rel=0.2)
    assert np.exp(widths.by_trait[-1]) == pytest.approx(2, rel=0.2)
    assert (np.exp(widths.by_trait) >= 1).all()
    held = coverage(runs)
    assert 87 <= held[DENSE] <= 93
    assert 87 <= held[EXPERTS] <= 93
