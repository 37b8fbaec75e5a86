"""A ranking that reads what it needs: the same answer as from all rows, and nothing is read that was not checked."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sim_core import SpecError
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.ranking import query, reach, selection
from sweep.ranking.query import parts
from sweep.ranking.ranking import rank
from sweep.results.folder import Location
from sweep.results.reading import reading
from sweep.results.slice_file import PROVENANCE, Slice, encoded
from sweep.results.store import Store
from sweep.spec.spec import load_spec
from tests.conftest import rest_long
from tests.sweep.conftest import MODEL, spec_in
from tests.sweep.results.test_store import flipped

QUESTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"top": 3},
    {"by": "step_time", "top": 200},
    {"by": "step_time", "descending": True, "top": 4},
    {"by": "samples_per_s", "per": ["tp"], "top": 2},
    {"by": "mfu", "descending": False, "top": 2},
    {"by": "peak_memory_bytes", "per": ["pp", "checkpointing"]},
    {"by": "pp", "top": 9},
    {"by": "usd"},
    {"by": "bubble_s", "every": True, "top": 7},
    {"by": "step_time", "per": ["peak_memory_bytes"]},
    {"by": "gpu_s_per_sample", "where": "tp > 1 and step < 30"},
    {"pareto": ["step_time", "peak_memory"]},
    {"per": ["hardware.nic_bandwidth", "tp"], "top": 2},
)


def stored(folder: Location, spec: Path, *, width: int, indexed: bool) -> Store:
    """The result of a spec in slices of some width; not indexed: as an earlier version wrote them."""
    prepared, store = prepare(load_spec(spec), spec.parent), Store(directory=folder)
    with store.opened(prepared.provenance) as provenance:
        for start in range(0, prepared.sweep.space.count, width):
            part = Slice(start, min(start + width, prepared.sweep.space.count))
            batch = evaluate(prepared.sweep, np.arange(part.start, part.stop))
            data: pa.Buffer = encoded(batch, provenance, part)
            if not indexed:
                plain = pa.Table.from_batches([batch]).replace_schema_metadata({PROVENANCE: json.dumps(prepared.provenance)})
                sink = pa.BufferOutputStream()
                pq.write_table(plain, sink)
                data = sink.getvalue()
            store.folder.write_bytes(part.file_name, data)
    return store


@pytest.fixture(scope="module", params=["model", "file"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same result with and without indexes: of a model, whose plans have error bars and tie, or of a file."""
    folder = tmp_path_factory.mktemp("both")
    axes = {"hardware.nic_bandwidth": ["100 Gb/s", "400 Gb/s"], "checkpointing": ["none", "full"], "tp": [1, 2, 4, 8]}
    axes |= {"pp": [1, 2, 4], "ga": [1, 8], "all_gpus": [64, 128]}
    model = {**MODEL, "axes": axes, "fixed": {"ep": 1}, "workload": {"model": "llama2-7b", "sequence": 4096}}
    spec = spec_in(folder, **(model if request.param == "model" else {"axes": axes}))
    new = stored(folder / "new", spec, width=16, indexed=True)
    old = stored(folder / "old", spec, width=16, indexed=False)
    assert len(new.slices()) == len(old.slices()) == 12
    return folder / "new", folder / "old"


@pytest.mark.parametrize("first", rest_long([0, 1], 1))
def test_the_answer_is_that_of_all_rows(both: tuple[Path, Path], first: int) -> None:
    """Whatever is asked: files with an index are read in part, those without as a whole."""
    new, old = both
    with reading(new) as found:
        assert all(file.index for file in found.files)
    with reading(old) as found:
        assert not any(file.index for file in found.files)
    assert rank(new, brief=True).reasons == rank(old, brief=True).reasons
    for place, question in [*enumerate(QUESTIONS)][first::2]:
        right = rank(old, **question)
        if place < 3:
            assert rank(new, **question) == right, question
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reach, "_BATCH", 2)
            patch.setattr(selection, "_FIRST", 3)
            patch.setattr(query, "_FEW", 0)
            assert rank(new, **question) == right, f"{question}, few files at a time"


