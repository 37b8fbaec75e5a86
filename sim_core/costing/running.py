"""Plans as framework and device run them: layers placed by its rule, what it cannot hide, the load of experts, FP8 copies.

`balanced_cost`: layers so divided that the slowest virtual stage takes as little as it can, by modelled seconds. The smallest
largest virtual stage is found exactly, and among all such divisions that with the least sum of squares. With several chunks on
a stage their sum does not count: interleaved stages take their chunks in turn, all of them the same one at about the same time,
so that a turn takes as long as the largest. Where forwards and backwards run in pairs, layers count without the messages that a
pair hides. Megatron-LM takes a division as --pipeline-model-parallel-layout.
"""

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.compiled.jit import inner_kernel, kernel
from sim_core.costing.blocks import cost_blocks
from sim_core.costing.case import EXPERTS_BACKWARD, EXPERTS_FORWARD, Blocks
from sim_core.costing.groups import group_plans
from sim_core.distinct import distinct_rows
from sim_core.engine.schedules import PAIRS
from sim_core.hardware.kernels.device import has_precision
from sim_core.hardware.table import HardwareTable
from sim_core.models.precision import IN_ANY_LAYOUT, ON_DEVICES
from sim_core.planning.columns import BALANCED_COST, BLOCK, EVENT, FILE, NONE, Plans, slice_plans
from sim_core.planning.imbalance import with_loads
from sim_core.planning.legality import check, shardings
from sim_core.planning.placing import placed, with_lists
from sim_core.planning.split import split_plans
from sim_core.terms import OPTIMIZER_SHARDED
from sim_core.workloads.workload import Arrays, Workload

TOGETHER = 8192
"""Plans whose blocks are costed at once."""
ROUNDING = 1 + 1e-9
"""By how much a division may be slower than the fastest and still be as fast."""


