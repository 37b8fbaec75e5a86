"""Plant faults in the sources, one at a time, and count those that no test notices: `make mutants`.

    python -m tests.mutants                          300 places of the rooms that compute and choose (ROOMS)
    python -m tests.mutants --sample 40 --seed 3     40 others
    python -m tests.mutants sim_core sweep --all     every place of sim_core, the executors, the ranking and what they import
    python -m tests.mutants sim_core/engine          300 places of the files whose path holds the text
    python -m tests.mutants --again REPORT           the survivors of an earlier run, after a test was added

Places are drawn at random from all of them, so a file has as many as it is long. The checkout is copied and never changed; two
copies are at work at once. Each file of tests runs once without a fault, which tells the tests that reach each line. A mutant
gets the tests that reach it, the fastest first, until one fails. What was learnt, each verdict too, is kept in results/mutants
until a source or those tests change: a run that was stopped goes on where it was. sim_core runs as plain Python
(NUMBA_DISABLE_JIT=1): compiling takes longer than all its tests. A mutant counts as killed where a test fails, nothing can be
imported, or the tests take three times as long. Ends with 1 where the score is below BAR.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import grimp

from tests.conftest import SLOWEST_FILES
from tests.mutants.choose import Reach, Suite, Test, arguments, measure
from tests.mutants.copies import ROOT, Copy
from tests.mutants.mutate import Mutant, mutants, places, sample

BAR: Final = 0.90
ROOMS: Final = ("sim_core/costing/", "sim_core/step/", "sim_core/planning/", "sweep/ranking/selection", "sweep/results/store")
"""What is mutated unless paths are given: where a fault moves a number, or the choice among numbers."""
RESULTS: Final = ROOT / "results" / "mutants"
BUDGET_S: Final = 300.0
"""Tests of one mutant that together take longer, without a fault, are not all run: the slowest are left out.

On a busy machine 120 s left out the oracle itself, which then killed 10 of 61 survivors."""
PATIENCE: Final = (30.0, 3.0)
"""A mutant's tests may take this many seconds, plus this many times what they take without a fault, under coverage."""
SUITES: Final = {
    "sim_core": Suite(
        folders=("tests/oracle", "tests/sim_core", "tests/readers"),
        settings={"NUMBA_DISABLE_JIT": "1"},
        memory_bytes=8 * 2**30,
    ),
    "sweep": Suite(folders=("tests/sweep",), settings={}, without=SLOWEST_FILES),
}

KILLED, SURVIVED, NOT_REACHED = "killed", "survived", "not reached"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant; `tests` were run, `how` is the end of what they printed."""

    mutant: Mutant
    outcome: str
    tests: int
    how: str
    diff: str


def files() -> list[str]:
    """Sources of sim_core, and of sweep the executors, the ranking and all that these import."""
    graph = grimp.build_graph("sim_core", "sweep", cache_dir=None)
    roots = {name for name in graph.modules if name.startswith("sweep.executors")} | {"sweep.ranking.ranking"}
    answering = roots.union(*(graph.find_upstream_modules(name) for name in roots))
    names = {name for name in graph.modules if name.split(".")[0] == "sim_core"} | answering
    paths = (ROOT / name.replace(".", "/") for name in names)
    found = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths)
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def judge(copy: Copy, reach: Reach, mutant: Mutant, suite: Suite, kept: Path) -> Verdict:
    """Run the tests of one mutant in a copy, or take the verdict that is kept of just that."""
    tests = reach.tests(mutant, BUDGET_S)
    at = kept / f"{reach.key(copy.root, mutant, tests)}.json"
    if at.is_file():
        return Verdict(mutant=mutant, **json.loads(at.read_text(encoding="utf-8")))
    verdict = _judged(copy, reach, mutant, tests, suite)
    text = json.dumps({name: value for name, value in vars(verdict).items() if name != "mutant"})
    at.with_suffix(".part").write_text(text, encoding="utf-8")
    at.with_suffix(".part").replace(at)
    return verdict


def _judged(copy: Copy, reach: Reach, mutant: Mutant, tests: Sequence[Test], suite: Suite) -> Verdict:
    original = (copy.root / mutant.file).read_text(encoding="utf-8")
    source = mutant.source(original)
    lines = difflib.unified_diff(original.splitlines(), source.splitlines(), lineterm="", n=0)
    diff = "\n".join(line for line in lines if line[:3] not in ("---", "+++") and not line.startswith("@@"))
    if not tests:
        return Verdict(mutant=mutant, outcome=NOT_REACHED, tests=0, how="", diff=diff)
    own_s = sum(reach.seconds[test] for test in tests)
    cache = copy.root / ".numba"  # a mutant is another version of sim_core: its folder goes with the copy
    settings = {**suite.settings, **({"NUMBA_CACHE_DIR": str(cache)} if mutant.file.startswith("sim_core") else {})}
    with copy.changed(mutant.file, source):
        patience_s = PATIENCE[0] + PATIENCE[1] * own_s
        code, output = copy.run(arguments(reach, tests), settings, patience_s, suite.memory_bytes)
    outcome = SURVIVED if code == 0 else KILLED
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    how = "took too long" if code is None else failed[0] if failed else output[-200:]
    return Verdict(mutant=mutant, outcome=outcome, tests=len(tests), how=how, diff=diff)


def wilson(killed: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """95 % confidence interval of a share (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    share, spread = killed / of, z * z / of
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of)) / (1 + spread)
    return middle - half, middle + half


