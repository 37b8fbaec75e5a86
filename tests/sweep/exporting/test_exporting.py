"""Exported flags against facts of Megatron-LM: its parser's actions, its validators' verdicts; and our reader of its flags."""

from __future__ import annotations

import argparse
import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import SpecError, megatron_arguments, model_names, read_model
from sweep.evaluation.preparation import prepare
from sweep.exporting.launched import launched
from sweep.exporting.megatron import ARRAY, megatron_text, without_flag
from sweep.exporting.torchtitan import torchtitan_flags, torchtitan_text
from sweep.frameworks.megatron import flags_of_plan, refused
from sweep.frameworks.plan import Launched
from sweep.inputs.launch.megatron import read_script
from sweep.spec.spec import SweepSpec, load_spec
from tests.sweep.commands import sweep

FACTS: dict[str, Any] = json.loads((Path(__file__).parent / "megatron_facts.json").read_text(encoding="utf-8"))
TYPES = {"int": int, "float": float, "str": str, "moe_freq_type": str, "tuple_type": str}


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    """The part of Megatron-LM's parser that we write for."""
    found = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for flag, facts in FACTS["flags"].items():
        if facts["nargs"] == 0:
            found.add_argument(flag, action="store_true")
        else:
            found.add_argument(flag, type=TYPES[facts["type"]], choices=facts["choices"], nargs=facts["nargs"])
    return found


def words_of(text: str) -> list[str]:
    """The words of the array in an exported file, as bash splits them."""
    return shlex.split(text.partition(f"{ARRAY}=(")[2].rpartition(")")[0])


def as_flags(words: list[str]) -> dict[str, tuple[str, ...]]:
    flags: dict[str, tuple[str, ...]] = {}
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            flags[flag] = (value,) if equals else ()
        else:
            last = list(flags)[-1]
            flags[last] = (*flags[last], word)
    return flags


@pytest.mark.parametrize("case", FACTS["cases"], ids=lambda case: case[0][:60])
def test_what_its_validators_refuse_is_refused(case: tuple[str, dict[str, Any], str]) -> None:
    """`later`: accepted there, but the model cannot be built or its groups cannot be made."""
    arguments, options, verdict = case
    flags = as_flags(FACTS["base"].split())
    if options.get("moe"):
        flags |= {"--num-experts": ("8",), "--moe-router-topk": ("2",)}
    for flag in options.get("drop", []):
        del flags[flag]
    flags |= as_flags(arguments.split())
    assert bool(refused(flags, options.get("world", 64))) == (verdict != "accepted")


