"""Screens of an explained plan: words, bars of step and memory, neighbours; and two plans side by side."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from rich.console import Console

from sim_core import EXPLANATIONS, MEMORY, PARTS, Shape, plural, short
from sweep.explaining.among import Within
from sweep.explaining.bottleneck import Waiting, gain
from sweep.explaining.explanation import NARROW, Difference, Explanation
from sweep.explaining.neighbours import Neighbour
from sweep.show.ranked import ties_of
from sweep.show.tables import cell, print_table, values_text
from sweep.uncertainty.evidence import LEVEL

BAR: Final = 40
MOST_STAGES: Final = 4


def print_explanation(told: Explanation, console: Console) -> None:
    """Print everything about one plan."""
    console.print(f"plan {told.plan}")
    _print_lines(told.told, console)
    if told.runs:
        _print_step(told, console)
    else:
        console.print(f"\n{told.row['status']}: {told.reason}")
    _print_memory(told, console)
    if told.bottleneck is not None:
        console.print(f"\nbottleneck: {told.bottleneck.text}")
        cures = [_cure(cure, told) for cure in told.bottleneck.cures]
        _print_lines(cures or ["no single change makes it smaller and the plan faster"], console)
    _print_neighbours(told, console)
    if told.within is not None:
        console.print("\nwithin the error")
        _print_lines(_within(told.plan, told.within), console)
    if told.first:
        console.print("\nto measure first")
        _print_lines(told.first, console)
    for note in told.notes:
        console.print(f"note: {note}")


def _within(plan: int, of: Within) -> Iterator[str]:
    """A plan and its rivals, one line each."""
    yield f"its step is {of.low:.2f} to {of.high:.2f} x the simulated one ({LEVEL:.0%}; {of.why})"
    group = "".join(f" of {values_text({name: value})}" for name, value in of.group.items())
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


def _print_lines(lines: Iterable[str], console: Console) -> None:
    for line in lines:
        console.print(f"  {line}")


def _print_step(told: Explanation, console: Console) -> None:
    row = told.row
    rate = "" if row["mfu"] is None else f", MFU {row['mfu']:.1%} {told.peak}"
    console.print(f"\nstep {short(row['step_time_s'], 's')}, {short(row['samples_per_s'], '')} samples/s{rate}")
    for part in PARTS:
        share = row[part] / row["step_time_s"]
        if row[part] > 0:
            console.print(f"  {_part(part):14} {short(row[part], 's'):>9} {share:>6.1%}  {'#' * round(share * BAR)}")
    if told.waiting is not None:
        console.print(f"  bubble: {_bubble(told.waiting, row)}")


def _bubble(of: Waiting, row: Mapping[str, Any]) -> str:
    """What the bubble is made of, in shares of the step."""
    step_s = row["step_time_s"]
    heavier = f" (its blocks take {of.more:.1%} longer than the mean)" if of.more > 0 else ""
    unequal = f"{of.unequal_s / step_s:.1%} waiting for stage {of.fullest}, the fullest{heavier}"
    if of.own is None or of.schedule_s is None:
        return f"{of.rest_s / step_s:.1%} that every stage waits in schedule {row['schedule']}, {unequal}"
    turns = row["vpp"] * row["ga"]
    fills = math.isclose(of.own * turns, row["pp"] - 1)
    part = f"(pp-1)/(vpp ga) = {row['pp'] - 1}/{turns}" if fills else f"{of.own:.1%}"
    own = f"{of.schedule_s / step_s:.1%} the schedule's own, {part} of the work of the other stages"
    return f"{own}; {unequal}; {of.rest_s / step_s:.1%} other waiting"


def _part(name: str) -> str:
    plain = name.removesuffix("_s").removeprefix("compute_")
    return f"{plain.removesuffix('_exposed').upper()} exposed" if plain.endswith("_exposed") else plain


def _print_memory(told: Explanation, console: Console) -> None:
    row = told.row
    have, peak = row["device_memory_bytes"], row["peak_memory_bytes"]
    if not told.runs and row["reason"] != "memory_exceeds_device":
        return
    if peak is None:
        if row["state_bytes"] is not None:
            console.print(f"\nmemory: state {short(row['state_bytes'], 'B')} of {short(have, 'B')}; activations are unknown")
        return
    room = f"{short(have - peak, 'B')} of head-room" if have >= peak else f"{short(peak - have, 'B')} too much"
    console.print(f"\nmemory {short(peak, 'B')} of {short(have, 'B')} on the fullest stage, {room}")
    if told.shape is None:
        return
    of_stage = told.shape.memory
    count = of_stage.shape[1]
    stages = range(count) if count <= MOST_STAGES else (0, 1, count // 2, count - 1)
    rows = [
        [name.removesuffix("_bytes"), *(short(float(values[stage]), "B") for stage in stages)]
        for name, values in zip(MEMORY, of_stage, strict=True)
        if values.max() > 0
    ]
    print_table(["", *(f"stage {stage}" for stage in stages)], rows, console, left=(0,))


def _cure(change: Neighbour, told: Explanation) -> str:
    """What a change leaves of the bottleneck, and what it gains."""
    left = ""
    if told.bottleneck is not None and told.bottleneck.part != "compute":
        left = f"{change.row[told.bottleneck.part] / change.row['step_time_s']:.0%} left, "
    return f"{change.change}: {left}{gain(change, told.row):+.1%} per GPU"


def _print_neighbours(told: Explanation, console: Console) -> None:
    """Those that run in a table, fastest first for a plan that cannot run; then those that cannot, by reason."""
    if not told.neighbours:
        return
    running = [each for each in told.neighbours if each.runs and not (told.runs and _same(each.row, told.row))]
    if told.runs:
        console.print("\nchanges of one axis, simulated")
    else:
        running.sort(key=lambda each: float(each.row["gpu_s_per_sample"]))
        console.print("\nchanges of one axis that make it run" if running else "\nno change of one axis makes it run")
    if running:
        rows = []
        for each in running:
            step, mfu, memory = (cell(name, each.row[name]) for name in ("step_time_s", "mfu", "peak_memory_bytes"))
            rows.append([each.change, step, f"{gain(each, told.row):+.1%}" if told.runs else "-", mfu, memory])
        print_table(("change", "step", "speed per GPU", "MFU", "memory"), rows, console, left=(0,))
        if any(each.row["mfu"] is not None and str(each.row.get("precision", ""))[:3] in NARROW for each in running):
            console.print("MFU of plans in fp8 and fp4, too, is of the peak in 16 bits")
    refused: dict[str, list[str]] = {}
    for each in told.neighbours:
        if not each.runs:
            refused.setdefault(_why(each.row), []).append(each.change)
    same = 0 if told.runs else len(refused.pop(_why(told.row), ()))
    if refused:
        console.print("cannot run:" if told.runs else "for another reason:")
        _print_lines((f"{', '.join(changes)}: {why}" for why, changes in refused.items()), console)
    if same:
        console.print(f"  {plural(same, 'other change')}: as the plan itself")
    if told.nearest is not None:
        changes = [f"{name} {cell(name, value)}" for name, value in told.nearest.changes.items()]
        console.print(f"nearest plan of the result that runs: {told.nearest.plan}, with {', '.join(changes)}")


def _same(row: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether a change has changed nothing: layers that divide evenly are balanced."""
    alike = all(row[name] == own[name] for name in ("step_time_s", "all_gpus", "global_batch", "peak_memory_bytes"))
    return alike and row["hardware"] == own["hardware"]


