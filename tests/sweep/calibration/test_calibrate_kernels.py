"""`sweep calibrate kernels`: the script on a GPU whose law is known, its file read, and the hardware that comes of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from sim_core import (
    SimError,
    hardware_table,
    hardware_yaml,
    parse_hardware,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.hardware.kernels.attention import attention_s
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.gemm import gemm_s
from sweep.calibration.kernel_lines import read_kernels
from tests.conftest import ROOT
from tests.sweep.commands import sweep

SHAPES = [[512, 2048, 8192], [1024, 4096, 16384], [1024, 4096, 16384]]
HEADER = {
    "kind": "header", "format": "sweep kernels 1", "device": "NVIDIA H100 80GB HBM3", "type": "cuda", "driver": "575.57",
    "memory_bytes": 85_000_000_000, "cuda": "12.9", "torch": "2.8.0", "date": "2026-11-01", "warm_up_s": 30.0,
}  # fmt: skip


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script as the command prints it, beside a PyTorch whose times follow a law (fake_torch.py)."""
    told = sweep("calibrate", "kernels", "--script")
    assert told.returncode == 0
    path = tmp_path / "measure_kernels.py"
    path.write_text(told.stdout, encoding="utf-8")
    shutil.copy(Path(__file__).parent / "fake_torch.py", tmp_path / "torch.py")
    return path