def as_run(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """The plans, which pass `check`, as the workload's framework runs them on their devices. The second time changes nothing.

    Their precisions are then rows of `ON_DEVICES`.
    """
    rows = np.flatnonzero((plans.layer_split == BALANCED_COST) & (plans.fidelity == EVENT))
    return as_run_but_for_costs(workload, hardware, _placed(workload, hardware, plans, rows))


def as_run_but_for_costs(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """The same of any plans, with the layers of those that say `balanced_cost` as they are."""
    framework = workload.arrays.framework
    plans = _loaded(workload, hardware, placed(workload, plans))
    if framework.hides_sharded:
        return plans
    hides = (shardings(framework, plans) != OPTIMIZER_SHARDED).astype(int)
    return plans._replace(overlap_grad=plans.overlap_grad * hides, overlap_param=plans.overlap_param * hides)


def _loaded(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """With the load of experts, and precisions as the device has them."""
    plans = with_loads(workload, plans)
    if not plans.precision.any():
        return plans
    any_layout = np.array([device.value("fp8_any_layout") > 0 for device in hardware.variants])
    return plans._replace(precision=np.where(any_layout[plans.hardware], IN_ANY_LAYOUT[plans.precision], plans.precision))


def without_precision(hardware: HardwareTable, plans: Plans) -> Bools:
    """Plans as they run whose device lacks the precision of their linear layers, [n]."""
    if not plans.precision.any():
        return np.zeros(len(plans.tp), bool)
    lacking = np.array([[not has_precision(device, own.linear) for own in ON_DEVICES] for device in hardware.variants])
    return lacking[plans.hardware, plans.precision] & (plans.precision > 0)


def placed_by_cost(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """The plans with the layers of each virtual stage of those that say `balanced_cost` and can run, as lists."""
    rows = np.flatnonzero((plans.layer_split == BALANCED_COST) & (plans.fidelity == EVENT))
    return _placed(workload, hardware, plans, rows[check(workload, slice_plans(plans, rows)) == 0])


def _placed(workload: Workload, hardware: HardwareTable, plans: Plans, rows: Ints) -> Plans:
    """The plans with layers divided by cost in `rows`, but for those whose device cannot run them."""
    costed, lists, arrays = _loaded(workload, hardware, slice_plans(plans, rows)), [], workload.arrays
    can_run = ~without_precision(hardware, costed)
    rows, costed = rows[can_run], slice_plans(costed, can_run)
    if not len(rows):
        return plans
    for begin in range(0, len(rows), TOGETHER):
        some = np.arange(begin, min(begin + TOGETHER, len(rows)))
        groups = group_plans(hardware.columns, costed, some, arrays.shares.whole_experts)
        blocks = cost_blocks(workload, hardware, costed, groups, split_plans(arrays, costed, some), some)
        columns = (costed.pp * costed.vpp, costed.layers, costed.checkpointing, costed.checkpoint_layers)
        of_row, first = distinct_rows(np.stack([blocks.key[some], *(column[some] for column in columns)], axis=1))
        lists.append(_divided(arrays, slice_plans(costed, some[first]), blocks, blocks.key[some[first]])[of_row])
    width = max(each.shape[1] for each in lists)
    padded = [np.pad(each, ((0, 0), (0, width - each.shape[1])), constant_values=-1) for each in lists]
    return with_lists(plans, rows, np.concatenate(padded))


def _divided(arrays: Arrays, plans: Plans, blocks: Blocks, key: Ints) -> Ints:
    """The layers of each virtual stage of some plans, [n, most], padded with -1; `key`: in `blocks`, [n]."""
    how = plans.checkpointing[:, None]
    pass_s = blocks.forward_s[key] + blocks.backward_s[key]
    messages_s = blocks.apart_s[key, :, EXPERTS_FORWARD] + blocks.apart_s[key, :, EXPERTS_BACKWARD]
    hidden_s = messages_s * (1 - arrays.framework.pair_contention)
    pass_s = np.where(PAIRS[plans.schedule][:, None], pass_s - hidden_s, pass_s)
    again_s = np.where(how == NONE, 0.0, blocks.again_s[key])
    ends_s = (pass_s + np.where(how == FILE, again_s, 0.0))[:, [arrays.first_unit, arrays.last_unit]]
    ends_s[:, np.array([arrays.first_unit, arrays.last_unit]) < 0] = 0.0
    span = np.where(plans.checkpointing == BLOCK, plans.checkpoint_layers, 0)
    own_s, again_s = np.where(how == BLOCK, pass_s, pass_s + again_s), np.where(how == BLOCK, again_s, 0.0)
    unit = np.full(int(plans.layers.max()), arrays.layer_unit)
    recorded = np.argmax(np.diff(arrays.unit_layers, axis=1), axis=0)[: len(unit)]
    unit[: len(recorded)] = recorded
    return divide(own_s, again_s, span, ends_s, unit, plans.layers, plans.pp * plans.vpp)


@kernel
def divide(own_s: Floats, again_s: Floats, span: Ints, ends_s: Floats, unit: Ints, layers: Ints, virtual: Ints) -> Ints:
    """Layers of each virtual stage of n plans, [n, most]; every one but the last holds a layer; -1 beyond `virtual`, [n].

    A layer of a unit takes `own_s`, [n, units], among the first `span`, [n], of a virtual stage `again_s` more; `ends_s`,
    [n, 2]: before the first layer, after the last. `unit`: of each layer.
    """
    most, longest = int(virtual.max()), int(layers.max()) + 1
    found, sums, best = np.full((len(layers), most), -1, np.int64), np.zeros((2, longest)), np.empty((2, longest))
    window, begun = np.empty((most + 1, 2), np.int64), np.empty((most + 1, longest), np.int64)
    for n in range(len(layers)):
        for layer in range(layers[n]):
            sums[0, layer + 1] = sums[0, layer] + own_s[n, unit[layer]]
            sums[1, layer + 1] = sums[1, layer] + again_s[n, unit[layer]]
        case = (sums, span[n], ends_s[n], layers[n], virtual[n])
        most_s, end = 0.0, 0
        for number in range(virtual[n]):  # of equal numbers of layers
            begin, end = end, max((number + 1) * layers[n] // virtual[n], min(number + 1, layers[n]))
            most_s = max(most_s, _stage_s(sums, span[n], ends_s[n], virtual[n], number, begin, end))
        for by_squares in (False, True):  # first the smallest largest stage, then, among those no larger, the least squares
            _bound_ends(*case, most_s, window)
            most_s = _best_division_s(*case, most_s, by_squares, window, best, begun) * ROUNDING
        end = layers[n]
        for number in range(virtual[n] - 1, -1, -1):
            found[n, number] = end - begun[number + 1, end]
            end = begun[number + 1, end]
    return found


@inner_kernel
def _stage_s(sums: Floats, span: int, ends_s: Floats, virtual: int, number: int, begin: int, end: int) -> float:
    """Seconds of a virtual stage that holds the layers `begin` to `end`."""
    seconds = sums[0, end] - sums[0, begin] + (sums[1, min(begin + span, end)] - sums[1, begin])
    seconds += ends_s[0] if number == 0 else 0.0
    return float(seconds + (ends_s[1] if number == virtual - 1 else 0.0))


@inner_kernel
def _bound_ends(sums: Floats, span: int, ends_s: Floats, layers: int, virtual: int, most_s: float, window: Ints) -> None:
    """The first and last layer with which each virtual stage may end, [virtual + 1, 2], if none takes longer than `most_s`."""
    window[0, 0], window[0, 1], window[virtual, 0], window[virtual, 1] = 0, 0, layers, layers
    for number in range(virtual - 1):
        begin, last = window[number, 1], layers - virtual + 2 + number
        end = begin
        while end < last and sums[0, end + 1] - sums[0, begin] + (ends_s[0] if number == 0 else 0.0) <= most_s:
            end += 1
        window[number + 1, 1] = end
    for number in range(virtual - 1, 0, -1):
        end = window[number + 1, 0]
        begin = end
        while begin > number and sums[0, end] - sums[0, begin - 1] + (ends_s[1] if number == virtual - 1 else 0.0) <= most_s:
            begin -= 1
        window[number, 0] = begin


@inner_kernel
def _best_division_s(
    sums: Floats,
    span: int,
    ends_s: Floats,
    layers: int,
    virtual: int,
    most_s: float,
    by_squares: bool,
    window: Ints,
    best: Floats,
    begun: Ints,
) -> float:
    """The least sum of squares, or seconds of the largest stage, of divisions within a `window`; `begun`: where they begin."""
    best[0, 0] = 0.0
    for number in range(virtual):
        before, after, least = number % 2, 1 - number % 2, 0 if number == virtual - 1 else 1
        for end in range(window[number + 1, 0], window[number + 1, 1] + 1):
            best[after, end] = np.inf
            for begin in range(min(end - least, window[number, 1]), window[number, 0] - 1, -1):
                own_s = sums[0, end] - sums[0, begin]
                if own_s > most_s or (not by_squares and own_s >= best[after, end]):
                    break
                seconds = _stage_s(sums, span, ends_s, virtual, number, begin, end)
                value = best[before, begin] + seconds * seconds if by_squares else max(best[before, begin], seconds)
                if value < best[after, end] and (seconds <= most_s or not by_squares):
                    best[after, end] = value
                    begun[number + 1, end] = begin
    return float(best[virtual % 2, layers])