def test_only_files_with_one_of_the_plans_hold_them(both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_FEW", 0)
    with parts(both[0]) as rows:
        assert rows.reading is not None
        plans = {file.part: pq.read_table(file.path)["plan"].to_pylist() for file in rows.reading.files}
        some = [plans[part][k] for k, part in enumerate(plans) if k in (0, 3, 11)]
        for asked in (some, some[:1], [10**9]):
            holding = [part for part, own in plans.items() if {*own} & {*asked}]
            assert [file.part for file in rows.holding(asked, rows.reading.files)] == holding


def test_what_it_reads_from_an_object_store_is_the_same(both: tuple[Path, Path], bucket: str) -> None:
    remote = Store(directory=f"{bucket}/result")
    for path in both[0].glob("*.parquet"):
        remote.folder.write_bytes(path.name, path.read_bytes())
    for question in QUESTIONS[4:6]:
        assert rank(remote.directory, **question) == rank(both[0], **question), question


@pytest.mark.parametrize("flips", rest_long([23, 97], 1))
def test_files_that_cannot_hold_the_best_are_not_read(
    both: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flips: int
) -> None:
    """Damage in what is not read changes nothing, and the next run finds it; in any footer it is found at once."""
    monkeypatch.setattr(reach, "_BATCH", 1)
    monkeypatch.setattr(selection, "_FIRST", 1)
    folder = shutil.copytree(both[0], tmp_path / "result")
    store, right = Store(directory=folder), rank(folder, by="step_time", top=1, every=True)
    provenance = store.provenance()
    assert provenance is not None
    with reading(folder) as found:
        files = [file for file in found.files if file.index and file.index.ok]
    worst = max(files, key=lambda file: file.index.bounds("step_time_s").low if file.index else 0)
    assert worst.index is not None
    whole = worst.path.read_bytes()
    first, size, _ = worst.index.chunk("step_time_s")
    for bit in (8 * first, 8 * (first + size // 2) + 3, 8 * (first + size) - 1):
        worst.path.write_bytes(flipped(whole, bit))
        found_now = rank(folder, by="step_time", top=1, every=True)
        assert found_now.rows.select(["plan", "step_time_s"]) == right.rows.select(["plan", "step_time_s"])
        assert store.damaged(str(provenance["sweep"])) == [worst.part]
        with pytest.raises(SpecError, match=f"{worst.path.name}: damaged"):
            rank(folder, by="step_time", top=1, descending=True, every=True)
    footer = 8 * (len(whole) - int.from_bytes(whole[-8:-4], "little") - 8)
    for bit in range(footer, 8 * len(whole), 8 * len(whole) // flips):
        worst.path.write_bytes(flipped(whole, bit))
        try:
            assert rank(folder, by="step_time", top=1, every=True) == right, "only the hash of the whole file is not read"
        except SpecError as error:
            assert "damaged" in str(error)
        else:
            assert b"sweep.sha256" in whole[bit // 8 - 90 : bit // 8 + 90]


def test_an_index_says_what_is_in_the_file(both: tuple[Path, Path]) -> None:
    """Counts and bounds, against Arrow; what is read of a file is in the place that the index names."""
    with reading(both[0]) as found:
        for file in found.files:
            table = pq.read_table(file.path)
            assert file.index is not None
            counts = Counter(zip(table["status"].to_pylist(), table["reason"].to_pylist(), strict=True))
            assert {(status, reason): n for status, reason, n in file.index.statuses} == counts
            ok = table.filter(pc.equal(table["status"], "ok"))
            for name in table.column_names:
                values = [value for value in ok[name].to_pylist() if value is not None]
                expected = (len(values), min(values, default=None), max(values, default=None))
                assert file.index.bounds(name) == expected, name
