"""The store: whole slices or none, what is missing, damage found, one writer at a time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim_core import SpecError
from sweep.cli import run as command_line
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Prepared, prepare
from sweep.ranking.ranking import rank
from sweep.results.sealing import sealed_text
from sweep.results.slice_file import Slice, encoded
from sweep.results.store import MANIFEST, OLD_MANIFEST, Store, newest
from sweep.spec.spec import load_spec
from tests.sweep.conftest import SpecWriter, files_of, rows


def main(*arguments: object) -> int:
    """The exit code of a command, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sweep", *map(str, arguments)])
        try:
            command_line()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "out").mkdir()
    return Store(directory=tmp_path / "out")


def folder(store: Store) -> Path:
    """Where it lies on this disk."""
    assert isinstance(store.directory, Path)
    return store.directory


def put(store: Store, prepared: Prepared, *parts: tuple[int, int]) -> None:
    provenance = json.dumps(prepared.provenance).encode()
    for start, stop in parts:
        batch = evaluate(prepared.sweep, np.arange(start, stop))
        store.folder.write_bytes(Slice(start, stop).file_name, encoded(batch, provenance, Slice(start, stop)))


def test_what_is_missing_are_the_gaps(store: Store, prepared: Prepared) -> None:
    assert store.missing(100) == [Slice(0, 100)]
    put(store, prepared, (10, 20), (20, 35), (60, 61))
    assert store.missing(100) == [Slice(0, 10), Slice(35, 60), Slice(61, 100)]
    put(store, prepared, (0, 10), (35, 60), (61, 100))
    assert store.missing(100) == []


def test_slices_of_another_size_that_overlap_are_left_out_then_dropped(store: Store, prepared: Prepared) -> None:
    put(store, prepared, (0, 50), (30, 60), (50, 80))
    assert store.slices() == [Slice(0, 50), Slice(50, 80)]
    assert store.drop_damaged(prepared.sweep.identity) == []
    assert sorted(path.name for path in folder(store).glob("*.parquet")) == sorted(path.name for path in files_of(store))


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "foreign", "short"])
def test_a_damaged_slice_is_dropped_and_computed_again(store: Store, prepared: Prepared, damage: str) -> None:
    put(store, prepared, (0, 50), (50, 80))
    path = folder(store) / Slice(50, 80).file_name
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "noise":
        path.write_bytes(b"\xff" * 4000)
    elif damage == "foreign":
        other = json.dumps({**prepared.provenance, "sweep": "another"}).encode()
        store.folder.write_bytes(path.name, encoded(evaluate(prepared.sweep, np.arange(50, 80)), other, Slice(50, 80)))
    else:
        put(store, prepared, (50, 79))
        (folder(store) / Slice(50, 79).file_name).rename(path)
    assert store.drop_damaged(prepared.sweep.identity) == [path.name]
    assert store.missing(80) == [Slice(50, 80)]


def test_a_write_that_fails_leaves_nothing(store: Store, prepared: Prepared) -> None:
    name = Slice(0, 5).file_name
    data = encoded(evaluate(prepared.sweep, np.arange(5)), b"{}", Slice(0, 5))
    with pytest.raises(OSError, match="No such file"):
        (store.folder / "gone").write_bytes(name, data)
    (folder(store) / name).mkdir()  # the rename fails, after the write
    with pytest.raises(OSError, match="directory"):
        store.folder.write_bytes(name, data)
    assert [path.name for path in folder(store).iterdir()] == [name]


def test_another_sweep_is_not_overwritten_unless_told(store: Store, prepared: Prepared) -> None:
    with store.opened(prepared.provenance):
        put(store, prepared, (0, 5))
    others: dict[str, tuple[Any, str]] = {
        "code": ({**prepared.provenance["code"], "numpy": "0.1"}, r"another version of .* \(numpy: found .*, expected 0\.1\)"),
        "workload": ("another", "another workload"),
        "x": ("another", "other axes"),
    }
    for key, (value, why) in others.items():
        other = {**prepared.provenance, "sweep": "another", key: value}
        with pytest.raises(SpecError, match=why), store.opened(other):
            pass
    assert store.slices() == [Slice(0, 5)]
    with store.opened({**prepared.provenance, "sweep": "another"}, fresh=True):
        assert store.slices() == []


