"""Which tests run for a mutant: those that reach its line, the fastest first."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coverage import CoverageData

from tests.mutants.copies import Copy
from tests.mutants.mutate import Mutant

Test = tuple[str, str]
"""Module and function; all its parameters."""

PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not long")
CONFIG = "[run]\nbranch = false\ndynamic_context = test_function\nsource = sim_core,sweep\n"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Tests that are run as they are on part of the sources."""

    folders: tuple[str, ...]
    settings: Mapping[str, str]
    memory_bytes: int | None = None
    limit_s: float = 1800.0


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


def measure(copy: Copy, suite: Suite) -> Reach:
    """Run all tests of a suite once. Raises RuntimeError where one fails."""
    (copy.root / ".coveragerc").write_text(CONFIG, encoding="utf-8")
    report = copy.root / ".report.xml"
    run = ["-m", "coverage", "run", "--rcfile", ".coveragerc", *PYTEST, *suite.folders]
    code, output = copy.run([*run, "--junitxml", str(report)], suite.settings, suite.limit_s)
    if code != 0:
        raise RuntimeError(f"the tests do not pass without a fault (exit code {code}):\n{output[-4000:]}")
    seconds: dict[Test, float] = defaultdict(float)
    nodes: dict[Test, list[str]] = {}
    for case in ET.parse(report).iter("testcase"):
        module, name = _module(copy.root, case.attrib["classname"]), case.attrib["name"].partition("[")[0]
        seconds[module, name] += float(case.attrib["time"])
        inner = case.attrib["classname"].removeprefix(module).strip(".").split(".")
        node = "::".join([module.replace(".", "/") + ".py", *filter(None, inner), name])
        held = nodes.setdefault((module, name), [])
        if node not in held:
            held.append(node)
    return _reach(copy.root, dict(seconds), nodes)


def _module(root: Path, name: str) -> str:
    """The module of a dotted name that may end in a class."""
    while name and not (root / (name.replace(".", "/") + ".py")).is_file():
        name = name.rpartition(".")[0]
    return name


def _reach(root: Path, seconds: dict[Test, float], nodes: dict[Test, list[str]]) -> Reach:
    data = CoverageData(str(root / ".coverage"))
    data.read()
    reach = Reach(seconds, nodes, {})
    tests = {context: _test(root, context) for context in data.measured_contexts() if context}
    for path in data.measured_files():
        file = Path(path).resolve().relative_to(root.resolve()).as_posix()
        reach.executed[file] = set(data.lines(path) or [])
        reach.by_line[file] = {
            line: sorted({tests[context] for context in contexts if tests.get(context) in seconds})
            for line, contexts in data.contexts_by_lineno(path).items()
        }
    return reach


def _test(root: Path, context: str) -> Test:
    """The test of coverage's name for it: module, classes, function, with dots between."""
    path, _, function = context.rpartition(".")
    return _module(root, path), function


def arguments(reach: Reach, tests: Sequence[Test]) -> list[str]:
    """For Python: run these tests in this order until one fails."""
    return [*PYTEST, *(node for test in tests for node in reach.nodes[test])]
