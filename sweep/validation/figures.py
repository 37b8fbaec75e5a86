"""Figures of a set of runs: errors of time and memory, ranking, out-of-memory calls."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim_core import Fields, Floats, Words
from sweep.runs.simulation import PLAN_REASON, Run
from sweep.runs.table import FAILED, OK, QUALITIES, REFUSED

Counts = dict[str, int]
"""Of runs, by a word."""

OF_JOB = (
    "set", "hw", "framework", "model_name", "model", "all_gpus", "global_batch", "precision", "interconnect", "release",
)  # fmt: skip
OF_PLAN = (
    "tp", "pp", "vpp", "cp", "ep", "sequence_parallel", "stack", "sharding", "reshard_after_forward", "micro_batch",
    "checkpointing", "dispatcher",
)  # fmt: skip
"""Runs that are alike in the first and differ in the second are plans of one job."""
RECORDED = Path(__file__).parent / "data" / "recorded.json"


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
    not_simulated: Counts = field(default_factory=dict)
    other_quality: Counts = field(default_factory=dict)
    unmet: Counts = field(default_factory=dict)  # simulated runs of frameworks without a page, by the nearest stack
    failed: Counts = field(default_factory=dict)  # runs without a step, by what is predicted of them
    classes: dict[str, dict[str, object]] = field(default_factory=dict)  # of the runs of other qualities, by quality


def figures(runs: Sequence[Run]) -> list[Figures]:
    """One for each set and hardware, in order of their names."""
    parts = defaultdict(list)
    for run in runs:
        parts[run.row.text("set"), run.row.text("hw")].append(run)
    return [figures_of(name, hw, parts[name, hw]) for name, hw in sorted(parts)]


def by_quality(runs: Sequence[Run]) -> list[Figures]:
    """One for each quality that runs have, in the order of QUALITIES, as if these were the runs to score."""
    return [figures_of(name, "", part, quality=name) for name in QUALITIES if (part := _of_quality(runs, name))]


def by_release(runs: Sequence[Run]) -> list[Figures]:
    """One for each release of its framework that runs of quality ok state, in the order of the names."""
    parts = defaultdict(list)
    for run in _of_quality(runs, OK):
        parts[run.row.text("release")].append(run)
    return [figures_of(name, "", part) for name, part in sorted(parts.items()) if name]


def _of_quality(runs: Iterable[Run], quality: str) -> list[Run]:
    return [run for run in runs if run.row.quality == quality]


def figures_of(name: str, hw: str, all_runs: Sequence[Run], *, quality: str = OK) -> Figures:
    """Figures of the runs given, as one set."""
    runs = _of_quality(all_runs, quality)
    timed = [run for run in runs if run.timed]
    dense, experts = ([run for run in timed if run.row.has_experts == has] for has in (False, True))
    errors = [run.error for run in timed]
    memory = [error for run in runs if (error := run.memory_error) is not None]
    asked = [run for run in all_runs if not run.reason and (run.row.quality == quality or run.row.out_of_memory)]
    called = [run for run in asked if not run.fits]
    failed = sum(run.row.out_of_memory for run in asked)
    right = sum(run.row.out_of_memory for run in called)
    structural = [run for run in all_runs if run.row.text("state") == REFUSED]
    jobs = rankings(timed)
    return Figures(
        set=name,
        hw=hw,
        runs=len(runs),
        **_errors(runs),
        worst=max(errors, key=abs, default=None),
        mape_fastest=mean([error for job in jobs for error in job.fastest]),
        spearman=mean([job.spearman for job in jobs if job.spearman is not None]),
        pairs_right=share(sum(job.right for job in jobs), sum(job.pairs for job in jobs)),
        regret=mean([job.regret for job in jobs]),
        regret_worst=max((job.regret for job in jobs), default=None),
        groups=len(jobs),
        memory_mape=mean(np.abs(memory)),
        memory_bias=mean(memory),
        memory_runs=len(memory),
        oom_runs=failed,
        oom_called=len(called),
        oom_precision=share(right, len(called)),
        oom_recall=share(right, failed),
        mape_dense=_errors(dense)["mape"],
        mape_experts=_errors(experts)["mape"],
        bias_dense=_errors(dense)["bias"],
        bias_experts=_errors(experts)["bias"],
        runs_dense=len(dense),
        runs_experts=len(experts),
        structural=len(structural),
        structural_named=sum(run.reason.startswith(PLAN_REASON) for run in structural),
        not_simulated=_counted(run.reason for run in runs),
        unmet=_counted(run.unmet for run in runs),
        failed=dict(
            Counter(
                run.reason or ("runs" if run.fits else "out of memory") for run in _of_quality(all_runs, FAILED)
            ).most_common()
        ),
        other_quality=_counted(run.row.quality for run in all_runs if run.row.quality != quality),
        classes={
            other: {"runs": len(part)} | {key: _rounded(key, value) for key, value in _errors(part).items()}
            for other in QUALITIES
            if other != quality and (part := _of_quality(all_runs, other))
        },
    )


def _errors(runs: Sequence[Run]) -> Fields:
    """How many runs were simulated, how far off they are, and the means of their steps."""
    timed = [run for run in runs if run.timed]
    errors = [run.error for run in timed]
    return {
        "simulated": sum(not run.reason for run in runs),
        "mape": mean(np.abs(errors)),
        "bias": mean(errors),
        "measured_s": mean([run.measured_s for run in timed]),
        "predicted_s": mean([run.step_s for run in timed]),
    }


def _counted(words: Iterable[str]) -> Counts:
    return dict(sorted(Counter(filter(None, words)).items()))


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
    jobs: dict[Words, dict[Words, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        jobs[tuple(run.row.text(key) for key in OF_JOB)][tuple(run.row.text(key) for key in OF_PLAN)].append(run)
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
    ranks = []
    for values in (measured, predicted):
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts - 1) / 2)[inverse])
    return None if any(np.ptp(rank) == 0 for rank in ranks) else float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def mean(values: Sequence[float] | Floats) -> float | None:
    """None of nothing."""
    return float(np.mean(values)) if len(values) else None


def share(part: int, whole: int) -> float | None:
    """Percent; None of nothing."""
    return part / whole * 100 if whole else None


def as_objects(rows: Sequence[Any], name: str = "") -> list[Fields]:
    """Dataclasses as objects; seconds with six decimals, other numbers with three, null where there is nothing to say.

    `name`: the key of what the rows are by, in place of `set` and `hw`.
    """
    plain = [{key: _rounded(key, value) for key, value in asdict(row).items()} for row in rows]
    if not name:
        return plain
    return [{name: row["set"], **{key: value for key, value in row.items() if key not in ("set", "hw")}} for row in plain]


def _rounded(key: str, value: object) -> object:
    return round(value, 6 if key.endswith("_s") else 3) if isinstance(value, float) else value
