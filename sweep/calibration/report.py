"""How well a hardware file fits the measurements that it is made of, as lines."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from sim_core import Hardware, SpecError, plural
from sweep.calibration.fitting import Fit, Told
from sweep.calibration.kernels import KernelFit
from sweep.calibration.links import LinksFit
from sweep.calibration.runs import COMPUTE, FIXED, NETWORK, SURE

MOST_FAR: Final = 8
_WIDE: Final = 46
NAMES: Final = {COMPUTE: "compute", NETWORK: "network", FIXED: "fixed"}


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
    for what, middle, high in fit.left_out:
        if not math.isnan(middle):
            yield f"  {what}: sizes left out in turn are computed within {middle:.1f} % (90th: {high:.0f} %)"
    yield from (f"  {note}" for note in fit.notes)


def runs_lines(fit: Fit[Hardware]) -> Iterator[str]:
    """Numbers from measured steps: what was fitted and what was not, and errors before, after, and of runs left out."""
    for why, count in Counter(why for _, why in fit.not_used).items():
        yield f"not used: {count} x {why}"
    yield from map(_told, fit.told)
    before, after, left_out = (float(np.mean(np.abs(errors))) for errors in (fit.before, fit.after, fit.left_out))
    yield f"mean error of {len(fit.rows)} runs: {before:.1f} % before, {after:.1f} % after"
    yield f"of runs whose plan was left out when the numbers were chosen and fitted: {left_out:.1f} %"
    if left_out >= before:
        yield "runs left out are not predicted better than before: expect nothing of this file for other plans"


def hardware_of_fit(fit: Fit[Hardware], source: str) -> Hardware:
    """The device with what the runs told, each number with its standard error. Raises SpecError if they told nothing."""
    if not fit.facts:
        off, why = float(np.mean(np.abs(fit.before))), "; ".join(map(_told, fit.told))
        raise SpecError(f"{source}: nothing to fit: {fit.base.name} as it is is {off:.1f} % off; {why}")
    values: dict[str, object] = {}
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
