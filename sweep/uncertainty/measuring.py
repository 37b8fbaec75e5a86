"""Which runs would break a tie of plans: the few whose measurement is expected to save the most."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from sim_core import Floats
from sweep.uncertainty.evidence import CONFIDENCE, Basis, t3_quantile
from sweep.uncertainty.judging import Judgement, OwnRuns, covariance_of

RUNS: Final = 3
MINUTES: Final = 5
MOST_PLANS: Final = 32
"""Tied plans that are weighed against each other: those with the best chances."""
DRAWS: Final = 1000
NOISE: Final = 0.005
"""Standard deviation of a step measured over some minutes, relative."""
LEAST_VARIANCE: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to measure. Losses: how much slower the pick is than the fastest of the tied plans, in the mean, a fraction."""

    rows: tuple[int, ...]  # plans to run, as rows of what was judged; empty if nothing ties with the best
    tied: int  # plans that tie now, the best included
    tied_after: float  # expected, of those that were weighed
    weighed: int
    loss: float  # of picking the best as simulated
    loss_after: float


def advise(
    rows: pa.Table,
    columns: Sequence[str],
    seconds: Floats,
    judged: Judgement,
    basis: Basis,
    own: OwnRuns | None = None,
    runs: int = RUNS,
) -> Advice:
    """The `runs` plans of the tie group whose measurement lowers the expected loss of the pick the most, chosen one by one.

    Arguments as for `judge`. Expected over draws of the plans' errors from `basis.differences`, always the same ones.
    """
    tied = np.flatnonzero(judged.tie)
    if len(tied) < 2 or basis.differences is None or basis.spread is None:
        return Advice(rows=(), tied=len(tied), tied_after=float(len(tied)), weighed=len(tied), loss=0.0, loss_after=0.0)
    chosen = tied[np.argsort(-judged.chance[tied], kind="stable")[:MOST_PLANS]]
    known = _Errors(rows.take(chosen), columns, np.log(seconds[chosen] * judged.expected[chosen]), basis, own)
    picked: tuple[int, ...] = ()
    for _ in range(min(runs, len(chosen))):
        rest = [plan for plan in range(len(chosen)) if plan not in picked]
        losses = [known.loss((*picked, plan)) for plan in rest]
        picked = (*picked, rest[int(np.argmin(losses))])
    return Advice(
        rows=tuple(int(chosen[plan]) for plan in picked),
        tied=len(tied),
        tied_after=known.tied(picked),
        weighed=len(chosen),
        loss=known.loss(()),
        loss_after=known.loss(picked),
    )


class _Errors:
    """Draws of the true times of some plans, and what a pick is worth once some of them are measured."""

    def __init__(self, rows: pa.Table, columns: Sequence[str], expected: Floats, basis: Basis, own: OwnRuns | None) -> None:
        n = len(expected)
        self._covariance = covariance_of(rows, columns, basis, own)
        self._expected = expected
        generator = np.random.default_rng(0)
        root = np.linalg.cholesky(self._covariance + np.eye(n) * LEAST_VARIANCE)
        self._errors = generator.standard_normal((DRAWS, n)) @ root.T
        self._noise = generator.standard_normal((DRAWS, n)) * NOISE
        self._true = expected + self._errors
        self._least = self._true.min(1)

    def loss(self, measured: tuple[int, ...]) -> float:
        """Mean loss of the pick once these were measured."""
        pick = self._expected_after(measured)[0].argmin(1)
        return float(np.expm1(self._true[np.arange(DRAWS), pick] - self._least).mean())

    def tied(self, measured: tuple[int, ...]) -> float:
        """Mean number of plans that then still tie with the pick, itself included."""
        expected, covariance = self._expected_after(measured)
        pick, own = expected.argmin(1), np.diag(covariance)
        variance = np.maximum(own[None] + own[pick][:, None] - 2 * covariance[pick], LEAST_VARIANCE)
        behind = (expected - expected[np.arange(DRAWS), pick][:, None]) / np.sqrt(variance)
        return float((behind <= t3_quantile(CONFIDENCE)).sum(1).mean())

    def _expected_after(self, measured: tuple[int, ...]) -> tuple[Floats, Floats]:
        """ln of the time expected of each plan in each draw, [draws, n], and the covariance of what is left, [n, n]."""
        at = list(measured)
        if not at:
            return np.tile(self._expected, (DRAWS, 1)), self._covariance
        gain = np.linalg.solve(self._covariance[np.ix_(at, at)] + np.eye(len(at)) * NOISE**2, self._covariance[at]).T
        expected = self._expected + (self._errors[:, at] + self._noise[:, at]) @ gain.T
        return expected, self._covariance - gain @ self._covariance[at]
