"""Moved workloads against files generated for the target plan: how far off, or refused for which reason.

    python benchmarks/pairs.py FOLDER [--csv pairs.csv] [--within 0.1]

FOLDER holds `NAME_A.txt` and `NAME_B.txt`, two AICB files of one model under two plans; the table names both plans, as in
docs/fidelity.md. A is simulated under B's plan, B under its own, both at vpp 1 and without a limit of memory. Exit code 1 if
an answer is further off than docs/fidelity.md allows.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sim_core import FIDELITIES, Facts, Hardware, Workload, hardware_table, plans, read_hardware, read_workload, simulate

STEP_BAR = {"tp": 0.1, "dp": 0.1, "ep": 0.1, "ga": 0.1}
"""Percent that the step may be off where only this is moved; else OTHER_BAR."""
OTHER_BAR = 1.0
STATE_BAR = 2.0
AXES = ("tp", "pp", "ep", "dp", "micro_batch", "ga")


@dataclass(frozen=True)
class Moved:
    """One pair in one fidelity. `step` and `state` are percent above B's own; NaN where unknown."""

    name: str
    fidelity: str
    reason: str
    step: float
    state: float
    bar: float

    @property
    def right(self) -> bool:
        return abs(self.step) <= self.bar and not abs(self.state) > STATE_BAR


def outcomes(folder: Path, table: Path, device: Hardware) -> list[Moved]:
    found = []
    for row in csv.DictReader(table.open(encoding="utf-8")):
        a, b = ({axis: int(row[f"{side}_{axis}"]) for axis in AXES} for side in "ab")
        moved, own = (
            read_workload(str(folder / f"{row['name']}_{side}.txt"), Facts(micro_batch=plan["micro_batch"]))[0]
            for side, plan in (("A", a), ("B", b))
        )
        changed = [axis for axis in AXES if a[axis] != b[axis]]
        bar = STEP_BAR.get(changed[0], OTHER_BAR) if len(changed) == 1 else OTHER_BAR
        for fidelity in FIDELITIES:
            reason, step, state = _result(moved, device, b, fidelity)
            refused, own_step, own_state = _result(own, device, b, fidelity)
            found.append(
                Moved(
                    name=row["name"],
                    fidelity=fidelity,
                    reason=reason or (f"B: {refused}" if refused else ""),
                    step=(step / own_step - 1) * 100,
                    state=(state / own_state - 1) * 100,
                    bar=bar,
                )
            )
    return found


def _result(workload: Workload, device: Hardware, plan: dict[str, int], fidelity: str) -> tuple[str, float, float]:
    """Reason, step and state of a workload under a plan."""
    axes = {axis: value for axis, value in plan.items() if axis != "dp"}
    gpus = plan["tp"] * plan["pp"] * plan["dp"]
    columns = plans(workload, **axes, all_gpus=gpus, vpp=1, fidelity=fidelity)
    results = simulate(workload, hardware_table([device], measured_on=None), columns).named()
    return str(results["reason"][0]), float(results["step_time_s"][0]), float(results["state_bytes"][0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--csv", type=Path, help="table of the pairs; by default pairs.csv in FOLDER")
    parser.add_argument("--hardware", default="H100-SXM")
    parser.add_argument("--all", action="store_true", help="print right answers too")
    given = parser.parse_args()
    device = read_hardware(given.hardware).with_values({"memory": "1e9 GB"})
    found = outcomes(given.folder, given.csv or given.folder / "pairs.csv", device)
    for each in found:
        if given.all or not (each.right or each.reason):
            print(f"{each.name:28} {each.fidelity:6} step {each.step:+9.3f} %  state {each.state:+8.2f} %  {each.reason}")
    answered = [each for each in found if not each.reason]
    right = sum(each.right for each in answered)
    print(f"{len(found)} answers: {right} right, {len(answered) - right} off, {len(found) - len(answered)} refused")
    for reason, count in Counter(each.reason for each in found if each.reason).most_common():
        print(f"  {count:4} {reason}")
    off = np.array([abs(each.step) for each in answered])
    print(f"step: median {np.median(off):.4f} %, worst {off.max():.3f} %" if len(off) else "no answer")
    return int(right < len(answered))


if __name__ == "__main__":
    sys.exit(main())
