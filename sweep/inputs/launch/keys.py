"""What launch files of all formats share: whole numbers, sections, and the numbers of a model or why there are none."""

from collections.abc import Callable, Mapping

from sim_core import Model, SimError, model_document
from sim_core.documents import Fields, Values
from sweep.inputs.text import model_note


def number(keys: Values, name: str) -> int | None:
    """A whole number above 0 of a section; None for anything else."""
    return above_zero(keys.get(name))


def above_zero(value: object) -> int | None:
    """A value that is a whole number above 0; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def section(document: Values, name: str) -> Values:
    """A section of a document; empty where there is none."""
    inside = document.get(name)
    return inside if isinstance(inside, Mapping) else {}


def numbers_of(model: Model) -> Fields:
    """A model as a mapping, without name and source."""
    return {key: value for key, value in model_document(model).items() if key not in ("name", "source")}


def numbers_or_why(read: Callable[[], Model], path: str) -> tuple[Fields, tuple[str, ...]]:
    """The numbers of a model, empty with a note where it cannot be read."""
    try:
        return numbers_of(read()), ()
    except SimError as error:
        return {}, (model_note(error, path),)
