"""The mutation tool: what it changes, what it leaves alone, that the checkout stays as it is, and what its score means."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cosmic_ray.mutating import mutate_code

from tests.conftest import ROOT
from tests.mutants import equivalent
from tests.mutants.__main__ import KILLED, NOT_REACHED, SURVIVED, Verdict, files, judge, report, wilson
from tests.mutants.choose import Reach, Suite
from tests.mutants.copies import Copy
from tests.mutants.mutate import Mutant, mutants, places, sample
from tests.mutants.operators import OWN

SOURCE = """\
from a import b

Ints = list[int | float]
WIDTH: dict[int | str, Ints] = {1 - 2: [3]}


@cache(4)
def area(wide: int | None, /, *, high: tuple[int, ...]) -> int | None:
    if wide <= 0:
        return None
    return wide * high[wide]
"""


@pytest.mark.parametrize("name", OWN)
def test_operators_do_as_their_examples_say(name: str) -> None:
    for example in OWN[name].examples():
        assert mutate_code(example.pre_mutation_code, OWN[name](), example.occurrence) == example.post_mutation_code


def test_what_is_never_evaluated_is_left_alone() -> None:
    found = mutants("f.py", SOURCE)
    assert {mutant.place[0] for mutant in found} == {4, 9, 11}
    for mutant in found:
        changed = mutant.source(SOURCE).splitlines()
        different = [k for k, line in enumerate(SOURCE.splitlines(), 1) if changed[k - 1] != line]
        assert different == [mutant.place[0]]
        compile("\n".join(changed), "f.py", "exec")


def test_a_sample_takes_each_place_once_and_is_the_same_again() -> None:
    found = mutants("f.py", SOURCE)
    everything = sample(found, None, random.Random(0))
    assert len(everything) == places(found) < len(found)
    assert len(sample(found, 3, random.Random(0))) == 3
    assert sample(found, 3, random.Random(0)) == sample(found, 3, random.Random(0))


def test_the_files_are_found() -> None:
    found = files()
    assert all((ROOT / file).is_file() for file in found)
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "sim_core").rglob("*.py")} <= set(found)
    assert any(file.startswith("sweep/executors/") for file in found)
    assert not any("commands" in file for file in found)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy.make(tmp_path_factory.mktemp("copies") / "0")


TEST = "import sim_core.units\n\ndef test_it():\n    assert sim_core.units.quantity('3 s', 's') == 3\n"


def reach(seconds: float, line: int) -> Reach:
    """One test that reaches one line of the units."""
    test = ("tests.test_it", "test_it")
    return Reach({test: seconds}, {test: ["tests/test_it.py::test_it"]}, {"sim_core/units.py": {line: [test]}})


def test_a_fault_is_planted_in_the_copy_alone(copy: Copy, tmp_path: Path) -> None:
    (copy.root / "tests" / "test_it.py").write_text(TEST)
    source = (ROOT / "sim_core" / "units.py").read_text()
    line = next(k for k, text in enumerate(source.splitlines(), 1) if "1e-6" in text)
    of_line = [m for m in mutants("sim_core/units.py", source) if m.place[0] == line and m.operator == "NumberReplacer"]
    suite = Suite(folders=(), settings={"NUMBA_DISABLE_JIT": "1"})
    of_one, of_nano = of_line[0], of_line[2]  # prefixes: "": 1.0, "n": 1e-9
    found = [judge(copy, reach(0.1, line), mutant, suite, tmp_path) for mutant in (of_one, of_nano)]
    assert [verdict.outcome for verdict in found] == [KILLED, SURVIVED], found
    assert "FAILED" in found[0].how
    assert judge(copy, reach(0.1, -1), of_line[1], suite, tmp_path).outcome == NOT_REACHED
    assert judge(copy, reach(0.1, line), of_one, Suite(folders=(), settings={"PATH": "/"}), tmp_path) == found[0]  # kept
    assert (ROOT / "sim_core" / "units.py").read_text() == (copy.root / "sim_core" / "units.py").read_text() == source


def test_a_fault_that_lived_meets_new_tests_alone(copy: Copy, tmp_path: Path) -> None:
    """A file of tests that changed runs again."""
    file = copy.root / "tests" / "test_it.py"
    file.write_text(TEST)
    source = (ROOT / "sim_core" / "units.py").read_text()
    line = next(k for k, text in enumerate(source.splitlines(), 1) if "1e-6" in text)
    of_nano = [m for m in mutants("sim_core/units.py", source) if m.place[0] == line and m.operator == "NumberReplacer"][2]
    suite = Suite(folders=(), settings={"NUMBA_DISABLE_JIT": "1"})
    assert judge(copy, reach(0.1, line), of_nano, suite, tmp_path).outcome == SURVIVED
    broken = Suite(folders=(), settings={"PYTHONHOME": "/nowhere"})  # whatever would run now would fail
    assert judge(copy, reach(0.1, line), of_nano, broken, tmp_path).outcome == SURVIVED
    file.write_text(TEST.replace("3 s", "3 ns").replace("== 3", "== 3e-9"))
    assert judge(copy, reach(0.1, line), of_nano, suite, tmp_path).how.startswith("FAILED tests/test_it.py")
    assert judge(copy, reach(0.1, line), of_nano, broken, tmp_path).outcome == KILLED
    file.write_text(TEST)
    assert judge(copy, reach(0.1, line), of_nano, suite, tmp_path).outcome == SURVIVED


def test_what_changes_nothing_does_not_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fault = Verdict(
        mutant=Mutant("a/b.py", (1, 0), "", 0, (1, 1)), outcome=SURVIVED, tests=1, how="", diff="-  x = 1\n+  x = 2"
    )
    killed = Verdict(mutant=Mutant("a/b.py", (2, 0), "", 0, (2, 2)), outcome=KILLED, tests=1, how="", diff="")
    assert not report([fault, killed])
    monkeypatch.setattr(equivalent, "EQUIVALENT", (("b.py", "x = 1", "x = 2", "x is never read"),))
    assert report([fault, killed])
    assert "equivalent, x is never read" in capsys.readouterr().out


def test_code_runs_on_the_sources_of_the_copy_and_not_for_ever(copy: Copy) -> None:
    code, output = copy.run(["-c", "import sim_core; print(sim_core.__file__)"], {}, 60)
    assert (code, Path(output.strip()).parent.parent) == (0, copy.root)
    assert copy.run(["-c", "while True: pass"], {}, 0.5)[0] is None


def test_the_bar_counts_all_rooms_together(capsys: pytest.CaptureFixture[str]) -> None:
    def verdicts(file: str, outcomes: list[str]) -> list[Verdict]:
        mutant = [Mutant(file, (k, 0), "", 0, (k, k)) for k in range(len(outcomes))]
        return [
            Verdict(mutant=m, outcome=outcome, tests=1, how="", diff="") for m, outcome in zip(mutant, outcomes, strict=True)
        ]

    well, badly = verdicts("a/large.py", [KILLED] * 18), verdicts("b/small.py", [SURVIVED, NOT_REACHED])
    assert report([*well, *badly])
    assert not report([*well[1:], *badly])
    told = capsys.readouterr().out
    assert "b/small.py:0 survived" in told
    assert "all                               20      18  90.0%" in told


def test_an_interval_holds_its_share() -> None:
    for killed, of in ((0, 10), (5, 10), (10, 10), (85, 100)):
        low, high = wilson(killed, of)
        assert 0 <= low <= killed / of + 1e-12
        assert killed / of - 1e-12 <= high <= 1 + 1e-12
    assert wilson(85, 100) == pytest.approx((0.767, 0.907), abs=1e-3)
