"""The product against the oracle: whole steps, part by part, of random plans of random workloads and of the examples."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    REASON,
    SCHEDULES,
    Facts,
    Hardware,
    Workload,
    hardware_table,
    read_hardware,
    read_workload,
    simulate,
    trace,
)
from sim_core.costing.collectives import collective_s, send_s
from sim_core.hardware.table import device_at
from sim_core.metrics import PEAK_BYTES
from sim_core.planning import placement
from sim_core.workloads.facts import Repeat
from sim_core.workloads.workload import ALL_TO_ALL, EP
from tests.conftest import EXAMPLES, PLAIN, make_plans, rest_long
from tests.oracle.cases import (
    BALANCED,
    KNOWN_SCHEDULES,
    LISTED,
    Machines,
    columns,
    ends,
    one_layer,
    random_machines,
    random_plans,
    random_workload,
    step_pieces,
    twins,
    workload_of,
)
from tests.oracle.groups import Place
from tests.oracle.split import IN_A_V
from tests.oracle.step import Network, Oracle, Plan

RELATIVE = 1e-9


def network(hardware: Hardware) -> Network:
    """The project's seconds of one collective or send, on a placement that the oracle found."""
    links = device_at(hardware_table([hardware], None).columns, 0)

    def collective(kind: int, size: float, place: Place) -> float:
        where, beside = place
        at = placement.Placement(ranks=sum(where), nodes=len(where), fewest=where[0], most=where[-1], stride=beside)
        return float(collective_s(kind, size, at, links))

    def send(size: float, between_nodes: bool) -> float:
        return float(send_s(size, between_nodes, links))

    def nic(sending: int) -> float:
        gpus, full = hardware.value("gpus_per_node"), hardware.value("fabric_efficiency")
        alone = hardware.value("nic_bandwidth") * hardware.value("nic_efficiency") * hardware.value("nics_per_node") / gpus
        return alone * (1 - (1 - full) * (sending - 1) / max(gpus - 1, 1))

    shared = hardware.value("shared_nics") == 1
    return Network(gpus_per_node=int(links.gpus_per_node), shared=shared, nic=nic, collective=collective, send=send)


