"""A search as a run: seed it with promising plans, search every slice of the space on an executor, keep the answer."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sim_core import Ints
from sweep.evaluation.evaluation import spread
from sweep.evaluation.preparation import Prepared, Sweep
from sweep.evaluation.slices import SliceTask
from sweep.execution import Progress, run_sweep
from sweep.executors import Executor
from sweep.results.slice_file import Slice, encoded
from sweep.results.store import Store
from sweep.search.ahead import Frontier, of_blocks
from sweep.search.blocks import Blocks, blocks_of
from sweep.search.candidates import WORSE, in_answer, search_among, search_blocks, take_in
from sweep.search.objective import Objective, apart
from sweep.sources import row_code

SEEDS = 4096
"""Families of blocks, spread over the space, that are looked at first; of fewer than eight times as many, an eighth."""
PROBED, PROBES = 65_536, 8
"""Plans of a slice, and slices, that tell how long a search takes."""
MOST_AROUND = 256
CLIMBS = 20
"""How often, at most, seeding moves on from its best plans to those that differ from them in one axis."""
ILLEGAL = 8
"""Of so many plans that are no blocks one is taken to keep all rules, in the size of a slice."""
MOST_OF_FAMILY = 16
"""At most so many blocks of a family count as one in the size of a slice: each takes some memory."""


@dataclass(frozen=True, kw_only=True)
class SearchTask(SliceTask):
    """Search a slice and store what can be in the answer. Every slice begins with the same frontier."""

    entry: ClassVar = __name__
    frontier: Frontier
    blocks: Blocks  # a slice is one of places in them

    def encode(self, part: Slice) -> pa.Buffer:
        """Search a slice; returns its file, to be stored."""
        frontier = self.frontier.copy()
        searched = search_blocks(self.sweep, self.blocks, part, frontier)
        seeded = self.frontier if part.start == 0 else Frontier(objective=self.frontier.objective)  # the seed counts once
        counted = {
            "plans": searched.counted,
            "simulated": frontier.simulated + seeded.simulated,
            "tightness": frontier.tightness + seeded.tightness,
        }
        return encoded(searched.rows, self.provenance, part, counted)

    def positions(self, part: Slice) -> Ints:
        """The plans at the places of a slice."""
        return self.blocks.numbers(super().positions(part))

    def file_of(self, batch: pa.RecordBatch, part: Slice) -> pa.Buffer:
        """The file of a slice that was given up: its failed plans are rows, the others are counted."""
        failed = pc.equal(batch.column("status"), "failed")
        counted = Counter(batch.column("reason").filter(pc.invert(failed)).to_pylist())
        return encoded(batch.filter(failed), self.provenance, part, {"plans": dict(counted)})


class Answer(NamedTuple):
    """What a search did: plans of the space, those simulated, and by reason those that are no rows of the result."""

    plans: int
    rows: int
    apart: int  # rows of the answer if those with the same numbers count as one
    simulated: int  # plans, each once
    counted: dict[str, int]
    tightness: float  # mean of bound / step over the simulated


def as_search(prepared: Prepared, objective: Objective) -> Prepared:
    """The search as a sweep with an identity of its own: no folder holds its rows beside those of others."""
    asked = {"by": objective.column, "descending": objective.descending, "per": list(objective.per)}
    asked |= {"best": objective.best, "within": objective.within, "launch": bool(objective.dear)}
    order = blocks_of(prepared.sweep, objective)  # positions count the blocks in this order
    code = row_code(__name__)
    of_all = f"{prepared.sweep.identity} {json.dumps(asked)} {objective.dear} {order} {json.dumps(code)}"
    identity = hashlib.sha256(of_all.encode()).hexdigest()
    sweep = replace(prepared.sweep, identity=identity)
    told = {"sweep": identity, "code": code, "search": asked | {"of": prepared.sweep.identity}}
    return replace(prepared, sweep=sweep, provenance=prepared.provenance | told)


def run_search(
    prepared: Prepared,
    objective: Objective,
    store: Store,
    executor: Executor,
    *,
    fresh: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Answer:
    """Search what is not searched yet, then keep only the answer. Raises SimError, OSError; it can be resumed."""
    sweep, blocks = prepared.sweep, blocks_of(prepared.sweep, objective)

    def task(provenance: bytes) -> SliceTask:
        frontier = seed(sweep, blocks, objective)
        return SearchTask(sweep=sweep, directory=store.directory, provenance=provenance, frontier=frontier, blocks=blocks)

    width = blocks.width * min(blocks.family, MOST_OF_FAMILY) if blocks.pays else ILLEGAL
    run_sweep(prepared, store, executor, task, width=width, fresh=fresh, watch=watch)
    return finish(prepared, objective, store)


def seconds_of(prepared: Prepared, objective: Objective) -> tuple[float, float]:
    """How long a search takes in one process, from a few slices: until it begins, and then. Raises SimError."""
    sweep, blocks, begun = prepared.sweep, blocks_of(prepared.sweep, objective), time.monotonic()
    frontier = seed(sweep, blocks, objective)
    searching, size = time.monotonic(), min(PROBED, sweep.space.count)
    starts = spread(sweep.space.count // size, PROBES) * size
    for start in starts.tolist():
        search_blocks(sweep, blocks, Slice(start, start + size), frontier.copy())
    return searching - begun, (time.monotonic() - searching) * sweep.space.count / (len(starts) * size)


def finish(prepared: Prepared, objective: Objective, store: Store) -> Answer:
    """Join the slices into one file with only the answer. A kill leaves both at worst; the next run goes on from there."""
    identity, whole = prepared.sweep.identity, Slice(0, prepared.sweep.space.count)
    with store.opened(prepared.provenance) as text:
        parts = store.slices()
        batch, counts = store.joined(parts)
        best = Frontier(objective=objective)
        take_in(batch, best)
        kept = in_answer(batch, best)
        if parts != [whole] or not kept.all():
            worse = counts["plans"].get(WORSE, 0) + int((~kept).sum())
            counts["plans"] |= {WORSE: worse} if worse else {}
            store.replace(parts, whole, encoded(batch.filter(pa.array(kept)), text, whole, counts), identity)
    simulated = counts["simulated"]
    return Answer(
        plans=whole.rows,
        rows=int(kept.sum()),
        apart=apart(batch.filter(pa.array(kept)), objective.per),
        simulated=simulated,
        counted=counts["plans"],
        tightness=counts["tightness"] / max(simulated, 1),
    )


def seed(sweep: Sweep, blocks: Blocks, objective: Objective) -> Frontier:
    """The costs to beat before the search begins: the best of plans spread over the space, and of those around them.

    They are the same at every call.
    """
    frontier = Frontier(objective=objective)
    families = blocks.count // blocks.family
    chosen = spread(families, min(SEEDS, max(families // 8, 1)))
    if blocks.pays:
        _search_families(sweep, blocks, chosen, frontier)
    else:
        _search_new(sweep, blocks.numbers(chosen), frontier)
    if sweep.space.sample is not None:
        return frontier  # the plans around one are not in the sample
    seen = np.empty(0, int)
    for _ in range(CLIMBS):
        best = np.unique(np.concatenate([np.empty(0, int), *(plans for _, plans, _ in frontier.found.values())]))
        best = np.setdiff1d(best, seen)[:MOST_AROUND]
        if not len(best):
            break
        seen = np.union1d(seen, best)
        if blocks.pays:
            around = np.unique(blocks.block_of(_around(best, blocks.outer)) // blocks.family)
            _search_families(sweep, blocks, np.setdiff1d(around, chosen), frontier)
            chosen = np.union1d(chosen, around)
            _search_new(sweep, _around(best, blocks.inner), frontier)
        else:
            _search_new(sweep, _around(best, blocks.outer), frontier)
    return frontier


def _search_new(sweep: Sweep, positions: Ints, frontier: Frontier) -> None:
    """Search among those of some positions that have not been simulated."""
    search_among(sweep, np.setdiff1d(positions, frontier.seen), frontier)


def _search_families(sweep: Sweep, blocks: Blocks, families: Ints, frontier: Frontier) -> None:
    """Simulate the plans that stand for the most promising blocks of each group in some families."""
    first = of_blocks(sweep, blocks, frontier.objective, families).first(frontier)
    _search_new(sweep, blocks.standing_for(families[first // blocks.family] * blocks.family + first % blocks.family), frontier)


def _around(plans: Ints, axes: tuple[tuple[int, int], ...]) -> Ints:
    """All plans that differ from one of `plans` in one of some axes, (size, stride) each."""
    around = [(plans - plans // stride % size * stride)[:, None] + np.arange(size) * stride for size, stride in axes]
    return np.unique(np.concatenate([plans, *(numbers.ravel() for numbers in around)]))
