"""What frameworks and users call fields of plans: one look-up by name, filled from the arguments of all frameworks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from sim_core import Argument
from sim_core.documents import shipped_document
from sweep.frameworks import deepspeed, megatron, nanotron, torchtitan
from sweep.frameworks.plan import Launched

TABLES = Path(__file__).parent
"""Where words of frameworks are kept as data."""
_OTHERS = shipped_document(TABLES / "names.yaml")
"""Names that no framework's arguments here have."""
Meaning = TypeVar("Meaning")


def by_word(words: Mapping[Meaning, str]) -> dict[str, Meaning]:
    """What each word means, of the words for each meaning."""
    return {word: meaning for meaning, several in words.items() for word in several.split()}


_ROWS: Iterable[Argument[Launched]] = (
    *nanotron.KEYS.values(), *torchtitan.ARGUMENTS, *deepspeed.ARGUMENTS, *megatron.ARGUMENTS,
)  # fmt: skip
FIELD_OF_NAME = {
    **by_word(_OTHERS["others"]),
    **{name: row.field for row in _ROWS if row.field and row.name != row.field for name in row.names},
    **by_word(_OTHERS["last"]),
}
SAID_AS = FIELD_OF_NAME | by_word(_OTHERS["in_part"])
"""Beside them what says one field in part, and numbers of a model."""
