"""What a file says is told, what it leaves open is open, and nothing of it is lost in silence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sim_core import SpecError, read_stack
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.inputs.told import Job
from tests.sweep.commands import sweep
from tests.sweep.inputs import specimens


def launch(tmp_path: Path, text: str, name: str = "run.yaml") -> Job:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_launch(str(path))


def log(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "run.log"
    path.write_text(text, encoding="utf-8")
    return read_log(str(path))


@pytest.mark.parametrize(("name", "sharding"), [("mcore_distributed_optim", "optimizer"), ("fused_adam", "none")])
def test_an_optimizer_of_nemo_that_ranks_share(name: str, sharding: str, tmp_path: Path) -> None:
    text = specimens.NEMO_YAML.replace("distributed_fused_adam", name)
    assert name in text
    assert launch(tmp_path, text).plan["sharding"] == sharding


@pytest.mark.parametrize(
    ("peft", "told"),
    [
        (
            "  peft:\n    peft_scheme: lora\n    lora_tuning: {target_modules: ['attention_qkv'], adapter_dim: 32}\n",
            {"rank": 32, "targets": ["qkv"]},
        ),
        (
            "  peft:\n    dim: 8\n    target_modules: [linear_qkv, linear_proj, linear_fc1, linear_fc2]\n",
            {"rank": 8, "targets": ["qkv", "projection", "fc1", "fc2"]},
        ),
        ("  peft:\n    peft_scheme: null\n", None),
    ],
)
def test_adapters_are_part_of_the_model(peft: str, told: object, tmp_path: Path) -> None:
    assert launch(tmp_path, specimens.NEMO_YAML.rstrip("\n") + "\n" + peft).model.get("lora") == told


def test_adapters_that_are_not_known_are_said(tmp_path: Path) -> None:
    text = specimens.NEMO_YAML.rstrip("\n") + "\n  peft:\n    peft_scheme: ptuning\n"
    assert any("peft_scheme ptuning: not modelled" in note for note in launch(tmp_path, text).notes)
    trainer = specimens.TRAINER_YAML.rstrip("\n") + "\nfinetuning_type: lora\nlora_rank: 16\n"
    found = launch(tmp_path, trainer)
    assert any(
        note.startswith("lora {'rank': 16}: give the model as {preset: MODEL, lora: {'rank': 16}}") for note in found.notes
    ), found.notes


@pytest.mark.parametrize(
    ("said", "base"),
    [
        ("quantization_bit: 4", "'base': 'nf4-double'}"),
        ("quantization_bit: 4\ndouble_quantization: false", "'base': 'nf4'}"),
        ("load_in_4bit: true", "'base': 'nf4'}"),
        ("load_in_4bit: true\nbnb_4bit_use_double_quant: true", "'base': 'nf4-double'}"),
        ("quantization_bit: 8", "quantization_bit 8: not modelled, the base is taken in 16 bits"),
    ],
)
def test_the_bits_of_a_frozen_base(said: str, base: str, tmp_path: Path) -> None:
    """LLaMA-Factory has narrow scales unless it says otherwise (hparams/model_args.py), transformers wide ones."""
    found = launch(tmp_path, specimens.TRAINER_YAML.rstrip("\n") + f"\nfinetuning_type: lora\nlora_rank: 16\n{said}\n")
    assert any(base in note for note in found.notes), found.notes


def test_recompute_of_nemo_needs_a_granularity(tmp_path: Path) -> None:
    base = "\n".join(line for line in specimens.NEMO_YAML.splitlines() if "checkpoint" not in line and "recompute" not in line)
    for granularity, checkpointing in (("null", "none"), ("full", "full"), ("selective", "selective")):
        more = f"  activations_checkpoint_granularity: {granularity}\n  activations_checkpoint_method: uniform\n"
        found = launch(tmp_path, base + "\n" + more + "  activations_checkpoint_num_layers: 1\n")
        assert found.plan["checkpointing"] == checkpointing, granularity


def test_a_trainer_without_deepspeed_has_a_page(tmp_path: Path) -> None:
    alone = specimens.TRAINER_YAML.replace("deepspeed: {zero_optimization: {stage: 3}}", "fsdp: full_shard auto_wrap")
    found = launch(tmp_path, alone)
    assert (found.framework, found.stack, found.plan["sharding"]) == ("Hugging Face Trainer", "hf-trainer", "parameters")
    assert found.facts == {}
    found = launch(tmp_path, alone + "use_liger_kernel: true\noptim: adamw_torch_fused\n")
    assert found.facts["logit_bytes"] == found.facts["step_bytes"] == 0
    assert found.facts["norm_bytes"] == (4.0, 8.0) != read_stack("hf-trainer").norm_bytes
    assert launch(tmp_path, specimens.TRAINER_YAML).stack == ""
    for nothing in ("null", "false", '""'):
        assert launch(tmp_path, alone + f"deepspeed: {nothing}\n").framework == "Hugging Face Trainer", nothing
    listed = launch(tmp_path, alone.replace("full_shard auto_wrap", "[full_shard, auto_wrap, offload]"))
    assert (listed.plan["sharding"], listed.plan["parameter_offload"]) == ("parameters", True)


@pytest.mark.parametrize(("option", "how"), [('"op"', "block:4"), ("2", "block:4"), ('"4"', "block:2"), ('"x"', None)])
def test_the_selective_mode_of_torchtitan(option: str, how: str | None, tmp_path: Path) -> None:
    """It runs parts of all layers again, or one layer of some: not attention alone, which it saves."""
    chosen = f'[activation_checkpoint]\nmode = "selective"\nselective_ac_option = {option}\n'
    found = launch(tmp_path, re.sub(r"\[activation_checkpoint\]\n(?:\w.*\n)*", chosen, specimens.TOML), "train.toml")
    assert (found.plan["pp"], found.plan["checkpointing"]) == (2, how)
    assert any("activation checkpointing selective" in note for note in found.notes), found.notes
    assert log(tmp_path, specimens.TORCHTITAN).plan["checkpointing"] == "block:16"


def test_what_zero_plus_plus_sets_is_said(tmp_path: Path) -> None:
    zero = {"stage": 3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": False}
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "train_batch_size": 8, "zero_optimization": zero})
    notes = launch(tmp_path, text, "ds.json").notes
    said = "zero_optimization.zero_hpz_partition_size 8, zero_optimization.zero_quantized_weights True"
    assert any(said in note for note in notes)


def test_ranks_of_mlperf_that_start_in_silence_are_not_one(tmp_path: Path) -> None:
    """One line of the start: rank 0 alone prints it; the platform tells the nodes."""
    lines = specimens.MLLOG.splitlines()
    start = next(line for line in lines if '"init_start"' in line)
    once = [start, *(line for line in lines if '"init_start"' not in line)]
    assert log(tmp_path, "\n".join(once) + "\n").plan["all_gpus"] == 32
    untold = [line for line in once if "submission_platform" not in line]
    assert log(tmp_path, "\n".join(untold) + "\n").plan["all_gpus"] is None


def test_a_trainer_without_deepspeed_is_no_deepspeed(tmp_path: Path) -> None:
    text = "\n".join(line for line in specimens.TRAINER.splitlines() if "DeepSpeed" not in line and "ZeRO" not in line)
    text = "\n".join(line for line in text.splitlines() if "parallel_size" not in line and "SamplesPerSec" not in line)
    assert log(tmp_path, text + "\n").framework == "Hugging Face Trainer"


def test_steps_that_rise_have_no_steady_one(tmp_path: Path) -> None:
    """11 s at first, 36 s at the end: no figure stands for such a run."""
    rising = "".join(
        f" iteration {n:8d}/ 100 | elapsed time per iteration (ms): {11000 + 800 * n:.1f} | global batch size: 64 | loss: 7 |\n"
        for n in range(1, 32)
    )
    found = log(tmp_path, rising)
    assert found.step_time_s is None
    assert any("no steady step: from 1" in note for note in found.notes), found.notes


SCRIPT = """#!/bin/bash
E="--num-layers 32"
if false; then
  EXTRA="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
