"""What is said when an option, the system or a file is at fault: one line that names it, and the documented exit code."""

import contextlib
import errno
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import sweep as package
from sim_core import SpecError
from sweep.execution import _why_lost
from sweep.nightly.night import one_line
from sweep.outputs import write_file
from sweep.results.store import Store
from tests.conftest import rest_long
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter, spec_in
from tests.waiting import PATIENCE_S

AXES = {"tp": [1, 2, 4], "ga": [1, 4], "checkpointing": ["none", "full"]}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("told")
    out = folder / "out"
    assert sweep("run", spec_in(folder, axes=AXES), "--out", out, "--workers", 0, "--quiet").returncode == 0
    return out


WORDS = "which holds words, expected a column of numbers, such as step_time_s"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--by", "checkpointing"], f"--by: found checkpointing, {WORDS}"),
        (["--by", "status"], f"--by: found status, {WORDS}"),
        (["--stable", "--by", "status"], f"--by: found status, {WORDS}"),
        (["--pareto", "checkpointing,tp"], f"--pareto: found checkpointing, {WORDS}"),
        (["--where", "tp // 0 = 1"], "--where 'tp // 0 = 1': Division by zero in expression (tp // 0)"),
        (["--where", "tp % 0 = 1"], "--where 'tp % 0 = 1': Division by zero in expression (tp % 0)"),
        (
            ["--where", "regexp_matches(checkpointing, '(')"],
            "--where \"regexp_matches(checkpointing, '(')\": missing ): (",
        ),
    ],
)
def test_an_option_at_fault_is_named(result: Path, options: list[str], told: str) -> None:
    done = sweep("rank", result, *options)
    assert (done.returncode, done.stderr) == (2, f"error: {told}\n")


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("rank RESULT --per tp --per tp", 2, "--per: found tp,tp, expected names of columns with commas between, each once"),
        ("tune RESULT --spec SPEC --where tp=99", 2, "--where 'tp=99': false for all plans that can run"),
        ("inspect WORKLOAD --hardware H100-SXM", 2, "--hardware: found without --rows, expected both"),
        ("inspect WORKLOAD --step-name x", 2, "--step-name: found beside WORKLOAD (no profiler trace), which takes --set, "),
        ("inspect WORKLOAD --set pp", 2, "--set: found pp, expected key=value, such as pp=4"),
        ("inspect RESULT", 1, "RESULT: is a result, not a workload or a log; `sweep rank RESULT` ranks it"),
        ("simulate RESULT", 1, "RESULT: is a result, not a workload; `sweep rank RESULT` ranks it"),
        ("replay RESULT", 1, "RESULT: is a result, not the traces of a job; `sweep rank RESULT` ranks it"),
        ("ls gone", 1, "gone: no such folder, expected a folder of results"),
        ("ls SPEC", 1, "SPEC: is a file, expected a folder of results"),
    ],
)
def test_what_is_at_fault_is_named(result: Path, line: str, code: int, told: str) -> None:
    folder = result.parent
    places = {"RESULT": result, "SPEC": folder / "small.yaml", "WORKLOAD": folder / "w.txt", "FOLDER": folder}
    for name, place in places.items():
        line, told = line.replace(name, str(place)), told.replace(name, str(place))
    done = sweep(*line.split())
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done
    assert done.stderr.startswith(f"error: {told}")


def test_compare_by_words_names_the_option(result: Path) -> None:
    done = sweep("compare", result, result, "--by", "status")
    assert (done.returncode, done.stderr) == (2, f"error: --by: found status, {WORDS}\n")


def test_objectives_of_words_are_refused_before_the_run(write_spec: SpecWriter) -> None:
    spec = write_spec(axes=AXES, objectives=[{"minimize": "checkpointing"}])
    done = sweep("run", spec, "--dry-run")
    assert (done.returncode, done.stderr) == (1, f"error: {spec}: objectives: found checkpointing, {WORDS}\n")


def test_a_condition_on_a_damaged_result_blames_the_result(result: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in result.glob("*.parquet"):
        data = bytearray(path.read_bytes())
        if path.name.startswith("part-"):
            data[8:200] = bytes(192)
        (damaged / path.name).write_bytes(data)
    assert "damaged" in sweep("rank", damaged, "--where", "tp // 0 = 1").stderr


def test_a_limit_on_the_size_of_files_names_the_file(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec, out = write_spec(axes=AXES), tmp_path / "out"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        done = sweep("run", spec, "--out", out, "--workers", 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {out}/_sweep.parquet: File too large: the file needs ")
    assert "files may have 2.048 kB (ulimit -f)" in done.stderr


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as refused:
            write_file(tmp_path / "report.html", "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(tmp_path / "report.html"))


def test_a_full_disk_in_a_night_names_the_file_first() -> None:
    assert one_line(OSError(errno.ENOSPC, "No space left: 1 B are free", "/x/part")) == "/x/part: No space left: 1 B are free"


def test_a_store_that_loses_what_it_took_is_not_told_to_share_the_folder(bucket: str, tmp_path: Path) -> None:
    assert "run the same command" in _why_lost(Store(directory=f"{bucket}/x"))
    assert "do all nodes share it?" in _why_lost(Store(directory=tmp_path))


def test_sigterm_during_the_start_is_one_line() -> None:
    """The process gets it as soon as it imports the command line."""
    script = """
import os, signal, sys
import sweep.__main__
class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == "sweep.cli":
            os.kill(os.getpid(), signal.SIGTERM)
sys.meta_path.insert(0, Importing())
sweep.__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "Terminated.\n")


@pytest.mark.parametrize("module", ["numba.core", "elsewhere"])
def test_ctrl_c_while_kernels_are_compiled_ends_at_once(module: str) -> None:
    """LLVM calls back into Python and loses what a handler raises, as `compile` here does; elsewhere it is raised."""
    script = f"""
import os, signal, sys, types
import sweep.__main__
compiler = types.ModuleType({module!r})
exec('''
def compile(os, signal):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        os.write(1, b'lost')
''', compiler.__dict__)
import sweep.cli
sweep.cli.main = lambda: compiler.compile(os, signal)
sweep.__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    compiling = module.startswith("numba")
    expected = (128 + signal.SIGINT, "", "Interrupted.\n") if compiling else (0, "lost", "")
    assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.parametrize("flips", rest_long([60, 300], 1))
def test_page_checksums_find_every_flip_among_the_values(result: Path, tmp_path: Path, flips: int) -> None:
    """The flips are in the pages, which hold the values; a flip of bytes that no page uses may change nothing.

    `sweep.load` also finds those in the footer, which holds names and places of columns and has no checksum of Parquet's.
    """
    pd = pytest.importorskip("pandas")
    (path,) = result.glob("part-*.parquet")
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    whole = pd.read_parquet(path)
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    (spoilt / "_sweep.parquet").write_bytes((result / "_sweep.parquet").read_bytes())
    rng, found, silent = random.Random(28), 0, 0
    for bit in [rng.randrange(32, 8 * footer) for _ in range(flips)]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (spoilt / path.name).write_bytes(flipped)
        try:
            assert pd.read_parquet(spoilt / path.name, engine="pyarrow", page_checksum_verification=True).equals(whole)
        except (OSError, pa.ArrowException):
            found += 1
        with contextlib.suppress(OSError, pa.ArrowException, UnicodeDecodeError):
            silent += not pd.read_parquet(spoilt / path.name).equals(whole)
        with pytest.raises(SpecError, match="damaged"):
            package.load(spoilt).to_arrow()
    assert found > 0.67 * flips
    assert silent > 0, "without the option some are read as other numbers"
