"""Screens of an explained plan: words, bars of step and memory, neighbours; and two plans side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim_core import EXPLANATIONS, MEMORY, PARTS, Shape, short
from sweep.explaining.bottleneck import gain
from sweep.explaining.explanation import NARROW, Difference, Explanation
from sweep.explaining.neighbours import Neighbour
from sweep.explaining.waiting import Waiting
from sweep.explaining.within import Within
from sweep.show.error_bars import ties_of
from sweep.show.tables import SHORT_COLUMN, cell, print_table
from sweep.uncertainty.evidence import LEVEL

BAR: Final = 40
MOST_STAGES: Final = 4
_NAME: Final = {
    "compute_forward_s": "forward",
    "compute_backward_s": "backward",
    "compute_recompute_s": "recompute",
    "launch_s": "launch",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
}


def print_explanation(found: Explanation, console: Console) -> None:
    """Print everything about one plan."""
    console.print(f"plan {found.plan}")
    _lines(found.told, console)
    if found.runs:
        _step(found, console)
    else:
        console.print(f"\n{found.row['status']}: {found.reason}", soft_wrap=True)
    _memory(found, console)
    if found.bottleneck is not None:
        console.print(f"\nbottleneck: {found.bottleneck.text}", soft_wrap=True)
        for one in found.bottleneck.cures:
            console.print(f"  {_cure(one, found)}", soft_wrap=True)
        if not found.bottleneck.cures:
            console.print("  no single change makes it smaller and the plan faster")
    _neighbours(found, console)
    if found.within is not None:
        console.print("\nwithin the error")
        _lines(_within(found.plan, found.within), console)
    if found.first:
        console.print("\nto measure first")
        _lines(found.first, console)
    for note in found.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _within(plan: int, of: Within) -> Iterator[str]:
    """A plan and its rivals, one line each."""
    yield f"its step is {of.low:.2f} to {of.high:.2f} x the simulated one ({LEVEL:.0%}; {of.why})"
    group = "".join(f" of {SHORT_COLUMN.get(name, name)} {cell(name, value)}" for name, value in of.group.items())
    if plan == of.best:
        yield f"it is the best plan{group} by {of.by}" + ("" if of.bars.tied else ", and no other ties with it")
    elif of.tie:
        yield f"it is {of.behind:.1%} behind plan {of.best}, the best{group} by {of.by}: too little to tell them apart"
    else:
        yield f"it is {of.behind:.1%} behind plan {of.best}, the best{group} by {of.by}: more than the errors of the two differ"
    if of.tied:
        more = f" and {of.bars.tied - len(of.tied):,} more" if of.bars.tied > len(of.tied) else ""
        yield ties_of(of.bars)
        yield f"those that tie with plan {of.best}: {', '.join(map(str, of.tied))}{more}"


def _lines(lines: Iterable[str], console: Console) -> None:
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)


def _step(found: Explanation, console: Console) -> None:
    row = found.row
    rate = "" if row["mfu"] is None else f", MFU {row['mfu']:.1%} {found.peak}"
    console.print(f"\nstep {short(row['step_time_s'], 's')}, {short(row['samples_per_s'], '')} samples/s{rate}", soft_wrap=True)
    for part in PARTS:
        share = row[part] / row["step_time_s"]
        if row[part] > 0:
            console.print(f"  {_part(part):14} {short(row[part], 's'):>9} {share:>6.1%}  {'#' * round(share * BAR)}")
    if found.waiting is not None:
        console.print(f"  bubble: {_bubble(found.waiting, row)}", soft_wrap=True)


def _bubble(of: Waiting, row: Mapping[str, Any]) -> str:
    """What the bubble is made of, in shares of the step."""
    step_s = row["step_time_s"]
    heavier = f" (its blocks take {of.more:.1%} longer than the mean)" if of.more > 0 else ""
    unequal = f"{of.unequal_s / step_s:.1%} waiting for stage {of.fullest}, the fullest{heavier}"
    if of.schedule_s is None:
        return f"{of.rest_s / step_s:.1%} that every stage waits in schedule {row['schedule']}, {unequal}"
    formula = f"(pp-1)/(vpp ga) = {row['pp'] - 1}/{row['vpp'] * row['ga']} of the work of the other stages"
    return f"{of.schedule_s / step_s:.1%} the schedule's own, {formula}; {unequal}; {of.rest_s / step_s:.1%} other waiting"


def _part(name: str) -> str:
    return _NAME.get(name) or f"{name[:2].upper()} exposed"


def _memory(found: Explanation, console: Console) -> None:
    row = found.row
    have, peak = row["device_memory_bytes"], row["peak_memory_bytes"]
    if not found.runs and row["reason"] != "memory_exceeds_device":
        return
    if peak is None:
        if row["state_bytes"] is not None:
            state = short(row["state_bytes"], "B")
            console.print(f"\nmemory: state {state} of {short(have, 'B')}; activations are unknown", soft_wrap=True)
        return
    room = f"{short(have - peak, 'B')} of head-room" if have >= peak else f"{short(peak - have, 'B')} too much"
    console.print(f"\nmemory {short(peak, 'B')} of {short(have, 'B')} on the fullest stage, {room}")
    if found.shape is None:
        return
    of_stage = found.shape.memory
    stages = _stages(of_stage.shape[1])
    table = _table("", *(f"stage {stage}" for stage in stages))
    for name, values in zip(MEMORY, of_stage, strict=True):
        if values.max() > 0:
            table.add_row(name.removesuffix("_bytes"), *(short(float(values[stage]), "B") for stage in stages))
    print_table(table, console)


def _stages(count: int) -> list[int]:
    """The stages to show: all of few, else first, second, middle and last."""
    return list(range(count)) if count <= MOST_STAGES else [0, 1, count // 2, count - 1]


def _cure(one: Neighbour, found: Explanation) -> str:
    if found.bottleneck is None or found.bottleneck.part == "compute":
        return f"{one.change}: {_percent(gain(one, found.row))} per GPU"
    part = found.bottleneck.part
    left = one.row[part] / one.row["step_time_s"]
    return f"{one.change}: {left:.0%} left, {_percent(gain(one, found.row))} per GPU"


def _percent(value: float) -> str:
    return f"{value:+.1%}"


def _neighbours(found: Explanation, console: Console) -> None:
    """Those that run in a table, fastest first for a plan that cannot run; then those that cannot, by reason."""
    if not found.neighbours:
        return
    running = [one for one in found.neighbours if one.runs and not (found.runs and _same(one.row, found.row))]
    if not found.runs:
        running.sort(key=lambda one: float(one.row["gpu_s_per_sample"]))
        console.print("\nchanges of one axis that make it run" if running else "\nno change of one axis makes it run")
    else:
        console.print("\nchanges of one axis, simulated")
    if running:
        table = _table("change", "step", "speed per GPU", "MFU", "memory")
        for one in running:
            speed = _percent(gain(one, found.row)) if found.runs else "-"
            table.add_row(one.change, *(cell(name, one.row[name]) for name in ("step_time_s",)), speed,
                          *(cell(name, one.row[name]) for name in ("mfu", "peak_memory_bytes")))  # fmt: skip
        print_table(table, console)
        if any(one.row["mfu"] is not None and str(one.row.get("precision", ""))[:3] in NARROW for one in running):
            console.print("MFU of plans in fp8 and fp4, too, is of the peak in 16 bits", soft_wrap=True)
    own = "" if found.runs else _why(found.row)
    refused: dict[str, list[str]] = {}
    for one in found.neighbours:
        if not one.runs:
            refused.setdefault(_why(one.row), []).append(one.change)
    same = len(refused.pop(own, ())) if not found.runs else 0
    if refused:
        console.print("cannot run:" if found.runs else "for another reason:")
        for why, changes in refused.items():
            console.print(f"  {', '.join(changes)}: {why}", soft_wrap=True)
    if same:
        console.print(f"  {same} other change{'s' * (same != 1)}: as the plan itself")
    if found.nearest is not None:
        changes = [f"{name} {cell(name, value)}" for name, value in found.nearest.changes.items()]
        console.print(f"nearest plan of the result that runs: {found.nearest.plan}, with {', '.join(changes)}", soft_wrap=True)


def _same(row: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a change has changed nothing: layers that divide evenly are balanced."""
    alike = all(row[name] == own[name] for name in ("step_time_s", "all_gpus", "global_batch", "peak_memory_bytes"))
    return alike and row["hardware"] == own["hardware"]


