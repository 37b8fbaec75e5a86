"""The command line: exit codes, one-line errors, inspect and hardware screens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from subprocess import PIPE

import pytest
import typer

from sim_core import HARDWARE_KEYS, STACK_FACTS, read_hardware, read_stack, stack_names
from sweep.cli import COMMANDS, implementation
from tests.conftest import EXAMPLES, GPT7B, LLAMA405B, ROOT, rest_long
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter
from tests.waiting import until


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "sweep", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_list_of_commands_is_told_without_loading_them() -> None:
    code = (
        "import sys; from sweep.cli import app; app(['-h'], standalone_mode=False); "
        "print('loaded', {'numba', 'pyarrow'} & {*sys.modules})"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "loaded set()" in told
    for name, purpose in COMMANDS.items():
        command = implementation(name)
        assert (command.info.help if isinstance(command, typer.Typer) else command.__doc__) == purpose
        assert name in told
    texts = [path.read_text() for path in Path(import_module("sweep.commands").__path__[0]).glob("*_command*.py")]
    assert sorted(name for text in texts for name in re.findall(r"^(?:def )?(\w+)_command\b", text, re.MULTILINE)) == sorted(
        COMMANDS
    )


def test_commands_that_read_results_do_without_the_compiler(tmp_path: Path) -> None:
    """numba alone takes as long to import as a ranking."""
    spec, result = EXAMPLES / "gpt7b.yaml", tmp_path / "result"
    assert sweep("run", spec, "--out", result, "--set", "axes.tp=[1]", "-q").returncode == 0
    lines: list[list[object]] = [["ls", tmp_path], ["status", result], ["rank", result], ["compare", result, result]]
    lines.append(["report", result, "--output", tmp_path / "page.html"])
    code = (
        "import sys; from sweep.cli import app; "
        f"[app(line, standalone_mode=False) for line in {[[*map(str, line)] for line in lines]}]; "
        "print('loaded', {'numba', 'llvmlite', 'ray', 'scipy', 'plotly'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "loaded set()" in done.stdout


def test_no_command_imports_pandas(tmp_path: Path) -> None:
    """Arrow does for its first array, where it is installed: a third of a second of each command."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was imported')")
    line = [sys.executable, "-m", "sweep", "run", str(EXAMPLES / "fidelity.yaml"), "--out", str(tmp_path / "r"), "-q"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([*line, "--workers", "2"], capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_short_help(name: str) -> None:
    assert f"Usage: sweep {name}" in sweep(name, "-h").stdout


def test_inspect_says_what_a_file_holds() -> None:
    told = sweep("inspect", GPT7B, LLAMA405B)
    assert told.returncode == 0
    for text in (
        "tp 4, pp 1, vpp 1, ep 1, dp 128, 512 GPUs, micro-batch 1, ga 1",
        "layers        36, 36 per stage",
        "parameters    1.622 G per rank, 6.489 G in 4 ranks",
        "embedding_layer      x 1       71.5% of the compute",
        "layers        128, 8 per stage",
        "parameters    3.201 G per rank, 409.7 G in 128 ranks",
        "the header has no `vpp:`, taken as 1",
    ):
        assert text in told.stdout
    table = [line.split() for line in told.stdout.splitlines()]
    assert ["DP", "reduce-scatter", "step", "1", "12.8", "GB"] in table
    assert ["TP", "all-reduce", "micro-batch", "73", "1.225", "GB"] in table


def test_inspect_of_a_broken_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    path.write_text(GPT7B.read_text().replace("ALLREDUCE\t16777216", "ALLREDUCE\t-1", 1))
    told = sweep("inspect", path)
    assert told.returncode == 1
    assert told.stderr == f"error: {path}:7: column 8 (ig_bytes): found '-1', expected a whole number of at least 0\n"
    assert told.stdout == ""


def test_hardware_lists_presets_and_sources() -> None:
    listed = sweep("hardware").stdout
    for name in (
        *("A100-80G-SXM", "A100-40G-SXM", "A100-80G-PCIe", "A800-80G-SXM", "V100-32G-SXM", "H100-SXM", "H100-96G-500W"),
        *("H200-SXM", "H800-SXM", "H20-SXM", "B200-SXM", "B300-SXM", "GB200-NVL72", "GB300-NVL72"),
    ):
        assert name in listed
    assert "NVIDIA/nccl src/graph/tuning.cc" in sweep("hardware", "H100-SXM").stdout


def test_stacks_are_listed_and_shown_with_their_sources() -> None:
    listed = sweep("stack").stdout
    assert all(name in listed for name in stack_names())
    shown = sweep("stack", "nanotron").stdout
    assert all(f"  {name} " in shown for name in STACK_FACTS)
    assert "models/base.py:216-237" in shown
    assert json.loads(sweep("stack", "nanotron", "--json").stdout)["host_forward"] == pytest.approx(2.1e-3)
    wrong = sweep("stack", "nanotrn")
    assert (wrong.returncode, wrong.stderr) == (
        1,
        "error: unknown stack 'nanotrn', nearest valid: nanotron, or a page of your own (a YAML file)\n",
    )


def test_the_columns_of_a_preset_are_aligned() -> None:
    preset = read_hardware("H100-SXM")
    lines = sweep("hardware", "H100-SXM").stdout.splitlines()[1 : 1 + len(HARDWARE_KEYS)]
    sources = [getattr(getattr(preset, section), key).source for key, (section, _) in HARDWARE_KEYS.items()]
    assert len({line.index(source) for line, source in zip(lines, sources, strict=True)}) == 1
    assert all(line.split()[0] == key for line, key in zip(lines, HARDWARE_KEYS, strict=True))


def test_hardware_and_stacks_say_which_runs_tell_a_constant_and_which_are_few() -> None:
    lines = {name: sweep("hardware", name).stdout.splitlines() for name in ("H100-SXM", "MI325X", "H20-SXM")}
    shown = {name: next(line for line in found if "sustained_scale" in line) for name, found in lines.items()}
    assert "in 90% of cases, expected 1.07, told by " in shown["H100-SXM"]
    assert "few" not in shown["H100-SXM"]
    assert shown["MI325X"].endswith(", told by 1 run of 1 set (few: fewer than 3 sets)")
    assert shown["H20-SXM"].endswith("told by no run of its own (few: fewer than 3 sets)")
    told = json.loads(sweep("hardware", "MI325X", "--json").stdout)["kernels"]["sustained_scale"]["told"]
    assert (told["runs"], told["sets"], told["prior"]) == (1, 1, 1)
    nanotron = sweep("stack", "nanotron").stdout
    assert nanotron.count(", told by 839 runs of 1 set (few: fewer than 3 sets)") > 5
    assert all(set(read_stack(name).told) <= set(STACK_FACTS) for name in stack_names())


def test_hardware_tells_what_was_measured_on_it() -> None:
    own = sweep("hardware", "H100-SXM").stdout
    assert "measured kernels\n  GEMM forward: bf16, fp8, fp8_block; m 64-32768, n 64-65536, k 64-65536\n" in own
    borrowed = sweep("hardware", "H800-SXM").stdout
    assert "measured kernels: none; those of H100-SXM are taken (the same GPU with less NVLink bandwidth)\n" in borrowed
    assert (
        "measured kernels: none; from the peaks, gemm_efficiency and attention_efficiency"
        in sweep("hardware", "H20-SXM").stdout
    )


def test_hardware_shows_the_seconds_of_a_gemm() -> None:
    told = [line.split() for line in sweep("hardware", "A100-80G-PCIe", "--gemm", "8192,8192,8192").stdout.splitlines()]
    (bf16,) = (line for line in told if line[:1] == ["bf16"])
    assert float(bf16[1]) == pytest.approx(2 * 8192**3 / 253.7e12 * 1.1e3, rel=0.03)  # ms; Azure's A100-SXM, and 1.10
    assert (bf16[2], bf16[-1]) == ("ms", "no")
    assert [line[0] for line in told if line[:1] and line[0] in ("fp32", "fp8", "nvfp4")] == ["fp32"], "what it does not have"
    assert told[-1][-2:] == ["x", "1.1"]


@pytest.mark.parametrize("given", ["8192,8192", "8192,x,8192", "8192,0,8192", "8192,-1,8192", "8192,8192,10000000000"])
def test_a_gemm_that_is_none_is_refused(given: str) -> None:
    told = sweep("hardware", "H100-SXM", "--gemm", given)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith(f"error: --gemm: found '{given}', expected three whole numbers from 1 to 1000000000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "gone.txt"), "error: gone.txt: No such file or directory\n"),
        (
            ("run", "gone.yaml"),
            "error: gone.yaml: no such file, expected the spec of a sweep, a YAML file (`sweep init` writes one)\n",
        ),
        (("rank", "gone"), "error: gone: no such folder, expected that of a result (`sweep ls` lists them)\n"),
        (("hardware", "H10"), "error: unknown hardware preset 'H10', nearest valid: H100-SXM"),
    ],
)
def test_a_fault_of_the_user_is_one_line_and_exit_code_1(arguments: tuple[str, ...], message: str) -> None:
    told = (process if "inspect" in arguments else sweep)(*arguments)  # one of them as users meet it
    assert told.returncode == 1
    assert told.stderr.startswith(message)
    assert told.stderr.count("\n") == 1


def test_failed_plans_are_told_by_the_exit_code(write_spec: SpecWriter, tmp_path: Path) -> None:
    """A fabric so slow that the step overflows: rows are failed, the others are kept."""
    axes = {"hardware.nic_bandwidth": ["1e-300 B/s", "100 Gb/s"], "tp": [4], "all_gpus": [512]}
    spec = write_spec(axes=axes, where=None, hardware={"preset": "H100-SXM", "nic_efficiency": 1e-10})
    told = sweep("run", spec, "--out", tmp_path / "out", "--workers", 0)
    assert told.returncode == 3
    assert "1 plan failed (see the column reason)" in told.stdout
    told = sweep("rank", tmp_path / "out", "-v")
    assert "1  result_not_finite  (the step time, or a part of it, is not a positive finite number)" in told.stdout


def test_a_log_has_no_terminal_codes(write_spec: SpecWriter, tmp_path: Path) -> None:
    told = process("run", write_spec(), "--out", tmp_path / "out", "--workers", 1)
    assert told.returncode == 0
    assert "\x1b" not in told.stdout
    assert "\r" not in told.stdout
    assert f"Results: {tmp_path / 'out'}" in told.stdout
    assert "plans/s with 1 worker" in told.stdout


@pytest.mark.parametrize(
    ("number", "command"), rest_long([(signal.SIGTERM, "run"), (signal.SIGINT, "dry"), (signal.SIGTERM, "nightly")], 2)
)
def test_a_signal_ends_the_compilation_at_once(
    write_spec: SpecWriter, tmp_path: Path, number: signal.Signals, command: str
) -> None:
    """LLVM calls back into Python, where an exception is lost: it printed a traceback and went on."""
    spec, out = write_spec(), tmp_path / "out"
    night = tmp_path / "nightly.yaml"
    night.write_text(f"name: n\nroot: {out}\nsweeps: [{{spec: {spec.name}}}]\n", encoding="utf-8")
    arguments = {
        "run": ["run", str(spec), "--out", str(out)],
        "dry": ["run", str(spec), "--dry-run"],
        "nightly": ["nightly", str(night)],
    }
    said = {
        "run": f"Interrupted. Finished slices are in {out}; run the same command to resume.\n",
        "dry": "Interrupted. Nothing was stored.\n",
        "nightly": "Interrupted. Run the same command to resume.\n",
    }
    cache = tmp_path / "empty"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONUNBUFFERED": "1"}
    line = [sys.executable, "-m", "sweep", *arguments[command]]
    with subprocess.Popen(line, stdout=PIPE, stderr=PIPE, text=True, env=environment) as running:
        until(lambda: list(cache.glob("*/.lock")), running)  # it compiles
        running.send_signal(number)
        assert running.stderr is not None
        assert running.stdout is not None
        assert (running.stderr.read(), running.stdout.read().splitlines(keepends=True)[-1]) == ("", said[command])
    assert running.returncode == 128 + number


def test_a_short_sweep_runs_in_this_process_unless_workers_are_asked_for(write_spec: SpecWriter, tmp_path: Path) -> None:
    spec = write_spec()
    assert "in this process on free CPUs" in sweep("run", spec, "--out", tmp_path / "out", "--dry-run").stdout
    assert "with 1 worker on free CPUs" in sweep("run", spec, "--out", tmp_path / "out", "--dry-run", "--workers", 1).stdout
    assert "plans/s in this process" in sweep("run", spec, "--out", tmp_path / "out").stdout


def test_failed_plans_are_still_told_when_there_is_nothing_to_do(write_spec: SpecWriter, tmp_path: Path) -> None:
    axes = {"hardware.nic_bandwidth": ["1e-300 B/s"], "tp": [4], "all_gpus": [512]}
    spec = write_spec(axes=axes, where=None, hardware={"preset": "H100-SXM", "nic_efficiency": 1e-10})
    for _ in range(2):
        assert sweep("run", spec, "--out", tmp_path / "out", "--workers", 0).returncode == 3


def test_names_with_brackets_are_printed_as_they_are(write_spec: SpecWriter, tmp_path: Path) -> None:
    odd = tmp_path / "d[red]"
    odd.mkdir()
    text = GPT7B.read_text().replace("mlp_layer", "mlp[/x]")
    (odd / "w.txt").write_text(text)
    told = sweep("inspect", odd / "w.txt")
    assert told.returncode == 0
    assert "d[red]/w.txt" in told.stdout
    assert "mlp[/x]" in told.stdout
    assert sweep("run", write_spec(axes={"tp": [4]}, where=None), "--out", odd / "o[/x]", "--workers", 0).returncode == 0


def test_a_sweep_in_which_no_plan_can_run_says_so(write_spec: SpecWriter, tmp_path: Path) -> None:
    told = sweep("run", write_spec(axes={"tp": [16], "pp": [8], "all_gpus": [64]}, where=None), "--out", tmp_path / "out")
    assert told.returncode == 4
    assert "No plan can run: tp_pp_exceeds_gpus keeps 1 of 1 plan out (tp * cp * pp exceeds all_gpus)." in told.stdout
    assert "No plan can run." in told.stdout


def test_an_output_that_cannot_be_is_told_before_anything_runs(write_spec: SpecWriter, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told = sweep("run", write_spec(), "--out", tmp_path / "file")
    assert (told.returncode, told.stderr) == (
        2,
        f"error: --out: found {tmp_path / 'file'}, expected a folder; it is a file\n",
    )
    assert "Engine" not in told.stdout


def test_hardware_as_yaml_is_a_hardware_file(tmp_path: Path, write_spec: SpecWriter) -> None:
    (tmp_path / "mine.yaml").write_text(sweep("hardware", "B200-SXM", "--yaml").stdout)
    told = sweep(
        "run", write_spec(hardware="mine.yaml", axes={"tp": [4]}, where=None), "--out", tmp_path / "out", "--workers", 0
    )
    assert told.returncode == 0, told.stderr
    assert "x B200-SXM, " in told.stdout


@pytest.mark.parametrize("moment", ["importlib.metadata", "sweep.cli", "typer", "numpy", "yaml", "end"])
def test_ctrl_c_is_one_line_whenever_it_comes(moment: str) -> None:
    """While modules are imported, by the entry point or for a command, and after the command has ended."""
    code = (
        "import atexit, builtins, os, signal, sys; real = builtins.__import__; sys.argv = ['sweep', 'hardware']\n"
        f"moment = {moment!r}; atexit.register(lambda: moment == 'end' and os.kill(os.getpid(), signal.SIGINT))\n"
        "def hooked(name, *others, **named):\n"
        "    if name == moment and 'sweep.__main__' in sys.modules: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *others, **named)\n"
        "import sweep.__main__; builtins.__import__ = hooked; sweep.__main__.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


def test_compiled_code_goes_where_it_can_be_kept(tmp_path: Path) -> None:
    """A cache folder that cannot be made is no reason to fail: the next place is taken, and said."""
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "file" / "below"), "XDG_CACHE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", "from sim_core.compiling import cache_dir; cache_dir()"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    taken = tmp_path / "home" / "training-plan-sweep"
    told = f"note: {tmp_path / 'file' / 'below'}: Not a directory; compiled code is kept in {taken}: "
    assert (done.returncode, done.stderr) == (
        0,
        f"{told}set NUMBA_CACHE_DIR to a folder of yours that nobody else can write to\n",
    )
    assert taken.is_dir()


def test_the_version_names_the_model() -> None:
    told = sweep("--version")
    assert (told.returncode, told.stdout.startswith(f"{version('training-plan-sweep')}, model ")) == (0, True)


def test_one_plan_is_one_plan(write_spec: SpecWriter, tmp_path: Path) -> None:
    told = sweep("run", write_spec(axes=None, where=None), "--out", tmp_path / "out", "--workers", 0)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("small: 1 plan\n")


def test_numpy_has_one_thread_and_what_a_command_starts_as_many_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread waits in a loop: on a busy machine `sweep tune` took twice its CPU time."""
    name = "OPENBLAS_NUM_THREADS"
    monkeypatch.delenv(name, raising=False)
    loaded = (
        "import builtins, os, sys; real = builtins.__import__; sys.argv = ['sweep', 'ls', '--help']\n"
        "def imported(module, *rest, **more):\n"
        f"    if module == 'numpy' and module not in sys.modules: print(os.environ.get('{name}'))\n"
        "    return real(module, *rest, **more)\n"
        "builtins.__import__ = imported\n"
        "try:\n    from sweep.__main__ import main; main()\n"
        f"finally:\n    print(os.environ.get('{name}'))"
    )
    for given, told in ((None, ("1", "None")), ("3", ("3", "3"))):
        environment = {**os.environ, **({} if given is None else {name: given})}
        said = subprocess.run(
            [sys.executable, "-c", loaded], env=environment, capture_output=True, text=True, check=True
        ).stdout
        assert (said.splitlines()[0], said.splitlines()[-1]) == told


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sweep init llama3-8b --hardware MI3", ["MI300X", "MI325X", "MI355X"]),
        ("sweep fit llama3-8b --stack torcht", ["torchtitan"]),
        ("sweep whatif results/x best --device GB2", ["GB200-NVL72"]),
        ("sweep init gpt-oss", ["gpt-oss-120b", "gpt-oss-20b"]),
        ("sweep rank results/x --format p", ["parquet"]),
        ("sweep schema n", ["nightly"]),
    ],
)
def test_a_shell_completes_values_of_options(words: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """After an option the line was refused as not whole, and nothing was completed."""
    monkeypatch.setenv("_SWEEP_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    done = sweep()
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, found, "")
