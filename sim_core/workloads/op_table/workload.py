"""An operator table as a `Workload`: rows repeated as layers, gradients that become ready one by one in the backward."""

import numpy as np

from sim_core.arrays import Floats
from sim_core.errors import SpecError, nearest, shown
from sim_core.terms import kinds_by
from sim_core.workloads.facts import Facts, Repeat
from sim_core.workloads.op_table.text import ASYNC, GRADIENT, OpTableText
from sim_core.workloads.words import RULE_OF_GROUP, group_of
from sim_core.workloads.workload import (
    ALL_REDUCE,
    DP,
    DP_EP,
    EP,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Arrays,
    BasePlan,
    Pieces,
    Workload,
    layers_by_unit,
    no_work,
    step_pieces,
)

BACKWARD_OVER_FORWARD = 2.0
"""Time of a backward that was not profiled: two products of the size of the forward's (Narayanan et al. 2021, section 5.1)."""
DEFAULT_WIDTH = 4
_KIND = {ASYNC: ALL_REDUCE, **kinds_by("op_table")}


def workload_from_op_table(text: OpTableText, facts: Facts) -> tuple[Workload, tuple[str, ...]]:
    """The workload of a parsed table, and warnings. Raises SpecError for a `repeat` that does not match the table."""
    rows, repeat = len(text.rows), facts.repeat
    base = BasePlan(all_gpus=facts.all_gpus or 1, micro_batch=facts.micro_batch or 1)
    begin, end = _repeated(text, repeat)
    layers = repeat.times if repeat else 1
    width = facts.bytes_per_element or DEFAULT_WIDTH
    # unit 0 is the layer; the rows before and after the layers are separate units
    order = [*range(begin, end), *range(begin), *range(end, rows)]
    first = 1 if begin else -1
    last = (2 if begin else 1) if end < rows else -1
    units = [0] * (end - begin) + [first] * begin + [last] * (rows - end)
    compute_s = np.array([row.compute_s for row in text.rows])
    # a backward of 0 was not profiled: two forwards, divided equally between its two halves
    missing = (compute_s[:, FORWARD] > 0) & (compute_s[:, INPUT_GRADIENT] == 0) & (compute_s[:, WEIGHT_GRADIENT] == 0)
    for phase in (INPUT_GRADIENT, WEIGHT_GRADIENT):
        compute_s[missing, phase] = compute_s[missing, FORWARD] * BACKWARD_OVER_FORWARD / 2
    warnings = list(text.warnings)
    pieces = _pieces(text, order, units, compute_s, width, warnings)
    arrays = Arrays(
        base=base,
        pieces=pieces,
        step=step_pieces([]),  # the table has no optimizer
        unit_layers=layers_by_unit(np.zeros(layers, int), max(units) + 1),
        first_unit=first,
        last_unit=last,
        layer_unit=0 if repeat else -1,
        gradient_width=float(width),
        layered_gradients=bool(pieces.gradient_bytes.any()),
    )
    in_groups = pieces.comm_bytes > 0
    workload = Workload(
        kind="operator table",
        base=base,
        layers=layers,
        names=tuple(text.rows[k].name for k in order),
        arrays=arrays,
        sequence=facts.sequence,
        measured_on=facts.measured_on,
        has_experts=bool((in_groups & ((pieces.comm_group == EP) | (pieces.comm_group == DP_EP))).any()),
        recorded_fields={"overlap_grad": True},
        state_width=(2.0 * width, 2.0 * width) if width >= DEFAULT_WIDTH else (2.0 * width, 12.0),
        dtype="fp32" if width >= DEFAULT_WIDTH else "bf16",
        gradients_known=(bool(pieces.gradient_bytes.any() or (in_groups & (pieces.comm_group == DP)).any()), True),
        notes=tuple(_notes(text, facts, width, int(missing.sum()))),
    )
    return workload, tuple(warnings)


def _repeated(text: OpTableText, repeat: Repeat | None) -> tuple[int, int]:
    """Rows [begin, end) of one layer; all rows without `repeat`."""
    if repeat is None:
        return 0, len(text.rows)
    names = text.names
    for key, name in (("from", repeat.first), ("to", repeat.last)):
        if name not in names:
            raise SpecError(f"workload.repeat.{key}: found {shown(name)}, no operator of {text.path}, {nearest(name, names)}")
    if repeat.last.endswith(GRADIENT):
        raise SpecError(
            f"workload.repeat.to: found {shown(repeat.last)}, a gradient; expected an operator, such as the one on the next row"
        )
    begin, end = names.index(repeat.first), names.index(repeat.last) + 1
    begin -= bool(begin) and names[begin - 1] == repeat.first + GRADIENT  # the gradient belongs to its operator
    if begin >= end:
        raise SpecError(
            f"workload.repeat: {repeat.first} (line {text.rows[begin].line}) comes after {repeat.last}, expected before it"
        )
    return begin, end


def _pieces(
    text: OpTableText, order: list[int], units: list[int], compute_s: Floats, width: int, warnings: list[str]
) -> Pieces:
    """One piece per row. An asynchronous all-reduce is a gradient for the buckets; any other collective blocks its operator."""
    pieces = no_work(len(order))._replace(unit=np.array(units), compute_s=compute_s[order])
    for k, row in enumerate(text.rows[place] for place in order):
        for phase, (word, suffix, elements) in enumerate(zip(row.collective, row.suffix, row.elements, strict=True)):
            sent = elements * width
            if word == "NONE" or sent == 0:
                continue
            if word == ASYNC and phase != FORWARD and not suffix:
                pieces.gradient_bytes[k] += sent
                continue
            if word == ASYNC:
                where = "on a group of its own" if suffix else "in a forward"
                warnings.append(f"{text.path}:{row.line}: {ASYNC} {where} blocks its operator: nothing overlaps with it")
            group = group_of(suffix, phase)
            pieces.comm_kind[k, phase], pieces.comm_group[k, phase] = _KIND[word], group
            pieces.comm_bytes[k, phase], pieces.comm_rule[k, phase] = sent, RULE_OF_GROUP[group]
    return pieces


def _notes(text: OpTableText, facts: Facts, width: int, unprofiled: int) -> list[str]:
    notes = [] if facts.micro_batch else ["the table does not state its micro-batch: taken as 1 (set workload.micro_batch)"]
    notes += ["a step is forward, backward and gradients: the table has no optimizer"]
    if unprofiled:
        whole = (
            "no backward time"
            if unprofiled == sum(row.compute_s[FORWARD] > 0 for row in text.rows)
            else f"{unprofiled} rows without one"
        )
        notes.append(f"{whole}: not profiled, taken as {BACKWARD_OVER_FORWARD:g} x forward")
    if any(row.process_s for row in text.rows):
        notes.append("process_time is not part of the step")
    if facts.bytes_per_element is None:
        notes.append(f"sizes are elements: taken as {width} bytes each (set workload.bytes_per_element)")
    if facts.repeat is None:
        notes.append("no rows are repeated (set workload.repeat)")
    return notes
