"""Error bars from the published runs: intervals for a plan of a new set, ratios of two plans, how often both are right.

A user's cluster is a new set: so every set counts nearly the same, however many runs it has, and what is calibrated is
calibrated on sets that were left out (Dunn, Wasserman, Ramdas, Distribution-Free Prediction Sets for Two-Layer Hierarchical
Models, JASA 118, 2023). Intervals widen by what is known of a plan beforehand (`TRAITS`).
"""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sim_core import Bools, Floats, Ints
from sweep.runs.simulation import Run
from sweep.uncertainty.evidence import (
    ASSUMED_KERNELS,
    DENSE,
    EXPERTS,
    HOST_BOUND,
    KINDS,
    LEVEL,
    UNSTATED,
    Differences,
    Evidence,
    Moved,
    Spread,
    assumed_kernels,
    host_bound,
    recorded,
    t3_quantile,
)
from sweep.uncertainty.process import variogram
from sweep.validation.figures import OF_JOB

FREEDOM: Final = 3.0
"""Degrees of freedom of the t distribution of differences: a few pairs are far off."""
TRAITS: Final = {
    EXPERTS: ("models with experts", 0.4),
    UNSTATED: ("with experts, and neither release nor switches of the framework are stated", 0.2),
    HOST_BOUND: ("the device waits for the host during a quarter of the step (half of it: twice as much)", 0.4),
    ASSUMED_KERNELS: ("no kernel of its shape was measured (a part of the kernels' time: as much of it)", 0.2),
}
"""What is known of a plan before it runs that makes its interval wider, in words, and ln of the factor at 1 that is expected
before any run is seen; in the order of the columns of `Residuals.traits`."""
CLASSES: Final = ((False, DENSE), (True, EXPERTS))
LEVELS: Final = np.array([(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
BORROWED: Final = 1.0
"""Sets' worth of weight that all runs have in the variances of a class."""
FEW: Final = 5.0
"""A set of n runs counts as n / (n + FEW) sets of evidence."""
PRIOR_SETS: Final = 3.0
"""Sets' worth of weight of the factors that are expected of traits before a run is seen (`TRAITS`)."""
LEAST: Final = 0.005
"""Steps of one plan measured again differ by so much: added to an error before its logarithm."""
SIZES: Final = np.geomspace(0.05, 20.0, 121)
"""Sizes of errors (`Differences`) that are tried; between the best and its neighbours as many again."""

OF_PLAN: Final = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")
WORDS: Final = ("stack", "checkpointing")
"""What tells two plans of a job apart: sizes, and words."""
LEAST_HELD, MOST_HELD = 85.0, 95.0
"""Percent of the runs of sets that were left out which intervals at LEVEL must contain."""
MARGIN: Final = 1.0
"""Points by which a class outside these bounds may be further outside than when the figures were recorded."""


class Residuals(NamedTuple):
    """A row is a measured run that was simulated. `job`: runs of one number differ in nothing but their plan."""

    error: Floats  # ln(measured / simulated)
    set: npt.NDArray[np.str_]
    experts: Bools
    job: Ints
    sizes: Floats  # [n, k]: base-2 logarithms of the plan's sizes
    choices: npt.NDArray[np.str_]  # [n, m]: its words
    traits: Floats  # [n, len(TRAITS)], in their order


class Pairs(NamedTuple):
    """Two plans of one job: by how much the simulated ratio is off, and how far apart the plans are."""

    error: Floats
    doublings: Floats
    squares: Floats  # of the doublings along each axis, in sum
    set: npt.NDArray[np.str_]
    experts: Bools


Table = TypeVar("Table", Residuals, Pairs)


def chosen(table: Table, rows: Bools) -> Table:
    """Some of the rows."""
    return type(table)._make(column[rows] for column in table)


def pairs_of(runs: Residuals) -> Pairs:
    """All pairs of different plans of each job. Of a plan that was measured twice, the mean."""
    pairs = []
    for job in np.unique(runs.job):
        rows = np.flatnonzero(runs.job == job)
        if len(rows) < 2:
            continue
        size, words = runs.sizes[rows], runs.choices[rows]
        steps, other = np.abs(size[:, None] - size[None]), (words[:, None] != words[None]).sum(2)
        doublings, squared = steps.sum(2) + other, (steps**2).sum(2) + other
        _, first, plan = np.unique(doublings == 0, axis=0, return_index=True, return_inverse=True)
        mean = np.bincount(plan, runs.error[rows]) / np.bincount(plan)
        for left, right in zip(*np.triu_indices(len(mean), 1), strict=True):
            at = first[left], first[right]
            pairs.append((mean[left] - mean[right], doublings[at], squared[at], runs.set[rows[0]], runs.experts[rows[0]]))
    kinds = (np.float64, np.float64, np.float64, np.str_, np.bool_)
    return Pairs._make(np.array([pair[k] for pair in pairs], kind) for k, kind in enumerate(kinds))


def fit(runs: Residuals) -> Evidence:
    """The evidence of some runs, of two sets or more."""
    by_class, pairs, widths = spreads(runs), pairs_of(runs), fit_widths(runs)
    factor = by_class[EXPERTS].within / by_class[DENSE].within
    return Evidence(
        spreads=by_class,
        widening={trait: float(np.exp(by)) for trait, by in zip(TRAITS, widths.by_trait, strict=True)},
        differences=fit_differences(pairs, factor),
        coverage=coverage(runs),
        pair_coverage=_percent(pairs.set, holds(pairs, factor)),
    )


def coverage(runs: Residuals) -> dict[str, float]:
    """Percent of the runs of each class and set, and of `all`, that intervals fitted to the other sets hold."""
    inside = np.zeros(len(runs.error), np.bool_)
    for name in np.unique(runs.set):
        out = runs.set == name
        widths = fit_widths(chosen(runs, ~out))
        inside[out] = np.abs(runs.error[out] - widths.middle) <= widths.half(runs.traits[out])
    of_class = {kind: runs.experts == experts for experts, kind in CLASSES}
    by_class = {kind: float(inside[rows].mean() * 100) for kind, rows in of_class.items() if rows.any()}
    by_set = _percent(runs.set, inside)
    return {"all": by_set.pop("all")} | by_class | by_set


class Widths(NamedTuple):
    """Intervals of ln(measured / simulated): around `middle`, wider by the traits of a plan."""

    middle: float
    base: float  # half an interval of a plan without traits
    by_trait: Floats  # ln of the factor for each of TRAITS, at 1; not below 0

    def half(self, traits: Floats) -> Floats:
        """Half the interval of plans with these traits, [n]."""
        return np.asarray(self.base * np.exp(traits @ self.by_trait), np.float64)


def fit_widths(runs: Residuals) -> Widths:
    """Widths by traits, scaled so that intervals hold LEVEL of the runs of sets that are left out.

    Sizes of errors are taken to grow by a factor for each trait, fitted to their logarithms by least squares around what is
    expected of it (PRIOR_SETS); a factor below 1 would say that to know less makes sure.
    """
    scores = np.zeros(len(runs.error))
    names = np.unique(runs.set)
    for name in names:
        out = runs.set == name
        others = chosen(runs, ~out) if len(names) > 1 else runs
        middle, base, by_trait = _scale(others)
        scores[out] = np.abs(runs.error[out] - middle) / (base * np.exp(runs.traits[out] @ by_trait))
    needed = float(weighted(scores, weights_of(runs.set, FEW), np.array([LEVEL]))[0])
    middle, base, by_trait = _scale(runs)
    return Widths(middle, base * needed, by_trait)


def _scale(runs: Residuals) -> tuple[float, float, Floats]:
    """The middle of the errors, the usual size of those without traits, and ln of the factor of each trait."""
    weights = weights_of(runs.set, FEW)
    middle = float(weighted(runs.error, weights, np.array([0.5]))[0])
    size = np.log(np.abs(runs.error - middle) + LEAST)
    design = np.column_stack([np.ones(len(size)), runs.traits])
    prior = np.array([0.0, *(prior for _, prior in TRAITS.values())])
    trust = np.diag([0.0, *(PRIOR_SETS for _ in TRAITS)])
    weighed = design.T * weights * len(np.unique(runs.set))
    base, *by_trait = np.linalg.solve(weighed @ design + trust, weighed @ size + trust @ prior)
    return middle, float(np.exp(base)), np.maximum(np.array(by_trait), 0.0)


def worths(sets: npt.NDArray[np.str_] | Sequence[str], few: float = 0.0, rows: Bools | slice = slice(None)) -> Floats:
    """What each of some rows is worth, in sets: a set of n of them counts as n / (n + few) sets, [n]."""
    names, found = np.asarray(sets, np.str_), np.zeros(len(sets))
    _, at, counts = np.unique(names[rows], return_inverse=True, return_counts=True)
    found[rows] = 1 / (counts[at] + few)
    return found


def weights_of(sets: npt.NDArray[np.str_] | Sequence[str], few: float = 0.0, rows: Bools | slice = slice(None)) -> Floats:
    """The same as weights, whose sum is 1; of no rows it is 0."""
    found = worths(sets, few, rows)
    return found / (found.sum() or 1.0)


def fit_moves(errors: Mapping[str, Sequence[float]]) -> Moved:
    """What moves of recorded jobs say. `errors`: ln(measured / simulated) of each move, by job."""
    jobs = list(errors)
    error = np.concatenate([np.array(errors[job]) for job in jobs])
    of_job = np.repeat(jobs, [len(errors[job]) for job in jobs])
    alike = weights_of(of_job)
    low, middle, high = map(float, weighted(error, alike, LEVELS))
    left_out = np.zeros(len(error), np.bool_)
    for job in jobs if len(jobs) > 1 else ():
        out = of_job == job
        least, _, most = weighted(error[~out], weights_of(of_job[~out]), LEVELS)
        left_out[out] = (error[out] >= least) & (error[out] <= most)
    return Moved(
        low=low, middle=middle, high=high, mean=float(np.abs(error) @ alike), worst=float(np.abs(error).max()),
        inside=float(100 * ((error >= low) & (error <= high)) @ alike), left_out=float(100 * left_out @ alike),
        moves=len(error), jobs=len(jobs),
    )  # fmt: skip


def _percent(sets: npt.NDArray[np.str_], inside: Bools) -> dict[str, float]:
    """Percent of the rows that are `inside`, of `all` and by set."""
    if not len(sets):
        return {}
    by_set = {str(name): float(inside[sets == name].mean() * 100) for name in np.unique(sets)}
    return {"all": float(inside.mean() * 100)} | by_set


def spreads(runs: Residuals) -> dict[str, Spread]:
    """The spread of each class, of plans without other traits."""
    widths, found = fit_widths(runs), {}
    trait, at = [*TRAITS].index(EXPERTS), np.unique(runs.set, return_inverse=True)[1]
    for experts, kind in CLASSES:
        of_class = runs.experts == experts
        worth = worths(runs.set, FEW, of_class).sum()
        weights = (BORROWED * weights_of(runs.set) + worth * weights_of(runs.set, rows=of_class)) / (BORROWED + worth)
        mean = (np.bincount(at, weights * runs.error) / np.bincount(at, weights))[at]  # of its set, at each run
        middle, half = widths.middle, widths.base * float(np.exp(widths.by_trait[trait] * experts))
        between, within = (float(weights @ off**2) ** 0.5 for off in (mean - weights @ mean, runs.error - mean))
        found[kind] = Spread(
            low=middle - half, middle=middle, high=middle + half, between=between, within=within,
            runs=int(of_class.sum()), sets=len(np.unique(runs.set[of_class])),
        )  # fmt: skip
    return found


def weighted(values: Floats, weights: Floats, levels: Floats) -> Floats:
    """Quantiles at `levels`: linear between the middles of the steps of the distribution, not beyond the sample."""
    order = np.argsort(values, kind="stable")
    share = weights[order] / weights.sum()
    return np.asarray(np.interp(levels, np.cumsum(share) - share / 2, values[order]), np.float64)


def fit_differences(pairs: Pairs, factor: float) -> dict[str, Differences]:
    """Differences of each class by maximum likelihood of a t distribution; every set counts the same.

    `factor`: errors of models with experts over those of dense ones. There are too few pairs of the former to fit it here.
    """
    size = _fit(pairs, factor, np.ones(len(pairs.error), np.bool_))
    by_class = {}
    for experts, kind in CLASSES:
        rows = pairs.experts == experts
        sets = len(np.unique(pairs.set[rows]))
        by_class[kind] = Differences(size=size * (factor if experts else 1.0), pairs=int(rows.sum()), sets=sets)
    return by_class


def holds(pairs: Pairs, factor: float) -> Bools:
    """Whether the error of each pair is inside the interval at LEVEL that the other sets' pairs give, [pairs]."""
    inside = np.zeros(len(pairs.error), np.bool_)
    bound, unit = t3_quantile((1 + LEVEL) / 2), _unit(pairs, factor)
    for name in np.unique(pairs.set):
        out = pairs.set == name
        inside[out] = (np.abs(pairs.error) <= bound * _fit(pairs, factor, ~out) * np.sqrt(unit))[out]
    return inside


def _unit(pairs: Pairs, factor: float) -> Floats:
    """Variance of the error of each pair where that of dense models has the size 1."""
    return np.asarray(variogram(pairs.doublings, pairs.squares) * np.where(pairs.experts, factor**2, 1.0), np.float64)


def _fit(pairs: Pairs, factor: float, rows: Bools) -> float:
    """The size of the errors of dense models that is most likely by some pairs; 1 without any."""
    some = chosen(pairs, rows)
    if not len(some.error):
        return 1.0
    weights, unit = weights_of(some.set), _unit(some, factor)

    def likelihood(size: float) -> float:
        variance = size**2 * unit
        tail = (FREEDOM + 1) / 2 * np.log1p(some.error**2 / (FREEDOM * variance))
        return float(weights @ (-0.5 * np.log(variance) - tail))

    best = float(max(SIZES, key=likelihood))
    step = SIZES[1] / SIZES[0]
    return float(max(np.geomspace(best / step, best * step, len(SIZES)), key=likelihood))


def residuals(runs: Sequence[Run]) -> Residuals:
    """Errors of the runs with quality ok that were simulated and have a time."""
    timed = [run for run in runs if run.scored]
    jobs: dict[tuple[str, ...], int] = {}
    experts = np.array([run.row.has_experts for run in timed], np.bool_)
    stated = np.array([bool(run.row.text("release") or run.row.text("features")) for run in timed], np.bool_)
    launch_s, step_s, share = np.array([[run.launch_s, run.step_s, run.measured_share] for run in timed]).reshape(-1, 3).T
    traits = {
        EXPERTS: experts, UNSTATED: experts & ~stated,
        HOST_BOUND: host_bound(launch_s, step_s), ASSUMED_KERNELS: assumed_kernels(share),
    }  # fmt: skip
    return Residuals(
        error=np.array([math.log(run.measured_s / run.step_s) for run in timed], np.float64),
        set=np.array([run.row.text("set") for run in timed], np.str_),
        experts=experts,
        job=np.array([jobs.setdefault(tuple(run.row.text(key) for key in OF_JOB), len(jobs)) for run in timed], np.int64),
        sizes=np.log2([[run.row.size(key) for key in OF_PLAN] for run in timed]).reshape(len(timed), len(OF_PLAN)),
        choices=np.array([[run.row.text(key) for key in WORDS] for run in timed], np.str_).reshape(len(timed), len(WORDS)),
        traits=np.stack([np.asarray(traits[trait], np.float64) for trait in TRAITS], 1),
    )


def evidence_of(runs: Sequence[Run]) -> Evidence:
    """What the runs of frameworks with a page say of errors; runs of at least two sets."""
    return fit(residuals([run for run in runs if not run.unmet]))


def out_of_bounds(evidence: Evidence) -> list[str]:
    """A line for each class whose intervals hold too few or too many runs of sets left out, and did so less when recorded."""
    lines = []
    for name in ("all", *KINDS):
        held = np.array([each.get(name, LEVEL * 100) for each in (evidence.coverage, recorded().coverage)])
        now, before = np.abs(held - held.clip(LEAST_HELD, MOST_HELD))
        if now > before + MARGIN:
            bars = f"{LEVEL:.0%} intervals hold {held[0]:.1f} % of the runs of sets left out ({KINDS.get(name, name)})"
            lines.append(f"error bars: {bars}, expected {LEAST_HELD:g} to {MOST_HELD:g}")
    return lines


def bars_table(evidence: Evidence) -> str:
    """Intervals by class, what widens them, differences of plans, and how many runs of sets that were left out they contain."""
    lines = [
        "| class | runs | sets | measured step over simulated, 90 % | held of sets left out, % "
        "| ratio of two plans a doubling apart |",
        "|---|--:|--:|---|--:|--:|",
    ]
    for kind, name in KINDS.items():
        spread, differences = evidence.spreads[kind], evidence.differences[kind]
        low, high = np.expm1(spread.low), np.expm1(spread.high)
        apart = float(np.sqrt(differences.variogram(np.array(1.0), np.array(1.0))))
        held = f"{evidence.coverage[kind]:.0f}" if kind in evidence.coverage else "-"
        lines.append(f"| {name} | {spread.runs} | {spread.sets} | {low:+.0%} to {high:+.0%} | {held} | {apart:.1%} |")
    lines += ["", "What moves both ends away from the middle, until they are a factor of 2 apart:"]
    lines += ["", "| what | factor |", "|---|--:|"]
    lines += [f"| {doc} | {evidence.widening[trait]:.2f} |" for trait, (doc, _) in TRAITS.items()]
    lines += ["", "Left out, one set after the other:", "", "| set | runs held, % | pairs of plans held, % |", "|---|--:|--:|"]
    by_set = {name: percent for name, percent in evidence.coverage.items() if name not in KINDS}
    for name, percent in sorted(by_set.items(), key=lambda item: (item[0] == "all", item[0])):
        pairs = evidence.pair_coverage.get(name)
        shown = f"**{name}**" if name == "all" else name
        lines.append(f"| {shown} | {percent:.0f} | {'-' if pairs is None else f'{pairs:.0f}'} |")
    return "\n".join(lines)


def record(path: Path, plain: Mapping[str, Any]) -> None:
    """Write numbers down, to four digits, as what results are judged by."""
    rounded = json.loads(json.dumps(plain), parse_float=lambda text: float(f"{float(text):.4g}"))
    path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def highest(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """The highest MFU of each kind of run (`sweep.uncertainty.highest`): device, class of model, bits."""
    kinds: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for run in runs:
        if run.scored:
            kinds[run.kind].append((run.ideal_s / run.measured_s, run.row.text("model_name")))
    highest = {kind: max(of_kind) for kind, of_kind in sorted(kinds.items())}
    return {kind: {"mfu": mfu, "runs": len(kinds[kind]), "model": model} for kind, (mfu, model) in highest.items()}
