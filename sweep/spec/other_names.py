"""What other tools call our axes and keys: Megatron-LM, torchtitan, DeepSpeed, Hugging Face, Slurm scripts."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from sim_core import HARDWARE_KEYS, PLAN_FIELDS, STACK_FACTS, Model, nearest
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
    word = name.lower().lstrip("-").replace("-", "_").rsplit(".", 1)[-1]
    stem = re.sub("_(size|degree|parallel|parallelism|ways?)$", "", word)
    return str(ours.get(word) or ours.get(stem) or (stem if stem in PLAN_FIELDS else ""))


def elsewhere(name: str) -> str:
    """Where a spec states what is no field of a plan: `set workload.stack.NAME`; empty if it is nothing of these."""
    places = {"workload.stack": STACK_FACTS, "hardware": HARDWARE_KEYS, "workload.model": Model.model_fields}
    return next((f"set {place}.{name}" for place, names in places.items() if name in names), "")


def meant(name: str, valid: Iterable[str]) -> str:
    """A hint which valid name was meant: by another tool's name for it, else by its letters."""
    words, ours = list(valid), our_name(name) or name.lower()
    if ours == SEQUENCE and (ours not in words or "checkpointing" in words):  # among axes
        return f"set workload.{SEQUENCE}, the same for all plans (a trace has the axis {SEQUENCE}, too)"
    ours = "usd" if ours == "usd_per_gpu_hour" and ours not in words else ours  # of a result, whose columns have the sum
    return f"nearest valid: {ours}" if ours in words else nearest(name, words)
