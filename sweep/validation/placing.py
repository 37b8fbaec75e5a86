"""Runs of a table as plans of a result: rows that `sweep inspect` writes, as a loop takes them, by device, model and plan."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import duckdb

from sim_core import Model, SpecError
from sweep.ranking.query import results
from sweep.ranking.selection import quoted
from sweep.reopening import Reopened
from sweep.tuning.record import OK, OUT_OF_MEMORY, Entry
from sweep.validation.devices import presets_of
from sweep.validation.simulation import plan_of
from sweep.validation.table import NotSimulated, Row, read_table

SIZES: Final = ("tp", "pp", "vpp", "cp", "ep", "all_gpus", "micro_batch", "global_batch", "ga")
"""What a plan must have as the row has it."""
STATED: Final = {"checkpointing": "recompute", "sharding": "zero", "precision": "dtype"}
"""What it must have where the row states it, with its column there."""
LOOSE: Final = ("layer_split",)
"""What no row tells: of plans that differ in nothing else the first counts."""
MODEL: Final = {"layers": "layers", "hidden": "hidden", "heads": "heads", "seq": "sequence"}


def entries_of_runs(path: Path, opened: Reopened) -> tuple[list[Entry], list[str]]:
    """The runs of a table that are plans of a result, and why others are not. Raises SpecError if none is, FormatError."""
    known = opened.prepared.sweep.workload.modelled
    if known is None:
        raise SpecError(f"{path}: its rows name no plans; of a workload without a model they cannot be told apart")
    entries, others = list[Entry](), list[str]()
    with results(opened.folder) as connection:
        for row in read_table(path):
            try:
                _check_model(row, known.model)
                entries.append(_entry(row, _plan(connection, row)))
            except NotSimulated as why:
                others.append(f"{row.where}: {why}: left out")
    if not entries:
        raise SpecError("; ".join([f"{path}: none of its runs is a plan of this result", *others[:3]]))
    return entries, others


def _check_model(row: Row, model: Model) -> None:
    """Raises NotSimulated for a run of another model."""
    for column, name in MODEL.items():
        if row.text(column) and row.count(column) != (own := getattr(model, name)):
            raise NotSimulated(f"a run of another model: found {column} {row.count(column)}, expected {own}")


def _plan(connection: duckdb.DuckDBPyConnection, row: Row) -> int:
    """The number of a row's plan: of several that differ in what no row states, the one nearest to how it is simulated."""
    columns = connection.sql("FROM results LIMIT 0").columns
    wanted = {name: value for name, value in plan_of(row).items() if name in columns and name not in LOOSE}
    must = {name: wanted[name] for name in (*SIZES, *(name for name, column in STATED.items() if row.text(column)))
            if name in wanted}  # fmt: skip
    devices = list(presets_of(row.text("hw")))
    same = " AND ".join([*(f"{quoted(name)} = ?" for name in must), f"hardware IN ({', '.join('?' * len(devices))})"])
    query = f"SELECT plan, status, {', '.join(map(quoted, wanted))} FROM results WHERE {same} ORDER BY plan"
    found = connection.sql(query, params=[*must.values(), *devices]).to_arrow_table().to_pylist()
    if not found:
        stated = ", ".join(f"{name} {value}" for name, value in must.items() if name in SIZES)
        raise NotSimulated(f"no plan of this result: {stated} on {' or '.join(devices)}")
    return int(max(found, key=lambda one: _likeness(one, wanted))["plan"])


def _likeness(one: Mapping[str, Any], wanted: Mapping[str, object]) -> tuple[bool, int]:
    return one["status"] == OK, sum(one[name] == value for name, value in wanted.items())


def _entry(row: Row, plan: int) -> Entry:
    seconds = row.number("iter_ms")
    if not row.out_of_memory and seconds is None:
        raise NotSimulated("no time of a step")
    return Entry(
        plan=plan,
        state=OUT_OF_MEMORY if row.out_of_memory else OK,
        step_time_s=None if row.out_of_memory or seconds is None else seconds * 1e-3,
        peak_memory_gib=row.number("mem_gib"),
        log=row.text("source"),
        where=row.where,
    )