@pytest.mark.parametrize("name", model_names())
def test_a_model_survives_its_flags(name: str, parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    """Parsed as Megatron-LM does, and read back to the same numbers, but for what has no flag and says so."""
    model = read_model(name)
    flags = megatron_arguments.model_flags(model, model.sequence or 2048)
    words = [word for flag, values in flags.items() for word in (flag, *values)]
    parser.parse_args(words)
    path = tmp_path / "flags.sh"
    path.write_text(" ".join(map(shlex.quote, words)))
    ours, theirs = (one.model_dump() for one in (model, read_model(str(path))))
    differing = {key for key in ours if ours[key] != theirs[key]} - {"name", "source", "sequence", "batch_tokens"}
    if model.window is not None and not model.window.chunked and "window" in differing:  # the same layers, said otherwise
        back = read_model(str(path))
        assert [back.layer_units[u].window for u in back.unit_of_layer] == [
            model.layer_units[u].window for u in model.unit_of_layer
        ]
        differing.remove("window")
    assert bool(differing) <= bool(without_flag(model)), differing


SPEC: dict[str, Any] = {
    "name": "out",
    "model": "llama3-70b",
    "workload": {"sequence": 8192},
    "hardware": {"preset": "H100-SXM", "memory": "10 TB"},
    "axes": {
        "tp": [1, 4],
        "cp": [1, 2],
        "pp": [1, 4],
        "vpp": [1, 5],
        "checkpointing": ["none", "selective", "full", "block:2"],
    },
    "fixed": {"all_gpus": 64, "global_batch": 128, "micro_batch": 2, "overlap_tp": True, "bucket_bytes": "100 MB"},
}


def plan_of(changes: dict[str, Any] | None = None, number: int = 0, base: dict[str, Any] = SPEC) -> Launched:
    document = {**base, "axes": {**base["axes"]}, "fixed": {**base["fixed"]}}
    for key, value in (changes or {}).items():
        document["axes"].pop(key, None)
        document["fixed"][key] = value
    return launched(prepare(SweepSpec.model_validate(document), Path.cwd()), number)


def test_a_plan_survives_its_flags(parser: argparse.ArgumentParser) -> None:
    """Every plan that can run: parsed as Megatron-LM does, its arguments say the plan."""
    spec = SweepSpec.model_validate(SPEC)
    prepared = prepare(spec, Path.cwd())
    told = 0
    for number in range(0, prepared.sweep.space.size, 3):
        try:
            plan = launched(prepared, number)
        except SpecError:
            continue  # vpp without a pipeline
        told += 1
        args = parser.parse_args(words_of(megatron_text(plan)))
        row = plan.row
        assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size) == (row["tp"], row["pp"])
        assert args.context_parallel_size == plan.fields["cp"]
        assert (args.num_virtual_stages_per_pipeline_rank or 1) == row["vpp"]
        assert (args.micro_batch_size, args.global_batch_size) == (row["micro_batch"], row["global_batch"])
        assert args.sequence_parallel == args.tp_comm_overlap == (row["tp"] > 1)
        recompute = (args.recompute_granularity, args.recompute_method, args.recompute_num_layers)
        expected = {"none": (None,) * 3, "selective": ("selective", None, None), "full": ("full", "uniform", 1)}
        assert recompute == expected.get(row["checkpointing"], ("full", "block", 2))
        assert args.use_distributed_optimizer
        assert args.overlap_grad_reduce
        assert args.overlap_param_gather
        assert args.ddp_bucket_size == 25_000_000  # elements of 4 bytes
    assert told > 10


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"cp": 4, "cp_comm_type": "a2a+p2p", "cp_a2a_size": 2}, {"--hierarchical-context-parallel-sizes": ("2", "2")}),
        ({"precision": "fp8_blockwise"}, {"--fp8-recipe": ("blockwise",), "--bf16": ()}),
        (
            {"pp": 4, "vpp": 1, "layer_split": [19, 21, 21, 19]},
            {"--pipeline-model-parallel-layout": ("Et*19|t*21|t*21|t*19L",)},
        ),
        ({"sharding": "parameters", "pp": 1, "vpp": 1}, {"--data-parallel-sharding-strategy": ("optim_grads_params",)}),
        ({"checkpointing": "layernorm+mlp"}, {"--recompute-modules": ("layernorm", "mlp")}),
        ({"sharding": "none", "overlap_param": False}, {"--overlap-grad-reduce": ()}),
    ],
)
def test_fields_have_their_flags(changes: dict[str, Any], flags: dict[str, Any], parser: argparse.ArgumentParser) -> None:
    text = megatron_text(plan_of({"tp": 1, "checkpointing": "none", "overlap_tp": False, "vpp": 1, **changes}))
    words = words_of(text)
    parser.parse_args(words)
    assert as_flags(words).items() >= flags.items()
    assert ("unset CUDA_DEVICE_MAX_CONNECTIONS" in text) == (changes.get("sharding") == "parameters")


def test_fp16_has_no_gradients_in_bf16(parser: argparse.ArgumentParser) -> None:
    words = words_of(megatron_text(plan_of({"precision": "fp16", "gradient_precision": "bf16"})))
    parser.parse_args(words)
    assert "--fp16" in words
    assert "--grad-reduce-in-bf16" not in words


def test_experts_are_launched_as_they_are_simulated(parser: argparse.ArgumentParser) -> None:
    base = {**SPEC, "model": "mixtral-8x7b", "workload": {"sequence": 4096}, "axes": {"tp": [2]}}
    fixed = {"ep": 8, "dispatcher": "flex", "all_gpus": 64, "global_batch": 64, "overlap_tp": False, "overlap_ep": True}
    args = parser.parse_args(words_of(megatron_text(plan_of(base={**base, "fixed": fixed}))))
    assert (args.num_experts, args.expert_model_parallel_size, args.expert_tensor_parallel_size) == (8, 8, 1)
    assert (args.moe_token_dispatcher_type, args.sequence_parallel) == ("flex", True)
    with pytest.raises(SpecError, match="Megatron-LM has no dispatcher hierarchical"):
        flags_of_plan(plan_of(base={**base, "fixed": fixed | {"dispatcher": "hierarchical"}}))


def test_a_plan_that_it_refuses_names_the_rule() -> None:
    base = {**SPEC, "model": "llama3-8b", "workload": {"sequence": 4096, "sequence_parallel": False}, "axes": {"tp": [2]}}
    fixed = {"all_gpus": 64, "global_batch": 64, "overlap_tp": True}
    with pytest.raises(SpecError, match="Megatron-LM refuses it: --tp-comm-overlap needs --sequence-parallel"):
        megatron_text(plan_of(base={**base, "fixed": fixed}))
    with pytest.raises(SpecError, match="Megatron-LM has no schedule gpipe, only 1f1b"):
        flags_of_plan(plan_of({"schedule": "gpipe", "pp": 4, "vpp": 1}))


