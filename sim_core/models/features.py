"""What a recipe sets, by the names of its options, as facts of a stack, fields of a plan, and capacities of experts."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sim_core.documents import Fields, Values
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.description import Model

YES = ("1", "true", "yes", "on", "enabled")
NO = ("0", "false", "no", "off", "none", "disabled", "")


class Recipe(NamedTuple):
    """What features mean. What is not in `facts`, `plan` or `experts` is left to others."""

    facts: Values  # of `Stack`
    plan: Values  # fields of a plan
    experts: Values  # of a model's `experts`


class Feature(NamedTuple):
    """One option: where it leads, by which name there, and how its value is read; a mapping where it sets several."""

    place: str  # "facts", "plan" or "experts"
    name: str
    read: Callable[[str], Any]
    what: str


def _reader(pick: Callable[[str], Any], expected: str) -> Callable[[str], Any]:
    """Reads a value by `pick`, which gives None for what is not `expected`."""

    def read(value: str) -> Any:
        if (found := pick(value)) is None:
            raise SpecError(f"found {shown(value)}, expected {expected}")
        return found

    return read


_switch = _reader(lambda value: {**dict.fromkeys(YES, True), **dict.fromkeys(NO, False)}.get(value.strip().lower()), "0 or 1")
FULL = r"(?:full|whole)(?:[ _-]?(?:iteration|layer|step))?(?: \(.*\))?|all"
"""Words for graphs that launch a whole layer or step: `full layer (enable_cuda_graph)`, `full_iteration:all`."""
WITHOUT_MODULES = ("mcore", "local", "transformer_engine", "te", *YES)
"""Implementations that take the whole layer where no module is named (Megatron-LM, --cuda-graph-scope)."""
CAPTURED = {"attention": {"attn", "attention"}, "router": {"moe_router", "router"}}
"""Modules of a layer by the words of a stack's `graphs`."""
UNCOUNTED = {"mlp", "moe", "mamba", "moe_preprocess"}
"""Modules whose launches cost little beside those."""


def _graphs(value: str) -> str | None:
    """`none`, `full`, or modules as in `transformer_engine:attn+moe_router+moe_preprocess`."""
    implementation, _, modules = (part.strip() for part in value.lower().partition(":"))
    if implementation in NO:
        return "none"
    named = re.split(r"[+,\s]+", modules) if modules else re.split(r"\s*[+,]\s*|\sand\s", implementation)
    if named[0] in WITHOUT_MODULES or any(re.fullmatch(FULL, word) for word in (implementation, *named)):
        return "full"
    captured = [ours for ours, theirs in CAPTURED.items() if theirs & set(named)]
    return " and ".join(captured) or "none" if captured or UNCOUNTED & set(named) else None


ATTENTION_SCALES: Mapping[str, float | dict[str, float]] = {
    "1": {"A100-80G-SXM": 2.0, "H100-SXM": 3.5, "H200-SXM": 3.5},
    "2": {"H100-SXM": 1.75, "H200-SXM": 1.75},
    "3": 1.0,
}
"""Time of a version of FlashAttention over that of the kernels measured on a device: on the A100 version 2, about twice as fast
as the first (arXiv 2307.08691, abstract); on Hopper version 3, 1.5 to 2.0 times as fast as the second (arXiv 2407.08608)."""
KERNELS = {
    "flash": True, "fused": True, "cudnn_flash_te": True, "sdpa": True, "unfused": False, "local": False, "dot_product": False,
    "eager": False, "math": False,
}  # fmt: skip
"""Words of attention's implementations (Megatron-LM, MaxText, transformers), and whether they are one kernel."""
ADAM_WIDTHS = {"fp32": 4.0, "float32": 4.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "fp8": 1.0, "uint8": 1.0}
FUSED_ADAM = 36.0
"""Bytes that the fused Adam moves of a weight with 12 of state (`Stack.optimizer_bytes`)."""
FLASH = r"(?:fa|flash(?:[ _-]?att(?:entio)?n)?)?[ _-]?v?([1-4])(?:\.\w+)*"


def _flash(value: str) -> Fields | None:
    """Whether core attention is one kernel, and of which major version (`2`, `v2.3`, `fa3`).

    A bare 1 is the switch of Megatron-LM's --use-flash-attn, whatever the version: the page's kernels stay.
    """
    word = value.strip().lower()
    if word in (*NO, *YES, *KERNELS):
        return {"flash_attention": word not in NO and KERNELS.get(word, True)}
    if (version := re.fullmatch(FLASH, word)) is not None:
        scale = ATTENTION_SCALES.get(version[1])
        return {"flash_attention": True} | ({} if scale is None else {"attention_scale": scale})
    return {} if word in ("auto", "autoselected") else None


