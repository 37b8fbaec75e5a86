"""Whole commands, as a user runs them: seconds from the prompt to the end, CPU seconds, memory."""

import tempfile
from typing import Final

from benchmarks.measuring import EXAMPLE, ROOT, SPACES, Figure, Rows, median_spent, spent

MAIN_JOB: Final = ROOT / "examples" / "llama3_70b_h100.yaml"
SEARCHED: Final = ("gpt175b_network", "gpt175b_gpus", "gpt175b_100m")
LARGE: Final = (
    "axes.tp=[4]", "axes.pp=[1,2]", "axes.vpp=[1]", "axes.ga=[1,2]", "where=[]", "axes.micro_batch={range: [1, 100000]}",
)  # fmt: skip
"""The example with more than 10^7 plans, to take samples of."""


def command_rows() -> Rows:
    """Start-up, the main job, the example, searches: each with the kernels compiled."""
    yield Figure("sweep --help", median_spent("--help").cpu_s, "CPU-s", "< 0.3 s")
    with tempfile.TemporaryDirectory() as out:
        into = ("--out", out, "--fresh", "-q")
        job = median_spent("run", str(MAIN_JOB), "--out", out, "--fresh")  # its ranking, too
        yield Figure("make sweep (sweep run examples/llama3_70b_h100.yaml)", job.wall_s, "s", "< 3 s", job.told)
        example = median_spent("run", str(EXAMPLE), *into, rounds=3)
        yield Figure("sweep run examples/gpt7b.yaml", example.wall_s, "s", "< 60 s", example.told)
        for name in SEARCHED:
            took = median_spent("search", str(SPACES / f"{name}.yaml"), *into, "--workers", "0", rounds=3)
            yield Figure(f"sweep search {name}, --workers 0", took.cpu_s, "CPU-s", note=took.told)


def million_rows() -> Rows:
    """A million plans from the prompt to the ranking, and the 20 best of ten million."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as cache:
        words = ("run", str(EXAMPLE), "--out", out, "--fresh", "--workers", "2")
        sets = tuple(part for one in LARGE for part in ("--set", one))
        warm = median_spent(*words, *sets, "--set", "sample.n=1000000", rounds=3)
        yield Figure("10^6 plans, from the prompt to the ranking, 2 workers", warm.wall_s, "s", "< 6 s", warm.told)
        yield Figure("  largest process", warm.peak_mb, "MB", "< 700 MB")
        cold = spent(*words, *sets, "--set", "sample.n=1000000", cache=cache)
        yield Figure("  the same with the kernels to compile", cold.wall_s, "s", "< 45 s", f"one run; {cold.told}")
        spent(*words, *sets, "--set", "sample.n=10000000", "--top", "0")
        ranked = median_spent("rank", out)
        yield Figure("sweep rank, top 20 of 10^7 rows", ranked.wall_s, "s", "< 0.5 s", ranked.told)
        yield Figure("  memory", ranked.peak_mb, "MB", "< 200 MB")