fi
if [ -n "$USE_TP" ]; then
  TP=8
fi
[ -n "$FP" ] && PREC="--fp8-format hybrid"
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py $E --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 \\
  --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size $TP \\
  --bf16 --use-distributed-optimizer --vocab-size 32000 $EXTRA $PREC
"""


def test_flags_under_a_condition_are_left_open(tmp_path: Path) -> None:
    found = launch(tmp_path, SCRIPT, "run.sh")
    assert {name: found.plan[name] for name in ("tp", "checkpointing", "precision", "sharding", "micro_batch")} == {
        "tp": None, "checkpointing": None, "precision": None, "sharding": "optimizer", "micro_batch": 1,
    }  # fmt: skip
    assert found.model["layers"] == 32
    (note,) = [note for note in found.notes if note.startswith("set under a condition")]
    assert note.endswith(
        "--recompute-granularity (line 4), --recompute-method (line 4), --recompute-num-layers (line 4), --fp8-format (line 9)"
    )


def test_flags_on_both_sides_of_a_condition_are_told(tmp_path: Path) -> None:
    """A flag that stands outside, too, is set whatever the condition."""
    text = SCRIPT.replace("--bf16", "--bf16 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    assert launch(tmp_path, text, "run.sh").plan["checkpointing"] == "full"


def test_a_text_for_python_in_a_script_is_no_condition(tmp_path: Path) -> None:
    text = "python - <<EOF\nif ready:\n    print(1)\nEOF\nTP=4\n" + SCRIPT.replace(
        'if [ -n "$USE_TP" ]; then\n  TP=8\nfi\n', ""
    )
    assert launch(tmp_path, text, "run.sh").plan["tp"] == 4


def test_a_plan_that_cannot_run_as_it_was_read_is_said(tmp_path: Path) -> None:
    """Three heads of tensor parallelism over 32 of attention: the script, or the reading of it, is wrong."""
    text = SCRIPT.replace("if false; then", "if true; then").replace("TP=8", "TP=3").replace("--nnodes 2", "--nnodes 3")
    text = text.replace('if [ -n "$USE_TP" ]; then\n  TP=3\nfi', "TP=3").replace("batch-size 64", "batch-size 48")
    (tmp_path / "run.sh").write_text(text, encoding="utf-8")
    done = sweep("init", tmp_path / "run.sh", "--hardware", "H100-SXM", "-o", tmp_path / "s.yaml")
    assert done.returncode == 0, done.stderr
    assert "note: the job's own plan, as it was read, cannot run here: heads_not_divisible_by_tp: " in done.stdout
    (tmp_path / "run.sh").write_text(text.replace("TP=3", "TP=2").replace("--nnodes 3", "--nnodes 2"), encoding="utf-8")
    done = sweep("init", tmp_path / "run.sh", "--hardware", "H100-SXM", "-o", tmp_path / "t.yaml")
    assert "cannot run here" not in done.stdout
    assert re.search(r"memory of the job's own plan, simulated: [\d.]+ GB a GPU \(state [\d.]+ GB, ", done.stdout)
    (tmp_path / "titan.log").write_text(specimens.TORCHTITAN, encoding="utf-8")
    done = sweep("init", tmp_path / "titan.log", "-o", tmp_path / "u.yaml")
    assert "; measured 54.76 GB (max reserved)" in done.stdout


def test_a_file_without_a_precision_can_be_swept(tmp_path: Path) -> None:
    """None of the words of a plan is fp32: what is taken in its place is said."""
    zero = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    (tmp_path / "ds.json").write_text(json.dumps({**zero, "train_batch_size": 8}), encoding="utf-8")
    words = ("--model", "llama3-8b", "--hardware", "H100-SXM", "--sequence", 4096, "-o", tmp_path / "s.yaml")
    done = sweep("init", tmp_path / "ds.json", *words)
    assert done.returncode == 0, done.stderr
    assert "--set precision=bf16" in done.stdout
    assert "fp32" not in (tmp_path / "s.yaml").read_text(encoding="utf-8")


def test_a_log_of_maxtext(tmp_path: Path) -> None:
    """Its configuration, and steps after the first, which is under way while the second is dispatched."""
    found = log(tmp_path, specimens.MAXTEXT)
    told = {"tp": 1, "dp": 64, "all_gpus": 64, "micro_batch": 2, "global_batch": 128, "sequence": 8192, "checkpointing": "full"}
    assert {name: found.plan[name] for name in told} == told
    assert (found.stack, found.model["layers"], found.step_time_s, found.parameters) == (
        "maxtext-tpu",
        32,
        2.458,
        8_030_000_000,
    )
    policy = specimens.MAXTEXT.replace("remat_policy: full", "remat_policy: custom")
    found = log(tmp_path, policy.replace("TFRT TPU v6 lite", "gpu"))
    assert (found.plan["checkpointing"], found.stack) == (None, "maxtext")
    assert "remat_policy custom: not modelled" in found.notes


def test_a_command_of_maxtext(tmp_path: Path) -> None:
    found = launch(tmp_path, specimens.MAXTEXT_SCRIPT)
    assert {"tp": 8, "micro_batch": 32, "checkpointing": "core_attn+mlp", "all_gpus": None}.items() <= found.plan.items()
    assert (found.plan["sharding"], found.plan["precision"], found.model["hidden"]) == ("parameters", "bf16", 8192)
    document = "model_name: llama2-7b\nper_device_batch_size: 4\nici_fsdp_parallelism: $SHARDS\nhardware: gpu\n"
    found = launch(tmp_path, document, "config.yaml")
    assert (found.stack, found.plan["micro_batch"], found.plan["sharding"]) == ("maxtext", 4, "parameters")
    assert any(note.startswith("recompute: not in this file, taken as full") for note in found.notes)
    assert (
        launch(tmp_path, specimens.MAXTEXT_SCRIPT.replace("tensor_parallelism=8", "tensor_parallelism=$TP")).plan["tp"] is None
    )


def test_primus_prints_a_step_and_the_mean(tmp_path: Path) -> None:
    text = re.sub(r"(elapsed time per iteration \(ms\): )([\d.]+)", r"\g<1>\g<2>/9999.9", specimens.megatron_log())
    found, plain = log(tmp_path, text), log(tmp_path, specimens.megatron_log())
    assert "/9999.9" in text
    assert found.step_time_s == plain.step_time_s
    assert found.plan == plain.plan


@pytest.mark.parametrize("each", ["inf", "nan", "-4", "1e300", "\u00b2", "9" * 20])
def test_a_batch_that_is_no_number_is_left_open(each: str, tmp_path: Path) -> None:
    found = log(tmp_path, specimens.MAXTEXT.replace("per_device_batch_size: 2.0", f"per_device_batch_size: {each}"))
    assert (found.plan["micro_batch"], found.plan["global_batch"]) == (None, None)


@pytest.mark.parametrize("degree", ["0", "-1", "\u00b2", "$TP", "9" * 30])
def test_a_degree_that_is_no_number_is_left_open(degree: str, tmp_path: Path) -> None:
    text = specimens.MAXTEXT.replace("ici_tensor_parallelism: 1", f"ici_tensor_parallelism: {degree}")
    assert log(tmp_path, text).plan["tp"] is None
    option = f'[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "{degree}"\n'
    text = re.sub(r"\[activation_checkpoint\]\n(?:\w.*\n)*", lambda _: option, specimens.TOML)
    assert launch(tmp_path, text, "train.toml").plan["checkpointing"] is None


def test_maxtext_shares_parameters_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = specimens.MAXTEXT_SCRIPT.replace("ici_fsdp_parallelism=32 ", "")
    assert launch(tmp_path, text).plan["sharding"] == "parameters"
    assert (
        launch(tmp_path, specimens.MAXTEXT_SCRIPT.replace("fsdp_parallelism=32", "fsdp_parallelism=1")).plan["sharding"]
        == "none"
    )


RECIPE = """
policy:
  train_global_batch_size: 256
  train_micro_batch_size: 1
  max_total_sequence_length: 2048
  precision: bfloat16
  dtensor_cfg: {enabled: false, tensor_parallel_size: 8}
  megatron_cfg:
    enabled: true
    activation_checkpointing: true
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 2
    context_parallel_size: 1
    expert_model_parallel_size: 1
    optimizer: {bf16: true, use_distributed_optimizer: true}
  generation: {colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}}
