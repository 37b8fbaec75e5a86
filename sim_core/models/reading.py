"""A model from its name or a local file: preset, description, `config.json`, Megatron-LM arguments."""

from collections.abc import Mapping
from pathlib import Path

from sim_core.documents import MOST_CHARACTERS, Fields, Lines, Words, located, read_document, shipped_names
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.description import Model, parse_model, put
from sim_core.models.readers.hugging_face import ASSUMED, read_config
from sim_core.models.readers.megatron import is_known, read_megatron
from sim_core.models.readers.megatron_arguments import HIDDEN, LAYERS
from sim_core.models.readers.megatron_dump import flags_of_dump
from sim_core.models.readers.megatron_flags import Flags, flags_of_document, flags_of_text
from sim_core.models.weights import parameters
from sim_core.places import read_input

PRESET_DIR = Path(__file__).parent / "presets"
CONFIG = "config.json"
SUFFIXES = (".json", ".yaml", ".yml", ".txt", ".sh", ".slurm")


def model_names() -> Words:
    """Names of the models that ship with sim_core."""
    return shipped_names(PRESET_DIR)


def read_model(name_or_path: str, values: Mapping[str, object] | None = None, base: Path | None = None) -> Model:
    """A model from a preset or a local file (relative to `base`), with `values` set over it by dotted name.

    A file may be a description (`.yaml`), a Hugging Face `config.json` (or its folder) or Megatron-LM arguments. Nothing is
    fetched. Raises SpecError, and FormatError with the line of a wrong argument.
    """
    path = PRESET_DIR / f"{name_or_path}.yaml" if name_or_path in model_names() else (base or Path()) / name_or_path
    if name_or_path not in model_names() and path.suffix not in SUFFIXES and not path.exists():
        raise SpecError(f"unknown model {shown(name_or_path)}, {nearest(name_or_path, model_names())}, or a path")
    values = values or {}
    document, lines = _read(path, name_or_path, values)
    for key, value in values.items():
        put(document, key, value, name_or_path)
    try:
        model = parse_model(document, name_or_path)
        if ASSUMED not in model.source:
            return model
        counted = f"{model.source}; {parameters(model).total:,} parameters: compare them with the published ones"
        return model.model_copy(update={"source": counted})
    except SpecError as error:
        of_file = not str(error).startswith(tuple(f"{name_or_path}: {key}: " for key in values))
        raise (located(error, name_or_path, lines) if of_file else error) from None


def model_of_dump(values: Mapping[str, str], where: str, numbers: Mapping[str, object]) -> Model:
    """A model from the arguments that Megatron-LM prints when a run starts, by their names, with `numbers` set over it.

    Raises SpecError.
    """
    document = {"name": "model", "source": "the arguments that a run printed"}
    return parse_model(document | read_megatron(flags_of_dump(values), where, numbers) | dict(numbers), where)


def model_of_flags(flags: Flags, where: str, numbers: Mapping[str, object]) -> Model:
    """A model from flags of Megatron-LM, those that nobody knows left out, with `numbers` set over it.

    Raises SpecError, FormatError.
    """
    known = {flag: places for flag, places in flags.items() if is_known(flag)}
    return parse_model({"name": "model", "source": where} | read_megatron(known, where, numbers) | dict(numbers), where)


def _read(path: Path, name: str, values: Mapping[str, object]) -> tuple[Fields, Lines]:
    """The numbers in a file and the lines of their keys; those in `values` may be missing."""
    folder = Path(name) if path.is_dir() else Path(name).parent
    path = path / CONFIG if path.is_dir() else path
    of_file = {"name": path.stem, "source": str(path)}
    try:
        if path.suffix not in (".json", ".yaml", ".yml"):
            flags = flags_of_text(read_input(path, MOST_CHARACTERS).decode())
            if LAYERS.flag not in flags and HIDDEN.flag not in flags:
                expected = f"expected Megatron-LM arguments ({LAYERS.flag} ...), YAML or a config.json"
                raise SpecError(f"{path}: found no model: {expected}")
            return of_file | read_megatron(flags, str(path), values), {}
        document, lines = read_document(path, "layers, hidden, heads, ... or MODEL_ARGS")
    except OSError as error:
        raise SpecError(f"model {str(path)!r}: {error.strerror}: {path}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None
    if path.suffix == ".json":
        if path.name == CONFIG:  # as that of every model is called: the folder as given, not where it lies
            of_file["name"] = folder.name.strip(".") or str(document.get("model_type"))
        try:
            return of_file | read_config(document, str(path)), {}
        except SpecError as error:
            raise located(error, str(path), lines) from None
    inner = document.get("model")
    if isinstance(inner, dict) and set(document) == {"model"}:
        return of_file | inner, {at[1:]: line for at, line in lines.items() if len(at) > 1}
    of_megatron = flags_of_document(document, lines)
    if of_megatron is not None:
        return of_file | read_megatron(of_megatron, str(path), values), {}
    return of_file | document, lines
