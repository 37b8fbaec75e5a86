"""Plans of a result whose stack nobody named, simulated with every stack that may run them."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from sim_core import Floats, Ints, SimError, Values
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.moved import boundless, with_stack
from sweep.evaluation.preparation import Sweep
from sweep.evaluation.warming import load_kernels
from sweep.reopening import reopened
from sweep.results.folder import Location
from sweep.spec.values import STACK_AXIS
from sweep.uncertainty.belief import UNNAMED, World, worlds_of

MOST = 1000
"""Plans that are simulated in all worlds; of more what pages usually differ by is taken."""


class Worlds(NamedTuple):
    """Some plans in each of the `worlds`. By stack: ln of the seconds of a step, and of the memory, over those of the result,
    [n]; NaN where the stack cannot run a plan. Without any they are not simulated."""

    worlds: tuple[World, ...]
    step: Mapping[str, Floats]
    memory: Mapping[str, Floats]

    def moved(self, count: int) -> Floats:
        """ln of the seconds of a step of so many plans in each world over those of the result, [worlds, n]; NaN: not run."""
        return np.stack([self.step.get(world.stack, np.zeros(count)) for world in self.worlds])


def simulated_in(worlds: Sequence[World], sweep: Sweep, plans: Ints) -> Worlds:
    """Plans of a sweep, by number, in each world."""
    if not (stacks := [world.stack for world in worlds if world.stack]):
        return Worlds(tuple(worlds), {}, {})
    load_kernels(sweep, plans, len(worlds))
    own, *others = (_measures(each, plans) for each in (sweep, *(with_stack(sweep, stack) for stack in stacks)))
    step, memory = ({stack: other[k] - own[k] for stack, other in zip(stacks, others, strict=True)} for k in range(2))
    return Worlds(tuple(worlds), step, memory)


def worlds_beside(directory: Location, provenance: Values, plans: Ints) -> Worlds | None:
    """Plans of a result of a model that names no stack, None of others; not simulated beyond MOST, or without its files."""
    spec = provenance.get("spec", {})
    workload, keys = spec.get("workload") or {}, [*(spec.get("axes") or ()), *(spec.get("fixed") or ())]
    named = workload.get("stack") or any(STACK_AXIS in key.split(",") for key in keys)
    if named or workload.get("path") or not workload.get("model"):
        return None
    worlds = worlds_of(UNNAMED, next((each["name"] for each in provenance.get("hardware", ())), ""))
    if 0 < len(plans) <= MOST:
        with suppress(SimError):
            return simulated_in(worlds, reopened(directory).prepared.sweep, plans)
    return Worlds(worlds, {}, {})


def _measures(sweep: Sweep, plans: Ints) -> tuple[Floats, Floats]:
    """ln of seconds of a step and of bytes, whatever memory there is, [n]; NaN where a plan cannot run."""
    rows = evaluate(boundless(sweep), plans)
    step, memory = (rows[name].to_numpy(zero_copy_only=False).astype(float) for name in ("step_time_s", "peak_memory_bytes"))
    return np.log(step), np.log(memory)
