"""The parts of a step: they add up to it, in the row and in the timeline, also where the host launches too slowly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from sim_core import (
    METRICS,
    PARTS,
    SCHEDULES,
    HardwareTable,
    Workload,
    bounds,
    coarse_bounds,
    plans as plans_of,
    read_model,
    read_stack,
    simulate,
    timeline,
    workload_from_model,
)
from tests.model_plans import MODELS, STACKS, drawn, machines, workload_of

RELATIVE = 1e-9
LAUNCH = {"forward": 0.004, "backward": 0.007}


def launching(forward: float, backward: float) -> Workload:
    """GPT-2 XL where the host takes so long to launch a layer's kernels."""
    stack = read_stack("megatron-core").model_copy(update={"host_forward": forward, "host_backward": backward})
    return workload_from_model(read_model("gpt2-xl"), stack, sequence_parallel=True)


def row_of(workload: Workload, hardware: HardwareTable, **given: int | str) -> dict[str, float]:
    """The metrics of one plan."""
    found = simulate(workload, hardware, plans_of(workload, tp=1, pp=1, dp=1, ga=4, **given))
    assert found.reason.tolist() == [0]
    return dict(zip(METRICS, found.metrics[:, 0].tolist(), strict=True))


@pytest.mark.parametrize(("pp", "ga"), [(2, 8), (4, 8)])
def test_a_pair_of_blocks_is_launched_by_one_host(h100: HardwareTable, pp: int, ga: int) -> None:
    """20 ms for a layer's forward, 30 ms for its backward: a stage of DualPipe launches those of each micro-batch, whichever
    way it goes, one after another, though it runs them in pairs."""
    of = launching(20e-3, 30e-3)
    found = simulate(of, h100, plans_of(of, tp=1, pp=pp, dp=1, ga=ga, schedule="dualpipe"))
    assert found.reason.tolist() == [0]
    assert found.metrics[METRICS.index("step_time_s"), 0] >= ga * 48 / pp * (20e-3 + 30e-3)


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_launch_is_what_a_step_takes_longer_than_if_launching_took_no_time(h100: HardwareTable, checkpointing: str) -> None:
    """On one stage nothing hides it, and no other part changes."""
    slow, fast = (row_of(launching(*each), h100, checkpointing=checkpointing) for each in (LAUNCH.values(), (0.0, 0.0)))
    assert fast["launch_s"] == 0
    assert slow["launch_s"] == pytest.approx(slow["step_time_s"] - fast["step_time_s"], rel=RELATIVE)
    assert all(slow[name] == fast[name] for name in METRICS if name not in ("launch_s", "step_time_s"))
    layers_s = 48 * 4 * (sum(LAUNCH.values()) + (LAUNCH["forward"] if checkpointing == "full" else 0.0))
    assert slow["step_time_s"] - slow["optimizer_s"] == pytest.approx(layers_s, rel=0.02), "but embedding and loss"


def test_a_device_as_fast_as_its_host_waits_for_none(h100: HardwareTable) -> None:
    """Between no and long launching: the part grows from the layer's own time on, by as much as launching does."""
    layer_s = (row_of(launching(0.0, 0.0), h100)["compute_forward_s"]) / 48 / 4  # with a share of the ends
    found = [row_of(launching(forward, 0.0), h100)["launch_s"] for forward in (0.5 * layer_s, 2 * layer_s, 3 * layer_s)]
    assert found[0] == 0
    assert found[2] - found[1] == pytest.approx(48 * 4 * layer_s, rel=RELATIVE)


def compared(rng: np.random.Generator, stacks: Sequence[str], rows: int, timelines: int) -> tuple[int, int, set[str]]:
    """Assert on so many drawn plans of each model and stack that all parts add up, of some to those of their timelines, and
    that no step is shorter than its bounds.

    Returns how many plans ran, how many of them are bound by launches, and their schedules.
    """
    hardware, ran, bound, schedules = machines(), 0, 0, set()
    for model in MODELS:
        for stack in stacks:
            workload = workload_of(model, stack)
            plans = drawn(rng, workload, hardware, rows)
            metrics = dict(zip(METRICS, simulate(workload, hardware, plans).metrics, strict=True))
            step_s = metrics["step_time_s"]
            np.testing.assert_allclose(sum(metrics[part] for part in PARTS), step_s, rtol=RELATIVE)
            for bounded in (bounds, coarse_bounds):
                assert (bounded(workload, hardware, plans).step_time_s <= step_s).all()
            assert all((metrics[name] >= -RELATIVE * step_s).all() for name in METRICS)
            for row in rng.permutation(len(step_s))[:timelines].tolist():
                found = timeline(workload, hardware, plans, row)
                for part, seconds in found.totals().items():
                    assert seconds == pytest.approx(metrics[part][row], rel=RELATIVE, abs=RELATIVE * step_s[row]), (part, row)
                assert (found.spans.parts >= -RELATIVE * step_s[row]).all()
            ran += len(step_s)
            bound += int((metrics["launch_s"] > 0.01 * step_s).sum())
            schedules |= {SCHEDULES[k] for k in np.unique(plans.schedule).tolist()}
    return ran, bound, schedules


def test_parts_are_the_step_and_the_timeline() -> None:
    ran, bound, schedules = compared(np.random.default_rng(0), STACKS[::2], 40, 2)
    assert ran > 300
    assert bound > 50
    assert schedules == set(SCHEDULES)


@pytest.mark.long
def test_parts_of_many_plans_are_the_step_and_the_timeline() -> None:
    ran, bound, _ = compared(np.random.default_rng(1), STACKS, 300, 8)
    assert ran > 5000
    assert bound > 500
