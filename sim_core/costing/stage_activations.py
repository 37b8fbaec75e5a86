"""Activations in flight on each stage, once for all plans that keep the same: no part of them depends on data parallelism.

They follow from the order of blocks itself: micro-batches of each chunk between forward and backward. Where weight gradients
run apart, a micro-batch keeps all its activations until the input gradient, and from there to its weight gradient what that
needs (Qi et al. 2023, arXiv 2401.10241, appendix G).
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import Addresses, inner_kernel, kernel
from sim_core.compiled.references import reference
from sim_core.costing.case import sharding_of
from sim_core.distinct import distinct_rows
from sim_core.engine.codes import (
    CHUNK_MASK,
    CHUNK_SHIFT,
    INPUT,
    PART_MASK,
    PART_SHIFT,
    WEIGHTS,
    chunks_of,
    most_blocks,
    most_cells,
    most_scratch,
    row_of,
    virtual_of,
)
from sim_core.engine.orders import fill_order, order_writers
from sim_core.engine.schedules import ALTERNATING, ONE_F_ONE_B, ORDER, PLACEMENT, SPLITS
from sim_core.models.recompute import CORE_ATTN, RECOMPUTE_MODULES
from sim_core.planning.columns import BLOCK, EVERY, FULL, MODULES, ORDER_COLUMNS, SELECTIVE, Plan, Plans, plan_at
from sim_core.planning.split import Split, count_layers
from sim_core.terms import PARAMETERS_SHARDED
from sim_core.workloads.workload import Arrays

_WEIGHED = np.array([[1, 1], [1, 0], [2, 1], [1, 2], [0, 1]])
"""Bytes before and after the input gradient, up to a factor: the moments looked at are the peaks of these five."""
MOMENTS = len(_WEIGHED)


@kernel
def count_in_flight(order: Ints, schedule: int, pp: int, vpp: int, ga: int, in_flight: Ints) -> int:
    """Fill `in_flight`, [moments, 2, cells]: micro-batches of each chunk before their input gradient, and between it and their
    weight gradient, when a stage may keep the most. Returns the number of moments: 1 if backwards are whole."""
    moments = MOMENTS if SPLITS[schedule] else 1
    chunks, blocks = chunks_of(schedule, vpp), row_of(schedule, vpp, ga)
    now = np.zeros((2, chunks), np.int64)
    most = np.empty(MOMENTS, np.int64)
    for stage in range(pp):
        now[:] = 0
        most[:] = -1
        whole, waiting = 0, 0
        for at in range(stage * blocks, (stage + 1) * blocks):
            code = order[at]
            if code < 0:
                continue
            part = (code >> PART_SHIFT) & PART_MASK
            chunk = (code >> CHUNK_SHIFT) & CHUNK_MASK
            if part == WEIGHTS:
                now[1, chunk] -= 1
                waiting -= 1
            else:
                change = -1 if code & 1 else 1
                now[0, chunk] += change
                whole += change
                if part == INPUT:
                    now[1, chunk] += 1
                    waiting += 1
            for k in range(moments):
                weighed = _WEIGHED[k, 0] * whole + _WEIGHED[k, 1] * waiting
                if weighed > most[k]:
                    most[k] = weighed
                    for at_chunk in range(chunks):
                        in_flight[k, 0, stage * chunks + at_chunk] = now[0, at_chunk]
                        in_flight[k, 1, stage * chunks + at_chunk] = now[1, at_chunk]
    return moments


WHOLE, WITHOUT_CORE, INPUT_ONLY, LOGITS, BACKWARD, SAVED = 0, 1, 2, 3, 4, 5
SENT = SAVED + len(RECOMPUTE_MODULES)
"""Columns of the activations: all, all but core attention, the input of the layer; logits and loss, which are in all three;
gradients that the backward of a layer works on. Of a model, from SAVED on, what each of RECOMPUTE_MODULES does not keep, from
SENT on the input of each of OFFLOAD_MODULES."""
IN_TRANSIT = 2.0
"""Layers whose activations are on the device beside those that are kept: of the layer that runs and of the one whose copy is
under way, to the host or back (Megatron-LM core 0.19, fine_grained_activation_offload.py: it reloads one layer ahead)."""


class InFlight(NamedTuple):
    """Activations at the moment when a stage keeps the most, for the distinct keys of some plans."""

    key: Ints  # [rows]
    offset: Ints  # [keys] the first of its stages
    bytes: Floats  # [stages of all keys] with logits
    logits: Floats  # [stages of all keys]
    working: Floats  # [stages of all keys] what recompute works on beside what is kept
    host: Floats  # [stages of all keys] on the host


def activations_in_flight(arrays: Arrays, plans: Plans, split: Split, rows: Ints, shape: Ints, kept: Floats) -> InFlight:
    """Of the plans in `rows`, sorted by order; `shape` is the row of each in `kept`, [shapes, units, ...] by WHOLE to SAVED."""
    names = [*(name for name in ORDER_COLUMNS if name != "ga"), "checkpointing", "checkpoint_layers", "offload_modules"]
    names += ["sharding"] * arrays.framework.inputs_stay
    enough = micro_batches_to_fill(plans, rows)
    columns = [shape, split.key[rows], enough, *(getattr(plans, name)[rows] for name in names)]
    columns.append(plans.activation_offload[rows].view(int))
    key, first = distinct_rows(np.stack(columns, axis=1))
    chosen, ga = rows[first], enough[first]
    schedule, pp, vpp = plans.schedule[chosen], plans.pp[chosen], plans.vpp[chosen]
    offset = np.cumsum(pp) - pp
    in_flight = InFlight(key, offset, *np.zeros((4, int(pp.sum()))))
    counts = np.zeros((MOMENTS if SPLITS[schedule].any() else 1, 2, most_cells(schedule, pp, vpp)), int)
    order, scratch = np.empty(most_blocks(schedule, pp, vpp, ga), int), np.empty(most_scratch(schedule, pp, ga), int)
    of_order = order_writers(schedule), order, scratch
    _fill(arrays, plans, split, chosen, ga, shape[first], kept, of_order, counts, in_flight)
    return in_flight


def of_chunks(arrays: Arrays, plans: Plans, split: Split, kept: Floats) -> Floats:
    """What `of_chunk` says of each chunk of the first plan, [stages, chunks, 3]; `kept`: of its shape, [units, ...]."""
    plan = plan_at(plans, 0)
    chunks, first = chunks_of(plan.schedule, plan.vpp), int(split.offset[split.key[0]])
    activations = np.empty((plan.pp, chunks, 3))
    for stage, chunk in np.ndindex(plan.pp, chunks):
        row = first + virtual_of(int(PLACEMENT[plan.schedule]), stage, chunk, plan.pp)
        activations[stage, chunk] = of_chunk(arrays, split, plan, kept, row)[:3]
    return activations


def micro_batches_to_fill(plans: Plans, rows: Ints) -> Ints:
    """As many micro-batches as fill the pipeline of each plan as all of its own do, at most those, [rows].

    A stage of 1F1B keeps the most when it has run its warm-up and one more forward (engine/orders.py); from there on forwards
    and backwards alternate: of one chunk, or of all chunks in turn, a group of micro-batches each. These forwards are among the
    first groups, or in the last one where that is shorter.
    """
    pp, vpp, own = plans.pp[rows], plans.vpp[rows], plans.microbatch_group_size[rows]
    group = np.where((vpp > 1) & (own > 0), own, pp)
    groups = np.where(vpp > 1, 2 + (2 * pp + (vpp - 1) * group) // (group * vpp), 1)
    alternates = ORDER[plans.schedule[rows]] == ALTERNATING
    filling = groups * group + np.where(vpp > 1, plans.ga[rows] % group, 0)
    return np.where(alternates, np.minimum(plans.ga[rows], filling), plans.ga[rows])


@kernel
def _fill(
    arrays: Arrays,
    plans: Plans,
    split: Split,
    rows: Ints,
    enough: Ints,
    shape: Ints,
    kept: Floats,
    of_order: tuple[Addresses, Ints, Ints],
    counts: Ints,
    most: InFlight,
) -> None:
    """Consecutive rows with the same schedule share its order, and the micro-batches in flight that follow from it."""
    writers, order, scratch = of_order
    schedule, pp, vpp, ga, group, moments = -1, -1, -1, -1, -1, 1
    of, of_host = np.zeros((2, counts.shape[2], 4))
    arrays, plans, split = reference(arrays), reference(plans), reference(split)
    for k in range(len(rows)):
        plan = reference(plan_at(plans, rows[k]))
        same = plan.schedule == schedule and plan.pp == pp and plan.vpp == vpp and enough[k] == ga
        if not same or plan.microbatch_group_size != group:
            schedule, pp, vpp, ga, group = plan.schedule, plan.pp, plan.vpp, enough[k], plan.microbatch_group_size
            fill_order(writers, schedule, pp, vpp, ga, group, order, scratch)
            if schedule != ONE_F_ONE_B or vpp == 1:
                moments = count_in_flight(order, schedule, pp, vpp, ga, counts)
        chunks, row, first = chunks_of(schedule, vpp), split.offset[split.key[rows[k]]], most.offset[k]
        for stage in range(pp):
            for chunk in range(chunks):
                virtual = row + virtual_of(PLACEMENT[schedule], stage, chunk, pp)
                kept_bytes, working, waiting, logits, sent = of_chunk(arrays, split, plan, kept[shape[k]], virtual)
                of[chunk, 0], of[chunk, 1], of[chunk, 2], of[chunk, 3] = kept_bytes, working, waiting, logits
                of_host[chunk, 0] = sent
            of_stage, of_logits = 0.0, 0.0
            offloads = of_host[:chunks, 0].any()
            if schedule == ONE_F_ONE_B and vpp > 1:
                blocks = order[stage * 2 * vpp * ga : (stage + 1) * 2 * vpp * ga]
                of_stage, of_logits = _fullest(blocks, of)
                most.host[first + stage] = _fullest(blocks, of_host)[0] if offloads else 0.0
            else:
                moment = counts[:moments, :, stage * chunks : (stage + 1) * chunks]
                of_stage, of_logits = _fullest_moment(moment, of)
                most.host[first + stage] = _fullest_moment(moment, of_host)[0] if offloads else 0.0
            most.bytes[first + stage], most.logits[first + stage] = of_stage, of_logits
            most.working[first + stage] = of[:chunks, 1].max()


@inner_kernel
def _fullest(order: Ints, of: Floats) -> tuple[float, float]:
    """Most bytes of a stage in its `order` of forwards and whole backwards, and of these logits.

    Chunks keep unlike amounts, so that as many micro-batches of others may keep more. `of`: bytes of each chunk by `of_chunk`,
    and of its logits.
    """
    most, most_logits, now, logits = 0.0, 0.0, 0.0, 0.0
    for code in order:
        chunk = (code >> CHUNK_SHIFT) & CHUNK_MASK
        back = code & 1
        then = now + (of[chunk, 1] if back else of[chunk, 0])
        if then > most:
            most, most_logits = then, logits + (0.0 if back else of[chunk, 3])
        now += -of[chunk, 0] if back else of[chunk, 0]
        logits += -of[chunk, 3] if back else of[chunk, 3]
    return most, most_logits


@inner_kernel
def _fullest_moment(counts: Ints, of: Floats) -> tuple[float, float]:
    """The same of moments with so many micro-batches of each chunk in flight, [moments, 2, chunks] (in_flight.py)."""
    most, most_logits = 0.0, 0.0
    for moment in range(counts.shape[0]):
        then, working, logits = 0.0, 0.0, 0.0
        for chunk in range(counts.shape[2]):
            then += counts[moment, 0, chunk] * of[chunk, 0] + counts[moment, 1, chunk] * of[chunk, 2]
            logits += counts[moment, 0, chunk] * of[chunk, 3]
            if counts[moment, 0, chunk] > 0:
                working = max(working, of[chunk, 1])
        if then + working > most:
            most, most_logits = then + working, logits
    return most, most_logits


@inner_kernel
def _of_mask(kept: Floats, begin: int, end: int, mask: int) -> float:
    """Sum of the columns from `begin` to `end` whose bit is set."""
    total = 0.0
    for k in range(begin, end):
        if mask >> (k - begin) & 1:
            total += kept[k]
    return total


@kernel
def of_chunk(arrays: Arrays, split: Split, plan: Plan, kept: Floats, row: int) -> tuple[float, float, float, float, float]:
    """Bytes that one micro-batch leaves in a virtual stage, the one in `row` of the split; those that it works on;
    those that its weight gradients need after its input gradients, which have run all recompute: about inputs and output
    gradients of the linear layers, as many bytes as all activations but those of core attention (Qi et al. 2023, table 1); of
    the first, logits; and those on the host. `kept`: [units, ...].

    Recompute writes what it works on beside the input that is kept, and its backward gradients. It runs when what comes after
    has had its backward, and has left what only that needed: logits, with `block` the layers after those first ones. Where
    inputs stay, those of all layers and their gradients are there to the end."""
    how, begin, end, span = plan.checkpointing, split.begin[row], split.end[row], plan.checkpoint_layers
    layers, column = end - begin, WITHOUT_CORE if how == SELECTIVE else WHOLE
    kept_bytes, working, waiting, left, logits, stays = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    sent, in_transit = 0.0, 0.0
    inputs_stay = arrays.framework.inputs_stay and sharding_of(arrays, plan) == PARAMETERS_SHARDED
    for unit in range(kept.shape[0]):
        of_layers = split.layers[row, unit]
        ends = split.passes[row, unit] - of_layers
        again = of_layers if how in (FULL, EVERY) else 0
        if how == BLOCK:
            again = count_layers(arrays.unit_layers, arrays.layer_unit, unit, begin, min(begin + span, end))
        stored = float(again)
        if how == EVERY and layers > 0:
            stored *= -(-layers // span) / layers
        inside = (of_layers - again) * kept[unit, column] + stored * kept[unit, INPUT_ONLY]
        if how == MODULES and of_layers > 0:
            inside -= of_layers * _of_mask(kept[unit], SAVED, SENT, span)
            working = max(working, _of_mask(kept[unit], SAVED, SENT, span & ~CORE_ATTN))  # as selective
        if of_layers > 0:
            moved = plan.activation_offload * inside
            moved += of_layers * _of_mask(kept[unit], SENT, kept.shape[1], plan.offload_modules)
            moved = min(moved, inside)
            sent += moved
            in_transit = max(in_transit, IN_TRANSIT * moved / of_layers)
            if arrays.framework.offload_stages > 0:
                in_transit = arrays.framework.offload_stages * sent
            inside -= moved
        kept_bytes += inside + ends * kept[unit, WHOLE]
        logits += ends * kept[unit, LOGITS]
        stays += stored * kept[unit, INPUT_ONLY] if inputs_stay else 0.0
        waiting += of_layers * kept[unit, WITHOUT_CORE]
        if of_layers > 0:
            worked_on = (
                0.0 if again == 0 else kept[unit, WHOLE] * (min(span, layers) if how == EVERY else 1) - kept[unit, INPUT_ONLY]
            )
            working = max(working, worked_on + kept[unit, BACKWARD])
        if how == BLOCK:
            needed = kept[unit, WITHOUT_CORE] if SPLITS[plan.schedule] else 0.0  # by weight gradients
            left += (of_layers - again) * (kept[unit, WHOLE] - needed)
    left += 0.0 if SPLITS[plan.schedule] else logits
    return kept_bytes, max(working + stays - left, 0.0) + in_transit, waiting, logits, sent
