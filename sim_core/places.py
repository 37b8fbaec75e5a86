"""Files that others may have put there: a folder for compiled code, locks, and inputs, which name any file."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from sim_core.errors import SpecError

NAME = "training-plan-sweep"
_CHOSEN = "NUMBA_CACHE_DIR"
_OF_IMAGE = "SWEEP_KERNELS"
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_TRUSTED = 0, os.geteuid()
LARGEST_INPUT = 2**30
"""Bytes of a file that is read whole."""
_PACKAGE = Path(__file__).parent
_LOOK = os.O_RDONLY | os.O_NONBLOCK
"""Waits for no pipe."""


def folder_for_code() -> Path:
    """A folder of this user alone, `choose_folder`; a line on standard error says which is not used, why, and what to do.

    A new one gets what `$SWEEP_KERNELS` holds, a folder of an image, where only root can have written.
    """
    usable, why = choose_folder()
    if why:
        advice = f"set {_CHOSEN} to a folder of yours that nobody else can write to"
        sys.stderr.write(f"note: {why}; compiled code is kept in {usable}: {advice}\n")
    made = Path(os.environ.get(_OF_IMAGE) or "/").resolve()
    with suppress(OSError):  # no room, say: it compiles
        if not usable.is_relative_to(made) and not any(usable.iterdir()) and _is_safe(made):
            from shutil import copytree
            from tempfile import TemporaryDirectory

            with TemporaryDirectory(dir=usable) as part:
                for folder in Path(copytree(made, f"{part}/all")).iterdir():
                    folder.replace(usable / folder.name)
    return usable


def _is_safe(folder: Path) -> bool:
    """Whether a folder is there, and nobody but root and this user can have written what it holds."""
    if not folder.is_dir() or of_others(folder):
        return False
    return all(_keeps_its_folders(each.stat(), direct=False) for each in folder.parents)


def choose_folder() -> tuple[Path, str]:
    """A folder of this user alone, made if need be, for code that will be loaded from there (`read_own`) and run.

    The first that is usable: `$NUMBA_CACHE_DIR`; one below `$XDG_CACHE_HOME` or `~/.cache`; one among the temporary files; in
    each of them one of this user, if others may write to it; a new one. Also why one is not used, if one is not; the processes
    that this one starts then use the other one, too.
    """
    import tempfile  # late: most commands only read

    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # remains `~` for a user without a home
    chosen, own = os.environ.get(_CHOSEN) or "", f"{NAME}-{os.geteuid()}"
    cached = os.path.join(caches, NAME) if os.path.isabs(caches) else ""
    why = ""
    for place in (Path(name).absolute() for name in (chosen, cached, os.path.join(tempfile.gettempdir(), own)) if name):
        fault = _fault(place)
        usable = next((folder.resolve() for folder in (place, place / own) if not _fault(folder)), None)
        if usable:
            break
        if chosen or os.path.lexists(place):
            why = why or f"{place}: {fault}"
    else:
        usable = Path(tempfile.mkdtemp(prefix=f"{NAME}-"))
        why = why or f"{place}: {fault}"
    if why:
        os.environ[_CHOSEN] = str(usable)
    return usable, why


def of_others(folder: Path) -> list[Path]:
    """What lies in a folder, and the folder itself, that others own or can write to."""
    return [path for path in (folder, *folder.rglob("*")) if _is_of_others(path.lstat())]


def _is_of_others(status: os.stat_result) -> bool:
    return status.st_uid not in _TRUSTED or bool(status.st_mode & _BY_OTHERS)


def _fault(place: Path) -> str:
    """Why a folder, made if need be, is not for this user's code alone; empty if it is.

    All may write to the folder right above it: what they put in its place has another owner, and is not read (`read_own`).
    """
    try:
        for folder in reversed([folder for folder in (place, *place.parents) if not folder.exists()]):
            folder.mkdir(mode=0o700, exist_ok=True)
        above = [*place.parents, *place.resolve().parents]
        next_above = None if place.is_symlink() else place.parent.resolve()
        status = place.stat()
        if not stat.S_ISDIR(status.st_mode):
            return "it is no folder"
        if status.st_uid != os.geteuid():
            return f"it belongs to user {status.st_uid}"
        if status.st_mode & _BY_OTHERS:
            return "others can write to it"
        if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
            return "it cannot be written to"
        theirs = [path for path in (place, *above) if path.lstat().st_uid not in _TRUSTED]
        theirs += [path for path in above if not _keeps_its_folders(path.stat(), direct=path.resolve() == next_above)]
        return f"others can put another in its place, in {theirs[0]}" if theirs else ""
    except OSError as error:
        return error.strerror or str(error)


def _keeps_its_folders(status: os.stat_result, *, direct: bool) -> bool:
    """Whether only root and this user can put another in the place of a folder in it; its own group may be a user's alone."""
    writers = stat.S_IWOTH if status.st_gid == os.getegid() else _BY_OTHERS
    return status.st_uid in _TRUSTED and bool(direct or not status.st_mode & writers or status.st_mode & stat.S_ISVTX)


