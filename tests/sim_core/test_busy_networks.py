"""NICs that several groups need at once: a fluid simulation of two streams, bytes counted rank by rank, nothing for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from sim_core import (
    METRICS,
    PARTS,
    HardwareTable,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    timeline,
    trace,
    workload_from_model,
)
from sim_core.costing.fabric import shared_s
from sim_core.models.stack import Stack
from sim_core.models.weights import sequence_of

WEIGHT_PART = 2
PARAMETERS_MODEL = {"layers": 4, "sequence": 2048, "vocabulary": 1024}


def fluid_end_s(compute_s: float, message_s: float, pieces: int, stream_s: float) -> float:
    """End of a block of `pieces` turns of compute and a message of its own, beside a stream of `stream_s` that began with it.

    Both send over one link; while both do, each has half of it.
    """
    now, left = 0.0, stream_s
    for _ in range(pieces):
        step = compute_s / pieces
        now, left = now + step, max(left - step, 0.0)
        mine = message_s / pieces
        both = min(mine, left)  # each sends this much at half the speed
        now, left = now + 2 * both + (mine - both), left - both
    return now


@pytest.mark.parametrize("stream_s", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("message_s", [0.05, 0.3, 0.8])
def test_two_streams_share_a_link_fairly(message_s: float, stream_s: float) -> None:
    """The stream is as long as given without the block's messages: what it sends before the block would have ended."""
    alone = fluid_end_s(1 - message_s, message_s, 1000, 0.0)
    assert alone == pytest.approx(1.0)
    found = shared_s(1.0, message_s, message_s, stream_s)
    assert found == pytest.approx(fluid_end_s(1 - message_s, message_s, 1000, stream_s) - 1, rel=0.02)
    assert message_s + stream_s <= 1 + found + 1e-12


def test_hidden_messages_have_room_until_the_link_is_full() -> None:
    assert shared_s(1.0, 0.0, 0.5, 0.5) == 0
    assert shared_s(1.0, 0.0, 0.5, 0.75) == pytest.approx(0.25)
    assert shared_s(1.0, 0.0, 0.0, 1.0) == shared_s(1.0, 0.5, 0.5, 0.0) == shared_s(0.0, 0.0, 0.0, 1.0) == 0


def network(*, shared: bool, **values: object) -> HardwareTable:
    """H100s whose memory does not matter."""
    given = {"memory": "100 TB", "shared_nics": shared, **values}
    return hardware_table([read_hardware("H100-SXM").with_values(given)], None)


def work(model: str, **stack: Any) -> Workload:
    plain: Stack = read_stack("megatron-core").model_copy(update={"jitter": 0.0, "dp_contention": 0.0, **stack})
    return workload_from_model(read_model(model, PARAMETERS_MODEL), plain, sequence_parallel=True)


