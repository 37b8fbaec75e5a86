"""Launch files of GPT-NeoX, NeMo AutoModel, llm-foundry and Primus: what they state, what they leave open, what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim_core import SpecError
from sweep.inputs.launches import read_launch
from sweep.inputs.told import Job
from tests.sweep.commands import sweep
from tests.sweep.inputs import specimens


def read(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return read_launch(path)


TOLD: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    specimens.NEOX: (
        "GPT-NeoX", "megatron-deepspeed",
        {"tp": 2, "pp": 4, "vpp": 1, "micro_batch": 4, "ga": 32, "global_batch": None, "sequence": 2048, "all_gpus": None,
         "sharding": "optimizer", "checkpointing": "full", "precision": "fp16", "overlap_grad": True},
        {"layers": 44, "ffn": 24576, "gated": False, "position": "rotary", "tied": False, "parallel_residual": True},
    ),
    specimens.AUTOMODEL: (
        "NeMo AutoModel", "nemo-automodel",
        {"tp": 1, "pp": 2, "vpp": 1, "schedule": "1f1b", "micro_batch": 1, "global_batch": 512, "sequence": 4096, "dp": None,
         "sharding": "optimizer", "checkpointing": "full", "precision": "bf16"},
        {"layers": 80, "hidden": 8192, "lora": {"rank": 16, "targets": ["qkv", "projection", "fc1", "fc2"]}},
    ),
    specimens.FOUNDRY: (
        "llm-foundry", "llm-foundry",
        {"tp": 1, "pp": 1, "micro_batch": 8, "global_batch": 1024, "sequence": 2048, "sharding": "gradients",
         "checkpointing": "none", "precision": "bf16"},
        {"layers": 32, "kv_heads": 8, "ffn": 16384, "position": "learned", "positions": 2048, "tied": True},
    ),
    specimens.PRIMUS: (
        "Primus", "primus",
        {"tp": 8, "pp": 1, "cp": 1, "micro_batch": 2, "global_batch": 128, "sequence": 8192, "sharding": "optimizer",
         "checkpointing": "block:20", "precision": "fp8_delayed", "sequence_parallel": True, "overlap_grad": True},
        {"layers": 80, "hidden": 8192, "sequence": 8192},
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", TOLD, ids=lambda text: TOLD[text][0])
def test_what_a_file_states(text: str, tmp_path: Path) -> None:
    framework, stack, plan, model = TOLD[text]
    found = read(tmp_path, text)
    assert (found.framework, found.stack) == (framework, stack)
    assert {name: found.plan[name] for name in plan} == plan
    assert {name: found.model.get(name) for name in model} == model


@pytest.mark.parametrize("text", TOLD, ids=lambda text: TOLD[text][0])
def test_what_init_writes_reads_back(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    more = ("--set", "vocabulary=50432") if text == specimens.NEOX else ()
    done = sweep("init", tmp_path / "run.yaml", "--gpus", 64, "--hardware", "H100-SXM", "-o", tmp_path / "s.yaml", *more)
    assert done.returncode == 0, done.stderr
    assert not any(word in done.stdout.replace(str(tmp_path), "") for word in specimens.PRIVATE)
    assert sweep("run", tmp_path / "s.yaml", "--dry-run").returncode == 0


def test_the_own_ways_of_a_framework_are_said_or_left_open(tmp_path: Path) -> None:
    """By itself GPT-NeoX keeps all activations; in a file that is a part of a launch that is not known."""
    text = specimens.NEOX.replace('"checkpoint-activations": true,', "")
    found = read(tmp_path, text)
    assert found.plan["checkpointing"] == "none"
    assert any("what GPT-NeoX does by itself: " in note and "checkpointing none" in note for note in found.notes)
    part = read(tmp_path, text.replace('"train_micro_batch_size_per_gpu": 4, ', ""))
    assert part.plan["checkpointing"] is None
    assert part.plan["tp"] == 2
    assert any(note.startswith("not in this file, a part of a launch, so left open: ") for note in part.notes)


@pytest.mark.parametrize(
    ("text", "old", "new", "field"),
    [
        (specimens.NEOX, '"norm": "layernorm"', '"norm": "scalenorm"', "model"),
        (specimens.NEOX, '"gpt_j_residual": true', '"num_experts": 8', "model"),
        (specimens.NEOX, '"gpt_j_residual": true', '"attention_config": [[["local", "global"], 22]]', "model"),
        (specimens.NEOX, '"type": "Adam"', '"type": "Adafactor"', "optimizer"),
        (specimens.NEOX, '"stage": 1', '"stage": 1, "offload_optimizer": {"device": "cpu"}', "optimizer_offload"),
        (specimens.NEOX, '"gpt_j_residual": true', '"te_fp8_format": "hybrid"', "precision"),
        (specimens.AUTOMODEL, "pp_schedule: 1f1b", "pp_schedule: interleaved1f1b, layers_per_stage: 4", "vpp"),
        (specimens.AUTOMODEL, "dp_size: none", "dp_replicate_size: 4", "dp_shard"),
        (specimens.AUTOMODEL, "activation_checkpointing: true", "activation_checkpointing: selective", "checkpointing"),
        (specimens.AUTOMODEL, "peft:", "fp8: {enabled: true}\npeft:", "precision"),
        (specimens.AUTOMODEL, "peft:", "  config: {num_hidden_layers: 4}\npeft:", "model"),
        (specimens.FOUNDRY, "device_train_microbatch_size: 8", "device_train_microbatch_size: auto", "micro_batch"),
        (specimens.FOUNDRY, "SHARD_GRAD_OP", "HYBRID_SHARD", "sharding"),
        (specimens.FOUNDRY, "decoupled_adamw", "decoupled_lionw", "optimizer"),
        (specimens.FOUNDRY, "  no_bias: true", "  ffn_config: {ffn_type: mb_dmoe}", "model"),
        (specimens.FOUNDRY, "activation_checkpointing: false", "activation_cpu_offload: true", "activation_offload"),
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_left_open_and_named(text: str, old: str, new: str, field: str, tmp_path: Path) -> None:
    assert old in text
    found = read(tmp_path, text.replace(old, new))
    assert (found.model == {}) if field == "model" else (found.plan[field] is None)
    assert any("left open" in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("said", "ffn"),
    [
        ('"activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256', 11008),
        ('"activation": "swiglu"', 8192),
        ('"mlp_type": "llama"', 16384),
        ('"mlp_type": "llama", "intermediate_size": 11008', 11008),
        ('"intermediate_size": 11008', 11008),
    ],
)
def test_the_width_of_a_gated_mlp_of_gpt_neox(said: str, ffn: int, tmp_path: Path) -> None:
    """Llama 2 7B has 11,008, which configs/llama2/7B.yml writes as 32,768; two thirds of 4 x 6144 are 16,384, in two parts
    where one matrix holds both."""
    assert read(tmp_path, specimens.NEOX.replace('"gpt_j_residual": true', said)).model["ffn"] == ffn


def test_flash_attention_of_gpt_neox_is_told(tmp_path: Path) -> None:
    found = read(tmp_path, specimens.NEOX.replace('"gpt_j_residual": true', '"attention_config": [[["flash"], 44]]'))
    assert found.facts["flash_attention"] is True
    assert read(tmp_path, specimens.NEOX).facts == {}


def test_the_configurations_of_primus_beside_an_experiment(tmp_path: Path) -> None:
    """Where its own files lie, they are read, with those that they extend; else what they say is told as theirs."""
    for name, text in {
        "modules/megatron/pre_trainer.yaml": "extends:\n- base.yaml\nbf16: true\nuse_distributed_optimizer: false\n",
        "modules/megatron/base.yaml": "sequence_parallel: false\noverlap_param_gather: true\nmicro_batch_size: 7\n",
        "models/megatron/llama3.1_70B.yaml": "num_layers: 80\nhidden_size: 1024\nnum_attention_heads: 8\nvocab_size: 1000\n"
        "ffn_hidden_size: 4096\nposition_embedding_type: rope\n",
    }.items():
        path = tmp_path / "primus" / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "examples").mkdir()
    found = read(tmp_path / "examples", specimens.PRIMUS)
    plan = {"micro_batch": 2, "sharding": "none", "sequence_parallel": False, "overlap_param": True}
    assert {name: found.plan[name] for name in plan} == plan
    assert (found.model["hidden"], found.model["sequence"]) == (1024, 8192)
    alone = read(tmp_path.parent, specimens.PRIMUS)
    assert "pre_trainer.yaml, llama3.1_70B.yaml: not beside this file" in alone.notes
    assert any(note.startswith("not in this file, taken as primus/configs has it: bf16, ") for note in alone.notes)
    own = specimens.PRIMUS.replace("fp8: hybrid", "num_layers: 4\n      patch_zero_bubble: true")
    found = read(tmp_path.parent, own)
    assert (found.model, found.plan["schedule"]) == ({}, None)
    assert "patch_zero_bubble: not modelled" in found.notes


def test_numbers_of_primus_that_mean_on_and_nothing(tmp_path: Path) -> None:
    """A switch may be 1, and of no layers nothing runs again."""
    text = specimens.PRIMUS.replace("recompute_num_layers: 20", "recompute_num_layers: 0\n      sequence_parallel: 1")
    found = read(tmp_path, text)
    assert (found.plan["checkpointing"], found.plan["sequence_parallel"]) == ("none", True)


def test_other_frameworks_of_primus(tmp_path: Path) -> None:
    titan = (
        specimens.PRIMUS.partition("    overrides:")[0]
        + "    overrides:\n      training: {local_batch_size: 4, seq_len: 8192}\n"
    )
    found = read(tmp_path, titan.replace("framework: megatron", "framework: torchtitan"))
    assert (found.stack, found.plan["micro_batch"], found.model["layers"]) == ("torchtitan", 4, 80)
    with pytest.raises(SpecError, match="Primus with the framework hummingbirdxt: not modelled"):
        read(tmp_path, titan.replace("framework: megatron", "framework: hummingbirdxt"))


def test_a_value_in_place_of_a_section_says_nothing(tmp_path: Path) -> None:
    """`zero_optimization: 3` is no stage 3, and no "none" by itself; `false` is none."""
    odd = read(
        tmp_path, specimens.NEOX.replace('"zero_optimization": {"stage": 1, "overlap_comm": True,}', '"zero_optimization": 3')
    )
    assert odd.plan["sharding"] is None
    assert any(note.startswith("zero_optimization.stage or zero_stage [3]: sharding") for note in odd.notes)
    off = specimens.NEOX.replace('"zero_optimization": {"stage": 1, "overlap_comm": True,}', '"zero_optimization": false')
    assert read(tmp_path, off).plan["sharding"] == "none"
