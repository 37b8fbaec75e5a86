"""A model from its name or a local file: preset, description, `config.json`, Megatron-LM arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from sim_core.errors import SpecError, nearest
from sim_core.models.description import Model
from sim_core.models.parsing import parse_model, put
from sim_core.models.readers.config_fields import load_config
from sim_core.models.readers.hugging_face import read_config
from sim_core.models.readers.megatron import read_megatron
from sim_core.models.readers.megatron_text import flags_of_document, flags_of_text

PRESET_DIR: Final = Path(__file__).parent / "presets"
SUFFIXES: Final = (".json", ".yaml", ".yml", ".txt", ".sh", ".slurm")


@cache
def model_names() -> tuple[str, ...]:
    """Names of the models that ship with sim_core."""
    return tuple(sorted(path.stem for path in PRESET_DIR.glob("*.yaml")))


def read_model(name_or_path: str, values: Mapping[str, object] | None = None, base: Path | None = None) -> Model:
    """A model from a preset or a local file (relative to `base`), with `values` set over it by dotted name.

    A file may be a description (`.yaml`), a Hugging Face `config.json` (or its folder) or Megatron-LM arguments. Nothing is
    fetched. Raises SpecError, and FormatError with the line of a wrong argument.
    """
    path = PRESET_DIR / f"{name_or_path}.yaml" if name_or_path in model_names() else (base or Path()) / name_or_path
    if name_or_path not in model_names() and path.suffix not in SUFFIXES and not path.exists():
        raise SpecError(f"unknown model {name_or_path!r}, {nearest(name_or_path, model_names())}, or a path")
    values = values or {}
    document = _read(path, values)
    for key, value in values.items():
        put(document, key, value, name_or_path)
    return parse_model(document, name_or_path)


def _read(path: Path, given: Mapping[str, object]) -> dict[str, Any]:
    """The numbers in a file; those in `given` may be missing."""
    path = path / "config.json" if path.is_dir() else path
    found = {"name": path.stem if path.stem != "config" else path.resolve().parent.name, "source": str(path)}
    if path.suffix == ".json":
        return found | read_config(load_config(path), str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"model {str(path)!r}: {error.strerror}: {path}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not text in UTF-8") from None
    if path.suffix not in (".yaml", ".yml"):
        flags = flags_of_text(text)
        if "--num-layers" not in flags and "--hidden-size" not in flags:
            raise SpecError(f"{path}: found no model: expected Megatron-LM arguments (--num-layers ...), YAML or a config.json")
        return found | read_megatron(flags, str(path), given)
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise SpecError(f"{path}: found no model: expected a mapping with layers, hidden, heads, ... or MODEL_ARGS")
    inner = document.get("model")
    if isinstance(inner, dict) and set(document) == {"model"}:
        return found | inner
    of_megatron = flags_of_document(document)
    return found | (document if of_megatron is None else read_megatron(of_megatron, str(path), given))
