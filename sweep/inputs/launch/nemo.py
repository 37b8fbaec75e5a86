"""YAML of NeMo (both generations) and Megatron-Bridge: recipes whose keys are the names of Megatron-LM's arguments."""

import re
from collections.abc import Mapping
from typing import Any, Final

from sim_core import model_of_dump
from sweep.inputs.arguments import OFF, whole
from sweep.inputs.launch.job import Launch, missing_of
from sweep.inputs.launch.megatron import NUMBERED, left_open, numbers_told, plan_of

SIGN: Final = re.compile(r"^\s+(?:tensor_model_parallel_size|pipeline_model_parallel_size):\s*\d", re.MULTILINE)
RENAMED: Final = {
    "encoder_seq_length": "seq_length", "sequence_length": "seq_length", "num_moe_experts": "num_experts",
    "activations_checkpoint_granularity": "recompute_granularity", "activations_checkpoint_num_layers": "recompute_num_layers",
    "bias": "add_bias_linear", "layernorm_type": "normalization", "vocabulary_size": "vocab_size",
    "params_global_batch_size": "global_batch_size", "overlap_grad_sync": "overlap_grad_reduce",
    "overlap_param_sync": "overlap_param_gather", "ub_tp_comm_overlap": "tp_comm_overlap",
}  # fmt: skip
"""Names that recipes have, and those of Megatron-LM."""
NORMS: Final = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}
RECIPES: Final = {"current": "tensorwise", "mxfp8": "mxfp8", "subchannel": "blockwise"}
"""Words in the names of Megatron-Bridge's mixed precisions, such as bf16_with_fp8_current_scaling_mixed."""
REFERENCE: Final = re.compile(r"\$\{\.*(?:\w+\.)*(\w+)\}")
PRODUCT: Final = re.compile(r"\$\{multiply:\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\}")
DEEPEST: Final = 12


def read_yaml(path: str, document: Mapping[str, Any]) -> Launch:
    """The plan and the model of a recipe."""
    values: dict[str, str] = {}
    _collect(document, values, 0)
    _translate(values)
    devices, nodes = (
        whole(values, "devices") or whole(values, "gpus_per_node"),
        whole({"num_nodes": "1", **values}, "num_nodes"),
    )
    flags = {f"--{name.replace('_', '-')}": value for name, value in values.items()}
    known = {
        flag for flag, value in flags.items() if "$" not in value and (value.isdigit() or value in OFF or flag not in NUMBERED)
    }
    unset = [flag for flag in flags if flag not in known]
    plan = left_open(plan_of(values, devices * nodes if devices and nodes else whole(values, "num_gpus")), unset)
    notes: list[str] = []
    model: dict[str, Any] = {}
    vocabulary = whole(values, "vocab_size")
    if "num_layers" in values:
        own = {"vocabulary": vocabulary} if vocabulary else {}
        model, why = numbers_told(lambda given: model_of_dump(values, path, {**own, **given}), path)
        notes += why
    else:
        notes.append("model: its numbers are not in this file; give --model")
    return Launch(
        path=path, framework="NeMo", plan=plan, model=model, stack="nemo", missing=missing_of(plan, model), notes=tuple(notes),
        kept=(),
    )  # fmt: skip


def _collect(section: Mapping[str, Any], values: dict[str, str], depth: int) -> None:
    """Keys and values of all sections as Megatron-LM prints them; of a key in several sections the outermost counts."""
    for key, value in section.items():
        listed = isinstance(value, list) and all(isinstance(each, int | str) for each in value)
        if listed or not isinstance(value, Mapping | list):
            values.setdefault(RENAMED.get(str(key), str(key)), str(value))
        if key == "name" and value == "distributed_fused_adam":
            values["use_distributed_optimizer"] = "True"
    for value in section.values():
        if isinstance(value, Mapping) and depth < DEEPEST:
            _collect(value, values, depth + 1)


def _translate(values: dict[str, str]) -> None:
    """Say in Megatron-LM's words what recipes say in their own."""
    for _ in range(3):  # a reference to a product of references
        values |= {name: _resolved(value, values) for name, value in values.items() if "${" in value}
    if "swiglu" in values.get("activation", "") or (
        values.get("gated_linear_unit") == "True" and "silu" in values.get("activation_func", "silu")
    ):
        values["swiglu"] = "True"
    elif values.get("activation") == "squared-relu":
        values["squared_relu"] = "True"
    if values.get("share_embeddings_and_output_weights") == "False":
        values["untie_embeddings_and_output_weights"] = "True"
    if whole(values, "num_query_groups"):
        values["group_query_attention"] = "True"
    values["normalization"] = NORMS.get(values.get("normalization", "layernorm").lower(), "LayerNorm")
    precision = f"{values.get('precision', '')} {values.get('mixed_precision', '')}".lower()
    for name in ("bf16", "fp16"):
        if name in precision and "fp16" not in values:
            values[name] = "True"
    if "fp8" in precision and values.get("fp8", "None") in OFF:
        values["fp8"] = "hybrid"
        values["fp8_recipe"] = next((recipe for word, recipe in RECIPES.items() if word in precision), "delayed")
    values.setdefault("max_position_embeddings", values.get("seq_length", "None"))


def _resolved(text: str, values: Mapping[str, str]) -> str:
    """A value with references to whole numbers of the file put in, and their products worked out."""
    text = REFERENCE.sub(lambda match: values[match[1]] if whole(values, match[1]) is not None else match[0], text)
    return PRODUCT.sub(lambda match: str(int(match[1]) * int(match[2])), text)
