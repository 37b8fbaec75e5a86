"""Places where other users may have been first: nothing of theirs is loaded, no lock is followed or emptied."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sim_core import SpecError
from sim_core.places import folder_for_code, lock_file
from tests.conftest import ROOT, rest_long
from tests.other_users import OTHER, USER, needs_root, run_as

NAMED = f"training-plan-sweep-{os.geteuid()}"
NAMED_USER = f"training-plan-sweep-{USER}"
KERNEL = """
from sim_core.compiled import jit, kept

@jit.kernel
def doubled(value):
    return 2 * value

print(doubled(3.0), kept.cache_dir())
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder for temporary files, the only place that there is for code."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/no")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tmp_path.chmod(0o1777)
    return tmp_path


def refused(place: Path) -> bool:
    """Whether another folder is taken than `place`: a fresh one, closed to others, that processes started from here share."""
    taken = folder_for_code()
    if taken == place:
        return False
    assert stat.S_IMODE(taken.lstat().st_mode) == 0o700
    assert os.environ["NUMBA_CACHE_DIR"] == str(taken)
    assert list(taken.iterdir()) == []
    assert folder_for_code() == taken
    os.environ["NUMBA_CACHE_DIR"] = ""
    return True


def test_a_folder_among_the_temporary_files_is_ones_own(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = temporary / NAMED
    assert not refused(place)
    assert stat.S_IMODE(place.lstat().st_mode) == 0o700
    for mode, taken in ((0o755, place), (0o777, place / NAMED), (0o770, place / NAMED), (0o700, place)):
        place.chmod(mode)
        assert folder_for_code() == taken, oct(mode)
    temporary.chmod(0o777)  # what others put in its place has another owner, and is looked at (below)
    assert not refused(place)
    assert capsys.readouterr().err == ""
    place.rename(temporary / "mine")
    place.symlink_to(temporary / "mine")  # anyone could have made it
    assert refused(place)
    temporary.chmod(0o755)
    place.unlink()
    place.write_text("")
    assert refused(place)
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"note: {place}: others can put another in its place, in {temporary}; compiled code is kept in")
    assert told[1].startswith(f"note: {place}: it is no folder; compiled code is kept in ")


