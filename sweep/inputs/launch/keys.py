"""What launch files of all formats share: numbers, sections, settings without a part here, a model or why there is none."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from sim_core import Fields, Model, SimError, Values, Words, model_document, model_names, read_model
from sim_core.documents import shipped_document
from sweep.frameworks.names import TABLES
from sweep.inputs.text import model_note

SETTINGS = shipped_document(TABLES / "settings.yaml")
SHOWN = re.compile(rf"(?i)[-+\d.,:e\s\[\]]{{1,60}}|{'|'.join(SETTINGS['words'].split())}")
"""Values that are nobody's own."""
PLAIN = re.compile(r"[\w.-]{1,80}")
REFERENCE = re.compile(r"\$\{([\w.]+)\}\Z")
TUNED = re.compile(r"^meta-|[-_](?:instruct|it|chat|base|hf|bf16|v0\.1)\b|[^a-z0-9.]")
"""In names of models: makers, what was trained after, and signs between words."""
NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?\Z")
"""Of a model that is no path."""
SAME = {"llama3.370b": "llama3.170b"}
"""Models of the same shape."""


def stated(document: Values, paths: str) -> Any:
    """What stands at the first of some dotted paths that is set, in place of a reference what it leads to; None for nothing.

    A list, which no word of ours is for, of a value that stands where a section is expected.
    """
    for path in paths.split():
        value: Any = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else [value] if value else None
        if isinstance(value, str) and (reference := REFERENCE.match(value)) and reference[1] != path:
            value = stated({key: each for key, each in document.items() if each != value}, reference[1])
        if value not in (None, "None", "null", ""):
            return value
    return None


def flat(document: Values, above: str = "") -> Iterator[tuple[str, Any]]:
    """Settings of all sections that are not off, by their dotted names; none that are not set, nor of what is no name."""
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.") if value.get("enabled") is not False else ()
        elif value not in (None, "", "None", "null") and PLAIN.fullmatch(str(key)):
            yield f"{above}{key}", value


def unread(document: Values, read: Collection[str]) -> Fields:
    """Settings by their dotted names, without those that are read."""
    return {name: value for name, value in flat(document) if name not in read}


def not_simulated(framework: str, kept: Values) -> Words:
    """A note of settings that may change a step and have no part here, with values that are numbers or words of frameworks."""
    words = [re.escape(word) for row in SETTINGS["no_effect"] if framework in row["of"] for word in row["names"].split()]
    neutral = re.compile(rf"(?i)(?:^|\.)(?:{'|'.join(words) or '(?!)'})(?:$|=|(?<=\.))")
    said = [
        f"{name} {text if SHOWN.fullmatch(text) else ''}".strip()
        for name, value in kept.items()
        if not neutral.search(f"{name}={(text := ' '.join(str(value).split()))}")
    ]
    return (f"stated, and no part of what is simulated: {', '.join(said)}",) * bool(said)


def numbers_by_name(name: str, path: str, sequence: int | None) -> tuple[Fields, Words]:
    """The numbers of a model that others call so, as on Hugging Face; empty with a note where there is no preset."""
    short = TUNED.sub("", name.rpartition("/")[2].lower())
    if preset := next((each for each in model_names() if TUNED.sub("", each) == SAME.get(short, short)), ""):
        return numbers_or_why(lambda: read_model(preset, {"sequence": sequence} if sequence else {}), path)
    shown = f"{name[:40]} has no preset" if NAME.match(name) else "not in this file"
    return {}, (f"model: {shown}; give --model",)


def number(keys: Values, name: str) -> int | None:
    """A whole number above 0 of a section; None for anything else."""
    return above_zero(keys.get(name))


def above_zero(value: object) -> int | None:
    """A value that is a whole number above 0; None for anything else."""
    return value if type(value) is int and 0 < value < 2**31 else None


def section(document: Values, name: str) -> Values:
    """A section of a document; empty where there is none."""
    inside = document.get(name)
    return inside if isinstance(inside, Mapping) else {}


def numbers_of(model: Model) -> Fields:
    """A model as a mapping, without name and source."""
    return {key: value for key, value in model_document(model).items() if key not in ("name", "source")}


def numbers_or_why(read: Callable[[], Model], path: str) -> tuple[Fields, Words]:
    """The numbers of a model, empty with a note where it cannot be read."""
    try:
        return numbers_of(read()), ()
    except SimError as error:
        return {}, (model_note(error, path),)