def measure(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script in its folder."""
    command = [sys.executable, str(script), *arguments]
    given = {**os.environ, "PATH": "", **environment}
    return subprocess.run(command, cwd=script.parent, env=given, capture_output=True, text=True, timeout=120, check=False)


def rows(times: dict[tuple[int, int, int], float], **changes: object) -> list[dict[str, object]]:
    """Lines of GEMMs; `times` in seconds by (m, n, k)."""
    plain: dict[str, object] = {"kind": "gemm", "dtype": "bf16", "phase": "forward", "launch_bound": False}
    return [plain | {"m": m, "n": n, "k": k, "us": s * 1e6} | changes for (m, n, k), s in times.items()]


def written(path: Path, lines: list[dict[str, object]], header: dict[str, object] = HEADER) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]), encoding="utf-8")
    return path


def slower(factor: float, phase: str = "forward") -> dict[tuple[int, int, int], float]:
    """Seconds by shape: the tables of the H100 times a factor."""
    bare = read_hardware("H100-SXM").with_values({"sustained_scale": 1})
    m, n, k = (grid.ravel() for grid in np.meshgrid(*SHAPES, indexing="ij"))
    seconds = gemm_s(load_kernels(bare), "bf16", m, n, k, phase=phase).seconds * factor  # type: ignore[arg-type]
    return {(int(a), int(b), int(c)): float(s) for a, b, c, s in zip(m, n, k, seconds, strict=True)}


def test_the_script_measures_a_gpu_and_its_file_becomes_hardware(script: Path) -> None:
    """The GPU: 1 ms and 1 GFLOP/s; too small for the larger shapes; without FP8, nvidia-smi and a choice of attention."""
    done = measure(script, "--quick", "--out", "a.jsonl", FAKE_CUDA="1")
    assert done.returncode == 0, done.stderr
    measured = read_kernels(script.parent / "a.jsonl")
    assert measured.complete
    assert ("'gemm'", "'out of memory'") in measured.skipped
    assert any("compute capability" in why for _, why in measured.skipped)
    law = {row.sizes: 1e-3 + 2e-9 * np.prod(row.sizes) for row in measured.kernels["gemm"]}
    assert [row.us for row in measured.kernels["gemm"]] == pytest.approx([s * 1e6 for s in law.values()] * 3)
    told = sweep("calibrate", "kernels", script.parent / "a.jsonl", "-o", script.parent / "mine.yaml")
    assert told.returncode == 0, told.stderr
    assert "out of memory" in told.stdout
    assert "NVIDIA H100 80GB HBM3, cuda 12.9, PyTorch 0.0.fake" in told.stdout
    mine = load_kernels(read_hardware(str(script.parent / "mine.yaml")))
    for phase in ("forward", "input_gradient", "weight_gradient"):
        timed = gemm_s(mine, "bf16", *np.array(list(law)).T, phase=phase)
        assert timed.seconds == pytest.approx(list(law.values()), rel=1e-4)
        assert timed.measured.all()
    assert "your own kernels: NVIDIA H100 80GB HBM3" in sweep("hardware", script.parent / "mine.yaml").stdout


def test_the_script_measures_layers_launches_and_memory(script: Path) -> None:
    """A product takes 1 ms and 1 GFLOP/s, a norm 4 ms, an attention 2 ms a head; a graph takes half of the time."""
    done = measure(script, "--quick", "--out", "a.jsonl", "--trace", "step.json", FAKE_CUDA="1")
    assert done.returncode == 0, done.stderr
    measured = read_kernels(script.parent / "a.jsonl")
    written = [json.loads(line) for line in (script.parent / "a.jsonl").read_text().splitlines()]
    of_kind = {kind: [row for row in written if row["kind"] == kind] for kind in ("layer", "launch", "grouped", "trace")}
    dense = next(row for row in of_kind["layer"] if (row["experts"], row["tokens"]) == (0, 16))
    products = sum(1e-3 + 2e-9 * 16 * n * k for n, k in ((48, 16), (16, 16), (64, 16), (16, 32)))
    forward_s, backward_s = products + 2 * 4e-3 + 2 * 2e-3, 4 * 5e-3  # norms, attention; the gradients of one [1, 16, 16]
    assert dense["forward_us"] == pytest.approx(forward_s * 1e6)
    assert dense["backward_us"] == pytest.approx(backward_s * 1e6)
    assert dense["graph_us"] == pytest.approx((forward_s + backward_s) * 1e6 / 2)
    assert (dense["allocated_bytes"], dense["reserved_bytes"], dense["driver_bytes"]) == (1_000, 2_000, 3_000)
    assert {(row["experts"], row["tokens"]) for row in of_kind["layer"]} == {(0, 16), (0, 32), (8, 16), (8, 32)}
    assert [row["graph_us"] for row in of_kind["launch"]] == pytest.approx([6e3 / 2])  # an addition takes 6 ms
    assert {(row["dtype"], row["how"]) for row in of_kind["grouped"]} == {("bf16", "batched")}
    assert ("'grouped'", "'no grouped products here'") in measured.skipped
    (traced,) = of_kind["trace"]
    assert (traced["launches"], (script.parent / "step.json").read_text()) == (120, "{}")


def test_a_run_that_is_stopped_keeps_what_it_has(script: Path) -> None:
    done = measure(script, "--quick", "--out", "a.jsonl", FAKE_CUDA="1", FAKE_STOP="60")
    assert (done.returncode, "stopped: what was measured is kept" in done.stderr) == (130, True)
    measured = read_kernels(script.parent / "a.jsonl")
    assert (len(measured.kernels["gemm"]) > 3, measured.complete) == (True, False)
    text = (script.parent / "a.jsonl").read_text()
    (script.parent / "a.jsonl").write_text(text[: len(text) - 30], encoding="utf-8")
    assert read_kernels(script.parent / "a.jsonl").kernels == measured.kernels, "a line that was cut off"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--quick", "--device", "cpu", "--out", "there.jsonl"),
            "error: there.jsonl: there already; move it away or say --out",
        ),
        (("--out", "b.jsonl"), "error: --device cuda: PyTorch sees no GPU"),
        (("--device", "tpu"), "error: --device tpu: Expected one of cpu, cuda"),
        (("--device", "cpu", "--seconds", "-1"), "error: --warm-up, --seconds: expected numbers of seconds"),
        (("--device", "cpu", "--quick", "--out", "no/b.jsonl"), "error: no/b.jsonl: No such file or directory"),
    ],
)
def test_the_script_refuses_in_one_line(script: Path, arguments: tuple[str, ...], told: str) -> None:
    (script.parent / "there.jsonl").write_text("mine", encoding="utf-8")
    done = measure(script, *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith(told)
    assert (script.parent / "there.jsonl").read_text() == "mine"


def test_the_script_says_that_pytorch_is_missing(script: Path) -> None:
    (script.parent / "torch.py").unlink()
    done = measure(script)
    assert (done.returncode, done.stderr) == (1, "error: no PyTorch in this Python: run the script where you train\n")


def test_kernels_between_measured_sizes_keep_the_shape_of_the_tables(tmp_path: Path) -> None:
    """A GPU 1.25 x slower than the tables everywhere: so are sizes that were not measured, and gradients by their forward."""
    path = written(tmp_path / "a.jsonl", rows(slower(1.25)))
    told = sweep("calibrate", "kernels", path, "--name", "mine", "-o", tmp_path / "mine.yaml")
    assert told.returncode == 0, told.stderr
    mine, tables = read_hardware(str(tmp_path / "mine.yaml")), read_hardware("H100-SXM").with_values({"sustained_scale": 1})
    assert (mine.name, mine.value("sustained_scale")) == ("mine", 1)
    assert parse_hardware(yaml.safe_load(hardware_yaml(mine)), "again").surface == mine.surface
    m, n, k = np.array([3000, 777, 60000]), np.array([5120, 14336, 28672]), np.array([2560, 1024, 8192])
    for phase in ("forward", "input_gradient", "weight_gradient"):
        ours, theirs = (gemm_s(load_kernels(one), "bf16", m, n, k, phase=phase) for one in (mine, tables))
        assert ours.seconds == pytest.approx(1.25 * theirs.seconds, rel=1e-4)


def test_a_job_on_measured_kernels_takes_longer_by_them(tmp_path: Path) -> None:
    both = rows(slower(2.0)) + rows(slower(2.0, "weight_gradient"), phase="weight_gradient")
    path = written(tmp_path / "a.jsonl", both)
    assert sweep("calibrate", "kernels", path, "-o", tmp_path / "mine.yaml").returncode == 0
    workload = workload_from_model(read_model("llama2-7b"), read_stack("megatron-core"), sequence_parallel=False)
    grid = plans(workload, tp=1, pp=1, all_gpus=8, micro_batch=1, global_batch=64, checkpointing="full", hardware=[0, 1])
    variants = [read_hardware("H100-SXM").with_values({"sustained_scale": 1}), read_hardware(str(tmp_path / "mine.yaml"))]
    found = simulate(workload, hardware_table([one.with_values({"memory": "1 TB"}) for one in variants], None), grid).named()
    assert list(found["reason"]) == ["", ""]
    assert 1.7 < found["compute_forward_s"][1] / found["compute_forward_s"][0] < 2.0, "all but attention, norms and launches"


def test_attention_is_taken_from_the_fastest_kernel_unless_it_is_another(tmp_path: Path) -> None:
    bare = load_kernels(read_hardware("H100-SXM").with_values({"sustained_scale": 1}))
    heads, s = (np.array(x) for x in ([8, 8, 32, 32], [1024, 4096, 1024, 4096]))
    each, single = np.full(4, 128), np.ones(4)
    tables = attention_s(bare, "bf16", single, s, heads, heads, each, phase="backward").seconds

    def lines(backend: str, factor: float) -> list[dict[str, object]]:
        plain = {"kind": "attention", "dtype": "bf16", "phase": "backward", "head_dim": 128, "backend": backend}
        return [
            plain | {"heads": int(h), "sequence": int(n), "us": float(t * factor * 1e6)}
            for h, n, t in zip(heads, s, tables, strict=True)
        ]

    both = written(tmp_path / "a.jsonl", rows(slower(1.0)) + lines("flash", 1.9) + lines("cudnn", 1.1))
    told = sweep("calibrate", "kernels", both, "-o", tmp_path / "a.yaml")
    assert "attention backward, bf16, heads of 128: mostly cudnn" in told.stdout
    mine = load_kernels(read_hardware(str(tmp_path / "a.yaml")))
    found_s = attention_s(mine, "bf16", single, s, heads, heads, each, phase="backward").seconds
    assert found_s == pytest.approx(1.1 * tables, rel=1e-4)
    slow = written(tmp_path / "b.jsonl", rows(slower(1.0)) + lines("flash", 1.9))
    told = sweep("calibrate", "kernels", slow, "-o", tmp_path / "b.yaml")
    assert "left out, 1.90 x the preset: flash of this PyTorch is another kernel" in told.stdout
    found = read_hardware(str(tmp_path / "b.yaml")).surface
    assert found is not None
    assert found.attention == ()


def test_what_a_user_should_know_is_said(tmp_path: Path) -> None:
    times = slower(1.0)
    waiting = rows(dict(list(times.items())[:2]), launch_bound=True)
    besides: list[dict[str, object]] = [
        {"kind": "reference", "us": 1000.0}, {"kind": "reference", "us": 1100.0},
        {"kind": "memory", "name": "add", "bytes": 3 * 2**29, "us": 600.0},
        {"kind": "conditions", "clock_mhz": "1980"}, {"kind": "conditions", "clock_mhz": "1400"},
        {"kind": "skipped", "of": "gemm", "why": "no time left"},
    ]  # fmt: skip
    path = written(
        tmp_path / "a.jsonl", rows(dict(list(times.items())[2:])) + waiting + besides, HEADER | {"memory_bytes": 40 * 10**9}
    )
    told = sweep("calibrate", "kernels", path, "-o", tmp_path / "a.yaml")
    for text in (
        "2 shapes left out, the host took as long to launch them as the GPU to run them",
        "the same GEMM took +10.0 % at the end",
        "the GPU has 40 GB, H100-SXM 85 GB: is it this device?",
        "the script was stopped before its end",
        "1 x 'gemm': 'no time left'",
        "part of the memory bandwidth: add 0.80",
    ):
        assert text in told.stdout, text
    assert read_hardware(str(tmp_path / "a.yaml")).value("hbm_efficiency") == pytest.approx(0.8013, abs=1e-3)
    again = sweep("calibrate", "kernels", path, "-o", tmp_path / "a.yaml")
    assert (again.returncode, again.stderr) == (
        2,
        f"error: --output: found {tmp_path / 'a.yaml'}, expected a file that is not there yet; move it away, "
        "or name another with -o\n",
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "3: not JSON: Expecting property name enclosed in double quotes"),
        ('{"kind": "end", "kind": "end"}', "3: key 'kind' is given twice"),
        (
            '{"kind": "gem"}',
            "3: kind: found 'gem', expected one of gemm, attention, memory, layer, grouped, launch, trace, skipped, "
            "conditions, reference, end",
        ),
        (json.dumps(rows({(1, 2, 3): 1.0}, us=-1)[0]), "3: us: found '-1', expected microseconds above 0 and below 1e+09"),
        (json.dumps(rows({(1, 2, 3): 1.0}, us=None)[0]), "3: us: found 'None', expected microseconds above 0 and below 1e+09"),
        (json.dumps(rows({(1, 2, 3): 1.0}, m=2.5)[0]), "3: m: found '2.5', expected a whole number from 1 to 2,147,483,647"),
        (json.dumps(rows({(1, 2, 3): 1.0}, dtype="int8")[0]), "3: dtype: found 'int8', expected bf16, fp16, fp8"),
        (json.dumps(rows({(1, 2, 3): 1.0}, phase="back")[0]), "3: phase: found 'back', expected forward, input_gradient"),
    ],
)
def test_a_broken_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", rows({(16, 32, 64): 1.0}))
    path.write_text(path.read_text() + line + "\n", encoding="utf-8")
    with pytest.raises(SimError) as error:
        read_kernels(path)
    assert str(error.value).startswith(f"{path}:{message}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "error: FILE: found none, expected what measure_kernels.py has written; --script prints that script\n",
        ),
        (("--script", "-o", "x.py"), "error: --output: found beside --script, which takes nothing else"),
        (("a.csv",), "error: a.csv:1: format: found 'None', expected 'sweep kernels 1'"),
        (("one.jsonl",), "error: one.jsonl: nothing to use: found no GEMM of two sizes or more on every axis\n"),
        (("other.jsonl",), "error: calibrate kernels: other.jsonl: no preset of device NVIDIA T9: say --device"),
    ],
)
def test_a_bad_call_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("{}\n", encoding="utf-8")
    written(Path("one.jsonl"), rows({(16, 32, 64): 1.0}))
    written(Path("other.jsonl"), [], HEADER | {"device": "NVIDIA T9"})
    done = sweep("calibrate", "kernels", *arguments)
    expected = 1 if any(word.startswith(("a.", "one.", "other.")) for word in arguments) else 2
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (expected, "", 1)
    assert done.stderr.startswith(message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"us": [1.0]}, "surface.gemm.0: us: found 1 times, expected 8, one a shape"),
        ({"m": [2, 1]}, "surface.gemm.0: found sizes 2, 1, expected them to rise"),
        ({"us": [None] * 8}, "surface.gemm.0: us: found no time, expected at least one"),
        ({"dtype": "int8"}, "surface.gemm.0.dtype: Input should be 'bf16', 'fp16' or 'fp8'"),
    ],
)
def test_a_surface_edited_by_hand_is_checked(changes: dict[str, object], message: str) -> None:
    gemm: dict[str, object] = {"dtype": "bf16", "phase": "forward", "m": [1, 2], "n": [1, 2], "k": [1, 2], "us": [1.0] * 8}
    document = yaml.safe_load(hardware_yaml(read_hardware("H100-SXM")))
    document["surface"] = {"source": "me", "gemm": [gemm | changes]}
    with pytest.raises(Exception, match=message.replace("[", r"\[")):
        parse_hardware(document, "mine.yaml")


def test_the_script_that_ships_as_text_is_held_to_the_rules_of_the_sources(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    compile(text, script.name, "exec")
    ruff = [shutil.which("ruff", path=str(Path(sys.executable).parent)) or "ruff", "--config", str(ROOT / "pyproject.toml")]
    for command in (("check", "--ignore=T20"), ("format", "--check")):
        words = [*ruff[:1], command[0], *ruff[1:], *command[1:], "--stdin-filename", "measure_kernels.py", "-"]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
