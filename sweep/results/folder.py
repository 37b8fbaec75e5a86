"""A folder on any file system that `pyarrow.fs` supports (a path, s3://, gs://, hdfs://), with atomic writes.

A write is atomic in one of three ways: on a local disk, a temporary file is synced and renamed; on an object store, which has
no rename, the finished bytes are one PUT; elsewhere, a temporary file is moved.
"""

import errno
import fcntl
import os
import re
import resource
import shutil
import socket
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from sim_core import SpecError, short, shown
from sim_core.masking import masked, without_secrets
from sim_core.places import lock_file
from sweep.results.patience import CHECK_NETWORK, UNREACHED, Result, StoreUnavailable, advice, patiently

_REFUSED = {
    "Cannot parse URI": "is no URI: in a user or password write %2F for /, %40 for @, %20 for a space",
    "Unexpected query parameter": "has an option that its file system does not know",
    "username": "has a user, which its file system does not take",
    "libjvm": "needs Java and Hadoop, which are not found (JAVA_HOME, HADOOP_HOME)",
    "libhdfs": "needs Hadoop, which is not found (HADOOP_HOME)",
    "names no folder": "names no folder",
}
"""What is said of a URI that was refused, by words of Arrow's message, which may repeat secrets."""

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OBJECT_STORES = ("s3", "gcs", "abfs")
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)
"""What flock answers on Lustre without `-o flock`, on some FUSE, on NFS without a lock daemon."""
_LARGEST = 2**32
_OWNER = ".owner"
_PROCESS = re.compile(r"host ([\w.-]+), process (\d+), started at tick [\w?]+")


