"""Which rank updates which weights, where an optimizer is not AdamW: the layouts of a batch, and the bytes of their state.

Muon with a divided optimizer keeps matrices whole: the most expensive first, each goes to the rank with the least to do so far
(Megatron-LM, core/optimizer/layer_wise_optimizer.py). All else is divided evenly, as AdamW's state.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.compiled.references import reference
from sim_core.distinct import distinct_rows
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.schedules import BOTH_WAYS, PLACEMENT
from sim_core.models.description import EMBEDDING, HEAD, LAYER
from sim_core.models.keys import Keys
from sim_core.models.optimizers import ADAMW, MOMENTS, ROWS, Local, Optimizer, local_of
from sim_core.models.weights import EXPERT, KV_HEADS, REPLICATED, TABLES, held, trained
from sim_core.planning.columns import Plans
from sim_core.planning.keys import key_table, keys_of
from sim_core.planning.split import Split
from sim_core.terms import AS_STACK, OPTIMIZER_SHARDED
from sim_core.workloads.workload import Arrays, Modelled, Workload

DENSE, EXPERTS = 0, 1


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
        of_kind = np.array([kind.elements for kind in self.kinds], np.float64)
        return np.array([(share @ of_kind).max(initial=0.0) for share in self.shares])

    @property
    def padding(self) -> Floats:
        """Weights that buffers of weights and gradients hold beyond those that there are, [stages]."""
        return self.ranks * self.fullest - self.in_matrices if self.aligned else np.zeros(len(self.elements))


class Matrices(NamedTuple):
    """How a plan treats the matrices of Muon."""

    tp_mode: int
    aligned: bool


class Layout(NamedTuple):
    """One distinct layout."""

    optimizer: Optimizer
    groups: tuple[Group, Group]  # DENSE, EXPERTS


class Layouts(NamedTuple):
    """The layouts of a batch of plans."""

    rows: Ints  # those plans of the batch that have another optimizer than AdamW
    key: Ints  # [rows] the layout of each
    first: Ints  # [layouts] the first plan of each
    layouts: tuple[Layout, ...]


def layouts_of(workload: Workload, modelled: Modelled, plans: Plans, split: Split, rows: Ints) -> Layouts:
    """The distinct layouts of the plans in `rows`, which must be legal."""
    rows = rows[plans.optimizer[rows] != ADAMW]
    ranks = ranks_of(workload.arrays, plans, rows)
    of_stages, passes_of = _alike_stages(split, plans, rows)
    chosen = plans.optimizer[rows], plans.muon_tp_mode[rows], plans.muon_aligned[rows], plans.tp[rows], plans.ep[rows]
    key, first = distinct_rows(np.column_stack([*chosen, of_stages, ranks]))
    keys = keys_of(modelled, key_table(plans, rows[first]))
    found = []
    for number, at in enumerate(first):
        passes = passes_of[of_stages[at]]
        one = Keys(*(column[number : number + 1] for column in keys))
        optimizer = ROWS[plans.optimizer[rows[at]]]
        how = Matrices(int(plans.muon_tp_mode[rows[at]]), bool(plans.muon_aligned[rows[at]]))
        dense, experts = (
            _group(modelled, passes, one, optimizer, how, int(ranks[at, which]), which) for which in (DENSE, EXPERTS)
        )
        found.append(Layout(optimizer, (dense, experts)))
    return Layouts(rows, key, rows[first], tuple(found))


def ranks_of(arrays: Arrays, plans: Plans, rows: Ints) -> Ints:
    """Ranks that divide the state of a dense weight, and of one of experts, [rows, 2]; 1 where nothing is divided."""
    framework = arrays.framework
    own = np.where(plans.pp[rows] > 1, framework.sharding_in_pipeline, framework.sharding)
    sharding = np.where(plans.sharding[rows] == AS_STACK, own, plans.sharding[rows])
    copies = np.where(PLACEMENT[plans.schedule[rows]] == BOTH_WAYS, 2, 1)
    dense = plans.all_gpus[rows] // (plans.tp[rows] * plans.pp[rows]) * copies
    dense = np.where(plans.dp_shard[rows] > 0, plans.dp_shard[rows], dense)
    experts = np.maximum(dense * (plans.tp[rows] if arrays.shares.whole_experts else 1) // plans.ep[rows], 1)
    return np.where((sharding >= OPTIMIZER_SHARDED)[:, None], np.stack([dense, experts], axis=1), 1)


def _alike_stages(split: Split, plans: Plans, rows: Ints) -> tuple[Ints, list[Ints]]:
    """What the stages of each plan hold, as an index of the distinct [stages, units]: whatever chunks they are made of."""
    of_split, first = distinct_rows(np.stack([split.key[rows], PLACEMENT[plans.schedule[rows]]], axis=1))
    tables = [_stage_passes(split, plans, int(row)) for row in rows[first]]
    alike = {table.tobytes(): table for table in tables}
    index = {each: number for number, each in enumerate(alike)}
    return np.array([index[table.tobytes()] for table in tables], np.int64)[of_split], list(alike.values())


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


def _group(modelled: Modelled, passes: Ints, key: Keys, optimizer: Optimizer, how: Matrices, ranks: int, which: int) -> Group:
    """Dense weights, or those of experts, of the stages; `key`: the model's, [1]."""
    model, units = modelled.model, passes.shape[1]
    elements, in_matrices, factors = np.zeros((3, units))
    number: dict[Local, Ints] = {}
    layer = 0
    for unit in model.units:
        at = units - 2 if unit.kind == EMBEDDING else units - 1
        if unit.kind == LAYER:
            at, layer = layer, layer + 1
        times = 1 if unit.kind == LAYER else unit.number
        mine = times * float(held(model, unit, key)[which][0])
        elements[at] += mine
        ends = unit.kind in (EMBEDDING, HEAD)  # a matrix, but not one for Muon
        factors[at] += mine / model.hidden + model.hidden if ends and mine else mine
        for weights in trained(model, unit):
            if weights.part in TABLES or (weights.sharding == EXPERT) != (which == EXPERTS):
                continue
            for matrix in weights.matrices:
                count = times * max(matrix.number // (int(key.ep[0]) if which == EXPERTS else 1), 1)
                local = local_of(matrix, _parts(weights.sharding, key, model.kv_heads), how.tp_mode)
                number.setdefault(local, np.zeros(units, np.int64))[at] += count
                in_matrices[at] += count * local.elements
                factors[at] += count * (matrix.rows + matrix.columns - local.elements)
    kinds = tuple(number)
    counts = passes @ np.stack(list(number.values()), axis=1) if kinds else np.zeros((len(passes), 0), np.int64)
    distinct: dict[tuple[int, ...], Ints] = {}
    if optimizer.orthogonal and kinds:
        cost = np.array([kind.cost for kind in kinds], np.int64)
        distinct = {stage: shared_out(cost, np.array(stage, np.int64), ranks) for stage in {*map(tuple, counts.tolist())}}
    shares = tuple(distinct[tuple(stage)] for stage in counts.tolist()) if distinct else ()
    aligned = how.aligned and ranks > 1 and bool(shares)
    return Group(ranks, passes @ elements, passes @ in_matrices, passes @ factors, kinds, shares, aligned)


def _parts(sharding: int, key: Keys, kv_heads: int) -> int:
    """Tensor-parallel ranks that divide a matrix."""
    tp = int(key.tp[0])
    return {REPLICATED: 1, KV_HEADS: min(tp, kv_heads), EXPERT: int(key.etp[0])}.get(sharding, tp)


def shared_out(cost: Ints, number: Ints, ranks: int) -> Ints:
    """How many matrices of each kind each rank gets, [ranks, kinds]: the most expensive first, each to the rank with the least.

    Equal ones at once: a rank takes those that would begin below the level at which there are enough of them.
    """
    taken, load = np.zeros((ranks, len(cost)), np.int64), np.zeros(ranks, np.int64)
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
    begun: Ints = np.maximum(-((load - level) // each), 0)
    return begun


def further_bytes(workload: Workload, modelled: Modelled, plans: Plans, split: Split, rows: Ints) -> tuple[Ints, Floats]:
    """The layout of each plan, [plans], -1: AdamW; and bytes of state on the fullest rank beyond AdamW's, [layouts, stages]."""
    found = layouts_of(workload, modelled, plans, split, rows)
    key = np.full(len(plans.tp), -1, np.int64)
    key[found.rows] = found.key
    adam = modelled.stack.adam_bytes
    bytes_ = np.zeros((len(found.layouts), int(plans.pp[rows].max(initial=1))))
    for number, (optimizer, groups) in enumerate(found.layouts):
        for group in groups:
            if optimizer.orthogonal:
                own = (adam - MOMENTS + optimizer.state) * group.fullest if group.shares else 0.0
                more = own - adam * group.in_matrices / group.ranks + workload.state_width[0] * group.padding
            else:
                more = ((optimizer.state - MOMENTS) * group.elements + optimizer.factored * group.factors) / group.ranks
            bytes_[number, : len(group.elements)] += more
    return key, bytes_
