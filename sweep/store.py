"""The result of a sweep: a folder of Parquet slices, written aside then renamed; what is missing is what resume computes.

A slice's name is its range of positions, its metadata the provenance of the sweep, so that a file says by itself whether
it belongs, and a folder can be filled by any number of runs, workers and slice sizes.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sim_core import SpecError

PROVENANCE: Final = b"sweep.provenance"
MANIFEST: Final = "sweep.json"
_PART = re.compile(r"part-([0-9]{12,})-([0-9]{12,})\.parquet\Z")
_LOCK: Final = ".lock"


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


def write_slice(directory: Path, part: Slice, batch: pa.RecordBatch, provenance: bytes) -> None:
    """Write one slice so that it is there whole or not at all."""
    table = pa.Table.from_batches([batch]).replace_schema_metadata({PROVENANCE: provenance})
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    aside = directory / f".{part.file_name}.{os.getpid()}"
    try:
        with open(aside, "wb") as file:  # noqa: PTH123 (fsync wants the descriptor)
            pq.write_table(
                table,
                file,
                compression="zstd",
                use_dictionary=others,
                column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, directory / part.file_name)
    finally:
        aside.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder of slices."""

    directory: Path

    @contextmanager
    def opened(self, provenance: dict[str, Any], *, fresh: bool = False) -> Iterator[bytes]:
        """Own the folder for one run; yields the provenance that goes into each file.

        Raises SpecError where another run is at work here, or the folder holds another sweep (and `fresh` is not said).
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / _LOCK, "w") as lock:  # noqa: PTH123 (flock wants the descriptor)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SpecError(f"{self.directory}: another run is writing here") from None
            for leftover in self.directory.glob(".part-*"):
                leftover.unlink()
            self.check(provenance, fresh=fresh)
            if fresh:
                for path, _ in self._parts():
                    path.unlink()
            text = json.dumps(provenance, indent=1)
            aside = self.directory / f".{MANIFEST}"
            aside.write_text(text, encoding="utf-8")
            os.replace(aside, self.directory / MANIFEST)
            yield text.encode()

    def check(self, provenance: dict[str, Any], *, fresh: bool = False) -> None:
        """Raise SpecError where the folder cannot take this sweep, before anything is computed."""
        if self.directory.exists() and not self.directory.is_dir():
            raise SpecError(f"{self.directory}: is a file, expected a folder")
        if not self.directory.exists():
            return
        if not (self.directory / MANIFEST).exists() and list(self.directory.glob("*.parquet")):
            raise SpecError(
                f"{self.directory}: holds Parquet files but no {MANIFEST}: not a sweep's folder; give another --out"
            )
        held = None if fresh else self.provenance()
        if held is not None and held.get("sweep") != provenance["sweep"]:
            raise SpecError(f"{self.directory}: {_difference(held, provenance)}; give another --out, or --fresh to start over")

    def provenance(self) -> dict[str, Any] | None:
        """What the folder's results were made from; None where it holds none."""
        try:
            held = json.loads((self.directory / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SpecError(f"{self.directory / MANIFEST}: is damaged ({error}); --fresh starts over") from None
        if not isinstance(held, dict) or not isinstance(held.get("sweep"), str) or not isinstance(held.get("spec"), dict):
            raise SpecError(f"{self.directory / MANIFEST}: is damaged (not a sweep's provenance); --fresh starts over")
        return held

    def slices(self) -> list[Slice]:
        """The finished slices, disjoint, in order; where runs of other slice sizes overlap, the later one is left out."""
        disjoint: list[Slice] = []
        for part in sorted(part for _, part in self._parts()):
            if part.start < part.stop and (not disjoint or part.start >= disjoint[-1].stop):
                disjoint.append(part)
        return disjoint

    def files(self) -> list[Path]:
        """Files of the finished slices."""
        return [self.directory / part.file_name for part in self.slices()]

    def drop_damaged(self, sweep: str) -> list[str]:
        """Delete slices that cannot be read, have missing rows or belong to another sweep; returns their names."""
        dropped = []
        chosen = set(self.slices())
        for path, part in self._parts():
            if part not in chosen:
                path.unlink()
            elif not _whole(path, part, sweep):
                path.unlink()
                dropped.append(path.name)
        return dropped

    def _parts(self) -> list[tuple[Path, Slice]]:
        """Files that are named as slices, in order; other files in the folder are somebody else's and never touched."""
        found = ((path, _PART.match(path.name)) for path in self.directory.glob("part-*.parquet"))
        return sorted((path, Slice(int(match[1]), int(match[2]))) for path, match in found if match)

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


def newest(parent: Path) -> Path:
    """The folder of results below `parent` that was written last. Raises SpecError where there is none."""
    found = [path.parent for path in parent.glob(f"*/{MANIFEST}")]
    if not found:
        raise SpecError(f"{parent}: no results of a sweep lie here")
    return max(found, key=lambda folder: folder.stat().st_mtime)


def _whole(path: Path, part: Slice, sweep: str) -> bool:
    try:
        footer = pq.read_metadata(path)
        provenance = json.loads((footer.metadata or {}).get(PROVENANCE, b"{}"))
    except (OSError, pa.ArrowException, ValueError):
        return False
    return footer.num_rows == part.rows and isinstance(provenance, dict) and provenance.get("sweep") == sweep


def _difference(held: dict[str, Any], new: dict[str, Any]) -> str:
    """In words, what differs between the sweep in a folder and the one to be run."""
    if held.get("model") != new["model"]:
        return "holds results of another version of the simulator"
    if held.get("workload") != new["workload"]:
        return "holds results of another workload"
    return f"holds results of another sweep ({held.get('name')}: other axes, constraints or hardware)"