def test_a_rack_is_launched_tray_by_tray() -> None:
    """torchrun starts the GPUs of one operating system, which has 4 of the 72 of an NVLink domain."""
    base = {**SPEC, "hardware": {"preset": "GB200-NVL72", "memory": "10 TB"}}
    assert "# torchrun --nproc-per-node 4 --nnodes 64 " in megatron_text(
        plan_of({"all_gpus": 256, "global_batch": 1024}, base=base)
    )
    assert "# torchrun --nproc-per-node 8 --nnodes 32 " in megatron_text(plan_of({"all_gpus": 256, "global_batch": 1024}))


def test_layers_of_a_file_are_written() -> None:
    """A workload file holds no model: of its sizes only the number of layers is known."""
    spec = Path(__file__).parents[3] / "examples" / "gpt2_ddp.yaml"
    plan = launched(prepare(load_spec(spec), spec.parent), 1015)
    assert "    --num-layers 36\n" in megatron_text(plan)


def test_what_has_no_flag_is_said() -> None:
    text = megatron_text(plan_of({"vpp": 1, "device_speed": 1.2, "straggler_factor": 1.1}))
    assert "# Without a flag: device_speed 1.2" in text
    assert "# Without a flag: straggler_factor 1.1 on stage 0" in text


def test_no_choice_of_a_plan_is_dropped_in_silence() -> None:
    """Each field with another value than its default changes the file, or is told in a comment."""
    chosen = {"gradient_precision": "bf16", "post_validation": True, "overlap_grad": False, "overlap_param": False}
    base = {**SPEC, "workload": {"sequence": 8192, "stack": "torchtitan"}, "axes": {"pp": [4]}}
    base["fixed"] = {"tp": 2, "all_gpus": 64, "global_batch": 64} | chosen
    text = torchtitan_text(plan_of(base=base))
    missing = [f"{name} {value}" for name, value in chosen.items() if f"# Without a key: {name} {value}\n" not in text]
    assert not missing


TITAN_KEYS: dict[str, dict[str, type]] = {  # of v0.2.2
    "parallelism": {
        "data_parallel_replicate_degree": int, "data_parallel_shard_degree": int, "fsdp_reshard_after_forward": str,
        "tensor_parallel_degree": int, "enable_async_tensor_parallel": bool, "pipeline_parallel_degree": int,
        "pipeline_parallel_first_stage_less_layers": int, "pipeline_parallel_last_stage_less_layers": int,
        "pipeline_parallel_layers_per_stage": int, "pipeline_parallel_schedule": str, "pipeline_parallel_microbatch_size": int,
        "context_parallel_degree": int, "expert_parallel_degree": int, "expert_tensor_parallel_degree": int,
    },
    "model": {"name": str, "flavor": str},
    "training": {"local_batch_size": int, "global_batch_size": int, "seq_len": int},
    "activation_checkpoint": {"mode": str},
    "compile": {"enable": bool},
}  # fmt: skip