def _why(row: Mapping[str, Any]) -> str:
    if row["reason"] == "memory_exceeds_device":
        return f"needs {short(row['peak_memory_bytes'] or row['state_bytes'], 'B')} of {short(row['device_memory_bytes'], 'B')}"
    return f"{row['reason']} ({EXPLANATIONS[row['reason']]})"


def print_difference(one: Explanation, other: Explanation, found: Difference, console: Console) -> None:
    """Print two plans side by side, and why one wins."""
    console.print(f"\nplan {one.plan} against plan {other.plan}")
    table = _table("", f"plan {one.plan}", f"plan {other.plan}", "difference")
    for name, (first, second) in found.fields.items():
        table.add_row(name, cell(name, first), cell(name, second), "")
    for name, delta in found.parts.items():
        if one.row[name] or other.row[name]:
            label = "step" if name == "step_time_s" else _part(name)
            table.add_row(label, short(one.row[name], "s"), short(other.row[name], "s"), _signed(delta, "s"))
    for name, delta in found.memory.items():
        if one.row[name] or other.row[name]:
            label = name.removesuffix("_bytes")
            table.add_row(label, short(one.row[name], "B"), short(other.row[name], "B"), _signed(delta, "B"))
    print_table(table, console)
    console.print(found.verdict, soft_wrap=True)


