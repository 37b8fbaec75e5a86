"""No product of the largest numbers that are let in leaves 64 bits; plans at these numbers get a reason or a result."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from sim_core import (
    REASONS,
    HardwareTable,
    Ints,
    Plans,
    SpecError,
    Workload,
    batch as engine,
    legality,
    plans,
    simulate,
    timeline,
    trace,
)
from sim_core.limits import LARGEST
from sim_core.planning.fields import FIELDS
from sim_core.planning.split import Split, split_plans
from sim_core.workloads.workload import Arrays
from tests.conftest import make_plans

MOST = {**{name: int(field.bounds[1]) for name, field in FIELDS.items()}, **LARGEST}
PRODUCTS = (
    ("pp", "vpp", "ga"),
    ("pp", "vpp", "layers"),
    ("pp", "vpp", "checkpoint_layers"),
    ("tp", "pp", "ep"),
    ("tp", "pp", "dp"),
    ("all_gpus", "micro_batch"),
    ("vpp", "ga"),
)


@pytest.mark.parametrize("names", PRODUCTS, ids="*".join)
def test_twice_a_product_stays_below_62_bits(names: tuple[str, ...]) -> None:
    assert 2 * math.prod(MOST[name] for name in names) < 2**62


@pytest.mark.parametrize("show", [trace, timeline])
def test_a_step_of_too_many_blocks_is_simulated_and_not_drawn(
    gpt7b: Workload, h100: HardwareTable, show: Callable[[Workload, HardwareTable, Plans], object]
) -> None:
    """2^23 micro-batches are 2^24 blocks, whose events took 1.75 GiB."""
    many = make_plans(gpt7b, tp=4, pp=1, vpp=1, ga=2**23, all_gpus=512)
    with pytest.raises(SpecError, match="timeline: found a step of 16,777,217 blocks, expected at most 4,194,304"):
        show(gpt7b, h100, many)


@pytest.mark.parametrize("fidelity", [0, 1])
@pytest.mark.parametrize(
    "name", ["tp", "pp", "vpp", "ep", "micro_batch", "ga", "all_gpus", "bucket_bytes", "checkpoint_layers"]
)
def test_a_plan_at_the_bound_has_a_reason_or_a_result(gpt7b: Workload, h100: HardwareTable, name: str, fidelity: int) -> None:
    grid = make_plans(gpt7b, **{"tp": 1, name: MOST[name], "fidelity": fidelity})
    found = simulate(gpt7b, h100, grid)
    assert found.reason[0] or (np.isfinite(found.metrics).all() and (found.metrics >= 0).all())
    assert not REASONS[int(found.reason[0])].endswith("raised")


@pytest.mark.parametrize(("schedule", "parts"), [("1f1b", 2), ("zb-h1", 3)])
def test_a_step_has_at_most_2_to_the_24_blocks(gpt7b: Workload, h100: HardwareTable, schedule: str, parts: int) -> None:
    """Forward and backward of each micro-batch on each stage; the weight gradient, where it runs apart."""
    most = 2**24 // (2 * parts)
    grid = plans(gpt7b, pp=2, layer_split="balanced", schedule=schedule, ga=[most, most + 1], tp=1, dp=1)
    assert [REASONS[code] for code in legality(gpt7b, h100, grid)[0]] == ["", "step_too_large"]


def stages(workload: Workload) -> Plans:
    return make_plans(workload, tp=1, pp=[1, 2, 3, 4, 6, 9, 12, 18, 36] * 2, ga=[4] * 9 + [8] * 9, all_gpus=36 * 16)


def test_results_do_not_depend_on_how_plans_are_batched(
    gpt7b: Workload, h100: HardwareTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans of many virtual stages come in smaller batches, so that their tables stay small."""
    whole = simulate(gpt7b, h100, stages(gpt7b))
    sizes: list[int] = []

    def counted(arrays: Arrays, plans: Plans, rows: Ints) -> Split:
        sizes.append(len(rows))
        return split_plans(arrays, plans, rows)

    monkeypatch.setattr(engine, "CELLS", 40 * (2 * len(gpt7b.arrays.unit_layers) + 3))
    monkeypatch.setattr(engine, "split_plans", counted)
    parts = simulate(gpt7b, h100, stages(gpt7b))
    assert sum(sizes) == np.count_nonzero(whole.reason == 0)
    assert len(sizes) > 3
    assert max(sizes) > 1
    assert parts.metrics.tobytes() == whole.metrics.tobytes()
