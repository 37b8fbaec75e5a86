"""A Hugging Face `config.json` to the numbers of a model, by `model_type`.

Defaults of missing fields are those of transformers 4.57 and 5.23 for the model type; where a default is the size of one
particular model, the field must be there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sim_core.errors import SpecError, nearest, shown
from sim_core.models.readers.config_fields import Config, Document
from sim_core.models.readers.families_gpt import bloom, gpt2, gpt_neox, opt
from sim_core.models.readers.families_rotary import deepseek, gemma2, glm, gpt_oss, grok, llama, mistral, nemotron, qwen


def read_config(fields: Mapping[str, Any], where: str) -> Document:
    """The numbers of a model as a mapping for `parse_model`, without name and source. Raises SpecError."""
    if "text_config" in fields or "vision_config" in fields:
        raise SpecError(f"{where}: a multimodal model (text_config); expected that of a text model: give text_config as a file")
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        found = "missing" if kind is None else f"found {shown(kind)}"
        raise SpecError(f"{where}: model_type: {found}, {nearest(str(kind or ''), FAMILIES)}")
    config = Config(fields, where)
    document = FAMILIES[kind](config, kind)
    config.refuse_others()
    return document


FAMILIES: Final[Mapping[str, Callable[[Config, str], Document]]] = {
    "bloom": bloom,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "gemma2": gemma2,
    "glm4_moe": glm,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "grok-1": grok,
    "kimi_k2": deepseek,
    "llama": llama,
    "mistral": mistral,
    "mixtral": mistral,
    "nemotron": nemotron,
    "opt": opt,
    "qwen2": qwen,
    "qwen3": qwen,
    "qwen3_moe": qwen,
}
"""Reader of each `model_type`."""
