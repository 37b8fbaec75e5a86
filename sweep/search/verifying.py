"""A search put to the test: random plans that it left out are simulated, and compared with its answer and their bounds."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim_core import Floats, Ints, plural
from sweep.evaluation.evaluation import bounded, evaluate
from sweep.evaluation.preparation import Prepared, Sweep
from sweep.results.store import Store
from sweep.search.ahead import Frontier, of_blocks
from sweep.search.blocks import Blocks, blocks_of
from sweep.search.candidates import in_answer, take_in
from sweep.search.objective import Objective
from sweep.spec.space import permuted

SEED = 1
"""Of the order in which plans are drawn: the same ones at every call."""
AT_ONCE = 4096
MOST = 2**20
"""Plans that are looked at, at most, for some that can run."""


class Verified(NamedTuple):
    """What the simulation of some plans says of a search that left them out."""

    simulated: int
    missing: list[int]  # plans that belong in the answer
    better: list[int]  # plans that are better than a bound by which they were left out ...
    above: float  # ... by this part of their own cost at most

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.missing and not self.better

    def __str__(self) -> str:
        """In words."""
        missing = f"{_some(self.missing)} belong" if self.missing else "none belongs"
        better = f"{_some(self.better)} are better than their bound, by up to {self.above:.2%}" if self.better else ""
        found = f"{missing} in the answer, {better or 'none is better than its bound'}"
        return f"Verified by {plural(self.simulated)} of those left out, drawn with seed {SEED}: {found}."


def verify(prepared: Prepared, objective: Objective, store: Store, number: int) -> Verified:
    """Simulate `number` random plans that can run and are not in the answer of a finished search."""
    sweep, blocks = prepared.sweep, blocks_of(prepared.sweep, objective)
    answer, _ = store.joined(store.slices())
    tables, costs = [answer], [np.empty(0)]
    for positions, bounds in _left_out(sweep, answer.column("plan").to_numpy(), number):
        tables.append(evaluate(sweep, positions))
        costs.append(np.fmax(objective.cost(bounds), _of_blocks(sweep, blocks, objective, positions)))
    (rows,) = pa.Table.from_batches(tables).unify_dictionaries().combine_chunks().to_batches() or [answer]
    best = Frontier(objective=objective)
    take_in(rows, best)
    drawn, missing = rows.slice(answer.num_rows), in_answer(rows, best)[answer.num_rows :]
    plans, cost, bound = drawn.column("plan").to_numpy(), objective.cost(drawn), np.concatenate(costs)
    ran = pc.equal(drawn.column("status"), "ok").to_numpy(zero_copy_only=False)
    wrong = ran & (bound > cost)
    above = float(((bound - cost)[wrong] / np.abs(cost[wrong])).max(initial=0.0))
    return Verified(len(plans), plans[ran & missing].tolist(), plans[wrong].tolist(), above)


def _some(plans: list[int]) -> str:
    """How many plans, and the first."""
    return f"{len(plans):,} ({', '.join(map(str, plans[:3]))}{', ...' if len(plans) > 3 else ''})"


def _left_out(sweep: Sweep, answer: Ints, number: int) -> Iterator[tuple[Ints, pa.RecordBatch]]:
    """Positions of `number` plans that can run and are not in the answer, some at a time, and their bounds."""
    left, count = number, sweep.space.count
    for begin in range(0, min(count, MOST), AT_ONCE):
        if not left:
            return
        positions = permuted(np.arange(begin, min(begin + AT_ONCE, count)), count, SEED)
        bounds = bounded(sweep, positions)
        runs = bounds.column("reason").indices.to_numpy() == 0
        chosen = np.flatnonzero(runs & ~np.isin(bounds.column("plan").to_numpy(), answer))[:left]
        left -= len(chosen)
        if len(chosen):
            yield positions[chosen], bounds.take(pa.array(chosen))


def _of_blocks(sweep: Sweep, blocks: Blocks, objective: Objective, positions: Ints) -> Floats:
    """The bounds of the blocks of plans, the rough ones of families too, as the search compares them."""
    families, place = np.unique(blocks.block_of(positions) // blocks.family, return_inverse=True)
    number = place * blocks.family + blocks.block_of(positions) % blocks.family
    rough, each = (of_blocks(sweep, blocks, objective, families, rough=how).cost[number] for how in (True, False))
    highest: Floats = np.fmax(rough, each)
    return highest
