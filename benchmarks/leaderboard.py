"""Who predicts the published runs how well: we, a rule without a simulator, a rule of thumb, what other simulators state.

python -m benchmarks.leaderboard
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.belief import stand_in
from sim_core import Model, model_flops_per_token, parameters, read_stack
from sweep.frameworks.stacks import page_of
from sweep.runs.simulation import UNCHANGED, Run, run_rows
from sweep.runs.table import OK, Row, published_rows
from sweep.validation.figures import mean, rankings, share
from sweep.validation.report import cell, with_cell

STATED: Final = Path(__file__).parent / "data" / "other_simulators.csv"
"""What other simulators' publications state of single rows: errors in percent, with their source."""
USUAL_MFU: Final = 0.4
"""Of the peak in bf16; what a planner without a simulator assumes of large models (PaLM reports 46 %, Llama 3 38 to 43 %)."""
STATE_BYTES: Final = (6.0, 12.0)
"""A parameter's weight and fp32 gradient, and its optimizer (Megatron-LM, docs of the distributed optimizer: 18 bytes)."""
OURS: Final = "this simulator"
LEFT_OUT: Final = "the same, its framework left out"
NAIVE: Final = "40 % MFU x bubble"
THUMB: Final = "least tp x pp, then largest micro-batch"
EVERYTHING: Final = "all"
LEAST_JOBS: Final = 5
"""Jobs that a set needs for a part of its own: with one or two, regret is that of a single pick."""


class Predictor(NamedTuple):
    """A way to predict runs. What it does not say is not held against it."""

    name: str
    predicted: Mapping[int, Run]  # by position among the runs, those that it says something of
    orders: bool = False  # it says no seconds and no memory
    beside: bool = False  # another simulator, on its own rows


@dataclass(frozen=True)
class Standing:
    """How near a predictor is on some runs. Percent; None where it says nothing, or nothing can be said."""

    rows: str  # all, or a set
    predictor: str
    runs: int
    mape: float | None
    spearman: float | None
    regret: float | None
    regret_worst: float | None
    jobs: int  # with two plans or more
    memory_mape: float | None
    oom_precision: float | None
    oom_recall: float | None
    oom_runs: int


def leaderboard(runs: Sequence[Run]) -> list[Standing]:
    """All predictors on the runs that we simulate: on all, then set by set where it has several jobs or other simulators."""
    chosen = [run for run in runs if not run.reason and (run.row.quality == OK or run.row.out_of_memory)]
    board, everywhere = _predictors(chosen), list(range(len(chosen)))
    own, others = [one for one in board if not one.beside], [one for one in board if one.beside]
    standings = [_standing(EVERYTHING, one, everywhere) for one in own]
    for name in sorted({run.row.text("set") for run in chosen}):
        members = [at for at in everywhere if chosen[at].row.text("set") == name]
        beside = [one for one in others if any(at in one.predicted for at in members)]
        if beside:
            members = [at for at in members if all(at in one.predicted for one in beside)]
        elif len(rankings(chosen[at] for at in members if chosen[at].scored)) < LEAST_JOBS:
            continue
        standings += [_standing(name, one, members) for one in (*own, *beside)]
    return standings


def _standing(rows: str, predictor: Predictor, members: Sequence[int]) -> Standing:
    runs = [predictor.predicted[at] for at in members if at in predictor.predicted]
    timed = [run for run in runs if run.scored]
    jobs = rankings(timed)
    read = [error for run in runs if run.row.quality == OK and (error := run.memory_error) is not None]
    called, failed = [run for run in runs if not run.fits], [run for run in runs if run.row.out_of_memory]
    right = sum(run.row.out_of_memory for run in called)
    return Standing(
        rows=rows,
        predictor=predictor.name,
        runs=len(timed),
        mape=None if predictor.orders else mean([abs(run.error) for run in timed]),
        spearman=mean([job.spearman for job in jobs if job.spearman is not None]),
        regret=mean([job.regret for job in jobs]),
        regret_worst=max((job.regret for job in jobs), default=None),
        jobs=len(jobs),
        memory_mape=None if predictor.orders else mean(np.abs(read)),
        oom_precision=None if predictor.orders else share(right, len(called)),
        oom_recall=None if predictor.orders else share(right, len(failed)),
        oom_runs=len(failed),
    )


def _predictors(runs: Sequence[Run]) -> list[Predictor]:
    stated: dict[str, dict[int, Run]] = {}
    at_id = {run.row.text("id"): at for at, run in enumerate(runs)}
    with STATED.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            of_simulator = stated.setdefault(cells["simulator"], {})
            if (at := at_id.get(cells["id"])) is not None:
                of_simulator[at] = _stated(runs[at], cells)
    return [
        Predictor(OURS, dict(enumerate(runs))),
        Predictor(LEFT_OUT, _left_out(runs)),
        Predictor(NAIVE, dict(enumerate(map(_naive, runs)))),
        Predictor(THUMB, dict(enumerate(map(_by_thumb, runs))), orders=True),
        *(Predictor(name, predicted, beside=True) for name, predicted in stated.items()),
    ]


