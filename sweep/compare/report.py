"""A comparison as sections: sentences, tables, and the figures of its page."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sim_core import PLAN_FIELDS, plural
from sweep.answers.section import Section
from sweep.compare.result import Comparison, Group, Moved, Point, Shift, Steps
from sweep.wording import SHORT_PART, cell, heading, values_text

MAX_GROUPS: Final = 40
NO_PLAN_IN_COMMON: Final = "no plan is on both sides"
BEST_PLAN: Final = "Best plan"
_UP: Final = "var(--c1)"
_DOWN: Final = "var(--c0)"


def sections(both: Comparison) -> list[Section]:
    """The whole comparison. Empty sections are left out, except for the inputs and the step times."""
    return [
        _head(both),
        _inputs(both),
        _groups(both),
        *_steps(both.steps),
        *_largest(both),
        *_moved("Became infeasible", both.became_infeasible, "by new reason"),
        *_moved("Now failing", both.became_failed, "by new reason"),
        *_moved("Became feasible", both.became_feasible, "by old reason"),
        *_moved("New plans", both.new_plans, "by status or reason"),
        *_moved("Vanished plans", both.vanished_plans, "by old status or reason"),
    ]


def percent(change: float) -> str:
    """A relative change with its sign: `+2.31 %`."""
    return f"{100 * change:+.3g} %" if change else "0 %"


def plan_text(values: Mapping[str, Any], without: Sequence[str] = ()) -> str:
    """A plan in short form: `tp 2, pp 1, ckpt none`, leaving out `without` and columns that follow from others."""
    hidden = {*without, "plan", "step_time_s"}
    hidden |= {name for name, field in PLAN_FIELDS.items() if field.stands_for in {*values, *without}}
    return values_text({name: value for name, value in values.items() if name not in hidden}) or "the only plan"


def group_text(group: Mapping[str, Any]) -> str:
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
        lines.insert(
            0, f"warning: {NO_PLAN_IN_COMMON}: are these the same job? What is below compares two different sets of plans"
        )
    if both.old_failed or both.new_failed:
        lines.append(f"Failed plans: {both.old_failed:,} old, {both.new_failed:,} new")
    if both.matched_without:
        lines.append(f"{', '.join(both.matched_without)}: differs for all plans, so plans are matched without it")
    return Section(heading=f"{both.name}: what changed", lines=tuple(lines))


def _inputs(both: Comparison) -> Section:
    lines = [change.text + ("" if change.moves_results else " (changes no result)") for change in both.inputs]
    return Section(heading="Inputs", lines=tuple(lines) or ("No input changed.",))


def _groups(both: Comparison) -> Section:
    by = heading(both.by)
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
    rows = [_group_row(group, both) for group in both.groups[:MAX_GROUPS]]
    left = len(both.groups) - MAX_GROUPS
    lines = [f"{'highest' if both.descending else 'lowest'} {both.by}" + (f", per {', '.join(both.per)}" * bool(both.per))]
    if left > 0:
        lines.append(f"and {plural(left, 'more group')} (all in the JSON form)")
    if not rows:
        return Section(heading=BEST_PLAN, lines=(*lines, "No plan can run on either side."))
    return Section(heading=BEST_PLAN, lines=tuple(lines), table=(heads, *rows))


def _group_row(group: Group, both: Comparison) -> tuple[str, ...]:
    old, new = group.old, group.new
    change = "-" if old is None or new is None or not old.value else percent(new.value / old.value - 1)
    same = old is not None and new is not None and _plan(old.values, both) == _plan(new.values, both)
    return (
        group_text(group.group),
        cell(both.by, old.value) if old else "-",
        cell(both.by, new.value) if new else "-",
        change,
        cell("step_time_s", old.step_time_s) if old else "-",
        cell("step_time_s", new.step_time_s) if new else "-",
        plan_text(new.values, both.per) if new else "no plan can run",
        "the same" if same else plan_text(old.values, both.per) if old else "no plan could run",
        f"{group.old_plan_rank:,}" if group.old_plan_rank else group.old_plan_status or "-",
    )


def _plan(values: Mapping[str, Any], both: Comparison) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in both.matched_without}


def _steps(steps: Steps) -> list[Section]:
    if not steps.plans:
        return [Section(heading="Step times", lines=("No plan can run on both sides.",))]
    if steps.same == steps.plans:
        return [Section(heading="Step times", lines=(f"{plural(steps.plans)} on both sides, none changed.",))]
    at = dict(steps.quantiles)
    lines = [
        f"{plural(steps.plans)} on both sides: {steps.slower:,} slower, {steps.faster:,} faster, {steps.same:,} the same",
        f"median {percent(at[0.5])}, 5 to 95 % {percent(at[0.05])} to {percent(at[0.95])}, "
        f"from {percent(at[0.0])} to {percent(at[1.0])}",
    ]
    if steps.mean:
        lines.append(
            f"mean {cell('step_time_s', steps.mean.old_s)} -> {cell('step_time_s', steps.mean.new_s)}: {parts_text(steps.mean)}"
        )
    if steps.causes:
        lines.append("mostly due to " + ", ".join(f"{name} ({plural(count)})" for name, count in steps.causes))
    return [Section(heading="Step times", lines=tuple(lines))]


def parts_text(shift: Shift) -> str:
    """The parts that changed, largest first, with sign."""
    return ", ".join(f"{SHORT_PART[name]} {'+' * (delta > 0)}{cell(name, delta)}" for name, delta in shift.parts) or "no part"


def _largest(both: Comparison) -> list[Section]:
    if not both.largest:
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
        for shift in both.largest
    ]
    return [Section(heading="Largest changes", table=(heads, *rows))]


def _moved(title: str, moved: Moved, by: str) -> list[Section]:
    if not moved.plans:
        return []
    lines = (f"{plural(moved.plans)}, {by}: " + ", ".join(f"{why} {count:,}" for why, count in moved.reasons),)
    rows = [(str(row["plan"]), plan_text(row), cell("step_time_s", row["step_time_s"])) for row in moved.best]
    return [Section(heading=title, lines=lines, table=(("plan", "fastest of them", "step"), *rows) if rows else ())]


def paged(parts: Sequence[Section], both: Comparison | None, history: Sequence[Point]) -> Section:
    """The sections of one sweep as one section of a page, with figures of its comparison and of the nights, if any."""
    figures = _of_nights(history) if history else [] if both is None else _of_two(both)
    if both is not None and both.steps.histogram and both.steps.same < both.steps.plans:
        figures.append(("Plans by change of their step time", _histogram(both.steps)))
    if both is not None and both.steps.mean is not None and both.steps.mean.parts:
        figures.append(("Parts of the mean step, new - old, s", _parts(both.steps.mean)))
    return replace(parts[0], figures=tuple(figures), below=tuple(parts[1:]))


def _of_nights(history: Sequence[Point]) -> list[tuple[str, dict[str, Any]]]:
    ranks = [rank for point in history for rank in point.champion_rank.values() if rank]
    return [
        ("Step time of the best plan, s", _lines(history, "best_step_s", _step_axis(history))),
        ("New rank of the best plan of the night before", _lines(history, "champion_rank", _rank_axis(max(ranks, default=1)))),
        ("Plans that can run", _feasible(history)),
    ]


def _of_two(both: Comparison) -> list[tuple[str, dict[str, Any]]]:
    """Two results side by side: the best step of each group, and where the old best plan is now."""
    names = (f"old: {_place(both.old)}", f"new: {_place(both.new)}")
    sides = [[group.old for group in both.groups[:MAX_GROUPS]], [group.new for group in both.groups[:MAX_GROUPS]]]
    series = [
        {"name": name, "values": [each and each.step_time_s for each in side]} for name, side in zip(names, sides, strict=True)
    ]
    groups = [group_text(group.group) for group in both.groups[:MAX_GROUPS]]
    most = max((each.step_time_s for side in sides for each in side if each), default=1.0)
    axis = {"domain": [0, most * 1.05], "unit": "s"}
    best = {"kind": "pairs", "x": {"names": groups}, "y": axis, "series": series}
    count = {
        "kind": "bars",
        "x": {"names": list(names)},
        "y": {"domain": [0, max(both.old_feasible, both.new_feasible, 1) * 1.05]},
        "values": [both.old_feasible, both.new_feasible],
    }
    return [("Step time of the best plan", best), ("Plans that can run", count)]


def _place(folder: str) -> str:
    """The last name of a folder or URI."""
    return folder.rstrip("/").rpartition("/")[2] or folder


def _step_axis(history: Sequence[Point]) -> dict[str, Any]:
    """Logarithmic if the groups are far apart."""
    steps = [step for point in history for step in point.best_step_s.values() if step]
    if not steps:
        return {"domain": [0, 1], "unit": "s"}
    low, high = min(steps), max(steps)
    if high > 5 * low:
        return {"domain": [low / 1.2, high * 1.2], "log": True, "unit": "s"}
    margin = 0.1 * (high - low)
    return {"domain": [low - margin, high + margin], "unit": "s"}


def _rank_axis(worst: int) -> dict[str, Any]:
    """Logarithmic, with rank 1 on top."""
    ticks = [step * 10**k for k in range(len(str(worst))) for step in (1, 2, 5) if step * 10**k <= max(worst, 10)]
    return {"domain": [max(worst, 10) * 1.3, 0.7], "log": True, "ticks": ticks}


def _lines(history: Sequence[Point], field: str, axis: dict[str, Any]) -> dict[str, Any]:
    """One line per group over the nights, with gaps for missing values."""
    names = dict.fromkeys(name for point in history for name in getattr(point, field))
    series = [{"name": name, "values": [getattr(point, field).get(name) for point in history]} for name in names]
    return {"kind": "lines", "x": {"names": [point.label for point in history]}, "y": axis, "series": series}


def _feasible(history: Sequence[Point]) -> dict[str, Any]:
    values = [point.feasible for point in history]
    axis = {"domain": [0, max([*values, 1]) * 1.05]}
    return {"kind": "bars", "x": {"names": [point.label for point in history]}, "y": axis, "values": values}


def _histogram(steps: Steps) -> dict[str, Any]:
    """Plans by the middle of their bin, in per cent."""
    middles = [50 * (low + high) for low, high, _ in steps.histogram]
    values = [count for *_, count in steps.histogram]
    return {
        "kind": "bars",
        "x": {"names": [f"{middle:+.3g} %" for middle in middles]},
        "y": {"domain": [0.7, max(values) * 1.5], "log": True},
        "values": values,
        "colours": [_UP if middle > 0 else _DOWN for middle in middles],
    }


def _parts(mean: Shift) -> dict[str, Any]:
    values = [delta for _, delta in mean.parts]
    return {
        "kind": "bars",
        "x": {"names": [SHORT_PART[name] for name, _ in mean.parts]},
        "y": {"domain": [min([*values, 0.0]) * 1.05, max([*values, 0.0]) * 1.05], "unit": "s"},
        "values": values,
        "colours": [_UP if delta > 0 else _DOWN for delta in values],
    }
