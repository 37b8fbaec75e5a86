"""Plant faults in the sources, one at a time, and count those that no test notices: `make mutants`.

    python -m tests.mutants                          300 places of the rooms that compute and choose (ROOMS)
    python -m tests.mutants --sample 40 --seed 3     40 others
    python -m tests.mutants sim_core sweep --all     every place of sim_core, the executors, the ranking and what they import
    python -m tests.mutants sim_core/engine          300 places of the files whose path holds the text
    python -m tests.mutants --again REPORT           the survivors of an earlier run, after a test was added

Places are drawn at random from all of them, so a file has as many as it is long. The checkout is copied and never changed; two
copies are at work at once, behind all else on the machine. Each file of tests runs once without a fault, which tells the tests
that reach each line. A mutant of sim_core gets those that reach it as plain Python (NUMBA_DISABLE_JIT=1), the fastest first,
some seconds of them, until one fails; what lives meets the slow ones that reach it, the oracle among them. A mutant counts as
killed where a test fails, nothing can be imported, or the tests take far longer. Faults that change nothing (equivalent.py has
the reasons) do not count. What was learnt is kept in results/mutants: a verdict for as long as the file with the fault and the
tests that decided are as they were, whatever else changed, so a run that was stopped goes on, and new tests meet the survivors
alone. Remove the folder to begin anew. Ends with 1 where the score is below BAR.
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
from typing import Any, Final, NamedTuple

import grimp

from tests.conftest import SLOWEST_FILES
from tests.mutants.choose import Reach, Suite, Test, arguments, key, measure
from tests.mutants.copies import ROOT, Copy
from tests.mutants.equivalent import why_equivalent
from tests.mutants.mutate import Mutant, mutants, places, sample

BAR: Final = 0.90
ROOMS: Final = (
    *("sim_core/costing/", "sim_core/step/", "sim_core/planning/", "sim_core/models/", "sim_core/workloads/"),
    *("sweep/ranking/selection", "sweep/results/store"),
)
"""What is mutated unless paths are given: where a fault moves a number, or the choice among numbers."""
RESULTS: Final = ROOT / "results" / "mutants"
PATIENCE: Final = (20.0, 2.0)
"""A mutant's tests may take this many seconds of a CPU, plus this many times what they took without a fault, under coverage."""
SLOW: Final = ("test_fluid.py", "test_oracle.py", "test_replay.py", "test_schedules.py")
"""Files of tests that take minutes as plain Python, and reach nearly all: what the quick ones let live meets these."""
LEFT_OUT: Final = ("test_bounds.py", "test_directions.py", "test_jit.py", "test_simulating.py")
"""As plain Python they take an hour, or compare it with compiled code."""
_PLAIN: Final = {"NUMBA_DISABLE_JIT": "1"}
SUITES: Final = {
    "sim_core": (
        Suite(
            folders=("tests/oracle", "tests/sim_core", "tests/readers"),
            settings=_PLAIN,
            memory_bytes=8 * 2**30,
            without=(*SLOW, *LEFT_OUT),
            budget_s=60,
        ),
        Suite(folders=("tests/oracle", "tests/sim_core"), settings=_PLAIN, memory_bytes=8 * 2**30, only=SLOW, budget_s=600),
    ),
    "sweep": (Suite(folders=("tests/sweep/ranking", "tests/sweep/results"), settings={}, without=SLOWEST_FILES),),
}
"""Suites for the mutants of a part of the sources, one after the other."""

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
    """Run the tests of one mutant in a copy: none that let this fault live before, and nothing if a test killed it that is as
    it was."""
    original = (copy.root / mutant.file).read_text(encoding="utf-8")
    source = mutant.source(original)
    lines = difflib.unified_diff(original.splitlines(), source.splitlines(), lineterm="", n=0)
    diff = "\n".join(line for line in lines if line[:3] not in ("---", "+++") and not line.startswith("@@"))
    at = kept / f"{key(original, repr(mutant))}.json"
    known = Known(**json.loads(at.read_text(encoding="utf-8"))) if at.is_file() else Known({}, {}, "")
    tests = reach.tests(mutant, suite.budget_s)
    contents = {test: content(copy.root, _file(test)) for test in tests}
    if known.killed and all(content(copy.root, name) == as_it_was for name, as_it_was in known.killed.items()):
        return Verdict(mutant=mutant, outcome=KILLED, tests=len(tests), how=known.how, diff=diff)
    new = [test for test in tests if known.survived.get("::".join(test)) != contents[test]]
    with copy.changed(mutant.file, source):
        how = _killed_by(copy, reach, new, suite) if new else ""
    survived = known.survived | {"::".join(test): now for test, now in contents.items()}
    of_killer = {_file(test) for test in new if not how.startswith("FAILED") or f" {_file(test)}::" in how} if how else set()
    killed = {name: content(copy.root, name) for name in of_killer}
    text = json.dumps(Known(killed, {} if how else survived, how)._asdict())
    at.with_suffix(".part").write_text(text, encoding="utf-8")
    at.with_suffix(".part").replace(at)
    outcome = KILLED if how else SURVIVED if survived else NOT_REACHED
    return Verdict(mutant=mutant, outcome=outcome, tests=len(survived), how=how, diff=diff)


