"""What measured runs say of the errors of a step: recorded numbers by class of plan, and the distribution of differences."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim_core import Floats, releases_of

RECORDED: Final = Path(__file__).parent / "data" / "evidence.json"
RECORDED_MOVES: Final = Path(__file__).parent / "data" / "traces.json"
LEVEL: Final = 0.9
"""Part of the measured runs that an interval contains."""
CONFIDENCE: Final = 0.9
"""A plan whose chance to be as fast as the best is below 1 - CONFIDENCE does not tie with it."""
DENSE: Final = "dense"
EXPERTS: Final = "experts"
KINDS: Final = {DENSE: "dense models", EXPERTS: "models with experts"}
RANGE: Final = 12.0
"""Doublings over which the errors of two plans become independent of each other."""
FREEDOM: Final = 3.0
"""Degrees of freedom of the t distribution of differences: a few pairs are far off."""
MOVED, RESIZED = "moved", "resized"
"""Moves of recorded jobs with experts: to another pp or ep; to another sequence, micro-batch or number of experts. Of DENSE
jobs, which ran under one plan each, only the error at that one is known."""
MOVED_DOUBLINGS = 2.0
"""Usual distance of a move to another pp or ep."""
FILES: Final = {"all": "all files", "groups": "files of a whole expert group", "ranks": "ranks that are no whole expert group"}
"""What a job was recorded by."""
RELEASE_CHANGE: Final = 0.28
"""Root mean square of ln(tokens/s after / before) of seven plans with experts before and after the recipes of Megatron-Bridge
26.06, on the same GPUs: 26,112 to 40,706 tokens/s, 31,744 to 45,275, 6,944 to 9,015, 5,680 to 7,376, 4,256 to 4,969, 4,992 to
6,338, 5,328 to 5,372 (NVIDIA-NeMo/Megatron-Bridge@067f987df docs/performance-summary-archive.md)."""
NORMAL_90: Final = 1.645
"""Half of the interval that holds 90 % of a normal distribution, in standard deviations."""
MEAN_TO_SD: Final = float(np.sqrt(np.pi / 2))
"""Standard deviation over mean absolute error, of a normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Of ln(measured / simulated) of single plans: an interval that contains LEVEL of the runs of a new set, and its middle.

    `between` and `within`: standard deviations of the means of sets, and of the runs of a set.
    """

    low: float
    middle: float
    high: float
    between: float
    within: float
    runs: int
    sets: int


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Of the error of the ratio of two plans of one job: `same` if they are as good as one, `doubling` for a doubling apart."""

    same: float
    doubling: float
    pairs: int
    sets: int

    def variogram(self, doublings: Floats) -> Floats:
        """Variance of the error of ln(ratio) of plans so far apart, of the same shape."""
        return self.same**2 + 2 * self.variance * (1 - np.exp(-doublings / RANGE))

    def covariance(self, doublings: Floats) -> Floats:
        """Covariance of the errors of two plans so far apart, without what a plan has for itself (`same`)."""
        return np.asarray(self.variance * np.exp(-doublings / RANGE), np.float64)

    @property
    def variance(self) -> float:
        """Of a plan's error, as far as it is shared with plans near it."""
        return self.doubling**2 * RANGE / 2


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
    differences: Mapping[str, Differences]
    coverage: Mapping[str, float]  # of intervals: `all`, and by set
    pair_coverage: Mapping[str, float]  # of the ratios of two plans, the same


def recorded() -> Evidence:
    """The evidence of the published runs (`sweep validate --record`)."""
    plain: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return Evidence(
        spreads={name: Spread(**values) for name, values in plain["spreads"].items()},
        differences={name: Differences(**values) for name, values in plain["differences"].items()},
        coverage=plain["coverage"],
        pair_coverage=plain["pair_coverage"],
    )


def record(evidence: Evidence) -> None:
    """Write it down as the evidence that results are judged by."""
    RECORDED.write_text(json.dumps(_rounded(asdict(evidence)), indent=1) + "\n", encoding="utf-8")


