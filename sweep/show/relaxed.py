"""The screen of `rank --relax`: what each constraint costs, and the plan that is the best without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console

from sim_core import short
from sweep.relaxing import DEVICE, WHERE, Relaxed
from sweep.show.tables import SHORT_COLUMN, cell, plain_table

NOTHING: Final = 5e-5
"""A gain below this is none."""
LEAST: Final = 16
"""Characters of a constraint that are shown, however narrow the terminal."""


def print_relaxed(found: Sequence[Relaxed], notes: Sequence[str], console: Console) -> None:
    """Print each group: the best plan now, then the constraints, the dearest first."""
    groups = list(dict.fromkeys(tuple(one.group.items()) for one in found))
    for group in groups:
        _print_group([one for one in found if tuple(one.group.items()) == group], console)
    if not found:
        console.print("No constraint: the spec has no `where`, --where is not given, and every plan fits into its device.")
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)


def _print_group(found: Sequence[Relaxed], console: Console) -> None:
    first = found[0]
    told = "".join(f"{SHORT_COLUMN.get(name, name)} {cell(name, value)}: " for name, value in first.group.items())
    now = "no plan can run now" if first.now is None else f"best now is plan {first.now['plan']}"
    value = "" if first.now is None else f", {first.by} {cell(first.by, first.now[first.by])}"
    console.print(f"{told}{now}{value}", soft_wrap=True, highlight=False)
    columns = [[_constraint(one) for one in found], [_cost(one) for one in found]]
    columns += [["" if one.without is None else cell(one.by, one.without[one.by]) for one in found]]
    columns += [["" if one.without is None else str(one.without["plan"]) for one in found]]
    headings = ["constraint", "costs", SHORT_COLUMN.get(first.by, first.by), "plan"]
    if console.is_terminal:
        others = sum(max(map(len, (head, *cells))) + 2 for head, cells in zip(headings[1:], columns[1:], strict=True))
        columns[0] = [_shortened(text, max(console.width - others - 2, LEAST)) for text in columns[0]]
    plain_table(headings, columns, console, left=1)
    for one in found:
        if one.better > NOTHING or (one.now is None and one.without is not None):
            console.print(f"{_constraint(one)}: {_told(one)}", soft_wrap=True, highlight=False)


def _constraint(one: Relaxed) -> str:
    return one.constraint if one.origin in (WHERE, DEVICE) else f"{one.origin} {one.constraint}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\u2026"


def _cost(one: Relaxed) -> str:
    """What the constraint costs, in percent of what is ranked by."""
    if one.without is None:
        return "no plan"
    if one.now is None:
        return "all"
    return f"{one.better:.1%}" if one.better > NOTHING else "nothing"


def _told(one: Relaxed) -> str:
    """The plan that wins without the constraint: what is other in it, and the memory that it needs."""
    row = one.without or {}
    changes = ", ".join(f"{SHORT_COLUMN.get(name, name)} {cell(name, value)}" for name, value in one.changes.items())
    text = f"plan {row.get('plan')} has {changes or 'the same values'}"
    need, have = row.get("peak_memory_bytes"), row.get("device_memory_bytes")
    if one.origin == DEVICE and need is not None and have is not None:
        text += f"; needs {short(need, 'B')}, has {short(have, 'B')}"
    kept = f"; it alone keeps {one.excluded:,} plan{'s' * (one.excluded != 1)} out"
    return text + kept
