"""Random plans of the whole product, one thing at a time changed that should help: which become worse, and by how much.

`python -m tests.directions [PLANS]` prints, for each thing, how many plans become worse and the worst of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sim_core import (
    SCHEDULES,
    Hardware,
    HardwareTable,
    Plans,
    Workload,
    checkpointing_codes,
    hardware_table,
    legality,
    model_names,
    preset_names,
    read_hardware,
    simulate,
    slice_plans,
    stack_names,
)
from sim_core.costing.memory import model_state_bytes
from sim_core.models.optimizers import OPTIMIZERS
from sim_core.terms import PARAMETERS_SHARDED, SHARDINGS
from tests.conftest import make_plans
from tests.model_plans import IN_A_V, RECOMPUTE, workload_of

SEED: Final = 43
STEP, PEAK = "step_time_s", "peak_memory_bytes"
STATE = "state"
"""Of the fullest stage: `state_bytes` is that of the stage with the highest peak, which may be another."""
DEVICES: Final = 3
"""Devices for a model on a stack."""
ROUNDING: Final = 1e-9
ROWS: Final = 40
"""Plans drawn for a model on a stack, of which about a third can run."""
GIGABITS: Final = (10, 25, 50, 100, 200, 400)
BETTER: Final[Mapping[str, Mapping[str, float]]] = {
    "nic_bandwidth": {"nic_bandwidth": 2},
    "nvlink_bandwidth": {"nvlink_bandwidth": 2},
    "memory_bandwidth": {"memory_bandwidth": 2},
    "latency": {"nic_latency": 0.5, "nvlink_latency": 0.5},
}
"""Numbers of a device that are better."""
SWITCHES: Final = ("overlap_tp", "overlap_ep", "overlap_pp", "overlap_grad", "overlap_param")


@dataclass(frozen=True)
class Pair:
    """One plan in two ways: the second should not be worse."""

    what: str
    model: str
    stack: str
    device: Hardware
    plans: tuple[Plans, Plans]
    found: tuple[float, float]

    @property
    def worse(self) -> float:
        return self.found[1] / self.found[0] - 1

    @property
    def shared(self) -> bool:
        return self.device.value("shared_nics") == 1

    @property
    def workload(self) -> Workload:
        return workload_of(self.model, self.stack)

    def __str__(self) -> str:
        plan, nic = self.plans[0], self.device.value("nic_bandwidth") * 8e-9
        named = {name: getattr(plan, name)[0].item() for name in plan._fields if getattr(plan, name).ndim == 1}
        named |= {"schedule": SCHEDULES[named["schedule"]], "sharding": SHARDINGS[named["sharding"]]}
        plain = {name: column[0].item() for name, column in make_plans()._asdict().items() if column.ndim == 1}
        told = " ".join(f"{name}={value}" for name, value in named.items() if value != plain[name] or name in ("pp", "ga"))
        shared = "" if self.shared else ", own NICs"
        on = f"{self.model}, {self.stack}, {self.device.name} {nic:.0f} Gb/s{shared}"
        return f"{self.what} {self.worse:+.3%} of {self.found[0]:.6g}: {on}: {told}"


def devices(rng: np.random.Generator) -> tuple[Hardware, ...]:
    """Some devices without a limit of memory, on their own NICs and on others, which messages share and which they do not."""
    found = []
    for name in rng.choice(preset_names(), DEVICES, replace=False):
        own = read_hardware(str(name)).with_values({"memory": "100 TB"})
        speeds = zip(rng.choice(GIGABITS, 2, replace=False), (True, False), strict=True)
        found += [own, *(own.with_values({"nic_bandwidth": f"{speed} Gb/s", "shared_nics": on}) for speed, on in speeds)]
    return tuple(found)


def better(device: Hardware, **factors: float) -> Hardware:
    """A device with some numbers times `factors`."""
    units = {key: "s" if "latency" in key else "B/s" for key in factors}
    return device.with_values({key: f"{device.value(key) * factor!r} {units[key]}" for key, factor in factors.items()})


def drawn(rng: np.random.Generator, workload: Workload, hardware: HardwareTable, rows: int) -> Plans:
    """Plans that can run, of `rows` that are drawn: every schedule, sharding, switch, dispatcher, precision of gradients."""

    def pick(*values: float) -> Any:
        return rng.choice(values, rows)

    schedule = pick(*range(len(SCHEDULES)), *[SCHEDULES.index("1f1b")] * 6)
    named = np.array(SCHEDULES)[schedule]
    pp = np.where(rng.random(rows) < 0.2, 1, pick(2, 3, 4, 8, 16))
    pp = np.where(np.isin(named, ("dualpipe", *IN_A_V)) & (pp == 1), 2, pp)
    pp = np.where((named == "dualpipe") & (pp % 2 == 1), 4, pp)
    vpp = np.where(np.isin(named, ("1f1b", "looped-bfs", "interleaved-zb")) & (pp > 1), pick(1, 1, 2, 3, 5), 1)
    vpp = np.where(np.isin(named, IN_A_V), 2, vpp)
    ga = np.where((vpp == 1) & (rng.random(rows) < 0.3), pick(1, 2, 5, 7, 12, 32), pp * pick(1, 2, 3, 4))
    ga = np.where(np.isin(named, ("dualpipe", "dualpipev")), pp * pick(2, 3, 4), ga)
    tp, cp, dp = pick(1, 1, 2, 4, 8), pick(1, 1, 1, 2, 4), pick(1, 2, 3, 8, 16, 32, 64)
    how, span = checkpointing_codes(rng.choice(RECOMPUTE, rows).tolist())
    sharding = pick(0, 0, 1, 2, 3, 4)
    meets, experts = named == "1f1b-deepspeed", workload.has_experts
    background = (vpp > 1) | (schedule >= SCHEDULES.index("zb-h1")) | (rng.random(rows) < 0.5)
    listed = {
        "tp": tp,
        "pp": pp,
        "vpp": vpp,
        "cp": cp,
        "ep": pick(1, 2, 8, 16, 32) if experts else pick(1),
        "all_gpus": tp * cp * pp * dp,
        "micro_batch": pick(1, 1, 2, 4),
        "ga": ga,
        "schedule": schedule,
        "layer_split": pick(1, 1, 0, 2, 3, 4),
        "checkpointing": how,
        "checkpoint_layers": span,
        "overlap_tp": pick(0, 1),
        "overlap_ep": pick(0, 1) if experts else pick(0),
        "overlap_pp": background & ~meets,
        "overlap_grad": (rng.random(rows) < 0.5) & ~meets,
        "overlap_param": pick(0, 1),
        "post_validation": pick(0, 0, 0, 1),
        "bucket_bytes": pick(0, 0, 20_000_000, 200_000_000),
        "hardware": rng.integers(len(hardware), size=rows),
        "straggler_stage": pick(0, 1, 3),
        "straggler_factor": pick(1, 1, 1.1, 1.75),
        "device_speed": pick(1, 1, 1.5, 3),
        "sharding": sharding,
        "reshard_after_forward": np.where(sharding == PARAMETERS_SHARDED, pick(0, 1, 1), 1),
        "prefetch_layers": np.where(sharding == PARAMETERS_SHARDED, pick(0, 1, 1, 2), 1),
        "optimizer": pick(*[0] * 12, *range(1, len(OPTIMIZERS))),
        "muon_aligned": pick(0),
        "gradient_precision": pick(0, 0, 1, 2),
        "dp_shard": pick(0, 0, 0, 0, 2, 8),
        "precision": pick(0, 0, 0, 2, 4, 5),
        "dispatcher": pick(0, 0, 1, 2) if experts else pick(0),
        "overlap_shared_experts": pick(0, 0, 1) if experts else pick(0),
    }
    plans = make_plans(workload, **{name: np.asarray(values).tolist() for name, values in listed.items()})
    return slice_plans(plans, np.flatnonzero(legality(workload, hardware, plans)[0] == 0))


def changes(plans: Plans, devices: int) -> Iterator[tuple[str, str, Plans, Plans]]:
    """What should help: its name, what is to be less, the plans without it and with it. Rows of hardware from `devices` on
    are those of BETTER, one after another."""

    def switched(what: str, measure: str, name: str, *values: Any) -> tuple[str, str, Plans, Plans]:
        one, two = (plans._replace(**{name: np.full_like(getattr(plans, name), value)}) for value in values)
        return what, measure, one, two

    for name in SWITCHES:
        yield switched(name, STEP, name, 0, 1)
    yield switched("bf16 gradients", STEP, "gradient_precision", 1, 2)
    yield "no straggler", STEP, plans._replace(straggler_factor=1.5 * plans.straggler_factor), plans
    yield "faster device", STEP, plans, plans._replace(device_speed=2 * plans.device_speed)
    nothing = np.zeros_like(plans.pp)
    yield "no recompute", STEP, plans, plans._replace(checkpointing=nothing, checkpoint_layers=nothing)
    for number, what in enumerate(BETTER, 1):
        yield what, STEP, plans, plans._replace(hardware=plans.hardware + number * devices)
    yield "fewer micro-batches", PEAK, plans._replace(ga=2 * plans.ga), plans
    for kind in range(2, len(SHARDINGS)):
        yield switched(f"sharding {SHARDINGS[kind]}", STATE, "sharding", kind - 1, kind)


def worse_in(model: str, stack: str, rng: np.random.Generator, rows: int = ROWS) -> tuple[int, list[Pair]]:
    """The number of random plans of a model on a stack, and what makes some of them worse that should help."""
    workload, variants = workload_of(model, stack), devices(rng)
    every = [variants, *(tuple(better(device, **factors) for device in variants) for factors in BETTER.values())]
    hardware = hardware_table([device for some in every for device in some], None)
    plans = drawn(rng, workload, hardware_table(variants, None), rows)
    pairs: list[Pair] = []
    count = len(plans.pp)
    if not count:
        return 0, pairs
    things = list(changes(plans, len(variants)))
    all_plans = [one for _, _, *both in things for one in both]
    every_plan = Plans(*(np.concatenate(column) for column in zip(*all_plans, strict=True)))
    results = simulate(workload, hardware, every_plan)
    named = results.named() | {STATE: model_state_bytes(workload, every_plan)}
    for number, (what, measure, *both) in enumerate(things):
        of_both = np.where(results.reason == 0, named[measure], np.nan).reshape(2 * len(things), count)[2 * number :][:2]
        with np.errstate(invalid="ignore"):
            some = np.flatnonzero(of_both[1] > of_both[0] * (1 + ROUNDING))
        for row in some:
            one, two = (slice_plans(each, np.array([row])) for each in both)
            pairs.append(Pair(what, model, stack, variants[plans.hardware[row]], (one, two), tuple(of_both[:, row].tolist())))
    return count, pairs


def worse_of(count: int, seed: int = SEED) -> tuple[int, list[Pair]]:
    """The same of at least `count` plans of all models on all stacks."""
    rng = np.random.default_rng(seed)
    plans, pairs = 0, []
    while plans < count:
        more, some = worse_in(str(rng.choice(model_names())), str(rng.choice(stack_names())), rng)
        plans += more
        pairs += some
    return plans, pairs


def summary(plans: int, pairs: list[Pair], shown: int = 5) -> str:
    """How many become worse by more than 0.1 %, by what, and the worst."""
    lines = [f"{plans} plans"]
    for what in dict.fromkeys(pair.what for pair in sorted(pairs, key=lambda pair: -pair.worse)):
        mine = sorted((pair for pair in pairs if pair.what == what), key=lambda pair: -pair.worse)
        beyond = sum(pair.worse > 1e-3 for pair in mine)
        lines.append(f"{what}: {len(mine)} worse, {beyond} by more than 0.1 %, worst {mine[0].worse:.3%}")
        lines += [f"    {pair}" for pair in mine[:shown]]
    return "\n".join(lines)


if __name__ == "__main__":
    print(summary(*worse_of(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)))
