"""The process of errors and that of memory, against the formulas of conditioning written out by hand."""

from __future__ import annotations

from math import erf, exp, log

import numpy as np
import pyarrow as pa
import pytest

from sim_core import Floats
from sweep.conditions import locked_down
from sweep.uncertainty import process
from sweep.uncertainty.belief import UNNAMED, Error, World, quantile, recorded, worlds_of
from sweep.uncertainty.memory import Guesses, Outcomes, chance_before_runs, chance_in_sql, fit, guesses_in, guesses_of
from sweep.uncertainty.process import Axes, Runs, condition, prior, weights_of


def line_of(values: list[float]) -> Axes:
    """Plans that differ in the base-2 logarithm of one size."""
    points = np.array(values, np.float64)
    return Axes(points[:, None], np.abs(points[:, None] - points[None]))


def runs_at(rows: list[int], error: list[float]) -> Runs:
    return Runs(rows=np.array(rows), error=np.array(error), least=np.zeros(len(rows), np.bool_))


def test_the_kernel_by_hand() -> None:
    """Two plans two doublings apart, whose ln step moves by +0.1 and +0.3 in one draw and back in the other."""
    draws = np.array([[0.1, 0.3], [-0.1, -0.3]])
    fixed, sized = prior(line_of([0.0, 2.0]), draws)
    assert fixed == pytest.approx(np.array([[0.01, 0.03], [0.03, 0.09]]))
    slope, near = 0.06**2, 0.12**2
    apart = -slope + near * exp(-2 / 4)  # the plans lie one doubling on either side of their middle
    own = slope + near + 0.03**2
    assert sized == pytest.approx(0.25**2 + np.array([[own, apart], [apart, own]]))


def test_one_run_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one size of errors the mean is that of two joint normal variables."""
    monkeypatch.setattr(process, "SIZES", (1.0,))
    fixed, sized = prior(line_of([0.0, 1.0]), np.zeros((2, 2)))
    posterior = condition(fixed, sized, runs_at([0], [0.4]))
    total = fixed + sized
    gain = total[1, 0] / (total[0, 0] + 0.005**2)
    assert posterior.mean[1] == pytest.approx(gain * 0.4)
    assert posterior.sd[1] == pytest.approx((total[1, 1] - gain * total[0, 1]) ** 0.5)
    assert posterior.sd[1] < total[1, 1] ** 0.5


def test_the_size_of_errors_is_learnt() -> None:
    """Runs that scatter widely around each other raise the size, and with it the width of what was not run."""
    axes = line_of([0.0, 1.0, 2.0, 3.0, 4.0])
    fixed, sized = prior(axes, np.zeros((2, 5)))
    calm = condition(fixed, sized, runs_at([0, 1, 2, 3], [0.01, 0.0, 0.01, 0.0]))
    wild = condition(fixed, sized, runs_at([0, 1, 2, 3], [0.15, -0.15, 0.15, -0.15]))
    sizes = np.array(process.SIZES)
    assert calm.weights @ sizes < 1 < wild.weights @ sizes
    assert wild.sd[4] > 2 * calm.sd[4]


def test_a_run_that_is_much_slower_tells_of_itself_only() -> None:
    axes = line_of([0.0, 1.0, 2.0, 3.0])
    fixed, sized = prior(axes, np.zeros((2, 4)))
    without = condition(fixed, sized, runs_at([0, 1], [0.0, 0.02]))
    beside = condition(fixed, sized, runs_at([0, 1, 2], [0.0, 0.02, 3.0]))
    assert beside.aside.tolist() == [False, False, True]
    assert beside.mean[3] == pytest.approx(without.mean[3])
    assert beside.mean[2] == pytest.approx(3.0)
    faster = condition(fixed, sized, runs_at([0, 1, 2], [0.0, 0.02, -0.3]))
    assert not faster.aside.any()  # a run that is faster is believed


def test_a_stopped_run_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against draws of the two plans in which the stopped one took at least as long; far below the mean it says nothing."""
    monkeypatch.setattr(process, "SIZES", (1.0,))
    fixed, sized = prior(line_of([0.0, 1.0]), np.zeros((2, 2)))
    bound = Runs(rows=np.array([0]), error=np.array([0.3]), least=np.array([True]))
    found = condition(fixed, sized, bound)
    drawn = np.random.default_rng(0).multivariate_normal([0, 0], fixed + sized, 400_000)
    kept = drawn[drawn[:, 0] >= 0.3]
    assert found.mean == pytest.approx(kept.mean(0), abs=0.01)
    assert found.sd == pytest.approx(kept.std(0), rel=0.05)
    low = condition(fixed, sized, Runs(rows=np.array([0]), error=np.array([-2.0]), least=np.array([True])))
    assert low.mean == pytest.approx([0.0, 0.0])
    exact = condition(fixed, sized, runs_at([0], [0.3]))
    assert found.mean[0] > exact.mean[0]
    assert found.sd[1] > exact.sd[1]


