"""Sweeps from Python: `sweep.run`, `sweep.load`, what they hand to other libraries, and the notebook among the examples."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import sweep
from sim_core import SpecError
from sweep.slice_file import Slice
from tests.conftest import EXAMPLES
from tests.sweep.conftest import SpecWriter, rows

AXES = {"tp": [1, 2, 4, 8], "pp": [1, 2, 4]}
FIXED = {"all_gpus": 64, "ga": 8, "layer_split": "balanced"}


@pytest.fixture
def path(write_spec: SpecWriter) -> Path:
    return write_spec(axes=AXES, fixed=FIXED, where=None)


@pytest.fixture
def result(path: Path, tmp_path: Path) -> sweep.Result:
    return sweep.run(path, tmp_path / "out")


def test_a_path_a_mapping_and_the_command_give_the_same_rows(
    path: Path, result: sweep.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = result.to_arrow()
    assert table["plan"].to_pylist() == list(range(12))
    monkeypatch.chdir(path.parent)
    again = sweep.run(yaml.safe_load(path.read_text()))
    assert str(again.folder).startswith("results/small-")
    assert rows(again.folder).equals(rows(tmp_path / "out"))
    assert sweep.load(again.folder).to_arrow().equals(table)
    assert sweep.run(path, tmp_path / "out").to_arrow().equals(table), "nothing was missing"
    assert result.provenance["spec"]["name"] == "small"


def test_columns_have_the_names_that_rank_accepts(result: sweep.Result) -> None:
    assert result.to_arrow(["tp", "gpus", "step_time"]).column_names == ["tp", "all_gpus", "step_time_s"]
    with pytest.raises(SpecError, match="unknown column 'stepp'"):
        result.to_arrow(["stepp"])
    best = result.rank(by="step_time", top=1, per=[])
    assert best["step_time_s"].to_pylist() == [min(t for t in result.to_arrow()["step_time_s"].to_pylist() if t is not None)]


def test_other_libraries_get_the_same_rows(result: sweep.Result) -> None:
    relation = result.to_duckdb().aggregate("count(*), sum(step_time_s)").fetchall()
    step_s = [value for value in result.to_arrow()["step_time_s"].to_pylist() if value is not None]
    assert relation == [(12, pytest.approx(sum(step_s)))]
    pytest.importorskip("pandas")
    frame = result.to_pandas(["plan", "step_time", "schedule"])
    assert (frame.shape, frame["step_time_s"].count()) == ((12, 3), len(step_s))
    pytest.importorskip("polars")
    assert result.to_polars().shape == (12, result.to_arrow().num_columns)


def test_other_libraries_read_the_folder_itself(result: sweep.Result, tmp_path: Path) -> None:
    """Every file that is not empty is Parquet, with the same columns: what polars asks for, and pandas less."""
    folder, table = tmp_path / "out", result.to_arrow()
    files = [path for path in folder.iterdir() if path.stat().st_size]
    assert {path.suffix for path in files} == {".parquet"}
    assert len({str(pq.read_schema(path).remove_metadata()) for path in files}) == 1
    relation = duckdb.read_parquet(f"{folder}/*.parquet").aggregate("count(*), count(step_time_s)")
    assert relation.fetchall() == [(12, 12 - table["step_time_s"].null_count)]
    assert pq.read_table(folder).equals(table)
    pytest.importorskip("pandas")
    pandas = importlib.import_module("pandas")
    assert pandas.read_parquet(folder).shape == table.shape
    pytest.importorskip("polars")
    assert importlib.import_module("polars").read_parquet(folder).shape == table.shape


def test_other_libraries_pass_over_a_file_that_is_being_written(result: sweep.Result, tmp_path: Path) -> None:
    """All but polars, which opens every file of a folder: it wants the names of the parts."""
    folder = Path(shutil.copytree(tmp_path / "out", tmp_path / "running"))
    part = next(folder.glob("part-*.parquet"))
    (folder / f".{part.name}.0123456789ab").write_bytes(part.read_bytes()[:1000])
    assert duckdb.read_parquet(f"{folder}/*.parquet").aggregate("count(*)").fetchall() == [(12,)]
    assert pq.read_table(folder).num_rows == 12
    pytest.importorskip("pandas")
    assert len(importlib.import_module("pandas").read_parquet(folder)) == 12
    pytest.importorskip("polars")
    assert importlib.import_module("polars").read_parquet(f"{folder}/part-*.parquet").height == 12


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_library_that_lacks_is_named(name: str, result: sweep.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(given: str) -> Any:
        raise ModuleNotFoundError(f"No module named {given!r}", name=given)

    monkeypatch.setattr("sweep.api.import_module", missing)
    with pytest.raises(SpecError, match=rf"^{name} is not installed \(pip install {name}\)$"):
        getattr(result, f"to_{name}")()


def test_mistakes_are_one_line(path: Path, result: sweep.Result, tmp_path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    for wrong, said in (
        ({"axes": {"seq_len": [1]}}, "spec: axes.seq_len: unknown name, set workload.sequence"),
        ({"axes": {"bucket_bytes": [5]}}, "spec: axes.bucket_bytes: found '5', expected a size with its unit"),
        ({"objectives": 5}, "spec: objectives: found '5', expected a list"),
    ):
        with pytest.raises(SpecError, match=said):
            sweep.run(document | wrong, tmp_path / "no")
    with pytest.raises(SpecError, match="holds no results of a sweep"):
        sweep.load(tmp_path / "no")
    part = tmp_path / "out" / Slice(0, 12).file_name
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.write_bytes(bytes(data))
    with pytest.raises(SpecError, match="damaged; the same `sweep run` computes damaged slices again"):
        result.to_arrow()


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code cells in order, as a kernel would, in a copy of its folder."""
    pytest.importorskip("pandas")
    shutil.copytree(EXAMPLES / "workloads", tmp_path / "workloads")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "pareto.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), names)
    front, plans = names["front"], names["plans"]
    assert isinstance(front, pa.Table)
    assert 2 <= front.num_rows < plans.num_rows
    for step_s, cost in zip(front["step_time_s"].to_pylist(), front["gpu_s_per_sample"].to_pylist(), strict=True):
        others = zip(plans["step_time_s"].to_pylist(), plans["gpu_s_per_sample"].to_pylist(), strict=True)
        assert not any(a <= step_s and b <= cost and (a, b) != (step_s, cost) for a, b in others)
    assert len(names["figure"].data) == 2
