"""Sharded gradients and parameters: what a block waits for its layers' gathers and scatters, on a stream beside the compute.

ZeRO-2 scatters the gradients of each layer in every micro-batch; ZeRO-3 (PyTorch's FSDP) gathers its parameters, too, before
the forward and again before the backward (Rajbhandari et al. 2019, arXiv 1910.02054, section 5; Zhao et al. 2023, arXiv
2304.11277, section 3.3). Gathers and scatters of a rank follow one another: they share communicator and NICs. A block begins
with nothing gathered and ends with its last scatter, as in PyTorch.
"""

from sim_core.compiled.jit import inner_kernel, outer_kernel
from sim_core.costing.case import Case, collective_of, nic_of, shard_ranks
from sim_core.costing.fabric import shared_s
from sim_core.costing.groups import EXPERT_SHARD, SHARD
from sim_core.engine.program import DOWN, UP
from sim_core.metrics import BACKWARD_S, DP_EXPOSED, DP_TOTAL, FORWARD_S, RECOMPUTE_S
from sim_core.models.precision import GATHERED
from sim_core.planning.columns import BLOCK, FILE, NONE, Plan
from sim_core.step.gradients import PARAMETER_BYTES, list_layers, width_scale
from sim_core.step.lower import slowness
from sim_core.step.scratch import Layers, Scratch
from sim_core.step.sharing import ALL, FREE, OPEN
from sim_core.terms import ALL_GATHER, GRADIENTS_SHARDED, PARAMETERS_SHARDED, REDUCE_SCATTER


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
    sent = count - 1  # the next layer whose gradients are sent
    for layer in range(count - 1, -1, -1):
        while sent > layer + ahead:
            stream_s = max(stream_s, layers.end_s[sent]) + layers.scatter_s[sent]
            sent -= 1
        if waits:
            free_s = max(free_s, stream_s)
        if layers.gather_s[layer] > 0:
            if layer + 1 + ahead < count:
                stream_s = max(stream_s, layers.end_s[layer + 1 + ahead])
            stream_s += layers.gather_s[layer]
            free_s = max(free_s, stream_s)
        free_s += layers.compute_s[layer]
        layers.end_s[layer] = free_s
    while sent >= 0:
        stream_s = max(stream_s, layers.end_s[sent]) + layers.scatter_s[sent]
        sent -= 1
    return max(free_s, stream_s)


@inner_kernel
def _is_sharded(case: Case) -> bool:
    """Whether layers send something, to other ranks or to the host."""
    some = shard_ranks(case, SHARD) > 1 or shard_ranks(case, EXPERT_SHARD) > 1 or case.plan.optimizer_offload > 0
    return case.sharding >= GRADIENTS_SHARDED and some


@inner_kernel
def shard_blocks(case: Case, scratch: Scratch) -> None:
    """Add to the blocks of `program` what they wait for gathers and scatters, and what these slow the compute beside them; to
    what the blocks need the NICs for these messages as well: pipeline messages meet both."""
    plan, low, out, more_s = case.plan, scratch.low, scratch.sums, scratch.longer.layers_s
    more_s[:] = 0.0
    if not _is_sharded(case):
        return
    of_nics = _cost_units(case, scratch.layers)
    for virtual in range(plan.pp * plan.vpp):
        stage, chunk = virtual % plan.pp, virtual // plan.pp
        cell = stage * plan.vpp + chunk
        count = list_layers(case, virtual, scratch.layers)
        for way in (DOWN, UP):
            compute_s, sent_s, waited_s, slowed_s = run_slowed(case, stage, way, count, scratch.layers)
            if of_nics > 0:
                window_s, last = compute_s + slowed_s, count - 1
                hidden_s = min(max(sent_s - waited_s, 0.0), window_s)
                open_s, all_s = low.nic_s[way, cell, OPEN], low.nic_s[way, cell, ALL]
                longer_s = shared_s(window_s, open_s, all_s, hidden_s * of_nics)
                more_s[way, cell] = longer_s
                if way == UP and all_s == 0 and scratch.layers.gather_s[max(last - 1, 0)] == 0:
                    low.nic_s[way, cell, FREE] = scratch.layers.compute_s[last]  # nothing to send before it has run
                low.carried_s[stage] += sent_s * of_nics * plan.ga
                low.nic_s[way, cell, ALL] += sent_s * of_nics
                low.nic_s[way, cell, OPEN] += (sent_s - hidden_s) * of_nics
                waited_s += longer_s
                out[DP_TOTAL] += longer_s * plan.ga / plan.pp
            waited_s += slowed_s
            scratch.program.duration_s[way, cell] += waited_s
            out[DP_TOTAL] += sent_s * plan.ga / plan.pp
            out[DP_EXPOSED] += waited_s * plan.ga / plan.pp