def test_a_stopped_run_far_slower_than_the_others_tells_of_itself_only() -> None:
    fixed, sized = prior(line_of([0.0, 1.0, 2.0, 3.0]), np.zeros((2, 4)))
    without = condition(fixed, sized, runs_at([0, 1], [0.0, 0.02]))
    stopped = Runs(rows=np.array([0, 1, 2]), error=np.array([0.0, 0.02, 1.0]), least=np.array([False, False, True]))
    assert condition(fixed, sized, stopped).mean[3] == pytest.approx(without.mean[3])


def test_draws_have_the_mean_and_the_width() -> None:
    fixed, sized = prior(line_of([0.0, 1.0, 5.0]), np.zeros((2, 3)))
    posterior = condition(fixed, sized, runs_at([0], [0.3]))
    drawn = posterior.draw(20_000, np.array([1, 2]))
    assert drawn.mean(0) == pytest.approx(posterior.mean[1:], abs=0.02)
    assert drawn.std(0) == pytest.approx(posterior.sd[1:], rel=0.05)


def outcomes(rows: list[int], peak: list[float], oom: list[bool], crashed: list[bool]) -> Outcomes:
    return Outcomes(
        rows=np.array(rows, np.int64),
        peak=np.array(peak),
        out_of_memory=np.array(oom, np.bool_),
        crashed=np.array(crashed, np.bool_),
    )


def chance(stack: str, *part: float) -> Floats:
    return chance_before_runs(np.array(part), guesses_of(stack, "H100-SXM"))


NONE = outcomes([], [], [], [])


def runs_probability(axes: Axes, part: Floats, told: Outcomes, guesses: Guesses) -> Floats:
    known = fit(axes, part, told, guesses)
    return weights_of(known.log) @ known.runs


def chances(part: Floats, told: Outcomes) -> Floats:
    return runs_probability(line_of(list(range(len(part)))), part, told, guesses_of("own.yaml"))


def test_memory_before_any_run_by_hand() -> None:
    """90 % of the memory needed: how often a normal variable with the stack's mean and width is below ln(0.95 / 0.9)."""
    known = recorded()
    mean, sd = known.pages["nanotron"].memory
    expected = known.usual * 0.5 * (1 + erf((log(0.95 / 0.9) - mean) / sd / 2**0.5))
    assert chance("nanotron", 0.9, np.nan) == pytest.approx([expected, np.nan], nan_ok=True)


@pytest.mark.parametrize("stack", ["megatron-core", "nanotron", "own as megatron-core"])
def test_a_condition_has_the_same_chance(stack: str) -> None:
    parts = np.linspace(0.05, 1.5, 400)
    with locked_down() as connection:
        connection.register("parts", pa.table({"part": parts}))
        found = connection.sql(f"SELECT {chance_in_sql('part', guesses_of(stack))} AS chance FROM parts").to_arrow_table()
    assert found["chance"].to_numpy() == pytest.approx(chance(stack, *parts), abs=2e-4)


def test_a_page_of_a_users_own_is_known_no_better_than_any_other() -> None:
    assert all(chance("own.yaml", 0.9)[0] < chance(page, 0.9)[0] for page in ("megatron-core", "nemo"))
    assert chance("nemo", 0.67)[0] > 0.9, "NVIDIA's own plans lie there and above"
    assert 0.3 < chance("megatron-core", 0.98)[0] < 0.7, "it may run or not"


