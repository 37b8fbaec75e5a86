"""Search among some plans: bound all, simulate the most promising, stop when no bound is below the best found."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim_core import Bools, Ints
from sweep.evaluation.evaluation import bounded, evaluate
from sweep.evaluation.preparation import Sweep
from sweep.results.slice_file import Slice
from sweep.search.ahead import Frontier, count_reasons, of_blocks, of_bounded, promise_of, refined
from sweep.search.blocks import Blocks
from sweep.search.objective import group_keys, same_numbers

BEATEN: Final = "bound_beaten"
"""The reason of plans that were not simulated: even their bound is worse than the best."""
WORSE: Final = "not_among_best"
"""The reason of plans that were simulated and are worse than the best."""
ELSEWHERE: Final = -1
"""Instead of a reason: a block of another slice."""
FIRST_BATCH: Final = 64
"""Plans simulated at first, or one for each group; twice as many each time."""
FIRST_MEMBERS: Final = 1024
"""Plans of blocks, about, that are bounded one by one at first; twice as many each time ..."""
MEMBERS: Final = 16_384
"""... up to these."""


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What came of some plans: rows that can be in the answer, and by reason how many of the others there are."""

    rows: pa.RecordBatch
    counted: dict[str, int]
    plans: int  # of both


def search_blocks(sweep: Sweep, blocks: Blocks, part: Slice, frontier: Frontier) -> Searched:
    """Search a slice of the places in `blocks`; blocks whose coarse bound is worse than what was found are passed over."""
    if not blocks.pays:
        return search_among(sweep, blocks.numbers(np.arange(part.start, part.stop)), frontier)
    of_family = blocks.width * blocks.family
    families = np.arange(part.start // of_family, -(-part.stop // of_family))
    first = int(families[0]) * blocks.family
    number = np.arange(first, first + len(families) * blocks.family)
    plans = np.maximum(np.minimum((number + 1) * blocks.width, part.stop) - np.maximum(number * blocks.width, part.start), 0)
    ahead = of_blocks(sweep, blocks, frontier.objective, families, rough=True)
    counted = count_reasons(ahead, plans)
    ahead = replace(ahead, reason=np.where(plans > 0, ahead.reason, ELSEWHERE))
    ahead = refined(sweep, blocks, families, ahead, promise_of(ahead, frontier).rows, frontier)
    promise = promise_of(ahead, frontier)
    counted[BEATEN] = counted.pop("", 0)
    left, most = promise.order, FIRST_MEMBERS
    searched: list[Searched] = []
    while True:
        left = promise.still_open(left, frontier)
        if not len(left):
            break
        rows = promise.rows[left]
        taken = max(1, int(np.searchsorted(np.cumsum(plans[rows]), most, side="right")))
        places = np.concatenate([np.arange(0), *(_members(blocks, part, first + row) for row in rows[:taken])])
        cuts = range(0, len(places), MEMBERS)  # one block may be a large one
        searched += [search_among(sweep, blocks.numbers(places[cut : cut + MEMBERS]), frontier) for cut in cuts]
        left, most = left[taken:], min(2 * most, MEMBERS)
    counted[BEATEN] -= sum(each.plans for each in searched)
    for each in searched:
        counted.update(each.counted)
    return _joined(sweep, [each.rows for each in searched], counted, frontier)


def _members(blocks: Blocks, part: Slice, block: int) -> Ints:
    """Places of a block in a slice."""
    return np.arange(max(block * blocks.width, part.start), min((block + 1) * blocks.width, part.stop))


def search_among(sweep: Sweep, positions: Ints, frontier: Frontier) -> Searched:
    """Search among `positions`; adds what it simulates to `frontier`."""
    bounds = bounded(sweep, positions)
    ahead = of_bounded(bounds, frontier.objective)
    counted, promise = count_reasons(ahead, np.ones(len(positions), np.int64)), promise_of(ahead, frontier)
    left, size = promise.order, max(FIRST_BATCH, len(np.unique(promise.group)))
    tables: list[pa.RecordBatch] = []
    while True:
        left = promise.still_open(left, frontier)
        if not len(left):
            break
        chosen, left, size = promise.rows[left[:size]], left[size:], 2 * size
        simulated = evaluate(sweep, positions[chosen])
        tables.append(simulated)
        frontier.simulated += simulated.num_rows
        frontier.tightness += _tightness(bounds.take(pa.array(chosen)), simulated)
        take_in(simulated, frontier)
    counted[BEATEN] = counted.pop("", 0) - sum(table.num_rows for table in tables)
    return _joined(sweep, tables, counted, frontier)


def _joined(sweep: Sweep, tables: list[pa.RecordBatch], counted: Counter[str], frontier: Frontier) -> Searched:
    """Simulated rows as one batch; those that cannot be in the answer are counted instead."""
    plans = sum(counted.values()) + sum(table.num_rows for table in tables)
    if not tables:
        return Searched(rows=evaluate(sweep, np.empty(0, np.int64)), counted=_plain(counted), plans=plans)
    (rows,) = pa.Table.from_batches(tables).unify_dictionaries().combine_chunks().to_batches() or tables[:1]
    kept = in_answer(rows, frontier)
    reasons = rows.column("reason").filter(pa.array(~kept)).to_pylist()
    counted.update(reason or WORSE for reason in reasons)
    return Searched(rows=rows.filter(pa.array(kept)), counted=_plain(counted), plans=plans)


def in_answer(rows: pa.RecordBatch, frontier: Frontier) -> Bools:
    """Which simulated rows can be in the answer so far, [rows]: the best, equals of the last of them, and all that failed."""
    keys, group = group_keys(rows, frontier.objective.per)
    cost = frontier.objective.cost(rows)
    status = rows.column("status").cast(pa.string()).to_numpy(zero_copy_only=False)
    kept: Bools = (cost <= frontier.limits(keys)[group]) | (status == "failed")
    return kept


def take_in(rows: pa.RecordBatch, frontier: Frontier) -> None:
    """Add simulated rows to `frontier`."""
    cost = frontier.objective.cost(rows)
    ranked = pc.equal(rows.column("status"), "ok").to_numpy(zero_copy_only=False) & ~np.isnan(cost)
    rows = rows.filter(pa.array(ranked))
    keys, group = group_keys(rows, frontier.objective.per)
    frontier.add(keys, group, cost[ranked], rows.column("plan").to_numpy(), same_numbers(rows))


def _tightness(bounds: pa.RecordBatch, simulated: pa.RecordBatch) -> float:
    bound_s, step_s = (batch.column("step_time_s").to_numpy(zero_copy_only=False) for batch in (bounds, simulated))
    return float(np.nansum(bound_s / step_s))


def _plain(counted: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in sorted(counted.items()) if count}
