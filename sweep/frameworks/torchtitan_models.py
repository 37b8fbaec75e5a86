"""Models that torchtitan has by name and flavor (v0.2.2, models/*/__init__.py)."""

from collections.abc import Mapping

from sim_core import Model, model_document, read_model

PRESETS = {
    "llama3": {"8b": "llama3.1-8b", "70b": "llama3.1-70b", "405b": "llama3.1-405b", "debugmodel": "llama3.1-8b"},
    "llama2": {"7b": "llama2-7b", "13b": "llama2-13b", "70b": "llama2-70b"},
    "llama4": {
        "17bx16e": "llama4-scout", "17bx128e": "llama4-maverick", "17bx16e_irope": "llama4-scout", "17bx128e_irope":
        "llama4-maverick",
    },
    "deepseek_v3": {"16b": "deepseek-v2", "236b": "deepseek-v2", "671b": "deepseek-v3"},
    "qwen3": {
        "0.6b": "qwen3-0.6b", "1.7b": "qwen3-0.6b", "4b": "qwen3-0.6b", "8b": "qwen3-8b", "14b": "qwen3-8b", "32b":
        "qwen3-32b", "30b-a3b": "qwen3-30b-a3b", "235b-a22b": "qwen3-235b-a22b", "debugmodel": "qwen3-0.6b",
    },
    "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
}  # fmt: skip
"""Name -> flavor -> preset."""
CHANGES: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("llama4", "17bx16e"): {"window": None},
    ("llama4", "17bx128e"): {"window": None},
    ("deepseek_v3", "16b"): {
        "layers": 27, "hidden": 2048, "heads": 16, "ffn": 10944, "mla.q_rank": None, "experts.count": 64, "experts.groups": 1,
        "experts.topk_groups": 1, "experts.ffn": 1408, "experts.shared_ffn": 2816,
    },
    ("deepseek_v3", "671b"): {"mtp_layers": 0},
    ("qwen3", "1.7b"): {"hidden": 2048, "ffn": 6144},
    ("qwen3", "4b"): {"layers": 36, "hidden": 2560, "heads": 32, "ffn": 9728},
    ("qwen3", "14b"): {"layers": 40, "hidden": 5120, "heads": 40, "ffn": 17408},
    ("llama3", "debugmodel"): {
        "layers": 6, "hidden": 256, "heads": 16, "kv_heads": 16, "ffn": 768, "vocabulary": 2048,
    },
    ("qwen3", "debugmodel"): {"layers": 8, "hidden": 256, "vocabulary": 2048},
}  # fmt: skip
"""What a flavor has otherwise than its preset; attention in chunks is that of the flavors `irope`."""
SMALL = ("llama4", "gpt_oss")
"""Models whose flavors have small letters."""


def flavor_of(model: Model) -> tuple[str, str] | None:
    """The name and flavor of a model, whatever its sequence, as v0.2.2 spells them; None if it has none."""
    own = model_document(model)
    for name, flavor in ((name, flavor) for name, flavors in PRESETS.items() if name != "llama2" for flavor in flavors):
        preset, changes = preset_of(name, flavor) or ("", {})
        if own["layers"] == changes.get("layers", own["layers"]):
            known = model_document(read_model(preset, changes))
            if all(own.get(key) == value for key, value in known.items() if key not in ("name", "source", "sequence")):
                return name, flavor if name in SMALL else flavor.upper()
    return None


def preset_of(name: str, flavor: str) -> tuple[str, Mapping[str, object]] | None:
    """The preset of a name and a flavor, and what it has otherwise; None if there is none."""
    key = (name.lower(), flavor.lower())
    preset = PRESETS.get(key[0], {}).get(key[1])
    return None if preset is None else (preset, CHANGES.get(key, {}))
