"""The event engine: walks a sequence once for LANES pipelines with the same order of blocks, one in each lane of a vector.

A single plan is one used lane. A run adds up what stages wait for; when asked, it also writes down all events of one plan.
"""

from typing import Any, NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import Addresses, addressed_kernel, addresses, inlined_kernel, outer_kernel
from sim_core.compiled.vectors import allocate_rows, any_above, larger, load, smaller, store, zeros
from sim_core.engine.codes import chunks_of
from sim_core.engine.program import (
    CLEARED,
    CROWDED,
    DOWN,
    KINDS,
    LATER,
    LONGER,
    MESSAGES,
    OF_INPUTS,
    OF_WEIGHTS,
    OWN,
    PAIR,
    QUEUES,
    READY,
    SENT,
    STREAMS,
    UP,
    WEIGHT,
    Program,
    Shape,
    Times,
)
from sim_core.engine.schedules import DEEPSPEED, PAIRS, SPLITS
from sim_core.engine.sequence import (
    ALONE,
    ARRIVED,
    BEGIN,
    BESIDE_GATHER,
    BESIDE_GRADIENTS,
    BLOCKING,
    DURATION,
    EVENTS,
    FIRST,
    IN_PAIRS,
    INPUT_GRADIENT,
    LAST,
    LEFT,
    MEETING,
    NO_MESSAGE,
    NO_WORK,
    NOTHING,
    OF_BOTH,
    PIECE,
    POSTED,
    POSTED_COST,
    RECEIVED,
    RECEIVED_COST,
    WRITTEN,
    Rows,
    Sequence,
    allocate_sequence,
    fill_next,
    fill_sequence,
    find_sequence,
    rule_of,
)

STAGE, WORKS, READY_S, ALONE_S, SLOWED_S, CROWDED_S, END_S = range(7)
"""Columns of a record of events: the stage; 1 for a block or a pair, 0 for a last send or a meeting alone; when it could start
but for parameters; its seconds alone, and what it takes longer beside a stream and beside a pipeline message; its end."""
MESSAGE_S, SENT_S, COST_S, PAIR_SENT_S, PAIR_COST_S, LATE_S, QUEUED_S = range(7, 14)
"""Further ones: seconds of a message, at most, in what it waited for; when its message was sent, and the cost; both for the
other block of a pair; by how much the parameters of its stage are late; what it waited because messages wait for each other."""
RECORDED = 14
ANY = 1e30
"""Times its own seconds: more than a message ever waits, but 0 of one that the NICs do not send."""


class Lanes(NamedTuple):
    """Programs and their times, one in each lane: the columns of `Program` and `Times`, flat, [..., LANES]."""

    duration_s: Floats  # [NO_WORK * cells + 1] by kind and cell
    cost_s: Floats  # [NO_MESSAGE * stages + 1] of messages, by kind and stage
    gate_start_s: Floats  # [cells]
    gate_end_s: Floats  # [cells]
    beside_s: Floats  # [cells * CROWDED] the first rows of `Program.beside_s`, cell by cell
    longer_s: Floats  # [NO_WORK * cells + 1] its rows CROWDED and CLEARED, by rows of `duration_s`
    cleared: Floats
    most_s: Floats  # [1] the most that pipeline messages make a block longer: 0 where they share nothing, else infinity
    sent_s: Floats  # [2 * (NO_WORK * cells + 1)] of NICs for what a block sends on, by direction and row of `duration_s`
    rate: Floats  # [NO_WORK * cells + 1] part of a block's time for which its own messages need the NICs
    waits_s: Floats  # [1] the most that a message waits for others, over its own seconds: ANY, or 0 where none does
    slot_s: Floats  # [slots] ends that messages wait for; when the message of a block leaves
    held_s: Floats  # [slots] by how much it leaves later than its block ends
    wire_s: Floats  # [2 * stages] when a stage has sent all messages of a direction ...
    other_s: Floats  # [2 * stages] ... and by how much its latest one was later because of those of the other direction
    since_s: Floats  # [stages] when the latest block ended that may send
    latest_s: Floats  # [stages] by how much the latest one left later than its block had ended
    left: Floats  # [2 * stages] the first rows of `Program.left` ...
    slower: Floats  # [2 * stages] ... and `Program.slower`
    through_s: Floats  # [stages] when the stage's stream is through if nothing more comes
    behind_s: Floats  # [stages] by how much its gradients are later, since the latest last backward of a chunk
    first_s: Floats  # [cells] and what follows as in Times
    last_s: Floats  # [2 * cells]
    free_s: Floats
    message_s: Floats
    exposed_s: Floats
    queued_s: Floats
    idle_s: Floats
    gated_s: Floats
    gathers_late_s: Floats
    slowed_s: Floats
    crowded_s: Floats
    shared: Floats
    later_s: Floats
    noted: Floats  # [RECORDED] of the present event


