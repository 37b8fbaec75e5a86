"""A slice under another slice's name is damage like any other: no reader takes it, and the same run computes it again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sim_core import SpecError
from sweep.api import load
from sweep.compare.comparison import compare
from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.slices import SliceTask
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.ranking.ranking import objectives_of, rank
from sweep.results.compaction import compact
from sweep.results.slice_file import POSITIONS, Slice
from sweep.results.store import MANIFEST, Store
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search
from sweep.spec.spec import load_spec
from tests.conftest import rest_long
from tests.sweep.commands import sweep
from tests.sweep.conftest import MODEL, WIDTH, filled, rows, spec_in


def misplace(folder: Path, chance: random.Random) -> None:
    """Copy a slice over another, swap two, or give one the name of another."""
    one, other = chance.sample(sorted(folder.glob("part-*.parquet")), 2)
    kind = chance.choice(("copy", "swap", "rename"))
    if kind == "copy":
        shutil.copy(one, other)
    elif kind == "rename":
        one.replace(other)
    else:
        data = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(data)


def test_a_slice_copied_over_the_best_one(sliced: Path, sliced_spec: Path, tmp_path: Path) -> None:
    """Copied over the one with the best plan: every command says so, and run computes it again."""
    out = tmp_path / "out"
    shutil.copytree(sliced, out)
    best = rank(sliced, top=1, per=[]).rows["plan"][0].as_py() // WIDTH * WIDTH
    worse = (best + WIDTH) % 96
    name = Slice(best, best + WIDTH).file_name
    shutil.copy(out / Slice(worse, worse + WIDTH).file_name, out / name)
    for command in (
        ("rank", out),
        ("status", out),
        ("explain", out, "best", "--spec", sliced_spec),
        ("timeline", out, "best", "--spec", sliced_spec, "-o", tmp_path / "t.json"),
        ("report", out, "-o", tmp_path / "r.html"),
        ("compare", sliced, out),
        ("compact", out),
    ):
        done = sweep(*command)
        assert done.returncode == 1, command
        assert done.stderr == f"error: {out / name}: damaged; the same `sweep run` computes damaged slices again\n", command
    assert "damaged" in sweep("ls", out).stdout
    for read in (load(out).to_arrow, lambda: compare(sliced, out)):
        with pytest.raises(SpecError, match="damaged"):
            read()
    again = sweep("run", sliced_spec, "--out", out, "--workers", 0, "--top", 0)
    assert again.returncode == 0
    assert f"{name}: is damaged and will be recomputed" in again.stdout
    assert rows(out) == rows(sliced)


@pytest.mark.parametrize("count", rest_long([20, 100], 1))
def test_a_hundred_misplaced_files_are_found(sliced: Path, sliced_job: Prepared, tmp_path: Path, count: int) -> None:
    """By what reads footers and columns, by what reads sliced files; and the next run mends all of them."""
    chance, right = random.Random(28), rows(sliced)
    for number in range(count):
        out = tmp_path / str(number)
        shutil.copytree(sliced, out)
        misplace(out, chance)
        store = Store(directory=out)
        assert store.damaged(sliced_job.sweep.identity)
        assert not store.is_whole(sliced_job.sweep.identity, sliced_job.sweep.space.count)
        with pytest.raises(SpecError, match="damaged"):
            rank(out)
        with pytest.raises(SpecError, match="damaged"), store.verified():
            pass
        if number % 10 == 0:
            run_sweep(sliced_job, store, InlineExecutor())
            assert rows(out) == right
        shutil.rmtree(out)


def test_a_slice_copied_over_another_on_an_object_store(sliced: Path, sliced_job: Prepared, bucket: str) -> None:
    store = filled(f"{bucket}/result", sliced_job)
    one, other = store.slices()[:2]
    store.folder.write_bytes(other.file_name, store.folder.read_bytes(one.file_name))
    with pytest.raises(SpecError, match="damaged"):
        rank(store.directory)
    run_sweep(sliced_job, store, InlineExecutor())
    assert rows(store.directory) == rows(sliced)


def test_a_slice_in_the_place_of_the_manifest_and_the_other_way_round(sliced: Path, tmp_path: Path) -> None:
    shutil.copytree(sliced, tmp_path / "out")
    names = sorted(path.name for path in sliced.glob("part-*"))
    shutil.copy(sliced / names[3], tmp_path / "out" / MANIFEST)
    held = Store(directory=tmp_path / "out").provenance()
    assert held == Store(directory=sliced).provenance(), "that of the slices"
    shutil.copy(sliced / MANIFEST, tmp_path / "out" / names[3])
    with pytest.raises(SpecError, match=f"{names[3]}: damaged"):
        rank(tmp_path / "out")


def test_every_file_says_which_slice_it_is(sliced: Path, sliced_job: Prepared, tmp_path: Path) -> None:
    """Those of a run, of plans that were given up, of a compacted result and of a search."""
    compacted, failed = tmp_path / "compacted", tmp_path / "failed"
    shutil.copytree(sliced, compacted)
    assert compact(Store(directory=compacted)) == (12, 1)
    store = Store(directory=failed)
    with store.opened(sliced_job.provenance) as provenance:
        SliceTask(sweep=sliced_job.sweep, directory=failed, provenance=provenance).give_up(Slice(0, 96), "worker_lost")
    spec = spec_in(tmp_path, **MODEL)
    searched = prepare(load_spec(spec), tmp_path)
    column, descending = objectives_of(load_spec(spec))
    objective = Objective(column=column, descending=descending, per=(), best=2)
    searched = as_search(searched, objective)
    run_search(searched, objective, Store(directory=tmp_path / "search"), InlineExecutor())
    for out in (sliced, compacted, failed, tmp_path / "search"):
        parts = Store(directory=out).slices()
        assert parts
        for part in parts:
            footer = pq.read_metadata(out / part.file_name)
            assert footer.metadata[POSITIONS] == f"{part.start} {part.stop}".encode()
