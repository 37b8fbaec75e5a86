"""Plant faults in the sources, one at a time, and count those that no test notices: `make mutants`.

    python -m tests.mutants                          10 places of each file of sim_core and of the executing part of sweep
    python -m tests.mutants sim_core/engine --all    every place of the files whose path holds the text
    python -m tests.mutants --again report.json      the survivors of an earlier run, after a test was added

The checkout is copied and never changed; two copies are at work at once. A run of the tests without a fault tells which tests
reach which line; a mutant gets those tests, the fastest first, until one fails. sim_core runs as plain Python
(NUMBA_DISABLE_JIT=1): compiling takes longer than all its tests. A mutant counts as killed where a test fails, nothing can be
imported, or the tests take three times as long. The executing part of sweep is what its executors import. Ends with 1 where
the score of sim_core is below the bar.
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

from tests.mutants.choose import Reach, Suite, arguments, measure
from tests.mutants.copies import ROOT, Copy
from tests.mutants.mutate import Mutant, mutants, places, sample

BAR: Final = 0.85
BUDGET_S: Final = 120.0
"""Tests of one mutant that together take longer, without a fault, are not all run: the slowest are left out."""
PATIENCE: Final = (30.0, 3.0)
"""A mutant's tests may take this many seconds, plus this many times what they take without a fault, under coverage."""
SUITES: Final = {
    "sim_core": Suite(
        folders=("tests/oracle", "tests/sim_core", "tests/readers"),
        settings={"NUMBA_DISABLE_JIT": "1"},
        memory_bytes=8 * 2**30,
    ),
    "sweep": Suite(folders=("tests/sweep",), settings={}),
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
    """Sources of sim_core and of what the executors of sweep import, found by their imports."""
    graph = grimp.build_graph("sim_core", "sweep", cache_dir=None)
    executors = {name for name in graph.modules if name.startswith("sweep.executors")}
    executing = executors.union(*(graph.find_upstream_modules(name) for name in executors))
    names = {name for name in graph.modules if name.split(".")[0] == "sim_core"} | executing
    paths = (ROOT / name.replace(".", "/") for name in names)
    found = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths)
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def judge(copy: Copy, reach: Reach, mutant: Mutant, suite: Suite) -> Verdict:
    """Run the tests of one mutant in a copy."""
    original = (copy.root / mutant.file).read_text(encoding="utf-8")
    source = mutant.source(original)
    lines = difflib.unified_diff(original.splitlines(), source.splitlines(), lineterm="", n=0)
    diff = "\n".join(line for line in lines if line[:3] not in ("---", "+++") and not line.startswith("@@"))
    tests = reach.tests(mutant, BUDGET_S)
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


def score(verdicts: Sequence[Verdict], of_places: dict[str, int]) -> tuple[float, float]:
    """Share of the mutants killed, each file by its number of places; and half the 95 % interval of a stratified sample."""
    by_file = grouped(verdicts)
    whole = sum(of_places[file] for file in by_file)
    share, variance = 0.0, 0.0
    for file, found in by_file.items():
        weight, n = of_places[file] / whole, len(found)
        killed = sum(verdict.outcome == KILLED for verdict in found)
        share += weight * killed / n
        guess = (killed + 1) / (n + 2)  # a file without survivors in its sample is no proof that it has none
        variance += weight**2 * guess * (1 - guess) / n * (1 - n / max(of_places[file], n))
    return share, 1.96 * math.sqrt(variance)


def grouped(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """By file, in order."""
    by_file: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        by_file[verdict.mutant.file].append(verdict)
    return dict(by_file)


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
            reach = measure(made[0], suite)
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
            return judge(copy, reach, mutant, suite)
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


def report(verdicts: Sequence[Verdict], of_places: dict[str, int]) -> bool:
    """Print the survivors and the scores; returns whether sim_core reaches the bar."""
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        if verdict.outcome != KILLED:
            print(told(verdict))
    print(f"\n{'file':44} places  sampled  killed  score   95 %")
    for file, found in grouped(verdicts).items():
        killed = sum(verdict.outcome == KILLED for verdict in found)
        low, high = wilson(killed, len(found))
        interval = f"{low:4.0%} to {high:.0%}"
        print(f"{file:44} {of_places[file]:6}  {len(found):7}  {killed:6} {killed / len(found):6.0%}  {interval}")
    reached = True
    for part in SUITES:
        mine = [verdict for verdict in verdicts if verdict.mutant.file.split("/")[0] == part]
        if mine:
            share, half = score(mine, of_places)
            print(f"{part}: {share:.1%} +- {half:.1%} of {sum(of_places[file] for file in grouped(mine))} places")
            reached = reached and (part != "sim_core" or share >= BAR)
    return reached


def main() -> int:
    """See above."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("paths", nargs="*", help="text in the paths of files; none: all")
    parser.add_argument("--per-file", type=int, default=10, metavar="N", help="places drawn from each file")
    parser.add_argument("--all", action="store_true", help="every place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--again", type=Path, metavar="REPORT", help="only what survived in this report")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "mutants.json", metavar="REPORT")
    given = parser.parse_args()
    chosen = [file for file in files() if not given.paths or any(text in file for text in given.paths)]
    of_file = {file: mutants(file, (ROOT / file).read_text(encoding="utf-8")) for file in chosen}
    count = None if given.all else given.per_file
    wanted = [m for file in chosen for m in sample(of_file[file], count, random.Random(f"{given.seed} {file}"))]
    if given.again:
        wanted = list(_survivors(given.again, of_file))
    verdicts = run(wanted, given.workers)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps([asdict(verdict) for verdict in verdicts], indent=1), encoding="utf-8")
    return 0 if report(verdicts, {file: places(found) for file, found in of_file.items()}) else 1


def _survivors(path: Path, of_file: dict[str, list[Mutant]]) -> Iterator[Mutant]:
    """Mutants that survived in a report. Their files must not have changed since."""
    told: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    for verdict in told:
        old = verdict["mutant"]
        if verdict["outcome"] != KILLED and old["file"] in of_file:
            same = [m for m in of_file[old["file"]] if (m.operator, m.occurrence) == (old["operator"], old["occurrence"])]
            yield from same


if __name__ == "__main__":
    sys.exit(main())
