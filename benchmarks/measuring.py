"""A figure, and how it is taken: medians of several rounds."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
EXAMPLE: Final = ROOT / "examples" / "gpt7b.yaml"
SPACES: Final = ROOT / "benchmarks" / "spaces"
ROUNDS: Final = 5


@dataclass(frozen=True)
class Figure:
    """One measurement: what, the median, its unit, the bar that it is held against, and what else there is to say.

    A name that begins with two spaces is a part of the figure before it.
    """

    what: str
    value: float
    unit: str
    bar: str = ""
    note: str = ""


Rows = Iterator[Figure | str]
"""Figures of a group, or a line that says why one is not there."""


def median_s(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of an action over ROUNDS rounds, after one that is not counted; `clock`: of the wall, or CPU seconds."""
    action()
    seconds = []
    for _ in range(ROUNDS):
        begun = clock()
        action()
        seconds.append(clock() - begun)
    return statistics.median(seconds)


@dataclass(frozen=True)
class Spent:
    """What a command took: seconds of the wall, CPU seconds of it and its children, peak memory of the largest process."""

    wall_s: float
    cpu_s: float
    peak_mb: float

    @property
    def told(self) -> str:
        """What a figure of one of them notes: on a machine that others use, CPU seconds say more."""
        return f"{self.cpu_s:.2f} CPU-s, {self.peak_mb:,.0f} MB"


TIMED: Final = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
wall_s, usage = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
if done.returncode:
    sys.exit(" ".join(sys.argv[1:]) + ": " + done.stdout[-500:])
print(json.dumps([wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""
"""Runs a command in a process of its own: the peak memory of a child begins with that of its parent."""


def spent(*words: str, cache: str = "") -> Spent:
    """Run `sweep WORDS...` to its end; `cache`: a folder for compiled kernels in place of the usual one."""
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    command = [sys.executable, "-c", TIMED, sys.executable, "-m", "sweep", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return Spent(*json.loads(done.stdout))


def median_spent(*words: str, rounds: int = ROUNDS) -> Spent:
    """Medians of several runs of a `sweep` command, after one that is not counted."""
    spent(*words)
    runs = [spent(*words) for _ in range(rounds)]
    return Spent(*(statistics.median(each) for each in zip(*map(astuple, runs), strict=True)))
