"""A launch file of any known format as one record: model and plan that it starts."""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from sim_core import SpecError
from sim_core.documents import parse_json, parse_yaml
from sweep.inputs.launch import deepspeed, exported, megatron, nanotron, nemo, torchtitan
from sweep.inputs.launch.job import Launch
from sweep.inputs.text import head_of

MOST_BYTES: Final = 2**20
"""Of a launch file; the largest that we know have 20 KB."""


def read_launch(path: str | Path) -> Launch:
    """Read a launch file, by its content. Raises SpecError with the line of a fault, OSError."""
    place = Path(path)
    raw = head_of(place, MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise SpecError(f"{path}: found more than {MOST_BYTES:,} bytes, expected a launch file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None
    reader = reader_of(text)
    if reader is None:
        raise SpecError(f"{path}: found no model and no plan of a framework that is known")
    return reader(str(path), text)


def _toml(path: str, text: str) -> Launch:
    try:
        return torchtitan.read_toml(path, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: not valid TOML: {error}") from None
    except (RecursionError, ValueError) as error:
        raise SpecError(f"{path}: not valid TOML: {str(error).partition(';')[0]}") from None


def _document(path: str, text: str) -> tuple[Mapping[str, Any], Mapping[tuple[str, ...], int]]:
    if text.lstrip().startswith("{"):
        document, lines = parse_json(text, path)
    else:
        document, lines = parse_yaml(text, path, last_counts=True)
    if not isinstance(document, Mapping):
        raise SpecError(f"{path}: found no keys, expected those of a launch file")
    return document, lines


def _megatron_yaml(path: str, text: str) -> Launch:
    document, lines = _document(path, text)
    launch = megatron.read_yaml(path, document, lines)
    if launch is None:
        raise SpecError(f"{path}: found no MODEL_ARGS and none of Megatron-LM's names")
    return launch


def reader_of(text: str) -> Callable[[str, str], Launch] | None:
    """What reads a launch file with this text; None if nothing does."""
    for name, recognise in SIGNS.items():
        if recognise(text):
            return READERS[name]
    return None


def _is_document(text: str) -> bool:
    """Whether a text may be YAML or JSON: not a script."""
    return not text.lstrip().startswith(("#!", "--")) and "--" not in text.partition(":")[0]


SIGNS: Final[Mapping[str, Callable[[str], bool]]] = {
    "exported": lambda text: exported.SIGN.search(text) is not None,
    "torchtitan": lambda text: torchtitan.SIGN.search(text) is not None and "=" in text and "--" not in text.split("\n")[0],
    "nanotron": lambda text: nanotron.SIGN.search(text) is not None,
    "deepspeed": lambda text: text.lstrip().startswith("{") and deepspeed.SIGN.search(text) is not None,
    "trainer": lambda text: deepspeed.TRAINER_SIGN.search(text) is not None,
    "megatron yaml": lambda text: megatron.DOCUMENT_SIGN.search(text) is not None and _is_document(text),
    "nemo": lambda text: nemo.SIGN.search(text) is not None and _is_document(text),
    "megatron": lambda text: megatron.SIGN.search(text) is not None,
}
"""How each format is recognised, in the order in which they are tried."""


def _trainer(path: str, text: str) -> Launch:
    if _is_document(text) and "--per" not in text:
        document, _ = _document(path, text)
        return deepspeed.read_config_of(path, document)
    return deepspeed.read_trainer_script(path, text)


READERS: Final[Mapping[str, Callable[[str, str], Launch]]] = {
    "exported": lambda path, text: exported.read_json(path, _document(path, text)[0]),
    "torchtitan": _toml,
    "nanotron": lambda path, text: nanotron.read_yaml(path, _document(path, text)[0]),
    "deepspeed": lambda path, text: deepspeed.read_config_of(path, _document(path, text)[0]),
    "trainer": _trainer,
    "megatron yaml": _megatron_yaml,
    "nemo": lambda path, text: nemo.read_yaml(path, _document(path, text)[0]),
    "megatron": megatron.read_script,
}