def test_one_writer_at_a_time_and_a_dead_one_does_not_count(store: Store, prepared: Prepared) -> None:
    held = {"sweep": prepared.provenance["sweep"], "spec": {}}
    code = (
        "import sys; from pathlib import Path; from sweep.results.store import Store\n"
        f"with Store(directory=Path({str(store.directory)!r})).opened({held!r}):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SpecError, match="another run is writing here"), store.opened(prepared.provenance):
            pass
        other.kill()
        other.wait()
        with store.opened(prepared.provenance):
            pass


def test_leftovers_of_killed_writers_are_cleared(store: Store, prepared: Prepared) -> None:
    for name in (".part-000000000000-000000000005.parquet.123", f".{MANIFEST}.123"):
        (folder(store) / name).write_bytes(b"half")
    with store.opened(prepared.provenance):
        assert sorted(path.name for path in folder(store).iterdir()) == [".lock", MANIFEST]


def test_a_result_of_an_earlier_version_is_read_and_resumed(write_spec: SpecWriter, tmp_path: Path) -> None:
    """It has its manifest as JSON."""
    spec, out = write_spec(axes={"tp": [1, 2, 4], "ga": [1, 4]}), tmp_path / "out"
    assert main("run", spec, "--workers", 0, "--out", out, "--top", 0) == 0
    whole, store = rows(out), Store(directory=out)
    held = store.provenance()
    assert held is not None
    (out / MANIFEST).unlink()
    (out / OLD_MANIFEST).write_bytes(sealed_text(held))
    assert store.provenance() == held
    assert store.started_s() == pytest.approx((out / OLD_MANIFEST).stat().st_mtime)
    assert rank(out).total == len(whole)
    files_of(store)[0].unlink()
    assert main("run", spec, "--workers", 0, "--out", out, "--top", 0) == 0
    assert rows(out).equals(whole)
    assert (store.provenance(), (out / OLD_MANIFEST).exists()) == (held, False)


def test_a_file_says_by_itself_what_it_was_made_from(store: Store, prepared: Prepared) -> None:
    put(store, prepared, (0, 5))
    told = json.loads(pq.read_metadata(files_of(store)[0]).metadata[b"sweep.provenance"])
    assert told["spec"]["axes"]["tp"] == [1, 2, 4, 8, 16]
    assert told["model"] == prepared.provenance["model"]
    assert told["hardware"][0]["name"] == "H100-SXM"
    assert any("memory" in note for note in told["notes"])


def test_other_people_s_files_are_never_touched(store: Store, prepared: Prepared) -> None:
    with store.opened(prepared.provenance):
        put(store, prepared, (0, 5))
    others = ["part-00000-3fa85f64-c000.snappy.parquet", "part-mine.parquet", "notes.txt"]
    for name in others:
        (folder(store) / name).write_text("mine")
    with store.opened(prepared.provenance, fresh=True):
        store.drop_damaged(prepared.sweep.identity)
    assert all((folder(store) / name).read_text() == "mine" for name in others)


def test_a_folder_of_parquet_files_that_is_no_sweep_s_is_refused(store: Store, prepared: Prepared) -> None:
    (folder(store) / "part-000000000000-000000000005.parquet").write_text("somebody's")
    for fresh in (False, True):
        with pytest.raises(SpecError, match="not a sweep's folder"), store.opened(prepared.provenance, fresh=fresh):
            pass
    assert (folder(store) / "part-000000000000-000000000005.parquet").read_text() == "somebody's"


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"sweep": "x", "spec": null}', "null"])
def test_a_damaged_manifest_is_written_anew_from_the_slices(store: Store, prepared: Prepared, text: str) -> None:
    with store.opened(prepared.provenance):
        put(store, prepared, (0, 5), (5, 9))
    (folder(store) / MANIFEST).write_text(text)
    (folder(store) / Slice(0, 5).file_name).write_text("damaged as well")
    held = store.provenance()
    assert held is not None
    assert held["sweep"] == prepared.sweep.identity
    with store.opened(prepared.provenance):
        assert store.drop_damaged(prepared.sweep.identity) == [Slice(0, 5).file_name]
        assert store.slices() == [Slice(5, 9)]
    assert pq.read_metadata(folder(store) / MANIFEST).num_rows == 0
    assert store.started_s() is not None


