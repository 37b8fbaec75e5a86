"""The index in the footer of a slice's file: a hash of each column's bytes, counts and bounds of the rows.

A reader that checks the footer against its own hash knows without the rows how many there are by reason, and between which
values; it then reads the columns that it needs, each checked against its hash. Files of earlier versions have none.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

INDEX = b"sweep.index"
OK = "ok"
_HASH = "0" * 64
_OWN = re.compile(rb'\{"footer": "([0-9a-f]{64})"')
_CHUNK = "{:012d} {:012d} {:.32}"
"""First byte, bytes, and the first 128 bits of the SHA-256 of a column's chunk."""
_PIECE = 1 << 18  # bytes read at a time
_TOO_LARGE = "memory_exceeds_device"
_NEED = ("peak_memory_bytes", "state_bytes")  # the first that is known
_HAVE = "device_memory_bytes"


class Bounds(NamedTuple):
    """Of a column in the rows with status ok: how many values are known, the least and the greatest (None: there is none)."""

    known: int
    low: Any
    high: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What a footer says of its file."""

    sweep: str  # identity of the sweep
    positions: tuple[int, int]  # of the slice: its first, and the one after its last
    statuses: list[tuple[str, str, int]]  # status, reason, rows
    memory: tuple[float, float, float, float] | None  # of plans that do not fit: least and most needed, least and most there
    _bounds: dict[str, list[Any]]
    _chunks: dict[str, str]

    @property
    def ok(self) -> int:
        """Rows with status ok."""
        return sum(rows for status, _, rows in self.statuses if status == OK)

    def bounds(self, column: str) -> Bounds:
        """Between which values a column lies."""
        return Bounds(*self._bounds[column])

    def chunk(self, column: str) -> tuple[int, int, str]:
        """Where a column is in the file: its first byte, its bytes; and their hash."""
        first, size, digest = self._chunks[column].split()
        return int(first), int(size), digest


def empty_index(batch: pa.RecordBatch, sweep: str, positions: tuple[int, int]) -> bytes:
    """The index of a file before it is written: zeros for hashes and places; empty for rows that are no result's."""
    if not {"status", "reason"} <= set(batch.schema.names):
        return b""
    chunks = dict.fromkeys(batch.schema.names, _CHUNK.format(0, 0, _HASH))
    index = {"footer": _HASH, "sweep": sweep, "positions": positions, **_summary(batch), "chunks": chunks}
    return json.dumps(index).encode()


def fill_index(data: memoryview, empty: bytes) -> None:
    """Write places and hashes of the columns into a finished file with an empty index, then the hash of its footer."""
    footer = pq.read_metadata(pa.BufferReader(data))
    begin = len(data) - footer.serialized_size - 8
    at = begin + bytes(data[begin:]).rfind(empty)
    index = json.loads(empty)
    for k in range(footer.num_columns if footer.num_row_groups == 1 else 0):
        column = footer.row_group(0).column(k)
        places = (column.dictionary_page_offset, column.data_page_offset)
        first, size = min(place for place in places if place is not None), column.total_compressed_size
        index["chunks"][column.path_in_schema] = _CHUNK.format(first, size, _sha(data[first : first + size]))
    data[at : at + len(empty)] = json.dumps(index).encode()
    own = _OWN.match(data, at)
    if own is None:
        raise ValueError("an index begins with its footer's hash")
    data[own.start(1) : own.end(1)] = _sha(data[begin:]).encode()


def read_index(footer: bytes, zeros: tuple[int, int] | None) -> Index | None:
    """The index in a footer, given from its first byte to the end of the file; None if it has none.

    `zeros`: bytes that its hash takes as zeros, since they hold that of the whole file. Raises ValueError if it is damaged.
    """
    own = _OWN.search(footer, max(footer.rfind(INDEX), 0))
    if own is None or INDEX not in footer:
        return None
    plain = bytearray(footer)
    for first, last in (own.span(1), *((zeros,) if zeros else ())):
        plain[first:last] = b"0" * (last - first)
    if own[1].decode() != _sha(plain):
        raise ValueError("its hash does not match")
    index, _ = json.JSONDecoder().raw_decode(footer[own.start() :].decode("utf-8", "replace"))
    if not isinstance(index["positions"], list):
        return None  # their number, as an earlier version wrote it
    start, stop = index["positions"]
    kept = {key: index[key] for key in ("sweep", "statuses", "memory")}
    return Index(positions=(start, stop), **kept, _bounds=index["bounds"], _chunks=index["chunks"])


def has_column(file: BinaryIO, index: Index, column: str) -> bool:
    """Whether the bytes of a column in an open file match the hash in its index."""
    first, size, digest = index.chunk(column)
    read_so_far, piece = hashlib.sha256(), memoryview(bytearray(min(size, _PIECE)))
    file.seek(first)
    while size > 0:
        read = file.readinto(piece[:size])  # type: ignore[attr-defined]
        if not read:
            return False
        read_so_far.update(piece[:read])
        size -= read
    return read_so_far.hexdigest()[: len(digest)] == digest


def _sha(data: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _summary(batch: pa.RecordBatch) -> dict[str, Any]:
    """Counts and bounds of the rows."""
    columns = (batch.column(name) for name in ("status", "reason"))
    of_status, of_reason = (each if pa.types.is_dictionary(each.type) else each.dictionary_encode() for each in columns)
    names, reasons = (column.dictionary.to_pylist() for column in (of_status, of_reason))
    pairs = of_status.indices.to_numpy().astype(int) * len(reasons) + of_reason.indices.to_numpy()
    counts = [(*divmod(pair, len(reasons)), n) for pair, n in enumerate(np.bincount(pairs).tolist()) if n]
    kept = batch.filter(pc.equal(of_status.indices, names.index(OK))) if OK in names else batch.slice(0, 0)
    return {
        "statuses": sorted([names[status], reasons[reason], n] for status, reason, n in counts),
        "bounds": {name: _bounds(kept.column(name)) for name in batch.schema.names},
        "memory": _memory(batch) if any(reasons[reason] == _TOO_LARGE for _, reason, _ in counts) else None,
    }


def _bounds(column: pa.Array) -> list[Any]:
    known = len(column) - column.null_count
    if pa.types.is_dictionary(column.type):
        column = column.dictionary.take(pc.unique(column.indices))
    ends = pc.min_max(column).as_py()
    return [known, ends["min"], ends["max"]]


def _memory(batch: pa.RecordBatch) -> list[float] | None:
    """Least and most bytes that plans need which do not fit into their device, and least and most that these have."""
    if not {*_NEED, _HAVE} <= set(batch.schema.names):
        return None
    without = batch.filter(pc.equal(batch.column("reason"), _TOO_LARGE))
    need = pc.min_max(pc.coalesce(*(without.column(name) for name in _NEED))).as_py()
    have = pc.min_max(without.column(_HAVE)).as_py()
    ends = [need["min"], need["max"], have["min"], have["max"]]
    return None if None in ends else ends
