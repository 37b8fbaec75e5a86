"""A slice of results as a Parquet file sealed with the hash of its own bytes, and the manifest that is sealed, too.

Parquet's page checksums cover pages only: a flipped bit in a header or the footer can still be read as another number. So
the footer holds the SHA-256 of the whole file, computed with zeros in its own place. It also holds an index: a hash of each
column's bytes, counts and bounds of the rows. A reader that checks the footer against its own hash knows without the rows how
many there are by reason, and between which values; it then reads the columns that it needs, each checked against its hash.
Files of earlier versions have neither.
"""

import bisect
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PROVENANCE: Final = b"sweep.provenance"
SEAL: Final = b"sweep.sha256"
POSITIONS: Final = b"sweep.positions"
"""Key of the footer: the first position of the slice and the one after its last. Files of earlier versions have none."""
COUNTED: Final = b"sweep.counted"
"""Key of the footer: how many plans of the slice are no rows, by reason, and other facts of a search."""
CHECKSUM: Final = "checksum"
"""Key of the provenance that says by which hash a file or manifest is sealed."""
_ALGORITHM: Final = "sha256"
_EMPTY: Final = b"sha256:" + b"0" * 64
_SEALED = re.compile(rb"sha256:[0-9a-f]{64}")
_KEY: Final = "seal"
_NUMBER: Final = "plan"
_PAGE: Final = 1 << 16
"""Bytes of a page before compression: a reader skips those without a row that it looks for."""
INDEX: Final = b"sweep.index"
OK: Final = "ok"
_HASH: Final = "0" * 64
_OWN = re.compile(rb'\{"footer": "([0-9a-f]{64})"')
_CHUNK: Final = "{:012d} {:012d} {:.32}"
"""First byte, bytes, and the first 128 bits of the SHA-256 of a column's chunk."""
_PIECE: Final = 1 << 18  # bytes read at a time
_TOO_LARGE: Final = "memory_exceeds_device"
_NEED: Final = ("peak_memory_bytes", "state_bytes")  # the first that is known
_HAVE: Final = "device_memory_bytes"


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


def covering(parts: Sequence[Slice]) -> list[Slice]:
    """The disjoint slices of `parts` that together have the most rows (weighted interval scheduling)."""
    ordered = sorted((part for part in parts if part.start < part.stop), key=lambda part: (part.stop, part.start))
    stops = [part.stop for part in ordered]
    best = [0]  # best[k]: most rows that the first k can cover
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