def by_room(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """By the folder of the file, in order."""
    rooms: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        rooms[verdict.mutant.file.rpartition("/")[0]].append(verdict)
    return dict(rooms)


@contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    """Some copies of the checkout, in a folder for temporary files."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        yield [Copy.make(Path(folder) / str(number)) for number in range(count)]


def run(wanted: Sequence[Mutant], workers: int) -> list[Verdict]:
    """Judge all mutants."""
    verdicts: list[Verdict] = []
    with copies(workers) as made:
        for part, suite in SUITES.items():
            mine = [mutant for mutant in wanted if mutant.file.split("/")[0] == part]
            if not mine:
                continue
            begun = time.monotonic()
            reach = measure(made, suite, RESULTS)
            print(f"{part}: {len(reach.seconds)} tests in {time.monotonic() - begun:.0f} s, {len(mine)} mutants", flush=True)
            verdicts += _all(mine, made, reach, suite)
    return verdicts


def _all(mine: Sequence[Mutant], made: Sequence[Copy], reach: Reach, suite: Suite) -> Iterator[Verdict]:
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in made:
        free.put(copy)

    def one(mutant: Mutant) -> Verdict:
        copy = free.get()
        try:
            return judge(copy, reach, mutant, suite, RESULTS)
        finally:
            free.put(copy)

    pool = ThreadPoolExecutor(len(made))
    try:
        for number, done in enumerate(as_completed([pool.submit(one, mutant) for mutant in mine]), 1):
            verdict = done.result()
            if verdict.outcome != KILLED or number % 20 == 0:
                print(f"{number}/{len(mine)} {told(verdict)}", flush=True)
            yield verdict
    finally:
        pool.shutdown(cancel_futures=True)  # on Ctrl-C only those at work are waited for


def told(verdict: Verdict) -> str:
    """A verdict with its difference."""
    mutant = verdict.mutant
    head = f"{mutant.file}:{mutant.place[0]} {verdict.outcome} {mutant.operator} ({verdict.tests} tests)"
    return f"{head}\n{verdict.diff}" if verdict.outcome != KILLED else head


def report(verdicts: Sequence[Verdict]) -> bool:
    """Print the survivors and the scores; returns whether the bar is reached."""
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        if verdict.outcome != KILLED:
            print(told(verdict))
    print(f"\n{'room':28} sampled  killed  score   95 %")
    for room, of_room in [*by_room(verdicts).items(), ("all", list(verdicts))]:
        killed = sum(verdict.outcome == KILLED for verdict in of_room)
        low, high = wilson(killed, len(of_room))
        print(f"{room:28} {len(of_room):7}  {killed:6} {killed / len(of_room):6.1%}  {low:4.0%} to {high:.0%}")
    return sum(verdict.outcome == KILLED for verdict in verdicts) >= BAR * len(verdicts)


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", default=ROOMS, help=f"text in the paths of files; default: {' '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="places drawn from all files together")
    parser.add_argument("--all", action="store_true", help="every place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", type=Path, metavar="REPORT", help="only what survived in this report")
    parser.add_argument("--out", type=Path, default=RESULTS / "report.json", metavar="REPORT")
    asked = parser.parse_args()
    chosen = [file for file in files() if any(text in file for text in asked.paths)]
    every = [mutant for file in chosen for mutant in mutants(file, (ROOT / file).read_text(encoding="utf-8"))]
    if not every:
        parser.error(f"no file that is mutated has {' or '.join(asked.paths)} in its path")
    wanted = sample(every, None if asked.all else asked.sample, random.Random(asked.seed))
    if asked.again:
        wanted = list(_survivors(asked.again, every))
    print(f"{len(wanted)} of {places(every)} places in {len(chosen)} files", flush=True)
    verdicts = run(wanted, asked.workers)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1), encoding="utf-8")
    return 0 if report(verdicts) else 1


def _survivors(path: Path, every: Sequence[Mutant]) -> Iterator[Mutant]:
    """Mutants that survived in a report. Their files must not have changed since."""
    told: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    survived = {
        (old["mutant"]["file"], old["mutant"]["operator"], old["mutant"]["occurrence"])
        for old in told
        if old["outcome"] != KILLED
    }
    return (mutant for mutant in every if (mutant.file, mutant.operator, mutant.occurrence) in survived)


if __name__ == "__main__":
    sys.exit(main())
