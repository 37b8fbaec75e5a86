"""What nobody knows beforehand of a stack, a device and a network: constants drawn, and plans simulated under each draw."""

import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np

from sim_core import Floats, Ints, Workload, simulate, workload_from_model
from sweep.columns import describe_rows
from sweep.preparation import Sweep
from sweep.stability import with_slower

WIDTHS: Final[Mapping[str, float]] = {"compute": 0.2, "launches": 1.0, "nvlink": 0.3, "nic": 0.5, "jitter": 0.7}
"""Standard deviations of ln(time) on a cluster and with a framework that nobody measured yet: compute and both kinds of links
two to three times what published runs and nccl-tests differ by (`sweep.stability`); launches what the stacks differ by, whose
host times of a layer lie between 0.3 and 4.4 ms; jitter is an assumption."""
DRAWS: Final = 48
HOST: Final = ("host_forward", "host_backward")
"""Facts of a stack that `launches` moves."""


def drawn(count: int = DRAWS) -> Floats:
    """Standard normal draws of WIDTHS, [count, widths], in pairs of opposite sign; the same ones at every call."""
    half = np.random.default_rng(0).standard_normal((count // 2, len(WIDTHS)))
    return np.concatenate([half, -half])


def log_steps(sweep: Sweep, numbers: Ints, count: int = DRAWS) -> Floats:
    """ln of the simulated seconds of a step of some plans under each draw, [count, n]; NaN where a plan cannot run."""
    _, plans = describe_rows(sweep.space, numbers)
    steps = np.empty((count, len(numbers)))
    for row, draw in enumerate(drawn(count)):
        moved = (sweep.workload, sweep.hardware, plans)
        for (name, width), size in zip(WIDTHS.items(), draw, strict=True):
            times = float(np.exp(width * size))
            if name == "launches":
                moved = (_with_launches(moved[0], times), *moved[1:])
            else:
                moved = with_slower(name, times, *moved)
        steps[row] = np.log(simulate(*moved).named()["step_time_s"].astype(np.float64))
    return steps


def _with_launches(workload: Workload, times: float) -> Workload:
    """The workload of a model with a host that takes `times` as long to launch a layer; a recorded one as it is."""
    if workload.modelled is None or workload.kind != "model":
        return workload
    modelled = workload.modelled
    stack = modelled.stack.model_copy(update={name: getattr(modelled.stack, name) * times for name in HOST})
    changed = workload_from_model(modelled.model, stack, sequence_parallel=modelled.sequence_parallel)
    framework = changed.arrays.framework._replace(jitter=workload.arrays.framework.jitter)
    return dataclasses.replace(changed, arrays=changed.arrays._replace(framework=framework))
