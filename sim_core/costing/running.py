"""Plans as framework and device run them: layers placed by its rule, what it cannot hide, the load of experts, FP8 copies."""

from typing import Final

import numpy as np

from sim_core.costing.balance import divided
from sim_core.costing.memory import shardings
from sim_core.hardware.table import HardwareTable
from sim_core.models.precision import IN_ANY_LAYOUT
from sim_core.planning.columns import BALANCED_COST, EVENT, Plans
from sim_core.planning.imbalance import with_loads
from sim_core.planning.legality import check
from sim_core.planning.placing import placed, with_lists
from sim_core.terms import OPTIMIZER_SHARDED
from sim_core.workloads.workload import Workload

TOGETHER: Final = 8192
"""Plans whose blocks are costed at once."""


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
    rows = rows[check(workload, plans)[rows] == 0]
    costed = _loaded(workload, hardware, plans)
    for begin in range(0, len(rows), TOGETHER):
        some = rows[begin : begin + TOGETHER]
        plans = with_lists(plans, some, *divided(workload, hardware, costed, some))
    return plans
