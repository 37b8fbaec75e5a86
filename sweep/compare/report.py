"""A comparison as sections: sentences, tables, and the figures of its page."""

from collections.abc import Sequence
from dataclasses import replace

from sim_core import PLAN_FIELDS, Fields, plural
from sweep.answers.section import Section
from sweep.compare.result import MOVES, Comparison, Group, Moved, Point, Shift, Steps
from sweep.wording import SHORT_PART, Values, cell, heading, values_text

MAX_GROUPS = 40
NO_PLAN_IN_COMMON = "no plan is on both sides"
BEST_PLAN = "Best plan"
Figure = Fields
"""Data for charts.js."""


def sections(both: Comparison) -> list[Section]:
    """The whole comparison. Empty sections are left out, except for the inputs and the step times."""
    further = [_largest(both), *(_moved(both.moved[name], *words) for name, (_, *words) in MOVES.items())]
    told = (part for part in further if part.lines or part.table)
    changed = [change.text + " (changes no result)" * (not change.moves_results) for change in both.inputs]
    return [_head(both), Section("Inputs", changed or ["No input changed."]), _groups(both), _steps(both.steps), *told]


def percent(change: float) -> str:
    """A relative change with its sign: `+2.31 %`."""
    return f"{100 * change:+.3g} %" if change else "0 %"


def plan_text(values: Values, without: Sequence[str] = ()) -> str:
    """A plan in short form: `tp 2, pp 1, ckpt none`, leaving out `without` and columns that follow from others."""
    hidden = {*without, "plan", "step_time_s"}
    hidden |= {name for name, field in PLAN_FIELDS.items() if field.stands_for in {*values, *without}}
    return values_text({name: value for name, value in values.items() if name not in hidden}) or "the only plan"


def group_text(group: Values) -> str:
    """A group in short form; `all plans` if there is only one group."""
    return values_text(group) or "all plans"


def _head(both: Comparison) -> Section:
    lines = [
        f"Old: {both.old}, {plural(both.old_rows)}, of which {both.old_feasible:,} can run",
        f"New: {both.new}, {plural(both.new_rows)}, of which {both.new_feasible:,} can run",
        f"{plural(both.matched)} matched by value",
        *(f"Incomplete: {text}" for text in both.incomplete),
    ]
    if not both.matched:
        doubt = f"{NO_PLAN_IN_COMMON}: are these the same job? What is below compares two different sets of plans"
        lines.insert(0, f"warning: {doubt}")
    if both.old_failed or both.new_failed:
        lines.append(f"Failed plans: {both.old_failed:,} old, {both.new_failed:,} new")
    if both.matched_without:
        lines.append(f"{', '.join(both.matched_without)}: differs for all plans, so plans are matched without it")
    return Section(f"{both.name}: what changed", lines)


def _groups(both: Comparison) -> Section:
    by = heading(both.by)
    plans = ("new best plan", "old best plan", "its new rank")
    heads = ("group", f"old {by}", f"new {by}", "change", "old step", "new step", *plans)
    rows = [_group_row(group, both) for group in both.groups[:MAX_GROUPS]]
    left = len(both.groups) - MAX_GROUPS
    lines = [f"{'highest' if both.descending else 'lowest'} {both.by}" + (f", per {', '.join(both.per)}" * bool(both.per))]
    if left > 0:
        lines.append(f"and {plural(left, 'more group')} (all in the JSON form)")
    if not rows:
        lines.append("No plan can run on either side.")
    return Section(BEST_PLAN, lines, table=[heads, *rows] if rows else ())


def _group_row(group: Group, both: Comparison) -> list[str]:
    old, new, change = group.old, group.new, "-"
    plans = ["no plan can run" if new is None else plan_text(new.values, both.per)]
    plans.append("no plan could run" if old is None else plan_text(old.values, both.per))
    if old is not None and new is not None:
        change = percent(new.value / old.value - 1) if old.value else "-"
        if all(new.values.get(name) == value for name, value in old.values.items() if name not in both.matched_without):
            plans[1] = "the same"
    values = ("-" if side is None else cell(both.by, side.value) for side in (old, new))
    steps = ("-" if side is None else cell("step_time_s", side.step_time_s) for side in (old, new))
    rank = f"{group.old_plan_rank:,}" if group.old_plan_rank else group.old_plan_status or "-"
    return [group_text(group.group), *values, change, *steps, *plans, rank]