def encoded(batch: pa.RecordBatch, provenance: bytes, part: Slice | None, counted: dict[str, Any] | None = None) -> pa.Buffer:
    """The rows of a slice as a sealed Parquet file; `counted`: see COUNTED. Without a slice, the manifest."""
    floats = [field.name for field in batch.schema if pa.types.is_floating(field.type)]
    others = [field.name for field in batch.schema if not pa.types.is_floating(field.type) and field.name != _NUMBER]
    numbers = {_NUMBER: "DELTA_BINARY_PACKED"} if _NUMBER in batch.schema.names else {}
    facts = {} if counted is None else {COUNTED: json.dumps(counted).encode()}
    facts |= {} if part is None else {POSITIONS: f"{part.start} {part.stop}".encode()}
    index = b"" if part is None else empty_index(batch, json.loads(provenance).get("sweep", ""), (part.start, part.stop))
    sink = BytesIO()
    with pq.ParquetWriter(
        sink,
        batch.schema,
        compression="zstd",
        use_dictionary=others,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT") | numbers,
        data_page_size=_PAGE,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(pa.Table.from_batches([batch]), row_group_size=max(batch.num_rows, 1))
        writer.add_key_value_metadata({PROVENANCE: provenance, **facts, **({INDEX: index} if index else {}), SEAL: _EMPTY})
    data = sink.getbuffer()
    if index:
        fill_index(data, index)
    place = _place(data)
    if place is not None:
        data[place : place + len(_EMPTY)] = b"sha256:" + _digest(data, place).encode()
    return pa.py_buffer(data)


def is_whole(data: bytes, part: Slice | None, identity: str | None) -> bool:
    """Whether `data` is the file of this very slice (None: the manifest), undamaged, and of this sweep (None: of any)."""
    place = _place(data)
    if place is not None and data[place : place + len(_EMPTY)] != b"sha256:" + _digest(data, place).encode():
        return False
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
        provenance = json.loads((footer.metadata or {}).get(PROVENANCE, b"{}"))
    except (pa.ArrowException, OSError, ValueError):
        return False
    rows = footer.num_rows + sum(counted_in(footer).get("plans", {}).values())
    own = (footer.metadata or {}).get(POSITIONS)
    if not isinstance(provenance, dict) or rows != (0 if part is None else part.rows):
        return False
    if own is not None and (part is None or own != f"{part.start} {part.stop}".encode()):
        return False  # of another slice
    if place is None and CHECKSUM in provenance:
        return False  # the seal itself is damaged
    return identity is None or provenance.get("sweep") == identity


def indexed(tail: bytes) -> "Index | None":
    """The index in the last bytes of a slice's file; None if it has none. Raises ValueError if the footer is damaged, or is
    longer than `tail`."""
    size = footer_size(tail)
    if size > len(tail):
        raise ValueError("its footer is cut")
    footer = tail[len(tail) - size :]
    place = _place(footer)
    return read_index(footer, None if place is None else (place + len(b"sha256:"), place + len(_EMPTY)))


def footer_size(tail: bytes | memoryview) -> int:
    """Bytes of a file from its footer on, by its last bytes."""
    return int.from_bytes(tail[-8:-4], "little") + 8


def counted_in(footer: pq.FileMetaData) -> dict[str, Any]:
    """What the file of a search counts beside its rows: `plans` by reason, `simulated`, and the sum of `tightness`.

    Empty for others.
    """
    counted = json.loads((footer.metadata or {}).get(COUNTED, b"{}"))
    return counted if isinstance(counted, dict) else {}


def added(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of several files of a search, added up."""
    plans: Counter[str] = Counter()
    for counted in counts:
        plans.update(counted.get("plans", {}))
    sums = {name: sum(counted.get(name, 0) for counted in counts) for name in ("simulated", "tightness")}
    return {"plans": dict(plans), **sums}


def carried(data: bytes, part: Slice | None) -> dict[str, Any]:
    """The provenance in the file of a slice, or in the manifest. Raises ValueError if the file is damaged."""
    if not is_whole(data, part, None):
        raise ValueError("is damaged")
    return opened_text(pq.read_metadata(BytesIO(data)).metadata[PROVENANCE])


def _place(data: bytes | memoryview) -> int | None:
    """Where the seal's value is in a Parquet file; None if there is none, as in files of earlier versions."""
    if len(data) < 12:
        return None
    start = max(len(data) - footer_size(data), 0)
    tail = bytes(data[start:])
    key = tail.rfind(SEAL)
    seal = _SEALED.search(tail, key) if key >= 0 else None
    return start + seal.start() if seal else None


def _digest(data: bytes | memoryview, place: int) -> str:
    """SHA-256 of a file with zeros at its seal."""
    view = memoryview(data)
    digest = hashlib.sha256(view[:place])
    digest.update(_EMPTY)
    digest.update(view[place + len(_EMPTY) :])
    return digest.hexdigest()


def sealed_text(plain: Mapping[str, Any]) -> bytes:
    """Data with its own hash, as JSON: the manifest of a sweep, the record of a night."""
    kept = {key: value for key, value in plain.items() if key != _KEY} | {CHECKSUM: _ALGORITHM}
    return json.dumps(kept | {_KEY: _text_digest(kept)}, indent=1).encode()


def unsealed(data: bytes) -> tuple[dict[str, Any], bool]:
    """The data in such a text, and whether it has a hash: those of earlier versions have none. Raises ValueError if damaged."""
    plain = json.loads(data)
    if not isinstance(plain, dict):
        raise ValueError("not a mapping")
    sealed = CHECKSUM in plain or _KEY in plain
    if sealed and plain.get(_KEY) != _text_digest(plain):
        raise ValueError("its hash does not match")
    return {key: value for key, value in plain.items() if key not in (CHECKSUM, _KEY)}, sealed


def opened_text(data: bytes) -> dict[str, Any]:
    """The provenance in a manifest. Raises ValueError if it is damaged."""
    provenance, _ = unsealed(data)
    if not isinstance(provenance.get("sweep"), str) or not isinstance(provenance.get("spec"), dict):
        raise ValueError("not a sweep's provenance")
    return provenance


def _text_digest(plain: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in plain.items() if key != _KEY}
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()


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
    return Index(
        sweep=index["sweep"],
        positions=(start, stop),
        statuses=index["statuses"],
        memory=index["memory"],
        _bounds=index["bounds"],
        _chunks=index["chunks"],
    )


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
    of_status, of_reason = (_coded(batch.column(name)) for name in ("status", "reason"))
    names, reasons = (column.dictionary.to_pylist() for column in (of_status, of_reason))
    pairs = of_status.indices.to_numpy().astype(np.int64) * len(reasons) + of_reason.indices.to_numpy()
    counts = [(*divmod(pair, len(reasons)), n) for pair, n in enumerate(np.bincount(pairs).tolist()) if n]
    kept = batch.filter(pc.equal(of_status.indices, names.index(OK))) if OK in names else batch.slice(0, 0)
    return {
        "statuses": sorted([names[status], reasons[reason], n] for status, reason, n in counts),
        "bounds": {name: _bounds(kept.column(name)) for name in batch.schema.names},
        "memory": _memory(batch) if any(reasons[reason] == _TOO_LARGE for _, reason, _ in counts) else None,
    }


def _coded(column: pa.Array) -> pa.DictionaryArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


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
