"""Who predicts the published runs how well: we, a rule without a simulator, a rule of thumb, what other simulators state.

python -m benchmarks.leaderboard
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.belief import run_by, stand_in
from sim_core import Model, model_flops_per_token, parameters
from sweep.frameworks.stacks import page_of
from sweep.runs.simulation import Run, run_rows
from sweep.runs.table import OK, Row, published_rows
from sweep.validation.figures import Figures, figures_of, rankings
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


NO_SECONDS: Final[dict[str, Any]] = dict.fromkeys(("mape", "memory_mape", "oom_precision", "oom_recall"))
"""What a predictor that only orders plans says nothing of."""
Predicted = Mapping[int, Run]
"""Runs as somebody predicts them, by position; what he says nothing of is not held against him."""


def leaderboard(runs: Sequence[Run]) -> dict[tuple[str, str], Figures]:
    """Figures by rows and predictor: all runs that we simulate, then sets that have several jobs or other simulators."""
    chosen = [run for run in runs if not run.reason and (run.row.quality == OK or run.row.out_of_memory)]
    own: dict[str, Predicted] = {
        OURS: dict(enumerate(chosen)), LEFT_OUT: _left_out(chosen), NAIVE: dict(enumerate(map(_naive, chosen))),
    }  # fmt: skip
    size = [(run.row.size("tp") * run.row.size("pp"), run.row.size("micro_batch")) for run in chosen]
    own[THUMB] = {at: run._replace(step_s=size[at][0] + 1 / (1 + size[at][1])) for at, run in enumerate(chosen)}  # an order
    others, parts = _stated(chosen), [(EVERYTHING, [*range(len(chosen))], own)]
    for name in sorted({run.row.text("set") for run in chosen}):
        members = [at for at, run in enumerate(chosen) if run.row.text("set") == name]
        beside = {simulator: predicted for simulator, predicted in others.items() if not predicted.keys().isdisjoint(members)}
        members = [at for at in members if all(at in predicted for predicted in beside.values())]
        if beside or len(rankings(chosen[at] for at in members if chosen[at].scored)) >= LEAST_JOBS:
            parts.append((name, members, own | beside))
    found = {
        (rows, name): figures_of(rows, name, [predicted[at] for at in members if at in predicted])
        for rows, members, predictors in parts
        for name, predicted in predictors.items()
    }
    return {key: replace(each, **NO_SECONDS) if key[1] == THUMB else each for key, each in found.items()}


def _stated(runs: Sequence[Run]) -> dict[str, dict[int, Run]]:
    """Runs as other simulators say they are: the error of throughput, and of the memory that was read."""
    found: dict[str, dict[int, Run]] = defaultdict(dict)
    at_id = {run.row.text("id"): at for at, run in enumerate(runs)}
    with STATED.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if (at := at_id.get(cells["id"])) is not None:
                held = (runs[at].row.number("peak_memory_gib") or 0.0) * 2**30
                held *= 1 + float(cells["memory_error_pct"] or 0) / 100
                found[cells["simulator"]][at] = runs[at]._replace(
                    step_s=runs[at].measured_s / (1 + float(cells["tflops_error_pct"]) / 100),
                    peak_bytes=held, device_bytes=held, fits=True, fragmentation=1.0,
                )  # fmt: skip
    return found


def _left_out(runs: Sequence[Run]) -> dict[int, Run]:
    """Runs by the page that stands for their framework where nobody knows its own; Megatron's stand for others."""
    others = {at: run.row for at, run in enumerate(runs) if not page_of(run.row.stack().name).of_megatron}
    by_others = run_by([*others.values()], [*map(stand_in, others.values())])
    return {at: run for at, run in zip(others, by_others, strict=True) if not run.reason}


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


def leaderboard_table(board: Mapping[tuple[str, str], Figures]) -> str:
    """Who is how near on which runs."""
    lines = [
        "| runs of | predictor | runs | MAPE % | Spearman in jobs | regret % (worst) | jobs | memory % "
        "| out of memory: precision % | recall % (of) |",
        "|---|---|" + "--:|" * 8,
    ]
    for (rows, predictor), one in board.items():
        name = f"**{predictor}**" if predictor == OURS else predictor
        timed = one.runs_dense + one.runs_experts
        lines.append(
            f"| {rows} | {name} | {timed} | {cell(one.mape)} | {cell(one.spearman, 2)} "
            f"| {with_cell(cell(one.regret), cell(one.regret_worst, 0))} | {one.groups} | {cell(one.memory_mape)} "
            f"| {cell(one.oom_precision, 0)} | {with_cell(cell(one.oom_recall, 0), str(one.oom_runs))} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(leaderboard_table(leaderboard(run_rows(published_rows()))))
