"""Sweeps from Python: `sweep.run`, `sweep.load`, what they hand to other libraries, and the notebooks among the examples."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import sweep
from sim_core import SpecError, read_hardware, read_model, read_stack
from sweep.executors import InlineExecutor
from sweep.results.slice_file import Slice
from sweep.spec.given import plain
from sweep.spec.spec import checked_spec
from tests.conftest import EXAMPLES, ROOT
from tests.sweep.commands import sweep as command
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


def test_the_package_lists_its_interface(result: sweep.Result) -> None:
    functions = ["init", "load", "run", "search", "tune", "what_if"]
    assert dir(sweep) == ["Result", "SimError", "Spec", "SpecError", "Table", "Told", "Tuner", *functions]
    assert all(getattr(sweep, name) for name in dir(sweep))
    assert all(inspect.isfunction(getattr(sweep, name)) for name in functions), "also search, which is a package, too"
    assert sweep.SpecError is SpecError
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        getattr(sweep, "rum")  # noqa: B009
    kinds = {parameter.kind for name in functions for parameter in inspect.signature(getattr(sweep, name)).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    for name in ("rank", "tuner", "explain", "what_if", "timeline", "export", "report"):
        kinds = {parameter.kind for parameter in inspect.signature(getattr(result, name)).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds, name


def test_a_spec_is_written_searched_and_asked_as_by_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`sweep.init`, `search`, `tune` and `what_if` say what `sweep init`, `search`, `tune` and `whatif` say."""
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="not given, so taken: --hardware H100-SXM"):
        path = sweep.init("llama3-8b", gpus=8, values={"global_batch": 64})
    assert path == Path("llama3-8b.yaml")
    with pytest.raises(SpecError, match="a file that is not there yet"):
        sweep.init("llama3-8b", path)
    spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert spec["fixed"]["global_batch"] == 64
    spec["axes"] = {"tp": [1, 2, 4, 8], "micro_batch": [1, 2], "checkpointing": ["none", "full"]}
    spec["fixed"] |= {"pp": 1, "vpp": 1, "sharding": "optimizer"}
    small = Path("small.yaml")
    small.write_text(yaml.safe_dump(spec), encoding="utf-8")
    found = sweep.search(small, best=3)
    assert command("search", small, "--best", 3, "--out", "by_hand").returncode == 0
    assert found.to_arrow().equals(sweep.load("by_hand").to_arrow())
    assert re.fullmatch("results/llama3-8b-search-[0-9a-f]{8}", str(found.folder))
    best = found.best["plan"]
    told = command("whatif", "by_hand", best, "--gpus", 16, "--json")
    assert sweep.what_if(found.folder, best, gpus=16).values == json.loads(told.stdout)
    asked = json.loads(command("tune", "by_hand", "--json").stdout)
    assert [proposal.plan for proposal in sweep.tune(found.folder).ask(1)] == [each["plan"] for each in asked["next"]]


@pytest.mark.long
def test_a_type_checker_finds_a_misspelt_option(tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(
        'import sweep\nspec: sweep.Spec = {"nmae": "x"}\nr = sweep.run(spec, worker=2)\nr.rank(topp=3)\nr.explian()\n'
        'sweep.lod("x")\nr.export(form="megatrn")\nr.rank(top=3, where="tp > 1")\nsweep.load("out").to_arrow(["plan"])\n'
        'sweep.search(spec, bets=2)\nsweep.tune("out", bye="x")\nsweep.what_if("out", gpus="8")\nsweep.init("m", gpu=8)\n'
        'r.rank().to_pylst()\nr.rank(top=1).to_pylist()[0]["plan"]\nr.to_polars().heighth\n'
    )
    words = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(script),
    ]
    told = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    assert [int(line.split(":")[1]) for line in told.splitlines() if ": error:" in line] == [
        *range(2, 8),
        *range(10, 15),
        16,
    ], told


