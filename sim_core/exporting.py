"""A plan as a SimAI text, for SimAI's own simulators: written only if it reads back to the plan's numbers."""

import numpy as np

from sim_core.documents import Fields
from sim_core.errors import FormatError, SpecError
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import STEP_TIME
from sim_core.planning.columns import FILE, Plans, plan_at, slice_plans
from sim_core.planning.legality import refuse
from sim_core.simai.moved import move_text
from sim_core.simulator import Results, simulate
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.model import read_file
from sim_core.workloads.simai.records import read_with_records
from sim_core.workloads.simai.text import read_simai_text, write_simai_text
from sim_core.workloads.simai.workload import workload_from_simai
from sim_core.workloads.workload import Workload

TOLERANCE = 1e-6
"""Largest relative difference of the step, and of the model's state, between a plan and its text."""


def export_simai(
    path: str,
    workload: Workload,
    hardware: HardwareTable,
    plans: Plans,
    row: int = 0,
    ffn: int | None = None,
    heads: int | None = None,
) -> str:
    """The text at `path`, from which `workload` was read (with facts `ffn`, `heads`) and its records chosen, under plan `row`.

    Read with `checkpointing: file`, and with the micro-batch, schedule, overlap and hardware of the plan, which a text
    cannot hold, it gives the plan's step and state. Raises SpecError if the plan cannot run, or if no text gives its
    numbers; SimError, OSError if the file cannot be read.
    """
    chosen = slice_plans(plans, slice(row, row + 1))
    expected = _simulated(workload, hardware, chosen)
    parsed = read_with_records(path, workload.records, all_gpus=workload.base.all_gpus)
    text = write_simai_text(*move_text(parsed, workload, plan_at(chosen, 0)))
    facts = Facts(
        sequence=workload.sequence,
        micro_batch=int(chosen.micro_batch[0]),
        ffn=ffn,
        experts=workload.experts,
        heads=heads,
        measured_on=workload.measured_on,
    )
    written = _read_back(text, hardware, chosen, facts)
    pairs = {
        "step time": (expected.metrics[STEP_TIME, 0], written.metrics[STEP_TIME, 0], "s"),
        "model state": (expected.state_bytes[0], written.state_bytes[0], "B"),
    }
    for name, (here, there, unit) in pairs.items():
        if not np.isclose(here, there, rtol=TOLERANCE, atol=0.0, equal_nan=True):
            raise SpecError(
                f"the text would read back to a {name} of {there:.9g} {unit}, the plan has {here:.9g} {unit}: "
                "whole nanoseconds and bytes, and layers told apart by their names, cannot express it"
            )
    return text


def _simulated(workload: Workload, hardware: HardwareTable, plans: Plans) -> Results:
    results = simulate(workload, hardware, plans)
    refuse(int(results.reason[0]))
    return results


def _read_back(text: str, hardware: HardwareTable, written_for: Plans, facts: Facts) -> Results:
    """The results of a text under the plan that it was written for."""
    label = "the exported text"
    try:
        read = workload_from_simai(read_file(read_simai_text(label, text.encode()), facts))
        own = {**read.base._asdict(), "layers": read.layers, "checkpointing": FILE, "checkpoint_layers": 0}
        columns: Fields = {name: np.full(1, value, int) for name, value in own.items()}
        return _simulated(read, hardware, written_for._replace(**columns))
    except (FormatError, SpecError) as error:
        raise SpecError(f"the text would not read back: {error}") from None
