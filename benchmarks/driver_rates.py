"""The driver of a sweep: Ray beside local processes, and its memory."""

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measuring import EXAMPLE, ROOT, Figure, Rows

DRIVER: Final = """
import tempfile, time
from pathlib import Path
from sweep.evaluation.warming import warm_up
from sweep.executors.choice import Kind, opened
from sweep.evaluation.preparation import prepare
from sweep.results.folder import folder_at
from sweep.execution import run_sweep
from sweep.spec.spec import load_spec
from sweep.results.store import Store
if __name__ == "__main__":
    spec = Path("{spec}")
    sets = ["axes.tp=[4]", "axes.pp=[1,2]", "axes.vpp=[1]", "axes.ga=[1,2]", "where=[]"]
    sets += ["axes.micro_batch={{range: [1, 100000]}}", "sample.n={plans}"]
    prepared = prepare(load_spec(spec, sets), spec.parent)
    warm_up(prepared.sweep)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as out, opened(Kind("{kind}"), 2, 120.0, "{writer}", folder_at(out)) as executor:
        start_s = time.perf_counter() - begun
        progress = run_sweep(prepared, Store(directory=out), executor)
        seconds = progress.seconds
        status = Path("/proc/self/status").read_text()
    print(progress.done, next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")), start_s, seconds)
"""


class Driven(NamedTuple):
    """What a run of its own process took: peak memory of the driver alone, seconds to start the executor and to run."""

    peak_mb: float
    start_s: float
    seconds: float


def driven(plans: int, kind: str = "local", writer: str = "auto") -> Driven:
    """A sweep of a sample of `plans` plans with 2 workers."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "driver.py"
        script.write_text(DRIVER.format(spec=EXAMPLE, plans=plans, kind=kind, writer=writer), encoding="utf-8")
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=ROOT)
    count, peak_kb, *seconds = map(float, done.stdout.split())
    if count != plans:
        raise SystemExit(f"{count:.0f} of {plans} plans were simulated")
    return Driven(peak_kb / 1024, *seconds)


def memory_rows() -> Rows:
    """The driver's peak memory at growing numbers of plans."""
    for kind in ("local", "ray"):
        for plans in (1_000_000, 4_000_000):
            peak_mb = driven(plans, kind, "driver").peak_mb
            yield Figure(f"driver's peak memory, --executor {kind}, {plans:,} plans", peak_mb, "MB", "flat")


def ray_rows() -> Rows:
    """Ray beside local processes, turn by turn, start-up apart."""
    plans = 1_000_000
    kinds = {"local": ("local", "auto"), "driver": ("ray", "driver"), "worker": ("ray", "worker")}
    taken: dict[str, list[Driven]] = {name: [] for name in kinds}
    for _ in range(3):
        for name, kind in kinds.items():
            taken[name].append(driven(plans, *kind))
    median = {writer: statistics.median(run.seconds for run in runs) for writer, runs in taken.items()}
    yield Figure(f"{plans:,} plans, 2 workers, --executor local", median["local"], "s")
    for writer in ("driver", "worker"):
        over = median[writer] / median["local"] - 1
        yield Figure(f"  --executor ray, written by the {writer}", median[writer], "s", "<= +10 %", f"{over:+.1%}")
    start_s = statistics.median(run.start_s for run in taken["driver"] + taken["worker"])
    yield Figure("  Ray's start-up, not in that", start_s, "s")
