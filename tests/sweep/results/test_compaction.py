"""`sweep compact`: the same rows in fewer files, whatever interrupts it, on a disk and on a real S3 server."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sim_core import SpecError
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Prepared
from sweep.ranking.ranking import rank
from sweep.results.compaction import MOST_BYTES, compact
from sweep.results.folder import Folder, folder_at
from sweep.results.sealing import sealed_text
from sweep.results.slice_file import Slice, encoded
from sweep.results.store import Store
from tests.sweep.commands import sweep
from tests.sweep.conftest import files_of, rows
from tests.sweep.fault_proxy import faulty


def filled(store: Store, prepared: Prepared, *edges: int) -> Store:
    """A result in slices between these edges, without the one that ends at the last edge but one."""
    store.folder.make()
    store.folder.write_bytes("sweep.json", sealed_text(prepared.provenance))
    text = sealed_text(prepared.provenance)
    for start, stop in pairwise(edges):
        if stop != edges[-2]:
            batch = evaluate(prepared.sweep, np.arange(start, stop))
            store.folder.write_bytes(Slice(start, stop).file_name, encoded(batch, text, Slice(start, stop)))
    return store


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, prepared: Prepared) -> Store:
    out = tmp_path / "out" if request.param == "local" else f"{request.getfixturevalue('bucket')}/out"
    return filled(Store(directory=out), prepared, *range(0, 300, 20))


def test_the_same_rows_in_fewer_files(store: Store) -> None:
    table, best = rows(store.directory), rank(store.directory, top=5)
    told = sweep("compact", store.folder)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.endswith("13 files before, 2 now\n")
    assert store.slices() == [Slice(0, 240), Slice(260, 280)], "the gap stays a gap"
    assert rows(store.directory).equals(table)
    assert rank(store.directory, top=5) == best
    assert compact(store) == (2, 2)


def test_a_kill_in_between_costs_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(store.directory)

    class Killed(BaseException):
        pass

    def killed(folder: Folder, name: str) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "delete", killed)
        with pytest.raises(Killed):
            compact(store)
    assert rows(store.directory).equals(table), "each row once"
    compact(store)
    assert store.slices() == [Slice(0, 240), Slice(260, 280)]
    assert rows(store.directory).equals(table)


def test_a_file_that_is_not_stored_as_written_replaces_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table, plain = rows(store.directory), Folder.write_bytes

    def spoiled(folder: Folder, name: str, data: bytes) -> None:
        plain(folder, name, bytes(data)[:-9] + b"?" + bytes(data)[-8:] if name.startswith("part-") else data)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "write_bytes", spoiled)
        with pytest.raises(SpecError, match="was not stored as written; the slices it was made from are kept"):
            compact(store)
    assert rows(store.directory).equals(table)


def test_a_file_stays_small_enough_for_one_put(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: str, s3_server: str
) -> None:
    one, split = (filled(Store(directory=tmp_path / name), prepared, *range(0, 300, 20)) for name in ("one", "split"))
    compact(one)
    monkeypatch.setattr("sweep.results.compaction.MOST_BYTES", files_of(one)[0].stat().st_size - 1)
    assert compact(split) == (13, 3)
    assert split.slices() == [Slice(0, 120), Slice(120, 240), Slice(260, 280)]
    assert compact(split) == (3, 3)
    assert rows(split.directory).equals(rows(one.directory))

    with faulty(s3_server) as faults:
        folder = folder_at(f"{bucket}/large?endpoint_override={faults.address}&scheme=http&region=us-east-1")
        folder.write_bytes(Slice(0, 1).file_name, bytes(MOST_BYTES))
    assert faults.seen == {"PUT part": 1}, "no upload in parts"


def test_damage_is_not_compacted(store: Store) -> None:
    """Told is the first damaged slice, with how many more there are."""
    for part, others in ((Slice(40, 60), ""), (Slice(80, 100), " and 1 more"), (Slice(20, 40), " and 2 more")):
        data = bytearray(store.folder.read_bytes(part.file_name))
        data[500] ^= 1
        store.folder.write_bytes(part.file_name, bytes(data))
        first = min(part, Slice(40, 60)).file_name
        with pytest.raises(SpecError, match=f"{first}{others}: damaged; the same `sweep run` computes damaged slices again"):
            compact(store)
    assert len(store.slices()) == 13


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({}))
    with pytest.raises(SpecError, match="holds no results of a sweep"):
        compact(Store(directory=tmp_path))
