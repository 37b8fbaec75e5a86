"""Which layers each virtual stage holds: one table for a batch of plans.

Virtual stages are numbered in model order, `chunk * pp + stage`: the first one holds the model's first layers.
`even` and `balanced`: stages hold equal numbers of layers, or numbers that differ by at most one; the same holds for the
chunks of a stage. `embedding_as_layer`, `loss_as_layer`: the embedding counts as one layer of the first virtual
stage, the loss as one of the last (Megatron-LM's --account-for-embedding-in-pipeline-split and
--account-for-loss-in-pipeline-split). `balanced_cost` becomes a list (costing/running.py). `listed`: by the plan's own list.
A virtual stage may hold no layer, as in Megatron-Core: `get_num_layers_to_build` (transformer/transformer_block.py) asserts
>= 0 after embedding and loss are subtracted, and a pipeline_model_parallel_layout may end in a stage with the loss alone.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import inner_kernel, kernel, outer_kernel
from sim_core.distinct import distinct_rows
from sim_core.engine.codes import virtual_of
from sim_core.engine.schedules import BOTH_WAYS, LOOP, PLACEMENT, V
from sim_core.planning.columns import EMBEDDING_AS_LAYER, ENDS_AS_LAYERS, LISTED, LOSS_AS_LAYER, SPLIT_COLUMNS, Plans
from sim_core.workloads.workload import Arrays

MOST_VIRTUAL = 2**23
"""Virtual stages of a step that is not too large: two blocks each, of MAX_BLOCKS."""
PP, VPP, LAYERS, RULE, PLACED = (SPLIT_COLUMNS.index(name) for name in ("pp", "vpp", "layers", "layer_split", "schedule"))
LIST = len(SPLIT_COLUMNS)
"""Columns of a row of `_kinds`; from LIST on the layers of each virtual stage. PLACED is the schedule's placement."""


class Split(NamedTuple):
    """The distinct splits of a batch of plans. A split has one row per virtual stage, from row `offset[key]` on."""

    key: Ints  # [plans] the split of each plan
    offset: Ints  # [splits] its first row
    stage_offset: Ints  # [splits] the first row of its stages
    begin: Ints  # [rows] first layer of a virtual stage ...
    end: Ints  # [rows] ... and one past its last
    size: Ints  # [rows] index of what it holds among the split's distinct ones per virtual stage
    layers: Ints  # [rows, units] layers of each unit ...
    passes: Ints  # [rows, units] ... plus the units before the first layer and after the last one
    dense: Ints  # [rows] layers of a file without experts, where its other layers have some
    stage_layers: Ints  # [stage rows] layers of all virtual stages of a stage
    stage_dense: Ints  # [stage rows] the same of those without experts
    stage_size: Ints  # [stage rows] index of what it holds among the split's distinct ones per stage
    sizes: int  # maximum number of distinct ones, per virtual stage or per stage, of any split


def split_plans(arrays: Arrays, plans: Plans, rows: Ints) -> Split:
    """Divide the layers of the plans in `rows`; each plan has at least one layer per virtual stage."""
    key = np.full(len(plans.tp), -1, int)
    key[rows], kinds = _kinds(plans, rows)
    return _fill(arrays, key, kinds)


def _kinds(plans: Plans, rows: Ints) -> tuple[Ints, Ints]:
    """The split of each plan in `rows`, and what each depends on, [splits, LIST + width]: of a schedule no more than where its
    virtual stages lie."""
    table = np.stack([*(getattr(plans, name)[rows] for name in SPLIT_COLUMNS), np.zeros_like(rows)], axis=1)
    table[:, PLACED] = PLACEMENT[table[:, PLACED]]
    listed = np.flatnonzero(table[:, RULE] == LISTED)
    table[listed, LIST], _ = distinct_rows(plans.virtual_layers[rows[listed]])
    of_row, first = distinct_rows(table)
    return of_row, np.concatenate([table[first, :LIST], plans.virtual_layers[rows[first]]], axis=1)


