"""What other tools call our axes and keys: Megatron-LM, torchtitan, DeepSpeed, Hugging Face, Slurm scripts."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sim_core import nearest
from sim_core.documents import Fields, shipped_document
from sweep.frameworks.names import FIELD_OF_NAME, by_word

SEQUENCE = "sequence"


@cache
def _others() -> Fields:
    """The rows of other_names.yaml."""
    return dict(shipped_document(Path(__file__).with_suffix(".yaml")))


def value_meant(field: str, value: object) -> str:
    """Our value of a field for what another tool calls it; empty if nothing is known."""
    return str(by_word(_others()["values"].get(field, {})).get(str(value).lower().replace("-", "_"), ""))


def our_name(name: str) -> str:
    """Our name for what another tool calls an axis or key; empty if nothing is known."""
    ours = FIELD_OF_NAME | by_word(_others()["measures"])
    return str(ours.get(name.lower().lstrip("-").replace("-", "_").rsplit(".", 1)[-1], ""))


def meant(name: str, valid: Iterable[str]) -> str:
    """A hint which valid name was meant: by another tool's name for it, else by its letters."""
    words, ours = list(valid), our_name(name)
    if ours == SEQUENCE and (ours not in words or "checkpointing" in words):  # among axes
        return f"set workload.{SEQUENCE}, the same for all plans (a trace has the axis {SEQUENCE}, too)"
    return f"nearest valid: {ours}" if ours in words else nearest(name, words)