def test_of_a_chosen_folder_that_others_may_write_to_one_below_is_taken(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = temporary / "chosen"
    chosen.mkdir()
    (temporary / "link").symlink_to(chosen)  # where a user's cache lies is the user's choice
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(temporary / "link"))
    assert folder_for_code() == chosen
    chosen.chmod(0o777)
    assert folder_for_code() == chosen / NAMED
    (chosen / NAMED).chmod(0o777)
    assert folder_for_code() == temporary / NAMED
    assert capsys.readouterr().err == (
        f"note: {temporary / 'link'}: others can write to it; compiled code is kept in {temporary / NAMED}: "
        "set NUMBA_CACHE_DIR to a folder of yours that nobody else can write to\n"
    )


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, and beside it the cache of its kernel as a hostile user would leave it: each pickle makes a file `ran`."""
    folder = tmp_path_factory.mktemp("planted")
    script, cache = folder / "script.py", folder / "cache"
    script.write_text(KERNEL)
    mine = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(script)], env=mine, check=True, capture_output=True)

    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch $TMPDIR/ran",)

    files = [path for path in cache.rglob("*") if path.suffix in (".nbi", ".nbc")]
    assert len(files) == 2
    for path in files:
        content = pickle.dumps(Bomb())
        path.write_bytes(content + hashlib.sha256(content).digest())  # sealed, as its own
    return folder


@needs_root
@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
@pytest.mark.parametrize(
    ("name", "value", "place"),
    rest_long(
        [
            ("NUMBA_CACHE_DIR", "kernels", "kernels"),
            ("TMPDIR", ".", f"training-plan-sweep-{USER}"),
            ("XDG_CACHE_HOME", "xdg", "xdg/training-plan-sweep"),
            ("HOME", "home", "home/.cache/training-plan-sweep"),
        ],
        2,
    ),
)
def test_planted_machine_code_is_not_run(tmp_path: Path, planted: Path, name: str, value: str, place: str) -> None:
    tmp_path.chmod(0o1777)
    shutil.copytree(planted / "cache", tmp_path / place)
    for path in (tmp_path / place, *(tmp_path / place).rglob("*")):
        path.chmod(0o777)
        os.chown(path, OTHER, OTHER)
    variables = {"HOME": "/dev/null", "TMPDIR": tmp_path, "PYTHONPATH": ROOT, name: tmp_path / value}
    done = run_as(USER, [sys.executable, planted / "script.py"], folder=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    result, taken = done.stdout.split()
    assert (float(result), (tmp_path / "ran").exists()) == (6.0, False)
    assert Path(taken) != tmp_path / place
    assert Path(taken).lstat().st_uid == USER


def test_a_lock_is_not_emptied_and_follows_no_link(tmp_path: Path) -> None:
    lock, other = tmp_path / ".lock", tmp_path / "other"
    lock.write_text("kept")
    with lock_file(lock) as descriptor:
        assert not os.get_inheritable(descriptor)
    assert lock.read_text() == "kept"
    lock.unlink()
    lock.symlink_to(other)
    with pytest.raises(SpecError, match=r"\.lock: found a symbolic link, expected the file of a lock"), lock_file(lock):
        pass
    assert not other.exists()


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
@pytest.mark.parametrize("umask", [0, 0o002])
def test_what_a_process_keeps_can_be_written_by_its_user_alone_whatever_its_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "script.py").write_text(KERNEL)
    (tmp_path / "link").symlink_to(tmp_path)
    cache = tmp_path / "above" / "cache"
    mine = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "link" / "above" / "cache"), "PYTHONPATH": str(ROOT)}
    line = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(line, env=mine, check=True, capture_output=True, text=True, umask=umask)
    assert (done.stdout, done.stderr) == (f"6.0 {cache}\n", "")
    folders = [cache.parent, cache, *(path for path in cache.rglob("*") if path.is_dir())]
    assert [oct(stat.S_IMODE(path.stat().st_mode)) for path in folders] == ["0o700"] * 4
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert not any(path.stat().st_mode & 0o022 for path in files)
    before = {path: path.stat().st_ino for path in files}
    subprocess.run(line, env=mine, check=True, capture_output=True, umask=umask)
    assert {path: path.stat().st_ino for path in files} == before, "what it kept is loaded"


def opened_folders(cache: Path) -> None:
    """Folders that an earlier version left open, files in them that others replaced."""
    for path in cache.rglob("*"):
        path.chmod(0o777)
        if path.is_file():
            os.chown(path, OTHER, OTHER)


def opened_to_a_group(cache: Path) -> None:
    for path in cache.rglob("*"):
        path.chmod(0o770 if path.is_dir() else 0o660)
        os.chown(path, USER, OTHER)


def written_in_place(cache: Path) -> None:
    for path in cache.rglob("*.nb?"):
        path.chmod(0o666)


def of_another_user(cache: Path) -> None:
    for path in cache.rglob("*.nb?"):
        os.chown(path, OTHER, OTHER)
        path.chmod(0o644)


def links(cache: Path) -> None:
    for path in list(cache.rglob("*.nb?")):
        path.rename(cache.parent / path.name)
        path.symlink_to(cache.parent / path.name)


@needs_root
@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="kernels are plain Python")
@pytest.mark.parametrize("left", [opened_folders, opened_to_a_group, written_in_place, of_another_user, links])
def test_code_that_another_could_have_written_is_compiled_again(
    tmp_path: Path, planted: Path, left: Callable[[Path], None]
) -> None:
    """The folder that the user named is closed to others: what is below it need not be."""
    tmp_path.chmod(0o1777)
    shutil.copytree(planted / "cache", tmp_path / "mine")
    for path in (tmp_path / "mine", *(tmp_path / "mine").rglob("*")):
        os.chown(path, USER, USER)
        path.chmod(0o700 if path.is_dir() else 0o600)
    left(tmp_path / "mine")
    variables = {"TMPDIR": tmp_path, "PYTHONPATH": ROOT, "NUMBA_CACHE_DIR": tmp_path / "mine"}
    line = [sys.executable, planted / "script.py"]
    done = run_as(USER, line, folder=tmp_path, **variables)
    assert (done.returncode, done.stdout) == (0, f"6.0 {tmp_path / 'mine'}\n"), done.stderr
    assert done.stderr.startswith(f"note: {tmp_path / 'mine'}")
    assert done.stderr.endswith("; what it holds is compiled again\n")
    assert done.stderr.count("\n") == 1
    again = run_as(USER, line, folder=tmp_path, **variables)
    assert (again.stdout, again.stderr) == (done.stdout, ""), "what was compiled is kept"
    assert not (tmp_path / "ran").exists()


@needs_root
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o2775])
def test_in_a_folder_open_to_others_a_closed_one_is_made(tmp_path: Path, mode: int) -> None:
    """Kubernetes gives an emptyDir to everybody, a volume with fsGroup to a group."""
    place = tmp_path / "volume"
    place.mkdir()
    place.chmod(mode)
    os.chown(place, 0, USER)
    command = [sys.executable, "-c", "from sim_core.compiling import cache_dir; print(cache_dir())"]
    done = run_as(USER, command, folder="/", NUMBA_CACHE_DIR=place, PYTHONPATH=ROOT, TMPDIR=tmp_path)
    assert (done.stdout, done.stderr) == (f"{place / NAMED_USER}\n", "")
    assert stat.S_IMODE((place / NAMED_USER).stat().st_mode) & 0o777 == 0o700


@needs_root
@pytest.mark.parametrize(
    ("owner", "mode", "link", "told"),
    [
        (OTHER, 0o755, False, "it belongs to user 54321"),
        (OTHER, 0o777, False, "it belongs to user 54321"),
        (0, 0o755, False, "it belongs to user 0"),
        (USER, 0o700, True, "others can put another in its place"),
    ],
)
def test_a_folder_that_is_not_used_is_told_with_what_to_do(
    tmp_path: Path, owner: int, mode: int, link: bool, told: str
) -> None:
    place, taken = tmp_path / "chosen", tmp_path / "t" / NAMED_USER
    (tmp_path / "t").mkdir(mode=0o1777)
    (tmp_path / "t").chmod(0o1777)
    place.mkdir()
    place.chmod(mode)
    os.chown(place, owner, owner)
    if link:
        (tmp_path / "open").mkdir()
        (tmp_path / "open" / "link").symlink_to(place)
        (tmp_path / "open").chmod(0o777)
        place = tmp_path / "open" / "link"
    script = "import os, subprocess, sys; from sim_core.compiling import cache_dir; print(cache_dir(), flush=True)\n"
    script += "if len(sys.argv) < 2: subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'child'])"
    known = {"NUMBA_CACHE_DIR": place, "PYTHONPATH": ROOT, "TMPDIR": tmp_path / "t"}
    done = run_as(USER, [sys.executable, "-c", script], folder="/", **known)
    assert done.stdout == f"{taken}\n{taken}\n"
    assert done.stderr.startswith(f"note: {place}: {told}")
    assert done.stderr.endswith(f"in {taken}: set NUMBA_CACHE_DIR to a folder of yours that nobody else can write to\n")
    assert done.stderr.count("\n") == 1, "processes that it starts do not say it again"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Kernels of an image, as root leaves them: for all to read."""
    made = tmp_path / "image" / "kernels"
    (made / "kernels" / "a1").mkdir(parents=True)
    (made / "kernels" / "a1" / "code.nbi").write_bytes(b"compiled")
    for path in (tmp_path, made.parent, made, *made.rglob("*")):
        path.chmod(0o755)
    return made