def test_a_deleted_manifest_is_written_anew_from_the_slices(store: Store, prepared: Prepared) -> None:
    with store.opened(prepared.provenance):
        put(store, prepared, (0, 5), (5, 9))
    (folder(store) / MANIFEST).unlink()
    with store.verified() as files:
        assert len(files) == 2
    with store.opened(prepared.provenance):
        assert store.slices() == [Slice(0, 5), Slice(5, 9)]
    assert (folder(store) / MANIFEST).is_file()


def test_without_a_slice_to_tell_a_damaged_manifest_needs_fresh(store: Store, prepared: Prepared) -> None:
    with store.opened(prepared.provenance):
        put(store, prepared, (0, 5))
    other = json.dumps(prepared.provenance | {"sweep": "another"}).encode()
    (folder(store) / MANIFEST).write_text("{")
    for damage in (encoded(evaluate(prepared.sweep, np.arange(5, 9)), other, Slice(5, 9)), b"damaged"):
        store.folder.write_bytes(Slice(5, 9).file_name, damage)
        if damage == b"damaged":
            store.folder.write_bytes(Slice(0, 5).file_name, damage)
        with pytest.raises(SpecError, match=r"is damaged .*start over with `sweep run --fresh`"):
            store.provenance()
        assert len(store.slices()) == 2, "nothing is deleted"
    with store.opened(prepared.provenance, fresh=True):
        assert store.slices() == []


