"""What whole public folders of launch files showed to be lost: each field in the form of those files."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.unread_fields import unread
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
    assert list(unread(text.splitlines(), "nanotron", tmp_path / "a.yaml")) == ["model.made_up"]
    flags = ["--num-layers 4", "--tensor-model-parallel-size 2", "--lr 1e-4", "--micro-batch-size 1"]
    assert list(unread(flags, "megatron", tmp_path / "a.txt")) == []


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
