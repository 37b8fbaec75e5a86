"""Error bars of the published runs: recorded beside the figures, held to leave-one-set-out coverage, printed for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sweep.uncertainty.evidence import DENSE, EXPERTS, LEVEL, Evidence
from sweep.uncertainty.fitting import fit
from sweep.validation.residuals import residuals
from sweep.validation.simulation import Run

ALL: Final = "all"
LEAST, MOST = 85.0, 95.0
"""Percent of the runs of sets that were left out which intervals at LEVEL have to hold."""
KINDS: Final = {DENSE: "dense models", EXPERTS: "models with experts"}


def evidence_of(runs: Sequence[Run]) -> Evidence:
    """What the runs say of errors; runs of at least two sets."""
    return fit(residuals(runs))


def out_of_bounds(found: Evidence) -> list[str]:
    """A line if intervals hold too few or too many of the runs of sets that were left out."""
    held = found.coverage[ALL]
    if LEAST <= held <= MOST:
        return []
    return [f"error bars: {LEVEL:.0%} intervals hold {held:.1f} % of the runs of sets left out, expected {LEAST:g} to {MOST:g}"]


def as_markdown(found: Evidence) -> str:
    """Intervals by class, differences of plans, and what they hold of sets that were left out."""
    lines = [
        "| class | runs | sets | measured step over simulated, 90 % | ratio of two plans a doubling apart |",
        "|---|--:|--:|---|--:|",
    ]
    for kind, name in KINDS.items():
        spread, differences = found.spreads[kind], found.differences[kind]
        low, high = np.expm1(spread.low), np.expm1(spread.high)
        apart = float(np.sqrt(differences.variogram(np.array(1.0))))
        lines.append(f"| {name} | {spread.runs} | {spread.sets} | {low:+.0%} to {high:+.0%} | {apart:.1%} |")
    lines += ["", "Left out, one set after the other:", "", "| set | runs held, % | pairs of plans held, % |", "|---|--:|--:|"]
    for name, held in sorted(found.coverage.items(), key=lambda item: (item[0] == ALL, item[0])):
        pairs = found.pair_coverage.get(name)
        shown = f"**{name}**" if name == ALL else name
        lines.append(f"| {shown} | {held:.0f} | {'-' if pairs is None else f'{pairs:.0f}'} |")
    return "\n".join(lines)
