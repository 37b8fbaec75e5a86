"""Steps with stragglers: against drawing slow GPUs at random and running the pipeline of every replica."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    Floats,
    SpecError,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    trace,
    workload_from_model,
)
from sweep.spec.stragglers import TAIL, Stragglers, slowest, with_stragglers
from tests.sweep.commands import sweep
from tests.sweep.conftest import MODEL, SpecWriter
from tests.sweep.spec.test_model_specs import prepared_of, rows_of


def test_the_slowest_of_many() -> None:
    """By hand: of 100 GPUs with 1 % slow ones, none is slow in 0.99^100 = 37 % of all cases; of 10, in 90 %."""
    two = Stragglers(slow_share=0.01, slowness=1.2)
    assert slowest(two, np.array([1, 10, 100]), 0.5).tolist() == [1.0, 1.0, 1.2]
    assert slowest(two, np.array([10]), 0.95).tolist() == [1.2]
    assert slowest(two, np.array([100]), 0.36).tolist() == [1.0]


@pytest.mark.parametrize("given", [Stragglers(sigma=0.03), Stragglers(slow_share=0.02, slowness=1.3, sigma=0.01)])
@pytest.mark.parametrize("gpus", [1, 64, 2000])
def test_quantiles_of_the_slowest_are_those_of_draws(given: Stragglers, gpus: int) -> None:
    drawn = draw(given, (4000, gpus), np.random.default_rng(3)).max(axis=1)
    for part in TAIL.values():
        assert slowest(given, np.array([gpus]), part)[0] == pytest.approx(np.quantile(drawn, part), rel=0.01)


def draw(given: Stragglers, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """How many times as long the compute of each GPU takes."""
    slow = np.where(rng.random(shape) < given.slow_share, given.slowness, 1.0)
    return np.asarray(slow * (1 + given.sigma * rng.standard_normal(shape)), np.float64)


def one_forward_one_backward(forward: Floats, backward: Floats, micro_batches: int) -> Floats:
    """End of 1F1B without costs of messages, [replicas], of stages with these seconds, [replicas, stages]."""
    stages = forward.shape[1]
    done: dict[tuple[str, int, int], Floats] = {}
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        order = [("f", k) for k in range(ahead)]
        for k in range(micro_batches - ahead):
            order += [("f", ahead + k), ("b", k)]
        orders.append([*order, *(("b", k) for k in range(micro_batches - ahead, micro_batches))])
    free, at = [np.zeros(len(forward)) for _ in range(stages)], [0] * stages
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            while at[stage] < len(orders[stage]):
                way, k = orders[stage][at[stage]]
                needs = (way, stage - 1 if way == "f" else stage + 1, k)
                if 0 <= needs[1] < stages and needs not in done:
                    break
                seconds = (forward if way == "f" else backward)[:, stage]
                free[stage] = np.maximum(free[stage], done.get(needs, 0.0)) + seconds
                done[way, stage, k] = free[stage]
                at[stage] += 1
    return np.asarray(np.max(free, axis=0), np.float64)


@pytest.mark.parametrize(
    "given",
    [
        Stragglers(slow_share=0.001, slowness=1.25),
        Stragglers(slow_share=0.02, slowness=1.1),
        Stragglers(sigma=0.02),
        Stragglers(slow_share=0.01, slowness=1.15, sigma=0.01),
    ],
    ids=str,
)
@pytest.mark.parametrize(("tp", "pp", "ga"), [(1, 4, 8), (4, 4, 16), (2, 1, 2), (2, 8, 32)])
def test_steps_are_those_of_drawn_gpus(given: Stragglers, tp: int, pp: int, ga: int) -> None:
    """256 GPUs. The seconds of a block are those of the plain plan's events; what comes after the pipeline is left alone."""
    gpus, draws = 256, 300
    stack = read_stack("megatron-core").model_copy(update={"jitter": 0.0, "host_step": 0.0})
    work = workload_from_model(read_model("llama2-7b", {"sequence": 2048}), stack, sequence_parallel=True)
    fast = {"nvlink_bandwidth": "1e9 GB/s", "nvlink_latency": "0 s", "nic_bandwidth": "1e9 GB/s", "nic_latency": "0 s"}
    hardware = hardware_table([read_hardware("H100-SXM").with_values({**fast, "memory": "10 TB", "net_overhead": "0 s"})], None)
    plan = plans(work, tp=tp, pp=pp, all_gpus=gpus, ga=ga, overlap_pp=True, schedule="1f1b", layer_split="even")
    step = simulate(work, hardware, plan).named()["step_time_s"][0]
    events = trace(work, hardware, plan)
    seconds = np.array(
        [
            [np.max((events.end_s - events.start_s)[(events.stage == stage) & (events.backward == way)]) for stage in range(pp)]
            for way in (0, 1)
        ]
    )
    slow = draw(given, (draws, gpus // (tp * pp), pp, tp), np.random.default_rng(5)).max(axis=-1)
    of_replica = slow.reshape(-1, pp)
    ends = one_forward_one_backward(of_replica * seconds[0], of_replica * seconds[1], ga).reshape(draws, -1).max(axis=1)
    rest = step - one_forward_one_backward(seconds[:1], seconds[1:], ga)[0]
    found = with_stragglers(given, work, hardware, plan, np.array([step]))
    for name, part in TAIL.items():
        took = found[name][0]
        assert took >= step * (1 - 1e-8)
        # no more than so many draws are longer, give or take 2 % of seconds and 5 % of draws
        assert (ends + rest <= took * 1.02).mean() >= part - 0.05, name
        assert (ends + rest <= took * 0.98).mean() <= part + (0.04 if part > 0.9 else 0.05), name


def test_columns_of_stragglers(write_spec: SpecWriter) -> None:
    path = write_spec(**MODEL, stragglers={"slow_share": 0.01, "slowness": 1.2})
    prepared = prepared_of(path)
    ok = [row for row in rows_of(prepared) if row["status"] == "ok"]
    assert ok
    for row in ok:
        assert row["step_time_s"] <= row["step_time_p50_s"] <= row["step_time_p95_s"] <= 1.2 * row["step_time_s"] * (1 + 1e-8)
        assert (row["step_time_p95_s"] > row["step_time_s"] * (1 + 1e-8)) == (1 - 0.99 ** row["all_gpus"] > 0.05)
    assert any("stragglers: 0.01 of the GPUs take 1.2 times as long" in note for note in prepared.notes)
    plain = prepared_of(path, "stragglers=null")
    assert all(row[name] is None for row in rows_of(plain) for name in TAIL)
    assert len({each.sweep.identity for each in (prepared, plain, prepared_of(path, "stragglers.slowness=1.3"))}) == 3


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["stragglers.slow_share=1"], "stragglers.slow_share: found '1', expected a number below 1"),
        (["stragglers={slow_share: 0.01}"], "slowness: missing (how many times as long the compute of a slow GPU takes"),
        (["stragglers={slowness: 1.2}"], "slow_share: missing (what part of the GPUs is slow, such as 0.005)"),
        (["stragglers={}"], "slow_share or sigma: missing"),
        (["stragglers=null"], "objectives: step_time_p95_s needs stragglers, such as stragglers: {slow_share: 0.005"),
        (["fixed.straggler_factor=1.5"], "stragglers: is given beside straggler_factor or straggler_stage; remove one"),
        (["stragglers.slow=1"], "stragglers.slow: unknown key, "),
    ],
)
def test_stragglers_that_cannot_be_used_are_refused(write_spec: SpecWriter, sets: list[str], message: str) -> None:
    given: dict[str, Any] = {"slow_share": 0.01, "slowness": 1.2}
    path = write_spec(**MODEL, stragglers=given, objectives=[{"minimize": "step_time_p95"}])
    with pytest.raises(SpecError) as refused:
        prepared_of(path, *sets)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_one_plan_tells_its_slow_steps() -> None:
    told = sweep("simulate", "--model", "gpt2", "--set", "stragglers.sigma=0.05", "--set", "all_gpus=8", "--set", "tp=1")
    assert told.returncode == 0, told.stderr
    assert "with stragglers half of the steps take up to " in told.stdout
