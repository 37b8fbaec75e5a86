"""Layers of models on one stage against the oracle: compute, messages, what is hidden, the host; every part of the metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim_core import (
    METRICS,
    Hardware,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from sim_core.costing.collectives import collective_s
from sim_core.costing.one_collective import one_node_factor
from sim_core.costing.operators import Shapes, devices_of, unit_cost
from sim_core.hardware.table import device_at
from sim_core.models.description import Unit
from sim_core.models.keys import make_keys
from sim_core.models.precision import PRECISION_NAMES
from sim_core.planning.placement import Placement
from tests.oracle.groups import placement
from tests.oracle.layer_messages import EP, EXPERT_TP, HEADS_FOR_TOKENS, RING, TP, Rank
from tests.oracle.layer_time import Layers, Operators, Switches

COMPARED = [
    *("compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s"),
    *(f"{part}_{which}_s" for part in ("tp", "ep", "cp") for which in ("total", "exposed")),
]


def group_of(rank: Rank, gpus: int, group: int, experts_with_tp: bool) -> list[list[int]]:
    """All groups of a kind as lists of GPUs: tp is the fastest, then cp with its all-to-alls inside, then dp."""
    tp, a2a, cp, ep = rank.tp, rank.a2a, rank.cp, rank.ep
    if group in (TP, EXPERT_TP):
        size, apart = tp, 1
    elif group == EP:
        size, apart = ep, tp if experts_with_tp else 1
    elif group == HEADS_FOR_TOKENS:
        size, apart = a2a, tp
    else:
        assert group == RING
        size, apart = cp // a2a, tp * a2a
    block = size * apart
    return [
        [first + k * apart for k in range(size)] for start in range(0, gpus, block) for first in range(start, start + apart)
    ]


def oracle(workload: Workload, hardware: Hardware, rank: Rank, gpus: int, switches: Switches) -> Layers:
    """The oracle of one plan."""
    modelled = workload.modelled
    assert modelled
    numbers = rank._asdict() | {"precision": PRECISION_NAMES.index(rank.precision)}
    keys = make_keys(**{name: int(value) for name, value in numbers.items()})
    table = hardware_table([hardware], None)
    devices, _ = devices_of(table)
    links = device_at(table.columns, 0)

    def operators(unit: Unit) -> Operators:
        cost = unit_cost(modelled, unit, Shapes(keys, devices, np.zeros(1, np.int64)))
        named: dict[tuple[str, int], float] = {}
        for name, phase, seconds in zip(cost.operators.names, cost.operators.phase, cost.seconds[0], strict=True):
            named[name, int(phase)] = named.get((name, int(phase)), 0.0) + float(seconds)
        return named

    def collective(kind: int, group: int, size: float) -> float:
        slowest = 0.0
        per_node = int(hardware.value("gpus_per_node"))
        for ranks in group_of(rank, gpus, group, modelled.stack.experts_with_tp):
            where = placement(ranks, per_node)
            at = Placement(len(ranks), len(where), where[0], where[-1], ranks[1] - ranks[0])
            seconds = float(collective_s(kind, size, at, links))
            if len(where) == 1:
                seconds *= float(one_node_factor(hardware, kind, np.array([len(ranks)]), np.array([size]))[0])
            slowest = max(slowest, seconds)
        return slowest

    return Layers(
        model=modelled.model,
        stack=modelled.stack,
        rank=rank,
        switches=switches,
        operators=operators,
        collective=collective,
    )


def compared(name: str, rank: Rank, gpus: int, switches: Switches, facts: dict[str, object], slower: float = 1.0) -> None:
    """Assert that product and oracle agree on all parts of the layers."""
    hardware = read_hardware("H100-SXM").with_values(
        {
            "memory": "1e6 GB",
            "shared_nics": False,
            "nvlink_bandwidth": f"{450 / slower} GB/s",
            "nic_bandwidth": f"{400 / slower} Gb/s",
        }
    )
    stack = read_stack("megatron-core").with_facts({"jitter": 0, "dp_contention": 0, **facts})
    model = read_model(name, {"sequence": 4096})
    workload = workload_from_model(model, stack, sequence_parallel=rank.sequence_parallel)
    plan: dict[str, Any] = {name: getattr(rank, name) for name in ("tp", "cp", "ep", "micro_batch", "precision")}
    way = "all_gather" if rank.gathers else "p2p" if rank.a2a == 1 else "a2a" if rank.a2a == rank.cp else "a2a+p2p"
    plan |= {"cp_comm_type": way, "cp_a2a_size": rank.a2a if way == "a2a+p2p" else 1}
    plan |= {name: getattr(switches, name) for name in Switches.__dataclass_fields__}
    found = simulate(workload, hardware_table([hardware], None), plans(workload, all_gpus=gpus, pp=1, ga=2, **plan)).named()
    assert found["reason"][0] == ""
    layers = oracle(workload, hardware, rank, gpus, switches)
    beside, alone = layers.metrics(), replace(layers, paired=False).metrics()  # one pass of two each way has a partner
    expected = {metric: beside.get(metric, 0.0) + alone.get(metric, 0.0) for metric in COMPARED}
    wrong = {
        metric: (float(found[metric][0]), expected[metric])
        for metric in COMPARED
        if not math.isclose(found[metric][0], expected[metric], rel_tol=1e-9, abs_tol=1e-12)
    }
    assert not wrong
    assert set(COMPARED) < set(METRICS)


QUIET: dict[str, object] = {"host_forward": "0 s", "host_backward": "0 s"}
BOUND: dict[str, object] = {
    "host_forward": "9 ms", "host_backward": "21 ms", "host_without_tp": 0.72, "host_collective": "0.3 ms",
}  # fmt: skip
OF_EXPERTS: dict[str, object] = {
    "host_expert": ["0.1 ms", "0.3 ms"], "host_experts": ["4 ms", "7 ms"], "host_alltoall": ["2 ms", "3 ms"],
    "host_overlap_ep": 1.5,
}  # fmt: skip
TP4, TP2 = Rank(tp=4, sequence_parallel=True), Rank(tp=2, micro_batch=2)
DENSE = [
    ("llama3-8b", Rank(), 1, Switches(), BOUND),
    ("llama3-8b", TP4, 4, Switches(checkpointing="full"), BOUND),
    ("llama3-8b", TP4, 4, Switches(checkpointing="full"), QUIET),
    ("llama3-8b", TP2, 2, Switches(checkpointing="selective"), QUIET),
    ("gpt-neox-20b", TP4, 4, Switches(), QUIET),
    ("llama3-8b", TP4, 4, Switches(overlap_tp=True), QUIET),
    ("llama3-8b", TP4, 4, Switches(overlap_tp=True), {**QUIET, "tp_parts": 0}),
    ("llama3-8b", TP4, 4, Switches(), {**QUIET, "own_part_first": True, "hides_backward_tp": False}),
    ("llama3-8b", TP2, 2, Switches(overlap_tp=True), QUIET),
]
CONTEXT = [
    ("llama3-8b", Rank(cp=4), 4, Switches(checkpointing="selective"), QUIET),
    ("llama3-8b", Rank(cp=4, a2a=4), 4, Switches(checkpointing="selective"), QUIET),
    ("llama3-8b", Rank(cp=16, tp=2, sequence_parallel=True), 32, Switches(), QUIET),
    ("llama3-8b", Rank(cp=16, a2a=2, tp=2, sequence_parallel=True), 32, Switches(), QUIET),
    ("llama3-8b", Rank(cp=4, gathers=True), 4, Switches(checkpointing="full"), QUIET),
    ("nemotron-h-8b", Rank(cp=2, tp=2, sequence_parallel=True), 4, Switches(), QUIET),
    ("gemma3-12b", Rank(cp=2, a2a=2), 4, Switches(), QUIET),
]
EXPERTS = [
    ("mixtral-8x7b", Rank(ep=8), 8, Switches(), {**QUIET, **OF_EXPERTS}),
    ("mixtral-8x7b", Rank(ep=8), 8, Switches(overlap_ep=True), {**BOUND, **OF_EXPERTS}),
    ("mixtral-8x7b", Rank(ep=4, tp=2, sequence_parallel=True), 8, Switches(), {**BOUND, **OF_EXPERTS}),
    ("mixtral-8x7b", Rank(ep=4, tp=2, etp=2, sequence_parallel=True), 8, Switches(), {**QUIET, "experts_with_tp": True}),
    ("mixtral-8x7b", Rank(ep=8), 16, Switches(overlap_ep=True), {**QUIET, "overlap_ep_hidden": 0.44}),
    ("mixtral-8x7b", Rank(ep=8), 16, Switches(overlap_ep=True), {"overlap_ep_hidden": 0.44, "graphs": "full"}),
    ("mixtral-8x7b", Rank(ep=8, micro_batch=2), 8, Switches(checkpointing="full"), {**BOUND, "graphs": "full"}),
    ("deepseek-v2", Rank(ep=16, tp=2, sequence_parallel=True), 32, Switches(overlap_shared_experts=True), QUIET),
    ("deepseek-v2", Rank(ep=16), 32, Switches(overlap_ep=True), {**QUIET, "overlap_ep_hidden": 0.44, "graphs": "full"}),
    ("deepseek-v2", Rank(ep=16), 32, Switches(overlap_ep=True), QUIET),
]


@pytest.mark.parametrize("slower", [1.0, 40.0])
@pytest.mark.parametrize(("name", "rank", "gpus", "switches", "facts"), [*DENSE, *CONTEXT, *EXPERTS])
def test_parts_of_the_layers_are_those_written_out(
    name: str, rank: Rank, gpus: int, switches: Switches, facts: dict[str, object], slower: float
) -> None:
    """On fast links and on slow ones, where a message outlasts what may hide it."""
    compared(name, rank, gpus, switches, facts, slower)
