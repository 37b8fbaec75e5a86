"""The result of a sweep: a folder of Parquet slices on any file system; what is missing is what resume computes.

A slice's name is its range of positions, its metadata the provenance of the sweep, so that a file says by itself whether
it belongs, and a folder can be filled by any number of runs, workers and slice sizes.
"""

from __future__ import annotations

import bisect
import fcntl
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sim_core import SpecError
from sweep.place import Location, Place, place

PROVENANCE: Final = b"sweep.provenance"
MANIFEST: Final = "sweep.json"
_PART = re.compile(r"part-([0-9]{12,})-([0-9]{12,})\.parquet\Z")
_LOCK: Final = ".lock"
_READERS: Final = 16


@dataclass(frozen=True, order=True)
class Slice:
    """Positions [start, stop)."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of positions."""
        return self.stop - self.start

    @property
    def file_name(self) -> str:
        """Name of the file that holds it."""
        return f"part-{self.start:012d}-{self.stop:012d}.parquet"


def encoded(batch: pa.RecordBatch, provenance: bytes) -> pa.Buffer:
    """A slice's rows as a Parquet file."""
    table = pa.Table.from_batches([batch]).replace_schema_metadata({PROVENANCE: provenance})
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=others,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
    )
    return sink.getvalue()


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder of slices."""

    directory: Location

    @property
    def place(self) -> Place:
        """Where it lies."""
        return place(self.directory)

    @contextmanager
    def opened(self, provenance: dict[str, Any], *, fresh: bool = False) -> Iterator[bytes]:
        """Own the folder for one run; yields the provenance that goes into each file.

        Raises SpecError where another run is at work here, or the folder holds another sweep (and `fresh` is not said).
        An object store has no locks: there, two runs of one sweep do each other no harm, their rows are the same.
        """
        self.place.make()
        with _locked(self.place):
            names = self.place.names()
            for name in names:
                if name.startswith(".part-"):
                    self.place.delete(name)
            self.check(provenance, fresh=fresh)
            if fresh:
                for part in self._parts():
                    self.place.delete(part.file_name)
            text = json.dumps(provenance, indent=1).encode()
            self.place.write_bytes(MANIFEST, text)
            yield text

    def check(self, provenance: dict[str, Any], *, fresh: bool = False) -> None:
        """Raise SpecError where the folder cannot take this sweep, before anything is computed."""
        if self.place.is_file():
            raise SpecError(f"{self.place}: is a file, expected a folder")
        names = self.place.names()
        if MANIFEST not in names and any(name.endswith(".parquet") for name in names):
            raise SpecError(f"{self.place}: holds Parquet files but no {MANIFEST}: not a sweep's folder; give another --out")
        held = None if fresh else self.provenance()
        if held is not None and held.get("sweep") != provenance["sweep"]:
            raise SpecError(f"{self.place}: {_difference(held, provenance)}; give another --out, or --fresh to start over")

    def provenance(self) -> dict[str, Any] | None:
        """What the folder's results were made from; None where it holds none."""
        try:
            held = json.loads(self.place.read_bytes(MANIFEST))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise SpecError(f"{self.place / MANIFEST}: is damaged ({error}); `sweep run --fresh` starts over") from None
        if not isinstance(held, dict) or not isinstance(held.get("sweep"), str) or not isinstance(held.get("spec"), dict):
            raise SpecError(f"{self.place / MANIFEST}: is damaged (not a sweep's provenance); `sweep run --fresh` starts over")
        return held

    def slices(self) -> list[Slice]:
        """The finished slices, disjoint, in order: where runs of other slice sizes overlap, those that cover the most."""
        return _covering(self._parts())

    def files(self) -> list[Path]:
        """Files of the finished slices of a local folder."""
        return [Path(self.place.path(part.file_name)) for part in self.slices()]

    def drop_damaged(self, sweep: str) -> list[str]:
        """Delete slices that cannot be read, have missing rows or belong to another sweep; returns their names."""
        parts = self._parts()
        with ThreadPoolExecutor(_READERS) as readers:  # a footer on an object store is a wait
            whole = dict(zip(parts, readers.map(lambda part: _whole(self.place, part, sweep), parts), strict=True))
        damaged = [part for part in parts if not whole[part]]
        for part in damaged:
            self.place.delete(part.file_name)
        self.drop_doubles()
        return [part.file_name for part in damaged]

    def drop_doubles(self) -> None:
        """Delete slices whose rows lie in others, so that a reader of all files finds each row once."""
        parts = self._parts()
        chosen = set(_covering(parts))
        for part in parts:
            if part not in chosen:
                self.place.delete(part.file_name)

    def _parts(self) -> list[Slice]:
        """Slices by the names of files, in order; other files in the folder are somebody else's and never touched."""
        found = (_PART.match(name) for name in self.place.names())
        return sorted(Slice(int(match[1]), int(match[2])) for match in found if match)

    def discard(self) -> None:
        """Delete what runs have stored here, the manifest last; and the folder, unless somebody else's files lie in it."""
        present = set(self.place.names())
        parts = [part.file_name for part in self._parts()]
        leftovers = [name for name in present if name.startswith(".part-")]
        for name in (*parts, *leftovers, *(name for name in (_LOCK, MANIFEST) if name in present)):
            self.place.delete(name)
        self.place.remove_if_empty()

    def missing(self, count: int) -> list[Slice]:
        """Ranges of [0, count) that no finished slice covers."""
        gaps: list[Slice] = []
        at = 0
        for part in self.slices():
            if part.start > at:
                gaps.append(Slice(at, part.start))
            at = part.stop
        if at < count:
            gaps.append(Slice(at, count))
        return gaps


