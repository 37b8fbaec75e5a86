"""Files of a result beside its slices: deleted, damaged or of another sweep, no command answers from them without a word."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

import sweep as package
from sim_core import SpecError
from sweep.evaluation.preparation import prepare
from sweep.results.store import MANIFEST, Store
from sweep.spec.spec import load_spec
from sweep.tuning.record import NAME
from tests.sweep.commands import sweep
from tests.sweep.conftest import SLICED_AXES, filled, rows, spec_in

COMMANDS = {
    "status": ("status", "@"),
    "rank": ("rank", "@"),
    "show": ("show", "@"),
    "report": ("report", "@", "-o", "@.html"),
    "compare": ("compare", "@", "@"),
    "explain": ("explain", "@", "0", "--spec", "SPEC"),
    "whatif": ("whatif", "@", "0", "--nic", "25 GB/s", "--spec", "SPEC"),
    "export": ("export", "@", "--plan", "0", "--format", "json", "--spec", "SPEC"),
    "timeline": ("timeline", "@", "0", "-o", "@.json", "--spec", "SPEC"),
    "tune": ("tune", "@", "--spec", "SPEC"),
    "compact": ("compact", "@"),
}
TELL_HOW_MANY = ("status", "compare")
"""Commands whose answer itself says how many plans there are."""
OF_FILES = ("compact",)
"""Commands that answer nothing from the rows."""


@pytest.fixture
def out(sliced: Path, tmp_path: Path) -> Path:
    shutil.copytree(sliced, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of another sweep, with as many plans."""
    folder = tmp_path_factory.mktemp("other")
    spec = spec_in(folder, axes={**SLICED_AXES, "all_gpus": [64, 192]}, where=None, name="other")
    filled(folder / "out", prepare(load_spec(spec), folder))
    return folder


def line(command: str, out: Path, sliced_spec: Path) -> list[str]:
    return [word.replace("@", str(out)).replace("SPEC", str(sliced_spec)) for word in COMMANDS[command]]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_manifest_and_a_slice_that_are_gone_are_noted(out: Path, sliced_spec: Path, command: str) -> None:
    (out / MANIFEST).unlink()
    (out / Store(directory=out).slices()[-1].file_name).unlink()
    done = sweep(*line(command, out, sliced_spec))
    manifest = f"note: {out}/{MANIFEST}: is missing; its slices say what it said, the same `sweep run` writes it anew\n"
    missing = f"note: {out}: 8 of 96 plans are missing; the same `sweep run` adds them\n"
    expected = 2 * manifest if command == "compare" else manifest + missing * (command not in (*TELL_HOW_MANY, *OF_FILES))
    assert (done.returncode, done.stderr) == (0, expected)
    if command in TELL_HOW_MANY:
        assert "88 of 96 plans" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_manifest_of_another_sweep_is_refused(out: Path, sliced_spec: Path, other: Path, command: str) -> None:
    shutil.copy(other / "out" / MANIFEST, out / MANIFEST)
    done = sweep(*line(command, out, sliced_spec))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"error: {out}/{MANIFEST}: is of sweep other (")
    assert "the slices beside it are of small (" in done.stderr
    assert done.stderr.endswith("; move away what does not belong here\n")


def test_a_run_deletes_no_slices_that_are_all_of_another_sweep(out: Path, sliced_spec: Path, other: Path) -> None:
    before = rows(out)
    shutil.copy(other / "out" / MANIFEST, out / MANIFEST)
    for each in (sliced_spec, other / "small.yaml"):
        done = sweep("run", each, "--out", out, "--workers", 0, "--top", 0)
        assert (done.returncode, "move away what does not belong here" in done.stderr) == (1, True), done
    (out / MANIFEST).unlink()
    assert sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0).returncode == 0
    assert rows(out).equals(before)


def test_a_run_says_that_it_writes_the_manifest_anew(out: Path, sliced_spec: Path) -> None:
    for fault in ("missing", "damaged"):
        (out / MANIFEST).unlink() if fault == "missing" else (out / MANIFEST).write_bytes(b"PAR1")
        done = sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0)
        assert f"{out}/{MANIFEST}: is {fault} and is written anew\n" in done.stdout
        assert "is written anew" not in sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0).stdout


def test_no_flip_of_a_manifest_goes_without_a_word(out: Path) -> None:
    data, chance, store = (out / MANIFEST).read_bytes(), random.Random(28), Store(directory=out)
    told = store.provenance()
    for part in store.slices()[1:]:  # one is enough to tell
        (out / part.file_name).unlink()
    for bit in [chance.randrange(8 * len(data)) for _ in range(100)]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (out / MANIFEST).write_bytes(flipped)
        assert store.told()[1] == "is damaged"
    assert store.provenance() == told


def test_a_script_is_warned(out: Path, other: Path) -> None:
    (out / Store(directory=out).slices()[0].file_name).unlink()
    with pytest.warns(UserWarning, match="8 of 96 plans are missing"):
        package.load(out)
    shutil.copy(other / "out" / MANIFEST, out / MANIFEST)
    with pytest.raises(SpecError, match="is of sweep other"):
        package.load(out)


def test_a_result_without_a_manifest_is_listed(out: Path) -> None:
    (out / MANIFEST).unlink()
    assert "complete" in sweep("ls", out.parent).stdout


def test_locks_hold_nothing(out: Path, sliced_spec: Path) -> None:
    """Deleted, filled, or deleted while a run writes: as on an object store, two runs write the same rows."""
    before, store = rows(out), Store(directory=out)
    (out / store.slices()[2].file_name).unlink()
    with store.opened(store.made_from()):
        (out / ".lock").unlink()
        assert sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0).returncode == 0
    (out / ".lock").write_bytes(b"\0" * 100)
    assert "Nothing to do" in sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0).stdout
    assert rows(out).equals(before)


def test_a_table_of_runs_that_has_become_empty_is_no_table(out: Path, sliced_spec: Path) -> None:
    (out / NAME).touch()
    for more in ((), ("--add", "plan=0", "--step", "1 s")):
        done = sweep("tune", out, "--spec", sliced_spec, *more)
        assert (done.returncode, done.stderr) == (
            1,
            f"error: {out}/{NAME}:1: heading: found an empty file, "
            "expected plan,state,step_time_s,peak_memory_gib,log,note,sweep; delete it to begin anew\n",
        )


def test_a_folder_in_the_place_of_a_slice_is_named(out: Path, sliced_spec: Path) -> None:
    place = out / Store(directory=out).slices()[0].file_name
    place.unlink()
    place.mkdir()
    done = sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0)
    assert (done.returncode, done.stderr) == (1, f"error: {place}: Is a directory\n")