def _number(value: str) -> float | None:
    try:
        return number if 0 < (number := float(value)) < 1e3 else None
    except ValueError:
        return None


def _block(value: str) -> str | None:
    return f"block:{int(value)}" if value.isascii() and value.isdigit() and 0 < int(value) < 1000 else None


DISPATCHERS = {
    "flex": r"flex|deep-?ep(?:\s?v?2)?|hybrid-?ep",
    "hierarchical": r"hierarchical|tutel|2dh",
    "alltoall": r"alltoall|all-to-all|all_to_all|a2a|nccl",
}
"""Names of the libraries that bring tokens to their experts, by the word of a plan's `dispatcher`."""


def dispatcher_named(name: str) -> str | None:
    """The plan's `dispatcher` by the name of a library; None if we do not know it."""
    return next((word for word, names in DISPATCHERS.items() if re.fullmatch(names, name.strip().lower())), None)


def _adam(value: str) -> dict[str, float] | None:
    """Adam's state by the types of main weights and two moments, as Megatron-LM's precision-aware optimizer keeps it: of main
    weights in fp32 the 16 bits that the bf16 weights lack (store_param_remainders), or fp16. Each byte is read and written."""
    widths = [ADAM_WIDTHS.get(word.strip().rpartition(".")[2], 0.0) for word in value.lower().split(",")]
    if len(widths) != 3 or not all(widths):
        return None
    state = 2.0 + widths[1] + widths[2]
    return {"adam_bytes": state, "optimizer_bytes": FUSED_ADAM - 2 * (12.0 - state)}


def _pure_bf16(value: str) -> dict[str, float]:
    """Weight, gradient and two moments of 16 bits each; Adam reads all four and writes three."""
    return {"weight_bytes": 2.0, "gradient_bytes": 2.0, "adam_bytes": 4.0, "optimizer_bytes": 14.0} if _switch(value) else {}


CP_COMM_TYPES = ("p2p", "all_gather", "a2a")
"""Words of a plan's `cp_comm_type` that need no second number."""


