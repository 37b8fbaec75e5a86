"""What measured runs say of the errors of a step: recorded numbers by class of plan, and the distribution of differences."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from sim_core import FEW_SETS, Floats, Values, plural
from sim_core.models.releases import releases_of
from sweep.uncertainty.process import variogram

RECORDED = Path(__file__).parent / "data" / "evidence.json"
RECORDED_UNKNOWN = Path(__file__).parent / "data" / "unknown.json"
"""The same of frameworks without a page, by the page that stands for them: each framework is a set (benchmarks/belief.py)."""
RECORDED_MOVES = Path(__file__).parent / "data" / "traces.json"
LEVEL = 0.9
"""Part of the measured runs that an interval contains."""
CONFIDENCE = 0.9
"""A plan whose chance to be as fast as the best is below 1 - CONFIDENCE does not tie with it."""
DENSE = "dense"
EXPERTS = "experts"
KINDS = {DENSE: "dense models", EXPERTS: "models with experts"}
MOVED, RESIZED = "moved", "resized"
"""Moves of recorded jobs with experts: to another pp or ep; to another sequence, micro-batch or number of experts. Of DENSE
jobs, which ran under one plan each, only the error at that one is known."""
MOVED_DOUBLINGS = 2.0
"""Usual distance of a move to another pp or ep."""
LOAD_OF_OTHERS = {False: 0.065, True: 0.17}
"""Standard deviation of ln(step) for each doubling of the number of experts, whose load is then not known; also with another
sequence: of moves of jobs kept aside, the bounds of the 8 known jobs held 65 and 32 % without it."""
FILES = {"all": "all files", "groups": "files of a whole expert group", "ranks": "ranks that are no whole expert group"}
"""What a job was recorded by."""
RELEASE_CHANGE = 0.28
"""Root mean square of ln(tokens/s after / before) of seven plans with experts before and after the recipes of Megatron-Bridge
26.06, on the same GPUs: 26,112 to 40,706 tokens/s, 31,744 to 45,275, 6,944 to 9,015, 5,680 to 7,376, 4,256 to 4,969, 4,992 to
6,338, 5,328 to 5,372 (NVIDIA-NeMo/Megatron-Bridge@067f987df docs/performance-summary-archive.md)."""
NORMAL_90 = 1.645
"""Half of the interval that holds 90 % of a normal distribution, in standard deviations."""
STAGES = "stages"
SCHEDULES_FROM_EACH_OTHER = (2873 / 2794, 3245 / 3283)
"""Measured over simulated ms of one model on 8 GPUs (AMD-AGI/Primus@fd1eeabb, pp_data_example/gpu8_layer64_gbs16): interleaved
from the stage durations of 1F1B, and 1F1B from those of interleaved."""
SCHEDULE_INTERVAL = 0.05
MEAN_TO_SD = float(np.sqrt(np.pi / 2))
"""Standard deviation over mean absolute error, of a normal distribution."""

UNSTATED = "unstated"
HOST_BOUND = "host_bound"
ASSUMED_KERNELS = "assumed_kernels"
QUARTER = 0.25
MOST_HOST_BOUND = 0.5
"""Part of the step from which on intervals no longer widen."""
OF_PLANS = ("launch_s", "step_time_s", "measured_share")
"""Columns of a result that traits of single plans follow from."""


def host_bound(launch_s: Floats, step_s: Floats) -> Floats:
    """The trait HOST_BOUND; unknown times (NaN) count as none."""
    return np.minimum(np.nan_to_num(launch_s / step_s), MOST_HOST_BOUND) / QUARTER


def assumed_kernels(measured_share: Floats) -> Floats:
    """The trait ASSUMED_KERNELS; an unknown share (NaN) counts as none measured."""
    return 1 - np.nan_to_num(measured_share)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of ln(measured / simulated) of single plans: an interval that contains LEVEL of the runs of a new set, and its middle.

    Of plans without traits other than their class.

    `between` and `within`: standard deviations of the means of sets, and of the runs of a set.
    """

    low: float
    middle: float
    high: float
    between: float
    within: float
    runs: int
    sets: int

    def widened(self, factor: float) -> "Spread":
        """Both ends further from the middle by a factor."""
        low, high = (self.middle + (end - self.middle) * factor for end in (self.low, self.high))
        return replace(self, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Differences:
    """The error of the ratio of two plans of one job is that of `process`, times a `size` that pairs of measured runs tell."""

    size: float
    pairs: int
    sets: int

    def variogram(self, doublings: Floats, squares: Floats) -> Floats:
        """Variance of the error of ln(ratio) of two plans so far apart (`process.variogram`)."""
        return self.size**2 * variogram(doublings, squares)


def size_of(deviation: float, doublings: float) -> float:
    """The size by which ratios of plans so far apart, one axis after the other, are off by a standard deviation."""
    return float(deviation / np.sqrt(variogram(np.array(doublings), np.array(doublings))))


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Of ln(measured / simulated), moves of recorded jobs: an interval that contains LEVEL of them; each job counts the same.

    `mean` and `worst` of its size; percent `inside` the interval, and inside that of the other jobs (`left_out`).
    """

    low: float
    middle: float
    high: float
    mean: float
    worst: float
    inside: float
    left_out: float
    moves: int
    jobs: int


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Spread and differences by class of plan, and how often they hold for a set that was left out, in percent."""

    spreads: Mapping[str, Spread]
    widening: Mapping[str, float]  # by trait: the factor of the interval's ends at 1
    differences: Mapping[str, Differences]
    coverage: Mapping[str, float]  # of intervals: `all`, by class, and by set
    pair_coverage: Mapping[str, float]  # of the ratios of two plans, the same


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The evidence that a result is judged by; `spread` and `differences` are None where there is none, `why` says so."""

    spread: Spread | None
    differences: Differences | None
    why: str
    widening: Mapping[str, float] = field(default_factory=dict)  # as in Evidence
    unknown: Spread | None = None  # where no stack is named: of a framework without a page

    def wider(self, rows: pa.Table) -> Floats:
        """By which factor the interval of each row is wider than `spread`, [n], by those of OF_PLANS that it has."""
        factor = np.ones(rows.num_rows)
        if self.spread is None or not self.widening:
            return factor
        known = {name: rows[name].to_numpy().astype(float) for name in OF_PLANS if name in rows.column_names}
        if {"launch_s", "step_time_s"} <= known.keys():
            factor *= self.widening.get(HOST_BOUND, 1.0) ** host_bound(known["launch_s"], known["step_time_s"])
        if "measured_share" in known:
            factor *= self.widening.get(ASSUMED_KERNELS, 1.0) ** assumed_kernels(known["measured_share"])
        return factor


def recorded(path: Path = RECORDED) -> Evidence:
    """The evidence of the published runs (`make validation`); RECORDED_UNKNOWN: of frameworks without a page."""
    plain = json.loads(path.read_text(encoding="utf-8"))
    for key, kind in (("spreads", Spread), ("differences", Differences)):
        plain[key] = {name: kind(**values) for name, values in plain[key].items()}
    return Evidence(**plain)


def recorded_moves() -> Mapping[str, Moved]:
    """The evidence of recorded jobs, by kind of move and by files: "moved, all" (benchmarks/jobs.py --record)."""
    return {name: Moved(**values) for name, values in json.loads(RECORDED_MOVES.read_text(encoding="utf-8")).items()}


def workload_of(provenance: Values) -> Values:
    """The workload of a result's spec."""
    return provenance.get("spec", {}).get("workload") or {}


def kind_of_model(provenance: Values) -> str:
    """EXPERTS if a result's workload has any, else DENSE."""
    return EXPERTS if provenance.get("inputs", {}).get("workload", {}).get("expert_parameters_per_rank") else DENSE


def basis_of(provenance: Values, evidence: Evidence | None = None) -> Basis:
    """Which evidence concerns a result, by its provenance: a model in numbers, a recorded job, or none (files)."""
    workload, start = workload_of(provenance), provenance.get("start")
    kind = kind_of_model(provenance)
    if unmet := provenance.get("unmet"):
        basis = of_unknown(kind)
        return replace(basis, why=f"{', '.join(unmet)}: no page of its own; {basis.why}")
    if workload.get("model"):
        return _of_model(workload.get("stack"), provenance.get("hardware", ()), kind, evidence or recorded())
    if start and start.get("files") == STAGES:
        return _of_schedules()
    if start:
        return _of_moves(provenance["spec"], start.get("files", "ranks"), start.get("experts"), dense=kind == DENSE)
    return Basis(spread=None, differences=None, why="no measured runs say how near a file of this kind is")


def of_unknown(kind: str) -> Basis:
    """The evidence of a framework without a page."""
    evidence = recorded(RECORDED_UNKNOWN)
    spread = evidence.spreads[kind]
    why = f"{plural(spread.runs, 'measured run')} of {plural(spread.sets, 'framework')}, each simulated by the page of another"
    return Basis(spread=spread, differences=evidence.differences[kind], why=why, widening=evidence.widening)


def _of_model(stack: object, devices: Sequence[Values], kind: str, evidence: Evidence) -> Basis:
    """The evidence of the published runs; wider where a spec's `stack` says nothing, or nothing that we know, of how experts
    run, and on devices of few runs."""
    spread = evidence.spreads[kind]
    why = f"{plural(spread.runs, 'measured run')} of {KINDS[kind]} in {plural(spread.sets, 'set')}"
    stated = stack if isinstance(stack, Mapping) else {}
    if kind == EXPERTS:
        if not {"release", "features"} & set(stated):
            spread = spread.widened(evidence.widening[UNSTATED])
        release = str(stated.get("release", ""))
        if "release" in stated and release and release not in releases_of(str(stated.get("preset", ""))):
            spread = _further(spread, RELEASE_CHANGE)
            why += f"; release {release} is not known, and from one to the next a plan changed by {RELEASE_CHANGE:.0%}"
    unknown = None
    if stack is None:
        unknown = of_unknown(kind).spread
        why += ", and of all stacks that may run it, as none is named"
    scales = {each["name"]: (each.get("kernels", {}).get("sustained_scale") or {}).get("told") for each in devices}
    few = {device: told for device, told in scales.items() if told and told["sets"] < FEW_SETS}
    if few:
        spread = _further(spread, max(math.log(told["high"] / told["low"]) for told in few.values()) / 2 / NORMAL_90)
        told_by = ", ".join(
            f"{name}: {plural(told['runs'], 'run')} of {plural(told['sets'], 'set')}" for name, told in few.items()
        )
        why += f"; few on this device ({told_by}), so wider"
    return Basis(spread=spread, differences=evidence.differences[kind], why=why, widening=evidence.widening, unknown=unknown)


def _further(spread: Spread, unknown: float) -> Spread:
    """The spread of plans of which something else is unknown, too, of that standard deviation in ln: recipes of a release, or a
    device under load. It is independent of our errors.
    """
    further = NORMAL_90 * unknown
    low = spread.middle - math.hypot(spread.middle - spread.low, further)
    high = spread.middle + math.hypot(spread.high - spread.middle, further)
    return replace(spread, low=low, high=high, between=math.hypot(spread.between, unknown))


def _of_schedules() -> Basis:
    """The evidence of stage durations: one pipeline under two schedules, each from the other."""
    off = np.log(SCHEDULES_FROM_EACH_OTHER)
    within, pairs = float(np.sqrt(np.mean(off**2))), len(off)
    return Basis(
        spread=Spread(
            low=-SCHEDULE_INTERVAL, middle=0.0, high=SCHEDULE_INTERVAL, between=0.0, within=within, runs=pairs, sets=1
        ),
        differences=Differences(size=size_of(within, 1.0), pairs=pairs, sets=1),
        why=f"one pipeline of 8 GPUs under 1F1B and interleaved, each from the other: within {np.abs(off).max():.1%}, stated "
        f"as +-{SCHEDULE_INTERVAL:.0%}; for another schedule, vpp, number of micro-batches or split, not for tp or dp",
    )


def _of_moves(spec: Values, files: str, experts: int | None, *, dense: bool) -> Basis:
    """The evidence of recorded jobs, from as many files, for what a spec changes. `experts`: of a layer, as recorded."""
    stated = {name: [value] for name, value in spec.get("fixed", {}).items()}
    for key, rows in spec.get("axes", {}).items():
        names = key.split(",")
        stated |= {name: [row[at] for row in rows] if len(names) > 1 else rows for at, name in enumerate(names)}
    named = set(stated)
    kind, where = MOVED, "another pp or ep"
    if {"sequence", "experts", "micro_batch"} & named:
        kind, where = RESIZED, "another sequence and number of experts"
    files = "ranks" if dense and files == "groups" else files
    every = recorded_moves()
    of_kind, moved = every[f"{kind}, {files}"], every[f"{MOVED}, {files}"]
    judged = [of_kind, every[f"{DENSE}, {files}"]] if dense else [of_kind]
    spread = Spread(
        low=min(each.low for each in judged),
        middle=of_kind.middle,
        high=max(each.high for each in judged),
        between=0.0,
        within=max(each.mean for each in judged) * MEAN_TO_SD,
        runs=of_kind.moves,
        sets=1,
    )
    apart = max((abs(math.log2(count / experts)) for count in stated.get("experts", ()) if count and experts), default=0.0)
    unknown = 0.0 if "expert_imbalance" in named else LOAD_OF_OTHERS["sequence" in named] * apart
    if unknown:
        spread = _further(spread, unknown)
    size = size_of(moved.mean * MEAN_TO_SD, MOVED_DOUBLINGS)
    why = (
        f"{of_kind.moves} moves of {of_kind.jobs} recorded jobs of one cluster to {where}, from {FILES[files]}; of a job that "
        f"is left out, the bounds of the others hold {of_kind.left_out:.0f} %"
    )
    if unknown:
        why += "; the load of another number of experts is not known, so wider (expert_imbalance states it)"
    if dense:
        why += "; they have experts, dense jobs are known at their own plan only"
    return Basis(spread=spread, differences=Differences(size=size, pairs=moved.moves, sets=1), why=why)


def t3_cdf(values: Floats) -> Floats:
    """Distribution function of Student's t with 3 degrees of freedom."""
    scaled = values / np.sqrt(3.0)
    return np.asarray(0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / np.pi)


def t3_quantile(level: float) -> float:
    """Inverse of `t3_cdf` by bisection."""
    low, high = -1e3, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t3_cdf(np.array(middle)) < level else (low, middle)
    return (low + high) / 2