def _why(row: Mapping[str, Any]) -> str:
    if row["reason"] == "memory_exceeds_device":
        return f"needs {short(row['peak_memory_bytes'] or row['state_bytes'], 'B')} of {short(row['device_memory_bytes'], 'B')}"
    return f"{row['reason']} ({EXPLANATIONS[row['reason']]})"


def print_difference(first: Explanation, second: Explanation, apart: Difference, console: Console) -> None:
    """Print two plans side by side, and why one wins."""
    console.print(f"\nplan {first.plan} against plan {second.plan}")
    rows = [[name, *(cell(name, value) for value in values), ""] for name, values in apart.fields.items()]
    for deltas, unit in ((apart.parts, "s"), (apart.memory, "B")):
        for name, delta in deltas.items():
            label = "step" if name == "step_time_s" else _part(name) if unit == "s" else name.removesuffix("_bytes")
            values = (first.row[name], second.row[name])
            if any(values):
                rows.append([label, *(short(value, unit) for value in values), _signed(delta, unit)])
    print_table(("", f"plan {first.plan}", f"plan {second.plan}", "difference"), rows, console, left=(0,))
    console.print(apart.verdict)


def _signed(value: float, unit: str) -> str:
    return f"{'-' if value < 0 else '+'}{short(abs(value), unit)}" if value else "0"


def values_of(told: Explanation) -> dict[str, Any]:
    """An explanation as plain values, for JSON."""
    shape, held_back = told.shape, told.bottleneck
    bottleneck: dict[str, Any] | None = None
    if held_back is not None:
        bottleneck = {"part": held_back.part, "share": held_back.share, "text": held_back.text}
        bottleneck["changes"] = [cure.change for cure in held_back.cures]
    return {
        "plan": told.plan,
        "row": told.row,
        "told": list(told.told),
        "reason": told.reason or None,
        "groups": [] if shape is None else [{"name": g.name, "ranks": g.ranks, "nodes": g.nodes} for g in shape.groups],
        "layers": [] if shape is None else [list(stage) for stage in shape.layers],
        "stages": [] if shape is None else _stage_values(shape),
        "bottleneck": bottleneck,
        "bubble": None if told.waiting is None else dataclasses.asdict(told.waiting),
        "mfu_of": told.peak or None,
        "neighbours": [{"axis": each.axis, "change": each.change, **each.row} for each in told.neighbours],
        "nearest": None if told.nearest is None else {"plan": told.nearest.plan, "changes": told.nearest.changes},
        "within": None if told.within is None else dataclasses.asdict(told.within),
        "measure_first": list(told.first),
        "notes": list(told.notes),
    }


def _stage_values(shape: Shape) -> list[dict[str, float | None]]:
    """Bytes of each stage by MEMORY, None where unknown."""
    return [
        {name: None if np.isnan(value) else float(value) for name, value in zip(MEMORY, column, strict=True)}
        for column in shape.memory.T
    ]
