"""Figures of a set of runs: errors of time and memory, ranking, out-of-memory calls; and the recorded ones to compare with."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from sim_core import Floats
from sweep.runs.simulation import PLAN_REASON, Run
from sweep.runs.table import FAILED, OK, QUALITIES, REFUSED

OF_JOB: Final = (
    "set", "hw", "framework", "model_name", "model", "all_gpus", "global_batch", "precision", "interconnect", "release",
)  # fmt: skip
OF_PLAN: Final = (
    "tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "stack", "sharding", "reshard_after_forward", "micro_batch",
    "checkpointing", "dispatcher",
)  # fmt: skip
"""Runs that are alike in the first and differ in the second are plans of one job."""
RECORDED: Final = Path(__file__).parent / "data" / "recorded.json"
MARGINS: Final = {
    "mape": 0.5, "regret": 0.5, "regret_worst": 1.0, "memory_mape": 0.5, "spearman": -0.05, "pairs_right": -2.0,
    "oom_recall": 0.0, "oom_precision": -5.0,
}  # fmt: skip
"""What a figure may change by for the worse; negative: it may fall. All in the figure's own unit, most in points of percent."""


@dataclass(frozen=True)
class Figures:
    """Of runs of one quality, ok but for `by_quality`. Percent, but seconds and Spearman's correlation; None: nothing known."""

    set: str
    hw: str
    runs: int  # of the quality
    simulated: int
    mape: float | None  # mean absolute error of the step time
    bias: float | None  # mean error; positive: predicted too slow
    worst: float | None
    mape_fastest: float | None  # of the fastest quarter of the plans of each job of four or more
    spearman: float | None  # mean over groups of three plans or more
    pairs_right: float | None  # of two plans of a group, the faster one is predicted as the faster one
    regret: float | None  # mean over groups: how much slower the plan predicted as best is than the best measured
    regret_worst: float | None
    groups: int
    memory_mape: float | None
    memory_bias: float | None
    memory_runs: int
    oom_runs: int  # that did not fit: stated, or failed with notes that name no other cause
    oom_called: int  # predicted not to fit, whether they ran or not
    oom_precision: float | None
    oom_recall: float | None
    mape_dense: float | None
    mape_experts: float | None
    bias_dense: float | None
    bias_experts: float | None
    runs_dense: int  # with a measured and a predicted time
    runs_experts: int
    measured_s: float | None  # mean of the same
    predicted_s: float | None
    structural: int  # runs that failed because their plan cannot run
    structural_named: int  # of these, predicted so
    not_simulated: dict[str, int] = field(default_factory=dict)
    other_quality: dict[str, int] = field(default_factory=dict)
    unmet: dict[str, int] = field(default_factory=dict)  # simulated runs of frameworks without a page, by the nearest stack
    failed: dict[str, int] = field(default_factory=dict)  # runs without a step, by what is predicted of them
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)  # of the runs of other qualities, by quality


def figures(runs: Sequence[Run]) -> list[Figures]:
    """One for each set and hardware, in order of their names."""
    parts: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        parts[run.row.text("set"), run.row.text("hw")].append(run)
    return [figures_of(name, hw, parts[name, hw]) for name, hw in sorted(parts)]


def by_quality(runs: Sequence[Run]) -> list[Figures]:
    """One for each quality that runs have, in the order of QUALITIES, as if these were the runs to score."""
    parts = {name: [run for run in runs if run.row.quality == name] for name in QUALITIES}
    return [figures_of(name, "", part, quality=name) for name, part in parts.items() if part]


def by_release(runs: Sequence[Run]) -> list[Figures]:
    """One for each release of its framework that runs of quality ok state, in the order of the names."""
    stated = [run for run in runs if run.row.text("release") and run.row.quality == OK]
    releases = sorted({run.row.text("release") for run in stated})
    return [figures_of(name, "", [run for run in stated if run.row.text("release") == name]) for name in releases]


