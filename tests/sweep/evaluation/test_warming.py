"""The engine made ready: two processes compile it, and a sweep does without the second."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

import sim_core.engine.orders as orders
import sim_core.simulator as simulator
import sim_core.warming as compiling
import sweep.evaluation.warming as warming
from sim_core import (
    HardwareTable,
    Ints,
    Workload,
    hardware_table,
    plans as plans_of,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.batch import run_rows
from sim_core.compiled.jit import in_plain_python
from sim_core.compiling import PLAIN_PYTHON
from sim_core.engine.schedules import ALTERNATING, FORWARDS_FIRST, ZERO_BUBBLE_V
from sim_core.warming import compile_steps, compile_tables
from sweep.columns import describe_rows
from sweep.evaluation.evaluation import WARM_UP_PLANS, evaluate, spread
from sweep.evaluation.preparation import Prepared, Sweep, prepare
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES
from tests.sweep.conftest import SpecWriter


def kinds(value: Any) -> Any:
    """What numba compiles for: kinds of numbers, dimensions and order of arrays, tuples of them."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.ndim, value.flags.c_contiguous, value.flags.writeable
    return (type(value), [kinds(one) for one in value]) if isinstance(value, tuple) else type(value)


@pytest.mark.parametrize("name", ["gpt7b", "llama3_70b_h100", "gpt7b_as_recorded"])
def test_the_steps_of_a_sweep_are_compiled_for_its_arguments(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EXAMPLES / f"{name}.yaml"
    sweep = prepare(load_spec(spec, []), spec.parent).sweep
    plans = describe_rows(sweep.space, spread(sweep.space.count, WARM_UP_PLANS))[1]
    seen: list[Any] = []
    for module in (compiling, simulator):
        monkeypatch.setattr(module, "run_rows", lambda *arguments: seen.append(kinds(arguments)))
    assert compile_steps(sweep.workload, sweep.hardware, plans)
    simulate(sweep.workload, sweep.hardware, plans)
    assert len(seen) >= 2
    assert all(one == seen[0] for one in seen[1:])


@pytest.mark.parametrize(
    ("named", "compiled"),
    [("[1f1b]", {ALTERNATING}), ("[gpipe, zb-v]", {FORWARDS_FIRST, ZERO_BUBBLE_V})],
)
def test_only_the_orders_that_a_sweep_names_are_compiled(
    named: str, compiled: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = EXAMPLES / "llama3_70b_h100.yaml"
    sweep = prepare(load_spec(spec, [f"axes.schedule={named}"]), spec.parent).sweep
    seen: set[int] = set()
    monkeypatch.setattr(orders, "addresses", lambda kernels, needed, examples: seen.update(needed.tolist()))
    monkeypatch.setattr(warming, "is_compiled", lambda what: True)
    monkeypatch.setattr(warming, "_shortest", lambda sweep, positions: positions)
    monkeypatch.setattr(warming, "evaluate", lambda sweep, positions: None)
    warming.warm_up(sweep)
    assert seen == compiled


def test_a_schedule_that_is_named_later_runs_in_the_same_engine(gpt7b: Workload, h100: HardwareTable) -> None:
    """To the results of plain Python, and without a second variant of the engine."""
    variants = []
    for schedule, vpp in (("1f1b", 1), ("v-half", 2), ("zb-h1", 1), ("dualpipev", 2), ("1f1b", 2)):
        plans = plans_of(gpt7b, schedule=schedule, vpp=vpp, tp=4, pp=2, ga=8, all_gpus=64)
        compiled = simulate(gpt7b, h100, plans)
        with in_plain_python():
            plain = simulate(gpt7b, h100, plans)
        assert compiled.reason[0] == 0
        np.testing.assert_array_equal(compiled.metrics, plain.metrics)
        np.testing.assert_array_equal(compiled.memory, plain.memory)
        variants.append(0 if PLAIN_PYTHON else len(cast(Any, run_rows).dispatcher.signatures))
    assert variants == [variants[0]] * len(variants)


def test_plans_that_cannot_run_compile_nothing(prepared: Prepared) -> None:
    sweep = prepared.sweep
    plans = describe_rows(sweep.space, np.zeros(1, np.int64))[1]
    assert not compile_steps(sweep.workload, sweep.hardware, plans._replace(tp=plans.tp * 2**16))


@pytest.mark.parametrize("layer_split", ["balanced", "balanced_cost"])
@pytest.mark.parametrize("precision", [["bf16", "fp8_blockwise"], ["fp8_blockwise"]])
def test_what_a_device_cannot_run_stops_no_first_sweep(layer_split: str, precision: list[str]) -> None:
    """Nothing is compiled yet: an A100 has no FP8, and its kernels have no times."""
    work = workload_from_model(read_model("llama3-8b"), read_stack("megatron-core"), sequence_parallel=True)
    table = hardware_table([read_hardware("A100-80G-SXM")], None)
    plans = plans_of(work, tp=2, dp=4, pp=2, ga=4, precision=precision, layer_split=layer_split)
    compile_tables(work, table, plans)
    assert compile_steps(work, table, plans) == ("bf16" in precision)


@pytest.mark.parametrize("other", ["/bin/false", "/bin/true"])
def test_a_second_process_that_fails_leaves_it_to_the_first(
    prepared: Prepared, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    popen = subprocess.Popen

    def noted(command: list[str], **how: Any) -> Any:
        started.append(command)
        return popen(command, **how)

    monkeypatch.setattr(warming, "is_compiled", lambda what: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(sys, "executable", other)
    monkeypatch.setattr(subprocess, "Popen", noted)
    assert warming.warm_up(prepared.sweep) > 0
    assert started == [[other, "-m", "sweep.evaluation.warming"]]


@pytest.mark.parametrize(("ga", "simulated"), [([8, 10**6], {8}), ([10**6], {10**6})])
def test_kernels_are_loaded_by_the_shortest_steps(
    write_spec: SpecWriter, ga: list[int], simulated: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a million micro-batches takes seconds, 64 of them took a minute."""
    path = write_spec(axes={"ga": ga, "tp": [1, 2, 4], "pp": [1, 2]}, fixed={"all_gpus": 512}, where=None)
    sweep = prepare(load_spec(path), path.parent).sweep
    found: list[tuple[int, str]] = []

    def noted(sweep: Sweep, positions: Ints, lost: int | None = None) -> pa.RecordBatch:
        batch = evaluate(sweep, positions, lost)
        if lost is None:
            found.extend(zip(batch.column("ga").to_pylist(), batch.column("reason").to_pylist(), strict=True))
        return batch

    monkeypatch.setattr(warming, "evaluate", noted)
    warming.warm_up(sweep)
    assert {reason for _, reason in found} == {""}
    assert {ga for ga, _ in found} == simulated
    assert len(found) == 1 or max(simulated) < 10**6
