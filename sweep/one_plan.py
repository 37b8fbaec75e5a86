"""One plan on its own: prepared and evaluated like a sweep of one row, or exported as a SimAI text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from sim_core import CHECKPOINTING, SIMAI, Facts, Plans, SpecError, export_simai, simai_breakdown
from sweep.document import apply_sets, first_error
from sweep.evaluation import evaluate
from sweep.preparation import Prepared, prepare
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
    try:
        spec = SweepSpec.model_validate(apply_sets(document, sets, within="fixed"))
    except ValidationError as error:
        text = str(first_error(error, "--set", {}, SweepSpec))
        raise SpecError(text.replace(": fixed.", ": ", 1)) from None
    return prepare(spec, Path.cwd())


def facts_of(path: str, sets: Sequence[str]) -> Facts:
    """Facts about the workload at `path`, from `key=value` texts (`pp=4`). Raises SpecError."""
    try:
        return WorkloadSpec.model_validate(apply_sets({"path": path}, sets)).facts()
    except ValidationError as error:
        raise first_error(error, "--set", {}, WorkloadSpec) from None


def row_of(prepared: Prepared, number: int = 0) -> dict[str, Any]:
    """The result row of plan `number`."""
    batch = evaluate(prepared.sweep, np.array([number], np.int64))
    rows = pa.Table.from_batches([batch]).to_pylist()
    return dict(rows[0])


def utilisation_of(row: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[float, float] | None:
    """TFLOP/s per GPU and MFU of a result row, by what its sweep is held against; None where unknown."""
    if facts["flops_per_token"] is None or row["tokens_per_s"] is None:
        return None
    flops = facts["flops_per_token"] * row["tokens_per_s"] / row["all_gpus"]
    return flops / 1e12, flops / facts["peak_flops"][row["hardware"]]


def plans_of(prepared: Prepared, number: int = 0) -> Plans:
    """Plan `number` as columns of length 1. Raises SpecError."""
    space = prepared.sweep.space
    if not 0 <= number < space.size:
        raise SpecError(f"--plan {number}: the space holds plans 0 to {space.size - 1}")
    return to_plans(space.decode(np.array([number], np.int64)), space)


def simai_parts(prepared: Prepared) -> dict[str, float]:
    """Parts of the step in nanoseconds, as SimAI-Analytical prints them. Raises SpecError."""
    return simai_breakdown(prepared.sweep.workload, prepared.sweep.hardware, plans_of(prepared))


def recompute_note(prepared: Prepared, number: int) -> str | None:
    """How the exported text differs from the plan: the format recomputes a span up to its last record, exclusive."""
    kind = CHECKPOINTING[int(plans_of(prepared, number).checkpointing[0])]
    if kind not in ("full", "every", "block"):
        return None
    return f"checkpointing {kind}: the format does not recompute the last record of a span, so the text recomputes less"


def simai_text(prepared: Prepared, path: Path, number: int) -> str:
    """The workload file at `path` under plan `number`. Raises SimError if the plan cannot run or be expressed."""
    kind = prepared.sweep.workload.kind
    if kind != SIMAI:
        raise SpecError(f"{path}: found a workload of kind {kind}; only SimAI texts can be exported")
    row = row_of(prepared.without_sample(), number) if number < prepared.sweep.space.size else {}
    if row and row["status"] != "ok":
        raise SpecError(f"plan {number} is {row['status']}: {row['reason']}")
    return export_simai(str(path), prepared.sweep.workload, plans_of(prepared, number))
