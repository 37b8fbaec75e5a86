"""Apply the thresholds to a comparison: regressions in words, each with the numbers that make it one."""

from __future__ import annotations

from sweep.compare.report import group_text, percent
from sweep.compare.result import Comparison, Group
from sweep.nightly.spec import Thresholds
from sweep.show.tables import SHORT_COLUMN, cell


def regressions(found: Comparison, limits: Thresholds) -> list[str]:
    """One line per regression, the most serious kind first."""
    lines = [line for group in found.groups if (line := _of_group(group, found, limits))]
    change = dict(found.steps.quantiles).get(0.5)
    if limits.median_step is not None and change is not None and change > limits.median_step:
        mean = found.steps.mean
        cause = f", mostly {mean.cause}" if mean and mean.cause else ""
        lines.append(f"median step time {percent(change)} (threshold {percent(limits.median_step)[1:]}){cause}")
    lost = found.became_infeasible.plans + found.became_failed.plans
    if limits.infeasible is not None and lost > limits.infeasible:
        why = ", ".join(
            f"{reason} {count:,}" for reason, count in found.became_infeasible.reasons + found.became_failed.reasons
        )
        lines.append(f"{lost:,} plans can no longer run ({why}; threshold {limits.infeasible:,})")
    return lines


def _of_group(group: Group, found: Comparison, limits: Thresholds) -> str | None:
    where = f"{group_text(group.group)}: " if group.group else ""
    if group.old is None:
        return None
    if group.new is None:
        return f"{where}no plan can run any more" if limits.best is not None else None
    if limits.best is not None and group.worse is not None and group.worse > limits.best:
        values = f"{cell(found.by, group.old.value)} -> {cell(found.by, group.new.value)}"
        change = percent(group.new.value / group.old.value - 1)
        name = SHORT_COLUMN.get(found.by, found.by)
        return f"{where}best {name} {values}, {change} (threshold {percent(limits.best)[1:]})"
    if limits.champion_rank is not None:
        rank = group.old_plan_rank
        if rank is None or rank > limits.champion_rank:
            now = f"now ranks {rank:,}" if rank else f"is now {group.old_plan_status}"
            return f"{where}the best plan of the baseline {now} (threshold {limits.champion_rank})"
    return None
