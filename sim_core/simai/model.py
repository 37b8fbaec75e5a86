"""The compiled cost model of SimAI-Analytical: fidelity `simai` (docs/fidelity.md).

Sums over the lines of a workload text, no events: step = compute + exposed communication + bubble + pipeline
communication. The model was determined by running the tool (aliyun/SimAI, analytical mode). It reads bandwidths given
in GB/s as GiB/s. We differ where the tool is defective, see docs/fidelity.md.
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.costing.case import compute_factor, once_s, rerun_s, rerun_share
from sim_core.costing.memory import first_stage_dense, first_stage_layers, stage_factor
from sim_core.documents import shipped_document
from sim_core.hardware.table import HardwareColumns, device_at
from sim_core.metrics import (
    BACKWARD_S,
    BUBBLE,
    DP_EXPOSED,
    DP_TOTAL,
    EP_EXPOSED,
    EP_TOTAL,
    FORWARD_S,
    OPTIMIZER,
    PP_EXPOSED,
    PP_TOTAL,
    RECOMPUTE_S,
    STEP_TIME,
    TP_EXPOSED,
    TP_TOTAL,
)
from sim_core.planning.columns import BLOCK, FILE, NONE, SELECTIVE, Plan, Plans, plan_at
from sim_core.workloads.moving import COMPUTE, EXPONENTS, N_RULES, rule_scales
from sim_core.workloads.workload import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DP,
    DP_EP,
    EP,
    FORWARD,
    INPUT_GRADIENT,
    NO_COMM,
    ONCE_ON_FIRST_STAGE,
    REDUCE_SCATTER,
    TP,
    WEIGHT_GRADIENT,
    Arrays,
)

GIB = 2.0**30
SMALL = 2.0**20
SMALL_NS = (10_000.0, 12_000.0, 15_000.0, 66_000.0, 135_000.0, 200_000.0, 320_000.0)
"""Nanoseconds of a message under 1 MiB among 2, 4, .. 128 ranks; in the tool, other group sizes cost nothing."""
NO_NIC = -1.0
"""Cost of a collective that needs a NIC but whose group has none of its own."""

# Rows of a breakdown, in nanoseconds; METRICS adds DP and DP_EP
SIMAI_PARTS = (
    "compute_forward", "compute_backward", "recompute", "step_compute", "tp", "ep", "dp", "dp_ep",
    "tp_exposed", "ep_exposed", "dp_exposed", "bubble", "pipeline",
)  # fmt: skip
_FWD, _BWD, _RERUN, _STEP, _TP, _EP, _DP, _DP_EP, _TP_OUT, _EP_OUT, _DP_OUT, _BUBBLE, _PIPE = range(len(SIMAI_PARTS))
_OF_PARTS = (
    (FORWARD_S, _FWD), (BACKWARD_S, _BWD), (RECOMPUTE_S, _RERUN), (TP_TOTAL, _TP), (TP_EXPOSED, _TP_OUT), (EP_TOTAL, _EP),
    (EP_EXPOSED, _EP_OUT), (DP_EXPOSED, _DP_OUT), (PP_TOTAL, _PIPE), (PP_EXPOSED, _PIPE), (BUBBLE, _BUBBLE),
    (OPTIMIZER, _STEP),
)  # fmt: skip
"""Metrics that are one part of a breakdown each."""


class BusTables(NamedTuple):
    """Message sizes in bytes [rows], and per table the ratios [rows, columns]; column c is 2^c nodes.

    The last column of `all_to_all` is for tensor groups that fill one or more nodes.
    """

    size: Floats
    nic: Floats
    nvlink: Floats
    all_to_all: Floats


@cache
def bus_tables() -> BusTables:
    """The tables, read once; all three have the same message sizes."""
    document = shipped_document(Path(__file__).with_name("bus_bandwidth.yaml"))
    rows = {name: np.array(document[name]["rows"], float) for name in ("nic", "nvlink", "all_to_all")}
    return BusTables(size=rows["nic"][:, 0].copy(), **{name: table[:, 1:].copy() for name, table in rows.items()})


class Cluster(NamedTuple):
    """What the messages of a plan run on: its group sizes, GPUs and NICs of a node, GB/s of a GPU over NVLink and of a NIC, and
    bytes of a forward message at least."""

    tp: int
    ep: int
    dp: int
    gpus: int
    nics: int
    nvlink: float
    nic: float
    least_forward: float
    tables: BusTables


@kernel
def _ratio(on: Cluster, kind: int, group: int, size: float, n: int, nvlink_bound: bool) -> float:
    """Part of the bandwidth that a message reaches; from tables for all-gather, reduce-scatter on TP, all-to-all on TP, EP.

    It is that at `size` over that at the largest size; linear between rows, constant outside.
    """
    inside, sizes, values, nodes = on.tp < on.gpus, on.tables.size, on.tables.all_to_all, on.tp // on.gpus
    if group == TP and (kind in (ALL_GATHER, REDUCE_SCATTER)):
        values = on.tables.nvlink if nvlink_bound else on.tables.nic
    elif kind != ALL_TO_ALL or group not in (EP, TP):
        return 1.0
    elif group == EP:
        nodes = on.tp * n // on.gpus
    last = values.shape[1] - 1
    # of the largest power of two that does not exceed the nodes
    column = min(int(np.log2(max(nodes, 1))), last - int(kind == ALL_TO_ALL)) if inside or group == TP else last
    full = float(values[-1, column])
    if size <= sizes[0]:
        return float(values[0, column]) / full
    for row in range(len(sizes) - 1):
        if size <= sizes[row + 1]:
            part = (size - sizes[row]) / (sizes[row + 1] - sizes[row])
            return float(values[row, column] + part * (values[row + 1, column] - values[row, column])) / full
    return 1.0


@kernel
def _group_shape(on: Cluster, group: int, n: int) -> tuple[int, int, int]:
    """(nodes, ranks on a node, NICs to use) of a group of `n` ranks, with the tool's integer divisions."""
    tp, gpus, nics = on.tp, on.gpus, on.nics
    if group == TP:
        return (1, tp, nics) if tp <= gpus else (tp // gpus, gpus, nics)
    if group == EP:
        if tp * n <= gpus:
            return 1, gpus // tp, nics
        return tp * n // gpus, max(gpus // tp, 1), nics // gpus if tp > gpus else nics // tp
    wide = tp if group == DP else tp * on.ep
    return (n, gpus // wide, nics // wide) if wide <= gpus else (n, 1, nics // gpus)


@kernel
def collective_ns(on: Cluster, kind: int, group: int, size: float) -> float:
    """Nanoseconds of one collective as the tool computes it; NO_NIC if its group has no NIC to use."""
    n = (on.tp, on.ep, on.dp, on.dp // on.ep)[group]  # TP, EP, DP, DP_EP
    if n <= 1 or kind == NO_COMM:
        return 0.0
    if 1 < size < SMALL:
        for power in range(len(SMALL_NS)):
            if n == 2 << power:
                return SMALL_NS[power]
        return 0.0
    nodes, per_node, used = _group_shape(on, group, n)
    if used < 1:
        return NO_NIC
    bandwidth, nvlink_bound = on.nvlink, False
    if nodes > 1:
        bandwidth = on.nic * used
        if kind == ALL_TO_ALL:
            bandwidth = bandwidth / per_node * (nodes * per_node - 1) / ((nodes - 1) * per_node)
        elif per_node > 1 and bandwidth > on.nvlink:
            inside = on.nvlink * per_node / (per_node - 1)
            nvlink_bound = inside < bandwidth
            bandwidth = min(inside, bandwidth)
    passes, ratio = 2 if kind == ALL_REDUCE else 1, _ratio(on, kind, group, size, n, nvlink_bound)
    return float(np.trunc(size / GIB / (ratio * bandwidth) * 1e9 * passes * (n - 1) / n))


@kernel
def simai_one(
    arrays: Arrays, hardware: HardwareColumns, tables: BusTables, plans: Plans, i: int, scale: Floats, out: Floats
) -> bool:
    """Add the parts of one plan (SIMAI_PARTS, ns) to the zeroed `out`; False if a collective lacks the NIC that it needs."""
    plan, base = plan_at(plans, i), arrays.base
    tp, pp, ep, device = plan.tp, plan.pp, plan.ep, device_at(hardware, plan.hardware)
    on = Cluster(
        tp, ep, plan.all_gpus // (tp * pp), device.gpus_per_node, device.nics_per_node, device.nvlink_bandwidth / 1e9,
        device.one_nic_bandwidth / 1e9, arrays.least_forward, tables,
    )  # fmt: skip
    rule_scales(plan.micro_batch / base.micro_batch, tp / base.tp, ep / base.ep, 1.0, 1.0, EXPONENTS, scale)
    factor_ns = compute_factor(1e9 * scale[COMPUTE], device, plan)
    micro_batches = plan.ga * arrays.micro_batches / base.ga
    layers = arrays.unit_layers.shape[1] - 1
    bubble_ns, pieces, step = 0.0, arrays.pieces, arrays.step
    for p in range(pieces.unit.shape[0]):
        unit = pieces.unit[p]
        end = unit == arrays.first_unit or unit == arrays.last_unit
        count = micro_batches * (1.0 if end else first_stage_layers(arrays, unit, pp))
        forward_ns = pieces.compute_s[p, FORWARD] * factor_ns
        backward_ns = (pieces.compute_s[p, INPUT_GRADIENT] + pieces.compute_s[p, WEIGHT_GRADIENT]) * factor_ns
        again = rerun_share(plan, pieces.rerun[p], pieces.attention_core[p])
        if plan.checkpointing == NONE or (end and plan.checkpointing != FILE and plan.checkpointing != SELECTIVE):
            again = 0.0
        elif plan.checkpointing == BLOCK:
            again = min(plan.checkpoint_layers * pp * plan.vpp / layers, 1.0)
        again_ns = rerun_s(plan, again, forward_ns, pieces.rerun_s[p] * factor_ns)
        out[_FWD] += count * forward_ns
        out[_BWD] += count * backward_ns
        out[_RERUN] += count * again_ns
        waited_ns, groups = forward_ns + backward_ns + again_ns, pieces.comm_group[p]
        for phase in range(3):
            size = pieces.comm_bytes[p, phase] * scale[pieces.comm_rule[p, phase]]
            waited = _add_collective(
                on, plan, pieces.comm_kind[p, phase], groups[phase], size, phase, groups[FORWARD] == EP, count, out
            )
            if waited == NO_NIC:
                return False
            waited_ns += waited
        if unit != arrays.first_unit:
            bubble_ns += count * waited_ns
    without = first_stage_dense(arrays, pp)
    for k in range(step.role.shape[0]):
        factor = stage_factor(arrays, scale, tp, step.compute_rule[k], layers / pp, 1, without)
        compute_ns = once_s(step.compute_s[k] * 1e9, factor, device, plan)
        size = step.comm_bytes[k] * stage_factor(arrays, scale, tp, step.comm_rule[k], layers / pp, 1, without)
        waited = _add_collective(
            on, plan, step.comm_kind[k], step.comm_group[k], size, step.phase[k], step.forward_on_ep[k], 1.0, out
        )
        if waited == NO_NIC:
            return False
        if step.role[k] == ONCE_ON_FIRST_STAGE:
            out[_BWD] += compute_ns  # of the embedding, which the tool leaves out of the bubble
            continue
        out[_STEP] += compute_ns
        bubble_ns += compute_ns + waited
    out[_BUBBLE] = (pp - 1) / (plan.ga * plan.vpp) * bubble_ns
    hidden = plan.pp_overlap_ratio
    sent = arrays.p2p_bytes * scale[arrays.p2p_rule] if pp > 1 else 0.0
    out[_PIPE] = 2 * plan.vpp * plan.ga * sent / GIB / hidden * 1e9 * (1 - hidden)
    return True


@kernel
def _add_collective(
    on: Cluster, plan: Plan, kind: int, group: int, size: float, phase: int, forward_on_ep: bool, count: float, out: Floats
) -> float:
    """Add the cost of one collective to its group's sum, and the exposed part; returns what a bubble holds of it (of a
    weight gradient nothing) or NO_NIC.

    As in the tool, a group is EP or else TP in forward and input gradient, DP_EP or else DP in weight gradient, and
    the forward's group decides which part of forward and input gradient is hidden.
    """
    if kind == NO_COMM:
        return 0.0
    if phase == FORWARD and 0 < size < on.least_forward:
        size = on.least_forward
    own, other = (DP_EP, DP) if phase == WEIGHT_GRADIENT else (EP, TP)
    group = own if group == own else other
    nanoseconds = collective_ns(on, kind, group, size)
    if nanoseconds == NO_NIC:
        return NO_NIC
    out[_TP + group] += count * nanoseconds
    if phase == WEIGHT_GRADIENT:
        out[_DP_OUT] += count * nanoseconds * (1 - plan.dp_overlap_ratio)
        return 0.0
    hidden = plan.ep_overlap_ratio if forward_on_ep else plan.tp_overlap_ratio
    out[_EP_OUT if group == EP else _TP_OUT] += count * nanoseconds * (1 - hidden)
    return nanoseconds


@kernel
def simai_rows(
    arrays: Arrays,
    hardware: HardwareColumns,
    tables: BusTables,
    plans: Plans,
    rows: Ints,
    no_nic: int,
    not_finite: int,
    reason: Ints,
    metrics: Floats,
) -> None:
    """Fill the columns of METRICS for the plans in `rows`, or their reason."""
    scale, sums = np.empty(N_RULES), np.empty(len(SIMAI_PARTS))
    for i in rows:
        sums[:] = 0.0
        if not simai_one(arrays, hardware, tables, plans, i, scale, sums):
            reason[i] = no_nic
            continue
        step_s = 0.0
        for part in (_FWD, _BWD, _RERUN, _STEP, _TP_OUT, _EP_OUT, _DP_OUT, _BUBBLE, _PIPE):
            step_s += sums[part] * 1e-9
        if not np.all(np.isfinite(sums)) or not step_s > 0:
            reason[i] = not_finite
            continue
        metrics[:, i] = 0.0  # what the tool does not know: launches, context groups, a queue of messages
        for metric, part in _OF_PARTS:
            metrics[metric, i] = sums[part] * 1e-9
        metrics[DP_TOTAL, i] = (sums[_DP] + sums[_DP_EP]) * 1e-9
        metrics[STEP_TIME, i] = step_s