cluster: {gpus_per_node: 8, num_nodes: 4}
"""


def test_a_recipe_laid_over_others(tmp_path: Path) -> None:
    """Levels of files as they lie beside one another; a list, whose last counts; a section by its group, as Hydra has it."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "whole.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "more.yaml").write_text("cluster: {gpus_per_node: 2}\n", encoding="utf-8")
    (tmp_path / "half.yaml").write_text("defaults: [./base/whole.yaml, more]\ncluster: {gpus_per_node: 4}\n", encoding="utf-8")
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "small.yaml").write_text("megatron_cfg: {tensor_model_parallel_size: 1}\n", encoding="utf-8")
    own = "defaults:\n- half.yaml\n- policy: small\n- hydra/launcher: slurm\n"
    found = launch(tmp_path, own)
    plan = {"tp": 1, "pp": 2, "vpp": 1, "dp": 8, "all_gpus": 16, "global_batch": 256, "sequence": 2048, "checkpointing": "full"}
    assert {name: found.plan[name] for name in plan} == plan
    assert (found.plan["sharding"], found.plan["precision"]) == ("optimizer", "bf16")
    apart = launch(tmp_path, own + "policy: {generation: {colocated: {enabled: false}}}\n")
    assert (apart.plan["all_gpus"], apart.plan["dp"]) == (None, None)
    above = launch(tmp_path, "defaults:\n- _self_\n- half.yaml\ncluster: {num_nodes: 1}\n")
    assert (above.plan["tp"], above.plan["all_gpus"]) == (2, 16)