def recorded_moves() -> Mapping[str, Moved]:
    """The evidence of recorded jobs, by kind of move and by files: "moved, all" (`benchmarks/jobs.py --record`)."""
    return {name: Moved(**values) for name, values in json.loads(RECORDED_MOVES.read_text(encoding="utf-8")).items()}


def record_moves(moves: Mapping[str, Moved]) -> None:
    """Write it down as the evidence that results of recorded jobs are judged by."""
    plain = _rounded({name: asdict(moves[name]) for name in sorted(moves)})
    RECORDED_MOVES.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The evidence that a result is judged by; `spread` and `differences` are None where there is none, `why` says so."""

    spread: Spread | None
    differences: Differences | None
    why: str


def basis_of(provenance: Mapping[str, Any], evidence: Evidence | None = None) -> Basis:
    """Which evidence concerns a result, by its provenance: a model in numbers, a recorded job, or none (files)."""
    evidence = evidence or recorded()
    inputs = provenance.get("inputs", {}).get("workload", {})
    if (provenance.get("spec", {}).get("workload") or {}).get("model"):
        name = EXPERTS if inputs.get("expert_parameters_per_rank") else DENSE
        spread = evidence.spreads[name]
        why = f"{spread.runs} measured runs of {KINDS[name]} in {spread.sets} sets"
        if name == EXPERTS and (release := _unknown_release(provenance["spec"]["workload"].get("stack"))):
            spread = _with_release(spread)
            why += f"; release {release} is not known, and from one to the next a plan changed by {RELEASE_CHANGE:.0%}"
        return Basis(spread=spread, differences=evidence.differences[name], why=why)
    if provenance.get("start"):
        files = provenance["start"].get("files", "ranks")
        return _of_moves(provenance["spec"], files, dense=not inputs.get("expert_parameters_per_rank"))
    return Basis(spread=None, differences=None, why="no measured runs say how near a file of this kind is")


def _unknown_release(stack: object) -> str:
    """The release that `workload.stack` names and we do not know; else empty."""
    if not isinstance(stack, Mapping) or "release" not in stack:
        return ""
    release = str(stack["release"])
    return "" if release in releases_of(str(stack.get("preset", ""))) else release


def _with_release(spread: Spread) -> Spread:
    """The spread of plans on a release whose recipes nobody has read: what releases change is independent of our errors."""
    further = NORMAL_90 * RELEASE_CHANGE
    low = spread.middle - math.hypot(spread.middle - spread.low, further)
    high = spread.middle + math.hypot(spread.high - spread.middle, further)
    return replace(spread, low=low, high=high, between=math.hypot(spread.between, RELEASE_CHANGE))


def _of_moves(spec: Mapping[str, Any], files: str, *, dense: bool) -> Basis:
    """The evidence of recorded jobs, from as many files, for what a spec changes."""
    named = {name for key in (*spec.get("axes", ()), *spec.get("fixed", ())) for name in key.split(",")}
    kind = RESIZED if {"sequence", "experts", "micro_batch"} & named else MOVED
    every = recorded_moves()
    files = "ranks" if dense and files == "groups" else files
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
    doubling = moved.mean * MEAN_TO_SD / MOVED_DOUBLINGS**0.5
    where = "another sequence and number of experts" if kind == RESIZED else "another pp or ep"
    why = (
        f"{of_kind.moves} moves of {of_kind.jobs} recorded jobs of one cluster to {where}, from {FILES[files]}; of a job that "
        f"is left out, the bounds of the others hold {of_kind.left_out:.0f} %"
    )
    if dense:
        why += "; they have experts, dense jobs are known at their own plan only"
    return Basis(spread=spread, differences=Differences(same=0.0, doubling=doubling, pairs=moved.moves, sets=1), why=why)


def t3_cdf(values: Floats) -> Floats:
    """Distribution function of Student's t with 3 degrees of freedom."""
    scaled = values / np.sqrt(3.0)
    return np.asarray(0.5 + (scaled / (1 + scaled**2) + np.arctan(scaled)) / np.pi, np.float64)


def t3_quantile(level: float) -> float:
    """Inverse of `t3_cdf` by bisection."""
    low, high = -1e3, 1e3
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t3_cdf(np.array(middle)) < level else (low, middle)
    return (low + high) / 2
