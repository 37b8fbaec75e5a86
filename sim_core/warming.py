"""The kernels of a sweep in two halves for two processes to compile, by running them.

Public, with what plain Python would take instead.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sim_core.arrays import Ints
from sim_core.batch import batch_of, batches, run_rows
from sim_core.compiling import PLAIN_PYTHON, in_plain_python
from sim_core.costing.running import as_run, as_run_but_for_costs, without_precision
from sim_core.engine.orders import order_writers
from sim_core.hardware.table import HardwareTable
from sim_core.planning.columns import EVENT, Plans, slice_plans
from sim_core.planning.legality import check
from sim_core.simulator import legality, plain_python_s as plain_python_s
from sim_core.workloads.workload import Workload


def compile_tables(workload: Workload, hardware: HardwareTable, plans: Plans) -> None:
    """Compile all that `simulate` runs beside `run_rows`, by running it, and the engine, which it calls."""
    can_run = _legal(workload, hardware, plans)
    with _collecting_less():
        own = as_run(workload, hardware, slice_plans(plans, can_run))
        for _, some in batches(workload.arrays, own, np.arange(len(can_run))):
            batch_of(workload, hardware, some)
            break
        legality(workload, hardware, plans)


def compile_steps(workload: Workload, hardware: HardwareTable, plans: Plans) -> bool:
    """Compile `run_rows` alone, for the types of tables that plain Python makes of one of `plans`. False if none can run."""
    can_run = _legal(workload, hardware, plans)
    if not len(can_run):
        return False
    blocks = plans.pp * plans.vpp * plans.ga  # few of them, and few rows of tables
    few = slice_plans(plans, can_run[[int(np.argmin(blocks[can_run]))]])
    with in_plain_python():
        batch = batch_of(workload, hardware, as_run(workload, hardware, few))
    if not PLAIN_PYTHON:  # of no rows: what they would call need not be there
        batch = batch._replace(writers=np.zeros(len(batch.writers), int), engine=np.zeros(1, int))
    with _collecting_less():
        run_rows(batch, np.zeros(0, int))
    return True


def _legal(workload: Workload, hardware: HardwareTable, plans: Plans) -> Ints:
    """The plans that the event engine can cost, [n]."""
    with in_plain_python():
        lacking = without_precision(hardware, as_run_but_for_costs(workload, hardware, plans))
        return np.flatnonzero((check(workload, plans) == 0) & (plans.fidelity == EVENT) & ~lacking)


@contextmanager
def _collecting_less() -> Iterator[None]:
    """Let Python look for garbage rarely, to which numba gives it little: a tenth of a compilation otherwise."""
    before = gc.get_threshold()
    gc.set_threshold(50 * before[0], *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def compile_orders(schedules: Ints) -> None:
    """Compile, or load, the kernels that write the orders of blocks of these schedules, by code."""
    order_writers(schedules)