def test_a_recipe_without_those_below_it_is_left_open(tmp_path: Path) -> None:
    found = launch(
        tmp_path,
        "defaults: ./gone.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 1}}\ncluster: {gpus_per_node: 4}\n",
    )
    assert {name for name, value in found.plan.items() if value is not None} == {"tp"}
    assert found.notes[0] == "./gone.yaml: not beside this file; what it says is left open"
    assert any(note.endswith("left open: pp, vpp, cp, ep, checkpointing, sharding, precision") for note in found.notes)
    with pytest.raises(SpecError, match=r"framework that is known \(gone: not beside this file"):
        launch(tmp_path, "defaults: [gone]\nlogger: {name: x}\n")


def test_recipes_that_name_one_another_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("defaults: run.yaml\n", encoding="utf-8")
    with pytest.raises(SpecError, match="found a loop of files that name one another"):
        launch(tmp_path, "defaults: b.yaml\n")


OVERRIDES = "model:\n  tensor_model_parallel_size: 2\ntrain:\n  micro_batch_size: 1\n  global_batch_size: 64\n"
PART = "MODEL_ARGS=(\n  --swiglu --num-layers 36 --hidden-size 4096 --ffn-hidden-size 12288 --num-attention-heads 32\n)\n"


@pytest.mark.parametrize(
    ("name", "text", "stated"),
    [
        ("overrides.yaml", OVERRIDES, {"tp", "micro_batch", "global_batch"}),
        ("overrides.yaml", OVERRIDES + "  precision: 32\n", {"tp", "micro_batch", "global_batch", "precision"}),
        ("overrides.yaml", OVERRIDES + "  num_layers: 8\n", {"tp", "micro_batch", "global_batch"}),
        ("overrides.yaml", OVERRIDES.partition("train:")[2].join(("train:", "")), {"micro_batch", "global_batch"}),
        ("model.sh", PART, set()),
        (
            "model.sh",
            PART + "--tensor-model-parallel-size 4 --recompute-activations",
            {"tp", "sequence_parallel", "checkpointing"},
        ),
    ],
)
def test_a_part_of_a_launch_states_what_it_states(name: str, text: str, stated: set[str], tmp_path: Path) -> None:
    """No value of Megatron-LM's own stands for what the rest of the launch may say."""
    found = launch(tmp_path, text, name)
    assert {field for field, value in found.plan.items() if value is not None} == stated - {"sequence_parallel"}
    assert any(note.startswith("a part of a launch: not in this file, so left open: ") for note in found.notes)


