"""A job as its launch file states it: framework, plan, model, what is missing, and what was kept without being read."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sweep.frameworks.plan import Value


class Launch(NamedTuple):
    """A launch file. `plan`: fields of plans by name, None where the file leaves them to the moment of the launch."""

    path: str
    framework: str
    plan: Mapping[str, Value | list[int] | None]
    model: Mapping[str, Any]  # as `sim_core.parse_model` takes it; empty: not stated
    stack: str
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # names of flags or keys that have no part in the plan or the model


NEEDED = ("all_gpus", "tp", "pp", "micro_batch", "global_batch", "sequence")
"""What a launch has to state for its plan to be simulated."""


def missing_of(plan: Mapping[str, object], model: Mapping[str, Any]) -> tuple[str, ...]:
    """What a simulation needs and a launch does not state."""
    absent = [name for name in NEEDED if plan.get(name) is None]
    if not model:
        return (*absent, "model")
    return (*absent, *([] if "vocabulary" in model else ["vocabulary"]))


def number(keys: Mapping[str, Any], name: str) -> int | None:
    """A whole number above 0 of a section; None for anything else."""
    value = keys.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31 else None


def section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a document; empty where there is none."""
    inside = document.get(name)
    return inside if isinstance(inside, Mapping) else {}
