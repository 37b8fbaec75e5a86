"""What the runs of a job say together: seconds and chances of every plan, the next plans, the expected regret, when to stop."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim_core import Bools, Floats, Ints, Values
from sweep.spec.values import FIELDS
from sweep.uncertainty.memory import Guesses, Outcomes, fit
from sweep.uncertainty.process import NOISE, OWN, Axes, Posterior, Runs, condition, mixed, normal, prior, weights_of

LOST_DAYS = 1.0
"""What a launch that fails costs: it waits in the queue, fails, is understood, and waits again. A judgement (--try-cost)."""
TRY_COST = LOST_DAYS / 10
"""The same as a part of the run, of which a slower step costs its part, too: of one of ten days, or one that does not say how
long it is; of a longer one less."""
LEAST_CHANCE = 1e-12
LEAST_WEIGHT = 1e-3
"""Chance of a stack, beside the likeliest, below which it counts no more."""
APART = OWN / 3
"""Far within what the error of each plan has for itself: which of two such plans is faster is not told."""
GROUPS = ("tp", "pp", "cp", "ep")
FAR = -6.0
"""Standard deviations below which the expected gain is that of its asymptote."""
JOINT_DRAWS = 800
UNTOLD = 0.03
"""Standard deviation of ln(seconds) from one run of a plan to the next that may be until repeats say otherwise: a judgement."""
REPEATS = 3
"""Runs of one plan after which its repeats tell little more."""
LEAST_RUNS = 4
"""Runs before anything is stopped: fewer cannot tell the size of the errors."""
WEIGHED = 200
"""Plans whose joint draws are compared: those most likely to be the best."""


class Candidates(NamedTuple):
    """Plans that compete, [n], as simulated."""

    plans: Ints  # numbers
    simulated: Floats  # seconds of a step
    mean: Floats  # of ln(seconds), over draws of what nobody knows
    draws: Floats  # of ln(seconds), less the mean, [draws, n]
    memory: Floats  # bytes that it needs, NaN where unknown
    part: Floats  # the same, of what the device has
    axes: Axes
    offset: Floats  # ln(what is ranked by / seconds of a step)
    memory_error: Guesses  # of ln(real / simulated memory), of each of the stacks that may run
    moved: Floats  # ln(seconds of a step by each of them / those by the one that is simulated), [stacks, n]
    size: float = 1.0  # of errors beforehand, over those of `process`: as frameworks left out tell it


class Known(NamedTuple):
    """Own runs of candidates, [m]. `seconds`: NaN without a step; `slow`: it was stopped, the seconds are a lower bound."""

    rows: Ints
    seconds: Floats
    peak: Floats  # ln(peak / simulated), NaN where unknown
    out_of_memory: Bools
    crashed: Bools
    slow: Bools
    noise: Floats  # standard deviation of ln(seconds), and what it may be
    doubt: Floats

    def with_run(self, row: int, seconds: float) -> "Known":
        """These and one more that ran."""
        told = {"rows": row, "seconds": seconds, "peak": np.nan, "noise": NOISE, "doubt": UNTOLD}
        return Known(**{name: np.append(values, told.get(name, False)) for name, values in self._asdict().items()})


class Regret(NamedTuple):
    """How much slower the best measured plan is than the fastest that runs, a fraction: mean, 10th and 90th percentile."""

    mean: float
    p10: float
    p90: float


class Belief(NamedTuple):
    """Of each candidate, [n]: expected ln(seconds), its standard deviation, the chance that it runs; and the regret."""

    log_s: Floats
    sd: Floats
    posterior: Posterior  # of the errors
    runs: Floats
    memory: Floats  # expected ln(real / simulated memory)
    log_cost: Floats  # expected ln of what is ranked by
    wins: Floats  # part of the joint draws in which it is the fastest that runs
    best: int | None  # row of the best measured plan, as far as its runs tell
    least: float | None  # expected ln of what it costs
    stacks: Floats  # chance of each of the stacks that may run
    slower: Mapping[int, float]  # rows whose runs are set aside: how many times longer they took than the others make of them
    hope: int | None  # of these, the row that would be the best if it were as the others make of it
    regret: Regret | None  # before LEAST_RUNS with the size of errors that is the likeliest: none is ruled out yet


def believe(candidates: Candidates, known: Known, skipped: Sequence[int] = ()) -> Belief:
    """What is known after some runs; `skipped` rows cannot be run."""
    timed = ~np.isnan(known.seconds)
    outcomes = Outcomes(rows=known.rows, peak=known.peak, out_of_memory=known.out_of_memory, crashed=known.crashed)
    memory = fit(candidates.axes, candidates.part, outcomes, candidates.memory_error)
    posterior, weights = _posterior(candidates, known, timed, memory.log)
    chance = weights @ memory.runs
    chance[[*skipped]] = 0.0
    stopped = timed & known.slow
    floor = np.full(len(chance), -np.inf)
    floor[known.rows[stopped]] = np.log(known.seconds[stopped])
    log_s = np.maximum(candidates.mean + posterior.mean, floor)
    cost = log_s + candidates.offset
    finished = timed & ~known.slow
    ran = known.rows[finished & ~np.isin(known.rows, skipped)]
    best = int(ran[cost[ran].argmin()]) if len(ran) else None
    least = None if best is None else float(cost[best])
    alone = _set_aside(candidates, known, finished, posterior.aside[finished[timed]])
    hopes = {
        row: hope
        for row, factor in alone.items()
        if (hope := cost[row] - np.log(factor)) < cost[ran].min(initial=np.inf) - APART
    }
    judged = posterior if len(known.rows) >= LEAST_RUNS else posterior.likeliest
    likely, drawn = _outcomes(candidates, judged, chance, floor, best)
    fastest = drawn.min(1)
    lost = np.expm1(drawn[:, likely == best][:, 0] - fastest) if best is not None else None
    return Belief(
        log_s=log_s,
        sd=posterior.sd,
        posterior=posterior,
        runs=chance,
        memory=weights @ memory.expected,
        log_cost=cost,
        wins=np.bincount(likely[drawn.argmin(1)][np.isfinite(fastest)], minlength=len(chance)) / len(drawn),  # else none runs
        best=best,
        least=least,
        stacks=weights,
        slower=alone,
        hope=min(hopes, key=hopes.__getitem__, default=None),
        regret=None if lost is None else Regret(float(lost.mean()), *np.quantile(lost, (0.1, 0.9)).tolist()),
    )


def _set_aside(candidates: Candidates, known: Known, timed: Bools, aside: Bools) -> dict[int, float]:
    """Rows of runs that are set aside, and how many times longer they took than with the mean error of the others."""
    rows = known.rows[timed]
    error = np.log(known.seconds[timed]) - candidates.mean[rows]
    if not aside.any() or aside.all():
        return {}
    return dict(zip(rows[aside].tolist(), np.exp(error[aside] - error[~aside].mean()).tolist(), strict=True))


def _posterior(candidates: Candidates, known: Known, timed: Bools, log: Floats) -> tuple[Posterior, Floats]:
    """What runs tell of the errors of all plans, and of the chance of each stack. `log`: of these before, and by the memory."""
    rows = known.rows[timed]
    fixed, sized = prior(candidates.axes, candidates.draws, candidates.size)
    error = np.log(known.seconds[timed]) - candidates.mean[rows]
    runs = Runs(rows=rows, error=error, least=known.slow[timed], noise=known.noise[timed])
    among = np.ix_(rows, rows)
    told = [
        condition(fixed[among], sized[among], runs._replace(rows=np.arange(len(rows)), error=error - moved[rows])).log
        for moved in candidates.moved
    ]
    weights = weights_of(log + np.array(told))
    weights = np.where(weights < LEAST_WEIGHT * weights.max(), 0.0, weights)
    weights /= weights.sum()
    alike = [np.flatnonzero((candidates.moved == moved).all(1) & (weights > 0)) for moved in candidates.moved]
    first = [number for number, same in enumerate(alike) if len(same) and same[0] == number]
    parts = [
        (
            float(weights[alike[number]].sum()),
            condition(fixed, sized, runs._replace(error=error - candidates.moved[number][rows])),
        )
        for number in first
    ]
    return mixed(parts, [candidates.moved[number] for number in first]), weights


def _outcomes(
    candidates: Candidates, posterior: Posterior, chance: Floats, floor: Floats, best: int | None
) -> tuple[Ints, Floats]:
    """Rows of the plans most likely to be the best, [k], and of the best that ran; joint draws of ln of what they cost, in
    truth, [draws, k]; inf: it fails."""
    hoped = candidates.mean + candidates.offset + posterior.mean - 2 * posterior.sd
    likely = np.argsort(np.where(chance > 0, hoped, np.inf), kind="stable")[:WEIGHED]
    likely = likely if best is None else np.unique(np.append(likely, best))
    true = np.maximum(candidates.mean[likely] + posterior.draw(JOINT_DRAWS, likely), floor[likely]) + candidates.offset[likely]
    fails = np.random.default_rng(1).random(true.shape) >= np.where(likely == best, 1.0, chance[likely])
    true[fails] = np.inf
    return likely, true


def score(belief: Belief, cost: float = TRY_COST) -> Floats:
    """What decides which plan is next, the least first, [n].

    Before any step is known `launch_cost`; then -ln of the gain on the best plan that is expected (expected improvement) times
    the chance.
    """
    if belief.least is None:
        return launch_cost(belief.log_cost, belief.runs, cost)
    chance = np.maximum(belief.runs, LEAST_CHANCE)
    sd = np.maximum(belief.sd, 1e-9)
    z = (belief.least - belief.log_cost) / sd
    near, density = np.maximum(z, FAR), -0.5 * z**2 - 0.5 * np.log(2 * np.pi)
    gain = np.log(near * normal(near) + np.exp(-0.5 * near**2) / np.sqrt(2 * np.pi))
    log_gain = np.where(z > FAR, gain, density - 2 * np.log(np.maximum(-z, -FAR)))
    return np.asarray(-np.log(chance) - np.log(sd) - log_gain)


def try_cost(rows: pa.Table) -> float:
    """What a launch that fails costs by default, as a part of the run: TRY_COST, or less where `rows` say that it is longer."""
    days = pc.min(rows["training_days"]).as_py() if "training_days" in rows.column_names else None
    return min(TRY_COST, LOST_DAYS / days) if days else TRY_COST


def launch_cost(log_s: Floats, chance: Floats, cost: float = TRY_COST) -> Floats:
    """What decides which plan is tried, the least first, [n]: ln of its seconds, and what failed launches cost until one runs.

    In this order the first plan that runs is expected to cost least, if each failure costs `cost`, a part of the run (by
    exchange of two neighbours).
    """
    return log_s + cost / np.maximum(chance, LEAST_CHANCE)


def decide(rows: pa.Table, cost: Floats) -> int:
    """The row of the least cost (`launch_cost`), [n]; of those within APART of it the simplest."""
    near = np.flatnonzero(cost <= cost.min() + APART)
    simplest = [(complexity(row), cost[at], at) for at, row in zip(near.tolist(), rows.take(near).to_pylist(), strict=True)]
    return int(min(simplest)[2])


def complexity(row: Values) -> tuple[int, int, int]:
    """Of a plan: groups of several ranks, virtual stages, options other than usual."""
    usual = {name: row["vpp"] > 1 if name == "overlap_pp" else field.default for name, field in FIELDS.items()}
    options = sum(
        None not in (row.get(name), default) and row[name] != default
        for name, default in usual.items()
        if name not in (*GROUPS, "vpp") and FIELDS[name].kind in ("switch", "word", "label")
    )
    return sum(row[name] > 1 for name in GROUPS if name in row), row["vpp"], options


def stops(belief: Belief, runs: int, limit: float) -> bool:
    """Whether another run is not expected to pay, as far as steps of a plan differ from run to run as is known."""
    return belief.regret is not None and runs >= LEAST_RUNS and belief.regret.mean <= limit


def doubted(candidates: Candidates, known: Known, skipped: Sequence[int], limit: float) -> bool:
    """Whether the expected regret is above the limit if steps of a plan differ from run to run by as much as may be."""
    regret = believe(candidates, known._replace(noise=known.doubt), skipped).regret
    return regret is not None and regret.mean > limit
