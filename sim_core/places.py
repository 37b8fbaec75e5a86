"""Places on a disk where other users may have been first: a folder for compiled code, the files of locks."""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sim_core.errors import SpecError

NAME = "training-plan-sweep"
_CHOSEN = "NUMBA_CACHE_DIR"
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def folder_for_code() -> Path:
    """A folder of this user, made if need be, for code that will be loaded from there and run.

    The first that is usable: `$NUMBA_CACHE_DIR`; one below `$XDG_CACHE_HOME` or `~/.cache`; one among the temporary files; a
    new one there, which the processes that this one starts will use, too. One that belongs to another user, or that
    everybody may write to, is never usable; among the temporary files, neither is a link, nor a folder that others may
    write to or put another in the place of.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # remains `~` for a user without a home
    named = os.environ.get(_CHOSEN) or "", os.path.join(caches, NAME) if os.path.isabs(caches) else ""
    for place in map(Path, filter(None, named)):
        if _made(place) and _is_own(place.stat(), stat.S_IWOTH) and os.access(place, os.W_OK | os.X_OK):
            return place
    place = Path(tempfile.gettempdir(), f"{NAME}-{os.geteuid()}")
    if _made(place) and _is_own(place.lstat(), _BY_OTHERS) and _keeps_its_folders(place.parent.stat()):
        return place
    os.environ[_CHOSEN] = tempfile.mkdtemp(prefix=f"{NAME}-")
    return Path(os.environ[_CHOSEN])


def _made(place: Path) -> bool:
    """Whether there is a folder at this place, made for this user alone if there was none."""
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return True


def _is_own(status: os.stat_result, writers: int) -> bool:
    """Whether it is a folder of this user, to which none of `writers` may write."""
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & writers


def _keeps_its_folders(status: os.stat_result) -> bool:
    """Whether only root and this user can put another in the place of a folder of this user in it."""
    closed = not status.st_mode & _BY_OTHERS or status.st_mode & stat.S_ISVTX
    return bool(closed) and status.st_uid in (0, os.geteuid())


@contextmanager
def lock_file(path: Path, access: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    """The descriptor of the file of a lock, which keeps what it holds; one that is made is open to those the umask says, as
    the files beside it are.

    Raises SpecError if a link lies there, which could lead to any file; OSError.
    """
    try:
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SpecError(f"{path}: found a symbolic link, expected the file of a lock") from None
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)
