"""Recorded seconds beside the models of them: messages, and the compute of a layer, which at the recorded plan are as
recorded.

The cost model says how a message changes with its size, its group and the network; the recording says how fast this cluster
was. The factor of a group is its recorded seconds over the modelled ones, apart for groups inside a node and between nodes:
what was recorded over NVLink says nothing about the network.

Micro-batches of a recording differ, those of a simulation are equal; compute has a factor with which the simulated step at
the recorded plan is the replayed one.

With other tokens or tp a layer takes the longer of launching its kernels and running them. Host and device work beside each
other. Where a recorded layer takes longer than its kernels do, the host sets the pace: launching takes as long for more
tokens, until their kernels take longer (recorded jobs, docs/traces.md). Kernels are costed by the device's tables: the
products with all dense parameters of the rank, and flash attention, which grows with the square of the sequence.
"""

from collections.abc import Callable

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.compiled.references import reference
from sim_core.costing.collectives import send_s
from sim_core.costing.groups import N_GROUPS, Groups, between_nodes, group_plans, group_s
from sim_core.costing.memory import default_bucket_bytes
from sim_core.distinct import distinct_rows
from sim_core.hardware.description import Hardware
from sim_core.hardware.kernels.attention import attention_s
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.hardware.table import HardwareColumns, HardwareTable, device_at, hardware_table, recorded_on
from sim_core.planning.building import plans
from sim_core.planning.columns import Plans
from sim_core.planning.placement import crosses_nodes
from sim_core.workloads.moving import COMPUTE, EXPERT_WEIGHTS
from sim_core.workloads.workload import (
    DP,
    DP_EP,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Arrays,
    BasePlan,
    RecordedLayer,
    RecordedMessages,
    Workload,
)

HEAD_DIMS = (128, 64, 32)
"""Channels of a head: the first that divides the hidden size; attention takes nearly as long with any."""
PRODUCTS = 2
"""The dense parameters as so many matrices, each of a multiple of `TILE` columns."""
TILE = 64
UNKNOWN = np.zeros((0, 2))


def layer_scales(workload: Workload, hardware: HardwareTable, plans: Plans, first: Ints) -> Floats:
    """Factors of a layer's recorded compute in the plans `first`, forward and backward, [n, 2]; no rows where unknown."""
    layer, arrays = workload.layer, workload.arrays
    if layer is None or workload.modelled is not None or workload.sequence is None:
        return UNKNOWN
    base = arrays.base
    sequence = np.where(plans.sequence[first] > 0, plans.sequence[first], workload.sequence)
    own = np.array([[base.tp, base.micro_batch, workload.sequence]])
    table = np.concatenate([own, np.column_stack([plans.tp[first], plans.micro_batch[first], sequence])])
    of_row, picked = distinct_rows(table)
    running = _running_s(layer, base.tp, hardware, table[picked])[of_row]
    here, there = running[0], running[1:]
    pieces = arrays.pieces
    rows = (pieces.unit == arrays.layer_unit) & (arrays.compute_rule == COMPUTE)
    seconds = pieces.compute_s[rows]
    recorded = np.array([seconds[:, FORWARD].sum(), seconds[:, FORWARD + 1 :].sum()])
    if not (recorded > 0).all():
        return UNKNOWN
    scales: Floats = np.where(recorded > here, np.maximum(there / recorded, 1.0), there / here)
    return scales


def _running_s(layer: RecordedLayer, base_tp: int, hardware: HardwareTable, keys: Ints) -> Floats:
    """Seconds of the kernels of a layer by (tp, micro-batch, sequence), forward and backward, [n, 2]."""
    kernels = load_kernels(recorded_on(hardware))
    tp, micro_batch, sequence = keys.astype(float).T
    hidden = np.full(len(keys), float(layer.hidden))
    columns = layer.parameters * base_tp / tp / hidden / PRODUCTS
    columns = np.maximum(np.round(columns / TILE), 1.0) * TILE
    products = PRODUCTS * gemm_s(kernels, layer.dtype, micro_batch * sequence, columns, hidden).seconds
    dim = next((dim for dim in HEAD_DIMS if layer.hidden % dim == 0), layer.hidden)
    heads = np.maximum(hidden / dim / tp, 1.0)
    sizes = (micro_batch, sequence, heads, heads, np.full(len(keys), float(dim)))
    forward = products + attention_s(kernels, layer.dtype, *sizes).seconds
    backward = 2 * products + attention_s(kernels, layer.dtype, *sizes, phase="backward").seconds
    return np.column_stack([forward, backward])


PIPELINE = N_GROUPS
KIN = {DP: DP_EP, DP_EP: DP}
"""A group that was not recorded is as fast as this one, where that was: the same collective in the same place."""


NEAREST, FURTHEST = 0.5, 2.0
"""Bounds of the factor of compute: beyond them something else than compute differs, and it stays as it was recorded."""
TRIALS = 8
"""Secants of a step that is nearly linear in its compute: to 1e-12."""