def figures_of(name: str, hw: str, all_runs: Sequence[Run], *, quality: str = OK) -> Figures:
    """Figures of the runs given, as one set."""
    runs = [run for run in all_runs if run.row.quality == quality]
    timed = [run for run in runs if run.timed]
    dense = [run.error for run in timed if not run.row.has_experts]
    experts = [run.error for run in timed if run.row.has_experts]
    errors = np.array([run.error for run in timed], np.float64)
    memory = np.array([error for run in runs if (error := run.memory_error) is not None], np.float64)
    asked = [run for run in all_runs if not run.reason and (run.row.quality == quality or run.row.out_of_memory)]
    called = [run for run in asked if not run.fits]
    failed = [run for run in asked if run.row.out_of_memory]
    right = sum(run.row.out_of_memory for run in called)
    structural = [run for run in all_runs if run.row.text("state") == REFUSED]
    jobs = rankings(timed)
    return Figures(
        set=name,
        hw=hw,
        runs=len(runs),
        simulated=sum(not run.reason for run in runs),
        mape=mean(np.abs(errors)),
        bias=mean(errors),
        worst=float(errors[abs(errors).argmax()]) if len(errors) else None,
        mape_fastest=mean([error for job in jobs for error in job.fastest]),
        spearman=mean([job.spearman for job in jobs if job.spearman is not None]),
        pairs_right=share(sum(job.right for job in jobs), sum(job.pairs for job in jobs)),
        regret=mean([job.regret for job in jobs]),
        regret_worst=max((job.regret for job in jobs), default=None),
        groups=len(jobs),
        memory_mape=mean(np.abs(memory)),
        memory_bias=mean(memory),
        memory_runs=len(memory),
        oom_runs=len(failed),
        oom_called=len(called),
        oom_precision=share(right, len(called)),
        oom_recall=share(right, len(failed)),
        mape_dense=mean(np.abs(dense)),
        mape_experts=mean(np.abs(experts)),
        bias_dense=mean(dense),
        bias_experts=mean(experts),
        runs_dense=len(dense),
        runs_experts=len(experts),
        measured_s=mean([run.measured_s for run in timed]),
        predicted_s=mean([run.step_s for run in timed]),
        structural=len(structural),
        structural_named=sum(run.reason.startswith(PLAN_REASON) for run in structural),
        not_simulated=dict(sorted(Counter(run.reason for run in runs if run.reason).items())),
        unmet=dict(sorted(Counter(run.unmet for run in runs if run.unmet).items())),
        failed=dict(Counter(_predicted(run) for run in all_runs if run.row.quality == FAILED).most_common()),
        other_quality=dict(sorted(Counter(run.row.quality for run in all_runs if run.row.quality != quality).items())),
        classes={
            name: _errors([run for run in all_runs if run.row.quality == name])
            for name in QUALITIES
            if name != quality and any(run.row.quality == name for run in all_runs)
        },
    )


def _errors(runs: Sequence[Run]) -> dict[str, float | None]:
    """How far off we are on runs that do not count."""
    timed = [run for run in runs if run.timed]
    found: dict[str, float | None] = {
        "runs": len(runs),
        "simulated": sum(not run.reason for run in runs),
        "mape": mean([abs(run.error) for run in timed]),
        "bias": mean([run.error for run in timed]),
        "measured_s": mean([run.measured_s for run in timed]),
        "predicted_s": mean([run.step_s for run in timed]),
    }
    return {key: value if value is None else round(value, 6 if key.endswith("_s") else 3) for key, value in found.items()}


def _predicted(run: Run) -> str:
    return run.reason or ("runs" if run.fits else "out of memory")


@dataclass(frozen=True)
class Ranking:
    """The plans of one job in the order predicted, against the order measured."""

    spearman: float | None
    right: int
    pairs: int
    regret: float  # of plans that are predicted to be equally fast, the mean: any of them may be picked
    fastest: tuple[float, ...]  # absolute errors of the fastest quarter of the plans, percent


