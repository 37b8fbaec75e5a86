"""Steps under draws of what nobody knows: all draws at once against one simulation of each, and the stack of each plan."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import Floats, HardwareTable, Ints, Plans, Workload, hardware_table, simulate, workload_from_model
from sweep.columns import describe_rows
from sweep.evaluation.moved import boundless, slower_links
from sweep.evaluation.preparation import Sweep, prepare
from sweep.spec.spec import SweepSpec
from sweep.tuning.draws import WIDTHS, Draw, drawn, log_steps
from sweep.uncertainty.memory import guesses_by_plan, guesses_of

SPEC: dict[str, Any] = {
    "name": "drawn",
    "workload": {"model": "llama3-8b", "sequence": 4096, "stack": "megatron-core"},
    "hardware": "H100-SXM",
    "axes": {
        "hardware.nic_bandwidth": ["200 Gb/s", "400 Gb/s"],
        "tp": [1, 4],
        "pp": [1, 2],
        "overlap_grad": [False, True],
        "sharding": ["none", "optimizer"],
    },
    "fixed": {"all_gpus": 16, "global_batch": 64},
}
EXPERTS: dict[str, Any] = {
    "name": "drawn",
    "workload": {"model": "mixtral-8x7b", "sequence": 4096, "stack": {"preset": "megatron-core", "host_collective": "20 us"}},
    "hardware": "H100-SXM",
    "axes": {"ep": [1, 8], "vpp": [2, 4], "overlap_ep": [False, True], "checkpointing": ["none", "selective"]},
    "fixed": {"pp": 4, "all_gpus": 64, "global_batch": 256},
}
COUNT = 6


def sweep_of(spec: dict[str, Any]) -> Sweep:
    return prepare(SweepSpec.model_validate(spec), Path()).sweep


def with_slower(
    name: str, times: float, workload: Workload, hardware: HardwareTable, plans: Plans
) -> tuple[Workload, HardwareTable, Plans]:
    """All three with one input taking `times` as long: compute, messages in nodes (nvlink) or between them (nic), jitter."""
    if name == "compute":
        return workload, hardware, plans._replace(device_speed=plans.device_speed / times)
    if name == "jitter":
        framework = workload.arrays.framework
        arrays = workload.arrays._replace(framework=framework._replace(jitter=framework.jitter * times))
        return dataclasses.replace(workload, arrays=arrays), hardware, plans
    variants = [slower_links(variant, name, times) for variant in hardware.variants]
    return workload, hardware_table(variants, hardware.measured_on, workload.dtype), plans


def by_itself(sweep: Sweep, numbers: Ints, draw: Draw) -> Floats:
    """Seconds of a step in one draw: its stack made anew, its network and its devices moved one after the other."""
    _, plans = describe_rows(sweep.space, numbers)
    workload, modelled = sweep.workload, sweep.workload.modelled
    assert modelled is not None
    facts: dict[str, object] = {
        "host_forward": modelled.stack.host_forward * draw.launches,
        "host_backward": modelled.stack.host_backward * draw.launches,
        "host_gather": modelled.stack.host_gather + draw.gather_s,
        "hides_sharded": modelled.stack.hides_sharded and not draw.exposed,
    }
    stack = modelled.stack.model_copy(update=facts)
    made = workload_from_model(modelled.model, stack, sequence_parallel=modelled.sequence_parallel)
    inputs = dataclasses.replace(workload, arrays=made.arrays, modelled=made.modelled), boundless(sweep).hardware, plans
    if draw.exposed:
        none = np.zeros_like(plans.overlap_grad)
        inputs = (*inputs[:2], plans._replace(overlap_grad=none, overlap_param=none))
    for name in WIDTHS:
        inputs = with_slower(name, draw.factors[name], *inputs)
    return np.asarray(simulate(*inputs).named()["step_time_s"], np.float64)


@pytest.mark.parametrize("spec", [SPEC, EXPERTS], ids=["dense", "experts"])
def test_all_draws_at_once_are_each_of_them(spec: dict[str, Any]) -> None:
    """To the last bit: what a draw does not change is costed once, and nothing else is shared."""
    sweep = sweep_of(spec)
    numbers = np.arange(sweep.space.size)
    draws = drawn(COUNT)
    assert {draw.exposed for draw in draws} == {False, True}
    together = log_steps(sweep, numbers, COUNT)
    assert np.isfinite(together).all()
    for row, draw in enumerate(draws, 1):
        np.testing.assert_array_equal(together[row], np.log(by_itself(sweep, numbers, draw)))


def test_each_plan_is_drawn_with_its_own_stack() -> None:
    stacks = ["torchtitan", "megatron-core"]
    of_model = {"model": "llama3-8b", "sequence": 4096}
    axes = {"tp": [1, 2], "sharding": ["parameters", "optimizer"]}
    both, *alone = (
        sweep_of(SPEC | {"hardware": "H100-SXM", "workload": of_model, "axes": {"stack": named, **axes}})
        for named in (stacks, stacks[:1], stacks[1:])
    )
    numbers = np.arange(both.space.size)
    steps = log_steps(both, numbers, 2)
    for code, one in enumerate(alone):
        np.testing.assert_array_equal(steps[:, both.stacks_of(numbers) == code], log_steps(one, np.arange(one.space.size), 2))


def test_each_plan_has_the_memory_of_its_own_stack() -> None:
    """What one page is like tells nothing of another: every pair of cases is one of both."""
    both = guesses_by_plan(["torchtitan", "megatron-core", "torchtitan"])
    (titan,), core = guesses_of("torchtitan"), guesses_of("megatron-core")
    assert [guess.share for guess in both] == [guess.share for guess in core]
    for guess, of_core in zip(both, core, strict=True):
        assert list(np.broadcast_to(guess.mean, 3)) == [titan.mean, of_core.mean, titan.mean]
        assert list(np.broadcast_to(guess.sd, 3)) == [titan.sd, of_core.sd, titan.sd]
    assert guesses_by_plan(["nemo", "nemo"]) == guesses_of("nemo")