def _steps(steps: Steps) -> Section:
    if not steps.plans:
        return Section("Step times", ("No plan can run on both sides.",))
    if steps.same == steps.plans:
        return Section("Step times", (f"{plural(steps.plans)} on both sides, none changed.",))
    at = dict(steps.quantiles)
    lines = [
        f"{plural(steps.plans)} on both sides: {steps.slower:,} slower, {steps.faster:,} faster, {steps.same:,} the same",
        f"median {percent(at[0.5])}, 5 to 95 % {percent(at[0.05])} to {percent(at[0.95])}, "
        f"from {percent(at[0.0])} to {percent(at[1.0])}",
    ]
    if mean := steps.mean:
        before, after = (cell("step_time_s", seconds) for seconds in (mean.old_s, mean.new_s))
        lines.append(f"mean {before} -> {after}: {_parts_text(mean)}")
    if steps.causes:
        lines.append("mostly due to " + ", ".join(f"{name} ({plural(count)})" for name, count in steps.causes))
    return Section("Step times", lines)


def _parts_text(shift: Shift) -> str:
    """The parts that changed, largest first, with sign."""
    return ", ".join(f"{SHORT_PART[name]} {'+' * (delta > 0)}{cell(name, delta)}" for name, delta in shift.parts) or "no part"


def _largest(both: Comparison) -> Section:
    heads = ("plan", "its values", "old step", "new step", "change", "cause", "parts, new - old")
    rows = []
    for shift in both.largest:
        steps = (cell("step_time_s", seconds) for seconds in (shift.old_s, shift.new_s))
        told = (percent(shift.change), shift.cause or "-", _parts_text(shift))
        rows.append((str(shift.values["plan"]), plan_text(shift.values), *steps, *told))
    return Section("Largest changes", table=[heads, *rows] if rows else ())


def _moved(moved: Moved, title: str, by: str) -> Section:
    lines = [f"{plural(moved.plans)}, {by}: " + ", ".join(f"{why} {count:,}" for why, count in moved.reasons)] * bool(
        moved.plans
    )
    rows = [(str(row["plan"]), plan_text(row), cell("step_time_s", row["step_time_s"])) for row in moved.best]
    return Section(title, lines, table=[("plan", "fastest of them", "step"), *rows] if rows else ())


def paged(parts: Sequence[Section], history: Sequence[Point]) -> Section:
    """The sections of one sweep as one section of a page, with figures of the nights, if any."""
    return replace(parts[0], figures=tuple(_of_nights(history) if history else ()), below=tuple(parts[1:]))


def _of_nights(history: Sequence[Point]) -> list[tuple[str, Figure]]:
    """Best steps, ranks and plans that can run, night by night."""
    nights = [point.label for point in history]
    feasible = [point.feasible for point in history]
    worst = max([rank for point in history for rank in point.champion_rank.values() if rank] or [1])
    # logarithmic, with rank 1 on top
    ticks = [step * 10**k for k in range(len(str(worst))) for step in (1, 2, 5) if step * 10**k <= max(worst, 10)]
    count = {"domain": [0, max([*feasible, 1]) * 1.05]}
    ranks = {"domain": [max(worst, 10) * 1.3, 0.7], "log": True, "ticks": ticks}

    def lines(field: str, axis: Figure) -> Figure:
        """One line per group, with gaps for missing values."""
        names = dict.fromkeys(name for point in history for name in getattr(point, field))
        series = [{"name": name, "values": [getattr(point, field).get(name) for point in history]} for name in names]
        return {"kind": "lines", "x": {"names": nights}, "y": axis, "series": series}

    return [
        ("Step time of the best plan, s", lines("best_step_s", _step_axis(history))),
        ("New rank of the best plan of the night before", lines("champion_rank", ranks)),
        ("Plans that can run", {"kind": "bars", "x": {"names": nights}, "y": count, "values": feasible}),
    ]


def _step_axis(history: Sequence[Point]) -> Figure:
    """Logarithmic if the groups are far apart."""
    steps = [step for point in history for step in point.best_step_s.values() if step]
    if not steps:
        return {"domain": [0, 1], "unit": "s"}
    low, high = min(steps), max(steps)
    if high > 5 * low:
        return {"domain": [low / 1.2, high * 1.2], "log": True, "unit": "s"}
    margin = 0.1 * (high - low)
    return {"domain": [low - margin, high + margin], "unit": "s"}
