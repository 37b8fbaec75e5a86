"""A slice of results as a Parquet file sealed with the hash of its own bytes, and the manifest that is sealed, too.

Parquet's page checksums cover pages only: a flipped bit in a header or the footer can still be read as another number. So
the footer holds the SHA-256 of the whole file, computed with zeros in its own place. Files of earlier versions have none.
"""

import bisect
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from sim_core.documents import Fields
from sweep.results.index import INDEX, Index, empty_index, fill_index, read_index
from sweep.results.sealing import CHECKSUM, opened_text

PROVENANCE = b"sweep.provenance"
SEAL = b"sweep.sha256"
POSITIONS = b"sweep.positions"
"""Key of the footer: the first position of the slice and the one after its last. Files of earlier versions have none."""
COUNTED = b"sweep.counted"
"""Key of the footer: how many plans of the slice are no rows, by reason, and other facts of a search."""
_EMPTY = b"sha256:" + b"0" * 64
_SEALED = re.compile(rb"sha256:[0-9a-f]{64}")
_NUMBER = "plan"
_PAGE = 1 << 16
"""Bytes of a page before compression: a reader skips those without a row that it looks for."""


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
    chosen = []
    k = len(ordered)
    while k:
        if best[k] == best[k - 1]:
            k -= 1
        else:
            chosen.append(ordered[k - 1])
            k = before[k - 1]
    return chosen[::-1]


def encoded(batch: pa.RecordBatch, provenance: bytes, part: Slice | None, counted: Fields | None = None) -> pa.Buffer:
    """The rows of a slice as a sealed Parquet file; `counted`: see COUNTED. Without a slice, the manifest."""
    floats = [field.name for field in batch.schema if pa.types.is_floating(field.type)]
    others = [name for name in batch.schema.names if name not in (*floats, _NUMBER)]
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
    except (pa.ArrowException, OSError, ValueError, RecursionError):
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


def indexed(tail: bytes) -> Index | None:
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


def counted_in(footer: pq.FileMetaData) -> Fields:
    """What the file of a search counts beside its rows: `plans` by reason, `simulated`, and the sum of `tightness`.

    Empty for others.
    """
    counted = json.loads((footer.metadata or {}).get(COUNTED, b"{}"))
    return counted if isinstance(counted, dict) else {}


def added(counts: Sequence[Fields]) -> Fields:
    """The counts of several files of a search, added up."""
    plans: Counter[str] = Counter()
    for counted in counts:
        plans.update(counted.get("plans", {}))
    sums = {name: sum(counted.get(name, 0) for counted in counts) for name in ("simulated", "tightness")}
    return {"plans": dict(plans), **sums}


def carried(data: bytes, part: Slice | None) -> Fields:
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