@dataclass(frozen=True)
class Folder:
    """A folder: the path or URI as the user gave it (`given`), and a path below it (`below`). Picklable.

    A local path is made absolute at once, so that it names the same folder in a process with another working directory.
    Options of a file system go into the URI's query (`s3://bucket/x?endpoint_override=host:9000&scheme=http`) or its usual
    environment variables. Every method raises OSError with the folder in its message: StoreUnavailable if an object store
    failed at every attempt, in a way that may pass.
    """

    given: str
    root: str
    below: str = ""

    def __str__(self) -> str:
        """As given, with secrets masked."""
        head, mark, query = masked(self.given).partition("?")
        return f"{head.rstrip('/')}/{self.below}{mark}{query}" if self.below else head + mark + query

    def __truediv__(self, name: str) -> "Folder":
        return replace(self, below=f"{self.below}/{name}" if self.below else name)

    @property
    def local(self) -> Path | None:
        """Its path on this machine's file system; None on any other."""
        return Path(self.root) / self.below if not _URI.match(self.root) else None

    @property
    def absolute(self) -> str:
        """The same for readers elsewhere: a local path in full."""
        return str(self) if self.local is None else str(self.local)

    @property
    def is_object_store(self) -> bool:
        """Whether it is on an object store: no rename, no lock."""
        return self.filesystem.type_name in _OBJECT_STORES

    @property
    def filesystem(self) -> fs.FileSystem:
        """The file system that it is on."""
        return _opened(self.root)[0]

    def path(self, name: str = "") -> str:
        """The path of the folder, or of the file `name` in it, as the file system expects it."""
        return "/".join(filter(None, (_opened(self.root)[1].rstrip("/"), self.below, name)))

    def make(self) -> None:
        """Create the folder; on an object store there is nothing to create."""
        if not self.is_object_store:
            with self._naming_errors():
                self.filesystem.create_dir(self.path())

    def is_file(self) -> bool:
        """Whether the path is a file."""
        return bool(self._info().type == fs.FileType.File)

    def read_bytes(self, name: str) -> bytes:
        """The bytes of the file `name`. Raises FileNotFoundError."""

        def read() -> bytes:
            if self.local is not None:  # where others may have put a pipe, a device, or terabytes of zeros
                found = (self.local / name).stat()
                if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                    raise OSError(f"found no regular file of at most {short(_LARGEST, 'B')}")
            with self.filesystem.open_input_stream(self.path(name), compression=None) as stream:
                return bytes(stream.read())

        return self._done(read, name)

    def write_bytes(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write the file `name`, or replace it, atomically."""
        if self.local is not None:
            _write_local(self.local, name, data)
            return
        if self.is_object_store:
            self._done(lambda: self._put(self.path(name), data), name)
            return
        with self._naming_errors(name):
            temporary = self.path(_temporary(name))
            try:
                self._put(temporary, data)
                self.filesystem.move(temporary, self.path(name))
            except BaseException:
                if self.filesystem.get_file_info(temporary).type == fs.FileType.File:
                    self.filesystem.delete_file(temporary)
                raise

    def _put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write all bytes at once, so that closing the stream can never publish a part of them."""
        with self.filesystem.open_output_stream(path, compression=None, buffer_size=None) as stream:
            stream.write(data)

    def names(self) -> list[str]:
        """Sorted names of the files in the folder; empty if it does not exist."""
        return sorted(self.written())

    def subfolders(self) -> list[str]:
        """Sorted names of the folders in it; empty if it does not exist."""
        return sorted(info.base_name for info in self._infos() if info.type == fs.FileType.Directory)

    def written(self) -> dict[str, tuple[float, int]]:
        """Of each file in it when it was last written, in seconds since 1970, and its bytes."""
        return {info.base_name: (info.mtime_ns * 1e-9, info.size) for info in self._infos() if info.type == fs.FileType.File}

    def written_s(self, name: str) -> float | None:
        """When the file `name` was last written, in seconds since 1970; None if it does not exist."""
        info = self._info(name)
        return float(info.mtime_ns) * 1e-9 if info.type == fs.FileType.File else None

    def delete(self, name: str) -> None:
        """Delete the file `name`. Raises FileNotFoundError."""
        self._done(lambda: self.filesystem.delete_file(self.path(name)), name)

    def remove_if_empty(self) -> None:
        """Delete the folder, or its marker on an object store, if nothing is in it."""
        if self._info().type == fs.FileType.Directory and not self._infos():
            self._done(lambda: self.filesystem.delete_dir(self.path()))

    def probe(self) -> None:
        """Raise OSError unless an object store returns what is written to it; the trial object is deleted."""
        if not self.is_object_store:
            return
        name, data = f".probe-{uuid.uuid4().hex[:12]}", os.urandom(4096)
        self.write_bytes(name, data)
        returned = self.read_bytes(name)
        self.delete(name)
        if returned != data:
            raise OSError(
                f"{self}: the store returns {len(returned):,} other bytes than the {len(data):,} written; set "
                "AWS_REQUEST_CHECKSUM_CALCULATION=when_required (some S3-compatible servers store the checksum with the object)"
            )

    def _info(self, name: str = "") -> Any:
        return self._done(lambda: self.filesystem.get_file_info(self.path(name)), name)

    def _infos(self) -> Sequence[Any]:
        selector = fs.FileSelector(self.path(), allow_not_found=True)
        return list(self._done(lambda: self.filesystem.get_file_info(selector)))

    def _done(self, action: Callable[[], Result], name: str = "") -> Result:
        """The result of an action on the file `name`; an object store may fail for a while."""
        with self._naming_errors(name):
            return patiently(action, renew=_opened.cache_clear) if self.is_object_store else action()

    @contextmanager
    def _naming_errors(self, name: str = "") -> Iterator[None]:
        """Turn every failure inside the block into an OSError that names the file."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            where = str(self / name) if name else str(self)
            if number := getattr(error, "errno", None):
                raise type(error)(number, os.strerror(number), where) from None
            kind = StoreUnavailable if isinstance(error, StoreUnavailable) else OSError
            raise kind(f"{where}: {without_secrets(' '.join(str(error).split()), self.given)}") from None


Location = Folder | Path | str
"""The forms in which a caller may give a folder."""


def folder_at(location: Location) -> Folder:
    """The folder that a path or URI names, without looking it up. Raises SpecError on a URI that no file system accepts."""
    if isinstance(location, Folder):
        return location
    text = str(location)
    if not text.strip():
        raise SpecError(f"found {shown(text)}, expected a folder or a URI")
    if not _URI.match(text):
        return Folder(text, str(Path(text).absolute()))
    try:
        filesystem, path = _opened(text)
        if not path:
            raise ValueError("names no folder")
    except (OSError, ValueError, pa.ArrowException) as error:
        said = str(error)  # and may repeat secrets
        known = next((words for word, words in _REFUSED.items() if word in said), "")
        unreached = f"cannot be reached; {CHECK_NETWORK}" if any(word in said for word in UNREACHED) else ""
        why = known or advice(said) or unreached or "cannot be opened"
        raise SpecError(f"{masked(text)}: {why}; expected a folder or a URI of s3, gs, hdfs, file") from None
    return Folder(text, path if filesystem.type_name == "local" else text)


@cache
def _opened(root: str) -> tuple[fs.FileSystem, str]:
    """The file system of a root, and the path on it; opened once per process for all folders below the root."""
    if not _URI.match(root):
        return fs.LocalFileSystem(), root
    if root.startswith("s3://"):  # one PUT for an object, instead of the three requests of an upload in parts
        root += ("&" if "?" in root else "?") + "allow_delayed_open=true"
    filesystem, path = fs.FileSystem.from_uri(root)
    return filesystem, path


@contextmanager
def only_one(file: Path, refusal: str) -> Iterator[None]:
    """Hold the lock in a local file, which no other process can hold meanwhile. Raises SpecError with `refusal` if one does.

    Where the file system has no flock, a file beside it, which can be created only once, names the process that holds it.
    """
    with lock_file(file) as lock:
        got = flock(lock, fcntl.LOCK_EX)
        if got is False:
            raise SpecError(refusal)
        with nullcontext() if got else _owned(file.with_name(file.name + _OWNER), refusal):
            yield


def is_held(file: Path) -> bool:
    """Whether a process holds the lock in a local file."""
    if not file.is_file():
        return False
    with lock_file(file, os.O_RDONLY) as lock:
        got, owner = flock(lock, fcntl.LOCK_SH), file.with_name(file.name + _OWNER)
        return owner.exists() and not _owner_of(owner)[1] if got is None else not got


def flock(lock: int, how: int) -> bool | None:
    """Whether flock got the lock; None where the file system has no flock."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        return None
    return True


@contextmanager
def _owned(file: Path, refusal: str) -> Iterator[None]:
    """Hold the lock that is the existence of `file`; one whose owner, a process of this machine, has ended is taken over."""
    if (found := _owner_of(file))[1]:
        aside = file.with_name(_temporary(file.name))
        file.rename(aside)
        if _owner_of(aside) == found:
            aside.unlink()
        else:  # another was faster, and this is its own
            aside.rename(file)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        raise SpecError(f"{refusal} ({_owner_of(file)[0]}); if that has ended, delete {file}") from None
    _say_once(file.parent)
    try:
        with os.fdopen(descriptor, "w") as named:
            named.write(_process(str(os.getpid())))
        yield
    finally:
        file.unlink(missing_ok=True)


def _owner_of(file: Path) -> tuple[str, bool]:
    """The process that a lock names, and whether it was one of this machine and has ended."""
    with suppress(OSError, ValueError), file.open(encoding="ascii") as named:
        if match := _PROCESS.fullmatch(named.read(400)):
            return match[0], match[1] == socket.gethostname() and _process(match[2]) != match[0]
    return "unnamed", False


def _process(pid: str) -> str:
    """A process of this machine: when it started tells it from another with its number; unknown without /proc."""
    started = "?"
    if Path("/proc/self").exists():
        with suppress(OSError):
            started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"host {socket.gethostname()}, process {pid}, started at tick {started}"


@cache
def _say_once(folder: Path) -> None:
    sys.stderr.write(f"note: {folder}: its file system has no flock; a file names the process that holds the lock\n")


def _temporary(name: str) -> str:
    """A unique temporary name, whichever machine writes it."""
    return f".{name}.{uuid.uuid4().hex[:12]}"


def _write_local(folder: Path, name: str, data: bytes | pa.Buffer) -> None:
    temporary = folder / _temporary(name)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / name)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(error.errno, error.strerror, str(folder / name)) from None
        limit = f"{short(shutil.disk_usage(folder).free, 'B')} are free"
        if error.errno == errno.EFBIG:
            limit = f"files may have {short(resource.getrlimit(resource.RLIMIT_FSIZE)[0], 'B')} (ulimit -f)"
        text = f"{os.strerror(error.errno)}: the file needs {short(len(data), 'B')}, {limit}"
        raise OSError(error.errno, text, str(folder / name)) from None
    finally:
        temporary.unlink(missing_ok=True)
