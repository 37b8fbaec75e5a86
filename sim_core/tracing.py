"""The events of one plan: its blocks with their times, or a timeline whose seconds add up to the parts of its result."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.codes import most_blocks
from sim_core.hardware.table import HardwareTable
from sim_core.jit import quickest
from sim_core.metrics import METRICS, PARTS
from sim_core.planning.columns import Plans, plan_at
from sim_core.simulator import Ran, plain_python_s, run_alone
from sim_core.timelines.after import after_spans, ends_of
from sim_core.timelines.blocks import block_spans, timed
from sim_core.timelines.memory import Held, memory_held
from sim_core.timelines.messages import gradient_spans, layer_spans, parameter_spans
from sim_core.timelines.spans import Spans, joined
from sim_core.timelines.waits import arrows_between, wait_spans
from sim_core.workloads.workload import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Events(NamedTuple):
    """The blocks of one plan, ordered by (start, stage); times in seconds from the start of the step."""

    stage: Ints
    chunk: Ints
    micro_batch: Ints
    backward: Ints
    part: Ints  # of a backward: 0 all of it, 1 input gradient, 2 weight gradient
    start_s: Floats
    end_s: Floats


class Timeline(NamedTuple):
    """The step of one plan: `spans` by stage and start; rows of blocks that send to others, `sends[n, 2]`; bytes of each stage
    over time, `held`; and its result, `metrics[METRICS]`.

    The parts of all spans of a stage add up to the step; their means over the stages are the parts of the result.
    """

    spans: Spans
    sends: Ints
    held: Held
    metrics: Floats
    stages: int

    def totals(self) -> dict[str, float]:
        """Seconds by part of the step, means over the stages, from the spans."""
        return dict(zip(PARTS, (self.spans.parts.sum(axis=0) / self.stages).tolist(), strict=True))

    def result(self) -> dict[str, float]:
        """METRICS by name, from the simulation."""
        return dict(zip(METRICS, self.metrics.tolist(), strict=True))


def trace(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> Events:
    """The blocks of one plan in the event engine. Raises SpecError if the plan cannot run."""
    blocks = timed(run_alone(workload, hardware, plans, row))
    by_start = np.lexsort((blocks.stage, blocks.start_s))
    return Events(**{name: getattr(blocks, name)[by_start] for name in Events._fields})


SPANS: Final = 3
"""A timeline takes so many times the simulation of its plan."""


def timeline(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> Timeline:
    """The step of one plan in the event engine, with all that its stages do and wait for. Raises SpecError if it cannot run."""
    with quickest(SPANS * plain_python_s(workload, plans)):
        return _timeline(run_alone(workload, hardware, plans, row), hardware)


def _timeline(ran: Ran, hardware: HardwareTable) -> Timeline:
    plan, blocks, ends = plan_at(ran.plans, 0), timed(ran), ends_of(ran)
    waits, first_s = wait_spans(ran, blocks)
    found = [block_spans(ran, hardware, blocks), *waits, *after_spans(ran, ends, first_s)]
    found += gradient_spans(ran, blocks)
    found += layer_spans(ran, hardware, blocks)
    found += parameter_spans(ran, hardware, blocks)
    drawn = joined(found)
    held, sends = memory_held(ran, blocks), arrows_between(ran, drawn)
    return Timeline(spans=drawn, sends=sends, held=held, metrics=ran.metrics, stages=plan.pp)


def blocks_of(plans: Plans) -> int:
    """Blocks of the longest step of some plans, at most: to know how large a timeline would be."""
    return most_blocks(plans.schedule, plans.pp, plans.vpp, plans.ga)
