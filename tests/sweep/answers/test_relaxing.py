"""What a constraint costs, beside sweeps that really lack it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sim_core import SpecError
from sweep.answers.relaxing import COLUMNS, MEMORY, Relaxed, relax, sections_of
from sweep.api import run
from sweep.conditions import conjuncts
from sweep.ranking.ranking import rank
from sweep.reopening import reopened
from sweep.show.sections import print_sections
from tests.sweep.commands import sweep

WHERE = ["tp * pp <= 8", "tp <= 4", "pp > 1 or micro_batch = 1"]
SPEC: dict[str, Any] = {
    "name": "relaxed",
    "workload": {"model": "llama3-70b", "sequence": 8192},
    "hardware": "H100-SXM",
    "axes": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "micro_batch": [1, 2], "checkpointing": ["none", "full"]},
    "fixed": {"all_gpus": 128, "global_batch": 256, "layer_split": "balanced"},
    "where": WHERE,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("relaxing") / "out"
    run(SPEC, path)
    return path


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sweeps that lack one constraint."""
    specs = {each: SPEC | {"where": [other for other in WHERE if other != each]} for each in WHERE}
    specs[MEMORY] = SPEC | {"hardware": {"preset": "H100-SXM", "memory": "10 TB"}}
    folders = {each: tmp_path_factory.mktemp("without") / "out" for each in specs}
    for each, spec in specs.items():
        run(spec, folders[each])
    return folders


def best(path: Path, **options: Any) -> tuple[int, float]:
    """Plan and value of the best of a result."""
    ranking = rank(path, top=1, **options)
    return ranking.rows["plan"][0].as_py(), ranking.rows[ranking.by][0].as_py()


def found(one: Relaxed) -> tuple[int, float]:
    assert one.after is not None
    return one.after["plan"], one.after[one.by]


@pytest.mark.parametrize("options", [{}, {"by": "mfu"}, {"by": "bubble_s"}, {"where": "mfu < 0.38"}])
def test_the_best_without_a_constraint_is_that_of_a_sweep_without_it(
    options: dict[str, Any], folder: Path, without: dict[str, Path]
) -> None:
    told = {one.change: one for one in relax(reopened(folder), **options)}
    assert set(told) == {*WHERE, MEMORY, *([options["where"]] if "where" in options else [])}
    for constraint, path in without.items():
        assert found(told[constraint]) == best(path, **options), constraint
    row = told[MEMORY].after
    assert row["device_memory_bytes"] == pytest.approx(79.1 * 2**30), "that of the device, not of the one without limits"


def test_a_condition_of_the_command_is_left_out_of_the_stored_rows(folder: Path) -> None:
    where = "tp < 4 and micro_batch = 1 and step < 1000"
    told = {one.change: one for one in relax(reopened(folder), where=where) if one.origin == "--where"}
    assert list(told) == ["tp < 4", "micro_batch = 1", "step < 1000"]
    for constraint, others in (("tp < 4", "micro_batch = 1"), ("micro_batch = 1", "tp < 4")):
        ranking = rank(folder, top=1, where=others)
        assert found(told[constraint]) == (ranking.rows["plan"][0].as_py(), ranking.rows[ranking.by][0].as_py())
        assert told[constraint].excluded == ranking.ranked - rank(folder, where=f"{others} and {constraint}").ranked
    assert told["step < 1000"].better == 0
    assert told["step < 1000"].chosen == {}


def test_groups_apart(folder: Path) -> None:
    told = [one for one in relax(reopened(folder), per=["tp"]) if one.change == "tp <= 4"]
    assert {one.group["tp"]: (not one.before, not one.after) for one in told}[8] == (True, False), "opened by it"
    assert all(one.better == 0 for one in told if one.before), "a constraint on tp does nothing to other groups"


def test_the_command_says_it_in_words_and_rows(folder: Path) -> None:
    text = sweep("rank", folder, "--relax").stdout
    assert "best now is plan" in text
    assert f"{MEMORY}: plan" in text
    assert ", has 84.93 GB; it alone keeps" in text
    header, *lines = sweep("rank", folder, "--relax", "--format", "csv").stdout.splitlines()
    assert header.startswith(",".join(COLUMNS))
    assert len(lines) == len(WHERE) + 1
    wrong = sweep("rank", folder, "--relax", "--top", "3")
    assert wrong.returncode == 2
    assert "--top: found beside --relax, which takes --by" in wrong.stderr


def test_a_long_constraint_is_shortened_to_the_terminal(folder: Path) -> None:
    found = relax(reopened(folder), where=f"step < 1000{' + 0' * 40} and tp > 0")
    for width in (80, 48):
        out = io.StringIO()
        console = Console(file=out, width=width, force_terminal=True, color_system=None, soft_wrap=True)
        print_sections(sections_of(found, ()), console)
        table = out.getvalue().split("\n\n")[1].splitlines()
        assert len(table) == len(WHERE) + 5
        assert all(len(line) <= width for line in table), table
        assert any("\u2026" in line for line in table)


def test_what_it_cannot_answer_is_refused(folder: Path, tmp_path: Path) -> None:
    opened = reopened(folder)
    opened.provenance["search"] = {}
    with pytest.raises(SpecError, match="a search keeps the best alone; use `sweep run`"):
        relax(opened)
    run(SPEC | {"where": [], "hardware": {"preset": "H100-SXM", "memory": "10 TB"}}, tmp_path / "all")
    assert relax(reopened(tmp_path / "all")) == []


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("tp > 1", ["tp > 1"]),
        ("tp > 1 or pp > 1", ["tp > 1 or pp > 1"]),
        ("tp > 1 and (pp = 2 and not (ga = 1 or tp in (2, 4)))", ["tp > 1", "pp = 2", "(NOT ((ga = 1) OR (tp IN (2, 4))))"]),
        ("a between 1 and 2 and b like '(%)'", ["a BETWEEN 1 AND 2", "(b ~~ '(%)')"]),
    ],
)
def test_a_condition_is_taken_apart_at_its_ands(expression: str, parts: list[str]) -> None:
    assert conjuncts(expression) == parts