def both(workload: Workload, given: dict[str, Any], **values: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metrics of some plans with NICs of their own for every message, and with shared ones."""
    found = []
    for shared in (False, True):
        named = simulate(
            workload, network(shared=shared, **values), plans(workload, **{"bucket_bytes": 2**22, **given})
        ).named()
        assert set(named["reason"]) == {""}
        assert sum(named[name] for name in PARTS) == pytest.approx(named["step_time_s"])
        found.append(named)
    return found[0], found[1]


DENSE, EXPERTS = "llama3-8b", "qwen3-30b-a3b"
TIED: list[tuple[str, dict[str, Any]]] = [
    (DENSE, {"tp": 2, "pp": 2, "all_gpus": 8, "ga": 4, "overlap_grad": 1}),  # one node
    (DENSE, {"tp": 8, "all_gpus": 64, "ga": 4, "overlap_grad": 1}),  # nothing but gradients leaves the nodes
    (EXPERTS, {"ep": 8, "all_gpus": 64, "ga": 2, "overlap_grad": 1}),
    (EXPERTS, {"tp": 2, "ep": 32, "all_gpus": 64, "ga": 2, "overlap_grad": 0, "overlap_param": 0}),  # one after the other
]


@pytest.mark.parametrize(("model", "given"), TIED)
def test_where_nothing_shares_no_bit_changes(model: str, given: dict[str, Any]) -> None:
    alone, shared = both(work(model), given)
    for name in METRICS:
        assert alone[name].tobytes() == shared[name].tobytes(), name


SHARING: list[tuple[str, dict[str, Any]]] = [
    (DENSE, {"tp": 8, "pp": 4, "all_gpus": 64, "ga": 8, "overlap_grad": 1}),
    (DENSE, {"tp": 8, "pp": 2, "vpp": 2, "all_gpus": 64, "ga": 8, "overlap_grad": 1, "overlap_pp": 1}),
    (DENSE, {"cp": 16, "all_gpus": 64, "sharding": "parameters", "overlap_grad": 1, "overlap_param": 1}),
    (EXPERTS, {"tp": 2, "ep": 32, "all_gpus": 64, "ga": 2, "overlap_grad": 1}),
    (EXPERTS, {"tp": 2, "ep": 32, "pp": 2, "all_gpus": 64, "ga": 4, "schedule": "1f1b", "overlap_grad": 1, "overlap_pp": 1}),
    (EXPERTS, {"tp": 2, "ep": 32, "pp": 2, "all_gpus": 64, "ga": 4, "schedule": "zb-h1", "overlap_grad": 1}),
    (EXPERTS, {"tp": 2, "ep": 16, "pp": 4, "all_gpus": 64, "ga": 8, "schedule": "dualpipe", "overlap_grad": 1}),
    (EXPERTS, {"tp": 4, "ep": 32, "all_gpus": 64, "sharding": "gradients", "overlap_grad": 1, "ga": 2}),
    (EXPERTS, {"tp": 2, "ep": 32, "all_gpus": 64, "ga": 2, "overlap_grad": 1, "overlap_param": 1, "overlap_ep": 1}),
    (EXPERTS, {"tp": 2, "ep": 32, "all_gpus": 64, "ga": 2, "overlap_grad": 1, "dispatcher": "flex"}),
]


def sent_bytes(workload: Workload, given: dict[str, Any]) -> float:
    """Bytes that a GPU sends to other nodes in a step, from the documents, group by group: gradients, parameters, all-to-alls,
    ring hops and pipeline messages of a middle layer's rank; a lower bound."""
    assert workload.modelled
    model = workload.modelled.model
    plan = {"tp": 1, "pp": 1, "ep": 1, "cp": 1, "ga": 1, "vpp": 1, **given}
    tp, pp, ep, cp, ga, gpus = (plan[name] for name in ("tp", "pp", "ep", "cp", "ga", "all_gpus"))
    tokens = sequence_of(model) / tp / cp
    layers = model.layers / pp
    hidden, dp = model.hidden, gpus // (tp * pp)
    attention = 2 * hidden * model.head_dim * (model.heads + model.kv_heads) / tp
    dense = layers * (attention + (0 if model.experts else 3 * hidden * (model.ffn or 0) / tp))
    total = 0.0
    if dp * tp > 8:
        # each of a node's 8/tp members of a dp group sends its part of what leaves the node
        total += (4 + 2) * dense * (dp - 8 / tp) / dp / (8 / tp)
        if plan.get("sharding") == "parameters":
            total += 2 * dense * (dp - 8 / tp) / dp / (8 / tp)  # again before the backward
    if model.experts and ep > 8:
        topk, nodes = model.experts.topk, ep / 8  # tp does not divide experts: a group is neighbours
        copies = topk * (ep - 8) / ep
        if plan.get("dispatcher") == "flex":
            copies = (nodes - 1) * (1 - (1 - 1 / nodes) ** topk)  # a remote node is missed by all experts, or gets one
        total += 4 * ga * layers * tokens * copies * hidden * 2  # there and back, both ways
    if cp > 8:
        total += 0  # only the last rank of a node sends to another one
    if pp > 1 and gpus // pp >= 8:
        total += 2 * ga * tokens * hidden * 2 * (pp - 1) / pp
    return total


@pytest.mark.parametrize(("model", "given"), SHARING)
@pytest.mark.parametrize("slower", [1, 30])
def test_no_step_is_shorter_than_its_bytes(model: str, given: dict[str, Any], slower: int) -> None:
    """And sharing never makes a step faster, nor changes what is sent."""
    workload = work(model)
    values = {"nic_bandwidth": f"{400 / slower} Gb/s", "nic_efficiency": 1, "fabric_efficiency": 1}
    alone, shared = both(workload, given, **values)
    assert shared["step_time_s"][0] >= alone["step_time_s"][0]
    assert shared["step_time_s"][0] >= sent_bytes(workload, given) / (50e9 / slower)
    for name in ("tp", "ep", "cp", "dp", "pp"):
        assert shared[f"{name}_exposed_s"] >= -1e-12
        assert shared[f"{name}_total_s"] >= shared[f"{name}_exposed_s"] - 1e-9 or name == "dp"


@pytest.mark.parametrize(("model", "given"), [case for case in SHARING if "schedule" not in case[1]])
def test_what_shares_nics_is_slower(model: str, given: dict[str, Any]) -> None:
    alone, shared = both(work(model), given)
    assert alone["step_time_s"][0] <= shared["step_time_s"][0] < 1.3 * alone["step_time_s"][0]
    few = "dispatcher" in given  # messages: gradients keep up with the backward in what these leave of the NICs
    assert few or alone["step_time_s"][0] < shared["step_time_s"][0]


def test_a_saturated_network_is_busy_all_the_time() -> None:
    """On NICs so slow that compute is nothing beside them, the step is what they carry: sharing hides nothing."""
    given = {"tp": 2, "ep": 32, "all_gpus": 64, "ga": 1, "overlap_grad": 1, "bucket_bytes": 2**20}
    workload = work(EXPERTS)
    values = {"nic_bandwidth": "0.1 Gb/s", "nic_efficiency": 1, "fabric_efficiency": 1, "nic_latency": "0 s"}
    alone, shared = both(workload, given, **values)
    carried = alone["ep_total_s"][0] + alone["dp_total_s"][0]
    assert alone["step_time_s"][0] < 0.99 * carried
    assert shared["step_time_s"][0] == pytest.approx(carried, rel=0.02)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_blocks_that_send_nothing_share_nothing(schedule: str) -> None:
    """The last virtual stage sends no activations, the first no gradients, a V's turn stays on its stage; all others do.

    Of a V in the steady state a forward follows a weight gradient, after which the message before is gone.
    """
    vpp = 2 if schedule == "zb-v" else 1
    given: dict[str, Any] = {"cp": 16, "pp": 2, "vpp": vpp, "all_gpus": 32, "ga": 4, "schedule": schedule}
    given |= {"overlap_pp": 1, "overlap_grad": 0}
    workload = work(DENSE)
    lasting: list[dict[tuple[int, int, int], float]] = []
    for on in (False, True):
        events = trace(workload, network(shared=on, nic_bandwidth="50 Gb/s"), plans(workload, **given))
        blocks = zip(events.stage.tolist(), events.chunk.tolist(), events.backward.tolist(), strict=True)
        seconds = (events.end_s - events.start_s).tolist()
        lasting.append({b: s for b, s, part in zip(blocks, seconds, events.part, strict=True) if part < WEIGHT_PART})
    alone, shared = lasting
    slowed = {block for block, seconds in shared.items() if seconds > alone[block] + 1e-6}
    after_weights = {(0, 0, 0), (1, 1, 0)} if schedule == "zb-v" else set()
    quiet = {"1f1b": {(1, 0, 0), (0, 0, 1)}, "zb-v": {(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)}}[schedule]
    assert slowed == alone.keys() - quiet - after_weights


def test_pairs_without_experts_wait_for_their_pipeline_messages() -> None:
    """DualPipe with ep 1: nothing is booked as EP, on plans alone and in lanes; parts add up; the timeline has the row's."""
    workload = work(DENSE)
    given: dict[str, Any] = {"tp": 8, "pp": 4, "all_gpus": 32, "schedule": "dualpipe", "overlap_grad": 1}
    slow = {"nic_bandwidth": "2 Gb/s"}
    alone, shared = both(workload, {**given, "ga": [8, 8, 16]}, **slow)
    assert (shared["step_time_s"] > alone["step_time_s"]).all()
    assert (shared["pp_exposed_s"] + shared["pp_queued_s"] > alone["pp_exposed_s"]).all()
    assert not shared["ep_exposed_s"].any()
    assert not shared["ep_total_s"].any()
    drawn = timeline(workload, network(shared=True, **slow), plans(workload, **{"bucket_bytes": 2**22, **given, "ga": 8}))
    of_stages = drawn.spans.parts.sum(axis=0) / given["pp"]
    assert of_stages == pytest.approx([shared[name][0] for name in PARTS], rel=1e-9, abs=1e-12)
