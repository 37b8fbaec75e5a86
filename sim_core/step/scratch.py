"""Memory of one step, which all plans of a batch use in turn: what its parts leave for each other."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.engine.program import Program, Times, allocate_program, allocate_times
from sim_core.metrics import METRICS
from sim_core.workloads.workload import Arrays


class Lowered(NamedTuple):
    """What a plan keeps beside its program and its buckets while pipelines run."""

    extra_s: Floats  # [4] seconds that stragglers and jitter add to FORWARD_S, BACKWARD_S, RECOMPUTE_S; of LAUNCH_S, apart
    nic_s: Floats  # [2, cells, 3] of NICs that a block's own messages need, by direction: `sharing.ALL` to FREE
    beside: Floats  # [7] what `beside_stream` was asked last, the rate first, and what it said
    passes: Floats  # [units] passes of one micro-batch through each unit, summed over all stages ...
    again: Floats  # [units] ... and those with recompute
    pairs_s: Floats  # [cells] by which sharing NICs makes a forward beside a backward longer, with both their pipeline messages
    hideable_s: Floats  # [cells] of messages of experts that a forward beside a backward hides at most
    begun_s: Floats  # [stages] `carried_s` before parameters are gathered
    carried_s: Floats  # [stages] for which a stage's NICs are needed until its gradients are reduced, as far as is counted yet
    send_nic_s: Floats  # [stages] of NICs for one pipeline message between a stage and the next (of the last: the first)
    gathered_s: Floats  # [stages] of the step for which parameters are gathered behind first forwards
    after_s: Floats  # [stages] all work of a stage after the gradients


class Longer(NamedTuple):
    """Seconds by which sharing NICs makes blocks and messages longer: for the timeline of a plan alone."""

    sends_s: Floats  # [2, stages] a pipeline message into a stage, by direction
    layers_s: Floats  # [2, cells] a block and its sharded layers' messages
    full_s: Floats  # [stages] the reduction of gradients, until the NICs have sent all that they carry


class Layers(NamedTuple):
    """The layers of a virtual stage in model order, embedding and head included; for one at a time."""

    unit: Ints  # [layers]
    compute_s: Floats  # [layers] forward or backward
    gather_s: Floats  # [layers] its parameters
    scatter_s: Floats  # [layers] its gradients
    end_s: Floats  # [layers] of its compute
    unit_gather_s: Floats  # [units]
    unit_scatter_s: Floats  # [units]


class Buckets(NamedTuple):
    """Messages of a virtual stage, one row for each distinct number of layers per virtual stage of a plan."""

    costed: Bools  # [sizes]
    number: Floats  # [sizes, step pieces] buckets of each piece that has a message: the first ones of a row ...
    bucket_s: Floats  # [sizes, step pieces] ... and seconds of one bucket; 0 behind them
    first_s: Floats  # [sizes] seconds of the first bucket of every piece
    most: Floats  # [sizes] maximum number of buckets of a piece, at least 1
    total_s: Floats  # [sizes] seconds of all buckets of all pieces ...
    nic_s: Floats  # [sizes] ... and those for which they need the NICs


class Once(NamedTuple):
    """Work of a stage once per step, one row for each distinct number of layers per stage of a plan."""

    costed: Bools  # [sizes]
    optimizer_s: Floats  # [sizes] of a modelled AdamW
    copied_s: Floats  # [sizes] for which an update on the host waits for copies
    compute_s: Floats  # [sizes, step pieces]
    comm_s: Floats  # [sizes, step pieces]
    update_s: Floats  # [stages] of the modelled optimizer
    host_s: Floats  # [stages] of waiting for copies to and from the host, at the update or where passes follow each other
    early_s: Floats  # [stages] by how much before a step a stage has ended the one before, and gathers parameters
    waited_s: Floats  # [stages] by how much later first forwards have ended because of parameters ...
    free_s: Floats  # [stages] ... and scratch for it
    reduced_s: Floats  # [stages] end of a stage's gradient reduction
    slower_s: Floats  # [stages] by which it is later because the gather of parameters slowed compute
    ended_s: Floats  # [stages] when a stage has ended the step of `before_s`


class Scratch(NamedTuple):
    """All of it."""

    program: Program
    times: Times
    low: Lowered
    longer: Longer
    layers: Layers
    buckets: Buckets  # gradients
    gathers: Buckets  # parameters
    once: Once
    sums: Floats  # [METRICS]
    before_s: Floats  # [1] seconds of a step without a barrier in which no stage waits for parameters; 0: it has not run
    begun: Floats  # [METRICS] `sums` before parameters are gathered


def allocate_scratch(arrays: Arrays, stages: int, cells: int, layers: int, sizes: int) -> Scratch:
    """For steps of up to `stages` stages, `cells` virtual stages and `layers` layers; `sizes`: see Split."""
    units, pieces, layers = arrays.unit_layers.shape[0], arrays.step.role.shape[0], layers + 2
    buckets, gathers = (Buckets(np.zeros(sizes, bool), *np.zeros((2, sizes, pieces)), *np.zeros((4, sizes))) for _ in range(2))
    return Scratch(
        program=allocate_program(stages, cells),
        times=allocate_times(stages, cells),
        low=Lowered(
            np.zeros(4), np.zeros((2, cells, 3)), np.zeros(7),
            *np.zeros((2, units)), *np.zeros((2, cells)), *np.zeros((5, stages)),
        ),
        longer=Longer(np.zeros((2, stages)), np.zeros((2, cells)), np.zeros(stages)),
        layers=Layers(np.zeros(layers, int), *np.zeros((4, layers)), *np.zeros((2, units))),
        buckets=buckets,
        gathers=gathers,
        once=Once(np.zeros(sizes, bool), *np.zeros((2, sizes)), *np.zeros((2, sizes, pieces)), *np.zeros((8, stages))),
        sums=np.zeros(len(METRICS)),
        before_s=np.zeros(1),
        begun=np.zeros(len(METRICS)),
    )  # fmt: skip