def _signed(value: float, unit: str) -> str:
    return f"{'-' if value < 0 else '+'}{short(abs(value), unit)}" if value else "0"


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for at, title in enumerate(titles):
        table.add_column(title, justify="right" if at else "left", no_wrap=True)
    return table


def values_of(found: Explanation) -> dict[str, Any]:
    """An explanation as plain values, for JSON."""
    shape = found.shape
    return {
        "plan": found.plan,
        "row": found.row,
        "told": list(found.told),
        "reason": found.reason or None,
        "groups": [] if shape is None else [{"name": g.name, "ranks": g.ranks, "nodes": g.nodes} for g in shape.groups],
        "layers": [] if shape is None else [list(stage) for stage in shape.layers],
        "stages": [] if shape is None else _stage_values(shape),
        "bottleneck": None
        if found.bottleneck is None
        else {
            "part": found.bottleneck.part,
            "share": found.bottleneck.share,
            "text": found.bottleneck.text,
            "changes": [one.change for one in found.bottleneck.cures],
        },
        "bubble": None if found.waiting is None else dataclasses.asdict(found.waiting),
        "mfu_of": found.peak or None,
        "neighbours": [{"axis": one.axis, "change": one.change, **one.row} for one in found.neighbours],
        "nearest": None if found.nearest is None else {"plan": found.nearest.plan, "changes": found.nearest.changes},
        "within": None if found.within is None else dataclasses.asdict(found.within),
        "measure_first": list(found.first),
        "notes": list(found.notes),
    }


def _stage_values(shape: Shape) -> list[dict[str, float | None]]:
    """Bytes of each stage by MEMORY, None where unknown."""
    return [
        {name: None if np.isnan(value) else float(value) for name, value in zip(MEMORY, column, strict=True)}
        for column in shape.memory.T
    ]
