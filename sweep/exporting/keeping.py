"""What a launch file holds besides plan and model, kept beside an exported plan: flags of a script, keys of a TOML."""

import json
import shlex
import tomllib
from pathlib import Path

from sim_core import SpecError, Values
from sweep.exporting.megatron import ARRAY
from sweep.inputs.launch.megatron import kept_flags
from sweep.inputs.launch.torchtitan import kept_keys
from sweep.inputs.text import head_of


def with_flags(text: str, path: Path) -> str:
    """An exported array of flags of Megatron-LM with those of the script at `path` that it does not set. Raises SpecError."""
    script, written = _read(path), {word for word in text.split() if word.startswith("--")}
    if "--" not in script:
        raise SpecError(f"--keep {path}: holds no flags, expected a script that launches Megatron-LM")
    own = [
        "    " + " ".join([flag, *(f'"{word}"' if "$" in word and '"' not in word else shlex.quote(word) for word in values)])
        for flag, values in kept_flags(script).items()
        if flag not in written  # a word with a variable stays one
    ]
    before, opening, array = text.partition(f"{ARRAY}=(\n")
    flags, closing, after = array.rpartition("\n)")
    kept = [f"    # kept from {path.name}", *own] if own else []
    rows = "\n".join([flags, *kept])
    return f"{before}{opening}{rows}{closing}{after}" if opening and closing else text


def with_keys(text: str, path: Path) -> str:
    """An exported TOML of torchtitan with the keys of the one at `path` that it does not set. Raises SpecError."""
    try:
        own, document = tomllib.loads(text), tomllib.loads(_read(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not valid TOML: {error}") from None
    kept = kept_keys(document)
    named = document.get("model")
    if isinstance(named, dict):  # an exported plan leaves the model to the user
        kept["model"] = {key: value for key, value in named.items() if not isinstance(value, dict)}
    lines = []
    for line in [*text.rstrip("\n").split("\n"), ""]:
        lines.append(line)
        if line.startswith("["):
            lines += _rows(kept.pop(line.strip("[]"), {}), own.get(line.strip("[]"), {}))
    for section, keys in kept.items():
        lines += [f"[{section}]", *_rows(keys, {}), ""]
    return "\n".join(lines)


def _rows(keys: Values, written: Values) -> list[str]:
    return [f"{key} = {json.dumps(value, default=str)}" for key, value in keys.items() if key not in written]


def _read(path: Path) -> str:
    try:
        return head_of(path).decode("utf-8")
    except OSError as error:
        raise SpecError(f"--keep {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None
