"""The kernels of a sweep in two halves, so that two processes can compile them at the same time."""

from __future__ import annotations

import numpy as np

from sim_core.batch import Tables, batches, run_rows, tables_of
from sim_core.costing.recomputed import again_flops
from sim_core.hardware.table import HardwareTable
from sim_core.jit import in_plain_python
from sim_core.metrics import METRICS
from sim_core.planning.columns import EVENT, Plans
from sim_core.planning.imbalance import with_loads
from sim_core.scratch import allocate_together
from sim_core.simulator import Ints, legality
from sim_core.workloads.workload import Workload


def compile_tables(workload: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Compile all that `simulate` runs before the steps of `plans`, by running it."""
    _tables(workload, hardware, plans, len(plans.tp))


def compile_steps(workload: Workload, hardware: HardwareTable, plans: Plans) -> bool:
    """Compile the kernel of steps alone, by running one of `plans`, whose tables plain Python makes. False if none can run."""
    with in_plain_python():
        found = _tables(workload, hardware, plans, 1)
        if found is None:
            return False
        loaded, tables, rows = found
        arrays, again = workload.arrays, again_flops(workload)
        scratch = allocate_together(arrays, loaded, tables.split, rows)
    reason, metrics, recomputed = (
        np.zeros(len(plans.tp), np.int64),
        np.empty((len(METRICS), len(plans.tp))),
        np.empty(len(plans.tp)),
    )
    run_rows(arrays, hardware.columns, loaded, tables, rows, scratch, again, reason, metrics, recomputed)
    return True


def _tables(workload: Workload, hardware: HardwareTable, plans: Plans, most: int) -> tuple[Plans, Tables, Ints] | None:
    """Plans with their loads, and the tables of the first batch of those that can run, of `most` plans at most."""
    reason, _ = legality(workload, hardware, plans)
    plans = with_loads(workload, plans)
    for rows in batches(workload.arrays, plans, np.flatnonzero((reason == 0) & (plans.fidelity == EVENT))[:most]):
        return plans, tables_of(workload, hardware, plans, rows), rows
    return None
