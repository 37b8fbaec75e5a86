"""Results of earlier versions, as real runs left them: every command that reads a result reads them, and says how old they are.

`releases/COMMIT.tar.xz` was made by that commit in plain Python: 038c849a is the first with a command line, 4dad4146 is
0.2.0, the others are ends of stages. Each ran SMALL, and those that could also MODEL, a search of MODEL, and a night with
SMALL. Locks, reports and inputs are left out; the workload is an example.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from sweep.compare.comparison import compare
from tests.conftest import GPT7B, rest_long
from tests.sweep.test_execution import here

SMALL = """name: small
workload: {path: w.txt, micro_batch: 1, sequence: 2048}
hardware: H100-SXM
axes:
  tp: [1, 2, 4, 8]
  pp: [1, 2, 4]
  ga: [1, 4]
fixed: {all_gpus: 64, layer_split: balanced, checkpointing: none}
where: [tp * pp <= 16]
"""
MODEL = """name: model
model: llama3-8b
hardware: H100-SXM
axes:
  tp: [1, 2, 4]
  pp: [1, 2]
  micro_batch: [1, 2]
fixed: {all_gpus: 16, global_batch: 64}
"""
NIGHTLY = """name: previous
sweeps: [small.yaml]
root: root
workers: 0
thresholds: {best: null, median_step: null, infeasible: null}
"""
FIRST, LAST, NAMED = "038c849a", "849f8663", "4dad4146"
RELEASES = (LAST, NAMED, FIRST, "b1e92588", "35e516f4", "32907bc1")
COMMANDS = ("ls", "status", "rank", "show", "explain", "whatif", "report", "tune", "compact", "rank")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What this version makes of the specs."""
    folder = tmp_path_factory.mktemp("new")
    shutil.copy(GPT7B, folder / "w.txt")
    for name, text in {"small": SMALL, "model": MODEL, "nightly": NIGHTLY}.items():
        (folder / f"{name}.yaml").write_text(text)
    for kind, name in (("run", "small"), ("run", "model"), ("search", "model")):
        here(kind, folder / f"{name}.yaml", "--workers", 0, "-q", "--out", folder / "new" / (name if kind == "run" else kind))
    return folder


@pytest.fixture
def release(request: pytest.FixtureRequest, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a version left, with its specs; the working folder."""
    shutil.copytree(new, tmp_path, dirs_exist_ok=True)
    with tarfile.open(Path(__file__).parent / "releases" / f"{request.param}.tar.xz") as kept:
        kept.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def results(release: Path) -> list[Path]:
    found = [path.relative_to(release) for path in (*release.glob("results/*"), *release.glob("root/results/*"))]
    assert found
    return found


@pytest.mark.parametrize("release", rest_long(RELEASES, 3), indirect=True)
def test_every_command_reads_them(release: Path) -> None:
    for result in results(release):
        assert f"error: {result}: is a result" in here("inspect", result, expect=1)
        for command in COMMANDS:
            more = {"whatif": ("--gpus", 32), "report": ("-o", "page.html")}.get(command, ())
            told = here(command, result, *more)
            assert result.name in told or command in ("rank", "explain", "whatif", "tune"), (result, command, told)
            assert "error:" not in told, (result, command, told)
        listed, ranked = (
            json.loads(here(*line, "--json")) for line in (("ls", result), ("rank", result, "--per", "", "--top", 1))
        )
        assert (listed[0]["state"], listed[0]["plan"]) == ("complete", ranked[0]["plan"])


@pytest.mark.parametrize("release", rest_long(RELEASES, 3), indirect=True)
def test_they_are_compared_with_those_of_this_version(release: Path) -> None:
    for result in results(release):
        own = release / "new" / result.name.partition("-")[0]
        assert "what changed" in here("compare", result, own)
        found = compare(release / result, own)
        assert found.matched > 0 or result.name == "search", "another plan may be the best now"
        for change in found.inputs:  # no file has changed, and no key of a spec that its default has not
            assert (
                change.kind in ("model", "hardware", "default", "code")
                or not change.moves_results
                or "or the same" in change.new
            )


@pytest.mark.parametrize("release", rest_long([name for name in RELEASES if name != FIRST], 2), indirect=True)
def test_their_night_is_the_baseline_of_the_next(release: Path) -> None:
    (before,) = (path.name for path in (release / "root" / "nights").iterdir() if path.is_dir())
    here("nightly", "nightly.yaml")
    nights = [json.loads(path.read_text()) for path in (release / "root" / "nights").glob("*/night.json")]
    assert [night["sweeps"][0]["baseline"] for night in nights if night["night"] != before] == [before]
    assert before in here("nightly", "status", "nightly.yaml")
