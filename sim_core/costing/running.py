"""Plans as framework and device run them: layers placed by its rule, what it cannot hide, the load of experts, FP8 copies.

`balanced_cost`: layers so divided that the slowest virtual stage takes as little as it can, by modelled seconds. The smallest
largest virtual stage is found exactly, and among all such divisions that with the least sum of squares. With several chunks on
a stage their sum does not count: interleaved stages take their chunks in turn, all of them the same one at about the same time,
so that a turn takes as long as the largest. Where forwards and backwards run in pairs, layers count without the messages that a
pair hides. Megatron-LM takes a division as --pipeline-model-parallel-layout.
"""

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel
from sim_core.costing.blocks import cost_blocks
from sim_core.costing.case import EXPERTS_BACKWARD, EXPERTS_FORWARD, Blocks
from sim_core.costing.groups import group_plans
from sim_core.costing.memory import shardings
from sim_core.distinct import distinct_rows
from sim_core.engine.schedules import PAIRS
from sim_core.hardware.table import HardwareTable
from sim_core.models.precision import IN_ANY_LAYOUT
from sim_core.planning.columns import BALANCED_COST, BLOCK, EVENT, FILE, NONE, Plans
from sim_core.planning.imbalance import with_loads
from sim_core.planning.legality import check
from sim_core.planning.placing import placed, with_lists
from sim_core.planning.split import split_plans
from sim_core.terms import OPTIMIZER_SHARDED
from sim_core.workloads.workload import Arrays, Workload

TOGETHER = 8192
"""Plans whose blocks are costed at once."""
ROUNDING = 1 + 1e-9
"""By how much a division may be slower than the fastest and still be as fast."""


def as_run(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """The plans as the workload's framework runs them on their devices. The second time changes nothing.

    Their precisions are then rows of `ON_DEVICES`.
    """
    framework = workload.arrays.framework
    plans = _loaded(workload, hardware, placed(workload, placed_by_cost(workload, hardware, plans)))
    if framework.hides_sharded:
        return plans
    hides = (shardings(framework, plans) != OPTIMIZER_SHARDED).astype(np.int64)
    return plans._replace(overlap_grad=plans.overlap_grad * hides, overlap_param=plans.overlap_param * hides)


def _loaded(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """With the load of experts, and precisions as the device has them."""
    plans = with_loads(workload, plans)
    if not plans.precision.any():
        return plans
    any_layout = np.array([device.value("fp8_any_layout") > 0 for device in hardware.variants])
    return plans._replace(precision=np.where(any_layout[plans.hardware], IN_ANY_LAYOUT[plans.precision], plans.precision))


def placed_by_cost(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """The plans with the layers of each virtual stage of those that say `balanced_cost` and can run, as lists."""
    rows = np.flatnonzero((plans.layer_split == BALANCED_COST) & (plans.fidelity == EVENT))
    if not len(rows):
        return plans
    rows, arrays = rows[check(workload, plans)[rows] == 0], workload.arrays
    costed = _loaded(workload, hardware, plans)
    for begin in range(0, len(rows), TOGETHER):
        some = rows[begin : begin + TOGETHER]
        groups = group_plans(hardware.columns, costed, some, arrays.shares.whole_experts)
        blocks = cost_blocks(workload, hardware, costed, groups, split_plans(arrays, costed, some), some)
        columns = (costed.pp * costed.vpp, costed.layers, costed.checkpointing, costed.checkpoint_layers)
        of_row, first = distinct_rows(np.stack([blocks.key[some], *(column[some] for column in columns)], axis=1))
        plans = with_lists(plans, some, of_row, [_divided(arrays, costed, blocks, int(row)) for row in some[first]])
    return plans


def _divided(arrays: Arrays, plans: Plans, blocks: Blocks, row: int) -> Ints:
    """The layers of each virtual stage of one plan."""
    virtual, key, how = int(plans.pp[row] * plans.vpp[row]), blocks.key[row], plans.checkpointing[row]
    pass_s = blocks.forward_s[key] + blocks.backward_s[key]
    if PAIRS[plans.schedule[row]]:
        messages_s = blocks.apart_s[key, :, EXPERTS_FORWARD] + blocks.apart_s[key, :, EXPERTS_BACKWARD]
        pass_s -= messages_s * (1 - arrays.framework.pair_contention)
    again_s = np.zeros_like(pass_s) if how == NONE else blocks.again_s[key]
    unit = np.full(plans.layers[row], arrays.layer_unit)
    recorded = np.argmax(np.diff(arrays.unit_layers, axis=1), axis=0)[: len(unit)]
    unit[: len(recorded)] = recorded
    at_ends = np.array([arrays.first_unit, arrays.last_unit])
    ends_s = np.where(at_ends < 0, 0.0, (pass_s + (again_s if how == FILE else 0.0))[at_ends])
    if how == BLOCK:
        return divide(pass_s[unit], again_s[unit], int(plans.checkpoint_layers[row]), ends_s, virtual)
    return divide((pass_s + again_s)[unit], np.zeros(len(unit)), 0, ends_s, virtual)


@kernel
def divide(own_s: Floats, again_s: Floats, span: int, ends_s: Floats, virtual: int) -> Ints:
    """Layers of each virtual stage, [virtual]; every one but the last holds a layer.

    A layer takes `own_s`, among the first `span` of a virtual stage `again_s` more; `ends_s`: before the first layer, after the
    last.
    """
    layers, most_s = len(own_s), np.inf
    sums = np.zeros((2, layers + 1))
    sums[0, 1:], sums[1, 1:] = np.cumsum(own_s), np.cumsum(again_s)
    largest_s, squares = np.full((virtual + 1, layers + 1), np.inf), np.full((virtual + 1, layers + 1), np.inf)
    begun = np.zeros((virtual + 1, layers + 1), np.int64)
    largest_s[0, 0], squares[0, 0] = 0.0, 0.0
    for by_squares in (False, True):  # first the smallest largest stage, then, among those no larger, the least squares
        for number in range(virtual):
            least = 0 if number == virtual - 1 else 1
            for end in range(number + least, layers + 1):
                for begin in range(end - least, number - 1, -1):
                    seconds = sums[0, end] - sums[0, begin]
                    if seconds > most_s or (not by_squares and seconds >= largest_s[number + 1, end]):
                        break
                    seconds += sums[1, min(begin + span, end)] - sums[1, begin]
                    seconds += ends_s[0] if number == 0 else 0.0
                    seconds += ends_s[1] if number == virtual - 1 else 0.0
                    if not by_squares:
                        largest_s[number + 1, end] = min(largest_s[number + 1, end], max(largest_s[number, begin], seconds))
                    elif seconds <= most_s and squares[number, begin] + seconds * seconds < squares[number + 1, end]:
                        squares[number + 1, end] = squares[number, begin] + seconds * seconds
                        begun[number + 1, end] = begin
        most_s = largest_s[virtual, layers] * ROUNDING
    found, end = np.empty(virtual, np.int64), layers
    for number in range(virtual - 1, -1, -1):
        found[number] = end - begun[number + 1, end]
        end = begun[number + 1, end]
    return found
