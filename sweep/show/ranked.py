"""The screen of a ranking: a table as wide as the terminal, what its rows are, and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from rich.console import Console

from sim_core import PARTS, short
from sweep.ranking import Ranking
from sweep.selection import ALIKE
from sweep.show.checks import print_plausibility
from sweep.show.error_bars import print_error_bars
from sweep.show.results import print_reasons
from sweep.show.tables import SHORT_COLUMN, SHORT_PART, cell, plain_table

MOST_COLUMNS: Final = 30
"""A ranking of more columns is printed on its side."""
MEMORY_ERROR: Final = 0.06
"""How far off the memory of measured runs is in the mean (docs/validation.md)."""
_ALWAYS: Final = ("rank", "plan")
_TIE: Final = "tie"
_SIZES: Final = ("all_gpus", "tp", "pp", "cp", "ep", "vpp", "dp", "micro_batch", "ga", "checkpointing")


def print_ranking(ranking: Ranking, console: Console) -> None:
    """Print a ranking (plan columns, result, parts of the step in percent), then what it leaves out."""
    if ranking.missing:
        computed = f"{ranking.total:,} of {ranking.total + ranking.missing:,} plans are computed"
        console.print(f"Incomplete: {computed}; the same `sweep run` computes the rest.")
    rows = ranking.rows.select(ranking.shown)
    out = _print_rows(ranking, rows, console) if rows.num_rows else []
    if not rows.num_rows:
        console.print("No plan to rank.")
    direction = "highest" if ranking.descending else "lowest"
    told = f"{ranking.ranked:,} of {ranking.total:,} plans ranked, {direction} {ranking.by} first."
    if ranking.front:
        told = f"Pareto front of {', '.join(ranking.front)}: {rows.num_rows:,} of {ranking.ranked:,} plans."
    console.print(told, soft_wrap=True)
    if ranking.alike:
        more = f"{ranking.alike:,} more plan{'s' * (ranking.alike != 1)}"
        console.print(
            f"alike: {more} with the same numbers, which differ in {', '.join(ranking.differing)} (--all shows them)",
            soft_wrap=True,
        )
    if out:
        console.print(
            f"Left out at {console.width} columns: {', '.join(out)} (--columns chooses)", soft_wrap=True, highlight=False
        )
    print_plausibility(ranking.plausibility, ranking.utilisation, ranking.hfu, ranking.measured, console)
    if ranking.mixed_batches:
        console.print(
            "note: steps of different global batches are compared; --by gpu_s_per_sample or --per global_batch compares fairly",
            soft_wrap=True,
        )
    print_error_bars(ranking.error_bars, ranking.per, console)
    _print_tight(ranking.rows, console)
    for note in ranking.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if ranking.held and ranking.ranked:
        console.print("All of them: " + ", ".join(f"{k} {cell(k, v)}" for k, v in ranking.held.items()), soft_wrap=True)
    _print_left_out(ranking, console)


def _print_rows(ranking: Ranking, rows: pa.Table, console: Console) -> list[str]:
    """Print the table; returns the headings of columns for which the terminal is too narrow."""
    headings, columns = _cells(rows)
    if len(headings) > MOST_COLUMNS:  # a line for each column
        names = list(headings.values())
        lines = [[name, *column] for name, column in zip(names, columns.values(), strict=True)]
        plain_table(lines[0], list(zip(*lines[1:], strict=True)), console, left=1)
        return []
    widths = {name: max(map(len, (headings[name], *columns[name]))) for name in headings}
    kept = _fitting(widths, _importance(ranking, rows), console.width) if console.is_terminal else list(headings)
    plain_table([headings[name] for name in kept], [columns[name] for name in kept], console)
    return [headings[name] for name in headings if name not in kept]


def _cells(rows: pa.Table) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Heading and cells of each column; with the step time, its parts come last and in percent of it."""
    parts = [name for name in PARTS if name in rows.column_names]
    in_percent = len(parts) == len(PARTS) and "step_time_s" in rows.column_names
    headings = {name: SHORT_COLUMN.get(name, name) for name in rows.column_names if not (in_percent and name in parts)}
    columns = {name: [cell(name, value) for value in rows[name].to_pylist()] for name in headings}
    if in_percent:
        steps = rows["step_time_s"].to_pylist()
        for name in parts:
            values = rows[name].to_pylist()
            if any(values):
                headings[name] = f"{SHORT_PART[name]}%"
                columns[name] = [f"{100 * value / step:.0f}" for value, step in zip(values, steps, strict=True)]
    return headings, columns


def _importance(ranking: Ranking, rows: pa.Table) -> list[str]:
    """The columns, the most telling first: what is ranked, the plan, the result, the largest parts."""
    first = [*_ALWAYS, *ranking.per, ranking.by, _TIE, *ranking.front, *(name for name in _SIZES if name in ranking.varying)]
    results = ["step_time_s", "mfu", *(name for name in ranking.varying if name not in first), ALIKE, "samples_per_s"]
    sums = {name: sum(value or 0 for value in rows[name].to_pylist()) for name in PARTS if name in rows.column_names}
    named = [*first, *results, *sorted(sums, key=lambda name: -sums[name]), *rows.column_names]
    return [name for name in dict.fromkeys(named) if name in rows.column_names]


def _fitting(widths: dict[str, int], importance: Sequence[str], width: int) -> list[str]:
    """The columns that fit into a line, in the order of the table."""
    left = width - 1
    kept = set()
    for name in importance:
        if name in widths and (widths[name] + 2 <= left or name in _ALWAYS):
            kept.add(name)
            left -= widths[name] + 2
    return [name for name in widths if name in kept]


def _print_tight(rows: pa.Table, console: Console) -> None:
    """Say which of the best plans may not fit, since they leave less of the device than their memory may be off by."""
    if not {"rank", "plan", "peak_memory_bytes", "device_memory_bytes"} <= set(rows.column_names):
        return
    best = [
        row for row in rows.select(["rank", "plan", "peak_memory_bytes", "device_memory_bytes"]).to_pylist() if row["rank"] == 1
    ]
    parts = {row["plan"]: (row["peak_memory_bytes"] or 0.0) / row["device_memory_bytes"] for row in best}
    tight = {plan: part for plan, part in parts.items() if part > 1 - MEMORY_ERROR}
    if tight:
        one = len(tight) == 1
        plans = f"plan {next(iter(tight))} needs" if one else f"plans {', '.join(map(str, tight))} need up to"
        console.print(
            f"tight: {plans} {max(tight.values()):.0%} of the device's memory; memory of measured runs is off by"
            f" {MEMORY_ERROR:.0%} in the mean: try {'it' if one else 'them'} first, or leave room with"
            f' --where "peak_memory_bytes < {1 - MEMORY_ERROR:g} * device_memory_bytes"',
            soft_wrap=True,
            highlight=False,
        )


def _print_left_out(ranking: Ranking, console: Console) -> None:
    left_out: dict[str, int] = ranking.reasons | ({"where": ranking.filtered} if ranking.filtered else {})
    if not left_out:
        return
    more: dict[str, Any] = {}
    if ranking.memory:
        need, have = (_span(*ranking.memory[k : k + 2]) for k in (0, 2))
        more["memory_exceeds_device"] = f"; need {need}, have {have}"
    print_reasons(left_out, console, "Not ranked", more)


def _span(low: float, high: float) -> str:
    a, b = short(low, "B"), short(high, "B")
    return a if a == b else f"{a} to {b}"