@inner_kernel
def layers_of(kind: Ints, virtual: int) -> int:
    """Layers of a virtual stage; `kind` is a row of `_kinds`."""
    pp, vpp, layers, rule = kind[PP], kind[VPP], kind[LAYERS], kind[RULE]
    if rule == LISTED:
        return int(kind[LIST + virtual])
    if rule in (EMBEDDING_AS_LAYER, LOSS_AS_LAYER, ENDS_AS_LAYERS):
        before = 0 if rule == LOSS_AS_LAYER else 1
        after = 0 if rule == EMBEDDING_AS_LAYER else 1
        layers_here = (layers + before + after) // (pp * vpp)
        layers_here -= before if virtual == 0 else 0
        return int(layers_here - (after if virtual == pp * vpp - 1 else 0))
    stage, chunk = virtual % pp, virtual // pp
    if kind[PLACED] == V and chunk % 2 == 1:
        stage = pp - 1 - stage
    of_stage = (stage + 1) * layers // pp - stage * layers // pp
    return int(of_stage // vpp + (1 if chunk < of_stage % vpp else 0))


@kernel
def _fill(arrays: Arrays, key: Ints, kinds: Ints) -> Split:
    splits, units = kinds.shape[0], arrays.unit_layers.shape[0]
    offset, stage_offset = np.zeros(splits, np.int64), np.zeros(splits, np.int64)
    rows, stages, longest = 0, 0, 0
    for k in range(splits):
        offset[k], stage_offset[k] = rows, stages
        longest = max(longest, kinds[k, PP] * kinds[k, VPP])
        rows += kinds[k, PP] * kinds[k, VPP]
        stages += kinds[k, PP]
    begin, end = np.empty(rows, np.int64), np.empty(rows, np.int64)
    layers, passes = np.zeros((rows, units), np.int64), np.zeros((rows, units), np.int64)
    size, stage_size = np.empty(rows, np.int64), np.empty(stages, np.int64)
    stage_layers, stage_dense, dense = np.zeros(stages, np.int64), np.zeros(stages, np.int64), np.empty(rows, np.int64)
    of_model = arrays.dense_parameters > 0
    held = np.zeros((rows, units if of_model else 3), np.int64)  # of a file: layers, those without experts, ends
    of_stage = np.empty(held.shape[1], np.int64)
    seen = np.empty((longest, held.shape[1]), np.int64)
    sizes = 1
    ends_differ = arrays.shares.ends + arrays.shares.whole > 0  # the first and the last stage hold embedding and head too
    for k in range(splits):
        pp, virtual = kinds[k, PP], kinds[k, PP] * kinds[k, VPP]
        chunks = 2 if kinds[k, PLACED] == BOTH_WAYS else kinds[k, VPP]
        distinct = 0
        layer = 0
        for v in range(virtual):
            row = offset[k] + v
            begin[row] = layer
            layer += layers_of(kinds[k], v)
            end[row] = layer
            for unit in range(units):
                layers[row, unit] = count_layers(arrays.unit_layers, arrays.layer_unit, unit, begin[row], end[row])
                at_end = (v == 0 and unit == arrays.first_unit) or (v == virtual - 1 and unit == arrays.last_unit)
                passes[row, unit] = layers[row, unit] + (1 if at_end else 0)
                if of_model:
                    held[row, unit] = passes[row, unit]
            dense[row] = max(min(end[row], arrays.dense_layers) - begin[row], 0)
            if not of_model:
                held[row, 0], held[row, 1] = end[row] - begin[row], dense[row]
                held[row, 2] = int(ends_differ and v in (0, virtual - 1))
            distinct = _find(seen, distinct, held[row], size, row)
        sizes = max(sizes, distinct)
        distinct = 0
        for stage in range(pp):
            row = stage_offset[k] + stage
            of_stage[:] = 0
            for chunk in range(chunks):
                virtual_row = offset[k] + virtual_of(kinds[k, PLACED], stage, chunk, pp)
                stage_layers[row] += end[virtual_row] - begin[virtual_row]
                stage_dense[row] += dense[virtual_row]
                for column in range(of_stage.shape[0]):
                    of_stage[column] += held[virtual_row, column]
            distinct = _find(seen, distinct, of_stage, stage_size, row)
        sizes = max(sizes, distinct)
    return Split(
        key, offset, stage_offset, begin, end, size, layers, passes, dense, stage_layers, stage_dense, stage_size, sizes
    )


@inner_kernel
def ends_of_stage(placement: int, stage: int, pp: int) -> int:
    """Ends of the model on a stage: embedding, head, or both."""
    if placement == LOOP:
        return int(stage == 0) + int(stage == pp - 1)
    return 2 if stage == 0 or (placement == BOTH_WAYS and stage == pp - 1) else 0


@inner_kernel
def _find(seen: Ints, distinct: int, held: Ints, index: Ints, row: int) -> int:
    """Write to `index[row]` the index of `held` among the `distinct` ones seen, added if new. Returns their number."""
    place = 0
    while place < distinct and not _alike(seen[place], held):
        place += 1
    for column in range(held.shape[0]):
        seen[place, column] = held[column]
    index[row] = place
    return max(distinct, place + 1)


@inner_kernel
def _alike(one: Ints, other: Ints) -> bool:
    for column in range(one.shape[0]):  # noqa: SIM110 (a generator would allocate)
        if one[column] != other[column]:
            return False
    return True


@outer_kernel
def count_layers(unit_layers: Ints, layer_unit: int, unit: int, begin: int, end: int) -> int:
    """Layers of a unit among the layers `begin` to `end`; layers beyond the recorded ones belong to `layer_unit`."""
    if end >= unit_layers.shape[1]:
        return end - begin if unit == layer_unit else 0
    return int(unit_layers[unit, end] - unit_layers[unit, begin])


def fullest_stages(plans: Plans, dense_layers: int = 0) -> tuple[Floats, Floats]:
    """Layers of the fullest stage, and of the fuller one of the first and the last, with those of them that have experts.

    [n, 2, 2] each: of the stage with the most layers, and of that with the most that have experts, which all but the model's
    first `dense_layers` have. Means if the split is not possible.
    """
    of_row, kinds = _kinds(plans, np.arange(len(plans.tp)))
    most = _fullest(kinds, dense_layers)[of_row]
    return most[:, 0], most[:, 1]


@kernel
def _fullest(kinds: Ints, dense_layers: int) -> Floats:
    most = np.empty((len(kinds), 2, 2, 2))
    for k in range(len(kinds)):
        pp, vpp, layers = kinds[k, PP], kinds[k, VPP], kinds[k, LAYERS]
        chunks = 2 if kinds[k, PLACED] == BOTH_WAYS else vpp
        most[k, :, :, 0] = layers / pp * (chunks // vpp)
        most[k, :, :, 1] = (layers - dense_layers) / pp * (chunks // vpp)
        listed = kinds[k, RULE] == LISTED
        fits = pp * vpp <= (kinds.shape[1] - LIST if listed else layers + 2) and pp * vpp <= MOST_VIRTUAL
        if not fits:
            continue  # illegal, or fidelity simai, which uses means
        begin = np.zeros(pp * vpp + 1, np.int64)
        for virtual in range(pp * vpp):
            begin[virtual + 1] = begin[virtual] + layers_of(kinds[k], virtual)
        counted = 0
        fullest = np.zeros((2, 2, 2), np.int64)
        for stage in range(pp):
            of_stage, with_experts = 0, 0
            for chunk in range(chunks):
                virtual = virtual_of(kinds[k, PLACED], stage, chunk, pp)
                of_stage += begin[virtual + 1] - begin[virtual]
                with_experts += max(begin[virtual + 1], dense_layers) - max(begin[virtual], dense_layers)
            for row in range(2 if ends_of_stage(kinds[k, PLACED], stage, pp) > 0 else 1):
                for by, mine, other in ((0, of_stage, with_experts), (1, with_experts, of_stage)):
                    largest, beside = fullest[row, by, by], fullest[row, by, 1 - by]
                    if mine > largest or (mine == largest and other > beside):
                        fullest[row, by, 0], fullest[row, by, 1] = of_stage, with_experts
            counted += of_stage
        if counted == layers * chunks // vpp:
            for row, by, of in np.ndindex(2, 2, 2):
                most[k, row, by, of] = fullest[row, by, of]
    return most
