"""The block table: the cost of each distinct key among a batch of plans, computed once; a plan looks up its key.

A key is everything that the cost of a layer depends on: sizes and placement of groups, micro-batch, recompute, device,
overlap switches. It excludes pp, vpp, ga and the schedule, which decide how often a layer runs, and when. Where layers run
beside those of another micro-batch, a plan has the mean of two keys: most of its blocks have a partner, some have none.
"""

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.compiled.references import reference
from sim_core.costing.calibration import add_core, fill_ratios
from sim_core.costing.case import (
    EXPERTS_BACKWARD,
    EXPERTS_FORWARD,
    WEIGHT_COMPUTE,
    WEIGHT_GRADIENTS,
    Blocks,
    Case,
    Tables,
    allocate_blocks,
    case_at,
    collective_of,
    compute_factor,
    nic_of,
    rerun_s,
    rerun_share,
)
from sim_core.costing.groups import N_GROUPS, Groups
from sim_core.costing.modelled import LONE, beside_another, cost_model_blocks, passes_alternate, pipelines_over_nodes
from sim_core.costing.recorded import layer_scales
from sim_core.distinct import distinct_rows
from sim_core.engine.schedules import APART
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import BACKWARD_S, CP_TOTAL, DP_TOTAL, EP_TOTAL, FORWARD_S, RECOMPUTE_S, TP_TOTAL
from sim_core.planning.columns import Plans
from sim_core.planning.keys import layer_columns
from sim_core.planning.split import Split
from sim_core.terms import CP_A2A, CP_RING
from sim_core.workloads.moving import COMPUTE, EXPERT_LOAD, EXPONENTS, rule_scales, times_base
from sim_core.workloads.workload import EP, FORWARD, INPUT_GRADIENT, NO_COMM, TP, WEIGHT_GRADIENT, Workload

TOTAL_OF = np.array([TP_TOTAL, EP_TOTAL, DP_TOTAL, DP_TOTAL, DP_TOTAL, CP_TOTAL, CP_TOTAL], int)
"""The metric of a group's communication, by group. The metric after it is the exposed part."""
EXPOSED = 1


def cost_blocks(
    workload: Workload,
    hardware: HardwareTable,
    plans: Plans,
    groups: Groups,
    split: Split,
    rows: Ints,
    launches: Floats | None = None,
    *,
    all_paired: bool = False,
) -> Blocks:
    """The block table of the plans in `rows`. `launches`, [rows]: on what the host takes to launch a layer of a model.

    `all_paired`: as if no block were without the partner that `overlap_ep` gives it.
    """
    arrays, modelled = workload.arrays, workload.modelled
    launches = np.ones(len(rows)) if launches is None else launches
    keys = _keys(workload, hardware, plans, groups, rows)
    share = beside_another(workload, plans)[rows]
    some = np.flatnonzero((share < 1) & (not all_paired))  # these are costed without a partner, too
    if len(some):
        lone = plans._replace(overlap_ep=LONE * plans.overlap_ep)
        keys = np.concatenate([keys, _keys(workload, hardware, lone, groups, rows)[some]])
        launches = np.concatenate([launches, launches[some]])
    of_row, first = distinct_rows(np.column_stack([keys, launches.view(int)]))
    key = np.full(len(plans.tp), -1, int)
    key[rows] = of_row[: len(rows)]
    blocks, chosen = allocate_blocks(arrays, key, len(first)), np.concatenate([rows, rows[some]])[first]
    if modelled and not workload.from_file:
        overlaps = np.where(first < len(rows), 1, LONE) * plans.overlap_ep[chosen]
        cost_model_blocks(workload, modelled, hardware, plans, groups, chosen, overlaps, launches[first], blocks)
        return _mixed(blocks, rows[some], of_row[len(rows) :], share[some]) if len(some) else blocks
    if modelled:
        fill_ratios(arrays, modelled, hardware, plans, chosen, blocks)
    scales = layer_scales(workload, hardware, plans, chosen)
    _cost_rows(Tables(arrays, hardware.columns, plans, groups, split, blocks), chosen, scales, modelled is not None)
    if modelled and not arrays.pieces.attention_core.any():
        add_core(arrays, modelled, hardware, plans, chosen, blocks)
    return blocks


def _mixed(blocks: Blocks, rows: Ints, lone: Ints, share: Floats) -> Blocks:
    """The table, and below it a row for plans of `rows` that are alike: `share` of their own row, the rest of row `lone`."""
    of_row, first = distinct_rows(np.stack([blocks.key[rows], lone, share.view(int)], axis=1))
    own, other, part = blocks.key[rows[first]], lone[first], share[first]

    def mixed(table: Floats) -> Floats:
        weight = part.reshape(-1, *[1] * (table.ndim - 1))
        return np.concatenate([table, weight * table[own] + (1 - weight) * table[other]])

    blocks.key[rows] = len(blocks.scale) + of_row
    return Blocks._make((blocks.key, *map(mixed, blocks[1:-1]), blocks.updates))


def _keys(workload: Workload, hardware: HardwareTable, plans: Plans, groups: Groups, rows: Ints) -> Ints:
    """What the cost of a layer depends on, `[rows, columns]`, as whole numbers: places of groups, and fields of plans."""
    pieces = workload.arrays.pieces
    all_groups = np.array([TP, EP, CP_A2A, CP_RING])
    sent = pieces.comm_group[pieces.comm_kind != NO_COMM] if workload.from_file else all_groups
    places = [groups.alike[groups.key[rows], group] for group in range(N_GROUPS) if (sent == group).any()]
    columns = [*places, *layer_columns(plans, rows)]
    if workload.modelled and workload.modelled.stack.ring_step_in_pipelines:
        columns.append(pipelines_over_nodes(hardware, plans)[rows].astype(int))
    moved = (plans.activation_offload[rows] > 0) | (plans.offload_modules[rows] > 0)
    if moved.any():  # their copies go on beside passes of other micro-batches
        columns.append((moved & passes_alternate(plans)[rows]).astype(int))
    return np.stack(columns, axis=1)


