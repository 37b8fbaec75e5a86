"""The events of one plan: its blocks with their times, or a timeline whose seconds add up to the parts of its result."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import quickest
from sim_core.costing.peak import activations_of_chunks, stage_memory
from sim_core.engine.codes import INPUT, WEIGHTS, most_blocks
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import ACTIVATION_BYTES, ALLOCATED, ALLOCATOR_BYTES, LOGITS_BYTES, METRICS, PARTS, PEAK_BYTES
from sim_core.planning.columns import Plans
from sim_core.simulator import Ran, plain_python_s, run_alone
from sim_core.timelines.blocks import Timed, block_spans, timed
from sim_core.timelines.messages import gradient_spans, layer_spans, parameter_spans
from sim_core.timelines.spans import Spans, joined
from sim_core.timelines.waits import after_spans, arrows_between, wait_spans
from sim_core.workloads.workload import Workload


class Events(NamedTuple):
    """The blocks of one plan, ordered by (start, stage); times in seconds from the start of the step."""

    stage: Ints
    chunk: Ints
    micro_batch: Ints
    backward: Ints
    part: Ints  # of a backward: 0 all of it, 1 input gradient, 2 weight gradient
    start_s: Floats
    end_s: Floats


class Held(NamedTuple):
    """Bytes on a rank from one time on, in columns, stage after stage; none where activations are unknown."""

    stage: Ints
    at_s: Floats
    bytes: Floats


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


SPANS = 3
"""A timeline takes so many times the simulation of its plan."""


def timeline(workload: Workload, hardware: HardwareTable, plans: Plans, row: int = 0) -> Timeline:
    """The step of one plan in the event engine, with all that its stages do and wait for. Raises SpecError if it cannot run."""
    with quickest(SPANS * plain_python_s(workload, plans)):
        ran = run_alone(workload, hardware, plans, row)
        blocks = timed(ran)
        waits, first_s = wait_spans(ran, blocks)
        drawn = joined(
            [
                block_spans(ran, hardware, blocks),
                *waits,
                *after_spans(ran, first_s),
                *gradient_spans(ran, blocks),
                *layer_spans(ran, blocks),
                *parameter_spans(ran, blocks),
            ]
        )
        held, sends = _memory_held(ran, blocks), arrows_between(ran, drawn)
        return Timeline(drawn, sends, held, ran.metrics, stages=int(ran.plans.pp[0]))


def _memory_held(ran: Ran, blocks: Timed) -> Held:
    """Memory of each stage after each change, from the start of the step.

    A forward takes what it leaves when it begins, a backward what its recompute works on; it gives both back when it ends. What
    the allocator loses grows with the tensors.
    """
    workload = ran.workload.memory_of or ran.workload
    of_stages = stage_memory(workload, ran.plans)
    if np.isnan(of_stages[PEAK_BYTES]).any():
        return Held(np.zeros(0, int), np.zeros(0), np.zeros(0))
    factor = 1 + of_stages[ALLOCATOR_BYTES] / of_stages[ALLOCATED].sum(axis=0)
    base = of_stages[PEAK_BYTES] - factor * (of_stages[ACTIVATION_BYTES] + of_stages[LOGITS_BYTES])
    left, working, waiting = activations_of_chunks(workload, ran.plans)[blocks.stage, blocks.chunk].T
    of_weights = (blocks.part == WEIGHTS) & (blocks.backward == 1)
    begun = np.where(of_weights, 0.0, np.where(blocks.backward == 1, working, left))
    ended = np.where(blocks.part == INPUT, waiting, 0.0) - left - working
    ended = np.where(of_weights, -waiting, np.where(blocks.backward == 1, ended, 0.0))
    at = np.arange(len(begun)) - 0.75 * blocks.second  # both blocks of a pair begin before one ends
    order = np.argsort(np.concatenate((at, np.arange(len(begun)) + 0.5)))
    stage = np.tile(blocks.stage, 2)[order]
    bytes_ = np.cumsum(np.concatenate((begun, ended))[order])
    first = np.searchsorted(stage, np.arange(len(base)))
    bytes_ -= np.concatenate(([0.0], bytes_))[first][stage]
    changes = Held(stage, np.concatenate((blocks.start_s, blocks.end_s))[order], base[stage] + factor[stage] * bytes_)
    return Held(
        *(np.insert(column, first, start) for column, start in zip(changes, (np.arange(len(base)), 0.0, base), strict=True))
    )


def blocks_of(plans: Plans) -> int:
    """Blocks of the longest step of some plans, at most: to know how large a timeline would be."""
    return most_blocks(plans.schedule, plans.pp, plans.vpp, plans.ga)