_EXPERTS_LIBRARY = _reader(dispatcher_named, "alltoall, deepep, hybridep or hierarchical")
_CP_WAY = _reader(dict(zip(CP_COMM_TYPES, CP_COMM_TYPES, strict=True)).get, ", ".join(CP_COMM_TYPES))
_GRAPHS = _reader(_graphs, "none, full_iteration, or modules such as transformer_engine:attn+moe_router")
_WIRE = _reader({"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}.get, "fp32 or bf16")
LOSSES: Mapping[str, Fields] = {
    "te": {"fused_loss": True, "loss_bytes": (6.0, 4.0), "logit_bytes": 2.0},
    "native": {"fused_loss": True, "loss_bytes": None, "logit_bytes": 8.0},
    **{word: {"fused_loss": True} for word in ("fused", "liger", *YES)},
    **{word: {"fused_loss": False} for word in ("unfused", "torch", *NO)},
}
"""Kinds of the loss. Transformer Engine's reads the logits twice in 16 bits and writes their gradients in their place, which
the backward scales (TransformerEngine common/triton/cross_entropy.py); Megatron-LM's own takes fp32."""
_LOSS = _reader(LOSSES.get, "te, native, or unfused")
_FLASH = _reader(_flash, "0, 1, or the version of FlashAttention")
_ADAM = _reader(_adam, "types of main weights and two moments, such as fp32,bf16,bf16")
_SHARE = _reader(lambda value: float(value) if re.fullmatch(r"[01](?:\.\d+)?|0?\.\d+", value) else None, "a part of 1")
_ABOVE_0, _LAYERS = _reader(_number, "a number above 0"), _reader(_block, "a number of layers")
FEATURES: Mapping[str, Feature] = {
    "flash_attention": Feature("facts", "flash_attention", _FLASH, "core attention is one kernel, of this version"),
    "use_flash_attn": Feature("facts", "flash_attention", _switch, "core attention is one kernel"),
    "cuda_graph": Feature("facts", "graphs", _GRAPHS, "none, full_iteration, or the modules of a layer that graphs launch"),
    "fused_grouped_mlp": Feature("facts", "fused_experts", _switch, "the experts' GEMMs, activation and casts are one kernel"),
    "router_fusion": Feature("facts", "fused_router", _switch, "kernels of the router are fused"),
    "fp8_attention": Feature("facts", "fp8_attention", _switch, "core attention in 8 bits"),
    "memory_efficient_permute": Feature(
        "facts", "expert_outputs_kept", lambda value: not _switch(value), "probabilities before the experts' second GEMM"
    ),
    "dispatcher": Feature("plan", "dispatcher", _EXPERTS_LIBRARY, "how tokens reach their experts: alltoall, deepep, hybridep"),
    "ep_overlap": Feature("plan", "overlap_ep", _switch, "dispatch and combine beside compute of another micro-batch"),
    "shared_expert_overlap": Feature("plan", "overlap_shared_experts", _switch, "shared experts beside dispatch and combine"),
    "tp_overlap": Feature("plan", "overlap_tp", _switch, "tensor-parallel messages beside GEMMs"),
    "grad_overlap": Feature("plan", "overlap_grad", _switch, "gradients travel beside the backward"),
    "param_overlap": Feature("plan", "overlap_param", _switch, "parameters travel beside the forward"),
    "overlap_p2p": Feature("plan", "overlap_pp", _switch, "messages between interleaved stages beside compute"),
    "grad_reduce_dtype": Feature("plan", "gradient_precision", _WIRE, "precision in which gradients travel"),
    "cross_entropy": Feature("facts", "fused_loss", _LOSS, "whether the loss is one kernel, by its name: te, native, unfused"),
    "pure_bf16": Feature("facts", "adam_bytes", _pure_bf16, "weights, gradients and moments in 16 bits, no fp32 copy"),
    "adam_dtypes": Feature("facts", "adam_bytes", _ADAM, "types of Adam's main weights and two moments: fp32,bf16,bf16"),
    "cp_comm_type": Feature("plan", "cp_comm_type", _CP_WAY, "how context-parallel ranks compute attention"),
    "fp8_activation_input": Feature(
        "facts",
        "activation_input_bytes",
        lambda value: 1.0 if _switch(value) else 2.0,
        "what enters the activation is kept in 8 bits",
    ),
    "activation_offload": Feature("plan", "activation_offload", _SHARE, "part of the activations that goes to the host"),
    "fused_norms": Feature("facts", "fused_norms", _switch, "a norm is part of the linear layer that reads it"),
    "offload_stages": Feature("facts", "offload_stages", _ABOVE_0, "virtual stages of offloaded activations in transit"),
    "whole_qkv": Feature("facts", "whole_qkv_kept", _switch, "values are a view of what the projection put out"),
    "recompute_layers": Feature("plan", "checkpointing", _LAYERS, "layers of a stage that run again as a whole"),
    "capacity_factor": Feature("experts", "capacity_factor", _ABOVE_0, "tokens of an expert over the mean, at most"),
    "pad_to_capacity": Feature("experts", "pad_to_capacity", _switch, "every expert computes its full capacity"),
}
"""The options that change what is simulated; the other names of some are in ALIASES."""
ALIASES: Mapping[str, str] = {
    "flash_attention_version": "flash_attention",
    "attention_backend": "flash_attention",
    "attn_implementation": "flash_attention",
    "attention": "flash_attention",
    "cuda_graph_impl": "cuda_graph",
    "fp8_dot_product_attention": "fp8_attention",
    "activation_func_fp8_input_store": "fp8_activation_input",
    "cutedsl_fused_grouped_mlp": "fused_grouped_mlp",
    "fused_grouped_gemm": "fused_grouped_mlp",
    "moe_a2a_overlap": "ep_overlap",
    "overlap_moe_expert_parallel_comm": "ep_overlap",
}


def split_features(text: str) -> dict[str, str]:
    """`key=value;...` as a mapping."""
    return {key.strip(): value.strip() for key, _, value in [part.partition("=") for part in text.split(";")] if key.strip()}


def read_features(features: Mapping[str, object], *, others: bool = False) -> Recipe:
    """What features mean; `others`: names that are none of FEATURES are left out. Raises SpecError: `name: what`."""
    read: dict[str, Fields] = {"facts": {}, "plan": {}, "experts": {}}
    for name, value in features.items():
        feature = FEATURES.get(ALIASES.get(name, name))
        if feature is None:
            if others:
                continue
            raise SpecError(f"{name}: unknown feature, {nearest(str(name), (*FEATURES, *ALIASES))}")
        try:
            found = feature.read(str(value))
        except SpecError as error:
            raise SpecError(f"{name}: {error}") from None
        read[feature.place] |= found if isinstance(found, dict) else {feature.name: found}
    return Recipe(**read)


def with_capacity(model: Model, recipe: Recipe) -> Model:
    """The model with the capacity of its experts that a recipe sets."""
    if model.experts is None or not recipe.experts:
        return model
    return model.model_copy(update={"experts": model.experts.model_copy(update=dict(recipe.experts))})
