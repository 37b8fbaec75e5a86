"""Few large files from the many small ones of a result: quicker to list, to check and to rank."""

from collections.abc import Iterator

from sweep.results.slice_file import Slice, encoded
from sweep.results.store import Store

MOST_ROWS = 200_000
"""Of a file."""
MOST_BYTES = 10_000_000
"""Of a file: Arrow uploads more than 10 MiB in parts, which a kill may leave behind on an object store."""


def compact(store: Store) -> tuple[int, int]:
    """Write neighbouring slices as one file, then delete them; returns the numbers of files before and after.

    The rows stay as they are. A kill leaves slices twice at worst, which every reader and the next run count once. Raises
    SpecError if a run writes there, there is no result, or a file is damaged.
    """
    provenance = store.made_from()
    with store.opened(provenance) as text:
        before = len(store.slices())
        store.refuse(store.damaged(provenance["sweep"]))
        store.drop_doubles()
        for parts in _groups(store.slices()):
            _joined(store, parts, text, provenance["sweep"])
        return before, len(store.slices())


def _groups(parts: list[Slice]) -> Iterator[list[Slice]]:
    """Runs of adjacent slices, of MOST_ROWS together at most."""
    group: list[Slice] = []
    for part in parts:
        if group and (part.start != group[-1].stop or part.stop - group[0].start > MOST_ROWS):
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _joined(store: Store, parts: list[Slice], provenance: bytes, identity: str) -> None:
    """Replace slices, unless it is one, by one file, once that has been read back; by several, if one were too large."""
    if len(parts) == 1:
        return
    batch, counts = store.joined(parts)
    whole = Slice(parts[0].start, parts[-1].stop)
    data = encoded(batch, provenance, whole, counts or None)
    if data.size > MOST_BYTES:
        half = len(parts) // 2
        _joined(store, parts[:half], provenance, identity)
        _joined(store, parts[half:], provenance, identity)
        return
    store.replace(parts, whole, data, identity)
