"""One plan of one workload: the same road as a sweep, for a single row; and its text for SimAI."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from sim_core import CHECKPOINTING, SIMAI, Facts, Plans, SpecError, export_simai, simai_breakdown
from sweep.document import apply_sets, fault
from sweep.evaluate import evaluate
from sweep.job import Prepared, prepare
from sweep.space import to_plans
from sweep.spec import SweepSpec, WorkloadSpec


def prepare_plan(path: Path, hardware: str, fidelity: str, micro_batch: int | None, sets: Sequence[str]) -> Prepared:
    """The workload file's own plan with `key=value` changes (`tp=8`, `hardware.nic_bandwidth=100 Gb/s`). Raises SimError."""
    document: dict[str, Any] = {
        "name": "plan",
        "workload": {"path": str(path.absolute()), "micro_batch": micro_batch},
        "hardware": hardware,
        "fixed": {"fidelity": fidelity},
    }
    qualified = [given if given.startswith(("hardware.", "workload.")) else f"fixed.{given}" for given in sets]
    try:
        spec = SweepSpec.model_validate(apply_sets(document, qualified))
    except ValidationError as error:
        raise fault(error, "--set", {}, SweepSpec) from None
    return prepare(spec, Path.cwd())


def facts_of(path: str, sets: Sequence[str]) -> Facts:
    """Facts of the workload at `path` as `key=value` texts (`pp=4`). Raises SpecError."""
    try:
        return WorkloadSpec.model_validate(apply_sets({"path": path}, sets)).facts()
    except ValidationError as error:
        raise fault(error, "--set", {}, WorkloadSpec) from None


def row_of(prepared: Prepared, number: int = 0) -> dict[str, Any]:
    """The result row of plan `number`."""
    batch = evaluate(prepared.job, np.array([number], np.int64))
    rows = pa.Table.from_batches([batch]).to_pylist()
    return dict(rows[0])


def plans_of(prepared: Prepared, number: int = 0) -> Plans:
    """Plan `number` as a column of one."""
    space = prepared.job.space
    if not 0 <= number < space.size:
        raise SpecError(f"--plan {number}: the space has the plans 0 to {space.size - 1}")
    return to_plans(space.decode(np.array([number], np.int64)), space)


def tool_breakdown(prepared: Prepared) -> dict[str, float]:
    """Parts in nanoseconds as SimAI-Analytical prints them. Raises SpecError."""
    return simai_breakdown(prepared.job.workload, prepared.job.hardware, plans_of(prepared))


def recompute_note(prepared: Prepared, number: int) -> str | None:
    """What the exported text says differently from the plan: the format runs a span again up to its last record, excluded."""
    kind = CHECKPOINTING[int(plans_of(prepared, number).checkpointing[0])]
    if kind not in ("full", "every", "block"):
        return None
    return (
        f"checkpointing {kind}: the format does not re-run the last record of a span, so the text recomputes less than the plan"
    )


def simai_text(prepared: Prepared, path: Path, number: int) -> str:
    """The workload file at `path` under plan `number`. Raises SimError where the plan cannot be run or said."""
    kind = prepared.job.workload.kind
    if kind != SIMAI:
        raise SpecError(f"{path}: a workload of kind {kind}; only SimAI texts can be written as one")
    row = row_of(prepared.without_sample(), number) if number < prepared.job.space.size else {}
    if row and row["status"] != "ok":
        raise SpecError(f"plan {number} is {row['status']}: {row['reason']}")
    return export_simai(str(path), prepared.job.workload, plans_of(prepared, number))