def rankings(runs: Iterable[Run]) -> list[Ranking]:
    """One for each job with two plans or more. Of a plan that was measured twice, the mean."""
    jobs: dict[tuple[str, ...], dict[tuple[str, ...], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        plan = tuple(run.row.text(key) for key in OF_PLAN)
        jobs[tuple(run.row.text(key) for key in OF_JOB)][plan].append(run)
    return [_ranking(plans.values()) for plans in jobs.values() if len(plans) >= 2]


def _ranking(plans: Collection[Sequence[Run]]) -> Ranking:
    """The ranking of some plans, of each of which there are one or more runs."""
    measured = np.array([np.mean([run.measured_s for run in runs]) for runs in plans])
    predicted = np.array([np.mean([run.step_s for run in runs]) for runs in plans])
    first, second = np.triu_indices(len(measured), 1)
    truth = np.sign(measured[first] - measured[second])
    shown = np.sign(predicted[first] - predicted[second])
    different = truth != 0
    picked = measured[predicted == predicted.min()].mean()
    fastest = np.argsort(measured, kind="stable")[: len(measured) // 4]
    return Ranking(
        spearman=_spearman(measured, predicted) if len(measured) >= 3 else None,
        right=int((truth == shown)[different].sum()),
        pairs=int(different.sum()),
        regret=float((picked / measured.min() - 1) * 100),
        fastest=tuple((abs(predicted[fastest] / measured[fastest] - 1) * 100).tolist()),
    )


def _spearman(measured: Floats, predicted: Floats) -> float | None:
    """Correlation of ranks; ties share the mean of theirs. None if one of them is constant."""
    ranks = [_ranks(values) for values in (measured, predicted)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


def mean(values: Sequence[float] | Floats) -> float | None:
    """None of nothing."""
    return float(np.mean(values)) if len(values) else None


def share(part: int, whole: int) -> float | None:
    """Percent; None of nothing."""
    return part / whole * 100 if whole else None


def as_objects(rows: Sequence[Any], name: str = "") -> list[dict[str, Any]]:
    """Dataclasses as objects; seconds with six decimals, other numbers with three, null where there is nothing to say.

    `name`: the key of what the rows are by, in place of `set` and `hw`.
    """
    plain = [{key: _rounded(key, value) for key, value in asdict(row).items()} for row in rows]
    if not name:
        return plain
    return [{name: row["set"], **{key: value for key, value in row.items() if key not in ("set", "hw")}} for row in plain]


def _rounded(key: str, value: object) -> object:
    return round(value, 6 if key.endswith("_s") else 3) if isinstance(value, float) else value


def as_json(rows: Sequence[Figures]) -> str:
    """A list of objects, one for each set and hardware."""
    return json.dumps(as_objects(rows), indent=1)


def worse(rows: Sequence[Figures]) -> list[str]:
    """A line for each figure that is worse than the recorded one by more than its margin.

    Where more runs are simulated than when it was recorded, the figures are of other runs and are not compared.
    """
    recorded: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    now = {(row["set"], row["hw"]): row for row in json.loads(as_json(rows))}
    lines = []
    for old in recorded:
        new = now.get((old["set"], old["hw"]))
        if new is None or new["simulated"] < old["simulated"]:
            count = 0 if new is None else new["simulated"]
            lines.append(f"{old['set']}, {old['hw'] or 'no device'}: simulated {count}, recorded {old['simulated']}")
        elif new["simulated"] == old["simulated"]:
            lines += _worse(old, new)
    return lines


def more_simulated(rows: Sequence[Figures]) -> bool:
    """Whether runs are simulated that were not when the figures were recorded."""
    recorded = sum(int(row["simulated"]) for row in json.loads(RECORDED.read_text(encoding="utf-8")))
    return sum(row.simulated for row in rows) > recorded


def _worse(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, margin in MARGINS.items():
        if old[key] is None:
            continue
        if key == "oom_precision" and not new["oom_called"]:
            continue  # no run is called, so none wrongly
        falls = margin < 0 or key == "oom_recall"
        change = None if new[key] is None else (old[key] - new[key] if falls else new[key] - old[key])
        if change is None or change > abs(margin) + 1e-9:
            value = "nothing" if new[key] is None else f"{new[key]:g}"
            lines.append(
                f"{old['set']}, {old['hw'] or 'no device'}: {key} {value}, recorded {old[key]:g}, margin {abs(margin):g}"
            )
    return lines
