"""The code that makes rows: what a worker imports, part of the identity, the same in every process of a run."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sim_core.compiling import cache_dir
from sweep import sources
from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.slices import SliceTask
from sweep.reopening import reopened
from sweep.search.objective import Objective
from sweep.search.search import SearchTask, as_search
from sweep.sources import DATA, PACKAGES, ROOT, WORKER, differences, hashes_of, loaded, row_code, sources_of
from sweep.spec.spec import load_spec
from tests.sweep.conftest import MODEL, SpecWriter
from tests.sweep.test_execution import here

PROJECT = ROOT.parent
SEARCH = SearchTask.entry
NAMED = {
    "sweep/columns.py",
    "sweep/conditions.py",
    "sweep/evaluation/evaluation.py",
    *(f"sweep/spec/{name}.py" for name in ("budget", "failures", "space", "spec")),
}
"""Of modules that make columns, those that a person would name."""
CHANGE = "CHANGED = 1"
Load = Callable[[Path], None]
Plant = Callable[[str, str], None]


def modules_by_syntax(entry: str) -> set[str]:
    """What a module imports, directly or not, by Python's own parser, without what is for type checkers alone."""

    def imported(code: ast.AST) -> Iterator[str]:
        if isinstance(code, ast.If) and ast.unparse(code.test) == "TYPE_CHECKING":
            return
        if isinstance(code, ast.Import):
            yield from (name.name for name in code.names)
        if isinstance(code, ast.ImportFrom):
            yield from (code.module or "", *(f"{code.module}.{name.name}" for name in code.names))
        for inner in ast.iter_child_nodes(code):
            yield from imported(inner)

    known: set[str] = set()
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = PROJECT / name.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if not name.startswith("sweep") or str(path) in known or not path.exists():
            continue
        known.add(str(path))
        waiting += [name.rpartition(".")[0], *imported(ast.parse(path.read_text(encoding="utf-8")))]
    return {Path(path).relative_to(PROJECT).as_posix() for path in known}


@pytest.mark.parametrize("entry", [WORKER, SEARCH])
def test_the_sources_are_those_that_the_worker_imports(entry: str) -> None:
    assert set(sources_of(entry)) == modules_by_syntax(entry)


def test_a_worker_loads_no_other_sources() -> None:
    code = f"import sys, {WORKER}; print(*(m.__file__ for name, m in sys.modules.items() if name.partition('.')[0] == 'sweep'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert {Path(path).relative_to(PROJECT).as_posix() for path in done.stdout.split()} == set(sources_of(WORKER))


def test_what_makes_columns_is_in_it_and_what_presents_is_not() -> None:
    assert set(sources_of(WORKER)) > NAMED
    assert set(sources_of(SEARCH)) > {
        *sources_of(WORKER),
        *(f"sweep/search/{name}.py" for name in ("ahead", "blocks", "candidates")),
    }
    presenting = ("show/", "report/", "commands/", "compare/", "nightly/", "ranking/", "cli", "answers/", "uncertainty/")
    assert not [path for path in sources_of(SEARCH) if path.removeprefix("sweep/").startswith(presenting)]
    assert (SliceTask.entry, SEARCH) == (WORKER, "sweep.search.search")
    assert set(row_code()) == {"sim_core", *sources_of(WORKER), "python", *PACKAGES}


def forget() -> None:
    loaded.cache_clear()
    row_code.cache_clear()


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Let this process count as one that has loaded the package in a folder."""

    def as_loaded(root: Path) -> None:
        monkeypatch.setattr(sources, "_SOURCES", {part: loaded()[part] for part in ("sim_core", DATA)} | hashes_of(root))
        forget()

    yield as_loaded
    forget()


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another installation of the simulator: the folder that holds both packages."""
    folder = tmp_path_factory.mktemp("copy")
    for package in ("sim_core", "sweep"):
        shutil.copytree(PROJECT / package, folder / package)
    return folder


@pytest.fixture
def plant(copy: Path) -> Iterator[Plant]:
    """Add a line to files of that installation until the end of the test."""
    before: dict[Path, str] = {}

    def planted(file: str, line: str) -> None:
        path = copy / file
        before.setdefault(path, path.read_text(encoding="utf-8"))
        path.write_text(f"{before[path]}\n{line}\n", encoding="utf-8")

    yield planted
    for path, text in before.items():
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("file", sources_of(WORKER))
def test_a_change_of_each_source_changes_the_identity(
    write_spec: SpecWriter, prepared: Prepared, copy: Path, load: Load, plant: Plant, file: str
) -> None:
    path = write_spec()
    load(copy / "sweep")
    assert prepare(load_spec(path), path.parent).sweep.identity == prepared.sweep.identity, "the same code elsewhere"
    plant(file, CHANGE)
    load(copy / "sweep")
    assert prepare(load_spec(path), path.parent).sweep.identity != prepared.sweep.identity


def test_comments_docstrings_and_what_only_presents_do_not_change_it(copy: Path, load: Load, plant: Plant) -> None:
    before = row_code()
    (copy / "sweep" / ".#budget.py").symlink_to("nowhere")  # as Emacs does
    for file in ("sweep/show/sections.py", "sweep/ranking/ranking.py", "sweep/commands/running_commands.py"):
        plant(file, CHANGE)
    load(copy / "sweep")
    plant("sweep/spec/failures.py", '# said otherwise\n\n"""A constant,\nof two lines."""  # and why')
    load(copy / "sweep")
    assert row_code() == before
    plant("sweep/spec/budget.py", CHANGE)
    load(copy / "sweep")
    assert differences(before, row_code()).startswith("sweep/spec/budget.py: found ")


