"""A Hugging Face `config.json` to the numbers of a model, by `model_type`."""

from collections.abc import Callable, Mapping
from typing import Any

from sim_core.errors import SpecError, nearest, shown
from sim_core.models.readers import families, newer_families
from sim_core.models.readers.config_fields import Config, Document

READERS: Mapping[Callable[[Config, str], Document], str] = {
    families.bloom: "bloom",
    families.deepseek: "deepseek_v2 deepseek_v3 kimi_k2",
    newer_families.deepseek_v32: "deepseek_v32 glm_moe_dsa",
    newer_families.deepseek_v4: "deepseek_v4",
    families.gemma2: "gemma2",
    newer_families.gemma3: "gemma3_text",
    families.glm: "glm4_moe",
    families.gpt2: "gpt2",
    families.gpt_neox: "gpt_neox",
    families.gpt_oss: "gpt_oss",
    families.grok: "grok-1",
    newer_families.kimi_linear: "kimi_linear",
    families.llama: "llama",
    newer_families.llama4: "llama4_text",
    newer_families.minimax_m2: "minimax_m2",
    families.mistral: "mistral mixtral",
    families.nemotron: "nemotron",
    newer_families.nemotron_h: "nemotron_h",
    newer_families.olmo2: "olmo2",
    families.opt: "opt",
    newer_families.phi3: "phi3",
    families.qwen: "qwen2 qwen3 qwen3_moe",
    newer_families.qwen3_next: "qwen3_5_moe_text qwen3_5_text qwen3_next",
    newer_families.smollm3: "smollm3",
}
FAMILIES = {kind: reader for reader, kinds in READERS.items() for kind in kinds.split()}
"""Reader of each `model_type`."""
_AS = {
    "qwen3_vl_text": "qwen3", "qwen3_vl_moe_text": "qwen3_moe", "ministral3": "llama", "kimi_k25": "kimi_k2",
}  # fmt: skip
"""Other names of the same layers."""
_TEXT = "text_config"


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