def allocate_lanes(events: int, stages: int, cells: int) -> Lanes:
    """Scratch for pipelines of up to `events` events, `stages` stages and `cells` virtual stages."""
    of_durations, rows = NO_WORK * cells + 1, dict.fromkeys(Lanes._fields, stages)
    rows |= dict.fromkeys(("duration_s", "longer_s", "cleared", "rate"), of_durations)
    rows |= {"sent_s": 2 * of_durations} | dict.fromkeys(("wire_s", "other_s", "left", "slower"), 2 * stages)
    rows |= dict.fromkeys(("gate_start_s", "gate_end_s", "first_s", "shared", "later_s"), cells)
    rows |= {"cost_s": NO_MESSAGE * stages + 1, "beside_s": CROWDED * cells, "last_s": 2 * cells}
    rows |= {"most_s": 1, "waits_s": 1, "slot_s": events + 2, "held_s": events + 2, "noted": RECORDED}
    lanes = Lanes(**{name: allocate_rows(number) for name, number in rows.items()})
    for name in Lanes._fields[: Lanes._fields.index("slot_s")]:
        getattr(lanes, name)[:] = 0.0  # lanes that no plan uses compute, too
    lanes.through_s[:], lanes.noted[:] = 0.0, 0.0
    lanes.beside_s[:], lanes.left[:], lanes.slower[:] = 1.0, 1.0, 1.0
    return lanes


@inlined_kernel
def put(program: Program, shape: Shape, lane: int, lanes: Lanes) -> None:
    """Write a program into a lane."""
    pp, split, duration_s, message_s = shape.pp, SPLITS[shape.schedule], program.duration_s, program.message_s
    cells = pp * chunks_of(shape.schedule, shape.vpp)
    for cell in range(cells):
        for kind in range(INPUT_GRADIENT if split else WEIGHT):
            lanes.duration_s[kind * cells + cell, lane] = duration_s[kind, cell]
        if split:
            lanes.duration_s[INPUT_GRADIENT * cells + cell, lane] = duration_s[UP, cell] - duration_s[WEIGHT, cell]
        lanes.gate_start_s[cell, lane] = program.gate_start_s[cell]
        lanes.gate_end_s[cell, lane] = program.gate_end_s[cell]
    for stage in range(pp):
        lanes.cost_s[DOWN * pp + stage, lane] = message_s[DOWN, stage]
        lanes.cost_s[UP * pp + stage, lane] = message_s[UP, stage]
        if shape.schedule == DEEPSPEED:
            lanes.cost_s[MEETING * pp + stage, lane] = message_s[DOWN, stage] + message_s[UP, max(stage - 1, 0)]
    _put_beside(program, split, pp, cells, lane, lanes)
    _put_sent(program, shape, cells, lane, lanes)


@inlined_kernel
def _put_beside(program: Program, split: bool, pp: int, cells: int, lane: int, lanes: Lanes) -> None:
    """What its blocks share NICs with.

    Numbers that nothing is to come of stay those of an earlier plan, or of another cell of it: where `through_s` and `most_s`
    are 0 they count for nothing. SENT is never 0.
    """
    rows, beside_s, streams, crowds = lanes.beside_s, program.beside_s, program.shares[STREAMS], program.shares[MESSAGES]
    for stage in range(pp):
        lanes.through_s[stage, lane] = program.gathered_s[stage] if streams else 0.0
    for cell in range(cells):
        for row in range(0 if streams else READY, CROWDED):
            rows[cell * CROWDED + row, lane] = beside_s[row, cell] if streams else 0.0
    lanes.most_s[0, lane] = np.inf if crowds else 0.0
    for kind in range((NO_WORK if split else WEIGHT) if crowds else 0):
        way = UP if kind == INPUT_GRADIENT else kind
        for cell in range(cells):
            lanes.longer_s[kind * cells + cell, lane] = beside_s[CROWDED + way, cell] if way <= UP else 0.0
            lanes.cleared[kind * cells + cell, lane] = beside_s[CLEARED + way, cell] if way <= UP else 0.0


