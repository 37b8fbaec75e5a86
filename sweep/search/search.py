"""A search as a run: seed it with promising plans, search every slice of the space on an executor, keep the answer."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sim_core import REASON
from sweep.evaluation import evaluate
from sweep.execution import Progress, run_slices
from sweep.executors import Executor
from sweep.preparation import Prepared
from sweep.search.blocks import Blocks, blocks_of
from sweep.search.candidates import WORSE, in_answer, search_blocks, take_in
from sweep.search.frontier import Frontier
from sweep.search.objective import Objective
from sweep.search.seeding import seed
from sweep.slice_file import Slice, encoded
from sweep.slices import Receipt, SliceTask
from sweep.store import Store

Ints = npt.NDArray[np.int64]

MOST_OF_FAMILY: Final = 16
"""Blocks of a family that count as one in the size of a slice, at most: each takes some memory."""


@dataclass(frozen=True, kw_only=True)
class SearchTask(SliceTask):
    """Search a slice and store what can be in the answer. Every slice begins with the same frontier."""

    frontier: Frontier
    blocks: Blocks  # a slice is one of places in them

    def encode(self, part: Slice) -> pa.Buffer:
        """Search a slice; returns its file, to be stored."""
        frontier = self.frontier.copy()
        found = search_blocks(self.sweep, self.blocks, part, frontier)
        done = [frontier, self.frontier] if part.start == 0 else [frontier]  # the seed counts once
        counted = {
            "plans": found.counted,
            "simulated": sum(each.simulated for each in done),
            "tightness": sum(each.tightness for each in done),
        }
        return encoded(found.rows, self.provenance, part, counted)

    def give_up(self, part: Slice, reason: str) -> Receipt:
        """Store a slice that failed at every attempt: its legal plans become `failed`, the others are counted."""
        begun = time.perf_counter()
        batch = evaluate(self.sweep, self.blocks.numbers(np.arange(part.start, part.stop)), REASON[reason])
        failed = pc.equal(batch.column("status"), "failed")
        counted = Counter(batch.column("reason").filter(pc.invert(failed)).to_pylist())
        self.store(part, encoded(batch.filter(failed), self.provenance, part, {"plans": dict(counted)}))
        return Receipt(part=part, seconds=time.perf_counter() - begun)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a search did: plans of the space, those simulated, and by reason those that are no rows of the result."""

    plans: int
    rows: int
    simulated: int
    counted: dict[str, int]
    tightness: float  # mean of bound / step over the simulated


def as_search(prepared: Prepared, objective: Objective) -> Prepared:
    """The search as a sweep of its own: its result is not that of `sweep run`, and another objective is another result."""
    asked = {"by": objective.column, "descending": objective.descending, "per": list(objective.per)}
    asked |= {"best": objective.best, "within": objective.within}
    order = blocks_of(prepared.sweep, objective)  # slices are of places in it
    identity = hashlib.sha256(f"{prepared.sweep.identity} {json.dumps(asked)} {order}".encode()).hexdigest()
    sweep = replace(prepared.sweep, identity=identity)
    told = {"sweep": identity, "search": asked | {"of": prepared.sweep.identity}}
    return replace(prepared, sweep=sweep, provenance=prepared.provenance | told)


def run_search(
    prepared: Prepared,
    objective: Objective,
    store: Store,
    executor: Executor,
    *,
    fresh: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    log: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Search what is not searched yet, then keep the answer alone. Raises SimError, OSError; it can be resumed."""
    sweep, blocks = prepared.sweep, blocks_of(prepared.sweep, objective)

    def task(provenance: bytes) -> SliceTask:
        found = seed(sweep, blocks, objective)
        return SearchTask(sweep=sweep, directory=store.directory, provenance=provenance, frontier=found, blocks=blocks)

    width = blocks.width * min(blocks.family, MOST_OF_FAMILY)
    run_slices(prepared, store, executor, task, fresh=fresh, watch=watch, log=log, width=width)
    return finish(prepared, objective, store)


def finish(prepared: Prepared, objective: Objective, store: Store) -> Answer:
    """Join the slices into one file of the answer alone. A kill leaves both at worst; the next run goes on here."""
    identity, whole = prepared.sweep.identity, Slice(0, prepared.sweep.space.count)
    with store.opened(prepared.provenance) as text:
        counts = store.counted()
        parts = store.slices()
        tables = [pq.read_table(BytesIO(store.folder.read_bytes(part.file_name))) for part in parts]
        table = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
        rows = table.unify_dictionaries().combine_chunks().to_batches(max_chunksize=None)
        batch = rows[0] if rows else evaluate(prepared.sweep, np.empty(0, np.int64))
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
        simulated=simulated,
        counted=counts["plans"],
        tightness=counts["tightness"] / max(simulated, 1),
    )
