"""The identity of a workload: its hash changes with everything that can change a result, and with nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from sim_core import BasePlan, Workload
from sim_core.workloads.workload import AFTER_GRADIENTS, NO_COMM, TP, Arrays, Pieces, StepPieces
from tests.oracle.cases import FIXED, Once, one_layer, step_pieces, workload_of

LONG = 1_501
"""More elements than NumPy writes out: `repr` of a longer array holds its ends alone."""
LABELS = ("names", "files", "notes", "moving_notes", "checks", "implied", "records")


def long_workload() -> Workload:
    """Every array has more than 1,000 elements."""
    repeated: Any = {name: np.repeat(column, LONG, axis=0) for name, column in one_layer()._asdict().items()}
    pieces = Pieces(**repeated)
    step = step_pieces([Once(AFTER_GRADIENTS, NO_COMM, TP, 0.0, FIXED)] * LONG)
    return workload_of(pieces, step, [0] * LONG)


def other(value: Any) -> Any:
    """Another value of the same kind: an array differs in its middle alone, an empty one is longer."""
    if isinstance(value, np.ndarray):
        if not value.size:
            return np.zeros([max(length, 1) for length in value.shape], value.dtype)
        changed = value.copy()
        middle = tuple(length // 2 for length in changed.shape)
        changed[middle] = not changed[middle] if changed.dtype == np.bool_ else changed[middle] + 1
        return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "'"
    if isinstance(value, dict):
        return {**value, "more": "1"}
    if isinstance(value, tuple):
        first = other(value[0])
        return value._replace(tp=first) if isinstance(value, BasePlan) else (first, *value[1:])
    return 7 if value is None else value + 1


COLUMNS = [("", name) for name in Arrays._fields if name not in ("pieces", "step")]
COLUMNS += [("pieces", name) for name in Pieces._fields] + [("step", name) for name in StepPieces._fields]


@pytest.mark.parametrize(("part", "name"), COLUMNS)
def test_any_changed_column_changes_the_identity(part: str, name: str) -> None:
    workload = long_workload()
    held: Any = getattr(workload.arrays, part) if part else workload.arrays
    changed: Any = held._replace(**{name: other(getattr(held, name))})
    arrays = workload.arrays._replace(**{part: changed}) if part else changed
    assert replace(workload, arrays=arrays).content != workload.content


@pytest.mark.parametrize("name", [f.name for f in fields(Workload) if f.name not in (*LABELS, "arrays")])
def test_any_changed_fact_changes_the_identity(name: str) -> None:
    workload = long_workload()
    change: dict[str, Any] = {name: other(getattr(workload, name))}
    assert replace(workload, **change).content != workload.content


def test_an_array_in_any_place_counts_to_its_last_element() -> None:
    """Columns that are numbers today may be arrays tomorrow."""
    workload = long_workload()
    sizes: Any = np.arange(float(LONG))
    contents = [replace(workload, arrays=workload.arrays._replace(p2p_bytes=value)).content for value in (sizes, other(sizes))]
    assert contents[0] != contents[1]


def test_labels_and_the_layout_in_memory_do_not_count() -> None:
    workload = long_workload()
    across: Any = {name: np.asfortranarray(column) for name, column in workload.arrays.pieces._asdict().items()}
    arrays = workload.arrays._replace(pieces=Pieces(**across))
    same = replace(workload, names=(), notes=("a note",), arrays=arrays)
    assert same.content == workload.content == long_workload().content


def test_neighbouring_texts_do_not_run_into_each_other() -> None:
    workload = long_workload()
    assert replace(workload, kind="ab", dtype="c").content != replace(workload, kind="a", dtype="bc").content
    assert replace(workload, recorded_fields={"a": "b"}).content != replace(workload, recorded_fields={"ab": ""}).content
    assert replace(workload, measured_on=None).content != replace(workload, measured_on="None").content