@pytest.mark.parametrize("file", sorted({*sources_of(SEARCH)} - {*sources_of(WORKER)}))
def test_a_change_of_a_source_of_the_search_changes_its_identity(
    prepared: Prepared, copy: Path, load: Load, plant: Plant, file: str
) -> None:
    objective = Objective(column="step_time_s", descending=False, per=(), best=1, within=0.0)
    before = as_search(prepared, objective)
    plant(file, CHANGE)
    load(copy / "sweep")
    assert as_search(prepared, objective).sweep.identity != before.sweep.identity


@pytest.mark.parametrize("package", [*PACKAGES, "python"])
def test_packages_are_part_of_it(
    write_spec: SpecWriter, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    path = write_spec()
    monkeypatch.setattr("sweep.evaluation.preparation.row_code", lambda: {**row_code(), package: "0.1"})
    assert prepare(load_spec(path), path.parent).sweep.identity != prepared.sweep.identity


def test_the_packages_are_those_that_are_imported() -> None:
    import duckdb
    import llvmlite
    import numba
    import pyarrow

    modules = (duckdb, llvmlite, numba, np, pyarrow)
    assert {name: loaded()[name] for name in PACKAGES} == {module.__name__: module.__version__ for module in modules}


def test_what_differs_is_named() -> None:
    expected = {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
    assert differences(expected, {**expected, "more": "6"}) == ""
    assert differences(expected, {**expected, "b": "0"}) == "b: found 0, expected 2"
    some = "a: found none, expected 1; b: found none, expected 2; c: found none, expected 3; and 2 more"
    assert differences(expected, {}) == some


def test_a_result_of_other_code_is_neither_resumed_nor_called_complete(
    write_spec: SpecWriter, tmp_path: Path, copy: Path, load: Load, plant: Plant
) -> None:
    path, out = write_spec(axes={"tp": [1, 2]}), tmp_path / "out"
    run = ("run", path, "--out", out, "--workers", 0, "--top", 0)
    here(*run)
    assert "Nothing to do" in here(*run)
    files = {part: part.read_bytes() for part in out.glob("*.parquet")}
    plant("sweep/spec/budget.py", CHANGE)
    load(copy / "sweep")
    last = here(*run, expect=1).splitlines()[-1]
    assert last.startswith(f"error: {out}: holds results of another version of the simulator (sweep/spec/budget.py: found ")
    assert last.endswith("); choose another --out, or start over with --fresh")
    assert {part: part.read_bytes() for part in out.glob("*.parquet")} == files
    assert reopened(out, path).notes[0].startswith("the result is of another version of the simulator")
    here(*run, "--fresh")
    assert "Nothing to do" in here(*run)


EDITED_DURING_THE_RUN = """
import json, sys
from collections import deque
from pathlib import Path
from sweep.executors.local import LocalExecutor
from sweep.evaluation.preparation import prepare
from sweep.results.slice_file import Slice
from sweep.evaluation.slices import SliceQueue, SliceTask
from sweep.spec.spec import load_spec

if __name__ == "__main__":
    spec, out = map(Path, sys.argv[1:])
    prepared = prepare(load_spec(spec), spec.parent)
    task = SliceTask(sweep=prepared.sweep, directory=out, provenance=json.dumps(prepared.provenance).encode())
    queue = SliceQueue(gaps=deque([Slice(0, 100)]), workers=1)
    with Path("sweep/spec/budget.py").open("a") as source:
        source.write("\\nCHANGED = 1\\n")
    try:
        list(LocalExecutor(1).run(task, queue))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_source_that_is_edited_before_a_worker_starts_ends_the_run(
    write_spec: SpecWriter, tmp_path: Path, copy: Path, plant: Plant
) -> None:
    plant("sweep/spec/budget.py", "")
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(EDITED_DURING_THE_RUN)
    out.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(copy), "NUMBA_CACHE_DIR": str(cache_dir())}
    line = [sys.executable, str(script), str(write_spec()), str(out)]
    done = subprocess.run(line, cwd=copy, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("OtherCode a worker process of this machine (PID ")
    assert ") has another version of the simulator than this run (sweep/spec/budget.py: found " in done.stdout
    assert "Traceback" not in done.stderr
    assert not list(out.iterdir())


ROWS_OF_A_MODEL = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec

path = Path(sys.argv[1])
sweep = prepare(load_spec(path), path.parent).sweep
batch = evaluate(sweep, np.arange(sweep.space.count))
with pa.OSFile(sys.argv[2], "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
    writer.write(batch)
"""


@pytest.mark.long
def test_processors_differ_in_the_last_digits_at_most(write_spec: SpecWriter, tmp_path: Path) -> None:
    """NumPy takes another path without AVX-512; where there is none, both are the same."""
    path = write_spec(**MODEL)
    found = []
    for name, without in (("all", ""), ("few", "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX")):
        line = [sys.executable, "-W", "ignore", "-c", ROWS_OF_A_MODEL, str(path), str(tmp_path / name)]
        environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": without}
        subprocess.run(line, cwd=PROJECT, env=environment, check=True)
        found.append(pa.ipc.open_file(tmp_path / name).read_all())
    for a, b in zip(*(table.columns for table in found), strict=True):
        if pa.types.is_floating(a.type):
            np.testing.assert_allclose(a.to_numpy(), b.to_numpy(), rtol=1e-12)
        else:
            assert a.equals(b)
