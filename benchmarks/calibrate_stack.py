"""`sweep calibrate stack` replayed: a framework as if nobody had read its host times, calibrated by a few runs.

    python benchmarks/calibrate_stack.py MEASURED.csv [--chosen 0 3 5 10] [--random 5] [--draws 5]

MEASURED.csv has the columns of the validation tables. Chosen runs are those that `calibrate stack --plan` asks for, of the
smallest model on one and two nodes; random ones are drawn from the same model and nodes. The page is that of the rows'
framework with the host times and rings of GENERIC in place of its own.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from sim_core import SimError, Stack, Values, read_stack
from sweep.calibration.report import run_name
from sweep.calibration.stack_launch import runs_at_hand, smallest_model
from sweep.calibration.steps import fit_stack
from sweep.runs.simulation import Run, StepsByStack, seconds_by_stack
from sweep.runs.table import Row, read_table
from sweep.validation.figures import figures_of

GENERIC: Final = {
    "host_forward": "0.28 ms", "host_backward": "0.42 ms", "host_without_tp": 1.0, "host_message": "0 s", "host_gather": "0 s",
    "host_step": "8 ms", "ring_step_across": "20 us", "ring_step_in_pipelines": "0 s",
}  # fmt: skip
"""Of a framework like Megatron-Core, and 20 us of a ring step between nodes."""
NODES: Final = 2


def main() -> int:
    """Print one row for each number of runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--stack", default="nanotron", help="Page whose facts of the code are kept.")
    parser.add_argument("--chosen", type=int, nargs="*", default=[0, 3, 5, 10])
    parser.add_argument("--random", type=int, nargs="*", default=[5])
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    try:
        rows = [row for row in read_table(options.measured) if row.quality == "ok"]
        page = read_stack(options.stack).with_facts(GENERIC)
    except (SimError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    all_runs, steps = seconds_by_stack(rows, page, None)
    runs = [run for run in all_runs if run.timed]
    smallest, nodes = smallest_model(rows), {int(run.row.hardware.value("gpus_per_node")) for run in runs}
    near = [row for row in rows if row.text("model_name") == smallest and row.size("all_gpus") <= NODES * max(nodes)]
    print(f"{len(runs)} runs, {len(near)} of them {smallest} on at most {NODES} nodes", flush=True)
    print("| runs | MAPE rest | median | smallest model | others | regret (worst) |\n|---|--:|--:|--:|--:|--:|", flush=True)
    for count in options.chosen:
        picked = runs_at_hand(rows, None, count, NODES)[0] if count else []
        print(_scored(f"{count} chosen", picked, page, runs, steps), flush=True)
    for count in options.random:
        for draw in range(options.draws):
            places = np.random.default_rng(draw).choice(len(near), count, replace=False)
            picked = [near[place] for place in places.tolist()]
            print(_scored(f"{count} at random", picked, page, runs, steps), flush=True)
    return 0


def _scored(what: str, picked: Sequence[Row], page: Stack, runs: Sequence[Run], steps: StepsByStack) -> str:
    """Errors of the runs that took no part."""
    facts: Values = {}
    if picked:
        try:
            facts = fit_stack(picked, page, None, what, leave_out=False).facts
        except SimError as error:
            return f"| {what} | {error} |"
        if what.endswith("chosen"):
            print("  " + "\n  ".join(map(run_name, picked)))
    taken, timed = {row.where for row in picked}, zip(runs, steps.seconds(facts).tolist(), strict=True)
    rest = [run._replace(step_s=seconds) for run, seconds in timed if run.row.where not in taken]
    scored = figures_of("", "", rest)
    errors = np.array([abs(run.error) for run in rest])
    smallest = smallest_model([run.row for run in rest])
    small = np.array([run.row.text("model_name") == smallest for run in rest])
    parts = (errors, errors[small], errors[~small])
    mean, of_small, of_others = (f"{part.mean():.1f}" if len(part) else "-" for part in parts)
    return (
        f"| {what} | {mean} | {np.median(errors):.1f} | {of_small} | {of_others} | "
        f"{scored.regret or 0:.1f} ({scored.regret_worst or 0:.0f}) |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
