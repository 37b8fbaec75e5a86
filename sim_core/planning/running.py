"""Plans as framework and device run them: layers placed by its rule, what it cannot hide, the load of experts, FP8 copies."""

import numpy as np

from sim_core.arrays import Ints
from sim_core.distinct import distinct_rows
from sim_core.hardware.table import HardwareTable
from sim_core.models.precision import IN_ANY_LAYOUT
from sim_core.planning.columns import BALANCED, EVEN, LISTED, Plans
from sim_core.planning.imbalance import with_loads
from sim_core.terms import AS_STACK, OPTIMIZER_SHARDED
from sim_core.workloads.workload import Workload


def as_run(workload: Workload, hardware: HardwareTable, plans: Plans) -> Plans:
    """The plans as the workload's framework runs them on their devices. The second time changes nothing.

    Their precisions are then rows of `ON_DEVICES`.
    """
    framework = workload.arrays.framework
    plans = with_loads(workload, placed(workload, plans))
    if plans.precision.any():
        any_layout = np.array([device.value("fp8_any_layout") > 0 for device in hardware.variants])
        plans = plans._replace(precision=np.where(any_layout[plans.hardware], IN_ANY_LAYOUT[plans.precision], plans.precision))
    if framework.hides_sharded:
        return plans
    own = np.where(plans.pp > 1, framework.sharding_in_pipeline, framework.sharding)
    sharding = np.where(plans.sharding == AS_STACK, own, plans.sharding)
    hides = (sharding != OPTIMIZER_SHARDED).astype(np.int64)
    return plans._replace(overlap_grad=plans.overlap_grad * hides, overlap_param=plans.overlap_param * hides)


def placed(workload: Workload, plans: Plans) -> Plans:
    """The plans with the layers of each virtual stage where the framework divides them by cost: `even` and `balanced` ones."""
    head = workload.arrays.framework.head_layers
    rows = np.flatnonzero((plans.layer_split == EVEN) | (plans.layer_split == BALANCED))
    if head < 0 or not len(rows):
        return plans
    of_row, first = distinct_rows(np.stack([plans.pp[rows] * plans.vpp[rows], plans.layers[rows]], axis=1))
    lists = [layers_by_cost(int(plans.layers[row]), int(plans.pp[row] * plans.vpp[row]), head) for row in rows[first]]
    width = max(plans.virtual_layers.shape[1], *map(len, lists))
    layers = np.full((len(plans.tp), width), -1, np.int64)
    layers[:, : plans.virtual_layers.shape[1]] = plans.virtual_layers
    for kind, stages in enumerate(lists):
        layers[rows[of_row == kind], : len(stages)] = stages
    split = plans.layer_split.copy()
    split[rows] = LISTED
    return plans._replace(layer_split=split, virtual_layers=layers)


def layers_by_cost(layers: int, stages: int, head: float) -> Ints:
    """Layers of each of so many stages, [stages]; the head costs as much as `head` layers.

    A stage closes after the block with which all blocks so far cost more than the share of the stages so far (nanotron,
    models/base.py: `cumulative_cost > threshold`). What is left for the last stages may be the head alone, or nothing.
    """
    share = (layers + head) / stages
    stage, of_stage = 0, np.zeros(stages, np.int64)
    for number in range(1, layers + 1):
        of_stage[stage] += 1
        if number > (stage + 1) * share and stage < stages - 1:
            stage += 1
    return of_stage
