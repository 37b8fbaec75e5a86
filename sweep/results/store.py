"""The result of a sweep: a folder of Parquet slices on any file system. A resumed run computes the slices that are missing.

The name of a slice's file is its range of positions, and its metadata is the provenance of the sweep. So every file shows
which sweep it belongs to, and any number of runs and workers, with any slice size, can fill one folder.
"""

import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from sim_core import SpecError
from sim_core.documents import Fields
from sweep.results import heartbeat
from sweep.results.folder import Folder, Location, folder_at, is_held, only_one
from sweep.results.sealing import opened_text, sealed_text
from sweep.results.slice_file import Slice, added, carried, counted_in, covering, encoded, is_whole

MANIFEST = "_sweep.parquet"
"""The provenance beside no rows: whatever reads all Parquet files of the folder reads it, too, and finds nothing more."""
OLD_MANIFEST = "sweep.json"
"""The same of earlier versions, as JSON."""
BEST = ".best.json"
"""What `sweep ls` shows of the best plan, kept by the command that computed the rows; not from Python: polars
takes every file of a folder for Parquet, and the folders of `sweep.run` are for it."""
_PART = re.compile(r"part-([0-9]{12,})-([0-9]{12,})\.parquet\Z")
_LOCK = ".lock"
NO_RESULTS = "holds no results of a sweep"
_LEFTOVERS = (".part-", f".{MANIFEST}.")  # files of writers that were killed
_READERS = 16  # of an object store, which answers late
_LOCAL_READERS = 4

