"""Which tests run for a mutant: those that reach its line, the fastest first."""

from __future__ import annotations

import hashlib
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from coverage import CoverageData

from tests.mutants.copies import Copy
from tests.mutants.mutate import Mutant

Test = tuple[str, str]
"""Module and function; all its parameters."""

NO_TESTS = 5
"""Pytest's exit code where all tests of a file are long."""
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long")
CONFIG = "[run]\nbranch = false\ndynamic_context = test_function\nsource = sim_core,sweep\nrelative_files = true\n"
KEPT = ("sim_core", "sweep", "examples")
"""Folders whose files decide what a test does, beside its own and its helpers."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests that are run as they are on part of the sources."""

    folders: tuple[str, ...]
    settings: Mapping[str, str]
    memory_bytes: int | None = None
    limit_s: float = 1800.0
    without: tuple[str, ...] = ()
    """Names of files of tests that are left out: they start many processes, or take long."""
    only: tuple[str, ...] = ()
    """Names of the files that it has; without, all others in its folders."""
    budget_s: float = 300.0
    """Tests of one mutant that together take longer, without a fault, are not all run: the slowest are left out."""

    def files(self, root: Path) -> list[str]:
        """Files of its tests, the largest first."""
        found = [path for folder in self.folders for path in (root / folder).rglob("test_*.py") if self._has(path.name)]
        found.sort(key=lambda path: (-path.stat().st_size, path))
        return [path.relative_to(root).as_posix() for path in found]

    def _has(self, name: str) -> bool:
        return name not in self.without and (not self.only or name in self.only)


@dataclass
class Reach:
    """What each test reaches, measured once without a fault."""

    seconds: dict[Test, float]
    nodes: dict[Test, list[str]]
    by_line: dict[str, dict[int, list[Test]]]
    executed: dict[str, set[int]] = field(default_factory=dict)

    def tests(self, mutant: Mutant, budget_s: float) -> list[Test]:
        """Tests for a mutant, the fastest first, of up to `budget_s` seconds. None, where no test executes its line."""
        first, last = mutant.lines
        of_file = self.by_line.get(mutant.file, {})
        reached = {test for line in range(first, last + 1) for test in of_file.get(line, [])}
        if not reached and self.executed.get(mutant.file, set()) & set(range(first, last + 1)):
            reached = {test for tests in of_file.values() for test in tests} or set(self.seconds)  # on import, or in a fixture
        chosen: list[Test] = []
        for test in sorted(reached, key=lambda test: (self.seconds[test], test)):
            budget_s -= self.seconds[test]
            if budget_s < 0 and chosen:
                break
            chosen.append(test)
        return chosen


def key(*parts: bytes | str) -> str:
    """A name for what is kept of some contents."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update((part.encode() if isinstance(part, str) else part) + b"\0")
    return digest.hexdigest()[:24]


def measure(copies: Sequence[Copy], suite: Suite, kept: Path, sources: Collection[str]) -> Reach:
    """Run each file of tests of a suite once, or take what is kept of it: the tests that reach each line of `sources`.

    Raises RuntimeError where a test fails.
    """
    root = copies[0].root
    on = _hash_of_sources(root)
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        (copy.root / ".coveragerc").write_text(CONFIG, encoding="utf-8")
        free.put(copy)

    def run(file: str) -> Path:
        contents = [(root / name).read_bytes() for name in _with_helpers(root, file)]
        at = kept / key(on, file, repr(suite.settings), *contents)
        if not at.with_suffix(".xml").is_file():
            copy = free.get()
            try:
                _run_one(copy, file, suite, at)
            finally:
                free.put(copy)
        return at

    kept.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(copies)) as pool:
        done = list(pool.map(run, suite.files(root)))
    reach = Reach({}, {}, {})
    for at in done:
        _add(reach, root, at, sources)
    return reach


def _hash_of_sources(root: Path) -> bytes:
    """Of all that tests run on and read."""
    sources = hashlib.sha256()
    for path in sorted(path for folder in KEPT for path in (root / folder).rglob("*") if path.is_file()):
        if "__pycache__" not in path.parts:
            sources.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return sources.digest()


def _with_helpers(root: Path, file: str) -> list[str]:
    """A file of tests with the modules of tests that it imports, and those that they import."""
    found, left = {file, "tests/conftest.py"}, [file]
    while left:
        text = (root / left.pop()).read_text(encoding="utf-8")
        names = {
            name.replace(".", "/") + ".py" for name in re.findall(r"^\s*(?:from|import) (tests\.[\w.]+)", text, re.MULTILINE)
        }
        more = {name for name in names if (root / name).is_file()} - found
        found |= more
        left += more
    return sorted(found)


def _run_one(copy: Copy, file: str, suite: Suite, at: Path) -> None:
    """Run the tests of one file; what they reach goes to `at`.coverage, how long they take to `at`.xml."""
    report, data = copy.root / ".report.xml", copy.root / ".coverage"
    run = ["-m", "coverage", "run", "--rcfile", ".coveragerc", *PYTEST, file, "--junitxml", str(report)]
    code, output = copy.run(run, suite.settings, suite.limit_s)
    if code not in (0, NO_TESTS):
        raise RuntimeError(f"{file} does not pass without a fault (exit code {code}):\n{output[-4000:]}")
    shutil.move(data, at.with_suffix(".coverage"))
    shutil.move(report, at.with_suffix(".xml"))


def _add(reach: Reach, root: Path, at: Path, sources: Collection[str]) -> None:
    """Add what one file of tests reaches of some sources."""
    mine: set[Test] = set()
    for case in ET.parse(at.with_suffix(".xml")).iter("testcase"):
        module, name = _module(root, case.attrib["classname"]), case.attrib["name"].partition("[")[0]
        mine.add((module, name))
        reach.seconds[module, name] = reach.seconds.get((module, name), 0.0) + float(case.attrib["time"])
        inner = case.attrib["classname"].removeprefix(module).strip(".").split(".")
        node = "::".join([module.replace(".", "/") + ".py", *filter(None, inner), name])
        nodes = reach.nodes.setdefault((module, name), [])
        if node not in nodes:
            nodes.append(node)
    data = CoverageData(str(at.with_suffix(".coverage")))
    data.read()
    tests = {context: _test(root, context) for context in data.measured_contexts() if context}
    for file in data.measured_files() & set(sources):
        reach.executed.setdefault(file, set()).update(data.lines(file) or [])
        by_line = reach.by_line.setdefault(file, {})
        for line, contexts in data.contexts_by_lineno(file).items():
            of_line = {tests[context] for context in contexts if context} & mine
            by_line.setdefault(line, []).extend(sorted(of_line))


def _module(root: Path, name: str) -> str:
    """The module of a dotted name that may end in a class."""
    while name and not (root / (name.replace(".", "/") + ".py")).is_file():
        name = name.rpartition(".")[0]
    return name


def _test(root: Path, context: str) -> Test:
    """The test of coverage's name for it: module, classes, function, with dots between."""
    path, _, function = context.rpartition(".")
    return _module(root, path), function


def arguments(reach: Reach, tests: Sequence[Test]) -> list[str]:
    """For Python: run these tests in this order until one fails."""
    return [*PYTEST, *(node for test in tests for node in reach.nodes[test])]