def test_a_framework_that_nobody_knows_is_doubted() -> None:
    """A name that may stand for another framework lies between its page and those; facts beside it change no evidence."""
    part = 0.4, 0.6, 0.75, 0.85
    names = UNNAMED, "own as megatron-core", "megatron-core", "megatron-core (release)"
    unnamed, other, named, stated = (chance(name, *part) for name in names)
    assert (other < unnamed).all()
    assert (unnamed < named).all()
    assert (named == stated).all()
    assert chance("megatron-core (gradient_bytes)", *part) == pytest.approx(named)
    guesses = guesses_of(UNNAMED, "H100-SXM")
    full = outcomes([0], [np.nan], [False], [False])  # it ran with 85 %, and tells no peak: the page is right
    axes = line_of([0.0, 6.0])
    ran = runs_probability(axes, np.array([0.85, 0.85]), full, guesses)
    assert ran[1] > runs_probability(axes, np.array([0.85, 0.85]), NONE, guesses)[1]
    peak = runs_probability(axes, np.array([0.5, 0.85]), outcomes([0], [0.45], [False], [False]), guesses)
    assert peak[1] < 0.4  # as much more than simulated as nanotron needs


def test_peaks_and_failures_tell_of_memory() -> None:
    part = np.array([0.3, 0.6, 0.8, 0.9])
    before = chances(part, NONE)
    assert (np.diff(before) < 0).all()
    more = chances(part, outcomes([0], [log(1.5)], [False], [False]))  # half more than simulated
    assert more[0] == 1.0
    assert more[2] < 0.5 * before[2]
    less = chances(part, outcomes([0], [log(0.7)], [False], [False]))
    assert less[3] > before[3]
    full = chances(part, outcomes([1], [np.nan], [True], [False]))
    assert full[1] == 0.0
    assert full[2] < 0.5 * before[2]


def test_a_crash_with_little_memory_is_blamed_on_its_neighbours() -> None:
    part = np.array([0.1, 0.1, 0.1, 0.1])
    before, after = chances(part, NONE), chances(part, outcomes([0], [np.nan], [False], [True]))
    assert after[0] == 0.0
    assert after[1] < after[2] < after[3] < before[3]


def test_a_mixture_has_the_quantiles_of_its_draws() -> None:
    """Two stacks, of which the second is slower: against a million draws; alone it is the quantile of one normal variable."""
    chances, means, sds = np.array([[0.7], [0.3]]), np.array([[0.0], [0.8]]), np.array([[0.1], [0.2]])
    generator = np.random.default_rng(0)
    second = generator.random(10**6) < 0.3
    drawn = np.where(second, 0.8, 0.0) + np.where(second, 0.2, 0.1) * generator.standard_normal(10**6)
    for level in (0.05, 0.5, 0.95):
        assert quantile(level, chances, means, sds)[0] == pytest.approx(np.quantile(drawn, level), abs=0.01)
    assert quantile(0.95, np.ones((1, 1)), means[:1], sds[:1])[0] == pytest.approx(0.1645, abs=1e-4)


@pytest.mark.parametrize("device", ["H100-SXM", "B200-SXM", "MI300X", "TPU-v5p"])
def test_the_chances_of_all_that_may_run_are_one(device: str) -> None:
    for stack in (UNNAMED, "megatron-core", "nanotron (host_step 1 ms)", "own as torchtitan", "own.yaml"):
        worlds = worlds_of(stack, device)
        assert sum(world.chance for world in worlds) == pytest.approx(1)
        assert len({(world.stack, world.known) for world in worlds}) == len(worlds)
        if stack:
            assert worlds[0].chance == pytest.approx(1 - recorded().misnamed)
            assert stack.rpartition(" as ")[2].partition(" (")[0] not in [world.stack for world in worlds]
    names = [world.stack for world in worlds_of(UNNAMED, device)]
    assert ("nemo" in names) == device.startswith(("H", "B"))
    assert ("maxtext-tpu" in names) == device.startswith("TPU")
    assert not {"hf-trainer", "fms-fsdp"} & {*names}  # which lack most of the plans


def test_memory_by_another_stack_moves_the_guess() -> None:
    """Simulated with it, by as much as it needs more; without, by what pages usually need more, and less surely."""
    world = World("nanotron", 1.0, Error(0.0, 0.1))
    (simulated,) = guesses_in([world], {"nanotron": np.array([0.3, np.nan])})
    usual, width = recorded().pages["nanotron"].beside_memory
    assert simulated.mean == pytest.approx([0.3, usual])
    assert simulated.sd == pytest.approx([0.1, np.hypot(0.1, width)])