def _left_out(runs: Sequence[Run]) -> dict[int, Run]:
    """Runs by the page that stands for their framework where nobody knows its own; Megatron's stand for others."""
    by_page: dict[str, list[int]] = defaultdict(list)
    for at, run in enumerate(runs):
        if not page_of(run.row.stack().name).of_megatron:
            by_page[stand_in(run.row)].append(at)
    found: dict[int, Run] = {}
    for page, of_page in by_page.items():
        found |= zip(
            of_page, run_rows([runs[at].row for at in of_page], UNCHANGED._replace(base=read_stack(page))), strict=True
        )
    return {at: run for at, run in found.items() if not run.reason}


def _naive(run: Run) -> Run:
    """FLOPs of the model at USUAL_MFU, times the bubble of 1F1B; the state of its parameters without activations."""
    row, model, plan = run.row, run.row.model, run.row.plan
    peak, memory = (row.hardware.value(name) for name in ("peak_flops_bf16", "memory"))
    sequences = plan.get("global_batch") or plan["ga"] * plan["micro_batch"] * _data_parallel(row)
    compute_s = model_flops_per_token(model) * (model.sequence or 0) * sequences / plan["all_gpus"] / peak / USUAL_MFU
    micro_batches = max(plan.get("ga") or sequences / (plan["micro_batch"] * _data_parallel(row)), 1.0)
    bubble = (plan["pp"] - 1) / (plan["vpp"] * micro_batches)  # over work, of 1F1B (Narayanan et al. 2021, arXiv 2104.04473)
    held = _state_bytes(row, model)
    return run._replace(step_s=compute_s * (1 + bubble), peak_bytes=held, device_bytes=held, fits=held <= memory)


def _state_bytes(row: Row, model: Model) -> float:
    """Bytes of weights, gradients and optimizer on a GPU, spread as evenly as plan and framework say."""
    weight, optimizer = STATE_BYTES
    counted, ranks, ep = parameters(model), _data_parallel(row), row.size("ep")
    of_experts = counted.by_part.get("routed_experts", 0)
    stages = row.size("tp") * row.size("pp")
    sharding = row.plan.get("sharding", row.stack().sharding)
    if row.plan.get("sharding") == "parameters":
        return counted.total / stages * (weight + optimizer) / ranks
    spread = sharding == "optimizer"
    once = (counted.total - of_experts) / stages * (weight + optimizer / (ranks if spread else 1))
    return once + of_experts / stages / ep * (weight + optimizer / (max(ranks / ep, 1.0) if spread else 1))


def _data_parallel(row: Row) -> int:
    return max(row.size("all_gpus") // (row.size("tp") * row.size("pp") * row.size("cp")), 1)


def _by_thumb(run: Run) -> Run:
    """No seconds, an order: plans of a job sorted by tp x pp, equal ones by micro-batch, the largest first."""
    row = run.row
    return run._replace(step_s=row.size("tp") * row.size("pp") + 1 / (1 + row.size("micro_batch")))


def _stated(run: Run, cells: Mapping[str, str]) -> Run:
    """The run as another simulator says it is: `tflops_error_pct` of its throughput, `memory_error_pct` of what was read."""
    measured_bytes = (run.row.number("peak_memory_gib") or 0.0) * 2**30
    held = measured_bytes * (1 + float(cells["memory_error_pct"] or 0) / 100)
    return run._replace(
        step_s=run.measured_s / (1 + float(cells["tflops_error_pct"]) / 100),
        peak_bytes=held, device_bytes=held, fits=True, fragmentation=1.0,
    )  # fmt: skip


def leaderboard_table(standings: Sequence[Standing]) -> str:
    """Who is how near on which runs."""
    lines = [
        "| runs of | predictor | runs | MAPE % | Spearman in jobs | regret % (worst) | jobs | memory % "
        "| out of memory: precision % | recall % (of) |",
        "|---|---|" + "--:|" * 8,
    ]
    for one in standings:
        name = f"**{one.predictor}**" if one.predictor == OURS else one.predictor
        recall = with_cell(cell(one.oom_recall, 0), str(one.oom_runs))
        lines.append(
            f"| {one.rows} | {name} | {one.runs} | {cell(one.mape)} | {cell(one.spearman, 2)} "
            f"| {with_cell(cell(one.regret), cell(one.regret_worst, 0))} | {one.jobs} | {cell(one.memory_mape)} "
            f"| {cell(one.oom_precision, 0)} | {recall} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(leaderboard_table(leaderboard(run_rows(published_rows()))))