Given = TypeVar("Given")


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder of slices."""

    directory: Location

    @property
    def folder(self) -> Folder:
        """The directory as a folder on its file system."""
        return folder_at(self.directory)

    @contextmanager
    def opened(self, provenance: Fields, schema: pa.Schema | None = None, *, fresh: bool = False) -> Iterator[bytes]:
        """Lock the folder for one run; yields the provenance that goes into each file. `fresh` deletes what it holds.

        `schema`: of the rows that will be stored; default: of those that are.

        Raises SpecError if another run is writing here, or the folder holds another sweep and `fresh` is false. An object
        store has no locks: two runs of the same sweep may write there at once, because they write the same rows.
        """
        self.folder.make()
        refusal, local = f"{self.folder}: another run is writing here", self.folder.local
        with nullcontext() if local is None else only_one(local / _LOCK, refusal):
            names = self.folder.names()
            for name in names:
                if name.startswith(_LEFTOVERS):
                    self.folder.delete(name)
            self.check(provenance, fresh=fresh)
            if fresh:
                self._delete(self._parts())
            text = sealed_text(provenance)
            columns = self._schema() if schema is None else schema
            self.folder.write_bytes(MANIFEST, encoded(pa.RecordBatch.from_pylist([], schema=columns), text, None))
            if OLD_MANIFEST in names:
                self.folder.delete(OLD_MANIFEST)
            yield text

    def check(self, provenance: Fields, *, fresh: bool = False) -> None:
        """Raise SpecError if the folder cannot hold this sweep, before anything is computed."""
        self.check_held(provenance, fresh=fresh)
        self.folder.probe()

    def check_held(self, provenance: Fields, *, fresh: bool = False) -> None:
        """The same without a trial of the store: nothing is written."""
        if self.folder.is_file():
            raise SpecError(f"{self.folder}: found a file, expected a folder")
        names = self.folder.names()
        manifests = {MANIFEST, OLD_MANIFEST} & set(names)
        if not manifests and any(name.endswith(".parquet") for name in names) and self._provenance_of_slices() is None:
            raise SpecError(
                f"{self.folder}: holds Parquet files but no {MANIFEST}, so it is not a sweep's folder; choose another --out"
            )
        stored = None if fresh else self.provenance()
        if stored is not None and stored.get("sweep") != provenance["sweep"]:
            from sweep.sources import differences  # late: it reads all sources

            self.refuse_foreign()
            kinds = ["search" if "search" in each else "run" for each in (stored, provenance)]
            if kinds[0] != kinds[1]:
                what = f"holds the results of `sweep {kinds[0]}`, and `sweep {kinds[1]}` has others"
            elif differing := differences(provenance["code"], stored.get("code", {})):
                what = "holds results of another version of the simulator" + (f" ({differing})" if "code" in stored else "")
            elif kinds[1] == "search" and stored["search"]["of"] == provenance["search"]["of"]:
                what = "holds a search of this sweep for other plans (--best, --within, objectives)"
            elif stored.get("workload") != provenance["workload"]:
                what = "holds results of another workload"
            else:
                what = f"holds results of another sweep ({stored.get('name')}: other axes, constraints or hardware)"
            raise SpecError(f"{self.folder}: {what}; choose another --out, or start over with --fresh")

    def provenance(self) -> Fields | None:
        """What the folder's results were made from, by its manifest or else its slices; None if it holds none.

        Raises SpecError if it is damaged.
        """
        return self.told()[0]

    def told(self) -> tuple[Fields | None, str]:
        """The same, and what is wrong with the manifest, so that slices were asked: `is missing`, `is damaged`, or nothing."""
        for name in (MANIFEST, OLD_MANIFEST):
            try:
                data = self.folder.read_bytes(name)
                return carried(data, None) if name == MANIFEST else opened_text(data), ""
            except FileNotFoundError:
                continue
            except ValueError as error:
                of_slices = self._provenance_of_slices()
                if of_slices is not None:
                    return of_slices, "is damaged"
                raise SpecError(f"{self.folder / name}: is damaged ({error}); start over with `sweep run --fresh`") from None
        of_slices = self._provenance_of_slices()
        return of_slices, "is missing" if of_slices else ""

    def doubts(self, *, missing: bool = True) -> list[str]:
        """What whoever reads this result has to know, though nothing that is read is damaged; `missing`: also plans not there.

        Raises SpecError if the manifest is damaged and no slice says what it said, or if it is of another sweep than they.
        """
        provenance, fault = self.told()
        for part in self.slices()[:1]:
            with suppress(FileNotFoundError, ValueError):
                if carried(self.folder.read_bytes(part.file_name), part)["sweep"] != (provenance or {}).get("sweep"):
                    self.refuse_foreign()
        lines = []
        if fault:
            lines.append(f"{self.folder / MANIFEST}: {fault}; its slices say what it said, the same `sweep run` writes it anew")
        total = int((provenance or {}).get("rows", 0)) if missing else 0
        left = sum(part.rows for part in self.missing(total))
        if 0 < left < total:
            how = "a run adds them now" if self.is_running() else "the same `sweep run` adds them"
            lines.append(f"{self.folder}: {left:,} of {total:,} plans are missing; {how}")
        return lines

    def refuse_foreign(self) -> None:
        """Raise SpecError if the manifest is of one sweep and all undamaged slices are of another: both would be lost."""
        told, of_slices = self.provenance(), self._provenance_of_slices()
        if told and of_slices and told["sweep"] != of_slices["sweep"]:
            named = [f"{each.get('name')} ({each['sweep'][:8]})" for each in (told, of_slices)]
            raise SpecError(
                f"{self.folder / MANIFEST}: is of sweep {named[0]}, the slices beside it are of {named[1]}; "
                "move away what does not belong here"
            )

    def made_from(self) -> Fields:
        """The provenance of the folder's results. Raises SpecError if it holds none, or if it is damaged."""
        provenance = self.provenance()
        if provenance is None:
            raise SpecError(f"{self.folder}: {NO_RESULTS}")
        return provenance

    def started_s(self) -> float | None:
        """When its run last started, in s since 1970; without a manifest when its oldest slice was written; None: no result."""
        for name in (MANIFEST, OLD_MANIFEST):
            if (at := self.folder.written_s(name)) is not None:
                return at
        return min((at for name, (at, _) in self.folder.written().items() if _PART.match(name)), default=None)

    def _schema(self) -> pa.Schema:
        """Columns of the rows that the folder holds; none if it holds none that can be read."""
        for part in self.slices():
            with suppress(OSError, pa.ArrowException):  # damaged
                return pq.read_schema(BytesIO(self.folder.read_bytes(part.file_name))).remove_metadata()
        return pa.schema([])

    def _provenance_of_slices(self) -> Fields | None:
        """The provenance that undamaged slices carry, where they agree; None if there are none."""
        by_sweep = {}
        for part in self._parts():
            with suppress(FileNotFoundError, ValueError):
                provenance = carried(self.folder.read_bytes(part.file_name), part)
                by_sweep[provenance["sweep"]] = provenance
        return next(iter(by_sweep.values())) if len(by_sweep) == 1 else None

    def is_running(self) -> bool:
        """Whether a run is writing here: by its lock; on an object store, by what it told last."""
        local = self.folder.local
        if local is not None:
            return is_held(local / _LOCK)
        started = self.folder.written_s(MANIFEST)
        return started is not None and heartbeat.is_alive(self.folder, started)

    def slices(self) -> list[Slice]:
        """The finished slices, disjoint and in order. Where slices of several runs overlap, those that cover the most rows."""
        return covering(self._parts())

    def drop_damaged(self, identity: str) -> list[str]:
        """Delete slices that are unreadable, incomplete or of another sweep; returns their file names.

        Raises SpecError, and deletes none, if all of them are of one other sweep.
        """
        if damaged := self.damaged(identity):
            self.refuse_foreign()
        self._delete(damaged)
        self.drop_doubles()
        return [part.file_name for part in damaged]

    def damaged(self, identity: str) -> list[Slice]:
        """Slices that are unreadable, incomplete or of another sweep."""
        return self._damaged(self._parts(), identity)

    def _damaged(self, parts: Sequence[Slice], identity: str, copies: Path | None = None) -> list[Slice]:
        """Those of `parts` that are not whole; the others are copied to the folder `copies`, if it is given."""

        def whole(part: Slice) -> bool:
            data = self.folder.read_bytes(part.file_name)
            kept = is_whole(data, part, identity)
            if kept and copies is not None:
                (copies / part.file_name).write_bytes(data)
            return kept

        return self.failing(parts, whole)

    def failing(self, given: Sequence[Given], fine: Callable[[Given], bool]) -> list[Given]:
        """Those whose files are not `fine`, or cannot be read; raises OSError where the store cannot be reached."""

        def passes(one: Given) -> bool:
            try:
                return fine(one)
            except OSError as error:
                if self.folder.local is None and not isinstance(error, FileNotFoundError):
                    raise  # the file may be fine
                return False

        with ThreadPoolExecutor(_READERS if self.folder.local is None else _LOCAL_READERS) as readers:
            return [one for one, passed in zip(given, readers.map(passes, given), strict=True) if not passed]

    def finished(self) -> tuple[str, list[Slice]]:
        """The identity of the sweep, and its finished slices. Raises SpecError if there are none."""
        identity, parts = str(self.made_from()["sweep"]), self.slices()
        if not parts:
            raise SpecError(f"{self.folder}: {NO_RESULTS}")
        return identity, parts

    def refuse(self, damaged: Sequence[Slice]) -> None:
        """Raise SpecError if any slices are damaged."""
        if damaged:
            self.refuse_foreign()
            named = f"{self.folder / damaged[0].file_name}" + (f" and {len(damaged) - 1} more" if len(damaged) > 1 else "")
            raise SpecError(f"{named}: damaged; the same `sweep run` computes damaged slices again")

    @contextmanager
    def verified(self) -> Iterator[list[Path]]:
        """Local files of the finished slices, each checked against its hash; copies of them if the folder is elsewhere.

        Raises SpecError if there are none, or one is damaged.
        """
        sweep, parts = self.finished()
        local = self.folder.local
        with tempfile.TemporaryDirectory(prefix="sweep-") if local is None else nullcontext(local) as place:
            self.refuse(self._damaged(parts, sweep, Path(place) if local is None else None))
            yield [Path(place) / part.file_name for part in parts]

    def drop_doubles(self) -> None:
        """Delete slices whose rows are in others, so that a reader of all files finds each row once."""
        parts = self._parts()
        chosen = set(covering(parts))
        self._delete(part for part in parts if part not in chosen)

    def _delete(self, parts: Iterable[Slice]) -> None:
        """Delete slices, but for those that another run has deleted meanwhile, where nothing locks the folder."""
        for part in parts:
            with suppress(FileNotFoundError):
                self.folder.delete(part.file_name)

    def _parts(self) -> list[Slice]:
        """Slices by file name, in order. Other files in the folder belong to someone else and are never touched."""
        return sorted(Slice(int(at[1]), int(at[2])) for name in self.folder.names() if (at := _PART.match(name)))

    def discard(self) -> None:
        """Delete what runs have stored here, the manifest last, and the folder itself if no other files are in it."""
        self._delete(self._parts())
        own = (_LOCK, heartbeat.FILE, BEST, OLD_MANIFEST, MANIFEST)
        for name in sorted(self.folder.names(), key=lambda name: own.index(name) if name in own else -1):
            if name in own or name.startswith(_LEFTOVERS):
                self.folder.delete(name)
        self.folder.remove_if_empty()

    def is_whole(self, identity: str, count: int) -> bool:
        """Whether undamaged slices of this sweep cover [0, count)."""
        return not self.missing(count) and not self.damaged(identity)

    def joined(self, parts: Sequence[Slice]) -> tuple[pa.RecordBatch, Fields]:
        """The rows of some slices as one batch, and what their files count beside them (a search's; else empty)."""
        files = [self.folder.read_bytes(part.file_name) for part in parts]
        table = pa.concat_tables([pq.read_table(BytesIO(data)).replace_schema_metadata(None) for data in files])
        counts = [counted for data in files if (counted := counted_in(pq.read_metadata(BytesIO(data))))]
        batches = table.unify_dictionaries().combine_chunks().to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema), added(counts) if counts else {}

    def counted(self) -> Fields:
        """What the finished slices of a search count beside their rows; empty for other results."""
        if "search" not in (self.provenance() or {}):
            return {}
        files = (self.folder.read_bytes(part.file_name) for part in self.slices())
        return added([counted_in(pq.read_metadata(BytesIO(data))) for data in files])

    def replace(self, parts: Sequence[Slice], whole: Slice, data: pa.Buffer, identity: str) -> None:
        """Put one file in the place of adjacent slices, once it has been read back. Raises SpecError."""
        self.folder.write_bytes(whole.file_name, data)
        if not is_whole(self.folder.read_bytes(whole.file_name), whole, identity):
            self.folder.delete(whole.file_name)
            raise SpecError(f"{self.folder / whole.file_name}: was not stored as written; the slices it was made from are kept")
        self._delete(part for part in parts if part != whole)

    def missing(self, count: int, without: Collection[Slice] = ()) -> list[Slice]:
        """Ranges of [0, count) that no finished slice covers, but for those in `without`."""
        kept = covering([part for part in self._parts() if part not in without])
        gaps = zip([0, *(part.stop for part in kept)], [*(part.start for part in kept), count], strict=True)
        return [Slice(start, stop) for start, stop in gaps if start < stop]


def newest(parent: Location) -> Folder:
    """The folder of results below `parent` whose run started last. Raises SpecError if there is none."""
    folder = folder_at(parent)
    results = [(at, name) for name in folder.subfolders() if (at := Store(directory=folder / name).started_s()) is not None]
    if not results:
        raise SpecError(f"{folder}: {NO_RESULTS}")
    return folder / max(results)[1]
