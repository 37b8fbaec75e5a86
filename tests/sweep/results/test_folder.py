"""Places: the same operations on a local disk, on a real S3 server, on a file system with folders but no disk of ours."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.results.folder import Folder, folder_at


@pytest.fixture(params=["path", "relative", "file", "s3", "s3-options", "elsewhere"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """An empty place of each kind (`elsewhere`: Arrow's file system in memory, which stands for HDFS: it can move)."""
    kind = request.param
    if kind.startswith("s3"):
        bucket = request.getfixturevalue("bucket")
        options = ""
        if kind == "s3-options":
            server = request.getfixturevalue("s3_server")
            options = f"?endpoint_override={server}&scheme=http&region=us-east-1"
            monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody: the options win
        return folder_at(f"{bucket}/some/where{options}")
    if kind == "relative":
        monkeypatch.chdir(tmp_path)
        return folder_at("some/where")
    given: dict[str, Path | str] = {
        "path": tmp_path / "some/where",
        "file": f"file://{tmp_path}/some/where",
        "elsewhere": f"mock:///{tmp_path}/x",
    }
    return folder_at(given[kind])


def test_what_is_written_is_read(folder: Folder) -> None:
    assert folder.names() == []
    folder.make()
    folder.write_bytes("b.txt", b"1")
    folder.write_bytes("b.txt", b"22")
    folder.write_bytes("a.txt", b"")
    (folder / "below").make()
    (folder / "below").write_bytes("c.txt", b"\x00\xff" * 3_000_000)
    assert folder.names() == ["a.txt", "b.txt"]
    assert folder.subfolders() == ["below"]
    assert folder.read_bytes("b.txt") == b"22"
    assert folder.read_bytes("a.txt") == b""
    assert (folder / "below").read_bytes("c.txt") == b"\x00\xff" * 3_000_000
    assert not folder.is_file()
    assert (folder / "a.txt").is_file()
    folder.delete("b.txt")
    assert folder.names() == ["a.txt"]


def test_a_missing_file_is_named(folder: Folder) -> None:
    folder.make()
    for action in (folder.read_bytes, folder.delete):
        with pytest.raises(FileNotFoundError) as told:
            action("gone.txt")
        assert told.value.filename == str(folder / "gone.txt")
    assert folder.written_s("gone.txt") is None


def test_it_knows_when_a_file_was_written(folder: Folder) -> None:
    folder.make()
    folder.write_bytes("a", b"1")
    assert (folder.written_s("a") or 0) > 1.6e9


def test_it_means_the_same_in_another_process_and_folder(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make()
    folder.write_bytes("a", b"1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = pickle.loads(pickle.dumps(folder / "below"))
    assert str(again) == str(folder / "below")
    assert pickle.loads(pickle.dumps(folder)).read_bytes("a") == b"1"


def test_a_write_that_fails_leaves_the_file_as_it_was(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.make()
    folder.write_bytes("a", b"before")

    def fails(*arguments: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "fsync", fails)
    monkeypatch.setattr(Folder, "_put", fails)
    with pytest.raises(OSError, match="no"):
        folder.write_bytes("a", b"after")
    assert folder.names() == ["a"]
    assert folder.read_bytes("a") == b"before"


def test_a_full_disk_names_the_file_and_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: the file needs 2 kB, .*B are free") as told:
        folder_at(tmp_path).write_bytes("a", b"x" * 2000)
    assert told.value.filename == str(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder_is_told_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_at("some/where").absolute == str(tmp_path / "some/where")


def test_a_bucket_that_is_not_there_is_told_in_one_line(bucket: str) -> None:
    absent = folder_at(f"{bucket}-absent/x")
    with pytest.raises(OSError, match=rf"{bucket}-absent/x/a: .*NO_SUCH_BUCKET") as told:
        absent.write_bytes("a", b"1")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("text", ["ftp://host/x", "s3://", "s3://b/x?endpont_override=h", "s3://key:secret@b/x?nope=1"])
def test_a_uri_that_no_file_system_takes_is_one_line_without_secrets(text: str) -> None:
    with pytest.raises(SpecError, match="expected a folder or a URI of s3, gs, hdfs, file") as told:
        folder_at(text)
    assert "\n" not in str(told.value)
    assert "secret" not in str(told.value)


def test_secrets_are_not_shown(bucket: str) -> None:
    assert str(folder_at(f"s3://key:secret@{bucket.removeprefix('s3://')}/x")) == f"s3://***{bucket.removeprefix('s3://')}/x"
