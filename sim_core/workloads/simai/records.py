"""`workload.records`: values that the user gives in place of those of a SimAI text, record by record."""

from collections.abc import Iterator, Mapping

import numpy as np

from sim_core.documents import Fields, Values
from sim_core.errors import SpecError, named, nearest, shown
from sim_core.units import quantity
from sim_core.workloads.simai.file import File
from sim_core.workloads.simai.text import LIST_KEYS, NO_RECORD, SimaiText, read_simai_text

KEEP = "keep"
MODEL = "model"
"""The value is that of a model; without one it is an error."""
PHASES = ("forward", "input_gradient", "weight_gradient")
PLACEHOLDER_NS = 1
"""AICB writes this time where it measured none."""
FINAL = "final_"
_EXPECTED = "keep, model, a time such as '0.05 ms', or the bytes of its messages such as '1 MB'"


def flat(records: Values) -> Iterator[tuple[str, object]]:
    """The values of `{record: value}`, `{record.phase: value}` and `{record: {phase: value}}`, without the last form."""
    for key, value in records.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{phase}", inner) for phase, inner in value.items())
        else:
            yield str(key), value


def _choice(key: str, value: object) -> tuple[str, str, str, int]:
    """A value as record, phase ('': all), and nanoseconds (unit s), bytes (B), or nothing (''): kept. A plain 0 is a time."""
    record, _, phase = key.rpartition(".") if "." in key else (key, "", "")
    if phase and phase not in PHASES:
        raise SpecError(f"workload.records: {named(key)}: unknown phase {shown(phase)}, {nearest(phase, PHASES)}")
    if value == KEEP:
        return record, phase, "", 0
    if value == MODEL:
        raise SpecError(f"workload.records: {named(key)}: model: there is none to take the value from (set workload.model)")
    for unit, scale in (("s", 1e9), ("B", 1)):
        try:
            size = quantity(value, unit) * scale
        except SpecError:
            continue
        if 0 <= size < 2**62:
            return record, phase, unit, round(size)
    raise SpecError(f"workload.records: {named(key)}: found {shown(value)}, expected {_EXPECTED}")


def read_with_records(path: str, values: Values, data: bytes | None = None, *, all_gpus: int | None = None) -> SimaiText:
    """The text at `path`, as `read_simai_text` has it, with the user's values.

    Raises SpecError for a record, a time or a message that the text does not have, FormatError, OSError.

    A time without a phase is that of each phase with a measured time (of all, if none has one); of several lines of a name
    in a layer, those with a measured time take it. A size is that of each message of the record. A `final_` record that the
    text lacks is added at the end of each micro-batch.
    """
    choices = [_choice(key, value) for key, value in flat(values)]
    text = read_simai_text(path, data, all_gpus=all_gpus)
    names = {record.name for record in text.records}
    for name in sorted({name for name, _, unit, _ in choices if unit == "s" and name.startswith(FINAL)} - names):
        text, names = _with_final(text, name), {*names, name}
    records = list(text.records)
    for name, phase, unit, amount in choices:
        mine = [k for k, each in enumerate(records) if each.name == name]
        if not mine:
            raise SpecError(f"workload.records: {named(name)}: {text.path} has no such record, {nearest(name, names)}")
        wanted = [PHASES.index(phase)] if phase else [0, 1, 2]
        # where each line has a measured time, or a message
        column, least = ("comm_bytes", 0) if unit == "B" else ("compute_ns", PLACEHOLDER_NS)
        has = {k: [p for p in range(3) if getattr(records[k], column)[p] > least] for k in mine}
        if unit == "B":
            has = {k: [p for p in at if p in wanted and records[k].collective[p] != "NONE"] for k, at in has.items()}
            if not any(has.values()):
                where = f".{phase}" * bool(phase)
                raise SpecError(f"workload.records: {named(name)}{where}: found a size, but the record has no message there")
        for k in ([k for k in mine if has[k]] or mine) if unit else ():
            chosen = has[k] if has[k] and (unit == "B" or not phase) else wanted
            before = getattr(records[k], column)
            after: Fields = {column: tuple(amount if p in chosen else before[p] for p in range(3))}
            records[k] = records[k]._replace(**after)
    return text._replace(records=tuple(records))


def _with_final(text: SimaiText, name: str) -> SimaiText:
    """The text with a record without time or message at the end of each micro-batch."""
    ends, ids = File(text).repetitions[:, -1] + 1, Fields()
    lines = np.insert(np.arange(len(text.records)), ends, -1)
    moved = np.flatnonzero(lines >= 0)
    for key in LIST_KEYS:
        ids[key] = tuple(moved[list(getattr(text.header, key))].tolist())
    records = tuple(text.records[k] if k >= 0 else NO_RECORD._replace(name=name) for k in lines.tolist())
    line_of = np.insert(text.line_of, ends, text.line_of[ends - 1])
    return text._replace(header=text.header._replace(**ids), records=records, line_of=line_of)
