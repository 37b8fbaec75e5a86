"""Search among some plans: bound all, simulate the most promising, stop when no bound is below the best found."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim_core import REASONS, Bools, Ints
from sweep.evaluation.evaluation import bounded, checked, evaluate
from sweep.evaluation.preparation import Sweep
from sweep.results.slice_file import Slice
from sweep.search.ahead import Frontier, launched, of_blocks, of_bounded
from sweep.search.blocks import Blocks
from sweep.search.objective import group_keys, same_numbers

BEATEN = "bound_beaten"
"""The reason of plans that were not simulated: even their bound is worse than the best. Of those that are no blocks whether
they fit is asked only where their work alone is not worse."""
WORSE = "not_among_best"
"""The reason of plans that were simulated and are worse than the best."""
ELSEWHERE = -1
"""Instead of a reason: a block of another slice."""
FIRST_BATCH = 64
"""Plans simulated at first, or one for each group; twice as many each time."""
FIRST_MEMBERS = 1024
"""Plans of blocks, about, that are bounded one by one at first; twice as many each time ..."""
MEMBERS = 16_384
"""... up to these."""


class Searched(NamedTuple):
    """What came of some plans: rows that can be in the answer, and by reason how many of the others there are."""

    rows: pa.RecordBatch
    counted: dict[str, int]
    plans: int  # of both


def search_blocks(sweep: Sweep, blocks: Blocks, part: Slice, frontier: Frontier) -> Searched:
    """Search a slice of the places in `blocks`; blocks whose coarse bound is worse than what was found are passed over."""
    of_family = blocks.width * blocks.family
    families, counted = np.arange(part.start // of_family, -(-part.stop // of_family)), Counter[str]()
    if not blocks.pays:
        reason = checked(sweep, blocks.standing_for(families))
        counted.update({REASONS[code]: count for code, count in enumerate(np.bincount(reason).tolist()) if code})
        families = families[reason == 0]
    number = (families[:, None] * blocks.family + np.arange(blocks.family)).ravel()
    begin, end = np.maximum(number * blocks.width, part.start), np.minimum((number + 1) * blocks.width, part.stop)
    plans = np.maximum(end - begin, 0)
    ahead = of_blocks(sweep, blocks, frontier.objective, families, rough=True)
    counted.update(ahead.reasons(plans))
    ahead = ahead._replace(reason=np.where(plans > 0, ahead.reason, ELSEWHERE))
    better = np.unique(ahead.promising(frontier) // blocks.family)
    if blocks.micro_batches and len(better):
        cost = ahead.cost.reshape(-1, blocks.family)  # the same numbers, changed in place
        cost[better] = of_blocks(sweep, blocks, frontier.objective, families[better]).cost.reshape(-1, blocks.family)
    size, known = (FIRST_MEMBERS, frontier) if blocks.pays else (MEMBERS, frontier.copy())  # in any slice the same are asked
    counted[BEATEN] = counted.pop("", 0)
    searched = []
    for rows in ahead.rounds(known, plans, size, MEMBERS):
        places = np.concatenate([np.arange(begin[row], end[row]) for row in rows])
        cuts = range(0, len(places), MEMBERS)  # one block may be a large one
        searched += [search_among(sweep, blocks.numbers(places[cut : cut + MEMBERS]), frontier) for cut in cuts]
    counted[BEATEN] -= sum(each.plans for each in searched)
    for each in searched:
        counted.update(each.counted)
    return _joined(sweep, [each.rows for each in searched], counted, frontier)


def search_among(sweep: Sweep, positions: Ints, frontier: Frontier) -> Searched:
    """Search among `positions`; adds what it simulates to `frontier`."""
    bounds, each = bounded(sweep, positions), np.ones(len(positions), int)
    ahead = of_bounded(bounds, frontier.objective)
    counted, groups = ahead.reasons(each), len(np.unique(ahead.group[ahead.promising(frontier)]))
    tables = []
    for chosen in ahead.rounds(frontier, each, max(FIRST_BATCH, groups), len(positions)):
        simulated = evaluate(sweep, positions[chosen])
        tables.append(simulated)
        bound_s, step_s = (
            rows.column("step_time_s").to_numpy(zero_copy_only=False) for rows in (bounds.take(pa.array(chosen)), simulated)
        )
        frontier.count(positions[chosen], bound_s / step_s)
        take_in(simulated, frontier)
    counted[BEATEN] = counted.pop("", 0) - sum(table.num_rows for table in tables)
    return _joined(sweep, tables, counted, frontier)


def _joined(sweep: Sweep, tables: list[pa.RecordBatch], counted: Counter[str], frontier: Frontier) -> Searched:
    """Simulated rows as one batch; those that cannot be in the answer are counted instead."""
    plans = sum(counted.values()) + sum(table.num_rows for table in tables)
    tables = tables or [evaluate(sweep, np.empty(0, int))]
    (rows,) = pa.Table.from_batches(tables).unify_dictionaries().combine_chunks().to_batches() or tables[:1]
    kept = in_answer(rows, frontier)
    counted.update(reason or WORSE for reason in rows.column("reason").filter(pa.array(~kept)).to_pylist())
    rows = rows.filter(pa.array(kept))
    return Searched(rows, counted={reason: count for reason, count in sorted(counted.items()) if count}, plans=plans)


def in_answer(rows: pa.RecordBatch, frontier: Frontier) -> Bools:
    """Which simulated rows can be in the answer so far, [rows]: the best by either cost, equals of the last, and all that
    failed."""
    keys, group = group_keys(rows, frontier.objective.per)
    cost = frontier.objective.cost(rows)
    status = rows.column("status").cast(pa.string()).to_numpy(zero_copy_only=False)
    kept: Bools = (cost <= frontier.limits_of(keys)[group]) | (status == "failed")
    if frontier.objective.dear:
        kept |= frontier.objective.launch_cost(rows) <= frontier.limits_of(launched(keys))[group]
    return kept


def take_in(rows: pa.RecordBatch, frontier: Frontier) -> None:
    """Add simulated rows to `frontier`."""
    cost = frontier.objective.cost(rows)
    ranked = pc.equal(rows.column("status"), "ok").to_numpy(zero_copy_only=False) & ~np.isnan(cost)
    rows = rows.filter(pa.array(ranked))
    keys, group = group_keys(rows, frontier.objective.per)
    plans, same = rows.column("plan").to_numpy(), same_numbers(rows)
    frontier.add(keys, group, cost[ranked], plans, same)
    if frontier.objective.dear:
        frontier.add(launched(keys), group, frontier.objective.launch_cost(rows), plans, same)
