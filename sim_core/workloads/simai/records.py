"""`workload.records`: values that the user gives in place of those of a SimAI text, record by record."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from sim_core.errors import SpecError, named, nearest, shown
from sim_core.units import quantity
from sim_core.workloads.simai.sections import sections_of
from sim_core.workloads.simai.text import Record, SimaiText

KEEP: Final = "keep"
MODEL: Final = "model"
"""The value is that of a model; without one it is an error."""
PHASES: Final = ("forward", "input_gradient", "weight_gradient")
PLACEHOLDER_NS: Final = 1
"""AICB writes this time where it measured none."""
FINAL: Final = "final_"
_EXPECTED: Final = "keep, model, a time such as '0.05 ms', or the bytes of its messages such as '1 MB'"


class Choice(NamedTuple):
    """The value of one record: nanoseconds or bytes (the other is None); both None: kept. `phase` -1: all."""

    record: str
    phase: int
    ns: int | None
    size: int | None


def choices_of(records: Mapping[str, object]) -> tuple[Choice, ...]:
    """The choices in `{record: value}`, `{record.phase: value}` or `{record: {phase: value}}`. Raises SpecError."""
    choices = []
    for key, value in flat(records):
        record, dot, phase = key.rpartition(".")
        if not dot:
            record, phase = key, ""
        if phase and phase not in PHASES:
            raise SpecError(f"workload.records: {named(key)}: unknown phase {shown(phase)}, {nearest(phase, PHASES)}")
        choices.append(Choice(record, PHASES.index(phase) if phase else -1, *_value(key, value)))
    return tuple(choices)


def flat(records: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Choices with `record.phase` for those inside a record."""
    for key, value in records.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{phase}", inner) for phase, inner in value.items())
        else:
            yield str(key), value


def _value(key: str, value: object) -> tuple[int | None, int | None]:
    """Nanoseconds or bytes; a plain 0 is a time."""
    if value == KEEP:
        return None, None
    if value == MODEL:
        raise SpecError(f"workload.records: {named(key)}: model: there is none to take the value from (set workload.model)")
    if value == 0 and not isinstance(value, bool):
        return 0, None
    for unit in ("s", "B"):
        try:
            size = quantity(value, unit) * (1e9 if unit == "s" else 1)
        except SpecError:
            continue
        if 0 <= size < 2**62:
            return (round(size), None) if unit == "s" else (None, round(size))
    raise SpecError(f"workload.records: {named(key)}: found {shown(value)}, expected {_EXPECTED}")


def with_records(text: SimaiText, choices: tuple[Choice, ...]) -> SimaiText:
    """The text with the chosen values. Raises SpecError for a record, a time or a message that the text does not have.

    A time without a phase is that of each phase with a measured time (of all, if none has one); of several lines of a name
    in a layer, those with a measured time take it. A size is that of each message of the record. A `final_` record that the
    text lacks is added at the end of each micro-batch.
    """
    absent = {c.record for c in choices if c.ns is not None and c.record.startswith(FINAL)} - {r.name for r in text.records}
    for name in sorted(absent):
        text = _with_final(text, name)
    records = list(text.records)
    names = {record.name for record in records}
    for choice in choices:
        if choice.record not in names:
            raise SpecError(
                f"workload.records: {named(choice.record)}: {text.path} has no such record, {nearest(choice.record, names)}"
            )
        mine = [k for k, record in enumerate(records) if record.name == choice.record]
        if choice.ns is not None:
            for k in [k for k in mine if _measured(records[k])] or mine:
                times = records[k].compute_ns
                phases = [choice.phase] if choice.phase >= 0 else _measured(records[k]) or [0, 1, 2]
                records[k] = records[k]._replace(compute_ns=tuple(choice.ns if p in phases else times[p] for p in range(3)))
        elif choice.size is not None:
            sized = {k: phases for k in mine if (phases := _sent(records[k], choice.phase))}
            if not sized:
                where = f".{PHASES[choice.phase]}" if choice.phase >= 0 else ""
                what = f"workload.records: {named(choice.record)}{where}"
                raise SpecError(f"{what}: found a size, but the record has no message there")
            for k, phases in sized.items():
                sizes = records[k].comm_bytes
                records[k] = records[k]._replace(comm_bytes=tuple(choice.size if p in phases else sizes[p] for p in range(3)))
    return replace(text, records=tuple(records))


def _measured(record: Record) -> list[int]:
    """Phases with a measured time."""
    return [phase for phase, ns in enumerate(record.compute_ns) if ns > PLACEHOLDER_NS]


def _sent(record: Record, phase: int) -> list[int]:
    """Phases with a message that `phase` (-1: any) means."""
    return [p for p in range(3) if phase in (-1, p) and record.collective[p] != "NONE" and record.comm_bytes[p] > 0]


def _with_final(text: SimaiText, name: str) -> SimaiText:
    """The text with a record without time or message at the end of each micro-batch."""
    ends = sections_of(text, []).repetitions[:, -1].astype(np.int64) + 1
    record = Record(name, -1, (0, 0, 0), ("NONE",) * 3, ("",) * 3, (0, 0, 0), 100)
    header = text.header

    def moved(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple((np.array(ids, np.int64) + np.searchsorted(ends, ids, side="right")).tolist())

    return replace(
        text,
        header=header._replace(checkpoints=moved(header.checkpoints), checkpoint_initiates=moved(header.checkpoint_initiates)),
        records=(*text.records, record),
        order=np.insert(text.order, ends, len(text.records)),
        line_of=np.insert(text.line_of, ends, text.line_of[ends - 1]),
    )