def test_what_megatron_does_by_itself_is_said(tmp_path: Path) -> None:
    assert (
        "not in this file, so what Megatron-LM does by itself: vpp 1, cp 1, ep 1" in launch(tmp_path, specimens.NEMO_YAML).notes
    )


def test_what_init_writes_of_a_part_reads_back(tmp_path: Path) -> None:
    (tmp_path / "o.yaml").write_text(OVERRIDES, encoding="utf-8")
    words = ("--model", "llama3-8b", "--hardware", "H100-SXM", "--gpus", 16, "-o", tmp_path / "s.yaml")
    done = sweep("init", tmp_path / "o.yaml", *words)
    assert done.returncode == 1
    assert "not told: pp, vpp, cp; give --set pp=... --set vpp=... --set cp=..." in done.stderr
    done = sweep("init", tmp_path / "o.yaml", *words, "--set", "pp=2", "--set", "vpp=1", "--set", "cp=1")
    assert done.returncode == 0, done.stderr
    assert "--set precision=bf16" in done.stdout
    assert sweep("run", tmp_path / "s.yaml", "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads_params", ("parameters", True, True)),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", ("gradients", True, False)),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy no_shard", ("none", False, False)),
        ("--use-custom-fsdp", (None, False, False)),
    ],
)
def test_the_fsdp_of_megatron(flags: str, told: tuple[object, ...], tmp_path: Path) -> None:
    """It overlaps by itself what its strategy sends; versions differ in the strategy that they begin with."""
    text = specimens.SCRIPT.replace("--use-distributed-optimizer --overlap-grad-reduce", flags)
    found = launch(tmp_path, text, "run.sh")
    assert flags in text
    assert tuple(found.plan.get(name) for name in ("sharding", "overlap_grad", "overlap_param")) == told
    assert any("versions differ, so sharding is left open" in note for note in found.notes) is (told[0] is None)
    assert not any("fsdp" in note for note in found.notes if note.startswith("unknown flags"))