@inlined_kernel
def _put_sent(program: Program, shape: Shape, cells: int, lane: int, lanes: Lanes) -> None:
    """What its blocks send on; those of an earlier plan stay where `waits_s` is 0."""
    split, pairs, sent_s, rows = SPLITS[shape.schedule], PAIRS[shape.schedule], program.sent_s, lanes.sent_s
    queues = program.shares[QUEUES]
    lanes.waits_s[0, lane] = ANY if queues else 0.0
    for stage in range(shape.pp if queues else 0):
        for way in (DOWN, UP):
            lanes.left[2 * stage + way, lane] = program.left[way, stage]
            lanes.slower[2 * stage + way, lane] = program.slower[way, stage]
    up = NO_WORK * cells + 1
    for cell in range(cells if queues else 0):
        rows[DOWN * cells + cell, lane], rows[up + DOWN * cells + cell, lane] = sent_s[DOWN, cell], 0.0
        rows[UP * cells + cell, lane], rows[up + UP * cells + cell, lane] = 0.0, sent_s[UP, cell]
        for kind in (DOWN, UP):
            lanes.rate[kind * cells + cell, lane] = _part(program.busy_s[kind, cell], program.duration_s[kind, cell])
        if split:
            inputs_s = program.duration_s[UP, cell] - program.duration_s[WEIGHT, cell]
            for kind in (WEIGHT, INPUT_GRADIENT):
                rows[kind * cells + cell, lane] = 0.0
                lanes.rate[kind * cells + cell, lane] = (
                    _part(program.busy_s[UP, cell], inputs_s) if kind == INPUT_GRADIENT else 0.0
                )
                rows[up + kind * cells + cell, lane] = sent_s[UP, cell] if kind == INPUT_GRADIENT else 0.0
        if pairs:
            other = cell + 1 - 2 * (cell % 2)
            busy_s = program.busy_s[DOWN, cell] + program.busy_s[UP, other]
            lanes.rate[PAIR * cells + cell, lane] = _part(busy_s, program.duration_s[PAIR, cell])
            rows[PAIR * cells + cell, lane], rows[up + PAIR * cells + cell, lane] = sent_s[DOWN, cell], sent_s[UP, other]


@inlined_kernel
def _part(some_s: float, all_s: float) -> float:
    return min(some_s / all_s, 1.0) if all_s > 0 else 0.0


@inlined_kernel
def take(lanes: Lanes, lane: int, pp: int, cells: int, shares: bool, times: Times) -> None:
    """Read from a lane what the rest of a step needs; `shares`: also what became of what is sent beside blocks."""
    for cell in range(cells):
        times.first_s[cell] = lanes.first_s[cell, lane]
        times.last_s[OF_INPUTS, cell] = lanes.last_s[OF_INPUTS * cells + cell, lane]
        times.last_s[OF_WEIGHTS, cell] = lanes.last_s[OF_WEIGHTS * cells + cell, lane]
        if shares:
            times.shared[cell] = lanes.shared[cell, lane]
            times.later_s[cell] = lanes.later_s[cell, lane]
    for stage in range(pp):
        times.free_s[stage] = lanes.free_s[stage, lane]
        times.message_s[stage] = lanes.message_s[stage, lane]
        times.exposed_s[stage] = lanes.exposed_s[stage, lane]
        times.queued_s[stage] = lanes.queued_s[stage, lane]
        times.idle_s[stage] = lanes.idle_s[stage, lane]
        times.gated_s[stage] = lanes.gated_s[stage, lane]
        if shares:
            times.slowed_s[stage] = lanes.slowed_s[stage, lane]
            times.crowded_s[stage] = lanes.crowded_s[stage, lane]
            times.gathers_late_s[stage] = lanes.gathers_late_s[stage, lane]


