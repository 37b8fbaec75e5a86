"""Runs of a table as plans of a result: rows that `sweep inspect` writes, as a loop takes them, by device, model and plan."""

import csv
from pathlib import Path

import duckdb

from sim_core import SpecError
from sweep.inputs.registry import LOG, recognised
from sweep.inputs.text import head_of
from sweep.ranking.query import results
from sweep.ranking.selection import quoted
from sweep.reopening import Reopened
from sweep.runs.table import NotSimulated, Row, read_table
from sweep.tuning.record import OK, OUT_OF_MEMORY, Entry

PLAN = "plan"
SIZES = ("tp", "pp", "vpp", "cp", "ep", "all_gpus", "micro_batch", "global_batch", "ga")
"""What a plan must have as the row has it."""
STATED = ("checkpointing", "sharding", "precision")
"""What it must have where the row states it."""
LOOSE = ("layer_split",)
"""What no row tells: of plans that differ in nothing else the first counts."""
MODEL = ("layers", "hidden", "heads", "sequence")


def own_entries(path: Path, opened: Reopened) -> tuple[list[Entry] | None, list[str]]:
    """The runs of `--measured`: None of a table that names plans, which is read as it is; else those of a table of runs, and
    why others are not taken. Raises SpecError, FormatError."""
    if (kind := recognised(path)) is not None and kind.kind == LOG:
        hint = f"`sweep tune {opened.folder} --add plan=N --log {path}`, or `sweep inspect {path} --rows runs.csv`"
        raise SpecError(f"{path}: is a {kind.name}, not a table of runs: {hint}")
    names = next(csv.reader(head_of(path).decode("utf-8-sig", "replace").splitlines()), [])
    return (None, []) if PLAN in map(str.strip, names) else entries_of_runs(path, opened)


def entries_of_runs(path: Path, opened: Reopened) -> tuple[list[Entry], list[str]]:
    """The runs of a table that are plans of a result, and why others are not. Raises SpecError if none is, FormatError."""
    known = opened.prepared.sweep.workload.modelled
    if known is None:
        raise SpecError(f"{path}: its rows name no plans; of a workload without a model they cannot be told apart")
    entries, others = [], []
    with results(opened.folder) as connection:
        for row in read_table(path):
            try:
                for name in MODEL:
                    if (stated := getattr(row.model, name)) != (own := getattr(known.model, name)):
                        raise NotSimulated(f"a run of another model: found {name} {stated}, expected {own}")
                plan, seconds = _plan(connection, row), row.number("step_time_s")
                if not row.out_of_memory and seconds is None:
                    raise NotSimulated("no time of a step")
                state, seconds = (OUT_OF_MEMORY, None) if row.out_of_memory else (OK, seconds)
                peak, log = row.number("peak_memory_gib"), row.text("source")
                entries.append(
                    Entry(plan=plan, state=state, step_time_s=seconds, peak_memory_gib=peak, log=log, where=row.where)
                )
            except NotSimulated as why:
                others.append(f"{row.where}: {why}: left out")
    if not entries:
        raise SpecError("; ".join([f"{path}: none of its runs is a plan of this result", *others[:3]]))
    return entries, others


def _plan(connection: duckdb.DuckDBPyConnection, row: Row) -> int:
    """The number of a row's plan: of several that differ in what no row states, the one nearest to how it is simulated."""
    columns = connection.sql("FROM results LIMIT 0").columns
    wanted = {name: value for name, value in row.plan.items() if name in columns and name not in LOOSE}
    must = {name: wanted[name] for name in SIZES + STATED if name in wanted}
    must["hardware"] = row.hardware.name.partition("+")[0]
    same = " AND ".join(f"{quoted(name)} = ?" for name in must)
    query = f"SELECT plan, status, {', '.join(map(quoted, wanted))} FROM results WHERE {same} ORDER BY plan"
    found = connection.sql(query, params=list(must.values())).to_arrow_table().to_pylist()
    if not found:
        stated = ", ".join(f"{name} {value}" for name, value in must.items() if name in SIZES)
        raise NotSimulated(f"no plan of this result: {stated} on {must['hardware']}")
    alike = [(one["status"] == OK, sum(one[name] == value for name, value in wanted.items())) for one in found]
    return int(found[alike.index(max(alike))]["plan"])
