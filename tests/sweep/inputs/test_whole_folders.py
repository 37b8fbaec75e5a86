"""What whole public folders of launch files showed to be lost: each field in the form of those files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.unread_fields import one_a_line, unread
from sweep.inputs.launches import read_launch
from sweep.inputs.told import Job
from tests.sweep.commands import sweep
from tests.sweep.inputs import specimens

NEMO = specimens.NEMO_YAML.replace("distributed_fused_adam", "fused_adam")


def read(tmp_path: Path, text: str) -> Job:
    (tmp_path / "launch.yaml").write_text(text, encoding="utf-8")
    return read_launch(tmp_path / "launch.yaml")


@pytest.mark.parametrize(
    ("said", "sharding"),
    [
        ("fsdp: True", "parameters"), ("fsdp: true\n  fsdp_sharding_strategy: full", "parameters"),
        ("fsdp: true\n  fsdp_sharding_strategy: grad", "gradients"), ("fsdp: true\n  fsdp_sharding_strategy: hybrid", None),
        ("fsdp: False\n  fsdp_sharding_strategy: full", "none"),
    ],
)  # fmt: skip
def test_fsdp_of_nemo_shares_parameters(said: str, sharding: str | None, tmp_path: Path) -> None:
    job = read(tmp_path, NEMO.replace("  micro_batch_size: 1\n", f"  micro_batch_size: 1\n  {said}\n"))
    assert job.plan.get("sharding") == sharding


@pytest.mark.parametrize(("gpus", "shard"), [("--nproc_per_node 8", 4), ("--nproc_per_node $N", None)])
def test_groups_of_the_optimizer_are_open_where_gpus_are(gpus: str, shard: int | None, tmp_path: Path) -> None:
    more = "--num-distributed-optimizer-instances 2 --use-distributed-optimizer --micro-batch-size 1 --num-layers 8"
    job = read(tmp_path, f"#!/bin/bash\ntorchrun {gpus} pretrain_gpt.py {more}\n")
    assert job.plan["dp_shard"] == shard


def test_buckets_of_nemo_are_told(tmp_path: Path) -> None:
    job = read(tmp_path, specimens.NEMO_YAML.replace("distributed_fused_adam}", "distributed_fused_adam, bucket_cap_mb: 125}"))
    assert (job.plan["bucket_bytes"], job.plan["sharding"]) == (125 * 2**20, "optimizer")


@pytest.mark.parametrize(
    ("section", "said", "field"),
    [
        ("optimizer", "accumulate_grad_in_fp32: false", "gradient_precision"),
        ("optimizer", "optimizer_factory: {name: sgd}", "optimizer"),
        ("model", "ddp_bucket_cap_mb: 100", "bucket_bytes"),
    ],
)
def test_what_nanotron_does_otherwise_is_open(section: str, said: str, field: str, tmp_path: Path) -> None:
    text = specimens.NANOTRON_YAML.replace(f"{section}: {{", f"{section}: {{{said}, ").replace(
        f"{section}:\n", f"{section}:\n  {said}\n"
    )
    job = read(tmp_path, text)
    assert field in job.plan
    assert job.plan[field] is None
    assert any(f"{field} is left open" in note for note in job.notes)
    assert field not in read(tmp_path, specimens.NANOTRON_YAML).plan


def test_the_window_of_nanotron_is_named(tmp_path: Path) -> None:
    text = specimens.NANOTRON_YAML.replace("model_config: {", "model_config: {sliding_window_size: 512, ")
    assert any("sliding_window_size 512: attention in a window is left open" in note for note in read(tmp_path, text).notes)


@pytest.mark.parametrize(("etp", "divided"), [(1, False), (2, True), (None, None)])
def test_whether_tp_divides_experts_is_a_fact_that_a_launch_states(
    etp: int | None, divided: bool | None, tmp_path: Path
) -> None:
    own = "" if etp is None else f" --expert-tensor-parallel-size {etp}"
    flags = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --micro-batch-size 1 --num-experts 8"
    more = "--tensor-model-parallel-size 2 --sequence-parallel --vocab-size 32000 --max-position-embeddings 1024"
    job = read(tmp_path, f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py {flags} {more}{own}\n")
    assert job.facts.get("experts_with_tp") is divided
    assert len({*job.notes}) == len(job.notes)


@pytest.mark.parametrize(("etp", "facts"), [(1, {}), (8, {"experts_with_tp": True})])
def test_experts_that_tp_divides_in_torchtitan(etp: int, facts: dict[str, bool], tmp_path: Path) -> None:
    text = specimens.TOML.replace("[parallelism]\n", f"[parallelism]\nexpert_tensor_parallel_degree = {etp}\n")
    (tmp_path / "launch.toml").write_text(text, encoding="utf-8")
    assert read_launch(tmp_path / "launch.toml").facts == facts


def test_experts_divided_otherwise_than_by_tp_are_named(tmp_path: Path) -> None:
    recipe = specimens.NEMO_YAML.replace("  num_layers", "  num_moe_experts: 8\n  expert_tensor_parallel_size: 2\n  num_layers")
    job = read(tmp_path, recipe)
    assert job.facts["experts_with_tp"] is True
    assert any("expert_tensor_parallel_size 2 of tp 4: not modelled" in note for note in job.notes)


def test_reductions_of_gpt_neox_in_fp32_are_open(tmp_path: Path) -> None:
    job = read(tmp_path, specimens.NEOX.replace('"seq-length"', '"fp32_allreduce": true, "seq-length"'))
    assert (job.plan["gradient_precision"], job.plan["tp"]) == (None, 2)


def test_fields_that_nothing_is_read_of_are_counted(tmp_path: Path) -> None:
    text = "model:\n  dtype: bfloat16\n  made_up: 3\n  model_config:\n    is_llama_config: true\n    num_hidden_layers: 4\n"
    text += "general:\n  seed: 1\nparallelism:\n  tp: 2\n  pp: 1\n  pp_engine: 1f1b\n  dp: null\n"
    assert unread([text.splitlines()], tmp_path / "a.yaml") == {"nanotron": {}}
    flags = ["--num-layers 4", "--tensor-model-parallel-size 2", "--lr 1e-4", "--micro-batch-size 1"]
    assert unread([flags], tmp_path / "a.txt") == {"Megatron-LM": {}}


@pytest.mark.parametrize(
    ("said", "plan"),
    [
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", [3, 4, 4, 3]),
        ("--account-for-embedding-in-pipeline-split", None), ("", None),
    ],
)  # fmt: skip
def test_an_embedding_that_counts_as_a_layer_divides_layers(said: str, plan: list[int] | None, tmp_path: Path) -> None:
    flags = f"--num-layers 14 --pipeline-model-parallel-size 4 --micro-batch-size 1 {said}"
    job = read(tmp_path, f"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py {flags}\n")
    assert job.plan.get("layer_split") == plan


@pytest.mark.parametrize(
    ("enabled", "precision"), [(("true", '"auto"'), "bf16"), (('"auto"', "true"), "fp16"), (('"auto"', "false"), None)]
)
def test_a_precision_that_is_on_wins_over_one_that_is_automatic(
    enabled: tuple[str, str], precision: str | None, tmp_path: Path
) -> None:
    narrow = f'"bf16": {{"enabled": {enabled[0]}}}, "fp16": {{"enabled": {enabled[1]}}}'
    job = read(tmp_path, specimens.DEEPSPEED_JSON.replace('"bf16": {"enabled": true}', narrow))
    assert job.plan["precision"] == precision


def test_messages_of_nemo_that_wait_are_told(tmp_path: Path) -> None:
    more = "  virtual_pipeline_model_parallel_size: 2\n  overlap_p2p_comm: false\n"
    assert read(tmp_path, specimens.NEMO_YAML + more).plan["overlap_pp"] is False


def test_a_spec_of_a_file_named_by_a_number_with_buckets_is_valid(tmp_path: Path) -> None:
    text = specimens.NEMO_YAML.replace("distributed_fused_adam}", "distributed_fused_adam, bucket_cap_mb: 125}")
    (tmp_path / "1.yaml").write_text(text, encoding="utf-8")
    done = sweep("init", tmp_path / "1.yaml", "-o", tmp_path / "o.yaml")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "o.yaml").read_text(encoding="utf-8")
    assert "name: '1'" in written
    assert "bucket_bytes: 131072000 B" in written


def in_model(said: str) -> str:
    return specimens.NEMO_YAML.replace("  micro_batch_size: 1\n", f"  micro_batch_size: 1\n  {said}\n")


@pytest.mark.parametrize(
    ("stated", "precision"),
    [("16", "fp16"), ("'16-mixed'", "fp16"), ("bf16-mixed", "bf16"), ("32", "fp32"), ("'32-true'", "fp32"), ("bf16", "bf16")],
)
def test_precisions_of_lightning_are_read(stated: str, precision: str, tmp_path: Path) -> None:
    job = read(tmp_path, specimens.NEMO_YAML.replace("precision: bf16", f"precision: {stated}"))
    assert job.plan["precision"] == precision


@pytest.mark.parametrize(
    ("said", "gated", "activation"),
    [
        ("activation: geglu", True, "gelu"), ("activation: fast-geglu", True, "gelu"), ("activation: gelu", False, "gelu"),
        ("activation: fast-swiglu", True, "silu"), ("gated_linear_unit: true\n  activation_func: silu", True, "silu"),
        ("gated_linear_unit: true\n  activation_func: torch.nn.functional.gelu", True, "gelu"),
    ],
)  # fmt: skip
def test_gated_activations_of_nemo_are_read(said: str, gated: bool, activation: str, tmp_path: Path) -> None:
    model = read(tmp_path, specimens.NEMO_YAML.replace("activation: fast-swiglu", said)).model
    assert (model["gated"], model["activation"]) == (gated, activation)


def test_an_activation_that_nothing_is_known_of_is_named(tmp_path: Path) -> None:
    assert named(tmp_path, specimens.NEMO_YAML.replace("fast-swiglu", "reglu")) == ["model.activation reglu"]


def named(tmp_path: Path, text: str) -> list[str]:
    """What is stated and not simulated."""
    said = [note.partition(": ")[2] for note in read(tmp_path, text).notes if note.startswith("stated, and no part")]
    assert len(said) < 2
    return [each for note in said for each in note.split(", ")]


FLAGS = "export NCCL_IB_SL=1 NCCL_DEBUG=INFO\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --micro-batch-size 1"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("--rampup-batch-size 16 16 1000", "rampup_batch_size 16 16 1000"), ("--moe-permute-fusion", "moe_permute_fusion"),
        ("--our-own-flag /home/somebody", "our_own_flag"), ("--timing-log-level 2", "timing_log_level 2"),
        ("--moe-flex-dispatcher-backend hybridep", "moe_flex_dispatcher_backend hybridep"), ("--lr 3e-4 --seed 1", ""),
        ("--muon-num-ns-steps 8", "muon_num_ns_steps 8"), ("--muon-num-ns-steps 5", ""), ("--timing-log-level 1", ""),
        ("--clip-grad 1.0", ""), ("--clip-grad 0.0", "clip_grad 0.0"), ("--cpu-offloading-weights", "cpu_offloading_weights"),
    ],
)  # fmt: skip
def test_what_may_change_a_step_and_has_no_part_is_named(said: str, line: str, tmp_path: Path) -> None:
    assert named(tmp_path, f"{FLAGS} {said}\n") == [*([line] if line else []), "NCCL_IB_SL 1"]


def test_what_a_condition_sets_is_named_too(tmp_path: Path) -> None:
    guarded = f'if [ "$FAST" = 1 ]; then\n  EXTRA="--moe-permute-fusion"\nfi\n{FLAGS} $EXTRA\n'
    assert "moe_permute_fusion" in named(tmp_path, guarded)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("optimizer: lion", "optimizer lion: not modelled"),
        ("cp_comm_type: [p2p, a2a]", "cp_comm_type ['p2p', 'a2a']: not modelled"),
        ("moe_token_dispatcher_type: allgather", "moe_token_dispatcher_type allgather: not modelled"),
        ("fp8: hybrid\n  fp8_recipe: custom", "fp8_recipe custom: not modelled"),
    ],
)
def test_words_that_are_not_modelled_are_named(said: str, line: str, tmp_path: Path) -> None:
    assert line in read(tmp_path, in_model(said)).notes


def test_two_sections_that_say_different_things_are_named(tmp_path: Path) -> None:
    more = "  data: {seq_length: 2048}\nddp: {sequence_parallel: true}\n"
    assert named(tmp_path, specimens.NEMO_YAML + more) == ["model.data.seq_length 2048"]


@pytest.mark.parametrize(
    ("axes", "shard"),
    [
        ("ici_fsdp_parallelism=32 ici_tensor_parallelism=8", 32), ("ici_fsdp_parallelism=8 dcn_fsdp_parallelism=2", 16),
        ("ici_fsdp_parallelism=8 ici_context_parallelism=2", 16), ("ici_data_parallelism=4", None), ("", 0),
    ],
)  # fmt: skip
def test_ranks_that_share_parameters_in_maxtext_are_told(axes: str, shard: int | None, tmp_path: Path) -> None:
    text = specimens.MAXTEXT_SCRIPT.replace("ici_fsdp_parallelism=32 ici_tensor_parallelism=8", axes)
    assert read(tmp_path, text).plan.get("dp_shard", 0) == shard


def test_a_model_of_maxtext_with_other_numbers_is_not_the_named_one(tmp_path: Path) -> None:
    text = specimens.MAXTEXT_SCRIPT.replace("steps=20", "override_model_config=true base_num_decoder_layers=8")
    job = read(tmp_path, text)
    assert (job.model, "model" in job.missing) == ({}, True)
    assert "base_num_decoder_layers 8" in named(tmp_path, text)


@pytest.mark.parametrize(
    ("said", "checkpointing"),
    [
        ("fsdp: full_shard\nfsdp_config: {activation_checkpointing: true}", "full"),
        ("seed: 1", "none"),
        ("finetuning_type: full", "full"),
        ("finetuning_type: full\ndisable_gradient_checkpointing: true", "none"),
    ],
)
def test_recompute_of_fsdp_and_of_llama_factory_by_itself_is_told(said: str, checkpointing: str, tmp_path: Path) -> None:
    text = specimens.TRAINER_YAML.replace("gradient_checkpointing: true\n", "").replace(
        "deepspeed: {zero_optimization: {stage: 3}}", said
    )
    assert read(tmp_path, text).plan["checkpointing"] == checkpointing


@pytest.mark.parametrize(
    ("said", "sharding"), [("hybrid_shard_zero2 auto_wrap", None), ("true", None), ("''", "none"), ("full_shard", "parameters")]
)
def test_words_of_fsdp_that_say_no_plan_leave_it_open(said: str, sharding: str | None, tmp_path: Path) -> None:
    text = specimens.TRAINER_YAML.replace("deepspeed: {zero_optimization: {stage: 3}}", f"fsdp: {said}")
    assert read(tmp_path, text).plan["sharding"] == sharding


@pytest.mark.parametrize(
    ("said", "precision"), [('["mx"]', None), ('["quantize.linear.float8"]', "fp8_tensorwise"), ("[]", "bf16")]
)
def test_converters_of_torchtitan_that_are_no_float8_leave_precision_open(
    said: str, precision: str | None, tmp_path: Path
) -> None:
    job = read(tmp_path, specimens.TOML.replace('flavor = "8B"\n', f'flavor = "8B"\nconverters = {said}\n'))
    assert job.plan["precision"] == precision


def test_modules_of_stages_of_torchtitan_are_told(tmp_path: Path) -> None:
    parts = [["tok_embeddings", *(f"layers.{n}" for n in range(7))], [f"layers.{n}" for n in range(7, 16)],
             [f"layers.{n}" for n in range(16, 25)], [*(f"layers.{n}" for n in range(25, 32)), "norm", "output"]]  # fmt: skip
    text = specimens.TOML.replace("pipeline_parallel_layers_per_stage = 8\n", f"module_fqns_per_model_part = {parts}\n")
    job = read(tmp_path, text)
    assert (job.plan["vpp"], job.plan["layer_split"]) == (2, [7, 9, 9, 7])


def test_the_model_that_a_trainer_names_is_told(tmp_path: Path) -> None:
    text = (
        specimens.TRAINER_YAML
        + "model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\nfinetuning_type: lora\nlora_rank: 8\n"
    )
    job = read(tmp_path, text)
    assert (job.model["layers"], job.model["lora"]["rank"]) == (32, 8)


MORE = {
    "Trainer YAML": "pure_bf16: true\nuse_galore: true\nflash_attn: fa2\npacking: true\n",
    "Primus YAML": "      use_turbo_attention: true\n      enable_primus_turbo: true\n      cross_entropy_fusion_impl: te\n",
    "NeMo YAML": "  megatron_amp_O2: false\n  cross_entropy_loss_fusion: true\n  fp8_wgrad: true\n",
    "llm-foundry YAML": "max_split_size_mb: 512\ncompile_config: {mode: x}\n",
    "torchtitan TOML": '[compile]\nenable = true\n[optimizer]\nname = "AdamW"\nimplementation = "foreach"\n',
    "GPT-NeoX YAML": "",
}
"""Further settings of their files."""
LAUNCHES = [name for name in specimens.FILES if name not in specimens.LOGS and name != "exported plan"]
LAUNCHES += ["Megatron-LM script", "torchtitan TOML", "MaxText script", "nanotron YAML", "DeepSpeed JSON"]


@pytest.mark.parametrize("name", dict.fromkeys(LAUNCHES))
def test_no_field_of_a_framework_is_lost(name: str, tmp_path: Path) -> None:
    text = specimens.FILES[name] + MORE.get(name, "")
    files = map(one_a_line, (text, text.replace(", kv_n_heads: 8", "")))  # beside which attn_type says nothing
    (lost,) = unread(files, tmp_path / "launch").values()
    assert not lost


@pytest.mark.parametrize("name", dict.fromkeys(LAUNCHES))
def test_an_unknown_field_is_named_in_every_format(name: str, tmp_path: Path) -> None:
    text = specimens.FILES[name]
    before, after = {
        "torchtitan TOML": ("[training]\n", "[training]\nmade_up = 3\n"), "MaxText script": ("steps=20", "made_up=3"),
        "DeepSpeed JSON": ('{"train_batch', '{"made_up": 3, "train_batch'), 
        "GPT-NeoX YAML": ('"num-layers"', '"made_up": 3, "num-layers"'),
        "Megatron-LM script": ("--our-own-flag", "--made-up"), "NeMo YAML": ("  num_layers", "  made_up: 3\n  num_layers"),
        "Megatron-LM YAML": ("  --num-layers", "  --made-up: 3\n  --num-layers"),
        "Primus YAML": ("      fp8:", "      made_up: 3\n      fp8:"), "nanotron YAML": ("tokens: {", "tokens: {made_up: 3, "),
    }.get(name, ("\n", "\nmade_up: 3\n"))  # fmt: skip
    assert [each.rpartition(".")[2] for each in named(tmp_path, text.replace(before, after, 1)) if "made_up" in each] == [
        "made_up 3"
    ]
