"""What frameworks say of the host: read, written back, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sweep.inputs.launches import read_launch
from tests.sweep.commands import sweep

MEGATRON = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 "
    "--ffn-hidden-size 14336 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 2 --bf16 --use-distributed-optimizer --vocab-size 32000 "
)
ON_HOST = {"optimizer_offload": 1.0, "parameter_offload": True}
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
enable_cpu_offload = true
[parallelism]
data_parallel_shard_degree = 8
"""


def read(tmp_path: Path, name: str, text: str) -> tuple[dict[str, Any], str]:
    """What a file tells of the host, and its notes."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    launch = read_launch(str(path))
    told = {name: value for name, value in launch.plan.items() if "offload" in name and value is not None}
    assert not any("offload" in key for key in launch.kept if "torch" not in key), launch.kept
    return told, " ".join(launch.notes)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            "--fine-grained-activation-offloading --offload-modules core_attn attn_proj",
            {"activation_offload": "core_attn+attn_proj"},
        ),
        ("--cpu-offloading-num-layers 8", {"activation_offload": 0.25}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", {"optimizer_offload": 0.5, "overlap_offload": False}),
        ("--optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d", {"optimizer_offload": 1.0, "overlap_offload": True}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction $PART", {"overlap_offload": False}),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 7", {"overlap_offload": False}),
        ("", {}),
    ],
)
def test_megatron_flags_are_read(flags: str, told: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, "run.sh", MEGATRON + flags)[0] == told


def test_what_is_not_simulated_is_said(tmp_path: Path) -> None:
    flags = "--fine-grained-activation-offloading --offload-modules fused_group_mlp --use-torch-optimizer-for-cpu-offload"
    told, notes = read(tmp_path, "run.sh", MEGATRON + flags)
    assert told == {}
    assert "fine_grained_activation_offloading: of what, is not told in words that we know" in notes
    assert "no part of what is simulated: use_torch_optimizer_for_cpu_offload" in notes


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.4}}}, {"optimizer_offload": 0.4}),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}},
            ON_HOST,
        ),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}}}, {}),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": "lots"}}}, {}),
        (
            {"zero_optimization": {"stage": 1}, "activation_checkpointing": {"cpu_checkpointing": True}},
            {"activation_offload": 1.0},
        ),
    ],
)
def test_deepspeed_sections_are_read(config: dict[str, Any], told: dict[str, Any], tmp_path: Path) -> None:
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "train_batch_size": 8}
    assert read(tmp_path, "ds.json", json.dumps({**batch, **config}))[0] == told


def test_nvme_is_said(tmp_path: Path) -> None:
    zero = {"stage": 3, "offload_optimizer": {"device": "nvme"}}
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8, "zero_optimization": zero})
    assert read(tmp_path, "ds.json", text)[1].count("offload_optimizer to nvme: not modelled") == 1


def test_fsdp_of_the_trainer_and_torchtitan(tmp_path: Path) -> None:
    trainer = "python train.py --per_device_train_batch_size 1 --fsdp 'full_shard offload' --bf16 True"
    assert read(tmp_path, "t.sh", trainer)[0] == ON_HOST
    assert read(tmp_path, "t.toml", TITAN)[0] == ON_HOST


@pytest.mark.parametrize(
    ("stack", "form", "fixed"),
    [
        ("megatron-core", "megatron", "activation_offload: core_attn+moe_act, optimizer_offload: 0.5, overlap_offload: false"),
        ("torchtitan", "torchtitan", "sharding: parameters, optimizer_offload: 1.0, parameter_offload: true"),
    ],
)
def test_a_plan_survives_its_launch(stack: str, form: str, fixed: str, tmp_path: Path) -> None:
    model = "mixtral-8x7b" if stack == "megatron-core" else "llama3-8b"
    spec = tmp_path / "s.yaml"
    spec.write_text(
        f"name: s\nworkload: {{model: {model}, sequence: 4096, stack: {stack}}}\nhardware: GB200-NVL72\n"
        f"fixed: {{tp: 1, pp: 1, vpp: 1, ep: {8 if model[0] == 'm' else 1}, all_gpus: 64, ga: 1, {fixed}}}\n",
        encoding="utf-8",
    )
    assert sweep("run", spec, "--out", tmp_path / "r", "--quiet", "--workers", 0).returncode == 0
    done = sweep("export", tmp_path / "r", "--plan", 0, "--format", form)
    assert done.returncode == 0, done.stderr
    told, _ = read(tmp_path, "run.toml" if form == "torchtitan" else "run.sh", done.stdout)
    expected = dict(part.split(": ") for part in fixed.split(", ") if "offload" in part)
    assert {name: str(value).lower() for name, value in told.items()} == expected


@pytest.mark.parametrize(
    ("form", "fixed", "rule"),
    [
        ("megatron", "activation_offload: 0.5", "Megatron-LM sends modules to the host, such as core_attn, not 0.5 of a layer"),
        ("megatron", "checkpointing: mlp_act", "Megatron-LM runs a dense mlp again as a whole, not its activation"),
        (
            "torchtitan",
            "optimizer_offload: 0.5, sharding: parameters",
            "enable_cpu_offload moves parameters and optimizer together",
        ),
    ],
)
def test_what_a_framework_refuses_is_refused(form: str, fixed: str, rule: str, tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text(
        "name: s\nworkload: {model: llama3-8b, sequence: 4096, stack: megatron-core}\nhardware: GB200-NVL72\n"
        f"fixed: {{tp: 1, pp: 1, vpp: 1, all_gpus: 64, ga: 1, {fixed}}}\n",
        encoding="utf-8",
    )
    assert sweep("run", spec, "--out", tmp_path / "r", "--quiet", "--workers", 0).returncode == 0
    done = sweep("export", tmp_path / "r", "--plan", 0, "--format", form)
    assert done.returncode == 1
    assert rule in done.stderr
