"""Search among some plans: bound all, simulate the most promising, stop when no bound is below what is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sweep.evaluation import bounded, evaluate
from sweep.preparation import Sweep
from sweep.search.frontier import Frontier
from sweep.search.objective import group_keys

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BEATEN: Final = "bound_beaten"
"""Counted for a plan that was not simulated: even its bound is worse than the best."""
WORSE: Final = "not_among_best"
"""Counted for a plan that was simulated, and is worse than the best."""
FIRST_BATCH: Final = 64
"""Plans simulated at first; twice as many each time."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was found among some plans: the rows that can be in the answer, and how many are not rows, by reason."""

    rows: pa.RecordBatch
    counted: dict[str, int]


def search_among(sweep: Sweep, positions: Ints, frontier: Frontier) -> Searched:
    """Search among `positions`; adds what it simulates to `frontier`."""
    objective = frontier.objective
    found = bounded(sweep, positions)
    optimistic = objective.cost(found)
    legal = pc.equal(found.column("reason"), "").to_numpy(zero_copy_only=False)
    counted = Counter(found.column("reason").filter(pa.array(~legal)).to_pylist()) if not legal.all() else Counter()
    rows = np.flatnonzero(legal)
    keys, group = group_keys(found.take(pa.array(rows)), objective.per)
    cost = optimistic[rows]
    # the most promising first: nearest to the best bound of its group
    lowest = np.full(len(keys), np.inf)
    np.minimum.at(lowest, group, cost)
    order = np.argsort(cost - lowest[group], kind="stable")
    tables: list[pa.RecordBatch] = []
    begin, size = 0, FIRST_BATCH
    while True:
        ahead = order[begin:]
        open_ = ahead[~(cost[ahead] > frontier.limits(keys)[group[ahead]])]
        chosen = open_[:size]
        if not len(chosen):
            break
        begin += int(np.flatnonzero(np.isin(ahead, chosen))[-1]) + 1
        size *= 2
        simulated = evaluate(sweep, positions[rows[chosen]])
        tables.append(simulated)
        frontier.simulated += simulated.num_rows
        frontier.tightness += _tightness(found.take(pa.array(rows[chosen])), simulated)
        take_in(simulated, frontier)
    if not tables:
        counted[BEATEN] += len(rows)
        return Searched(rows=evaluate(sweep, positions[:0]), counted=_plain(counted))
    (all_simulated,) = pa.Table.from_batches(tables).unify_dictionaries().combine_chunks().to_batches()
    counted[BEATEN] += len(rows) - all_simulated.num_rows
    kept = in_answer(all_simulated, frontier)
    reasons = all_simulated.column("reason").filter(pa.array(~kept)).to_pylist()
    counted.update(reason or WORSE for reason in reasons)
    return Searched(
        rows=all_simulated.filter(pa.array(kept)),
        counted=_plain(counted),
    )


def in_answer(rows: pa.RecordBatch, frontier: Frontier) -> npt.NDArray[np.bool_]:
    """Which simulated rows the answer can hold by what is known: the best, equals of the last, and all that failed."""
    keys, group = group_keys(rows, frontier.objective.per)
    cost = frontier.objective.cost(rows)
    status = rows.column("status").cast(pa.string()).to_numpy(zero_copy_only=False)
    kept: npt.NDArray[np.bool_] = (cost <= frontier.limits(keys)[group]) | (status == "failed")
    return kept


def take_in(rows: pa.RecordBatch, frontier: Frontier) -> None:
    """Add simulated rows to `frontier`."""
    cost = frontier.objective.cost(rows)
    ranked = pc.equal(rows.column("status"), "ok").to_numpy(zero_copy_only=False) & ~np.isnan(cost)
    rows = rows.filter(pa.array(ranked))
    keys, group = group_keys(rows, frontier.objective.per)
    frontier.add(keys, group, cost[ranked], rows.column("plan").to_numpy())


def _tightness(bounds: pa.RecordBatch, simulated: pa.RecordBatch) -> float:
    ratio = bounds.column("step_time_s").to_numpy(zero_copy_only=False) / simulated.column("step_time_s").to_numpy(
        zero_copy_only=False
    )
    return float(np.nansum(ratio))


def _plain(counted: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in sorted(counted.items()) if count}