def kept_of(user: int, image: Path, place: Path) -> str:
    """What the folder for code of a user holds who starts with the kernels of an image."""
    code = "from sim_core.places import folder_for_code as f; print([p.read_bytes() for p in f().rglob('*.nbi')])"
    line = [sys.executable, "-c", code]
    done = run_as(user, line, folder="/", PYTHONPATH=ROOT, NUMBA_CACHE_DIR=place, SWEEP_KERNELS=image)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_root
def test_any_user_finds_the_kernels_of_an_image(image: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, USER, USER)
    assert kept_of(USER, image, own / "kernels") == "[b'compiled']"
    assert {path.lstat().st_uid for path in (own / "kernels").rglob("*")} == {USER}
    (image / "kernels" / "a1" / "code.nbi").write_bytes(b"newer")
    assert kept_of(USER, image, own / "kernels") == "[b'compiled']", "what a user has stays"


@needs_root
@pytest.mark.parametrize("spoiled", ["mode", "owner", "link", "above", "absent"])
def test_kernels_that_others_can_have_written_are_not_taken(image: Path, tmp_path: Path, spoiled: str) -> None:
    own, file = tmp_path / "own", image / "kernels" / "a1" / "code.nbi"
    own.mkdir()
    os.chown(own, USER, USER)
    match spoiled:
        case "mode":
            file.chmod(0o666)
        case "owner":
            os.chown(file.parent, OTHER, OTHER)
        case "link":
            file.rename(tmp_path / "code")
            file.symlink_to(tmp_path / "code")
        case "above":
            image.parent.chmod(0o777)
        case "absent":
            shutil.rmtree(image)
    assert kept_of(USER, image, own / "kernels") == "[]"


def test_an_image_is_built_where_its_kernels_will_lie(tmp_path: Path) -> None:
    """As the Dockerfile does: the folder that others copy is the one that is filled; it is not copied into itself."""
    made = tmp_path / "kernels"
    code = "from sim_core.places import folder_for_code as f; print(f())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SWEEP_KERNELS": str(made)}
    for place in (made, made / "below", made / ".." / made.name):
        line = [sys.executable, "-c", code]
        done = subprocess.run(
            line, env={**environment, "NUMBA_CACHE_DIR": str(place)}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{place.resolve()}\n", "")
    assert {path.name for path in made.rglob("*")} == {"below"}