@cache
def balanced(pp: int, vpp: int, layers: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each [stage][chunk] in the product, told by the seconds of its blocks where a layer takes one."""
    ruler = workload_of(one_layer(), step_pieces([]), [0] * layers)
    table = hardware_table([read_hardware("H100-SXM")], None)
    plans = make_plans(ruler, tp=1, pp=pp, vpp=vpp, all_gpus=pp, ga=pp, layer_split=BALANCED)
    events = trace(ruler, table, plans)
    first = (events.micro_batch == 0) & (events.backward == 0)
    counts = np.zeros((pp, vpp), np.int64)
    counts[events.stage[first], events.chunk[first]] = np.rint((events.end_s - events.start_s)[first])
    assert counts.sum() == layers
    return tuple(map(tuple, counts.tolist()))


def layer_counts(plan: Plan) -> list[int]:
    """Layers of each virtual stage, in the order of the model. Which stage holds one more is not told: there the product is
    asked, and a test of its own says that the shares are fair."""
    chunks = plan.pp * plan.vpp
    if plan.layer_split == LISTED:
        return list(plan.virtual_layers)
    if plan.layer_split == BALANCED:
        counts = balanced(plan.pp, plan.vpp, plan.layers)
        in_a_v = plan.schedule in IN_A_V
        return [
            counts[plan.pp - 1 - stage if in_a_v and chunk % 2 else stage][chunk]
            for chunk in range(plan.vpp)
            for stage in range(plan.pp)
        ]
    before, after = ends(plan.layer_split)
    equal = [(plan.layers + before + after) // chunks] * chunks
    equal[0] -= before
    equal[-1] -= after
    return equal


def layers_held(plan: Plan) -> list[list[range]]:
    """Numbers of the layers of each [stage][chunk]: chunk after chunk, in each stage after stage (Megatron's interleaving)."""
    bounds = [0, *accumulate(layer_counts(plan))]
    assert bounds[-1] == plan.layers
    numbers = [range(first, last) for first, last in pairwise(bounds)]
    return [[numbers[plan.in_model(stage, chunk)] for chunk in range(plan.chunks)] for stage in range(plan.pp)]


def oracle(workload: Workload, machines: Machines, plan: Plan) -> Oracle:
    """The oracle of one plan."""
    hardware = machines.variants[plan.hardware]
    return Oracle(
        workload=workload,
        plan=plan,
        hardware=hardware,
        measured_on=machines.measured_on,
        network=network(hardware),
        held=layers_held(plan),
    )


def agree(workload: Workload, machines: Machines, plans: list[Plan]) -> int:
    """Assert that product and oracle agree on every column of every plan; returns how many fit into memory."""
    results = simulate(workload, machines.table, columns(plans))
    fit = 0
    for k, plan in enumerate(plans):
        expected = oracle(workload, machines, plan)
        state, peak = expected.state_bytes(), results.memory[PEAK_BYTES, k]
        if np.isnan(peak):  # else it is that of the stage with the highest peak, which may hold less state
            assert results.state_bytes[k] == pytest.approx(max(state), rel=RELATIVE, nan_ok=True), plan
        else:
            assert any(math.isclose(results.state_bytes[k], of_stage, rel_tol=RELATIVE) for of_stage in state), plan
        if max(max(state), peak) > machines.variants[plan.hardware].value("memory"):
            assert results.reason[k] == REASON["memory_exceeds_device"], plan
            continue
        assert results.reason[k] == 0, plan
        fit += 1
        metrics = expected.metrics()
        step_s = metrics["step_time_s"]
        found = dict(zip(METRICS, results.metrics[:, k].tolist(), strict=True))
        wrong = {
            name: (found[name], value)
            for name, value in metrics.items()
            if not math.isclose(found[name], value, rel_tol=RELATIVE, abs_tol=RELATIVE * step_s)
        }
        assert not wrong, f"{plan}: {wrong}"
        assert metrics.keys() == found.keys()
    return fit


def test_every_schedule_has_a_second_opinion() -> None:
    """Those drawn here are all that the ledger has."""
    assert SCHEDULES[KNOWN_SCHEDULES:] == ()


@pytest.mark.parametrize("seed", rest_long(range(120), 40))
def test_random_plans_of_random_workloads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    workload = random_workload(rng)
    machines = random_machines(rng, workload.dtype)
    draw = random_plans(rng, workload, len(machines.variants))
    agree(workload, machines, [next(draw) for _ in range(12)])


@pytest.mark.parametrize("seed", rest_long(range(200, 225), 8))
def test_plans_that_differ_in_one_column_are_told_apart(seed: int) -> None:
    """Simulated together, so that whatever plans share in tables must not hide the column."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng)
    machines = random_machines(rng, workload.dtype, most_memory=1e13)
    plan = next(random_plans(rng, workload, len(machines.variants)))
    agree(workload, machines, [*twins(workload, plan), plan])


@pytest.mark.parametrize("seed", rest_long(range(24), 8))
def test_messages_that_wait_for_each_other(seed: int) -> None:
    """NICs so slow that a message may take many blocks."""
    rng = np.random.default_rng(seed)
    workload = random_workload(rng)
    machines = random_machines(rng, workload.dtype)
    slow = {"shared_nics": True, "nic_bandwidth": f"{10 ** rng.uniform(5, 8.5):.0f} B/s"}
    variants = [one.with_values(slow) for one in machines.variants]
    machines = Machines(tuple(variants), machines.measured_on, hardware_table(variants, machines.measured_on, workload.dtype))
    draw = random_plans(rng, workload, len(variants))
    plans = [next(draw) for _ in range(12)]
    agree(workload, machines, plans)
    assert (simulate(workload, machines.table, columns(plans)).named()["pp_queued_s"] > 0).any()


GPT2_LAYER = Repeat(first="transformer_h_0_ln_1_grad", last="add_15", times=36)
INPUTS = {
    "gpt7b_tp4_dp128.simai.txt": Facts(micro_batch=1, sequence=2048),
    "llama405b_tp8_pp16.simai.txt": Facts(micro_batch=1, sequence=4096, ffn=53248),
    "gpt2_large_layer0.optable.tsv": Facts(micro_batch=16, bytes_per_element=4, repeat=GPT2_LAYER),
    "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt": Facts(layers=12),
    "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt": Facts(),
}


@pytest.mark.parametrize("name", INPUTS)
def test_random_plans_of_the_examples(name: str) -> None:
    workload, _ = read_workload(str(EXAMPLES / "workloads" / name), INPUTS[name])
    # what messages, launching and experts' weights take: tests/sim_core/test_trace_plans.py
    workload = replace(workload, recorded=None, layer=None, expert_weights=(0.0, 0.0))
    rng = np.random.default_rng(len(name))
    machines = random_machines(rng, workload.dtype, most_memory=1e15)
    draw = random_plans(rng, workload, len(machines.variants))
    assert agree(workload, machines, [next(draw) for _ in range(30)]) >= 10


def test_every_input_is_compared() -> None:
    assert {path.name for path in (EXAMPLES / "workloads").iterdir()} == set(INPUTS)


def on_one_machine(gpus_per_node: int) -> Machines:
    """H100s in nodes of another size."""
    hardware = read_hardware("H100-SXM").with_values({"gpus_per_node": gpus_per_node})
    return Machines((hardware,), None, hardware_table([hardware], None))


def plain(**changes: int) -> Plan:
    """A plan without anything."""
    values: Any = {f.name: int(PLAIN[f.name]) for f in fields(Plan) if f.name in PLAIN}
    return Plan(**{**values, "tp": 1, "all_gpus": 1, **changes})


UNEVEN = [(7, 1, 8, 40), (7, 1, 6, 12), (7, 1, 12, 60), (7, 2, 4, 28), (8, 3, 4, 4), (8, 1, 6, 42)]


@pytest.mark.parametrize(("gpus_per_node", "tp", "ep", "dp"), UNEVEN)
def test_the_slowest_of_the_expert_groups_holds_up_all(gpus_per_node: int, tp: int, ep: int, dp: int) -> None:
    workload = workload_of(one_layer(ALL_TO_ALL, EP, 1e5), step_pieces([]), [0, 0], experts=ep)
    agree(workload, on_one_machine(gpus_per_node), [plain(tp=tp, ep=ep, all_gpus=tp * dp, layers=2)])


def spreads(pp: int, vpp: int, layers: int) -> tuple[int, int]:
    """Most less fewest layers, of stages and of chunks."""
    counts = np.array(balanced(pp, vpp, layers))
    return int(np.ptp(counts.sum(axis=1))), int(np.ptp(counts))


@pytest.mark.parametrize("vpp", [1, 2, 3, 4])
def test_layers_are_shared_out_fairly(vpp: int) -> None:
    """Stages and chunks differ by at most one layer: 36 layers on 9 x 3 give every stage 4."""
    cases = [(pp, layers) for pp in range(2, 13) for layers in (pp * vpp, pp * vpp + 1, 36, 61, 128) if layers >= pp * vpp]
    unfair = {(pp, layers): found for pp, layers in cases if max(found := spreads(pp, vpp, layers)) > 1}
    assert not unfair