@addressed_kernel
def run_lanes(
    shape: Shape,
    group: int,
    order: Ints,
    sequence: Sequence,
    anew: bool,
    streams: bool,
    crowds: bool,
    queues: bool,
    lanes: Lanes,
    ran: Ints,
) -> None:
    """Run the pipelines of all lanes along a sequence, which is found first if the order of blocks is `anew`.

    `group`: see find_sequence. `streams`, `crowds`, `queues`: `shares` of any lane. `ran`, [2]: the turns of
    the sequence, for the next lanes with this order; 1, or 0 for a contradictory order.
    """
    if anew:
        ran[0] = find_sequence(shape, group, order, sequence)
    ran[1] = _run(shape, order, sequence, ran[0], streams, crowds, queues, lanes, lanes.noted, False) > 0


def engine() -> Addresses:
    """What kernels call to run lanes; it is compiled or loaded now, apart from them."""
    return addresses([run_lanes], np.zeros(1, int), _examples)


def _examples() -> tuple[Any, ...]:
    ints = np.zeros(1, int)
    return Shape(0, 0, 0, 0, False), 0, ints, allocate_sequence(1, 1, 1, 1), *[False] * 4, allocate_lanes(1, 1, 1), ints


@outer_kernel
def record(shape: Shape, order: Ints, program: Program, sequence: Sequence, lanes: Lanes, events: Floats) -> int:
    """Run a program in the first lane and write its events down, [events_of, RECORDED], in their order; returns how many."""
    lanes.noted[:] = 0.0
    put(program, shape, 0, lanes)
    turns = fill_sequence(shape, order, sequence)
    streams, crowds, queues = program.shares[STREAMS], program.shares[MESSAGES], program.shares[QUEUES]
    return int(_run(shape, order, sequence, turns, streams, crowds, queues, lanes, events, True))


@inlined_kernel
def _run(
    shape: Shape,
    order: Ints,
    sequence: Sequence,
    turns: int,
    streams: bool,
    crowds: bool,
    queues: bool,
    lanes: Lanes,
    events: Floats,
    recorded: bool,
) -> int:
    """Walk a sequence, piece by piece; returns the number of events, 0 for a contradictory order."""
    pp, cells, rule = shape.pp, shape.pp * chunks_of(shape.schedule, shape.vpp), rule_of(shape)
    split = SPLITS[shape.schedule]
    lanes.duration_s[NO_WORK * cells], lanes.cost_s[NO_MESSAGE * pp], lanes.slot_s[NOTHING] = 0.0, 0.0, 0.0
    lanes.rate[NO_WORK * cells] = 0.0
    lanes.sent_s[NO_WORK * cells], lanes.sent_s[2 * NO_WORK * cells + 1], lanes.held_s[NOTHING] = 0.0, 0.0, 0.0
    lanes.wire_s[: 2 * pp], lanes.other_s[: 2 * pp] = 0.0, 0.0
    for of_stages in (
        lanes.free_s, lanes.message_s, lanes.exposed_s, lanes.idle_s, lanes.gated_s, lanes.gathers_late_s, lanes.behind_s,
        lanes.slowed_s, lanes.crowded_s, lanes.queued_s, lanes.latest_s, lanes.since_s,
    ):  # fmt: skip
        of_stages[:pp] = 0.0
    before: int = 0
    if sequence.state[PIECE] > 0:  # the plans before have run it to its end
        turns = fill_sequence(shape, order, sequence)
    while turns > 0:
        if recorded or queues:  # each call is inlined with its constants: others pay for no queues
            _walk(sequence, turns, rule, split, streams, crowds, queues, cells, lanes, events[before:], recorded)
        elif crowds and split:
            _walk(sequence, turns, rule, True, streams, True, False, cells, lanes, events, False)
        elif crowds:
            _walk(sequence, turns, rule, False, streams, True, False, cells, lanes, events, False)
        else:
            _walk(sequence, turns, rule, split, streams, False, False, cells, lanes, events, False)
        before += int(sequence.state[EVENTS])
        if sequence.state[LEFT] == 0:
            return before
        turns = fill_next(shape, order, sequence)
    return 0


