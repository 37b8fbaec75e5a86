"""From a spec to a sweep: read the files it names, and check whatever can be checked before the run."""

import json
import os
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from socket import gethostname

import numpy as np
import pyarrow as pa

from sim_core import HardwareTable, Ints, SpecError, Workload, hardware_table, one_line, read_hardware
from sim_core.compiling import source_hash
from sim_core.documents import Fields, Words
from sweep.columns import describe_rows, measures_of, result_column, result_schema
from sweep.conditions import check_constraints
from sweep.evaluation.assumptions import held_against, notes_of, start_at
from sweep.evaluation.identity import content_of, fingerprint_of, identity_of
from sweep.sources import row_code
from sweep.spec.budget import Budget
from sweep.spec.failures import Failures, checkpoint_bytes
from sweep.spec.space import Space, build_space
from sweep.spec.spec import SweepSpec
from sweep.spec.stacks import stack_name, stated_stack
from sweep.spec.values import STACK_AXIS
from sweep.spec.workloads import workload_of


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Everything a worker needs besides a range of positions. Immutable and picklable."""

    workload: Workload  # of an axis over stacks that of its first
    hardware: HardwareTable
    space: Space
    where: Words
    identity: str
    flops_per_token: float | None = None  # of the model, None if unknown
    peak_flops: tuple[float, ...] = ()  # of each hardware variant, in the precision of the computation
    budget: Budget | None = None
    failures: Failures | None = None
    checkpoint_bytes: float | None = None  # of the whole model, None if unknown
    others: tuple[Workload, ...] = ()  # the same model with the further stacks of an axis
    named: Words = ("",)  # the stack of each workload, empty where the spec names none

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """That of each stack of an axis; one without such an axis."""
        return (self.workload, *self.others)

    def of_stack(self, code: int) -> "Sweep":
        """The same sweep whose plans all have one stack of the axis: only for those that have it."""
        return replace(self, workload=self.workloads[code], others=(), named=self.named[code : code + 1])

    def stacks_of(self, numbers: Ints) -> Ints:
        """The stack of each plan, by its place in `workloads`."""
        return self.space.decode(numbers)[STACK_AXIS] if self.others else np.zeros(len(numbers), int)

    def of_plan(self, number: int) -> "Sweep":
        """The same sweep with the workload of one plan."""
        return self.of_stack(int(self.stacks_of(np.array([number], int))[0]))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep with its warnings, notes and provenance for the user."""

    sweep: Sweep
    warnings: Words
    notes: Words
    provenance: Fields

    def without_sample(self) -> "Prepared":
        """The same sweep over every plan of the space, so that positions are plan numbers."""
        return replace(self, sweep=replace(self.sweep, space=replace(self.sweep.space, sample=None)))


def prepare(spec: SweepSpec, base: Path) -> Prepared:
    """Read the files that the spec names, relative to `base`, and build the sweep. Raises SimError, OSError."""
    stacks = list({repr(stated): stated for stated in spec.values_of(STACK_AXIS)}.values())  # in the order of their codes
    axis = spec.axes.get("hardware") or [""]
    device = str(spec.hardware.get("preset", axis[0] if isinstance(axis, list | tuple) else axis))  # the first of several
    sections = [spec.workload.model_copy(update={"stack": stack}) for stack in stacks] or [spec.workload]
    read = [workload_of(section, base, device) for section in sections]
    workloads, warnings = [workload for workload, _ in read], dict.fromkeys(line for _, lines in read for line in lines)
    workload = workloads[0]
    without_page = [stack.name for stack in (stated_stack(section.stack) for section in sections) if stack.framework]
    measured_on = read_hardware(spec.workload.measured_on, base) if spec.workload.measured_on else None
    space, variants = build_space(spec, workload, base)
    table = hardware_table(variants, measured_on, workload.dtype)
    saved = checkpoint_bytes(workload) if spec.failures and not {"layers", "experts"} & space.named else None
    start, near = start_at(workload, table)
    notes = [one_line(note) for note in (*notes_of(spec, workloads, space, table, saved), *near)]
    notes += [
        f"stack {name}: it has no page, so intervals are wide (`sweep calibrate stack` makes one)" for name in without_page
    ]
    facts, content, code = held_against(workload, variants, space), content_of(workloads), row_code()
    identity = identity_of(spec, workload, content, table, space, code)
    sweep = Sweep(
        workload=workload,
        hardware=table,
        space=space,
        where=spec.where,
        identity=identity,
        flops_per_token=facts["flops_per_token"],
        peak_flops=tuple(variant.value(f"peak_flops_{workload.dtype}") for variant in variants),
        budget=spec.budget,
        failures=spec.failures,
        checkpoint_bytes=saved,
        others=tuple(workloads[1:]),
        named=tuple(stack_name(section.stack) if section.stack else "" for section in sections),
    )
    check_constraints(sweep.where, describe_rows(space, np.zeros(1, int))[0])
    _check_ranking(spec, sweep)
    provenance = {
        "sweep": identity,
        "version": version("training-plan-sweep"),
        "name": spec.name,
        "who": f"{os.environ.get('USER') or os.geteuid()}@{gethostname()}",
        "spec": json.loads(spec.model_dump_json()),
        "workload": content,
        "model": source_hash(),
        "code": code,
        "inputs": fingerprint_of(spec, base, workload, variants, measured_on),
        "plans": space.size,
        "rows": space.count,
        "hardware": [variant.model_dump() for variant in variants[:64]],
        "notes": notes,
        "start": start,
        "unmet": without_page,
        "held": list(space.defaults),
        "checks": [check.brief() for check in workload.checks if not check.kept],
        "plausibility": facts,
    }
    return Prepared(sweep=sweep, warnings=tuple(map(one_line, warnings)), notes=tuple(notes), provenance=provenance)


def _check_ranking(spec: SweepSpec, sweep: Sweep) -> None:
    """Raise SpecError if `objectives` or `per` name a column that the result will not have."""
    schema = result_schema(sweep.space)
    for key, names in (("objectives", [objective.column for objective in spec.objectives]), ("per", spec.per)):
        for name in names:
            try:
                column = result_column(name, schema.names)
            except SpecError as error:
                raise SpecError(f"{key}: {error}") from None
            if key == "objectives" and pa.types.is_dictionary(schema.field(column).type):
                raise SpecError(f"{key}: found {column}, which holds words, expected a column of numbers, such as step_time_s")
            if lacking := _lacking(column, sweep):
                raise SpecError(f"{key}: {column} needs {lacking}")


def _lacking(column: str, sweep: Sweep) -> str:
    """What a spec has to state before a column has values; empty if nothing is missing."""
    if column in ("tokens_per_s", *measures_of("cost", "goodput")) and sweep.workload.sequence is None:
        return "workload.sequence, the tokens per sample"
    if column in measures_of("goodput") and sweep.failures is None:
        return "failures (failures: {} takes Llama 3's rate)"
    if column in measures_of("goodput") and sweep.checkpoint_bytes is None:
        return "the parameters of the model"
    if column not in measures_of("cost"):
        return ""
    if sweep.budget is None:
        return "a budget, such as budget: {tokens: 1T, usd_per_gpu_hour: 2.5}"
    return sweep.budget.unknown(column, list(sweep.hardware.variants))