@pytest.mark.parametrize(("schedule", "order"), [("1f1b", [0, 1, 2, 3]), ("zb-v", [0, 1, 3, 2])])
def test_torchtitan_lists_the_modules_of_unequal_stages(schedule: str, order: list[int]) -> None:
    """All layers once, in order, between embedding and head; a chunk of a V goes back from the last rank (v0.2.2:
    module_fqns_per_model_part). A flag cannot hold a list of lists."""
    fixed = {"pp": 2, "vpp": 2, "all_gpus": 16, "global_batch": 64, "tp": 2, "schedule": schedule, "layer_split": "balanced"}
    base: dict[str, Any] = {**SPEC, "model": "llama3-8b", "workload": {"sequence": 8192, "stack": "torchtitan"}, "axes": {}}
    plan = plan_of(base={**base, "fixed": {**fixed, "layers": 30}})
    parts = tomllib.loads(torchtitan_text(plan))["parallelism"]
    modules = parts["module_fqns_per_model_part"]
    assert [name for part in modules for name in part] == [
        "tok_embeddings", *(f"layers.{layer}" for layer in range(30)), "norm", "output",
    ]  # fmt: skip
    places = [(number // 2, number % 2) for number in order]  # chunk and rank of each part
    held = [sum(name.startswith("layers.") for name in part) for part in modules]
    assert held == [plan.layers[rank][chunk] for chunk, rank in places]
    assert len(set(held)) == 2
    assert "pipeline_parallel_layers_per_stage" not in parts
    with pytest.raises(SpecError, match="listed in a file"):
        torchtitan_flags(plan)


@pytest.mark.parametrize("pp", [1, 4])
def test_torchtitan_reads_the_file(pp: int) -> None:
    """Keys and types of v0.2.2, degrees that make up the world, batches that divide."""
    base: dict[str, Any] = {**SPEC, "workload": {"sequence": 8192, "stack": "torchtitan"}, "axes": {"pp": [pp]}}
    fixed: dict[str, Any] = {"tp": 2, "cp": 2, "all_gpus": 64, "dp_shard": 16 // pp, "global_batch": 64}
    fixed |= {"checkpointing": "full"}
    text = torchtitan_text(plan_of(base={**base, "fixed": fixed}))
    found = tomllib.loads(text)
    assert all(type(value) is TITAN_KEYS[section][key] for section, keys in found.items() for key, value in keys.items())
    degrees = found["parallelism"]
    sizes = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "context_parallel", "pipeline_parallel")
    product = 1
    for name in sizes:
        product *= degrees[f"{name}_degree"]
    assert product == 64
    batch, local = found["training"]["global_batch_size"], found["training"]["local_batch_size"]
    assert batch % (local * degrees["data_parallel_replicate_degree"] * degrees["data_parallel_shard_degree"]) == 0
    assert degrees["fsdp_reshard_after_forward"] == ("always" if pp == 1 else "never")
    assert "v0.2.2" in text.splitlines()[1]
    if pp > 1:
        assert degrees["pipeline_parallel_layers_per_stage"] * pp == 80
        assert local % degrees["pipeline_parallel_microbatch_size"] == 0


def test_from_a_result_to_a_file(tmp_path: Path) -> None:
    """The command: the best plan of a folder of results, and the same plan of its spec."""
    spec = tmp_path / "s.yaml"
    spec.write_text(yaml.safe_dump({**SPEC, "axes": {"tp": [1, 2]}, "fixed": {**SPEC["fixed"], "pp": 4, "vpp": 1}}))
    assert sweep("run", spec, "--out", tmp_path / "out", "--workers", 0, "--top", 0).returncode == 0
    best = sweep("export", tmp_path / "out", "--plan", "best", "-o", tmp_path / "flags.sh")
    assert best.returncode == 0, best.stderr
    told = sweep("rank", tmp_path / "out", "--top", 1, "--format", "json").stdout
    number = json.loads(told)[0]["plan"]
    assert sweep("export", spec, "--plan", number).stdout == (tmp_path / "flags.sh").read_text()
    data = json.loads(sweep("export", tmp_path / "out", "--plan", number, "--format", "json").stdout)
    assert (data["plan"], data["fields"]["pp"], data["model"]["layers"]) == (number, 4, 80)
    assert read_model(str(tmp_path / "flags.sh")).layers == 80
    refused_ = sweep("export", spec, "--plan", "best")
    assert (refused_.returncode, refused_.stderr.count("\n")) == (2, 1)


HYBRID: dict[str, Any] = {
    **SPEC, "model": "nemotron-h-8b", "axes": {"pp": [4]},
    "fixed": {"tp": 4, "all_gpus": 64, "global_batch": 128, "micro_batch": 1, "layer_split": "balanced_cost"},
}  # fmt: skip


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("model", ["nemotron-h-8b", "gemma3-27b", "qwen3-next-80b-a3b"])
def test_layers_divided_by_cost_are_launched_so(model: str, vpp: int, parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    """As a layout, or as a pattern cut into stages; read back, it is the same plan and the same model."""
    fixed = {**HYBRID["fixed"], **({"ep": 8, "tp": 1} if model.startswith("qwen") else {})}
    plan = plan_of({"vpp": vpp}, base={**HYBRID, "model": model, "fixed": fixed})
    stages = [stage[chunk] for chunk in range(vpp) for stage in plan.layers]
    assert len({*stages}) > 1
    text = megatron_text(plan)
    parser.parse_args(words_of(text))
    patterned = model == "nemotron-h-8b"
    assert ("--pipeline-model-parallel-layout" in text) != patterned
    assert ("pretrain_hybrid.py" in text) == ("--hybrid-layer-pattern" in text) == patterned
    back = read_script(str(tmp_path / "flags.sh"), text)
    assert (back.plan["vpp"], back.plan["layer_split"]) == (vpp, stages)
    assert back.model["layers"] == sum(stages)
    if patterned:
        assert back.model["pattern"].count("|") == 4 * vpp - 1
        assert back.model["pattern"].replace("|", "") == read_model(model).pattern


def test_stages_of_a_pattern_that_it_refuses() -> None:
    flags = {"--hybrid-layer-pattern": ("M-|M*|--",), "--pipeline-model-parallel-size": ("2",), "--mamba-num-groups": ("8",)}
    assert refused(flags, 8) == ["pp must divide the parts of --hybrid-layer-pattern"]
    sizes = {"--tensor-model-parallel-size": ("16",), "--num-attention-heads": ("16",), "--mamba-num-heads": ("32",)}
    assert "tp must divide --mamba-num-groups" in refused({**flags, **sizes}, 32)