@inner_kernel
def run_layers(case: Case, virtual: int, way: int, layers: Layers) -> int:
    """Run the layers of one block alone, for `layers`; returns their number, 0 if nothing of them is sharded."""
    if not _is_sharded(case):
        return 0
    _cost_units(case, layers)
    count = list_layers(case, virtual, layers)
    _run(case, virtual % case.plan.pp, way, count, layers)
    return count


@inner_kernel
def _cost_units(case: Case, layers: Layers) -> float:
    """Gather and scatter of one layer of each unit; returns the part of these seconds for which they need the NICs.

    A rank's part of parameters on the host comes over before it is gathered, its part of gradients goes there once scattered.
    """
    width = case.arrays.gradient_width * width_scale(case)
    parameter = PARAMETER_BYTES * GATHERED[case.plan.precision]
    whole_s, nic_s = 0.0, 0.0
    for unit in range(layers.unit_gather_s.shape[0]):
        held = case.blocks.held[case.block, unit]
        dense, experts = held[0], held[1]
        gather_s = 0.0
        if case.sharding == PARAMETERS_SHARDED:  # frozen ones as well: gathered, never scattered
            gather_s = collective_of(case, ALL_GATHER, SHARD, parameter * (dense + held[2]))
            gather_s += collective_of(case, ALL_GATHER, EXPERT_SHARD, parameter * (experts + held[3]))
        dense_ranks, expert_ranks = shard_ranks(case, SHARD), shard_ranks(case, EXPERT_SHARD)
        if case.plan.parameter_offload == 1:
            mine = (dense + held[2]) / dense_ranks + (experts + held[3]) / expert_ranks
            gather_s += case.arrays.framework.copied_bytes * mine / case.device.host_bandwidth
        layers.unit_gather_s[unit] = gather_s
        scatter_s = collective_of(case, REDUCE_SCATTER, SHARD, width * dense)
        scatter_s += collective_of(case, REDUCE_SCATTER, EXPERT_SHARD, width * experts)
        if case.plan.optimizer_offload > 0:
            mine = case.plan.optimizer_offload * (dense / dense_ranks + experts / expert_ranks)
            scatter_s += case.arrays.gradient_width * mine / case.device.host_bandwidth
        layers.unit_scatter_s[unit] = scatter_s
        if case.shares and scatter_s > 0:
            whole_s += scatter_s
            nic_s += nic_of(case, REDUCE_SCATTER, SHARD, width * dense, scatter_s)
            nic_s += nic_of(case, REDUCE_SCATTER, EXPERT_SHARD, width * experts, scatter_s)
    return min(nic_s / whole_s, 1.0) if whole_s > 0 else 0.0


@inner_kernel
def _run(case: Case, stage: int, way: int, count: int, layers: Layers) -> tuple[float, float, float]:
    """Run the layers of a virtual stage of `stage`; returns the sums of compute and of messages, and when they end."""
    plan, blocks, key, arrays = case.plan, case.blocks, case.block, case.arrays
    slower, how = slowness(case, stage), plan.checkpointing
    compute_s, sent_s, inside = 0.0, 0.0, 0  # layers without embedding and head
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
            redone = how != NONE and not at_end and (how != BLOCK or inside < plan.checkpoint_layers)
            if how == FILE or redone:
                seconds += blocks.again_s[key, unit] + slower * blocks.again[key, unit, RECOMPUTE_S]
        inside += 0 if at_end else 1
        layers.compute_s[k] = seconds
        compute_s += seconds
        sent_s += layers.gather_s[k] + layers.scatter_s[k]
    return compute_s, sent_s, _end_s(plan, way, count, layers)


@inner_kernel
def run_slowed(case: Case, stage: int, way: int, count: int, layers: Layers) -> tuple[float, float, float, float]:
    """Run the layers, slowed by what they hide: seconds of compute and of messages, for how long they wait for these, and by
    how much compute is slower. What waits for messages anyway is not later for that."""
    compute_s, sent_s, end_s = _run(case, stage, way, count, layers)
    slowed_s = case.arrays.framework.dp_contention * max(sent_s - max(end_s - compute_s, 0.0), 0.0)
    if slowed_s > 0:
        for k in range(count):
            layers.compute_s[k] *= 1.0 + slowed_s / compute_s
        end_s = _end_s(case.plan, way, count, layers)
    return compute_s, sent_s, max(end_s - compute_s - slowed_s, 0.0), slowed_s


@inner_kernel
def _end_s(plan: Plan, way: int, count: int, layers: Layers) -> float:
    """When the layers of a block have run, and all is sent."""
    ahead = plan.prefetch_layers if plan.overlap_param == 1 else 0
    return forward_s(layers, count, ahead) if way == DOWN else backward_s(layers, count, ahead, plan.overlap_grad == 0)