def test_primus_prints_what_is_in_use(tmp_path: Path) -> None:
    """GB are GiB there; what tensors take is better known, wherever it is printed."""
    lines = [line for line in specimens.megatron_log().splitlines() if "max allocated" not in line]
    more = " hip mem usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% |"
    more += " rank-1 rocm max mem usage/usage_ratio: 160.5GB/62.7% |"
    text = "\n".join(line + more if "elapsed time" in line else line for line in lines) + "\n"
    path = tmp_path / "run.log"
    path.write_text(text, encoding="utf-8")
    found = read_log(path)
    assert (found.peak_memory_gib, found.memory_kind) == (160.5, "in use on the device")
    path.write_text(text + " memory (MB) | allocated: 1.0 | max allocated: 51200.0 | reserved: 3.0 |\n", encoding="utf-8")
    found = read_log(path)
    assert (found.peak_memory_gib, found.memory_kind) == (50.0, "max allocated")


def test_numbers_that_mean_on_and_nothing(tmp_path: Path) -> None:
    """A switch may be 1, and of no layers nothing runs again."""
    text = specimens.NEMO_YAML.replace("sequence_parallel: true", "sequence_parallel: 1")
    text = re.sub("  activations_checkpoint_granularity: selective\n", "", text)
    text += "  recompute_granularity: full\n  recompute_method: block\n  recompute_num_layers: 0\n"
    found = launch(tmp_path, text)
    assert (found.plan["checkpointing"], found.plan["sequence_parallel"]) == ("none", True)


def test_primus_is_its_own_framework(tmp_path: Path) -> None:
    """What its own configurations say by themselves is told as theirs."""
    found = launch(tmp_path, specimens.PRIMUS.replace("fp8: hybrid", "fp8: hybrid\n      patch_zero_bubble: true"))
    plan = {
        "tp": 8,
        "cp": 1,
        "sharding": "optimizer",
        "precision": "fp8_delayed",
        "checkpointing": "block:20",
        "sequence": 8192,
    }
    assert (found.framework, found.stack) == ("Primus", "primus")
    assert {name: found.plan[name] for name in plan} == plan
    assert found.plan["schedule"] is None
    assert "patch_zero_bubble: not modelled" in found.notes
    assert any(note.startswith("not in this file, taken as primus/configs has it: ") and "bf16" in note for note in found.notes)
