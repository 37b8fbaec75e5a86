"""The measured claims (`make bench`): medians of several rounds, beside what they are held against and what was recorded.

    python -m benchmarks.bench [GROUP ...] [--record]

Every figure is taken on this machine, in this state of the code. Nothing here is asserted: speed is a measurement.
`--record` keeps the figures in benchmarks/recorded.json, with the machine; docs/performance.md says what they mean.
"""

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any, Final

import numba

from benchmarks.calculon_rates import calculon_rows
from benchmarks.command_rates import command_rows, million_rows
from benchmarks.driver_rates import ray_rows
from benchmarks.engine_rates import engine_rows
from benchmarks.measuring import ROOT, ROUNDS, Figure
from benchmarks.plan_rates import reader_rows, space_rows, worker_rows

RECORDED: Final = ROOT / "benchmarks" / "recorded.json"
GROUPS: Final = {
    "engine": engine_rows, "reader": reader_rows, "worker": worker_rows, "space": space_rows, "calculon": calculon_rows,
    "command": command_rows, "million": million_rows, "ray": ray_rows,
}  # fmt: skip


def machine() -> str:
    """The processor, its cores, and the versions that speed depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}, numba {numba.__version__}"


def main() -> None:
    """Print every figure (or those of the groups named), its ratio to the recorded one, and its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--record", action="store_true", help="keep these figures as those to compare with")
    given = parser.parse_args()
    unknown = sorted(set(given.groups) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}, expected one of {', '.join(GROUPS)}")
    kept: dict[str, Any] = {"machine": "", "load": 0.0, "figures": {}}
    if RECORDED.exists():
        kept = json.loads(RECORDED.read_text(encoding="utf-8"))
    here, load = machine(), round(os.getloadavg()[0], 1)
    print(f"{here}, load {load} before this; medians of {ROUNDS}")
    print(f"recorded on: {kept['machine']}, load {kept['load']}" if kept["machine"] else "nothing is recorded")
    print(f"{'':72} {'':>12} {'':22} {'recorded':>9}  bar")
    found: dict[str, float] = {}
    for name in given.groups or GROUPS:
        under = ""
        for figure in GROUPS[name]():
            if isinstance(figure, str):
                print(figure, flush=True)
                continue
            part = figure.what.startswith(" ")
            under = under if part else figure.what
            key = f"{name}: {under}{figure.what if part else ''}"
            found[key] = float(f"{figure.value:.4g}")
            print(line(figure, kept["figures"].get(key)), flush=True)
    if given.record:
        before = kept["figures"] if kept["machine"] == here else {}
        kept = {"machine": here, "load": load, "figures": {**before, **found}}
        RECORDED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def line(figure: Figure, before: float | None) -> str:
    """A figure as it is printed; `before`: the recorded one."""
    told = f"{figure.value:,.{0 if figure.value >= 100 else 1 if figure.value >= 10 else 2}f}"
    ratio = f"x {figure.value / before:.2f}" if before else ""
    note = f"\n    {figure.note}" if figure.note else ""
    return f"{figure.what:72} {told:>12} {figure.unit:22} {ratio:>9}  {figure.bar}{note}"


if __name__ == "__main__":
    main()
