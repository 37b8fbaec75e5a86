"""One plan on its own: prepared and evaluated like a sweep of one row, or exported as a SimAI text."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from sim_core import (
    CHECKPOINTING,
    EXPLANATIONS,
    MEMORY,
    REASONS,
    SIMAI,
    Facts,
    Plans,
    SimError,
    SpecError,
    export_simai,
    hardware_table,
    legality,
    plans,
    read_hardware,
    read_workload,
    short,
    simai_breakdown,
    start_of,
)
from sim_core.compiling import COMPILE_AFTER_S, in_plain_python, is_compiled
from sim_core.documents import Fields, Values
from sim_core.warming import plain_python_s
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Prepared, prepare
from sweep.options import OptionError
from sweep.spec.document import apply_sets, validated
from sweep.spec.space import Space, is_labelled, to_plans
from sweep.spec.spec import checked_spec
from sweep.spec.values import FIELDS, Value
from sweep.spec.workloads import WorkloadSpec

PEAK = "peak_memory_bytes"
ANY_DEVICE = "H100-SXM"
"""Stage durations take their recorded times on any device."""


def prepare_plan(workload: Values, hardware: str, fidelity: str, sets: Sequence[str]) -> Prepared:
    """The own plan of a `workload:` section, with `key=value` changes (`tp=8`, `hardware.nic_bandwidth=100 Gb/s`).

    Raises SimError.
    """
    document = {"name": "plan", "workload": dict(workload), "hardware": hardware, "fixed": {"fidelity": fidelity}}
    applied = apply_sets(document, sets, within="fixed", example="tp=8")
    try:
        spec = checked_spec(applied, "--set")
    except SpecError as error:
        raise OptionError(str(error).replace(": fixed.", ": ", 1)) from None
    with of_sets(sets):
        return prepare(spec, Path.cwd())


@contextmanager
def of_sets(sets: Sequence[str]) -> Iterator[None]:
    """Let an error inside the block name the `--record` or `--set` that it is about, by the name of its key."""
    try:
        yield
    except OptionError:
        raise
    except SpecError as error:
        text = str(error)
        if text.startswith("workload.records: "):
            named = text.removeprefix("workload.records: ")
            raise OptionError(f"--record{':' if named.startswith('the file ') else ''} {named}") from None
        for assignment in reversed(sets):
            if re.search(rf"\b{re.escape(assignment.partition('=')[0].strip().rpartition('.')[2])}: ", text):
                raise OptionError(f"--set {assignment}: {text}") from None
        raise


def facts_of(path: str, sets: Sequence[str]) -> Facts:
    """Facts about the workload at `path`, from `key=value` texts (`pp=4`). Raises SpecError."""
    document = apply_sets({"path": path}, sets, example="pp=4")
    try:
        return validated(WorkloadSpec, document, "--set", {}).facts()
    except SpecError as error:
        raise OptionError(str(error)) from None


def stages_replayed(path: str, sets: Sequence[str]) -> dict[str, float]:
    """Seconds of the step of stage durations: recorded, of compute alone with free messages, and as a sweep starts from it.

    Raises SimError, OSError.
    """
    workload, _ = read_workload(path, facts_of(path, sets))
    hardware = hardware_table([read_hardware(ANY_DEVICE)], None)
    alone, fitted = start_of(replace(workload, replayed_s=None), hardware), start_of(workload, hardware)
    if alone is None or fitted is None:
        raise SpecError(f"{path}: found no recorded step")
    return {"recorded_s": fitted.recorded_s, "compute_s": alone.simulated_s, "replayed_s": fitted.simulated_s}


def row_of(prepared: Prepared, number: int = 0) -> Fields:
    """The result row of plan `number`; says so on stderr if the engine is compiled first, which a step of many events needs."""
    sweep, at = prepared.sweep, np.array([number], int)
    plans = to_plans(sweep.space.decode(at), sweep.space)
    if not is_compiled() and plain_python_s(sweep.workload, plans) > COMPILE_AFTER_S:
        sys.stderr.write("Compiling the engine: once per version, about half a minute\n")
    return dict(evaluate(sweep, at).to_pylist()[0])


def checked_plan(prepared: Prepared, fields: Values) -> tuple[str, str]:
    """Of a plan of a workload why it cannot run, a reason and what it means, and its memory by its terms, in words; empty if it
    can, where its memory is not known, or if these fields make no plan."""
    with in_plain_python(), suppress(SimError):  # one plan: quicker than to load the compiler
        workload, hardware = prepared.sweep.workload, prepared.sweep.hardware
        reasons, memory = legality(workload, hardware, plans(workload, **fields))
        reason, terms = REASONS[reasons[0]], dict(zip(MEMORY, memory[:, 0].tolist(), strict=True))
        why = f"{reason}: {EXPLANATIONS[reason]}" if reason else ""
        parts = [
            f"{name.removesuffix('_bytes')} {short(size, 'B')}" for name, size in terms.items() if size > 0 and name != PEAK
        ]
        return why, f"{short(terms[PEAK], 'B')} a GPU ({', '.join(parts)})" if terms[PEAK] > 0 else ""
    return "", ""


def plans_of(prepared: Prepared, number: int = 0) -> Plans:
    """Plan `number` as columns of length 1. Raises SpecError."""
    space = prepared.sweep.space
    if not 0 <= number < space.size:
        raise OptionError(f"--plan {number}: the space holds plans 0 to {space.size - 1}")
    return to_plans(space.decode(np.array([number], int)), space)


def fields_of(space: Space, number: int) -> dict[str, Value]:
    """The values of every field of plan `number`, those of hardware axes included."""
    fields = {}
    for name, column in space.decode(np.array([number], int)).items():
        code = int(column[0])
        if is_labelled(name):
            fields[name] = space.labels[name][code]
        elif FIELDS[name].words:
            fields[name] = FIELDS[name].words[code]
        else:
            fields[name] = bool(code) if FIELDS[name].kind == "switch" else code
    return fields


def simai_parts(prepared: Prepared) -> dict[str, float]:
    """Parts of the step in nanoseconds, as SimAI-Analytical prints them. Raises SpecError."""
    return simai_breakdown(prepared.sweep.workload, prepared.sweep.hardware, plans_of(prepared))


def export_notes(prepared: Prepared, number: int, text: str) -> list[str]:
    """What a user of the exported `text` of plan `number` has to know, one line each."""
    plans = plans_of(prepared, number)
    kind, micro_batch = CHECKPOINTING[int(plans.checkpointing[0])], int(plans.micro_batch[0])
    ids = int(text.split(" checkpoints: ", 1)[1].split()[0])
    notes = []
    if (kind != "none" and (kind != "file" or prepared.sweep.workload.arrays.pieces.rerun.any())) and not ids:
        notes.append(
            f"checkpointing {kind}: what runs again is work of the backward in the text; read it with `none` or `file`"
        )
    if ids > 1:
        notes.append(f"checkpointing {kind}: SimAI itself uses only the first of the {ids} checkpoint ids")
    if micro_batch != 1:
        notes.append(f"the format does not hold the micro-batch: read the text with workload.micro_batch: {micro_batch}")
    return notes


def simai_text(prepared: Prepared, section: WorkloadSpec, base: Path, number: int) -> str:
    """The workload file of a spec in the folder `base` under plan `number`. Raises SimError if the plan cannot run or be
    expressed."""
    sweep = prepared.sweep
    if section.path is None:
        raise SpecError("workload.model: a model has no SimAI text; only SimAI texts can be exported")
    path = base / section.path
    if sweep.workload.kind != SIMAI:
        raise SpecError(f"{path}: found a workload of kind {sweep.workload.kind}; only SimAI texts can be exported")
    if sweep.workload.modelled:
        raise SpecError(f"{path}: calibrated by workload.model, which a text does not hold; export it without the model")
    row = row_of(prepared.without_sample(), number) if number < sweep.space.size else {}
    if row and row["status"] != "ok":
        raise SpecError(f"plan {number} is {row['status']}: {row['reason']}")
    plans = plans_of(prepared, number)
    return export_simai(str(path), sweep.workload, sweep.hardware, plans, ffn=section.ffn, heads=section.heads)
