"""What nobody knows beforehand of a stack, a device and a network: constants drawn, and plans simulated under each draw."""

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from sim_core import (
    COMPILE_AFTER_S,
    Floats,
    HardwareTable,
    Ints,
    Plans,
    Results,
    Workload,
    hardware_table,
    is_compiled,
    plain_python_s,
    simulate,
    use_kernels,
    workload_from_model,
)  # fmt: skip
from sweep.columns import describe_rows
from sweep.evaluation.preparation import Sweep
from sweep.explaining.stability import with_slower

WIDTHS: Final[Mapping[str, float]] = {"compute": 0.2, "nvlink": 0.3, "nic": 0.5, "jitter": 0.7}
"""Standard deviations of ln(time) on a cluster that nobody measured yet: compute and both kinds of links two to three times
what published runs and nccl-tests differ by (`sweep.explaining.stability.SIGMAS`); of jitter there is no measurement."""
LAUNCHES: Final = 1.0
"""Of ln of the host's time of a layer: between stacks it lies from 0.7 to 4.4 ms (`sim_core/models/stacks`)."""
HOST: Final = ("host_forward", "host_backward")
EXPOSED: Final = 0.25
"""Part of the draws in which gradients and parameters are exchanged after the last backward, whatever the plan says, as
nanotron does under ZeRO 1. An assumption."""
GATHER: Final = (5e-6, 1.0)
"""Host seconds per layer and rank to gather parameters, added: median, and standard deviation of ln. A copy from Python takes
some microseconds; nanotron has 35, stacks that gather one flat buffer none."""
DRAWS: Final = 48
LOAD_AFTER_S: Final = 0.5
"""Of plain Python, after which compiled kernels that are in the cache are quicker."""
BOUNDLESS: Final = "1e6 GB"
"""Memory while a step is timed: whether the plan fits is judged apart."""


class Draw(NamedTuple):
    """One draw: factors on the time of each input of WIDTHS and of launches, and what a stack may do otherwise."""

    factors: Mapping[str, float]
    launches: float
    exposed: bool
    gather_s: float


def drawn(count: int = DRAWS) -> list[Draw]:
    """The same draws at every call; of factors in pairs of opposite sign."""
    generator = np.random.default_rng(0)
    names = [*WIDTHS, "launches"]
    half = generator.standard_normal((count // 2, len(names)))
    factors = np.exp(np.concatenate([half, -half]) * [*WIDTHS.values(), LAUNCHES])
    exposed = generator.random(count) < EXPOSED
    gather = GATHER[0] * np.exp(GATHER[1] * generator.standard_normal(count))
    return [
        Draw(dict(zip(WIDTHS, row[:-1].tolist(), strict=True)), float(row[-1]), bool(late), float(host))
        for row, late, host in zip(factors, exposed, gather, strict=True)
    ]


def log_steps(sweep: Sweep, numbers: Ints, count: int = DRAWS) -> Floats:
    """ln of the simulated seconds of a step of some plans as they are (row 0) and under each draw, [1 + count, n].

    Memory is no limit; NaN where a plan cannot run for another reason.
    """
    _, plans = describe_rows(sweep.space, numbers)
    hardware = boundless(sweep).hardware
    seconds = (1 + count) * plain_python_s(sweep.workload, plans)
    if seconds > COMPILE_AFTER_S or (is_compiled() and seconds > LOAD_AFTER_S):
        use_kernels()  # each simulation alone would be too little to
    nominal = simulate(sweep.workload, hardware, plans)
    checked = nominal.reason, nominal.memory  # no draw changes them
    moved = (simulate(*_moved(draw, sweep.workload, hardware, plans), checked) for draw in drawn(count))
    return np.log([_step_s(results) for results in (nominal, *moved)])


def boundless(sweep: Sweep) -> Sweep:
    """The same sweep on devices whose memory is no limit."""
    variants = [variant.with_values({"memory": BOUNDLESS}) for variant in sweep.hardware.variants]
    table = hardware_table(variants, sweep.hardware.measured_on, sweep.workload.dtype)
    return dataclasses.replace(sweep, hardware=table)


def _step_s(results: Results) -> Floats:
    return results.named()["step_time_s"].astype(np.float64)


def _moved(draw: Draw, workload: Workload, hardware: HardwareTable, plans: Plans) -> tuple[Workload, HardwareTable, Plans]:
    """All three as in a draw."""
    moved = (_with_host(workload, draw), hardware, plans)
    if draw.exposed:
        later = {name: np.zeros_like(getattr(plans, name)) for name in ("overlap_grad", "overlap_param")}
        moved = (*moved[:2], plans._replace(**later))
    for name, factor in draw.factors.items():
        moved = with_slower(name, factor, *moved)
    return moved


def _with_host(workload: Workload, draw: Draw) -> Workload:
    """The workload of a model with the host of a draw; a recorded one, whose times hold it, as it is."""
    modelled = workload.modelled
    if modelled is None or workload.from_file:
        return workload
    facts: dict[str, object] = {name: getattr(modelled.stack, name) * draw.launches for name in HOST}
    facts["host_gather"] = modelled.stack.host_gather + draw.gather_s
    facts["hides_sharded"] = modelled.stack.hides_sharded and not draw.exposed
    made = workload_from_model(
        modelled.model, modelled.stack.model_copy(update=facts), sequence_parallel=modelled.sequence_parallel
    )
    return dataclasses.replace(workload, arrays=made.arrays, modelled=made.modelled)
