"""A Hugging Face `config.json` to the numbers of a model, by `model_type`."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sim_core.errors import SpecError, nearest, shown
from sim_core.models.readers import families, newer_families
from sim_core.models.readers.config_fields import Config, Document

FAMILIES: Final[Mapping[str, Callable[[Config, str], Document]]] = {
    "bloom": families.bloom,
    "deepseek_v2": families.deepseek,
    "deepseek_v3": families.deepseek,
    "deepseek_v32": newer_families.deepseek_v32,
    "deepseek_v4": newer_families.deepseek_v4,
    "gemma2": families.gemma2,
    "gemma3_text": newer_families.gemma3,
    "glm4_moe": families.glm,
    "glm_moe_dsa": newer_families.deepseek_v32,
    "gpt2": families.gpt2,
    "gpt_neox": families.gpt_neox,
    "gpt_oss": families.gpt_oss,
    "grok-1": families.grok,
    "kimi_k2": families.deepseek,
    "kimi_linear": newer_families.kimi_linear,
    "llama": families.llama,
    "llama4_text": newer_families.llama4,
    "minimax_m2": newer_families.minimax_m2,
    "mistral": families.mistral,
    "mixtral": families.mistral,
    "nemotron": families.nemotron,
    "nemotron_h": newer_families.nemotron_h,
    "olmo2": newer_families.olmo2,
    "opt": families.opt,
    "phi3": newer_families.phi3,
    "qwen2": families.qwen,
    "qwen3": families.qwen,
    "qwen3_5_moe_text": newer_families.qwen3_next,
    "qwen3_5_text": newer_families.qwen3_next,
    "qwen3_moe": families.qwen,
    "qwen3_next": newer_families.qwen3_next,
    "smollm3": newer_families.smollm3,
}
"""Reader of each `model_type`."""
_AS: Final = {
    "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "ministral3": "llama", "kimi_k25": "kimi_k2",
}  # fmt: skip
"""Other names of the same layers."""
_TEXT: Final = "text_config"


def read_config(fields: Mapping[str, Any], where: str) -> Document:
    """The numbers of a model as a mapping for `parse_model`, without name and source. Raises SpecError.

    Of a model that sees or hears as well only the text model is read, and the source says so.
    """
    inner = fields.get(_TEXT)
    if isinstance(inner, Mapping):
        document = read_config({**inner, "model_type": inner.get("model_type", fields.get("model_type"))}, f"{where}: {_TEXT}")
        apart = ", ".join(
            sorted(key for key in fields if key.endswith("_config") and key not in (_TEXT, "quantization_config"))
        )
        return document | {"source": f"{where}, {_TEXT}" + (f"; not counted: {apart}" if apart else "")}
    if "vision_config" in fields:
        raise SpecError(f"{where}: a multimodal model without {_TEXT}; expected that of its text model")
    kind = fields.get("model_type")
    if not isinstance(kind, str) or _AS.get(kind, kind) not in FAMILIES:
        found = "missing" if kind is None else f"found {shown(kind)}"
        raise SpecError(f"{where}: model_type: {found}, {nearest(str(kind or ''), FAMILIES)}")
    config, kind = Config(fields, where), _AS.get(kind, kind)
    document = FAMILIES[kind](config, kind)
    config.refuse_others()
    return document