@inlined_kernel
def _walk(  # noqa: C901, PLR0915
    sequence: Sequence,
    turns: int,
    rule: int,
    split: bool,
    streams: bool,
    crowds: bool,
    queues: bool,
    cells: int,
    lanes: Lanes,
    events: Floats,
    recorded: bool,
) -> None:
    """A block without a message waits from 0 on for one that costs nothing."""
    begin = sequence.state[BEGIN]
    event, turn = sequence.event[begin:], sequence.turn[begin:]
    duration_s, cost_s, slot_s = lanes.duration_s, lanes.cost_s, lanes.slot_s
    longer_s, cleared, since_s, latest_s = lanes.longer_s, lanes.cleared, lanes.since_s, lanes.latest_s
    at, longest = 0, load(lanes.most_s, 0)
    for each in range(turns):
        stage = turn[each, 0]
        free = load(lanes.free_s, stage)
        message, exposed, idle, queued, crowded = zeros(), zeros(), zeros(), zeros(), zeros()
        if crowds:
            crowded = load(lanes.crowded_s, stage)
        for _ in range(turn[each, 1]):
            row = event[at, DURATION]
            cost = load(cost_s, event[at, RECEIVED_COST])
            sent = load(slot_s, event[at, RECEIVED])
            start = larger(free, sent + cost)
            total = most = cost
            other, posted, more, held = zeros(), zeros(), zeros(), zeros()
            if rule != ALONE:
                other = load(cost_s, event[at, POSTED_COST])
                posted = load(slot_s, event[at, POSTED])
                most = larger(cost, other)
                if rule == BLOCKING:
                    start = larger(larger(free, posted) + other, larger(free, sent) + cost)
                    total = most
                else:
                    start = larger(start, posted + other)
                    total = cost + other
            waited = start - free
            message = message + total
            rest = waited
            if queues:
                held = smaller(waited, _held(event, at, rule, lanes))
                queued = queued + held
                rest = waited - held
            exposed = exposed + smaller(rest, most)
            idle = idle + larger(rest - most, zeros())
            alone = load(duration_s, row)
            seconds = alone
            if crowds:
                gone = waited
                if split:
                    gone = start - load(since_s, stage)
                if queues:
                    gone = larger(gone - load(latest_s, stage), zeros())
                more = smaller(longest, larger(load(longer_s, row) - load(cleared, row) * gone, zeros()))
                seconds = seconds + more
                crowded = crowded + more
            end = start + seconds
            begins, last = event[at, FIRST], event[at, LAST]
            if begins >= 0:
                end = _first_forward_end(begins, stage, start, alone, seconds, streams, lanes)
            if last >= 0:
                end = _end_beside(last, stage, cells, start, alone, seconds, end, streams, lanes)
            leaves = end
            sends = not (split and WEIGHT * cells <= row < PAIR * cells)  # a weight gradient sends nothing
            if crowds and split and sends:
                store(since_s, stage, end)
            if queues:
                _delay(stage, row, start, alone, lanes)
                late = _queued(stage, row, cells, end, streams, lanes)
                store(lanes.held_s, event[at, WRITTEN], late)
                if sends:
                    store(latest_s, stage, late)
                leaves = end + late
            store(slot_s, event[at, WRITTEN], leaves)
            free = end
            if recorded:
                store(lanes.noted, READY_S, start)
                store(lanes.noted, ALONE_S, alone)
                store(lanes.noted, CROWDED_S, more)
                store(lanes.noted, END_S, end)
                store(lanes.noted, MESSAGE_S, most)
                store(lanes.noted, SENT_S, sent)
                store(lanes.noted, COST_S, cost)
                store(lanes.noted, PAIR_SENT_S, posted)
                store(lanes.noted, PAIR_COST_S, other)
                store(lanes.noted, LATE_S, load(lanes.gathers_late_s, stage))
                store(lanes.noted, QUEUED_S, held)
                events[at, STAGE], events[at, WORKS] = stage, row != NO_WORK * cells
                for column in range(READY_S, RECORDED):
                    events[at, column] = lanes.noted[column, 0]
                store(lanes.noted, SLOWED_S, zeros())
            at += 1
        store(lanes.free_s, stage, free)
        store(lanes.message_s, stage, load(lanes.message_s, stage) + message)
        store(lanes.exposed_s, stage, load(lanes.exposed_s, stage) + exposed)
        store(lanes.idle_s, stage, load(lanes.idle_s, stage) + idle)
        if queues:
            store(lanes.queued_s, stage, load(lanes.queued_s, stage) + queued)
        if crowds:
            store(lanes.crowded_s, stage, crowded)


