"""Updates that are not AdamW's: which rank updates which weights, the bytes of their state, and their seconds.

Muon with a divided optimizer keeps matrices whole: the most expensive first, each goes to the rank with the least to do so far
(Megatron-LM, core/optimizer/layer_wise_optimizer.py). All else is divided evenly, as AdamW's state. An update ends on the
busiest rank: the traffic of its state, Newton-Schulz by shape, what ranks exchange. Without a divided optimizer every rank
updates all that it holds.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.compiled.references import reference
from sim_core.costing.case import Updates
from sim_core.costing.fabric import routing_of
from sim_core.costing.groups import Groups
from sim_core.costing.memory import dense_shards
from sim_core.costing.operators import devices_of, rows_of_units
from sim_core.costing.sending import seconds_of_messages
from sim_core.distinct import distinct, distinct_rows
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.schedules import PLACEMENT
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.hardware.table import HardwareTable
from sim_core.models.description import EMBEDDING, HEAD
from sim_core.models.keys import Keys
from sim_core.models.optimizers import ADAMW, MOMENTS, NS_STEPS, ROWS, Local, Optimizer, local_of
from sim_core.models.weights import EXPERT, KV_HEADS, REPLICATED, TABLES, held, trained
from sim_core.planning.columns import Plans, slice_plans
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.legality import shardings
from sim_core.planning.split import Split
from sim_core.terms import ALL_GATHER, ALL_REDUCE, OPTIMIZER_SHARDED
from sim_core.workloads.workload import TP, Modelled, Workload

DENSE, EXPERTS = 0, 1
SENT = ((ALL_GATHER, 1.0), (ALL_REDUCE, float(NS_STEPS)))
"""Messages of a matrix, and how often: gathered once, summed in each step."""


class Group(NamedTuple):
    """Weights of the stages of one layout that so many ranks share: dense ones, or experts."""

    ranks: int  # that divide the state of a weight
    elements: Floats  # [stages] on a tensor-parallel rank
    in_matrices: Floats  # [stages] of these in matrices that Muon takes
    factors: Floats  # [stages] rows and columns of all matrices, and weights in none: what Adafactor keeps
    kinds: tuple[Local, ...]  # of such matrices
    shares: tuple[Ints, ...]  # [ranks, kinds] of each stage: how many of them a rank updates
    aligned: bool  # buffers have a shard for each rank, as large as that of the fullest

    @property
    def fullest(self) -> Floats:
        """Weights of the rank with the most of such matrices, [stages]."""
        of_kind = np.array([kind.elements for kind in self.kinds], float)
        return np.array([(share @ of_kind).max(initial=0.0) for share in self.shares])

    @property
    def padding(self) -> Floats:
        """Weights that buffers of weights and gradients hold beyond those that there are, [stages]."""
        return self.ranks * self.fullest - self.in_matrices if self.aligned else np.zeros(len(self.elements))


Layouts = tuple[Ints, Ints, list[tuple[Optimizer, tuple[Group, ...]]]]
"""Those plans of a batch that have another optimizer than AdamW; the layout of each of them; and the groups, DENSE and EXPERTS,
of each layout."""


def layouts_of(workload: Workload, modelled: Modelled, plans: Plans, split: Split, rows: Ints) -> Layouts:
    """The distinct layouts of the plans in `rows`, which must be legal."""
    rows = rows[plans.optimizer[rows] != ADAMW]
    others, arrays = slice_plans(plans, rows), workload.arrays
    dense = dense_shards(others)  # ranks that divide the state of a dense weight; below, of one of experts; 1: none is divided
    experts = np.maximum(dense * (others.tp if arrays.shares.whole_experts else 1) // others.ep, 1)
    sharded = shardings(arrays.framework, others) >= OPTIMIZER_SHARDED
    ranks = np.where(sharded[:, None], np.stack([dense, experts], axis=1), 1)
    # what the stages of each plan hold, as an index of the distinct [stages, units]: whatever chunks they are made of
    of_split, first = distinct_rows(np.stack([split.key[rows], PLACEMENT[plans.schedule[rows]]], axis=1))
    passes = [_stage_passes(split, plans, int(row)) for row in rows[first]]
    stands, alike = distinct([each.tobytes() for each in passes])
    of_stages = alike[of_split]
    chosen = plans.optimizer[rows], plans.muon_tp_mode[rows], plans.muon_aligned[rows], plans.tp[rows], plans.ep[rows]
    key, first = distinct_rows(np.column_stack([*chosen, of_stages, ranks]))
    keys = keys_of(modelled, key_table(plans, rows[first]))
    found = []
    for number, at in enumerate(first):
        one = Keys(*(column[number : number + 1] for column in keys))
        optimizer, held_by_stages = ROWS[plans.optimizer[rows[at]]], passes[stands[of_stages[at]]]
        how = int(plans.muon_tp_mode[rows[at]]), bool(plans.muon_aligned[rows[at]])
        both = (
            _group(modelled, held_by_stages, one, optimizer, *how, int(ranks[at, which]), which) for which in (DENSE, EXPERTS)
        )
        found.append((optimizer, tuple(both)))
    return rows, key, found


@kernel
def _stage_passes(split: Split, plans: Plans, i: int) -> Ints:
    """Units of each stage of a plan, [stages, units]."""
    split, plans = reference(split), reference(plans)
    placement, pp, row = PLACEMENT[plans.schedule[i]], plans.pp[i], split.offset[split.key[i]]
    passes = np.zeros((pp, split.passes.shape[1]), np.int64)
    for stage in range(pp):
        for chunk in range(chunks_of(plans.schedule[i], plans.vpp[i])):
            virtual = row + virtual_of(placement, stage, chunk, pp)
            for unit in range(split.passes.shape[1]):
                passes[stage, unit] += split.passes[virtual, unit]
    return passes


def _group(
    modelled: Modelled, passes: Ints, key: Keys, optimizer: Optimizer, tp_mode: int, aligned: bool, ranks: int, which: int
) -> Group:
    """Dense weights, or those of experts, of the stages; `key`: the model's, [1]."""
    model, units, tp = modelled.model, passes.shape[1], int(key.tp[0])
    divided = {REPLICATED: 1, KV_HEADS: min(tp, model.kv_heads), EXPERT: int(key.etp[0])}  # among so many of the tp ranks
    elements, in_matrices, factors = np.zeros((3, units))
    number: dict[Local, Ints] = {}
    for at, times, unit in rows_of_units(model):
        mine = times * float(held(model, unit, key)[which][0])
        elements[at] += mine
        ends = unit.kind in (EMBEDDING, HEAD)  # a matrix, but not one for Muon
        factors[at] += mine / model.hidden + model.hidden if ends and mine else mine
        for weights in trained(model, unit):
            if weights.part in TABLES or (weights.sharding == EXPERT) != (which == EXPERTS):
                continue
            for matrix in weights.matrices:
                count = times * max(matrix.number // (int(key.ep[0]) if which == EXPERTS else 1), 1)
                local = local_of(matrix, divided.get(weights.sharding, tp), tp_mode)
                number.setdefault(local, np.zeros(units, int))[at] += count
                in_matrices[at] += count * local.elements
                factors[at] += count * (matrix.rows + matrix.columns - local.elements)
    kinds = tuple(number)
    shares: tuple[Ints, ...] = ()
    if optimizer.orthogonal and kinds:
        cost = np.array([kind.cost for kind in kinds], int)
        counts = passes @ np.stack(list(number.values()), axis=1)
        first, alike = distinct([tuple(stage) for stage in counts])
        each = [shared_out(cost, counts[stage], ranks) for stage in first]
        shares = tuple(each[stage] for stage in alike)
    aligned = aligned and ranks > 1 and bool(shares)
    return Group(ranks, passes @ elements, passes @ in_matrices, passes @ factors, kinds, shares, aligned)


def shared_out(cost: Ints, number: Ints, ranks: int) -> Ints:
    """How many matrices of each kind each rank gets, [ranks, kinds]: the most expensive first, each to the rank with the least.

    Equal ones at once: a rank takes those that would begin below the level at which there are enough of them.
    """
    taken, load = np.zeros((ranks, len(cost)), int), np.zeros(ranks, int)
    for kind in np.argsort(-cost, kind="stable"):
        each, wanted = int(cost[kind]), int(number[kind])
        low, high = int(load.min()), int(load.max()) + each * (wanted // ranks + 1)
        while wanted and high - low > 1:  # below `low` begin too few, below `high` enough
            level = (low + high) // 2
            enough = int(_begun(load, each, level).sum()) >= wanted
            low, high = (low, level) if enough else (level, high)
        if wanted:
            mine = _begun(load, each, low)
            at = np.flatnonzero(load + mine * each == low)[: wanted - int(mine.sum())]
            mine[at] += 1
            taken[:, kind] = mine
            load += mine * each
    return taken


def _begun(load: Ints, each: int, level: int) -> Ints:
    """How many of size `each` on top of the load of each rank begin below a level."""
    return np.maximum(-((load - level) // each), 0)


def further_bytes(workload: Workload, modelled: Modelled, plans: Plans, split: Split, rows: Ints) -> tuple[Ints, Floats]:
    """The layout of each plan, [plans], -1: AdamW; and bytes of state on the fullest rank beyond AdamW's, [layouts, stages]."""
    others, of_other, layouts = layouts_of(workload, modelled, plans, split, rows)
    key, adam = np.full(len(plans.tp), -1, int), modelled.stack.adam_bytes
    key[others] = of_other
    bytes_ = np.zeros((len(layouts), int(plans.pp[rows].max(initial=1))))
    for number, (optimizer, groups) in enumerate(layouts):
        for group in groups:
            if optimizer.orthogonal:
                own = (adam - MOMENTS + optimizer.state) * group.fullest if group.shares else 0.0
                more = own - adam * group.in_matrices / group.ranks + workload.state_width[0] * group.padding
            else:
                more = ((optimizer.state - MOMENTS) * group.elements + optimizer.factored * group.factors) / group.ranks
            bytes_[number, : len(group.elements)] += more
    return key, bytes_


def update_table(
    workload: Workload, hardware: HardwareTable, plans: Plans, groups: Groups, split: Split, rows: Ints, none: Updates
) -> Updates:
    """The updates of the plans in `rows`; `none`: the table without any, which AdamW alone needs."""
    modelled = workload.modelled
    if modelled is None or workload.from_file or not plans.optimizer[rows].any():
        return none
    others, of_other, layouts = layouts_of(workload, modelled, plans, split, rows)
    speed, place = plans.device_speed[others].view(int), groups.alike[groups.key[others], TP]
    of_row, first = distinct_rows(np.stack([of_other, plans.hardware[others], speed, place], axis=1))
    key = none.key.copy()
    key[others] = of_row
    seconds, padding = np.zeros((len(first), int(plans.pp[others].max()))), np.ones((len(first), 2))
    devices, of_variant = devices_of(hardware)
    routing, adam = routing_of(modelled.model.experts), modelled.stack.optimizer_bytes
    for number, at in enumerate(first):
        optimizer, both = layouts[of_other[at]]
        row = others[at : at + 1]
        plan, hbm = slice_plans(plans, row), float(hardware.columns.hbm_bandwidth[plans.hardware[row[0]]])
        further = 2 * (optimizer.state - MOMENTS) + optimizer.traffic  # bytes that it moves of each weight, beyond AdamW's
        for which, group in enumerate(both):
            if not group.shares:
                more = (further * group.elements + 2 * optimizer.factored * group.factors) / group.ranks / hbm
                seconds[number, : len(more)] += more
                continue
            # seconds of one matrix of each kind: Newton-Schulz, its products one by one in the precision of the model's
            m, n, k = np.array([kind.products for kind in group.kinds], float).reshape(-1, 3).T
            products_s = gemm_s(devices[of_variant[plan.hardware[0]]], modelled.dtype, m, n, k).seconds
            kinds_s = NS_STEPS * products_s.reshape(len(group.kinds), -1).sum(axis=1) / float(plan.device_speed[0])
            # and what tensor-parallel ranks send of it
            size = np.array([[value for kind in group.kinds for value in (kind.gathered, kind.summed)]])
            sent = np.array([collective for _ in group.kinds for collective, _ in SENT], int)
            on_tp = np.full(len(sent), TP, int)
            each, _ = seconds_of_messages(hardware.columns, plan, groups, groups.key[row], sent, on_tp, size, routing)
            kinds_s += (each.reshape(-1, len(SENT)) * [times for _, times in SENT]).sum(axis=1)
            moved = adam + 2 * (optimizer.state - MOMENTS) + optimizer.traffic
            kinds_s += [moved * kind.elements / hbm for kind in group.kinds]
            busiest = [(share @ kinds_s).max(initial=0.0) for share in group.shares]
            more = np.array(busiest) - adam * group.in_matrices / group.ranks / hbm
            padding[number, which] = (1 + group.padding / np.maximum(group.elements, 1.0)).max()
            seconds[number, : len(more)] += more
    return Updates(key, seconds, padding)
