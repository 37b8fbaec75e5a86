"""Search among some plans: bound all, simulate the most promising, stop when no bound is below what is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sweep.evaluation import bounded, evaluate
from sweep.preparation import Sweep
from sweep.search.blocks import Blocks
from sweep.search.frontier import Frontier
from sweep.search.objective import group_keys
from sweep.slice_file import Slice

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BEATEN: Final = "bound_beaten"
"""Counted for a plan that was not simulated: even its bound is worse than the best."""
WORSE: Final = "not_among_best"
"""Counted for a plan that was simulated, and is worse than the best."""
FIRST_BATCH: Final = 64
"""Plans simulated at first; twice as many each time."""
FIRST_MEMBERS: Final = 1024
"""About so many plans of blocks are bounded one by one at first; twice as many each time ..."""
MEMBERS: Final = 16_384
"""... up to these."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What was found among some plans: the rows that can be in the answer, and how many are not rows, by reason."""

    rows: pa.RecordBatch
    counted: dict[str, int]
    plans: int  # of both


def search_blocks(sweep: Sweep, blocks: Blocks, part: Slice, frontier: Frontier) -> Searched:
    """Search a slice of the places in `blocks`; only blocks whose coarse bound is not beaten are looked into."""
    if not blocks.pays:
        return search_among(sweep, blocks.numbers(np.arange(part.start, part.stop)), frontier)
    number = np.arange(part.start // blocks.width, -(-part.stop // blocks.width))
    begin, end = np.maximum(number * blocks.width, part.start), np.minimum((number + 1) * blocks.width, part.stop)
    counted, promise = _promise(bounded(sweep, blocks.standing_for(number), coarse=True), frontier, end - begin)
    left, most = promise.order, FIRST_MEMBERS
    searched: list[Searched] = []
    members: Iterable[Ints]
    while True:
        left = promise.still_open(left, frontier)
        if not len(left):
            break
        rows = promise.rows[left]
        taken = max(1, int(np.searchsorted(np.cumsum((end - begin)[rows]), most, side="right")))
        if taken > 1:
            members = [np.concatenate([np.arange(begin[row], end[row]) for row in rows[:taken]])]
        else:  # perhaps a large one
            cuts = range(begin[rows[0]], end[rows[0]], MEMBERS)
            members = (np.arange(cut, min(cut + MEMBERS, end[rows[0]])) for cut in cuts)
        searched += [search_among(sweep, blocks.numbers(places), frontier) for places in members]
        left, most = left[taken:], min(2 * most, MEMBERS)
    looked_into = sum(each.plans for each in searched)
    counted[BEATEN] += int((end - begin)[promise.rows].sum()) - looked_into
    for each in searched:
        counted.update(each.counted)
    return _joined(sweep, [each.rows for each in searched], counted, frontier)


def search_among(sweep: Sweep, positions: Ints, frontier: Frontier) -> Searched:
    """Search among `positions`; adds what it simulates to `frontier`."""
    found = bounded(sweep, positions)
    counted, promise = _promise(found, frontier, np.ones(len(positions), np.int64))
    left, size = promise.order, FIRST_BATCH
    tables: list[pa.RecordBatch] = []
    while True:
        left = promise.still_open(left, frontier)
        if not len(left):
            break
        chosen, left, size = promise.rows[left[:size]], left[size:], 2 * size
        simulated = evaluate(sweep, positions[chosen])
        tables.append(simulated)
        frontier.simulated += simulated.num_rows
        frontier.tightness += _tightness(found.take(pa.array(chosen)), simulated)
        take_in(simulated, frontier)
    counted[BEATEN] += len(promise.rows) - sum(table.num_rows for table in tables)
    return _joined(sweep, tables, counted, frontier)


@dataclass(frozen=True, kw_only=True)
class _Promise:
    """The legal among some rows, with what they can cost at best, most promising first."""

    rows: Ints
    cost: Floats
    keys: list[bytes]
    group: Ints
    order: Ints  # of `rows`, `cost` and `group`

    def still_open(self, ahead: Ints, frontier: Frontier) -> Ints:
        """Those of `ahead`, a part of the order, that can be in the answer by what is found."""
        return ahead[~(self.cost[ahead] > frontier.limits(self.keys)[self.group[ahead]])]


def _promise(found: pa.RecordBatch, frontier: Frontier, plans: Ints) -> tuple[Counter[str], _Promise]:
    """Bounded rows, each of which stands for some plans: how many of these cannot run, by reason, and the others."""
    objective = frontier.objective
    legal = pc.equal(found.column("reason"), "").to_numpy(zero_copy_only=False)
    counted: Counter[str] = Counter()
    if not legal.all():
        reasons = found.column("reason")
        of_reason = np.bincount(reasons.indices.to_numpy()[~legal], plans[~legal])
        counted.update({reasons.dictionary[k].as_py(): int(count) for k, count in enumerate(of_reason) if count})
    rows = np.flatnonzero(legal)
    keys, group = group_keys(found.select(["plan", *objective.per]).take(pa.array(rows)), objective.per)
    cost = objective.cost(found)[rows]
    # the most promising first: nearest to the best bound of its group
    lowest = np.full(len(keys), np.inf)
    np.minimum.at(lowest, group, cost)
    order = np.argsort(cost - lowest[group], kind="stable")
    return counted, _Promise(rows=rows, cost=cost, keys=keys, group=group, order=order)


def _joined(sweep: Sweep, tables: list[pa.RecordBatch], counted: Counter[str], frontier: Frontier) -> Searched:
    """Simulated rows as one batch, without those that cannot be in the answer, which are counted."""
    plans = sum(counted.values()) + sum(table.num_rows for table in tables)
    if not tables:
        return Searched(rows=evaluate(sweep, np.empty(0, np.int64)), counted=_plain(counted), plans=plans)
    (rows,) = pa.Table.from_batches(tables).unify_dictionaries().combine_chunks().to_batches() or tables[:1]
    kept = in_answer(rows, frontier)
    reasons = rows.column("reason").filter(pa.array(~kept)).to_pylist()
    counted.update(reason or WORSE for reason in reasons)
    return Searched(rows=rows.filter(pa.array(kept)), counted=_plain(counted), plans=plans)


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
