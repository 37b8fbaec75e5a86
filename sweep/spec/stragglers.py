"""The `stragglers:` section of a spec: how much longer a step takes because some GPUs are slower than others.

A step ends with its slowest rank. With GPUs that are slow independently of each other, the slowest of n has the distribution
F^n. The plan is simulated again with one stage as slow as the slowest of all its GPUs is in the median and in 95 % of all
cases, once the last stage and once another, and all others as the slowest of the GPUs that wait for each other in every layer
(tp x cp, or ep) is in the median. Between these points the step is taken as linear, and the stages as independent.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from sim_core import METRICS, Bools, Floats, HardwareTable, Ints, Plans, Workload, simulate, slice_plans
from sweep.spec.workloads import Section

TAIL = {"step_time_p50_s": 0.5, "step_time_p95_s": 0.95}
"""Columns of a result that `stragglers` fills -> part of the steps that take no longer."""
HALVINGS = 60
WIDE = 40.0
"""Standard deviations within which the slowest GPU is looked for: of 10^300 GPUs none is beyond."""

ROUNDING = 1e-9
LEAST = 1e-2
"""No GPU is taken to be faster than this by its noise."""

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


class Stragglers(Section):
    """What part of the GPUs is slow, how many times as long their compute takes, and the standard deviation of every GPU's,
    as parts of 1. A GPU is as slow for a whole step."""

    slow_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    slowness: Annotated[float, Field(ge=1, le=100)] = 1.0
    sigma: Annotated[float, Field(ge=0, le=0.5)] = 0.0

    @model_validator(mode="after")
    def _say_something(self) -> "Stragglers":
        if self.slow_share > 0 and self.slowness == 1:
            raise ValueError("slowness: missing (how many times as long the compute of a slow GPU takes, such as 1.1)")
        if self.slowness > 1 and self.slow_share == 0:
            raise ValueError("slow_share: missing (what part of the GPUs is slow, such as 0.005)")
        if self.sigma == 0 and self.slow_share == 0:
            raise ValueError("slow_share or sigma: missing (what part of the GPUs is slow, or how much all of them vary)")
        return self

    def note(self) -> str:
        """What is counted, in one line."""
        parts = [f"{self.slow_share:.3g} of the GPUs take {self.slowness:g} times as long"] if self.slow_share > 0 else []
        parts += [f"all vary by {self.sigma:.3g} (standard deviation)"] if self.sigma > 0 else []
        return f"stragglers: {', '.join(parts)}, independently of each other"


def slowest(stragglers: Stragglers, gpus: npt.NDArray[Any], part: float) -> Floats:
    """How many times as long the compute of the slowest of `gpus` takes, at most, in `part` of all cases, [n]."""
    if stragglers.sigma == 0:
        return np.where(-np.expm1(math.log(part) / gpus) >= stragglers.slow_share, 1.0, stragglers.slowness)
    ranks, of_plan = np.unique(gpus.astype(np.float64), return_inverse=True)

    def enough(times: Floats) -> Bools:
        return _none_beyond(stragglers, ranks, times) >= math.log(part)

    most = np.full(len(ranks), stragglers.slowness * (1 + WIDE * stragglers.sigma))
    return np.asarray(_least(enough, np.zeros(len(ranks)), most)[of_plan], np.float64)


def _least(enough: Callable[[Floats], Bools], low: Floats, high: Floats) -> Floats:
    """The least numbers from `low` to `high` that are enough, if the highest are, [n]."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        is_enough = enough(middle)
        low, high = np.where(is_enough, low, middle), np.where(is_enough, middle, high)
    return high


