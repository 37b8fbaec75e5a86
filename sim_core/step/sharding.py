"""Sharded gradients and parameters: what a block waits for its layers' gathers and scatters, on a stream beside the compute.

ZeRO-2 scatters the gradients of each layer in every micro-batch; ZeRO-3 (PyTorch's FSDP) gathers its parameters, too, before
the forward and again before the backward (Rajbhandari et al. 2019, arXiv 1910.02054, section 5; Zhao et al. 2023, arXiv
2304.11277, section 3.3). Gathers and scatters of a rank follow one another: they share communicator and NICs. A block begins
with nothing gathered and ends with its last scatter, as in PyTorch.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.costing.case import Case, collective_of, nic_of, shard_ranks, shares_nics
from sim_core.costing.fabric import shared_s
from sim_core.costing.groups import EXPERT_SHARD, SHARD
from sim_core.engine.program import DOWN, UP, Program
from sim_core.metrics import BACKWARD_S, DP_EXPOSED, DP_TOTAL, FORWARD_S, RECOMPUTE_S
from sim_core.models.precision import GATHERED
from sim_core.planning.columns import BLOCK, FILE, NONE
from sim_core.planning.split import count_layers
from sim_core.step.gradients import PARAMETER_BYTES, width_scale
from sim_core.step.lower import Lowered, jitter_of, slowness
from sim_core.step.sharing import ALL, OPEN, in_background, sends_of
from sim_core.terms import ALL_GATHER, GRADIENTS_SHARDED, PARAMETERS_SHARDED, REDUCE_SCATTER
from sim_core.workloads.workload import Arrays


class Layers(NamedTuple):
    """The layers of a virtual stage in model order, embedding and head included; scratch for one at a time."""

    unit: Ints  # [layers]
    compute_s: Floats  # [layers] forward or backward
    gather_s: Floats  # [layers] its parameters
    scatter_s: Floats  # [layers] its gradients
    end_s: Floats  # [layers] of its compute
    unit_gather_s: Floats  # [units]
    unit_scatter_s: Floats  # [units]


def allocate_layers(arrays: Arrays, layers: int) -> Layers:
    """Scratch for models of up to `layers` layers."""
    units, most = arrays.unit_layers.shape[0], layers + 2
    return Layers(
        unit=np.zeros(most, np.int64),
        compute_s=np.zeros(most),
        gather_s=np.zeros(most),
        scatter_s=np.zeros(most),
        end_s=np.zeros(most),
        unit_gather_s=np.zeros(units),
        unit_scatter_s=np.zeros(units),
    )


@outer_kernel
def forward_s(layers: Layers, count: int, ahead: int) -> float:
    """Seconds of a forward: a layer runs once its parameters are gathered.

    A gather starts when that before it has ended, and so many layers that at most `ahead` gathered ones wait to run.
    """
    stream_s, free_s = 0.0, 0.0
    for k in range(count):
        if layers.gather_s[k] > 0:
            if k > ahead:
                stream_s = max(stream_s, layers.end_s[k - 1 - ahead])
            stream_s += layers.gather_s[k]
            free_s = max(free_s, stream_s)
        free_s += layers.compute_s[k]
        layers.end_s[k] = free_s
    return free_s


@outer_kernel
def backward_s(layers: Layers, count: int, ahead: int, waits: bool) -> float:
    """Seconds of a backward, from the last layer to the first: gathers as in the forward, scatters behind each layer.

    The scatter of a layer goes before the gather that its end allows. With `waits` the next layer waits for it.
    """
    stream_s, free_s = 0.0, 0.0
    if waits:
        ahead = 0
    sent = 0  # layers whose gradients are on the stream, from the last one
    for k in range(count):
        while sent < k - ahead:
            stream_s = max(stream_s, layers.end_s[count - 1 - sent]) + layers.scatter_s[count - 1 - sent]
            sent += 1
        layer = count - 1 - k
        if waits:
            free_s = max(free_s, stream_s)
        if layers.gather_s[layer] > 0:
            if k > ahead:
                stream_s = max(stream_s, layers.end_s[layer + 1 + ahead])
            stream_s += layers.gather_s[layer]
            free_s = max(free_s, stream_s)
        free_s += layers.compute_s[layer]
        layers.end_s[layer] = free_s
    while sent < count:
        stream_s = max(stream_s, layers.end_s[count - 1 - sent]) + layers.scatter_s[count - 1 - sent]
        sent += 1
    return max(free_s, stream_s)


@inner_kernel
def shard_blocks(case: Case, low: Lowered, program: Program, layers: Layers, out: Floats) -> None:
    """Add to the blocks of `program` what they wait for gathers and scatters, and what these slow the compute beside them."""
    low.longer.layers_s[:] = 0.0
    alone = shard_ranks(case, SHARD) == 1 and shard_ranks(case, EXPERT_SHARD) == 1
    if case.sharding < GRADIENTS_SHARDED or alone:
        return
    plan = case.plan
    pp, contention = plan.pp, case.arrays.framework.dp_contention
    of_nics = _cost_units(case, layers)
    ahead = plan.prefetch_layers if plan.overlap_param == 1 else 0
    for virtual in range(pp * plan.vpp):
        cell = virtual % pp * plan.vpp + virtual // pp
        count = _list_layers(case, virtual, layers)
        for way in (DOWN, UP):
            compute_s, sent_s = _fill(case, virtual, way, count, layers)
            end_s = forward_s(layers, count, ahead) if way == DOWN else backward_s(layers, count, ahead, plan.overlap_grad == 0)
            waited_s, longer_s = max(end_s - compute_s, 0.0), 0.0
            if of_nics > 0:
                all_s = low.nic_s[way, cell, ALL]
                if in_background(plan):
                    all_s += sends_of(low, plan, way, virtual % pp, virtual // pp)
                hidden_s = min(max(sent_s - waited_s, 0.0), compute_s)
                longer_s = shared_s(compute_s, low.nic_s[way, cell, OPEN], all_s, hidden_s * of_nics)
                low.longer.layers_s[way, cell] = longer_s
                low.carried_s[virtual % pp] += sent_s * of_nics * plan.ga
                waited_s += longer_s
            waited_s += contention * max(sent_s - waited_s, 0.0)
            program.duration_s[way, cell] += waited_s
            out[DP_TOTAL] += (sent_s + longer_s) * plan.ga / pp
            out[DP_EXPOSED] += waited_s * plan.ga / pp


@inner_kernel
def run_layers(case: Case, virtual: int, way: int, layers: Layers) -> int:
    """Run the layers of one block alone, for `layers`; returns their number, 0 if nothing of them is sharded."""
    if case.sharding < GRADIENTS_SHARDED or (shard_ranks(case, SHARD) == 1 and shard_ranks(case, EXPERT_SHARD) == 1):
        return 0
    plan = case.plan
    _cost_units(case, layers)
    ahead = plan.prefetch_layers if plan.overlap_param == 1 else 0
    count = _list_layers(case, virtual, layers)
    _fill(case, virtual, way, count, layers)
    if way == DOWN:
        forward_s(layers, count, ahead)
    else:
        backward_s(layers, count, ahead, plan.overlap_grad == 0)
    return count


@inner_kernel
def _cost_units(case: Case, layers: Layers) -> float:
    """Gather and scatter of one layer of each unit; returns the part of these seconds for which they need the NICs."""
    width = case.arrays.gradient_width * width_scale(case)
    parameter = PARAMETER_BYTES * GATHERED[case.plan.precision]
    held = case.blocks.held
    whole_s, nic_s = 0.0, 0.0
    for unit in range(layers.unit_gather_s.shape[0]):
        dense, experts = held[case.block, unit, 0], held[case.block, unit, 1]
        gather_s = 0.0
        if case.sharding == PARAMETERS_SHARDED:
            still, still_experts = held[case.block, unit, 2], held[case.block, unit, 3]  # frozen: gathered, never scattered
            gather_s = collective_of(case, ALL_GATHER, SHARD, parameter * (dense + still))
            gather_s += collective_of(case, ALL_GATHER, EXPERT_SHARD, parameter * (experts + still_experts))
        layers.unit_gather_s[unit] = gather_s
        scatter_s = collective_of(case, REDUCE_SCATTER, SHARD, width * dense)
        scatter_s += collective_of(case, REDUCE_SCATTER, EXPERT_SHARD, width * experts)
        layers.unit_scatter_s[unit] = scatter_s
        if shares_nics(case) and scatter_s > 0:
            whole_s += scatter_s
            nic_s += nic_of(case, REDUCE_SCATTER, SHARD, width * dense, scatter_s)
            nic_s += nic_of(case, REDUCE_SCATTER, EXPERT_SHARD, width * experts, scatter_s)
    return min(nic_s / whole_s, 1.0) if whole_s > 0 else 0.0


@inner_kernel
def _list_layers(case: Case, virtual: int, layers: Layers) -> int:
    """Write the units of a virtual stage, in model order; returns their number."""
    arrays, row, count = case.arrays, case.first + virtual, 0
    if virtual == 0 and arrays.first_unit >= 0:
        layers.unit[0] = arrays.first_unit
        count = 1
    for layer in range(case.split.begin[row], case.split.end[row]):
        unit = arrays.layer_unit
        if unit < 0:
            for each in range(arrays.unit_layers.shape[0]):
                if count_layers(arrays.unit_layers, -1, each, layer, layer + 1) > 0:
                    unit = each
        layers.unit[count] = unit
        count += 1
    if virtual == case.plan.pp * case.plan.vpp - 1 and arrays.last_unit >= 0:
        layers.unit[count] = arrays.last_unit
        count += 1
    return count


@inner_kernel
def _fill(case: Case, virtual: int, way: int, count: int, layers: Layers) -> tuple[float, float]:
    """Fill the seconds of each layer of a virtual stage; returns the sums of compute and of messages."""
    plan, blocks, key, arrays = case.plan, case.blocks, case.block, case.arrays
    slower = slowness(plan, virtual % plan.pp, jitter_of(case))
    compute_s, sent_s, inside = 0.0, 0.0, 0
    for k in range(count):
        unit = layers.unit[k]
        at_end = unit == arrays.first_unit or unit == arrays.last_unit
        gathered = way == DOWN or (plan.reshard_after_forward == 1 and not at_end)  # PyTorch keeps those of the root module
        layers.gather_s[k] = layers.unit_gather_s[unit] if gathered else 0.0
        layers.scatter_s[k] = layers.unit_scatter_s[unit] if way == UP else 0.0
        if way == DOWN:
            seconds = blocks.forward_s[key, unit] + slower * blocks.work[key, unit, FORWARD_S]
        else:
            seconds = blocks.backward_s[key, unit] + slower * blocks.work[key, unit, BACKWARD_S]
            if _redone(plan.checkpointing, plan.checkpoint_layers, at_end, inside):
                seconds += blocks.again_s[key, unit] + slower * blocks.again[key, unit, RECOMPUTE_S]
        inside += 0 if at_end else 1
        layers.compute_s[k] = seconds
        compute_s += seconds
        sent_s += layers.gather_s[k] + layers.scatter_s[k]
    return compute_s, sent_s


@inner_kernel
def _redone(how: int, span: int, at_end: bool, layer: int) -> bool:
    """Whether the backward runs a layer's forward again; `layer` counts those of its virtual stage."""
    if how == FILE:
        return True
    if how == NONE or at_end:
        return False
    return how != BLOCK or layer < span
