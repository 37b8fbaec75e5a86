"""Files that a spec names are untrusted: none is waited for, read without end, shown, or outside the folder that is allowed."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

import pytest

from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter

SECRET: Final = "root:$6$hunter2$Zb.:20228:0:99999:7:::\ndaemon:*:20228:0:99999:7:::\n"
COMMANDS: Final = ("run", "simulate", "inspect", "replay", "model", "fit", "init", "nightly run", "search")
NAMES: Final = ("workload", "model", "hardware", "stack", "measured_on")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--inside` is for a process and those that it starts."""
    monkeypatch.setenv("SWEEP_INSIDE", "")


def named_by(write_spec: SpecWriter, key: str, path: Path) -> Path:
    """A spec that names a file as its workload, model, hardware or stack."""
    if key == "workload":
        return write_spec(workload=str(path), axes=None, where=None)
    if key == "hardware":
        return write_spec(hardware=str(path), axes=None, where=None)
    if key == "measured_on":
        return write_spec(workload={"path": "w.txt", "model": "llama2-7b", key: str(path)}, axes=None, where=None)
    return write_spec(workload={"model": "llama2-7b"} | {key: str(path)}, axes=None, where=None)


@pytest.mark.parametrize("suffix", ["", ".yaml", ".json"])
@pytest.mark.parametrize("key", NAMES)
def test_what_is_no_regular_file_is_refused_at_once(write_spec: SpecWriter, tmp_path: Path, key: str, suffix: str) -> None:
    pipe, zero, bound = (tmp_path / f"{name}{suffix}" for name in ("pipe", "zero", "bound"))
    os.mkfifo(pipe)
    zero.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bound))
        for path in (pipe, zero, bound):
            told = sweep("run", named_by(write_spec, key, path), "--dry-run")
            assert (told.returncode, told.stdout) == (1, ""), told.stderr
            assert told.stderr.count("\n") == 1
            assert "found a device, pipe or socket, expected a regular file" in told.stderr or "unknown" in told.stderr
            assert "Traceback" not in told.stderr


@pytest.mark.parametrize("command", ["run", "simulate", "inspect", "replay", "model", "fit", "tune", "init", "calibrate nccl"])
def test_commands_refuse_what_is_no_regular_file(tmp_path: Path, command: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        told = sweep(*command.split(), path)
        assert told.returncode in (1, 2), told.stdout
        assert "Traceback" not in told.stderr
        assert told.stderr.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize("suffix", [".yaml", ".json", ".txt"])
def test_a_file_beyond_any_sense_is_not_read(write_spec: SpecWriter, tmp_path: Path, suffix: str) -> None:
    huge = tmp_path / f"huge{suffix}"
    with huge.open("wb") as file:
        file.truncate(2**40)
    for key in NAMES:
        told = sweep("run", named_by(write_spec, key, huge), "--dry-run")
        assert told.returncode == 1
        assert told.stderr.count("\n") == 1
        told_so = ("found 1,099,511,627,776 bytes, expected at most", "unknown", "holds no text")
        assert any(words in told.stderr for words in told_so), told.stderr


@pytest.mark.parametrize(
    "text", [SECRET, "127.0.0.1 hunter2\n", "hunter2\n", "HUNTER2 hunter2\n", "- hunter2\n", '"hunter2"\n']
)
@pytest.mark.parametrize("suffix", ["", ".yaml", ".json"])
def test_the_content_of_a_foreign_file_is_not_shown(write_spec: SpecWriter, tmp_path: Path, text: str, suffix: str) -> None:
    secret = tmp_path / f"secret{suffix}"
    secret.write_text(text)
    told = [sweep("run", named_by(write_spec, key, secret), "--dry-run") for key in NAMES]
    told += [sweep(*command.split(), secret) for command in COMMANDS]
    for each in told:
        assert each.returncode in (1, 2), each.stdout
        assert "unter2" not in each.stderr.lower().replace("secret", ""), each.stderr


@pytest.mark.parametrize("key", NAMES)
def test_paths_are_confined_to_a_folder(write_spec: SpecWriter, tmp_path: Path, key: str) -> None:
    """Neither an absolute path, nor `..`, nor a link leads out of it."""
    outside, inside = tmp_path / "outside.yaml", tmp_path / "inside"
    outside.write_text("name: x\n")
    inside.mkdir()
    (inside / "link.yaml").symlink_to(outside)
    for path in (outside, Path("..") / "outside.yaml", inside / "link.yaml"):
        spec = named_by(write_spec, key, path)
        (inside / "w.txt").write_bytes((tmp_path / "w.txt").read_bytes())
        spec = spec.rename(inside / "s.yaml")
        told = sweep("--inside", inside, "run", spec, "--dry-run")
        assert told.returncode == 1
        assert told.stderr.endswith(f"lies outside {inside}, the folder of --inside\n"), told.stderr
        assert told.stderr.count("\n") == 1


def test_a_spec_within_the_folder_runs(write_spec: SpecWriter, tmp_path: Path) -> None:
    told = sweep("--inside", tmp_path, "run", write_spec(axes={"tp": [4]}, where=None), "--dry-run")
    assert told.returncode == 0, told.stderr
    told = sweep("--inside", tmp_path / "none", "run", write_spec(axes={"tp": [4]}, where=None), "--dry-run")
    assert (told.returncode, told.stderr) == (1, f"error: {tmp_path / 'none'}: No such file or directory\n")
