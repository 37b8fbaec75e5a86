"""What nobody knows beforehand of a stack, a device and a network: constants drawn, and plans simulated under each draw."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim_core import (
    Checked,
    Floats,
    HardwareTable,
    Hosts,
    Ints,
    Plans,
    Results,
    Workload,
    hardware_table,
    placed_by_cost,
    simulate,
    slice_plans,
)
from sweep.columns import describe_rows
from sweep.evaluation.moved import boundless, slower_links
from sweep.evaluation.preparation import Sweep
from sweep.evaluation.warming import load_kernels

WIDTHS: Mapping[str, float] = {"compute": 0.2, "nvlink": 0.3, "nic": 0.5, "jitter": 0.7}
"""Standard deviations of ln(time) on a cluster that nobody measured yet: compute and both kinds of links two to three times
what published runs (0.065) and nccl-tests (0.13, 0.23) differ by; of jitter there is no measurement."""
LAUNCHES = 1.0
"""Of ln of the host's time of a layer: between stacks it lies from 0.7 to 4.4 ms (`sim_core/models/stacks`)."""
LINKS = ("nvlink", "nic")
EXPOSED = 0.25
"""Part of the draws in which gradients and parameters are exchanged after the last backward, whatever the plan says, as
nanotron does under ZeRO 1. An assumption."""
GATHER = (5e-6, 1.0)
"""Host seconds per layer and rank to gather parameters, added: median, and standard deviation of ln. A copy from Python takes
some microseconds; nanotron has 35, stacks that gather one flat buffer none."""
DRAWS = 48
TOGETHER = 8192
"""Plans under draws that are simulated at once."""


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
    logs = np.empty((1 + count, len(numbers)))
    stacks = sweep.stacks_of(numbers)
    for stack in np.unique(stacks).tolist():
        logs[:, stacks == stack] = _of_stack(sweep.of_stack(stack), numbers[stacks == stack], drawn(count))
    return logs


def _of_stack(sweep: Sweep, numbers: Ints, draws: Sequence[Draw]) -> Floats:
    """The same of plans of one stack."""
    _, plans = describe_rows(sweep.space, numbers)
    workload, hardware = sweep.workload, boundless(sweep).hardware
    load_kernels(sweep, numbers, 1 + len(draws))
    plans = placed_by_cost(workload, hardware, plans)  # once: a launch file has the layers of each stage
    nominal = simulate(workload, hardware, plans)
    checked = nominal.reason, nominal.memory  # no draw changes them
    at_once = max(TOGETHER // max(len(numbers), 1), 1) if workload.modelled and not workload.from_file else 1
    parts = [draws[begin : begin + at_once] for begin in range(0, len(draws), at_once)]
    moved = [_under(some, workload, hardware, plans, checked) for some in parts]
    logs: Floats = np.log(np.concatenate([_step_s(nominal)[None], *moved]))
    return logs


def _under(draws: Sequence[Draw], workload: Workload, hardware: HardwareTable, plans: Plans, checked: Checked) -> Floats:
    """Seconds of a step under each draw, [draws, n]: all simulated together, each on hardware of its own."""
    variants = [
        functools.reduce(lambda device, link: slower_links(device, link, draw.factors[link]), LINKS, variant)
        for draw in draws
        for variant in hardware.variants
    ]
    table = hardware_table(variants, hardware.measured_on, workload.dtype)
    n, number = len(plans.tp), np.repeat(np.arange(len(draws)), len(plans.tp))
    each = slice_plans(plans, np.tile(np.arange(n), len(draws)))
    hidden = ~np.array([draw.exposed for draw in draws])[number]
    each = each._replace(
        hardware=each.hardware + number * len(hardware.variants),
        device_speed=each.device_speed / np.array([draw.factors["compute"] for draw in draws])[number],
        overlap_grad=each.overlap_grad * hidden,
        overlap_param=each.overlap_param * hidden,
    )
    own, hosted = workload.arrays.framework, workload.modelled is not None and not workload.from_file
    frameworks = [  # the times of a recorded workload hold what the host does
        own._replace(
            jitter=own.jitter * draw.factors["jitter"],
            gather_host_s=own.gather_host_s + (draw.gather_s if hosted else 0.0),
        )
        for draw in draws
    ]
    hosts = Hosts(number, np.array([draw.launches for draw in draws]), tuple(frameworks))
    reason, memory = checked
    results = simulate(workload, table, each, (np.tile(reason, len(draws)), np.tile(memory, len(draws))), hosts)
    return _step_s(results).reshape(len(draws), n)


def _step_s(results: Results) -> Floats:
    return results.named()["step_time_s"].astype(float)
