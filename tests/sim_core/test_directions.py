"""Nothing that helps may hurt: overlap, better hardware and no recompute never make a step slower, unless messages compete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    SCHEDULES,
    Floats,
    HardwareTable,
    Plans,
    Workload,
    hardware_table,
    read_hardware,
    read_stack,
    simulate,
    slice_plans,
)
from sim_core.terms import AS_STACK, GRADIENTS_SHARDED
from tests.model_plans import MODELS, STACKS, drawn, workload_of
from tests.oracle.fluid_plans import Given, steps

STEP = METRICS.index("step_time_s")
ROUNDING = 1e-9
CLOSE = 0.03
"""How near a step is to that of the fluid simulation (tests/oracle/test_fluid.py)."""
DENSER = 0.005
"""What a faster device may cost where NICs are shared: messages of its blocks come closer together, and beside more others;
and under `overlap_ep`, whose pairs are booked as a forward and a backward: gradients travel beside the latter alone."""
ROUGH = 0.01
"""The rules of shared NICs are this near a fluid simulation in most plans: what is better may cross from one to the next."""
TEN = (*MODELS, "llama2-13b", "qwen3-235b-a22b")
FLUID = ("gpipe", "1f1b", "looped-bfs")
"""Schedules that the fluid simulation runs."""
OVERLAPS = ("overlap_tp", "overlap_ep", "overlap_pp", "overlap_grad", "overlap_param")
BETTER: dict[str, dict[str, float]] = {
    "nic_bandwidth": {"nic_bandwidth": 2},
    "nvlink_bandwidth": {"nvlink_bandwidth": 2},
    "memory_bandwidth": {"memory_bandwidth": 2},
    "latency": {"nic_latency": 0.5, "nvlink_latency": 0.5},
}


def machines(**factors: float) -> HardwareTable:
    """Two devices on NICs of 25 to 400 Gb/s, which messages share and which they do not; numbers times `factors`."""
    found = []
    for name in ("H100-SXM", "A100-80G-SXM"):
        for gigabits in (25, 100, 400):
            device = read_hardware(name).with_values({"memory": "100 TB", "nic_bandwidth": f"{gigabits} Gb/s"})
            sections = [getattr(device, section) for section in ("device", "node", "fabric")]
            numbers = {key: getattr(each, key).value for key in factors for each in sections if hasattr(each, key)}
            units = {key: f"{numbers[key] * factor!r} {'s' if 'latency' in key else 'B/s'}" for key, factor in factors.items()}
            found += [device.with_values({**units, "shared_nics": on}) for on in (True, False)]
    return hardware_table(found, None)


@dataclass(frozen=True)
class Pair:
    """One plan in two ways: the second should not be slower."""

    what: str
    workload: Workload
    hardware: HardwareTable
    plans: tuple[Plans, Plans]
    seconds: tuple[float, float]

    @property
    def slower(self) -> float:
        return self.seconds[1] / self.seconds[0] - 1

    @property
    def schedule(self) -> str:
        return SCHEDULES[int(self.plans[0].schedule[0])]

    @property
    def shared(self) -> bool:
        return bool(self.hardware.columns.shared_nics[self.plans[0].hardware[0]])

    @property
    def closer(self) -> bool:
        """Whether messages of a faster device have more beside them, or less that gradients travel beside."""
        return self.shared or bool(self.plans[0].overlap_ep[0])

    def fluid_s(self) -> float | None:
        """The second step where a fluid simulation shares the NICs; None where that does not run the plan."""
        arrays, sharding = self.workload.arrays, int(self.plans[0].sharding[0])
        by_layers = (arrays.framework.sharding if sharding == AS_STACK else sharding) >= GRADIENTS_SHARDED
        if self.schedule not in FLUID or by_layers:
            return None
        return steps(Given(self.workload, self.hardware, self.plans[1])).fluid

    def __str__(self) -> str:
        plan = self.plans[0]
        named = {name: getattr(plan, name)[0].item() for name in plan._fields if getattr(plan, name).ndim == 1}
        return f"{self.what}: {self.slower:+.2%} {self.schedule} {named}"


def step_s(workload: Workload, hardware: HardwareTable, plans: Plans) -> Floats:
    """Seconds of a step, [n]; NaN of plans that cannot run."""
    found = simulate(workload, hardware, plans)
    return np.where(found.reason == 0, found.metrics[STEP], np.nan)


def slower(seed: int, model: str, stack: str, rows: int) -> tuple[int, list[Pair]]:
    """Number of random plans of a model, and those that something makes slower which should help."""
    rng, workload, base = np.random.default_rng(seed), workload_of(model, stack), machines()
    plans = drawn(rng, workload, base, rows)
    # steps without a barrier follow each other: when one is through, and gathers its parameters, is not known before it ran
    plans = plans._replace(post_validation=np.zeros_like(plans.post_validation))
    count, found = len(plans.pp), []

    def compare(what: str, worse: Plans, better: Plans, hardware: HardwareTable = base) -> None:
        one, two = step_s(workload, base, worse), step_s(workload, hardware, better)
        with np.errstate(invalid="ignore"):
            rows = np.flatnonzero(two > one * (1 + ROUNDING))
        for row in rows:
            both = slice_plans(worse, np.array([row])), slice_plans(better, np.array([row]))
            found.append(Pair(f"{what} {model} {stack}", workload, base, both, (float(one[row]), float(two[row]))))

    nothing, all_of_them = np.zeros(count, np.int64), np.ones(count, np.int64)
    for name in OVERLAPS:
        if name == "overlap_ep" and read_stack(stack).host_overlap_ep > 1:
            continue  # it takes the host longer, which may be more than it hides
        switched: list[dict[str, Any]] = [{name: nothing}, {name: all_of_them}]
        off, on = (plans._replace(**each) for each in switched)
        compare(name, off, on)
    compare("faster device", plans, plans._replace(device_speed=2 * plans.device_speed))
    for what, factors in BETTER.items():
        compare(what, plans, plans, machines(**factors))
    compare("no recompute", plans, plans._replace(checkpointing=nothing, checkpoint_layers=nothing))
    return count, found


def excessive(pairs: list[Pair]) -> Iterator[str]:
    """Those that are slower than messages that compete explain."""
    for pair in pairs:
        if pair.shared and pair.what.startswith("overlap"):
            fluid_s = pair.fluid_s() or pair.seconds[0]
            if pair.seconds[1] > fluid_s * (1 + CLOSE):
                yield f"{pair} (fluid {fluid_s})"
        elif pair.slower > (ROUGH if pair.shared else DENSER if pair.closer and pair.what.startswith("faster") else 0.0):
            yield str(pair)


@pytest.mark.parametrize("model", ["gpt2-xl", "gpt3-175b", "qwen3-30b-a3b"])
def test_nothing_that_helps_hurts(model: str) -> None:
    count, found = slower(0, model, "megatron-core", 600)
    assert count > 100
    assert not list(excessive(found))


@pytest.mark.long
@pytest.mark.parametrize("model", TEN)
def test_nothing_that_helps_hurts_whatever_the_stack(model: str) -> None:
    """5,000 plans and more, of ten models and all stacks."""
    told, counted = [], 0
    for seed, stack in enumerate(STACKS):
        count, found = slower(seed, model, stack, 320)
        counted += count
        told += list(excessive(found))
    assert counted > 300
    assert not told


def test_overlap_of_experts_that_stay_costs_nothing() -> None:
    """Megatron-Core overlaps messages of experts where there are some (transformer_config.py asks for ep above 1)."""
    workload, base = workload_of("mixtral-8x7b", "nemo"), machines()
    alone = drawn(np.random.default_rng(0), workload, base, 64)
    alone = alone._replace(ep=np.ones_like(alone.ep), overlap_shared_experts=np.zeros_like(alone.ep))
    off, on = (alone._replace(overlap_ep=np.full_like(alone.ep, switch)) for switch in (0, 1))
    before, after = step_s(workload, base, off), step_s(workload, base, on)
    assert np.isfinite(before).any()
    assert after == pytest.approx(before, nan_ok=True)
