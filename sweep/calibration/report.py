"""How well a hardware file fits the measurements that it is made of, as lines."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from sim_core import Hardware, plural
from sweep.calibration.kernels import KernelFit
from sweep.calibration.links import Fit
from sweep.calibration.runs import Fitted, RunsFit

MOST_FAR: Final = 8
_WIDE: Final = 46


def links_lines(fit: Fit) -> Iterator[str]:
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


def runs_lines(fit: RunsFit) -> Iterator[str]:
    """Numbers from measured steps: what was fitted and what was not, and errors before, after, and of runs left out."""
    yield from (f"not used: {count} x {why}" for why, count in fit.not_used.items())
    yield from (f"{number.name}: {_fitted(number)}" for number in fit.numbers)
    before, after, left_out = (float(np.mean(np.abs(errors))) for errors in (fit.before, fit.after, fit.left_out))
    yield f"mean error of {len(fit.rows)} runs: {before:.1f} % before, {after:.1f} % after"
    yield f"of runs whose plan was left out when the numbers were chosen and fitted: {left_out:.1f} %"
    if left_out >= before:
        yield "runs left out are not predicted better than before: expect nothing of this file for other plans"


def _fitted(number: Fitted) -> str:
    if number.error is None:
        return f"left as it is ({number.key} {number.before:.4g}): {number.why}"
    change = f"{number.key} {number.before:.4g} -> {number.after:.4g}"
    if number.name == "fixed":
        return f"{number.value:.3g} s a step, +- {number.error:.2g} s ({change})"
    return f"{number.value:.3f}, +- {number.error * 100:.1f} % ({change})"