def test_values_of_numpy_tuples_and_ranges_are_taken(path: Path, result: sweep.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    document = yaml.safe_load(path.read_text())
    axes = {"tp": (1, np.int64(2), 4, 8), "pp": np.array([1, 2, 4])}
    spec = document | {"axes": axes, "fixed": FIXED | {"ga": np.int32(8)}, "workload": document["workload"]}
    given = sweep.run(spec, path.parent / "again")
    assert given.to_arrow().equals(result.to_arrow())
    assert given.provenance["sweep"] == result.provenance["sweep"]
    again = checked_spec(plain({**spec, "axes": {"tp": range(1, 5), "pp": np.arange(1, 3)}}), "spec")
    assert again.axes == {"tp": [1, 2, 3, 4], "pp": [1, 2]}


def test_a_result_answers_what_the_commands_answer(path: Path, result: sweep.Result, tmp_path: Path) -> None:
    result = sweep.load(result.folder, spec=path)
    best = result.best["plan"]
    why = result.explain(best)
    assert command("explain", result.folder, best, "--spec", path).stdout.split() == str(why).split()
    assert why.values["plan"] == best
    told = command("whatif", result.folder, best, "--gpus", 32, "--json", "--spec", path)
    assert result.what_if(gpus=32).values == json.loads(told.stdout)
    assert result.export(best) == command("export", result.folder, "--plan", best, "--spec", path).stdout
    assert json.loads(result.timeline(best, tmp_path / "t.json").read_text())["traceEvents"]
    assert str(best) in result.report(tmp_path / "r.html").read_text(encoding="utf-8")
    shown = result._repr_html_()
    assert shown.count("<tr>") == 11
    assert f">{best}<" in shown
    for call, said in (
        (lambda: result.explain(99), "plan: found 99, expected a number from 0 to 11"),
        (
            lambda: result.export(form="x"),  # type: ignore[arg-type]
            "form: found 'x', valid: ",
        ),
        (lambda: result.timeline(0, stages=[4]), "stages: found '4', expected stages from 0 to 0"),
        (
            lambda: sweep.run(path, executor="rai"),  # type: ignore[arg-type]
            "executor: found 'rai', nearest valid: ray",
        ),
    ):
        with pytest.raises(SpecError, match=f"^{said}"):
            call()


def test_an_executor_of_ones_own_runs_it(path: Path, result: sweep.Result, tmp_path: Path) -> None:
    assert sweep.run(path, tmp_path / "own", executor=InlineExecutor()).to_arrow().equals(result.to_arrow())


def test_a_copy_that_would_change_nothing_is_an_error() -> None:
    for record, name, said in (
        (read_hardware("H100-SXM"), "nic_bandwidth", "Hardware: 'nic_bandwidth' is no field of it, .*`with_values`"),
        (read_model("llama3-8b"), "layer", "Model: 'layer' is no field of it, nearest valid: layers"),
        (read_stack("megatron-core"), "host_forwards", "Stack: 'host_forwards' is no field of it, nearest valid: host_forward"),
    ):
        with pytest.raises(SpecError, match=said):
            record.model_copy(update={name: 1})


NOTEBOOKS = tuple(sorted(path.name for path in EXAMPLES.glob("*.ipynb")))


def code_of(name: str) -> list[str]:
    """The code cells of a notebook among the examples."""
    notebook = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs the code cells of a notebook in order, as a kernel would, in a folder of its own; without matplotlib no plots."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")

    def run(name: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for source in code_of(name):
            if "plt." in source and importlib.util.find_spec("matplotlib") is None:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(source, names)
        return names

    return run


def test_the_notebook_of_the_front_runs(notebook: Callable[[str], dict[str, Any]]) -> None:
    names = notebook("pareto.ipynb")
    front, plans = names["front"], names["plans"]
    assert isinstance(front, pa.Table)
    assert plans.num_rows >= 1000
    assert 2 <= front.num_rows < plans.num_rows
    of = ("step_time_s", "peak_memory_bytes")
    others = np.array([plans[name].to_pylist() for name in of])
    for point in zip(*(front[name].to_pylist() for name in of), strict=True):
        no_worse = (others <= np.array(point)[:, None]).all(0)
        assert (others[:, no_worse] == np.array(point)[:, None]).all()


def test_the_notebook_of_a_measured_plan_runs(notebook: Callable[[str], dict[str, Any]]) -> None:
    names = notebook("measured.ipynb")
    runs, tuner = names["tuner"].runs, names["tuner"]
    assert len(runs) >= 4
    assert tuner.best is not None
    assert tuner.best.step_time_s == min(run.step_time_s for run in runs.values() if run.state == "ok")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_with_its_outputs(name: str) -> None:
    """Of every code cell in order, at least one picture, and nothing of the machine that ran it."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr" for output in outputs)
    assert any("image/png" in output.get("data", {}) for output in outputs)
    told = [json.dumps({k: v for k, v in output.get("data", output).items() if k != "image/png"}) for output in outputs]
    assert not re.search(r"/(tmp|root|home|work|Users|var|opt|private)/|[A-Z]:\\\\", " ".join([*told, *code_of(name)]))
    assert len(text) < 400_000