def test_a_store_on_s3_is_filled_resumed_and_ranked_as_a_local_one(
    write_spec: SpecWriter, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec()
    out = f"{bucket}/results/small"
    assert main("run", spec, "--workers", 0, "--out", tmp_path / "local") == 0
    assert main("run", spec, "--workers", 1, "--out", out) == 0
    assert rows(out).equals(rows(tmp_path / "local"))
    store = Store(directory=out)
    store.folder.write_bytes(store.slices()[0].file_name, b"damaged")
    store.folder.delete(store.slices()[-1].file_name)
    assert main("run", spec, "--workers", 0, "--out", out, "--top", 0) == 0
    assert rows(out).equals(rows(tmp_path / "local"))
    assert newest(f"{bucket}/results").names() == store.folder.names()
    found, expected = rank(out, top=50, where="tp > 1"), rank(tmp_path / "local", top=50, where="tp > 1")
    assert found == expected
    with pytest.raises(SpecError, match="holds results of another sweep"):
        store.check({**prepare(load_spec(spec), spec.parent).provenance, "sweep": "another"})
    for fresh in (False, True):  # nor is anything but a sweep's folder taken
        (store.folder / "others").write_bytes("theirs.parquet", b"")
        with pytest.raises(SpecError, match="not a sweep's folder"):
            Store(directory=f"{out}/others").check({}, fresh=fresh)


def test_of_slices_that_overlap_those_are_taken_that_cover_the_most(store: Store, prepared: Prepared) -> None:
    """As a run that was killed may leave workers that still write: no tiling is broken by what they add."""
    put(store, prepared, (0, 40), (0, 60), (40, 80), (60, 100), (80, 100), (30, 90))
    assert store.missing(100) == []
    assert store.slices() in ([Slice(0, 40), Slice(40, 80), Slice(80, 100)], [Slice(0, 60), Slice(60, 100)])
    kept = store.slices()
    assert store.drop_damaged(prepared.sweep.identity) == []
    assert store.slices() == kept
    assert len(list(folder(store).glob("part-*"))) == len(kept)


def flipped(data: bytes, bit: int) -> bytes:
    """The same bytes but for one bit."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def same_as_damaged(directory: Path, name: str, bits: list[int], prepared: Prepared) -> list[int]:
    """Those of the bits whose flip is found neither by `rank` nor by a resumed run, though both read the file."""
    path = directory / name
    whole, right, silent = path.read_bytes(), rank(directory).rows, []
    for bit in bits:
        path.write_bytes(flipped(whole, bit))
        try:
            found = rank(directory).rows
        except SpecError as error:
            assert "damaged" in str(error), error
            assert "\n" not in str(error)
        else:
            if name != MANIFEST or not found.equals(right):  # the slices tell what the manifest said
                silent.append(bit)
        if name != MANIFEST:
            assert [part.file_name for part in Store(directory=directory).damaged(prepared.sweep.identity)] == [name]
    path.write_bytes(whole)
    return silent


def check_flips(directory: Path, prepared: Prepared, flips: int, seed: int) -> None:
    """Flip single bits anywhere in a slice (half of them in its last part: footer and seal) and in the manifest."""
    store = Store(directory=directory)
    with store.opened(prepared.provenance) as provenance:
        batch = evaluate(prepared.sweep, np.arange(40))
        store.folder.write_bytes(Slice(0, 40).file_name, encoded(batch, provenance, Slice(0, 40)))
    rank(directory)
    rng = random.Random(seed)
    for name, share in ((Slice(0, 40).file_name, 0.8), (MANIFEST, 0.2)):
        size = 8 * (directory / name).stat().st_size
        bits = [rng.randrange(size if k % 2 else size // 4) for k in range(round(flips * share))]
        bits = [size - 1 - bit if k % 4 == 0 else bit for k, bit in enumerate(bits)]
        assert same_as_damaged(directory, name, bits, prepared) == []


def test_a_flipped_bit_is_never_read_as_another_number(store: Store, prepared: Prepared) -> None:
    check_flips(folder(store), prepared, flips=60, seed=1)


@pytest.mark.long
def test_a_thousand_flipped_bits_are_all_found(store: Store, prepared: Prepared) -> None:
    check_flips(folder(store), prepared, flips=1000, seed=2)


def test_what_rank_calls_damaged_the_same_run_computes_again(write_spec: SpecWriter, tmp_path: Path) -> None:
    """At any offset: also where Parquet itself reads on without an error."""
    spec, out = write_spec(axes={"tp": [1, 2, 4], "ga": [1, 4]}), tmp_path / "out"
    assert main("run", spec, "--workers", 0, "--out", out, "--top", 0) == 0
    whole = rows(out)
    (path,) = files_of(Store(directory=out))
    data = path.read_bytes()
    for bit in range(40, 8 * len(data), 8 * len(data) // 6):
        path.write_bytes(flipped(data, bit))
        with pytest.raises(SpecError, match="damaged; the same `sweep run` computes damaged slices again"):
            rank(out)
        assert main("run", spec, "--workers", 0, "--out", out, "--top", 0) == 0
        assert rows(out).equals(whole)


def test_a_file_without_a_hash_is_read_as_before(store: Store, prepared: Prepared) -> None:
    """As versions before the hash wrote them; the provenance says whether there should be one."""
    batch = evaluate(prepared.sweep, np.arange(20))
    for provenance, whole in ((prepared.provenance, True), ({**prepared.provenance, "checksum": "sha256"}, False)):
        table = pa.Table.from_batches([batch]).replace_schema_metadata({"sweep.provenance": json.dumps(provenance)})
        pq.write_table(table, folder(store) / Slice(0, 20).file_name)
        assert store.drop_damaged(prepared.sweep.identity) == ([] if whole else [Slice(0, 20).file_name])
