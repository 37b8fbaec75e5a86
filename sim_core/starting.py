"""How near a simulation of a recording starts: its step at the recorded plan beside the recorded one."""

from typing import NamedTuple

import numpy as np

from sim_core.hardware.table import HardwareTable, hardware_table, recorded_on
from sim_core.planning.building import plans
from sim_core.planning.legality import REASONS
from sim_core.simulator import simulate
from sim_core.workloads.workload import Workload


class Start(NamedTuple):
    """Seconds of a step at the recorded plan on the hardware of the recording. `simulated_s` is NaN if the plan cannot run
    there, for `reason`. `compared_s` is the end of the stages that have a trace, as `recorded_s` is."""

    recorded_s: float
    simulated_s: float
    compared_s: float
    reason: str

    @property
    def error(self) -> float:
        """Error of the simulated end of the recorded stages relative to the recorded one."""
        return self.compared_s / self.recorded_s - 1


def start_of(workload: Workload, hardware: HardwareTable) -> Start | None:
    """The start of a workload that has a measured step; else None."""
    if workload.recorded_step_s is None:
        return None
    own = hardware_table([recorded_on(hardware)], hardware.measured_on, workload.dtype)
    results = simulate(workload, own, plans(workload))
    step_s = float(results.named()["step_time_s"][0]) if results.reason[0] == 0 else np.nan
    return Start(
        recorded_s=workload.recorded_step_s,
        simulated_s=step_s,
        compared_s=step_s - workload.unrecorded_s,
        reason=REASONS[results.reason[0]],
    )
