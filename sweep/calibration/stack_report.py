"""A calibrated stack as lines: what the runs told, what no run can see, how well it fits; the page, and lines to paste."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from sim_core import STACK_FACTS, Floats, Stack, plural
from sweep.calibration.fitting import Fit, Told
from sweep.calibration.numbers import changed
from sweep.calibration.stack_choice import Chosen
from sweep.runs.table import Row

FROM_CODE: Final = "none: "
"""What `told_by` of a fact begins with that no run tells."""
ALONE, LEAST = 3.0, 5.0
"""A run left out that is off by so many times its error (or that many percent) tells what no other run does."""


def stack_lines(fit: Fit[Stack]) -> Iterator[str]:
    """The facts that runs told, with interval and run; those that none can see; errors before, after and left out."""
    for row, why in fit.not_used:
        yield f"not used: {row.where}: {why}"
    yield f"page {fit.base.name}, {plural(len(fit.rows), 'run')}, the best of {fit.starts} starts; intervals of 90 %"
    for told in fit.told:
        if told.row is not None:
            fact = STACK_FACTS[told.fact]
            change = f"{fact.text(told.before)} -> {fact.text(told.after)}"
            yield f"  {told.fact:24} {change:28} {_interval(told)}, told by {run_name(told.row)}"
    yield from _unseen(fit)
    before, after, left_out = (float(np.mean(np.abs(errors))) for errors in (fit.before, fit.after, fit.left_out))
    yield f"mean error of {len(fit.rows)} runs: {before:.1f} % before, {after:.1f} % after, {left_out:.1f} % each left out"
    if left_out >= before:
        yield "warning: runs left out are no nearer than on the page: nothing here shows that it helps other plans"
    for row, errors in zip(fit.rows, zip(fit.before, fit.after, fit.left_out, strict=True), strict=True):
        alone = "; it alone tells something" if abs(errors[2]) > ALONE * max(abs(errors[1]), LEAST) else ""
        yield f"  {run_name(row)}: {errors[0]:+.1f} % before, {errors[1]:+.1f} % after, {errors[2]:+.1f} % left out{alone}"


def rest_line(rows: int, before: Floats, after: Floats) -> str:
    """Mean errors of runs that were not fitted, in percent."""
    return f"the other {plural(rows, 'run')}: {np.mean(np.abs(before)):.1f} % before, {np.mean(np.abs(after)):.1f} % after"


def missing_lines(chosen: list[Chosen]) -> Iterator[str]:
    """The purposes that no plan serves."""
    for one in chosen:
        if one.at is None:
            yield f"no plan for: {one.purpose.name} ({one.purpose.tells})"


def workload_lines(fit: Fit[Stack], preset: str) -> Iterator[str]:
    """Lines of a spec to paste."""
    yield "workload:"
    yield "  stack:"
    yield f"    preset: {preset}"
    for fact, value in fit.facts.items():
        yield f"    {fact}: {_plain(STACK_FACTS[fact].plain(_rounded(value)))}"


def page_of_fit(fit: Fit[Stack], name: str, source: str) -> Stack:
    """The page with what the runs told, each fact with its interval and run as its source."""
    sources = {
        told.fact: f"{source}: {_interval(told)}, told by {run_name(told.row)}" for told in fit.told if told.row is not None
    }
    facts = {fact: _rounded(value) for fact, value in fit.facts.items()}
    described = f"{fit.base.source} (page {fit.base.name}, {len(facts)} facts fitted to {source})"
    return fit.base.model_copy(update={**facts, "name": name, "source": described, "sources": {**fit.base.sources, **sources}})


def run_name(row: Row) -> str:
    """A run by its place and its plan."""
    names = {"gpus": "all_gpus", "tp": "tp", "pp": "pp", "mbs": "micro_batch"}
    sizes = " ".join(f"{key} {row.size(name)}" for key, name in names.items())
    return f"{row.where} ({sizes})"


def _unseen(fit: Fit[Stack]) -> Iterator[str]:
    """Facts that stay as they were: which run would tell them, and those that no step tells."""
    by_run: dict[str, list[str]] = {}
    for told in fit.told:
        if told.row is None:
            by_run.setdefault(STACK_FACTS[told.fact].told_by, []).append(told.fact)
    for run, names in by_run.items():
        yield f"  not told by these runs: {', '.join(names)} (what would: {run})"
    others: dict[str, list[str]] = {}
    for name, fact in STACK_FACTS.items():
        if name not in {told.fact for told in fit.told}:
            others.setdefault("from its code" if fact.told_by.startswith(FROM_CODE) else fact.told_by, []).append(name)
    for how, names in others.items():
        yield f"  no run's step tells: {', '.join(names)} (what would: {how.removeprefix(FROM_CODE)})"


def _interval(told: Told) -> str:
    fact = STACK_FACTS[told.fact]
    return f"{fact.text(told.low)} to {fact.text(told.high)}"


def _rounded(value: Any) -> Any:
    """To four digits."""
    return changed(value, lambda part: float(f"{part:.4g}"))


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {part}" for key, part in value.items()) + "}"
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value)