@outer_kernel
def _cost_rows(tables: Tables, first: Ints, layer: Floats, by_model: bool) -> None:
    tables = reference(tables)
    for i in first:
        _cost(reference(case_at(tables, i)), layer, by_model)


@inner_kernel
def _cost(case: Case, layer: Floats, by_model: bool) -> None:  # noqa: C901, PLR0915
    """Fill the row of one key: sums over the pieces of each unit. `by_model`: the factors of compute are filled already.
    `layer`: those of a layer's, forward and backward, by row (costing/recorded.py); no rows: by the rule.

    A collective that may overlap hides behind compute of its own piece: the forward compute in the forward, the weight
    gradient in the backward (Megatron-LM's asynchronous tensor-parallel all-reduce).
    """
    plan, pieces, blocks, row = case.plan, case.arrays.pieces, case.blocks, case.block
    scale, nic_s = blocks.scale[row], blocks.nic_s[row]
    base = case.arrays.base
    tokens, experts = times_base(plan.sequence, case.arrays.sequence), times_base(plan.experts, case.arrays.experts)
    rule_scales(plan.micro_batch / base.micro_batch, plan.tp / base.tp, plan.ep / base.ep, tokens, experts, EXPONENTS, scale)
    rules, load = case.arrays.compute_rule, case.arrays.expert_load
    if load.shape[0] > 0 and plan.expert_imbalance > 0:
        scale[EXPERT_LOAD] *= plan.expert_imbalance / case.arrays.recorded_load
    elif load.shape[0] > 0:
        scale[EXPERT_LOAD] *= load[min(plan.ep, load.shape[0] - 1)]
    if not by_model:
        blocks.compute[row] = compute_factor(scale[COMPUTE], case.device, plan)
    for p in range(pieces.unit.shape[0]):
        unit = pieces.unit[p]
        forward, backward = blocks.compute[row, unit, 0], blocks.compute[row, unit, 1]
        if rules.shape[0] > 0 and not by_model:
            forward = backward = compute_factor(scale[rules[p]], case.device, plan)
            if layer.shape[0] > 0 and unit == case.arrays.layer_unit and rules[p] == COMPUTE:
                forward = compute_factor(layer[row, 0], case.device, plan)
                backward = compute_factor(layer[row, 1], case.device, plan)
        again = rerun_share(plan, pieces.rerun[p], pieces.attention_core[p])
        forward_s = pieces.compute_s[p, FORWARD] * forward
        weight_s = pieces.compute_s[p, WEIGHT_GRADIENT] * backward
        backward_s = pieces.compute_s[p, INPUT_GRADIENT] * backward + weight_s
        work, rerun, apart_s = blocks.work[row, unit], blocks.again[row, unit], blocks.apart_s[row, unit]
        work[FORWARD_S] += forward_s
        work[BACKWARD_S] += backward_s
        again_s = rerun_s(plan, again, forward_s, pieces.rerun_s[p] * forward)
        rerun[RECOMPUTE_S] += again_s
        blocks.forward_s[row, unit] += forward_s
        blocks.backward_s[row, unit] += backward_s
        blocks.piece_backward_s[row, p] = backward_s
        apart_s[WEIGHT_GRADIENTS] += weight_s
        apart_s[WEIGHT_COMPUTE] += weight_s
        blocks.again_s[row, unit] += again_s
        for phase in range(3):
            kind = pieces.comm_kind[p, phase]
            if kind == NO_COMM:
                continue
            group = pieces.comm_group[p, phase]
            size = pieces.comm_bytes[p, phase] * scale[pieces.comm_rule[p, phase]]
            seconds = collective_of(case, kind, group, size)
            exposed = seconds
            overlaps = (group == TP and plan.overlap_tp == 1) or (group == EP and plan.overlap_ep == 1)
            if overlaps and phase != WEIGHT_GRADIENT and not (phase == INPUT_GRADIENT and APART[plan.schedule]):
                exposed -= min(seconds, forward_s if phase == FORWARD else weight_s)
            if case.shares and seconds > 0:
                of_nics, open_part = nic_of(case, kind, group, size, seconds), exposed / seconds
                way = 0 if phase == FORWARD else 1
                nic_s[unit, way, 0] += of_nics
                nic_s[unit, way, 1] += of_nics * open_part
                if phase == FORWARD:
                    nic_s[unit, 2, 0] += again * of_nics
                    nic_s[unit, 2, 1] += again * of_nics * open_part
            total = TOTAL_OF[group]
            work[total] += seconds
            work[total + EXPOSED] += exposed
            if group == EP:
                apart_s[EXPERTS_FORWARD if phase == FORWARD else EXPERTS_BACKWARD] += exposed
            if phase == WEIGHT_GRADIENT:
                apart_s[WEIGHT_GRADIENTS] += exposed
            if phase == FORWARD:
                rerun[total] += again * seconds
                rerun[total + EXPOSED] += again * exposed
                blocks.forward_s[row, unit] += exposed
                blocks.again_s[row, unit] += again * exposed
            else:
                blocks.backward_s[row, unit] += exposed
                blocks.piece_backward_s[row, p] += exposed
