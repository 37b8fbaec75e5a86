"""A sweep on Ray beside local processes, start-up apart."""

import re
import statistics
import subprocess
import sys
import tempfile
from typing import Final

from benchmarks.measuring import EXAMPLE, Figure, Rows

PLANS: Final = 1_000_000
SPACE: Final = ("tp=[4]", "pp=[1,2]", "vpp=[1]", "ga=[1,2]", "micro_batch={range: [1, 100000]}")


def seconds(kind: str) -> float:
    """A sweep of PLANS plans with 2 workers."""
    sets = [f"--set={each}" for each in (*(f"axes.{axis}" for axis in SPACE), "where=[]", f"sample.n={PLANS}")]
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "sweep", "run", EXAMPLE, *sets, "--executor", kind, "--workers", "2", "--out", folder]
        told = subprocess.run([*map(str, line)], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^{PLANS:,} plans in ([\d.]+) s", told, re.MULTILINE)
    if not found:
        raise SystemExit(f"{kind}: no line with the seconds of {PLANS:,} plans in: {told}")
    return float(found[1])


def ray_rows() -> Rows:
    """Turn by turn."""
    taken = [(seconds("local"), seconds("ray")) for _ in range(3)]
    local, ray = map(statistics.median, zip(*taken, strict=True))
    yield Figure(f"{PLANS:,} plans, 2 workers, --executor local", local, "s")
    yield Figure("  --executor ray", ray, "s", "<= +10 %", f"{ray / local - 1:+.1%}")
