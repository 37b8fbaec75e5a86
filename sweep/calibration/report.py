"""How well a hardware file, or the page of a stack, fits the measurements that it is made of, as lines; and what is written."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sim_core import STACK_FACTS, Floats, Hardware, SpecError, Stack, plural
from sweep.calibration.fitting import Fit, Told
from sweep.calibration.kernels import KernelFit
from sweep.calibration.links import LinksFit
from sweep.calibration.numbers import changed
from sweep.calibration.stack_launch import Chosen
from sweep.calibration.steps import COMPUTE, FIXED, NETWORK, SURE
from sweep.runs.table import Row

MOST_FAR = 8
_WIDE = 46
NAMES = {COMPUTE: "compute", NETWORK: "network", FIXED: "fixed"}


def links_lines(fit: LinksFit) -> Iterator[str]:
    """Numbers of a network: what was fitted, how well, and what is still far off."""
    for number in fit.numbers:
        kept = f": {number.left}, left as it was" if number.left else ""
        yield f"{number.key}: {number.before:.4g} -> {number.value:.4g} ({plural(number.sizes, 'size')}){kept}"
    for placed, before, after in fit.errors:
        table = placed.table
        what = f"{table.operation}, {placed.nodes} x {table.ranks / placed.nodes:g} GPUs, {plural(len(table.rows), 'size')}"
        left = f", {plural(table.left_out, 'row')} left out" if table.left_out else ""
        yield f"{placed.path}:{table.line}: {what}{left}: median error {before:.1f} -> {after:.1f} %"
    for placed, size, ratio in fit.far[:MOST_FAR]:
        yield f"still far: {placed.path}: {placed.table.operation} of {size:,} bytes: {ratio:.2f} of the measured time"
    if len(fit.far) > MOST_FAR:
        yield f"still far: {plural(len(fit.far) - MOST_FAR, 'size')} more"


def kernels_lines(fit: KernelFit, base: Hardware) -> Iterator[str]:
    """Measured kernels against those of the preset, by class."""
    if fit.hardware.surface is not None:
        yield fit.hardware.surface.source
    yield f"measured seconds over those of {base.name} without its factors: median (10 % to 90 % of the shapes)"
    for kind in fit.classes:
        yield f"  {kind.name:{_WIDE}} {kind.middle:.2f} ({kind.low:.2f} to {kind.high:.2f}), {plural(kind.shapes, 'shape')}"
    yield from (f"  {note}" for note in fit.notes)


def runs_lines(fit: Fit[Hardware]) -> Iterator[str]:
    """Numbers from measured steps: what was fitted and what was not, and errors before, after, and of runs left out."""
    for why, count in Counter(why for _, why in fit.not_used).items():
        yield f"not used: {count} x {why}"
    yield from map(_told, fit.told)
    before, after, left_out = fit.mean_errors
    yield f"mean error of {len(fit.rows)} runs: {before:.1f} % before, {after:.1f} % after"
    yield f"of runs whose plan was left out when the numbers were chosen and fitted: {left_out:.1f} %"
    if left_out >= before:
        yield "runs left out are not predicted better than before: expect nothing of this file for other plans"


def hardware_of_fit(fit: Fit[Hardware], source: str) -> Hardware:
    """The device with what the runs told, each number with its standard error. Raises SpecError if they told nothing."""
    if not fit.facts:
        why = "; ".join(map(_told, fit.told))
        raise SpecError(f"{source}: nothing to fit: {fit.base.name} as it is is {fit.mean_errors[0]:.1f} % off; {why}")
    values = {}
    for told in fit.told:
        if told.row is not None:
            value = float(f"{told.after:.4g}")
            stated = f"{_told(told)}, fitted to {plural(len(fit.rows), 'run')} of {source}"
            values[told.fact] = {"value": value if told.number.factor else f"{value!r} s", "source": stated}
    return fit.base.with_values(values)


def _told(told: Told) -> str:
    """What became of a number: its change with the standard error, or why it stays."""
    number = told.number
    scale, unit = (100, "%") if number.factor else (1, "s")
    error, limit = (f"{scale * number.width * left:.2g} {unit}" for left in (told.left, number.seen))
    if told.row is None:
        why = f"known to {error} only (limit: {limit})" if told.left < 1 else "no step of these runs depends on it"
        if told.left <= number.seen:
            why = f"no further from no change than {SURE:g} standard errors"
        return f"{NAMES[told.fact]}: left as it is ({told.fact} {told.before:.4g}): {why}"
    change = f"{told.after / told.before:.3f}" if number.factor else f"{told.after - told.before:.3g} s a step"
    return f"{NAMES[told.fact]}: {change}, +- {error} ({told.fact} {told.before:.4g} -> {told.after:.4g})"


FROM_CODE = "none: "
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
    before, after, left_out = fit.mean_errors
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
