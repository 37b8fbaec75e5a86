"""Words of NeMo (both generations) and Megatron-Bridge: names of Megatron-LM's arguments, and what recipes call otherwise."""

import re
from pathlib import Path

from sim_core import OFF, Dump, Fields, megatron_arguments as model, whole_of
from sim_core.documents import shipped_document
from sweep.frameworks import megatron_choices as choices, megatron_sizes as sizes
from sweep.frameworks.megatron import EACH, NODES

PAGE = "nemo"
SIGN = f"(?:{sizes.TP.name}|{sizes.PP.name}|{sizes.GLOBAL_BATCH.name})"
SEQUENCE = "encoder_seq_length"
POLICY, OF_POLICY = "policy", "megatron_cfg"
"""Sections of NeMo-RL: what is trained, and how Megatron-LM does it."""
_ROWS = shipped_document(Path(__file__).with_suffix(".yaml"))
OVERLAP_PP = "overlap_p2p_comm"
FSDP, FSDP_STRATEGY, STRATEGIES = "fsdp", "fsdp_sharding_strategy", {"full": "optim_grads_params", "grad": "optim_grads"}
"""A switch of NeMo 1 for FSDP, and its words for what is shared, by Megatron-LM's; others are no plan's."""
SHARDED_OPTIMIZERS = ("distributed_fused_adam", "mcore_distributed_optim")
"""Names of optimizers that ranks share."""
SCHEME, RANKS = "peft_scheme", ("adapter_dim", "dim", "lora_rank")
TARGETS = ("target_modules", "lora_target", "lora_target_modules")
"""Of adapters: what they are, their rank, and beside which modules, in recipes of NeMo, Megatron-Bridge and LLaMA-Factory."""
WITH_ADAPTERS = "lora {lora}: give the model as {{preset: MODEL, lora: {lora}}}, else all weights are trained"
BITS, DOUBLE = ("quantization_bit", "load_in_4bit"), ("double_quantization", "bnb_4bit_use_double_quant")
"""Of the frozen base: LLaMA-Factory's, whose scales are narrow unless it says otherwise, and transformers'."""
LOGGED, LOGGED_OF_MODEL, GROUPS = (_ROWS[name] for name in ("logged", "logged_of_model", "groups"))
"""What a log prints, by our fields: settings of a plan, of a model, kinds of groups of ranks."""


def megatron_name(name: str) -> str:
    """Megatron-LM's name of a key."""
    return str(_ROWS["renamed"].get(name, name))


def adapters(values: Dump) -> tuple[Fields, str]:
    """The `lora` of a model, empty if there is none, and what is said of adapters that are no LoRA."""
    scheme = values.get(SCHEME, values.get("finetuning_type", "")).lower()
    rank = next((number for name in RANKS if (number := whole_of(values, name))), None)
    if scheme not in ("", "lora", "canonical_lora") or (scheme and rank is None):
        return {}, "" if scheme in ("none", "full", "null") else f"{SCHEME} {scheme[:20]}: not modelled"
    if rank is None or not (scheme or any(name in values for name in TARGETS)):
        return {}, ""
    words = re.findall(r"[\w-]+", next((values[name] for name in TARGETS if name in values), ""))
    chosen = [ours for ours, theirs in _ROWS["adapted"].items() if not {*words}.isdisjoint(theirs)]
    lora = {"rank": rank, **({"targets": chosen} if chosen else {})}
    if values.get(BITS[0]) == "4" or values.get(BITS[1]) == "True":
        double = next((values[name] for name in DOUBLE if name in values), str(BITS[0] in values))
        lora["base"] = "nf4-double" if double == "True" else "nf4"
    return lora, f"{BITS[0]} 8: not modelled, the base is taken in 16 bits" if values.get(BITS[0]) == "8" else ""


def translate(values: dict[str, str]) -> None:
    """Say in Megatron-LM's words what recipes say in their own."""
    if "swiglu" in values.get("activation", "") or (
        values.get("gated_linear_unit") == "True" and "silu" in values.get("activation_func", "silu")
    ):
        values[model.SWIGLU.name] = "True"
    elif "geglu" in values.get("activation", "") or values.get("gated_linear_unit") == "True":
        values[model.GEGLU.name] = "True"
    elif values.get("activation") == "squared-relu":
        values[model.SQUARED_RELU.name] = "True"
    if values.get("share_embeddings_and_output_weights") == "False":
        values[model.UNTIED.name] = "True"
    if model.KV_HEADS.whole(values):
        values[model.GROUPED.name] = "True"
    values[model.NORM.name] = _ROWS["norms"].get(model.NORM.word(values, "layernorm").lower(), "LayerNorm")
    if values.get(FSDP) == "True":
        values[choices.MEGATRON_FSDP.name] = "True"
        values[choices.STRATEGY.name] = STRATEGIES.get(values.get(FSDP_STRATEGY, "full"), "")
    if values.get(OVERLAP_PP) == "False":
        values[sizes.NO_OVERLAP_PP.name] = "True"
    if cap := whole_of(values, "bucket_cap_mb"):
        values.setdefault(choices.BUCKET.name, str(cap * 2**20 // choices.SUM_BYTES))
    precision = f"{values.get('precision', '')} {values.get('mixed_precision', '')}".lower().replace("bfloat", "bf")
    precision = re.sub(r"\b16", choices.FP16.name, precision)
    for narrow in (choices.BF16, choices.FP16):
        if narrow.name in precision and choices.FP16.name not in values:
            values[narrow.name] = "True"
    if "fp8" in precision and choices.FP8.word(values) in OFF:
        values[choices.FP8.name] = "hybrid"
        values[choices.FP8_RECIPE.name] = next(
            (recipe for word, recipe in _ROWS["precisions"].items() if word in precision), "delayed"
        )
    values.setdefault(model.POSITIONS.name, model.SEQUENCE.word(values, "None"))


def gpus_of(values: Dump) -> int | None:
    """GPUs that a recipe starts, if it says so."""
    devices = whole_of(values, "devices") or whole_of(values, "gpus_per_node")
    nodes = NODES[1].whole({NODES[1].name: "1", **values})
    return devices * nodes if devices and nodes else EACH[1].whole(values)