def _none_beyond(stragglers: Stragglers, gpus: Floats, times: Floats) -> Floats:
    """The logarithm of the probability that no compute of `gpus` takes more than `times` as long, [n]."""
    plain, slow = times - 1, times / stragglers.slowness - 1
    if stragglers.sigma > 0:
        plain, slow = (_erfc(more / (stragglers.sigma * math.sqrt(2))) / 2 for more in (plain, slow))
    else:
        plain, slow = ((more < -ROUNDING).astype(np.float64) for more in (plain, slow))
    beyond = (1 - stragglers.slow_share) * plain + stragglers.slow_share * slow
    with np.errstate(divide="ignore"):
        of_one = np.log1p(-np.minimum(beyond, 1.0))
    certain = np.zeros_like(of_one)  # none of no GPUs, also where of_one is -inf
    return np.multiply(gpus, of_one, out=certain, where=gpus > 0)


class _Stage(NamedTuple):
    """One of a plan's stages, or any of several: its GPUs, and seconds of a step by how much slower its slowest one is."""

    gpus: Floats  # [n]
    slower: Floats  # [3, n] rising from 1
    seconds: Floats  # [3, n]

    def slower_at(self, seconds: Floats) -> Floats:
        """How much slower it may be for steps of at most `seconds`, [n]; linear between the points, and after them."""
        (x0, x1, x2), (t0, t1, t2) = self.slower, self.seconds
        slower = np.where(seconds >= t0, x0, 0.0)
        for a, b, ta, tb in ((x0, x1, t0, t1), (x1, x2, t1, t2)):
            inside = a + (b - a) * np.clip((seconds - ta) / np.maximum(tb - ta, 1e-300), 0.0, 1.0)
            slower = np.where(seconds >= ta, np.where(tb > ta, inside, b), slower)
        slope = np.maximum(t2 - t0, 1e-300) / np.maximum(x2 - x0, 1e-300)
        return np.asarray(np.where(seconds > t2, x2 + (seconds - t2) / slope, slower), np.float64)


def with_stragglers(
    stragglers: Stragglers, workload: Workload, hardware: HardwareTable, plans: Plans, step_s: Floats
) -> dict[str, Floats]:
    """TAIL of some plans, [n]; `step_s`: of a step without stragglers, NaN where there is none."""
    tail = {name: np.full(len(step_s), np.nan) for name in TAIL}
    rows = ~np.isnan(step_s)
    if not rows.any():
        return tail
    some, plain_s = slice_plans(plans, rows), step_s[rows]
    gpus, pp = some.all_gpus.astype(np.float64), some.pp
    usual = np.maximum(slowest(stragglers, np.maximum(some.tp * some.cp, some.ep), 0.5), LEAST)

    def slowed_s(stage: Ints, factor: Floats) -> Floats:
        if (usual == 1).all() and (factor == 1).all():
            return plain_s
        slowed = some._replace(device_speed=some.device_speed / usual, straggler_stage=stage, straggler_factor=factor)
        seconds: Floats = simulate(workload, hardware, slowed).metrics[METRICS.index("step_time_s")]
        return seconds

    of_all = [np.maximum(slowest(stragglers, gpus, part) / usual, 1.0) for part in TAIL.values()]
    slower = np.stack([np.ones(len(gpus)), *of_all])
    usual_s = slowed_s(np.zeros_like(pp), slower[0])
    stages = []
    # the last stage, which often takes longest, and one of the others for all of them
    for stage, of_stage in ((pp - 1, gpus / pp), ((pp - 1) // 2, gpus - gpus / pp))[: 1 if (pp == 1).all() else 2]:
        half_s = slowed_s(stage, slower[1])
        most_s = half_s if (slower[2] == slower[1]).all() else slowed_s(stage, slower[2])
        stages.append(_Stage(of_stage, slower, np.maximum.accumulate(np.stack([usual_s, half_s, most_s]))))
    for name, part in TAIL.items():

        def enough(seconds: Floats, part: float = part) -> Bools:
            within = sum(_none_beyond(stragglers, stage.gpus, usual * stage.slower_at(seconds)) for stage in stages)
            return np.asarray(within >= math.log(part))

        most_s = usual_s * stragglers.slowness * (1 + WIDE * stragglers.sigma)
        tail[name][rows] = np.maximum(_least(enough, usual_s * (1 - ROUNDING), most_s), usual_s)
    return tail