@inlined_kernel
def _held(event: Rows, at: int, rule: int, lanes: Lanes) -> Floats:
    """For how long the message that an event waits for has waited for others; in a pair the later of two."""
    held = load(lanes.held_s, event[at, RECEIVED])
    if rule == IN_PAIRS:
        held = larger(held, load(lanes.held_s, event[at, POSTED]))
    return held


@inlined_kernel
def _delay(stage: int, row: int, start: Floats, alone: Floats, lanes: Lanes) -> None:
    """Delay what a stage still sends when a block begins by what the block sends beside it."""
    rate = load(lanes.rate, row)
    for way in (DOWN, UP):
        mine = 2 * stage + way
        free = load(lanes.wire_s, mine)
        later = smaller(larger(free - start, zeros()), alone) * rate
        store(lanes.wire_s, mine, free + later)
        store(lanes.other_s, mine, load(lanes.other_s, mine) + later)


@inlined_kernel
def _queued(stage: int, row: int, cells: int, end: Floats, streams: bool, lanes: Lanes) -> Floats:
    """By how much the message of a block that ends at `end` is later because of others of its stage.

    It waits for those of its direction, and halves the NICs with those of the other. What it makes these later is not known
    when they leave: one is taken to be as late as the one before it.
    """
    mine, waits = 2 * stage, load(lanes.waits_s, 0)
    down, up = row, NO_WORK * cells + 1 + row
    down_s, up_s = smaller(load(lanes.sent_s, down), waits), smaller(load(lanes.sent_s, up), waits)
    down_free, up_free = load(lanes.wire_s, mine + DOWN), load(lanes.wire_s, mine + UP)
    down_wait = smaller(larger(down_free - end, zeros()), down_s * waits)
    up_wait = smaller(larger(up_free - end, zeros()), up_s * waits)
    down_halved = smaller(larger(up_free - (end + down_wait), zeros()), down_s)
    up_halved = smaller(larger(down_free - (end + up_wait), zeros()), up_s)
    of_pair = smaller(down_s, up_s)
    down_longer, up_longer = down_halved + of_pair, up_halved + of_pair
    if streams:
        down_longer = down_longer + _longer(DOWN, stage, end + down_wait, down_s, lanes.gathers_late_s, lanes)
        up_longer = up_longer + _longer(UP, stage, end + up_wait, up_s, lanes.behind_s, lanes)
    store(lanes.wire_s, mine + DOWN, larger(down_free, end + (down_wait + down_s + down_longer)) + up_halved)
    store(lanes.wire_s, mine + UP, larger(up_free, end + (up_wait + up_s + up_longer)) + down_halved)
    down_other, up_other = load(lanes.other_s, mine + DOWN), load(lanes.other_s, mine + UP)
    down_taken, up_taken = smaller(down_other, down_s * waits), smaller(up_other, up_s * waits)
    store(lanes.other_s, mine + DOWN, down_other - down_taken + up_halved)
    store(lanes.other_s, mine + UP, up_other - up_taken + down_halved)
    down_late = down_wait + down_longer + smaller(down_taken, down_s)
    return larger(down_late, up_wait + up_longer + smaller(up_taken, up_s))


@inlined_kernel
def _longer(way: int, stage: int, begin: Floats, alone: Floats, late_s: Floats, lanes: Lanes) -> Floats:
    """Seconds that a message which begins to be sent takes longer beside a stream; `late_s`: see _beside_stream."""
    row, through = 2 * stage + way, load(lanes.through_s, stage)
    left, slower = load(lanes.left, row), load(lanes.slower, row)
    together = smaller(larger(through - begin, zeros()) * slower, alone / left)
    behind = together - together / slower
    store(lanes.through_s, stage, through + behind)
    store(late_s, stage, load(late_s, stage) + behind)
    return together - together * left