def newest(parent: Location) -> Place:
    """The folder of results below `parent` whose run began last. Raises SpecError where there is none."""
    above = place(parent)
    found = [(written, name) for name in above.folders() if (written := (above / name).written_s(MANIFEST)) is not None]
    if not found:
        raise SpecError(f"{above}: no results of a sweep lie here")
    return above / max(found)[1]


@contextmanager
def _locked(folder: Place) -> Iterator[None]:
    """One run at a time in a local folder. Raises SpecError."""
    if folder.local is None:
        yield
        return
    with open(folder.local / _LOCK, "w") as lock:  # noqa: PTH123 (flock wants the descriptor)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SpecError(f"{folder}: another run is writing here") from None
        yield


def _covering(parts: Sequence[Slice]) -> list[Slice]:
    """Of slices that may overlap, disjoint ones that together have the most rows (weighted interval scheduling)."""
    ordered = sorted((part for part in parts if part.start < part.stop), key=lambda part: (part.stop, part.start))
    stops = [part.stop for part in ordered]
    best = [0]  # rows covered by the best choice among the first k
    before = [bisect.bisect_right(stops, part.start) for part in ordered]
    for part, k in zip(ordered, before, strict=True):
        best.append(max(best[-1], best[k] + part.rows))
    chosen: list[Slice] = []
    k = len(ordered)
    while k:
        if best[k] == best[k - 1]:
            k -= 1
        else:
            chosen.append(ordered[k - 1])
            k = before[k - 1]
    return chosen[::-1]


def _whole(folder: Place, part: Slice, sweep: str) -> bool:
    try:
        footer = pq.read_metadata(folder.path(part.file_name), filesystem=folder.filesystem)
        provenance = json.loads((footer.metadata or {}).get(PROVENANCE, b"{}"))
    except (pa.ArrowException, ValueError):
        return False
    except OSError:
        if folder.local is None:
            raise  # a store that cannot be reached is no damage
        return False
    return footer.num_rows == part.rows and isinstance(provenance, dict) and provenance.get("sweep") == sweep


def _difference(held: dict[str, Any], new: dict[str, Any]) -> str:
    """In words, what differs between the sweep in a folder and the one to be run."""
    if held.get("model") != new["model"]:
        return "holds results of another version of the simulator"
    if held.get("workload") != new["workload"]:
        return "holds results of another workload"
    return f"holds results of another sweep ({held.get('name')}: other axes, constraints or hardware)"
