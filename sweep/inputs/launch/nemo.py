"""YAML of NeMo (both generations) and Megatron-Bridge: recipes whose keys are the names of Megatron-LM's arguments."""

import re
from collections.abc import Mapping
from typing import Any, Final

from sim_core import SimError, model_of_dump
from sweep.inputs.launch.job import Launch, missing_of
from sweep.inputs.launch.megatron import numbers_of, plan_of
from sweep.inputs.text import model_note

SIGN: Final = re.compile(r"^\s+(?:tensor_model_parallel_size|pipeline_model_parallel_size):\s*\d", re.MULTILINE)
RENAMED: Final = {
    "encoder_seq_length": "seq_length", "sequence_length": "seq_length", "num_moe_experts": "num_experts",
    "activations_checkpoint_granularity": "recompute_granularity", "activations_checkpoint_num_layers": "recompute_num_layers",
    "bias": "add_bias_linear", "layernorm_type": "normalization", "vocabulary_size": "vocab_size",
    "params_global_batch_size": "global_batch_size",
}  # fmt: skip
"""Names that recipes have, and those of Megatron-LM."""
NORMS: Final = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}
DEEPEST: Final = 12


def read_yaml(path: str, document: Mapping[str, Any]) -> Launch:
    """The plan and the model of a recipe."""
    values: dict[str, str] = {}
    _collect(document, values, 0)
    _translate(values)
    devices, nodes = _number(values, "devices") or _number(values, "gpus_per_node"), _number(values, "num_nodes") or 1
    plan = plan_of(values, devices * nodes if devices else _number(values, "num_gpus"))
    notes: list[str] = []
    model: dict[str, Any] = {}
    vocabulary = _number(values, "vocab_size")
    try:
        if "num_layers" in values:
            model = numbers_of(model_of_dump(values, path, {"vocabulary": vocabulary} if vocabulary else {}))
        else:
            notes.append("model: its numbers are not in this file; give --model")
    except SimError as error:
        notes.append(model_note(error, path))
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
    for value in section.values():
        if isinstance(value, Mapping) and depth < DEEPEST:
            _collect(value, values, depth + 1)


def _translate(values: dict[str, str]) -> None:
    """Say in Megatron-LM's words what recipes say in their own."""
    if "swiglu" in values.get("activation", "") or (
        values.get("gated_linear_unit") == "True" and "silu" in values.get("activation_func", "silu")
    ):
        values["swiglu"] = "True"
    elif values.get("activation") == "squared-relu":
        values["squared_relu"] = "True"
    if values.get("share_embeddings_and_output_weights") == "False":
        values["untie_embeddings_and_output_weights"] = "True"
    if _number(values, "num_query_groups"):
        values["group_query_attention"] = "True"
    values["normalization"] = NORMS.get(values.get("normalization", "layernorm").lower(), "LayerNorm")
    precision = f"{values.get('precision', '')} {values.get('mixed_precision', '')}".lower()
    for name in ("bf16", "fp16"):
        if name in precision and "fp16" not in values:
            values[name] = "True"
    values.setdefault("max_position_embeddings", values.get("seq_length", "None"))
    if values.get("name") == "distributed_fused_adam":
        values["use_distributed_optimizer"] = "True"


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name, "")
    return int(text) if text.isdigit() and 0 < len(text) < 10 and int(text) else None