def close_folder(path: Path) -> None:
    """Make a folder that only this user can enter, or let nobody else write to it.

    Raises SpecError if it is another user's or a link; OSError.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    with lock_file(path, _LOOK) as descriptor:
        status = os.fstat(descriptor)
        if status.st_uid not in _TRUSTED:
            raise SpecError(f"{path}: belongs to user {status.st_uid}, expected a folder of yours: remove it")
        if status.st_mode & _BY_OTHERS:
            os.fchmod(descriptor, 0o700)


def read_own(path: Path, levels: int) -> bytes | None:
    """What a file holds that nobody but this user and root can have written or put there; None if there is none.

    Raises SpecError if others can have: by its owner or mode, a link, or those of one of the `levels` folders above it.
    """
    with ExitStack() as opened:
        at = None
        for part in (str(path.parents[levels - 1]), *path.parts[-levels:]):
            try:
                at = opened.enter_context(lock_file(Path(part), _LOOK, at))
            except FileNotFoundError:
                return None
            if _is_of_others(os.fstat(at)):
                raise SpecError(f"{path}: others can write to {part}")
        with open(at or 0, "rb", closefd=False) as file:
            return file.read()


def open_input(path: str | Path, most: float = LARGEST_INPUT, buffer: int = -1) -> BinaryIO:
    """Open a file that a user names, or a file of a user, to be read: a regular file of `most` bytes, of any size if infinite.

    Raises SpecError for another, or one outside the folder of `$SWEEP_INSIDE`; OSError.
    """
    inside, real = os.environ.get("SWEEP_INSIDE"), Path(path).resolve()
    if inside and not any(real.is_relative_to(folder) for folder in (Path(inside).resolve(), _PACKAGE)):
        raise SpecError(f"{path}: lies outside {inside}, the folder of --inside")
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise SpecError(f"{path}: found a device, pipe or socket, expected a regular file")
    if status.st_size > most:
        raise SpecError(f"{path}: found {status.st_size:,} bytes, expected at most {most:,}")
    return (real if inside else Path(path)).open("rb", buffer)


def read_input(path: str | Path, most: int = LARGEST_INPUT) -> bytes:
    """The content of such a file; of one that grows, or says no size as the kernel's do, a little more than it has.

    Raises SpecError, OSError.
    """
    with open_input(path, most) as file:
        return file.read(os.fstat(file.fileno()).st_size + 2**16)


def write_own(path: Path, content: bytes) -> None:
    """Put a file that only this user can read and write in the place of another, at once."""
    import tempfile

    descriptor, part = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    Path(part).replace(path)


@contextmanager
def lock_file(path: Path, access: int = os.O_RDWR | os.O_CREAT, folder: int | None = None) -> Iterator[int]:
    """The descriptor of the file of a lock, which keeps what it holds; one that is made is open to those the umask says, as
    the files beside it are. `folder`: the open one that `path` starts from.

    Raises SpecError if a link lies there, which could lead to any file; OSError.
    """
    try:
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            expected = "the file of a lock" if access & os.O_RDWR else "a file or folder of yours"
            raise SpecError(f"{path}: found a symbolic link, expected {expected}") from None
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)
