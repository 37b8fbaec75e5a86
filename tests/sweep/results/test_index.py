"""`sweep ls`: who ran what below a folder of many teams, with the part of them that is asked for."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sweep.results.store import BEST
from tests.conftest import ROOT
from tests.other_users import needs_root
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


ASKED = """
import sys
from pathlib import Path
from sweep.listing import results_below
from sweep.results.folder import folder_at
for each in results_below(folder_at(Path(sys.argv[1]))): print(each.state, each.plan, each.best, each.by)
print(*(name for name in ("numba", "duckdb", "sim_core.batch", "sweep.ranking.ranking") if name in sys.modules))
"""


def asked(place: Path) -> list[str]:
    """What a process of its own is told of the results at a place, and what it has loaded of what is not needed."""
    done = subprocess.run([sys.executable, "-c", ASKED, place], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_best_plan_is_read_as_the_run_kept_it_and_nothing_is_ranked(store: Path) -> None:
    place = store / PLACES[3]
    (first,) = json.loads(sweep("rank", place, "--json", "--per", "", "--top", 1).stdout)
    told = f"complete {first['plan']} {first['gpu_s_per_sample']} gpu_s_per_sample"
    assert asked(place) == [told, ""]
    kept = json.loads((place / BEST).read_text())
    changes: list[dict[str, object]] = [{"sweep": "another"}, {"plans": 1}, {"by": ["x"]}, {"plan": "1"}]
    for other in (b"", b"{", b"[]", b"\xff", b'{"sweep": 1}', *(json.dumps({**kept, **change}).encode() for change in changes)):
        (place / BEST).write_bytes(other)
        assert asked(place) == [told, "duckdb sim_core.batch sweep.ranking.ranking"], other
    (place / BEST).unlink()  # of an earlier version
    assert asked(place)[0] == told
    (store / PLACES[0] / BEST).rename(place / BEST)
    assert asked(place) == [told, ""]


CLOSED = """
import os, sys
from pathlib import Path
from sweep.listing import results_below
from sweep.results.folder import folder_at
results_below(folder_at(Path(sys.argv[1])))  # all that it reads of the clone, which may be closed to others as well
os.setgroups([]); os.setgid(12345); os.setuid(12345)  # without the capabilities of root
print(*(each.folder for each in results_below(folder_at(Path(sys.argv[1])))))
"""


@needs_root
def test_a_folder_that_is_closed_to_this_user_hides_its_results_alone(store: Path) -> None:
    for path in (store, *store.parents):
        if Path(tempfile.gettempdir()) in path.parents:  # pytest's own, which it closes anew
            path.chmod(0o755)
    (store / "text").chmod(0o700)
    done = subprocess.run([sys.executable, "-c", CLOSED, store], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(str(store / place) for place in PLACES if not place.startswith("text"))
