"""A comparison as sections of sentences and tables, and sections as terminal text or Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sweep.compare.result import Comparison, Group, Moved, Shift, Steps
from sweep.show.tables import SHORT_COLUMN, SHORT_PART, TABLE_WIDTH, cell

MAX_GROUPS: Final = 40
BEST_PLAN: Final = "Best plan"
_FOLLOWS: Final = {"dp": "all_gpus", "global_batch": "ga"}
"""Plan columns that need not be printed if the other one is."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, sentences, and a table of text, its headings in the first row (empty for no table)."""

    heading: str
    lines: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()


def sections(found: Comparison) -> list[Section]:
    """The whole comparison. Empty sections are left out, except for the inputs and the step times."""
    return [
        _head(found),
        _inputs(found),
        _groups(found),
        *_steps(found.steps),
        *_largest(found),
        *_moved("Became infeasible", found.became_infeasible, "by new reason"),
        *_moved("Now failing", found.became_failed, "by new reason"),
        *_moved("Became feasible", found.became_feasible, "by old reason"),
        *_moved("New plans", found.new_plans, "by status or reason"),
        *_moved("Vanished plans", found.vanished_plans, "by old status or reason"),
    ]


def percent(change: float) -> str:
    """A relative change with its sign: `+2.31 %`."""
    return f"{100 * change:+.3g} %" if change else "0 %"


def plan_text(values: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """A plan in short form: `tp 2, pp 1, ckpt none`, leaving out `without` and columns that follow from others."""
    known = {*values, *without}
    hidden = {*without, "plan", "step_time_s", *(name for name, other in _FOLLOWS.items() if other in known)}
    parts = [f"{SHORT_COLUMN.get(name, name)} {cell(name, value)}" for name, value in values.items() if name not in hidden]
    return ", ".join(parts) or "the only plan"


def group_text(group: Mapping[str, Any]) -> str:
    """A group in short form; `all plans` if there is only one group."""
    return ", ".join(f"{SHORT_COLUMN.get(name, name)} {cell(name, value)}" for name, value in group.items()) or "all plans"


def _plural(count: int, word: str = "plan") -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def _head(found: Comparison) -> Section:
    lines = [
        f"Old: {found.old}, {_plural(found.old_rows)}, of which {found.old_feasible:,} can run",
        f"New: {found.new}, {_plural(found.new_rows)}, of which {found.new_feasible:,} can run",
        f"{_plural(found.matched)} matched by value",
        *(f"Incomplete: {text}" for text in found.incomplete),
    ]
    if found.old_failed or found.new_failed:
        lines.append(f"Failed plans: {found.old_failed:,} old, {found.new_failed:,} new")
    if found.matched_without:
        lines.append(f"{', '.join(found.matched_without)}: differs for all plans, so plans are matched without it")
    return Section(heading=f"{found.name}: what changed", lines=tuple(lines))


def _inputs(found: Comparison) -> Section:
    lines = [change.text + ("" if change.moves_results else " (changes no result)") for change in found.inputs]
    return Section(heading="Inputs", lines=tuple(lines) or ("No input changed.",))


def _groups(found: Comparison) -> Section:
    by = SHORT_COLUMN.get(found.by, found.by)
    heads = (
        "group",
        f"old {by}",
        f"new {by}",
        "change",
        "old step",
        "new step",
        "new best plan",
        "old best plan",
        "its new rank",
    )
    rows = [_group_row(group, found) for group in found.groups[:MAX_GROUPS]]
    left = len(found.groups) - MAX_GROUPS
    lines = [f"{'highest' if found.descending else 'lowest'} {found.by}" + (f", per {', '.join(found.per)}" * bool(found.per))]
    if left > 0:
        lines.append(f"and {_plural(left, 'more group')} (all in the JSON form)")
    if not rows:
        return Section(heading=BEST_PLAN, lines=(*lines, "No plan can run on either side."))
    return Section(heading=BEST_PLAN, lines=tuple(lines), table=(heads, *rows))


def _group_row(group: Group, found: Comparison) -> tuple[str, ...]:
    old, new = group.old, group.new
    change = "-" if old is None or new is None or not old.value else percent(new.value / old.value - 1)
    same = old is not None and new is not None and _plan(old.values, found) == _plan(new.values, found)
    return (
        group_text(group.group),
        cell(found.by, old.value) if old else "-",
        cell(found.by, new.value) if new else "-",
        change,
        cell("step_time_s", old.step_time_s) if old else "-",
        cell("step_time_s", new.step_time_s) if new else "-",
        plan_text(new.values, found.per) if new else "no plan can run",
        "the same" if same else plan_text(old.values, found.per) if old else "no plan could run",
        f"{group.old_plan_rank:,}" if group.old_plan_rank else group.old_plan_status or "-",
    )


def _plan(values: Mapping[str, Any], found: Comparison) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in found.matched_without}