class Known(NamedTuple):
    """What is kept of a fault: contents of the file of tests that killed it, or of all that let it live; what was printed."""

    killed: dict[str, str]
    survived: dict[str, str]
    how: str


def content(root: Path, name: str) -> str:
    """What a file of tests holds; nothing if it is gone."""
    return key((root / name).read_bytes()) if (root / name).is_file() else ""


def _file(test: Test) -> str:
    return test[0].replace(".", "/") + ".py"


def _killed_by(copy: Copy, reach: Reach, tests: Sequence[Test], suite: Suite) -> str:
    """What tests said that failed; nothing where all passed."""
    limit_s = PATIENCE[0] + PATIENCE[1] * sum(reach.seconds[test] for test in tests)
    code, output = copy.run(arguments(reach, tests), suite.settings, limit_s, suite.memory_bytes)
    if code == 0:
        return ""
    failed = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "took too long" if code is None else failed[0] if failed else output[-200:] or "ended"


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
        for part, suites in SUITES.items():
            living = [mutant for mutant in wanted if mutant.file.split("/")[0] == part]
            judged: dict[Mutant, Verdict] = {}
            for suite in suites:
                if not living:
                    break
                begun = time.monotonic()
                reach = measure(made, suite, RESULTS, {mutant.file for mutant in living})
                took_s = time.monotonic() - begun
                print(f"{part}: {len(reach.seconds)} tests in {took_s:.0f} s, {len(living)} mutants", flush=True)
                judged |= {verdict.mutant: verdict for verdict in _all(living, made, reach, suite)}
                living = [mutant for mutant in living if judged[mutant].outcome != KILLED]
            verdicts += judged.values()
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
    if verdict.outcome != KILLED and (why := why_equivalent(mutant.file, verdict.diff)):
        head += f": equivalent, {why}"
    return f"{head}\n{verdict.diff}" if verdict.outcome != KILLED else head


def report(verdicts: Sequence[Verdict]) -> bool:
    """Print the survivors and the scores; returns whether the bar is reached."""
    for verdict in sorted(verdicts, key=lambda verdict: verdict.mutant):
        if verdict.outcome != KILLED:
            print(told(verdict))
    same = [verdict for verdict in verdicts if verdict.outcome != KILLED and why_equivalent(verdict.mutant.file, verdict.diff)]
    print(f"{len(same)} of {len(verdicts)} change nothing (tests/mutants/equivalent.py) and are left out:")
    verdicts = [verdict for verdict in verdicts if verdict not in same]
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
    chance = random.Random(asked.seed)
    wanted = sample(every, None if asked.all else asked.sample, chance)
    if asked.again:
        wanted = list(_survivors(asked.again, every))
    chance.shuffle(wanted)  # what a run that is stopped has judged is a sample, too
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
