"""`sweep ls`: who ran what below a folder of many teams, with the part of them that is asked for."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter

WHO = f"{os.environ.get('USER') or os.geteuid()}@{socket.gethostname()}"
PLACES = ("vision/anna/first", "vision/ben/second", "text/anna/first", "third")


@pytest.fixture
def store(write_spec: SpecWriter, tmp_path: Path) -> Path:
    """Results of two teams and one beside them, with a folder too deep and one that is hidden."""
    spec, store = write_spec(axes={"tp": [4, 8]}, where=None), tmp_path / "store"
    done = sweep("run", spec, "--out", store / PLACES[0], "--workers", 0, "--top", 0)
    assert done.returncode == 0, done.stderr
    for place in (*PLACES[1:], "a/b/c/d", ".hidden/x"):
        shutil.copytree(store / PLACES[0], store / place)
    return store


def listed(*arguments: object) -> list[tuple[str, str]]:
    """Folder and who of each result."""
    done = sweep("ls", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return sorted((row["folder"], row["who"]) for row in json.loads(done.stdout))


def test_results_of_all_teams_are_listed_with_who_began_them(store: Path) -> None:
    assert listed(store) == sorted((str(store / place), WHO) for place in PLACES)
    assert listed(store / "vision") == sorted((str(store / place), WHO) for place in PLACES[:2])
    assert WHO in sweep("ls", store).stdout


@pytest.mark.parametrize(("text", "places"), [("anna", (0, 2)), ("vision", (0, 1)), ("second", (1,)), (WHO, (0, 1, 2, 3))])
def test_those_with_a_text_are_listed_alone(store: Path, text: str, places: tuple[int, ...]) -> None:
    assert [folder for folder, _ in listed(store, "--with", text)] == sorted(str(store / PLACES[k]) for k in places)


def test_none_with_a_text_is_one_line(store: Path) -> None:
    done = sweep("ls", store, "--with", "nobody")
    assert (done.returncode, done.stderr) == (1, f"error: {store}: holds no results of a sweep with nobody\n")
