"""What a loop decides, against sums over what may come out, and against plans drawn at random."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from sweep.tuning.deciding import TRY_COST, UNTOLD, Candidates, Known, believe, doubted, score, stops
from sweep.uncertainty.memory import guesses_of
from sweep.uncertainty.process import NOISE, Axes, Runs, condition, noise_of, prior, steady


def candidates(seconds: list[float]) -> Candidates:
    """Plans on a line of doublings that fit easily; no constant is unknown."""
    n, at = len(seconds), np.arange(float(len(seconds)))
    return Candidates(
        plans=np.arange(n), simulated=np.array(seconds), mean=np.log(seconds), draws=np.zeros((2, n)), memory=np.full(n, 1e9),
        part=np.full(n, 0.2), axes=Axes(at[:, None], np.abs(at[:, None] - at)), offset=np.zeros(n),
        memory_error=guesses_of("megatron-core"), moved=np.zeros((1, n)),
    )  # fmt: skip


def known(rows: list[int], seconds: list[float], noise: float = NOISE) -> Known:
    no = np.zeros(len(rows), np.bool_)
    return Known(
        rows=np.array(rows, np.int64), seconds=np.array(seconds), peak=np.full(len(rows), np.nan), out_of_memory=no,
        crashed=no, slow=no, noise=np.full(len(rows), noise), doubt=np.full(len(rows), UNTOLD),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_first_plan_is_that_of_the_cheapest_order(seed: int) -> None:
    """All orders of four plans until one runs: ln of its cost, and the worth of each run that failed before it."""
    random = np.random.default_rng(seed)
    cost, chance = random.normal(0.0, 0.1, 4), random.uniform(0.2, 0.95, 4)

    def expected(order: tuple[int, ...]) -> float:
        total = (1 + len(order)) * TRY_COST  # none runs: as bad in any order
        for plan in reversed(order):
            total = chance[plan] * cost[plan] + (1 - chance[plan]) * (TRY_COST + total)
        return total

    belief = believe(candidates([1.0] * 4), known([], []))._replace(log_cost=cost, runs=chance)
    assert score(belief).argmin() == min(permutations(range(4)), key=expected)[0]


def test_runs_that_come_as_simulated_end_the_loop() -> None:
    """Of 60 plans a tenth of a percent apart none can be far ahead of the rest, once eight ran as simulated."""
    plans = candidates([2.0 * 1.001**k for k in range(60)])
    told = known([0, 10, 20, 30, 40, 50, 59, 5], [float(plans.simulated[k]) for k in (0, 10, 20, 30, 40, 50, 59, 5)])
    assert stops(believe(plans, told), 8, 0.02)
    assert not stops(believe(plans, known([0], [2.0])), 1, 0.02)


def test_before_four_runs_the_range_is_that_of_the_likeliest_size() -> None:
    """No size of errors is ruled out by one run: the largest of them would make any regret likely."""
    plans, one = candidates([2.0] * 60), np.array([0])
    run = Runs(rows=one, error=np.log(2.0) - plans.mean[one], least=one > 0)
    assert condition(*prior(plans.axes, plans.draws), run).weights.max() < 0.5
    belief = believe(plans, known([0], [2.0]))
    assert belief.regret is not None
    assert belief.regret.p90 < 0.5
    wild = believe(candidates([2.0] * 60), known([0], [8.0])).regret
    assert wild is not None
    assert wild.p90 > belief.regret.p90


def test_wins_are_shares_of_the_draws_in_which_some_plan_runs() -> None:
    """Of two alike each wins half; one twice as slow never does; one that cannot fit leaves all to the others."""
    alike = believe(candidates([2.0, 2.0]), known([], [])).wins
    assert alike == pytest.approx([0.5, 0.5], abs=0.06)
    assert alike.sum() == 1
    assert believe(candidates([2.0, 4.0]), known([], [])).wins == pytest.approx([1, 0], abs=0.03)
    full = candidates([1.0, 2.0])._replace(part=np.array([3.0, 0.2]))
    assert believe(full, known([], [])).wins[0] < 0.05
    measured = believe(candidates([2.0, 2.02]), known([0, 1], [2.2, 2.0])).wins
    assert measured == pytest.approx([0, 1], abs=0.01)


def test_noise_is_what_repeats_tell() -> None:
    """Of a plan measured twice, sigma^2 is half the square of their difference; what is taken before counts as one more."""
    assert noise_of([(2.0,), (3.0,)]) == NOISE
    assert noise_of([(2.0, 2.0), (3.0,)]) == pytest.approx(NOISE / 2**0.5)
    drawn = np.exp(0.05 * np.random.default_rng(0).standard_normal((400, 2)))
    assert noise_of(drawn.tolist()) == pytest.approx(0.05, rel=0.06)


def test_the_best_of_noisy_runs_is_not_as_good_as_it_looks() -> None:
    """Six alike plans, measured with a scatter of 5 %: the least of six is 6 % too low in the mean, so it may well lose."""
    plans = candidates([2.0] * 6)
    seconds = [1.9, 2.0, 2.1, 2.02, 1.98, 2.05]
    quiet, noisy = (believe(plans, known([*range(6)], seconds, noise)) for noise in (NOISE, 0.05))
    assert quiet.least == pytest.approx(np.log(1.9), abs=0.01)
    assert noisy.least is not None
    assert noisy.least > np.log(1.9) + 0.02
    assert noisy.regret is not None
    assert quiet.regret is not None
    assert noisy.regret.mean > 2 * quiet.regret.mean


def test_a_stop_is_doubted_where_noise_that_may_be_decides() -> None:
    close, apart = candidates([2.0, 2.01, 2.02, 2.03]), candidates([2.0, 3.0, 4.0, 5.0])
    for plans, wanted in ((close, True), (apart, False)):
        told = known([*range(4)], plans.simulated.tolist())
        assert stops(believe(plans, told), 4, 0.01)
        assert doubted(plans, told, (), 0.01) is wanted


def test_a_run_that_is_hard_to_believe_is_named_and_hoped_for() -> None:
    """Of four as simulated one took 2.2 times as long: it tells of itself, and is run again if it would be the best."""
    plans = candidates([1.9, 2.0, 2.1, 2.2])
    belief = believe(plans, known([*range(4)], [1.9 * 2.2, 2.0, 2.1, 2.2]))
    assert belief.slower == {0: pytest.approx(2.2, rel=0.02)}
    assert belief.hope == 0
    assert belief.best == 1
    last = believe(plans, known([*range(4)], [1.9, 2.0, 2.1, 2.2 * 2.2]))
    assert [*last.slower] == [3]
    assert last.hope is None, "run again, it would be no better than the best"


def test_a_slow_machine_is_no_noise() -> None:
    assert steady([2.0, 4.4]) == pytest.approx([2.0])
    assert noise_of([(2.0, 4.4)]) == NOISE


def test_before_runs_every_stack_that_may_run_it_is_drawn() -> None:
    """Two stacks alike likely, by one of which the second plan takes half: each plan wins by one of them."""
    moved = np.array([[0.0, 0.0], [0.0, -np.log(3.0)]])
    plans = candidates([2.0, 3.0])._replace(moved=moved, memory_error=guesses_of("megatron-core") * 2)
    guesses = [guess._replace(share=0.5) for guess in plans.memory_error]
    wins = believe(plans._replace(memory_error=tuple(guesses)), known([], [])).wins
    assert wins == pytest.approx([0.5, 0.5], abs=0.08)
