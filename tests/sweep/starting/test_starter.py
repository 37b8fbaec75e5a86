"""`sweep init`: the spec that it writes prepares, holds plans that can run, and explains its values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from sim_core import FIRST_FAILURE, read_hardware, read_model, read_stack
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from sweep.starting.wide_axes import wide_axes
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep


def legal(path: Path) -> int:
    """Plans of a spec that could be simulated."""
    prepared = prepare(load_spec(path), path.parent)
    count = prepared.sweep.space.count
    rows = evaluate(prepared.sweep, np.arange(0, count, max(count // 50_000, 1)), lost=FIRST_FAILURE)
    return int(rows.column("status").to_pylist().count("failed"))


@pytest.mark.parametrize(
    ("model", "hardware", "gpus"),
    [
        ("llama3-70b", "H100-SXM", 1024),
        ("deepseek-v3", "H800-SXM", 2048),
        ("gpt2-xl", "A100-80G-SXM", 1),
        ("qwen3-30b-a3b", "B200-SXM", 48),
        ("nemotron4-340b", "H200-SXM", 1536),
    ],
)
def test_the_spec_of_a_model_holds_plans_that_can_run(model: str, hardware: str, gpus: int, tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    done = sweep("init", model, "--hardware", hardware, "--gpus", gpus, "-o", out)
    assert done.returncode == 0, done.stderr
    numbers = read_model(model)
    assert f"Next: sweep {'search' if numbers.experts else 'run'} {out}" in done.stdout
    spec = yaml.safe_load(out.read_text())
    assert spec["fixed"]["all_gpus"] == gpus
    assert all(numbers.heads % tp == 0 and gpus % tp == 0 for tp in spec["axes"]["tp"])
    assert all(numbers.experts and numbers.experts.count % ep == 0 for ep in spec["axes"].get("ep", []))
    assert all(gpus % pp == 0 for pp in spec["axes"]["pp"])
    even = {(pp, vpp) for pp in range(2, 65) for vpp in range(1, 129) if gpus % pp == 0 and numbers.layers % (pp * vpp) == 0}
    assert even <= {(pp, vpp) for pp in spec["axes"]["pp"] for vpp in spec["axes"].get("vpp", [1])}
    lines = out.read_text().splitlines()
    assert all("#" in line for line in lines if line.startswith("  ") and "all_gpus" not in line)
    assert legal(out) > 0


def test_axes_are_what_the_model_needs_and_the_stack_is_known_to_have() -> None:
    """Layers by cost where they are unlike or the head is large; HAI-LLM hides all-to-alls by its schedule."""

    def axes(model: str, stack: str) -> dict[str, object]:
        found = wide_axes(read_model(model), read_hardware("H100-SXM"), read_stack(stack), 1024, 4096)
        return {key: value for key, (value, _) in found.items()}

    for model, by_cost in (("deepseek-v3", True), ("gpt-oss-120b", True), ("nemotron-h-8b", True), ("gpt3-175b", False)):
        assert ("balanced_cost" in str(axes(model, "megatron-core")["layer_split"])) == by_cost, model
    assert axes("deepseek-v3", "megatron-core")["overlap_tp"] == [False, True]
    assert axes("deepseek-v4-flash", "megatron-core")["tp"] == [1]  # its attention has no tensor parallelism there
    assert axes("kimi-k2", "megatron-core")["vpp"] == [1, 2, 4, 31]  # 61 layers; balanced splits take 16 stages of 2
    assert "moe" in str(axes("mixtral-8x22b", "megatron-core")["checkpointing"])
    own = axes("deepseek-v3", "hai-llm")
    assert own["schedule"] == ["1f1b", "zb-h1", "dualpipe"]
    assert "overlap_ep" not in own
    assert "vpp" not in axes("llama3-8b", "nanotron")
    assert not {"tp", "pp", "vpp", "cp", "layer_split"} & {*axes("llama3-8b", "hf-trainer")}


def test_every_axis_of_a_workload_file_has_the_file_s_own_value(tmp_path: Path) -> None:
    text = EXAMPLES / "workloads" / "gpt7b_tp4_dp128.simai.txt"
    out = tmp_path / "s.yaml"
    done = sweep("init", text, "--gpus", 512, "--micro-batch", 1, "--sequence", 2048, "-o", out)
    assert done.returncode == 0, done.stderr
    spec = yaml.safe_load(out.read_text())
    assert 4 in spec["axes"]["tp"]
    assert 1 in spec["axes"]["micro_batch"]
    assert legal(out) > 0


def test_nothing_is_overwritten_and_nothing_bad_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "s.yaml"
    out.write_text("mine")
    refused = sweep("init", "llama3-8b", "-o", out)
    assert (refused.returncode, out.read_text()) == (2, "mine")
    assert (
        refused.stderr
        == f"error: --output: found {out}, expected a file that is not there yet; move it away, or name another with -o\n"
    )
    beside = tmp_path / "mine.yaml"
    beside.write_text(sweep("model", "llama3-8b", "--yaml").stdout)
    monkeypatch.chdir(tmp_path)
    assert sweep("init", "mine.yaml", "--hardware", "H100-SXM", "--gpus", 64).stdout.startswith("mine-sweep.yaml: ")
    unknown = sweep("init", "lama3-8b", "-o", tmp_path / "n.yaml")
    assert unknown.returncode == 1
    assert "unknown model 'lama3-8b', nearest valid: llama3-8b" in unknown.stderr
    assert not (tmp_path / "n.yaml").exists()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            "layers=76",
            "--set layers: only a log or a launch file takes it; `sweep model llama3-8b --set layers=76 --yaml > mine.yaml`"
            " writes a changed model to start from",
        ),
        (
            "hidden=2048",
            "--set hidden=2048: is a number of the model; `sweep model MODEL --set hidden=2048 --yaml > mine.yaml`",
        ),
        ("tp=8", "--set tp: only a log or a launch file takes it; change it in the spec that this writes"),
    ],
)
def test_what_a_model_does_not_take_says_where_to_change_it(given: str, told: str, tmp_path: Path) -> None:
    refused = sweep("init", "llama3-8b", "--set", given, "-o", tmp_path / "s.yaml")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {told}")


def test_a_model_takes_the_batch_of_a_step(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    assert sweep("init", "llama3-8b", "--set", "global_batch=1536", "-o", out).returncode == 0
    spec = yaml.safe_load(out.read_text())
    assert spec["fixed"]["global_batch"] == 1536
    assert spec["axes"]["checkpointing"] == ["none", "selective", "mlp", "full"]  # its norms are parts of linear layers


def test_what_is_not_given_is_taken_and_said(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    done = sweep("init", "llama3-8b", "--stack", "torchtitan", "-o", out)
    assert done.stdout.startswith("note: not given, so taken: --hardware H100-SXM, --gpus 64\n")
    assert "# Taken, as not given: --hardware H100-SXM, --gpus 64." in out.read_text()
    assert yaml.safe_load(out.read_text())["workload"]["stack"] == "torchtitan"
    assert "taken" not in sweep("init", "llama3-8b", "--hardware", "H100-SXM", "--gpus", 64, "-o", tmp_path / "t.yaml").stdout


@pytest.mark.parametrize(("device", "which"), [("MI300X", ""), ("h100", " (H100-96G-500W, H100-SXM)")])
def test_a_device_is_no_model(device: str, which: str, tmp_path: Path) -> None:
    refused = sweep("init", device, "-o", tmp_path / "s.yaml")
    meant = "MI300X" if device == "MI300X" else "H100-SXM"
    assert refused.stderr == f"error: {device}: is a device{which}, not a model: `sweep init MODEL --hardware {meant}`\n"


def test_groups_of_a_job_lie_in_one_rack_or_a_note_says_that_they_do_not(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    assert sweep("init", "llama3-70b", "--hardware", "GB200-NVL72", "--gpus", 256, "-o", out).returncode == 0
    spec = yaml.safe_load(out.read_text())
    assert spec["hardware"] == {"preset": "GB200-NVL72", "gpus_per_node": 64, "nics_per_node": 64}
    for hardware, gpus, told in (({**spec["hardware"]}, 256, False), ("GB200-NVL72", 256, True), ("GB200-NVL72", 64, False)):
        spec |= {"hardware": hardware, "fixed": spec["fixed"] | {"all_gpus": gpus}}
        out.write_text(yaml.safe_dump(spec))
        notes = prepare(load_spec(out), tmp_path).notes
        assert any("may lie across two racks" in note for note in notes) == told


def test_a_spec_is_no_model_to_start_from(tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    assert sweep("init", "llama3-8b", "-o", out).returncode == 0
    refused = sweep("init", out, "-o", tmp_path / "t.yaml")
    assert refused.stderr == f"error: {out}: is a spec of a sweep, not a workload; commands that take it: run, search\n"


@pytest.mark.parametrize(
    ("hardware", "stack", "slice_"),
    [("MI300X", "primus", None), ("TPU-v5p", "maxtext-tpu", 128), ("TPU-v6e", "maxtext-tpu", 128)],
)
def test_other_devices_start_without_what_only_nvidia_has(
    hardware: str, stack: str, slice_: int | None, tmp_path: Path
) -> None:
    out = tmp_path / "s.yaml"
    assert sweep("init", "mixtral-8x7b", "--hardware", hardware, "--gpus", 128, "--sequence", 4096, "-o", out).returncode == 0
    spec = yaml.safe_load(out.read_text())
    assert spec["workload"]["stack"] == stack
    assert not {"dispatcher", "overlap_tp"} & {*spec["axes"], *spec["fixed"]}
    if slice_ is None:
        assert spec["hardware"] == hardware
    else:  # the chips of the job are one slice, each with its share of the network between slices
        assert spec["hardware"] == {"preset": hardware, "gpus_per_node": slice_, "nics_per_node": slice_}
        assert not {"pp", "vpp", "layer_split"} & {*spec["axes"]}
    assert legal(out) > 0
