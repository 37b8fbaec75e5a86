"""The best neighbour of a plan that its own sweep does not hold: what a wider space would find."""

from typing import Any, Final

from sweep.evaluation.one_plan import row_of
from sweep.explaining.neighbours import Change, Neighbour, neighbours
from sweep.reopening import Reopened
from sweep.spec.spec import SweepSpec

WORTH: Final = 0.02
"""Part of the step below which a gain is not worth a word."""


def best_outside(opened: Reopened, number: int) -> tuple[Neighbour, float] | None:
    """The fastest plan outside the space that differs from plan `number` in one axis, and how much faster it is.

    None where none is faster by more than WORTH. It trains the same job on the same machine. Raises SimError.
    """
    row = row_of(opened.prepared, number)
    if row["status"] != "ok":
        return None
    around = neighbours(opened, number, row, lambda change: _is_outside(opened, number, change, row))
    faster = [each for each in around if each.of_plan and each.runs and each.row["step_time_s"] < row["step_time_s"]]
    best = min(faster, key=lambda each: float(each.row["step_time_s"]), default=None)
    if best is None:
        return None
    gain = float(row["step_time_s"]) / float(best.row["step_time_s"]) - 1
    return (best, gain) if gain > WORTH else None


def _is_outside(opened: Reopened, number: int, change: Change, row: dict[str, Any]) -> bool:
    """Whether the sweep lacks a value of a change, and the stack has its schedule."""
    modelled = opened.prepared.sweep.of_plan(number).workload.modelled
    if modelled and "schedule" in change and change["schedule"] not in modelled.stack.schedules:
        return False
    return any(str(value) not in _held(opened.spec, name, row) for name, value in change.items())


def _held(spec: SweepSpec, name: str, row: dict[str, Any]) -> set[str]:
    """The values that a sweep has of a field, as texts."""
    for key, values in spec.axes.items():
        names = key.split(",")
        if name in names:
            return {str(value[names.index(name)] if len(names) > 1 else value) for value in values}
    return {str(spec.fixed.get(name, row.get(name)))}
