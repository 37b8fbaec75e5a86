"""Memory that the plans of a batch use in turn: that of one step, and that of several which run at once."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import most_blocks, most_cells, most_events, most_scratch
from sim_core.engine.events import Program, Times, allocate
from sim_core.engine.lanes import Lanes, allocate_lanes
from sim_core.engine.sequence import Sequence, allocate_sequence
from sim_core.jit import inlined_kernel
from sim_core.metrics import METRICS
from sim_core.planning.columns import Plans
from sim_core.planning.split import Split
from sim_core.step.buckets import Buckets, allocate_buckets
from sim_core.step.lower import Lowered, allocate_lowered
from sim_core.step.once import Once, allocate_once
from sim_core.step.sharding import Layers, allocate_layers
from sim_core.vectors import LANES
from sim_core.workloads.workload import Arrays

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_TOGETHER: Final = 2**20
"""Events of the largest steps that run several at once: their sequence and slots take 140 bytes an event."""


class Scratch(NamedTuple):
    """Scratch of one plan, which all plans of a batch use in turn."""

    program: Program
    of_order: Ints  # of fill_order
    times: Times
    low: Lowered
    layers: Layers
    buckets: Buckets
    reduced_s: Floats  # [stages] end of a stage's gradient reduction
    once: Once
    sums: Floats  # [METRICS]


def allocate_scratch(arrays: Arrays, plans: Plans, split: Split, rows: Ints) -> Scratch:
    """Scratch large enough for each plan in `rows`."""
    schedule, pp, vpp = plans.schedule[rows], plans.pp[rows], plans.vpp[rows]
    blocks, stages, cells = most_blocks(schedule, pp, vpp, plans.ga[rows]), int(pp.max()), most_cells(schedule, pp, vpp)
    program, times = allocate(blocks, stages, cells)
    return Scratch(
        program=program,
        of_order=np.empty(most_scratch(schedule, pp, plans.ga[rows]), np.int64),
        times=times,
        low=allocate_lowered(arrays, stages, cells),
        layers=allocate_layers(arrays, int(plans.layers[rows].max())),
        buckets=allocate_buckets(arrays, split.sizes),
        reduced_s=np.empty(stages),
        once=allocate_once(arrays, split.sizes, stages),
        sums=np.zeros(len(METRICS)),
    )


class Together(NamedTuple):
    """Scratch for one plan, and for LANES plans at once."""

    one: Scratch  # of a plan alone, which is also the first lane's
    kept: Scratch  # what a plan keeps while the pipelines run has one more axis, [LANES, ...]: see scratch_of
    sequence: Sequence
    lanes: Lanes


def allocate_together(arrays: Arrays, plans: Plans, split: Split, rows: Ints) -> Together:
    """Scratch large enough for any of the plans in `rows`, alone or together."""
    scratch = allocate_scratch(arrays, plans, split, rows)
    schedule, pp, vpp = plans.schedule[rows], plans.pp[rows], plans.vpp[rows]
    events = min(most_events(schedule, pp, vpp, plans.ga[rows]), MOST_TOGETHER)
    stages, cells = int(pp.max()), most_cells(schedule, pp, vpp)
    kept = scratch._replace(
        program=_widened(scratch.program._replace(order=scratch.program.order[:0]))._replace(order=scratch.program.order),
        low=_widened(scratch.low),
        buckets=_widened(scratch.buckets),
        once=scratch.once._replace(
            gathered_s=np.repeat(scratch.once.gathered_s[None], LANES, axis=0),
            after_s=np.repeat(scratch.once.after_s[None], LANES, axis=0),
        ),
        sums=np.repeat(scratch.sums[None], LANES, axis=0),
    )
    first = scratch._replace(
        program=_first(kept.program)._replace(order=scratch.program.order),
        low=_first(kept.low),
        buckets=_first(kept.buckets),
        once=scratch.once._replace(gathered_s=kept.once.gathered_s[0], after_s=kept.once.after_s[0]),
        sums=kept.sums[0],
    )
    return Together(first, kept, allocate_sequence(events, stages, cells), allocate_lanes(events, stages, cells))


def _widened(columns: Any) -> Any:
    """The same arrays with one more axis."""
    return type(columns)(
        *(np.repeat(column[None], LANES, axis=0) if isinstance(column, np.ndarray) else column for column in columns)
    )


def _first(columns: Any) -> Any:
    """The arrays of the first lane."""
    return type(columns)(*(column[0] if isinstance(column, np.ndarray) else column for column in columns))


@inlined_kernel
def scratch_of(kept: Scratch, lane: int) -> Scratch:
    """The scratch of one lane."""
    program, low, buckets, once = kept.program, kept.low, kept.buckets, kept.once
    return Scratch(
        program=Program(
            order=program.order,
            duration_s=program.duration_s[lane],
            message_s=program.message_s[lane],
            source=program.source[lane],
            into_s=program.into_s[lane],
            gate_start_s=program.gate_start_s[lane],
            gate_end_s=program.gate_end_s[lane],
            gathered_s=program.gathered_s[lane],
            beside_s=program.beside_s[lane],
            shares=program.shares[lane],
        ),
        of_order=kept.of_order,
        times=kept.times,
        low=Lowered(
            passes=low.passes[lane],
            again=low.again[lane],
            extra_s=low.extra_s[lane],
            nic_s=low.nic_s[lane],
            carried_s=low.carried_s[lane],
            longer=low.longer,  # only the timeline of a plan alone reads it
            pairs_s=low.pairs_s[lane],
            hideable_s=low.hideable_s[lane],
            send_nic_s=low.send_nic_s[lane],
        ),
        layers=kept.layers,
        buckets=Buckets(
            costed=buckets.costed[lane],
            number=buckets.number[lane],
            bucket_s=buckets.bucket_s[lane],
            first_s=buckets.first_s[lane],
            most=buckets.most[lane],
            total_s=buckets.total_s[lane],
            nic_s=buckets.nic_s[lane],
        ),
        reduced_s=kept.reduced_s,
        once=Once(
            costed=once.costed,
            compute_s=once.compute_s,
            comm_s=once.comm_s,
            optimizer_s=once.optimizer_s,
            gathered_s=once.gathered_s[lane],
            early_s=once.early_s,
            waited_s=once.waited_s,
            free_s=once.free_s,
            after_s=once.after_s[lane],
        ),
        sums=kept.sums[lane],
    )
