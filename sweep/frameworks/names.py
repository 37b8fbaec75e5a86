"""What frameworks and users call fields of plans: one look-up by name, filled from the arguments of all frameworks."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from sim_core import Argument, megatron_arguments
from sim_core.documents import shipped_document
from sweep.frameworks import deepspeed, megatron, nanotron, torchtitan
from sweep.frameworks.plan import Launched

_OTHERS = shipped_document(Path(__file__).with_suffix(".yaml"))
"""Names that no framework's arguments here have."""
Meaning = TypeVar("Meaning")


def by_word(words: Mapping[Meaning, str]) -> dict[str, Meaning]:
    """What each word means, of the words for each meaning."""
    return {word: meaning for meaning, several in words.items() for word in several.split()}


_ROWS: Iterable[Argument[Launched]] = (
    *nanotron.ARGUMENTS, *torchtitan.ARGUMENTS, *deepspeed.ARGUMENTS, *megatron.ARGUMENTS,
)  # fmt: skip
_OF_MODEL = (megatron_arguments.LAYERS, megatron_arguments.EXPERTS, megatron_arguments.SEQUENCE)
FIELD_OF_NAME = {
    **by_word(_OTHERS),
    **{name: row.field for row in _ROWS if row.field and row.name != row.field for name in row.names},
    **{row.name: row.field for row in _OF_MODEL},
    megatron_arguments.POSITIONS.name: megatron_arguments.SEQUENCE.field,
    "batch_size": "global_batch",  # in torchtitan of 2024 that of a rank
}