@inlined_kernel
def _first_forward_end(
    cell: int, stage: int, start: Floats, alone: Floats, seconds: Floats, streams: bool, lanes: Lanes
) -> Floats:
    """End of the first forward of a cell, which waits for its parameters, maybe beside the gather of others."""
    gate_start, gate_end = load(lanes.gate_start_s, cell), load(lanes.gate_end_s, cell)
    if streams:
        row, late = cell * CROWDED, load(lanes.gathers_late_s, stage)
        begun = larger(start, gate_start + late)
        part, behind = _beside(row, stage, begun, alone, lanes)
        store(lanes.gathers_late_s, stage, late + behind)
        longer, later = part * load(lanes.beside_s, row + LONGER), part * load(lanes.beside_s, row + LATER)
        end = larger(begun + seconds + longer, gate_end + (late + behind) + later)
    else:
        end = larger(larger(start, gate_start) + seconds, gate_end)
    store(lanes.gated_s, stage, load(lanes.gated_s, stage) + (end - (start + seconds)))
    store(lanes.first_s, cell, end)
    return end


@inlined_kernel
def _end_beside(
    last: int, stage: int, cells: int, start: Floats, alone: Floats, seconds: Floats, end: Floats, streams: bool, lanes: Lanes
) -> Floats:
    """End of a block that would end at `end`, after which something is kept, or beside a stream: `last`, see sequence.py."""
    if last >= ARRIVED * cells:
        if streams:
            store(lanes.through_s, stage, smaller(load(lanes.through_s, stage), end))
        return end
    if last >= BESIDE_GRADIENTS * cells:
        longer = zeros()
        if streams and any_above(load(lanes.through_s, stage), start):
            if last >= BESIDE_GATHER * cells:
                longer = _beside_stream(last - BESIDE_GATHER * cells, DOWN, stage, start, alone, lanes.gathers_late_s, lanes)
            else:
                longer = _beside_stream(last - BESIDE_GRADIENTS * cells, UP, stage, start, alone, lanes.behind_s, lanes)
            store(lanes.noted, SLOWED_S, longer)
        return end + longer
    both = last >= OF_BOTH * cells
    kept = last - OF_BOTH * cells if both else last
    if both and streams:
        longer = _last_backward(kept, stage, start, seconds, lanes)
        store(lanes.noted, SLOWED_S, longer)
        end = end + longer
    store(lanes.last_s, kept, end)
    if both:
        store(lanes.last_s, OF_WEIGHTS * cells + kept, end)
    return end


@inlined_kernel
def _beside_stream(cell: int, way: int, stage: int, start: Floats, alone: Floats, late_s: Floats, lanes: Lanes) -> Floats:
    """Seconds that another block takes longer while its stage gathers parameters, or reduces gradients, of further chunks.

    `late_s` [stages]: by how much the stream is later.
    """
    row = cell * CROWDED + KINDS * way
    part, behind = _beside(row, stage, start, alone, lanes)
    store(late_s, stage, load(late_s, stage) + behind)
    longer = part * load(lanes.beside_s, row + LONGER)
    store(lanes.slowed_s, stage, load(lanes.slowed_s, stage) + longer)
    return longer


@inlined_kernel
def _beside(row: int, stage: int, start: Floats, alone: Floats, lanes: Lanes) -> tuple[Floats, Floats]:
    """The part of a block that the stream of its stage is beside, and by how many seconds the stream is later for that."""
    through, sent = load(lanes.through_s, stage), load(lanes.beside_s, row + SENT)
    part = smaller(larger(through - start, zeros()), sent) / sent
    behind = part * (alone + load(lanes.beside_s, row + LONGER) - sent)
    store(lanes.through_s, stage, through + behind)
    return part, behind


@inlined_kernel
def _last_backward(cell: int, stage: int, start: Floats, seconds: Floats, lanes: Lanes) -> Floats:
    """Seconds that the last backward of a cell takes longer, whose own gradients join the stream; `seconds`: without that."""
    beside_s, row = lanes.beside_s, cell * CROWDED
    sent, ready = load(beside_s, row + (KINDS + SENT)), load(beside_s, row + READY)
    left = larger(load(lanes.through_s, stage) - start, zeros()) + ready
    gone = smaller(left, sent)
    longer = gone / sent * load(beside_s, row + (KINDS + LONGER))
    end = start + seconds + longer
    store(lanes.through_s, stage, end + (left - gone) + (load(beside_s, row + OWN) - ready))
    store(lanes.shared, cell, left / sent)
    store(lanes.later_s, cell, load(lanes.behind_s, stage))
    store(lanes.behind_s, stage, zeros())
    store(lanes.slowed_s, stage, load(lanes.slowed_s, stage) + longer)
    return longer
