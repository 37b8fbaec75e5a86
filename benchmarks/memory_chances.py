"""Chances that plans run, as stated before any run, held against published runs: peaks, and which plans ran or failed.

    python benchmarks/memory_chances.py

Peaks: mean and standard deviation of ln(read / simulated) of each framework's runs, by its own page and by Megatron-Core's,
from which `sweep/uncertainty/memory.py` has its numbers. Reliability: of the sets that tell failures, the chance that is stated
for each plan against the part that ran; plans that are illegal are left out. The last table has what the other frameworks alone
say of the grid of nanotron, simulated as Megatron-Core.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sim_core import Floats, SimError, read_stack
from sweep.runs.simulation import UNCHANGED, Run, run_rows
from sweep.runs.table import NotSimulated, published_rows
from sweep.uncertainty import memory
from sweep.uncertainty.memory import chance_before_runs

BINS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
PARTS = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, np.inf)
AS_ANOTHER = "megatron-core"


def part_of(run: Run) -> float:
    """Simulated memory over that of the device; NaN if it was not simulated."""
    try:
        return np.nan if run.reason else run.device_bytes / run.row.hardware.value("memory")
    except (NotSimulated, SimError):
        return np.nan


def failed(run: Run) -> bool:
    """Whether it did not run."""
    return run.row.quality == "failed" or run.row.out_of_memory


def peak_lines(runs: list[Run]) -> Iterator[str]:
    """Errors of peaks by set."""
    errors: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.memory_error is not None:
            errors[f"{run.row.text('set')}, {run.row.text('framework')[:20]}"].append(-float(np.log1p(run.memory_error / 100)))
    for name, values in errors.items():
        yield f"| {name} | {len(values)} | {np.mean(values):.2f} | {np.std(values):.2f} |"


def reliability(stated: Floats, part: Floats, ran: Floats) -> Iterator[str]:
    """By bins of what is stated, then by parts of the memory."""
    for what, values, bins in (("stated", stated, BINS), ("part of the memory", part, PARTS)):
        yield f"| {what} | plans | stated | ran |"
        yield "|---|--:|--:|--:|"
        for low, high in pairwise(bins):
            inside = (values >= low) & ((values < high) | (high == bins[-1]))
            if inside.any():
                yield f"| {low:g} to {high:g} | {inside.sum()} | {stated[inside].mean():.2f} | {ran[inside].mean():.2f} |"
        yield ""


def main() -> int:
    """Print the tables."""
    rows = [row for row in published_rows() if row.quality in ("ok", "failed")]
    rows = [row for row in rows if row.number("peak_memory_gib") is not None or row.out_of_memory or row.quality == "failed"]
    telling = {row.text("set") for row in rows if row.out_of_memory or row.quality == "failed"}
    for base in (None, AS_ANOTHER):
        runs = run_rows(rows, UNCHANGED._replace(base=None if base is None else read_stack(base)))
        page = base or "its own page"
        sys.stdout.write(
            "\n".join([f"By {page}:", "", "| set | peaks | mean | sd |", "|---|--:|--:|--:|", *peak_lines(runs), ""]) + "\n"
        )
        asked = [run for run in runs if run.row.text("set") in telling and np.isfinite(part_of(run))]
        part = np.array([part_of(run) for run in asked])
        ran = np.array([0.0 if failed(run) else 1.0 for run in asked])
        names = [base or run.row.stack().name for run in asked]
        stated = np.array([chance_before_runs(np.array([one]), name)[0] for one, name in zip(part, names, strict=True)])
        sys.stdout.write("\n".join(reliability(stated, part, ran)) + "\n")
    others = [(mean, jobs) for mean, jobs in memory.OF_ANOTHER if mean != max(memory.OF_ANOTHER)[0]]
    known = [jobs * memory.normal((np.log(memory.USABLE / part) - mean) / memory.SD_OF_ANOTHER) for mean, jobs in others]
    stated = memory.USUAL * np.sum(known, 0) / sum(jobs for _, jobs in others)
    sys.stdout.write("As another, without what nanotron itself says:\n\n" + "\n".join(reliability(stated, part, ran)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
