"""YAML of nanotron: parallelism, tokens and the configuration of the model."""

import re
from collections.abc import Mapping

from sim_core import Model, parse_model, read_config
from sim_core.documents import Fields, Values
from sweep.frameworks import nanotron as of
from sweep.inputs.launch.keys import number, numbers_or_why, section
from sweep.inputs.told import Job

SIGN = re.compile(rf"\b(?:{of.SIGN}):")
FAMILIES = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}
"""A switch of `model_config`, and the family of Hugging Face that has the same numbers."""
FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size",
    "max_position_embeddings", "tie_word_embeddings", "hidden_act", "attention_bias",
)  # fmt: skip


def read_yaml(path: str, document: Values) -> Job:
    """The plan and the model of a configuration."""
    parallelism, tokens = section(document, "parallelism"), section(document, "tokens")
    sequence = number(tokens, of.SEQUENCE.name)
    config = section(section(document, "model"), "model_config")
    family = next((family for switch, family in FAMILIES.items() if config.get(switch) is True), None)
    model: Fields = {}
    notes: tuple[str, ...] = ("model_config is of no family that is modelled (is_llama_config, is_qwen2_config)",)
    if family is not None:
        model, notes = numbers_or_why(lambda: _model(path, family, config, sequence), path)
    tp, pp, dp = (number(parallelism, size.name) for size in (of.TP, of.PP, of.DP))
    cp, ep = (number(parallelism, size.name) or 1 for size in (of.CP, of.EP))
    micro, ga = (number(tokens, size.name) for size in (of.MICRO_BATCH, of.GA))
    stage = section(document, "optimizer").get(of.STAGE.name)
    plan: Fields = {
        "tp": tp, "pp": pp, "vpp": 1, "dp": dp, "cp": cp, "ep": ep,
        "all_gpus": tp * pp * dp * cp if tp and pp and dp else None,
        "micro_batch": micro, "global_batch": micro * ga * dp if micro and ga and dp else None, "sequence": sequence,
        "sequence_parallel": str(parallelism.get(of.TP_MODE.name, "")).upper().endswith("REDUCE_SCATTER") and (tp or 1) > 1,
        "checkpointing": "full" if parallelism.get(of.RECOMPUTE.name) is True else "none",
        "precision": "bf16" if section(document, "model").get("dtype") == "bfloat16" else "fp32",
        "overlap_tp": parallelism.get(of.ASYNC_TP.name) is True and (tp or 1) > 1,
    }  # fmt: skip
    if isinstance(stage, int) and 0 <= stage < len(of.STAGES):
        plan["sharding"] = of.STAGES[stage]
    if (engine := str(parallelism.get(of.ENGINE.name, "1f1b")).lower()) not in of.ENGINES:
        notes = (*notes, f"{of.ENGINE.name} {engine[:40]}: not modelled")
    elif pp and pp > 1:
        plan["schedule"] = of.ENGINES[engine]
    kept = tuple(key for key in document if key not in ("model", "optimizer", "parallelism", "tokens"))
    return Job(framework="nanotron", plan=plan, model=model, stack=of.PAGE, notes=notes, kept=kept)


def _model(path: str, family: str, config: Values, sequence: int | None) -> Model:
    own = {name: config[name] for name in FIELDS if config.get(name) is not None}
    numbers = {**read_config({"model_type": family, "hidden_act": "silu", **own}, path), "sequence": sequence}
    if isinstance(moe := config.get("moe_config"), Mapping):
        ffn = number(moe, "moe_intermediate_size") or numbers.get("ffn")
        experts = {"count": number(moe, "num_experts"), "topk": number(moe, "top_k") or 1, "ffn": ffn}
        if moe.get("enable_shared_expert") is True:
            experts["shared_ffn"] = number(moe, "shared_expert_intermediate_size") or ffn
        numbers |= {"experts": experts, "ffn": None}
    return parse_model({"name": "model", "source": path, **numbers}, path)
