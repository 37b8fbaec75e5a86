"""Bytes that a rank sends in a step of one plan, by group and kind of collective."""

import numpy as np

from sim_core.costing.memory import first_stage_dense, first_stage_layers, stage_factor
from sim_core.planning.columns import Plans
from sim_core.terms import COLLECTIVES
from sim_core.workloads.moving import EXPONENTS, N_RULES, rule_scales, times_base
from sim_core.workloads.workload import GROUP_NAMES, NO_COMM, Workload


def sent_bytes(workload: Workload, plans: Plans, row: int = 0) -> dict[tuple[str, str], float]:
    """Bytes of the tensors that a rank of the first stage of a recorded workload sends, without recompute.

    By name of group and collective; groups of one rank are left out.
    """
    arrays, base = workload.arrays, workload.base
    pp, tp, ep, ga = (int(getattr(plans, name)[row]) for name in ("pp", "tp", "ep", "ga"))
    dp = int(plans.all_gpus[row]) // (tp * pp)
    scale = np.empty(N_RULES)
    tokens, experts = times_base(plans.sequence[row], arrays.sequence), times_base(plans.experts[row], arrays.experts)
    rule_scales(plans.micro_batch[row] / base.micro_batch, tp / base.tp, ep / base.ep, tokens, experts, EXPONENTS, scale)
    layers, without = workload.layers / pp, first_stage_dense(arrays, pp)
    passes = np.array([first_stage_layers(arrays, unit, pp) for unit in range(len(arrays.unit_layers))])
    for unit, here in ((arrays.first_unit, True), (arrays.last_unit, pp == 1)):
        if unit >= 0:
            passes[unit] = float(here)
    around = dp * tp if arrays.shares.whole_experts else dp
    ranks = (tp, ep, dp, around // ep, pp, 1, 1)  # cp is not recorded
    pieces, step = arrays.pieces, arrays.step
    of_pieces = (pieces.comm_bytes * scale[pieces.comm_rule] * passes[pieces.unit, None] * ga).ravel()
    ends = 2 if pp == 1 else 1
    of_step = [stage_factor(arrays, scale, tp, int(rule), layers, ends, without) for rule in step.comm_rule] * step.comm_bytes
    kinds, groups, sizes = (
        np.append(*columns).tolist()
        for columns in ((pieces.comm_kind, step.comm_kind), (pieces.comm_group, step.comm_group), (of_pieces, of_step))
    )
    sent: dict[tuple[str, str], float] = {}
    for kind, group, size in zip(kinds, groups, sizes, strict=True):
        if kind != NO_COMM and size > 0 and ranks[group] > 1:
            key = (GROUP_NAMES[group], COLLECTIVES[kind].name)
            sent[key] = sent.get(key, 0.0) + size
    return sent