def _steps(steps: Steps) -> list[Section]:
    if not steps.plans:
        return [Section(heading="Step times", lines=("No plan can run on both sides.",))]
    if steps.same == steps.plans:
        return [Section(heading="Step times", lines=(f"{_plural(steps.plans)} on both sides, none changed.",))]
    at = dict(steps.quantiles)
    lines = [
        f"{_plural(steps.plans)} on both sides: {steps.slower:,} slower, {steps.faster:,} faster, {steps.same:,} the same",
        f"median {percent(at[0.5])}, 5 to 95 % {percent(at[0.05])} to {percent(at[0.95])}, "
        f"from {percent(at[0.0])} to {percent(at[1.0])}",
    ]
    if steps.mean:
        lines.append(
            f"mean {cell('step_time_s', steps.mean.old_s)} -> {cell('step_time_s', steps.mean.new_s)}: {parts_text(steps.mean)}"
        )
    if steps.causes:
        lines.append("mostly due to " + ", ".join(f"{name} ({_plural(count)})" for name, count in steps.causes))
    return [Section(heading="Step times", lines=tuple(lines))]


def parts_text(shift: Shift) -> str:
    """The parts that changed, largest first, with sign."""
    return ", ".join(f"{SHORT_PART[name]} {'+' * (delta > 0)}{cell(name, delta)}" for name, delta in shift.parts) or "no part"


def _largest(found: Comparison) -> list[Section]:
    if not found.largest:
        return []
    heads = ("plan", "its values", "old step", "new step", "change", "cause", "parts, new - old")
    rows = [
        (
            str(shift.values["plan"]),
            plan_text(shift.values),
            cell("step_time_s", shift.old_s),
            cell("step_time_s", shift.new_s),
            percent(shift.change),
            shift.cause or "-",
            parts_text(shift),
        )
        for shift in found.largest
    ]
    return [Section(heading="Largest changes", table=(heads, *rows))]


def _moved(heading: str, moved: Moved, by: str) -> list[Section]:
    if not moved.plans:
        return []
    lines = (f"{_plural(moved.plans)}, {by}: " + ", ".join(f"{why} {count:,}" for why, count in moved.reasons),)
    rows = [(str(row["plan"]), plan_text(row), cell("step_time_s", row["step_time_s"])) for row in moved.best]
    return [Section(heading=heading, lines=lines, table=(("plan", "fastest of them", "step"), *rows) if rows else ())]


def print_sections(parts: Sequence[Section], console: Console) -> None:
    """Print sections; tables are not truncated, however narrow the terminal."""
    wide = Console(
        file=console.file, width=max(console.width, TABLE_WIDTH), markup=False, highlight=False, no_color=True, soft_wrap=True
    )
    for part in parts:
        console.print(f"{part.heading}", highlight=False)
        for line in part.lines:
            console.print(f"  {line}", soft_wrap=True, highlight=False)
        if part.table:
            table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
            for head in part.table[0]:
                table.add_column(head, no_wrap=True)
            for row in part.table[1:]:
                table.add_row(*row)
            wide.print(table)


def markdown(parts: Sequence[Section], level: int = 2) -> str:
    """Sections as Markdown."""
    text: list[str] = []
    for part in parts:
        text += [f"{'#' * level} {_escaped(part.heading)}", ""]
        text += [f"- {_escaped(line)}" for line in part.lines] + [""] * bool(part.lines)
        if part.table:
            head, *rows = part.table
            text += [_row(head), _row(["---"] * len(head)), *map(_row, rows), ""]
    return "\n".join(text)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(text) for text in cells) + " |"


def _escaped(text: str) -> str:
    """`text` with the special characters of Markdown and HTML escaped."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text
