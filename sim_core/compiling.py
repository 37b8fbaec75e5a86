"""The kernels of a sweep in two halves, so that two processes can compile them at the same time."""

import numpy as np

from sim_core.arrays import Ints
from sim_core.batch import allocate_together, batches, run_rows, tables_of
from sim_core.costing.recomputed import again_flops
from sim_core.costing.running import as_run
from sim_core.engine.orders import order_writers
from sim_core.hardware.table import HardwareTable
from sim_core.jit import in_plain_python
from sim_core.metrics import METRICS
from sim_core.planning.columns import EVENT, Plans, slice_plans
from sim_core.planning.legality import check
from sim_core.simulator import legality
from sim_core.workloads.workload import Workload


def compile_tables(workload: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Compile all that `simulate` runs before the steps of `plans`, by running it: what steps need too comes last."""
    with in_plain_python():
        can_run = np.flatnonzero((check(workload, plans) == 0) & (plans.fidelity == EVENT))
    loaded = as_run(workload, hardware, plans)
    for rows in batches(workload.arrays, loaded, can_run):
        tables_of(workload, hardware, loaded, rows)
        break
    legality(workload, hardware, plans)


def compile_steps(workload: Workload, hardware: HardwareTable, plans: Plans) -> bool:
    """Compile the kernel of steps alone, by running one of `plans`, whose tables plain Python makes. False if none can run.

    Its memory may be too small: plain Python would need long to find one that fits.
    """
    with in_plain_python():
        can_run = np.flatnonzero((check(workload, plans) == 0) & (plans.fidelity == EVENT))
        if not len(can_run):
            return False
        virtual = plans.pp * plans.vpp  # rows of tables
        few = can_run[[int(np.argmin((virtual * plans.ga)[can_run]))]]  # few of them, and few blocks
        plans, rows = as_run(workload, hardware, slice_plans(plans, few)), np.zeros(1, np.int64)
        tables = tables_of(workload, hardware, plans, rows)
        arrays, again = workload.arrays, again_flops(workload)
    scratch = allocate_together(arrays, plans, tables.split, rows)
    n = len(plans.tp)
    reason, metrics, recomputed = np.zeros(n, np.int64), np.empty((len(METRICS), n)), np.empty(n)
    run_rows(arrays, hardware.columns, plans, tables, rows, scratch, again, reason, metrics, recomputed)
    return True


def compile_orders(schedules: Ints) -> None:
    """Compile, or load, the kernels that write the orders of blocks of these schedules, by code."""
    order_writers(schedules)
