"""No spec, `--set` or call of `plans` with extreme integers crashes the simulator: one line, or results and reasons."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import PLAN_FIELDS
from sim_core.limits import LARGEST
from tests.conftest import EXAMPLES, GPT7B
from tests.mutation import extreme
from tests.simulating import Simulating

WORKLOADS = (GPT7B, EXAMPLES / "workloads" / "llama405b_tp8_pp16.simai.txt")
MOST = {name: int(field.most) for name, field in PLAN_FIELDS.items() if field.kind == "number"}
NUMBERS = ("tp", "pp", "vpp", "ep", "micro_batch", "layers", "bucket_bytes", "straggler_stage")
SPLITS = ("even", "balanced", "embedding_as_layer", "loss_as_layer", "embedding_and_loss_as_layer")


def value_of(chance: random.Random, name: str) -> int:
    """An extreme integer, in nine of ten cases within the bounds of the field."""
    value = extreme(chance)
    return min(max(value, 1), MOST[name]) if chance.random() < 0.9 else value


def values(chance: random.Random) -> dict[str, Any]:
    """Fields with extreme integers; one of dp and all_gpus, one of ga and global_batch."""
    of_gpus = "dp" if chance.random() < 0.8 else "all_gpus"  # dp fits every tp and pp
    names = [*chance.sample(NUMBERS, chance.randint(1, 4)), of_gpus, chance.choice(("ga", "global_batch"))]
    given: dict[str, Any] = {name: value_of(chance, name) for name in names} | {"layer_split": "balanced"}
    if chance.random() < 0.5:
        given["checkpointing"] = chance.choice(("none", "full", "file", f"block:{extreme(chance)}", f"every:{extreme(chance)}"))
    if chance.random() < 0.5:
        given["layer_split"] = chance.choice((*SPLITS, [extreme(chance) for _ in range(chance.choice((1, 2, 4)))]))
    if chance.random() < 0.3:
        given["schedule"] = "gpipe"
    return given


def simulate_specs(simulating: Simulating, chance: random.Random, number: int) -> tuple[int, set[str]]:
    """Simulate specs and grids of plans; how many were not refused, and the reasons of their plans."""
    simulated, reasons = 0, set[str]()
    for _ in range(number):
        path = chance.choice(WORKLOADS)
        given = values(chance) | {"fidelity": chance.choice(("event", "simai"))}
        if chance.random() < 0.4:
            answer = simulating.plans(path.read_bytes(), given)
        else:
            answer = simulating.spec(*spec_of(chance, path, given))
        simulated += "reasons" in answer
        reasons |= set(answer.get("reasons", ()))
    return simulated, reasons


def spec_of(chance: random.Random, path: Path, given: dict[str, Any]) -> tuple[str, list[str]]:
    """A spec in which the values are fixed or axes, and sometimes a `--set` of one more."""
    workload: dict[str, Any] = {"path": str(path), "micro_batch": chance.choice((1, 1, extreme(chance)))}
    document: dict[str, Any] = {"name": "fuzz", "workload": workload, "hardware": "H100-SXM", "axes": {}, "fixed": {}}
    for name, value in given.items():
        if name in MOST and chance.random() < 0.5:
            several = sorted({value, value_of(chance, name), 1})
            document["axes"][name] = [f"{one} B" for one in several] if name == "bucket_bytes" else several
        else:
            document["fixed"][name] = f"{value} B" if name == "bucket_bytes" else value
    left = chance.choice([name for name in NUMBERS if name not in given])
    unit = " B" if left == "bucket_bytes" else ""
    sets = [f"fixed.{left}={value_of(chance, left)}{unit}"] if chance.random() < 0.3 else []
    return yaml.safe_dump(document), sets


def test_extreme_specs_and_plans_simulate(simulating: Simulating) -> None:
    simulated, reasons = simulate_specs(simulating, random.Random(13), 150)
    # specs that are all refused, or whose plans all end in one way, would show nothing
    assert 45 < simulated < 140
    assert {"", "step_too_large", "more_chunks_than_layers", "tp_pp_exceeds_gpus"} <= reasons


@pytest.mark.long
def test_many_extreme_specs_and_plans_simulate(simulating: Simulating) -> None:
    """New specs each time."""
    simulate_specs(simulating, random.Random(), 10_000)


@pytest.mark.parametrize("name", [name for name in MOST if name not in ("experts", "sequence")])
def test_a_number_beyond_its_bound_is_named_with_it(simulating: Simulating, name: str) -> None:
    """In a spec, in a `--set` and in a call."""
    value, bound = MOST[name] + 1, f"{MOST[name]:,}"
    document = {"name": "s", "workload": str(GPT7B), "hardware": "H100-SXM", "fixed": {name: value}}
    told = simulating.spec(yaml.safe_dump(document), [])["told"]
    assert f"fixed.{name}: found '{value}', expected a whole number from" in told
    assert told.endswith(f" to {bound}")
    del document["fixed"]
    assert simulating.spec(yaml.safe_dump(document), [f"fixed.{name}={value}"])["told"].endswith(f" to {bound}")
    if name != "all_gpus":  # a product; too many have a reason code
        told = simulating.plans(GPT7B.read_bytes(), {name: value})["told"]
        assert told == f"plans.{name}: found {value} in row 0, expected {told.split('expected ')[1].split()[0]} to {bound}"


@pytest.mark.parametrize("name", ["sequence", "micro_batch", "all_gpus", "ffn", "heads"])
def test_a_fact_of_the_workload_beyond_its_bound_is_named_with_it(simulating: Simulating, name: str) -> None:
    value = LARGEST[name] + 1
    document = {"name": "s", "workload": {"path": str(GPT7B), name: value}, "hardware": "H100-SXM"}
    told = simulating.spec(yaml.safe_dump(document), [])["told"]
    assert told.endswith(f"workload.{name}: found '{value}', expected a whole number from 1 to {LARGEST[name]:,}")