def with_recorded(workload: Workload, hardware: HardwareTable) -> Arrays:
    """The columns of a workload whose recorded messages and experts' weights are put beside the model of their hardware."""
    device = recorded_on(hardware)
    if workload.recorded is None:
        return _with_weights(workload, device)
    columns = hardware_table([device], None).columns
    own = plans(workload)
    seconds = np.zeros((2, 2, N_GROUPS + 1))
    sends_s = np.zeros((2, 2))
    groups = group_plans(columns, own, np.zeros(1, int))
    _sum(workload.recorded, groups, columns, workload.base, workload.arrays.gradient_width, seconds, sends_s)
    recorded_s, modelled_s = seconds
    known = (recorded_s > 0) & (modelled_s > 0)
    factor = np.divide(recorded_s, modelled_s, out=np.ones_like(recorded_s), where=known)
    for place in range(2):
        for group, kin in KIN.items():
            if not known[place, group] and known[place, kin]:
                factor[place, group] = factor[place, kin]
    if known[0, PIPELINE] != known[1, PIPELINE]:  # a send is started and awaited alike in both places
        here = int(known[1, PIPELINE])
        started_s = max(recorded_s[here, PIPELINE] - modelled_s[here, PIPELINE], 0.0)
        if sends_s[here, 1 - here] > 0:
            factor[1 - here, PIPELINE] = 1 + started_s / sends_s[here, 1 - here]
    return _with_weights(workload, device)._replace(message_factor=factor, recorded_messages=True)


def at_replayed(arrays: Arrays, replayed_s: float, step_s: Callable[[Arrays], float]) -> Arrays:
    """The columns with the compute with which `step_s`, the simulated step at the recorded plan, is the replayed one."""
    pieces = arrays.pieces

    def times(factor: float) -> Arrays:
        return arrays._replace(pieces=pieces._replace(compute_s=factor * pieces.compute_s, rerun_s=factor * pieces.rerun_s))

    def off_s(factor: float) -> float:
        return step_s(times(factor)) - replayed_s if NEAREST <= factor <= FURTHEST else np.nan

    factor, left_s = _secants(off_s, (1.0, step_s(arrays) - replayed_s), 1.01, 1e-12 * replayed_s)
    return times(factor) if abs(left_s) <= 1e-3 * replayed_s else arrays


def at_step(arrays: Arrays, recorded_s: float, step_s: Callable[[Arrays], float]) -> Arrays:
    """The columns with the seconds of a pipeline message with which `step_s`, the recorded plan's step, is the recorded one.

    Where compute alone takes longer, messages take nothing.
    """
    none_s = step_s(arrays)
    if none_s >= recorded_s:
        return arrays

    def with_hop(hop_s: float) -> Arrays:
        return arrays._replace(framework=arrays.framework._replace(message_host_s=hop_s))

    def off_s(hop_s: float) -> float:
        return step_s(with_hop(hop_s)) - recorded_s

    return with_hop(_secants(off_s, (0.0, none_s - recorded_s), 1e-3, 1e-12 * recorded_s)[0])


def _secants(off_s: Callable[[float], float], before: tuple[float, float], at: float, enough_s: float) -> tuple[float, float]:
    """Where `off_s`, which is nearly linear, is 0, no less than 0, and what it is there; `before`: a place, and what it is."""
    last, last_s = before
    now_s = off_s(at)
    for _ in range(TRIALS):
        if not abs(now_s) > enough_s or now_s == last_s:
            break
        last, at, last_s = at, max(at - now_s * (at - last) / (now_s - last_s), 0.0), now_s
        now_s = off_s(at)
    return at, now_s


@kernel
def _sum(
    messages: RecordedMessages,
    groups: Groups,
    columns: HardwareColumns,
    base: BasePlan,
    width: float,
    seconds: Floats,
    sends_s: Floats,
) -> None:
    """Add recorded and modelled seconds to `seconds[0]` and `seconds[1]`, by place and group.

    And to `sends_s`, by place of the recording, what its pipeline messages would take in either place.
    """
    pp, all_gpus = base.pp, base.all_gpus
    dp = max(all_gpus // (base.tp * pp), 1)
    device, groups = reference(device_at(columns, 0)), reference(groups)
    for k in range(messages.kind.shape[0]):
        group, size, number = messages.group[k], messages.bytes[k], messages.number[k]
        if group == N_GROUPS:
            stage = messages.stage[k]
            outside = all_gpus > device.gpus_per_node
            if 0 <= stage < pp - 1:
                outside = crosses_nodes(stage, all_gpus // pp, device.gpus_per_node)
            modelled_s = number * send_s(size, outside, device)
            sends_s[int(outside), 0] += number * send_s(size, False, device)
            sends_s[int(outside), 1] += number * send_s(size, True, device)
        else:
            outside = between_nodes(groups, 0, group)
            if messages.bucketed[k]:
                number *= max(np.ceil(size / default_bucket_bytes(width, dp)), 1.0)
                size *= messages.number[k] / number
            modelled_s = number * group_s(groups, 0, device, messages.kind[k], group, size)
        seconds[0, int(outside), group] += messages.seconds[k]
        seconds[1, int(outside), group] += modelled_s


def _with_weights(workload: Workload, device: Hardware) -> Arrays:
    """The columns with the time in which experts' weights and gradients pass through memory in pieces of its own.

    It is part of the recorded compute of the piece before, and is not longer than that.
    """
    arrays, forward_bytes = workload.arrays, workload.expert_weights[0]
    rows = np.flatnonzero(arrays.compute_rule == EXPERT_WEIGHTS)
    if not len(rows) or not forward_bytes:
        return arrays
    bandwidth = device.value("memory_bandwidth")  # streamed by matrix products
    row, before = int(rows[0]), int(rows[0]) - 1
    compute_s = arrays.pieces.compute_s.copy()
    forward_s, backward_s = (size / bandwidth for size in workload.expert_weights)
    for phase, traffic_s in ((FORWARD, forward_s), (INPUT_GRADIENT, backward_s / 2), (WEIGHT_GRADIENT, backward_s / 2)):
        compute_s[row, phase] = min(traffic_s, compute_s[before, phase])
        compute_s[before, phase] -= compute_s[row, phase]
    return arrays._replace(pieces=arrays.pieces._replace(compute_s=compute_s))
