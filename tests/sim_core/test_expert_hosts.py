"""The host in layers with experts, by hand: what it adds to a step, what graphs take from it, what overlap hides, kernels."""

from typing import Any, Final, Literal

import numpy as np
import pytest

from sim_core import (
    METRICS,
    Model,
    hardware_table,
    parse_model,
    plans,
    read_hardware,
    read_model,
    simulate,
    workload_from_model as workload_of,
)
from sim_core.hardware.kernels.attention import in_8_bits
from sim_core.models.keys import make_keys
from sim_core.models.operators import operators
from sim_core.models.precision import PRECISION_NAMES
from sim_core.terms import FORWARD, INPUT_GRADIENT
from tests.facts import FREE_HOST, stack_with

TABLE = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)
LAYERS, GA, EXPERTS, EP, TOKENS, HIDDEN, FFN, TOPK = 4, 8, 16, 8, 4096, 2048, 1024, 4
LOCAL = EXPERTS // EP
SMALL: dict[str, object] = {
    "name": "small", "source": "a test", "layers": LAYERS, "hidden": HIDDEN, "heads": 16, "kv_heads": 16, "vocabulary": 32768,
    "sequence": TOKENS, "gated": True, "activation": "silu", "norm": "rmsnorm", "position": "rotary", "tied": True,
    "experts": {"count": EXPERTS, "topk": TOPK, "ffn": FFN},
}  # fmt: skip
PADDED = {"count": EXPERTS, "topk": TOPK, "ffn": FFN, "capacity_factor": 1.0, "pad_to_capacity": True}
PLAN: dict[str, Any] = {"ep": EP, "all_gpus": 8, "ga": GA, "micro_batch": 1, "dispatcher": "flex"}


def step(facts: dict[str, object] | None = None, model: dict[str, object] | None = None, **plan: object) -> dict[str, float]:
    """The measures of a step of SMALL on one node, on facts of megatron-core without any host time, and `facts`."""
    bare = {"host_forward": "0 s", "host_backward": "0 s", "jitter": 0}
    work = workload_of(
        parse_model(SMALL | (model or {}), ""),
        stack_with(**FREE_HOST).with_facts(bare | (facts or {})),
        sequence_parallel=True,
    )
    columns = simulate(work, TABLE, plans(work, **(PLAN | plan))).named()
    assert columns["reason"][0] == ""
    return {name: float(columns[name][0]) for name in METRICS}


def added(facts: dict[str, object], model: dict[str, object] | None = None, **plan: object) -> float:
    """Seconds that facts add to one pass of a layer."""
    before, after = step({}, model, **plan), step(facts, model, **plan)
    return (after["step_time_s"] - before["step_time_s"]) / (LAYERS * GA)


def test_a_device_waits_for_the_launch_of_each_expert() -> None:
    """2 experts a rank: 2 (10 + 30) us a pass."""
    facts: dict[str, object] = {"host_expert": ["10 us", "30 us"]}
    assert added(facts) == pytest.approx(LOCAL * 40e-6, rel=1e-6)
    assert step(facts)["launch_s"] == pytest.approx(LAYERS * GA * LOCAL * 40e-6, rel=1e-6)
    assert added(facts, ep=4) == pytest.approx(2 * LOCAL * 40e-6, rel=1e-6)


def test_casts_and_padding_are_those_of_8_bits() -> None:
    """Padding: where alltoall waits for counts; with padded capacities tokens come in full tiles."""
    casts: dict[str, object] = {"host_expert_casts": ["20 us", "20 us"]}
    padding: dict[str, object] = {"host_expert_padding": ["5 us", "15 us"]}
    assert added(casts) == added(padding) == added(padding, precision="fp8_tensorwise") == 0
    assert added(casts, precision="fp8_tensorwise") == pytest.approx(LOCAL * 40e-6, rel=1e-6)
    assert added(padding, precision="fp8_tensorwise", dispatcher="alltoall") == pytest.approx(LOCAL * 20e-6, rel=1e-6)
    assert added(padding, {"experts": PADDED}, precision="fp8_tensorwise", dispatcher="alltoall") == 0


@pytest.mark.parametrize(
    ("graphs", "left_s"),  # of 100 ms of a dense layer, 40 of experts of which the router is a quarter, 2 experts of 5 ms
    [("none", 0.15), ("router", 0.14), ("attention", 0.05), ("attention and router", 0.04), ("full", 0.0)],
)
def test_what_graphs_leave_to_the_host(graphs: str, left_s: float) -> None:
    """All passes wait for the host: its time is the step's, forward and backward alike."""
    facts: dict[str, object] = {
        "host_forward": "100 ms", "host_backward": "100 ms", "host_experts": ["40 ms", "40 ms"], "router_share": 0.25,
        "host_expert": ["5 ms", "5 ms"], "graphs": graphs,
    }  # fmt: skip
    seconds = step(facts)["step_time_s"]
    bare = step()["step_time_s"]
    assert seconds == pytest.approx(LAYERS * GA * 2 * left_s, abs=bare) if left_s else seconds == bare


def test_a_dense_layer_is_launched_by_graphs_of_attention_too() -> None:
    dense: dict[str, object] = {"experts": None, "ffn": 4096}
    host: dict[str, object] = {"host_forward": "100 ms", "host_backward": "100 ms"}
    slow = step(host, dense, ep=1)["step_time_s"]
    assert slow == pytest.approx(LAYERS * GA * 0.2, rel=0.1)
    for graphs in ("attention", "full"):
        assert step({**host, "graphs": graphs}, dense, ep=1)["step_time_s"] == step({}, dense, ep=1)["step_time_s"]


def test_alltoall_and_overlap_cost_the_host_more() -> None:
    """100 ms of experts and 40 of alltoall, both ways; under overlap_ep twice as much; no wait with padded capacities."""
    facts: dict[str, object] = {
        "host_experts": ["100 ms", "100 ms"], "host_alltoall": ["40 ms", "40 ms"], "host_overlap_ep": 2,
    }  # fmt: skip
    near, passes = step()["step_time_s"], 2 * LAYERS * GA
    assert step(facts)["step_time_s"] == pytest.approx(passes * 0.1, abs=near)
    assert step(facts, dispatcher="alltoall")["step_time_s"] == pytest.approx(passes * 0.14, abs=near)
    assert step(facts, overlap_ep=True)["step_time_s"] == pytest.approx(passes * 0.2, abs=near)
    assert step(facts, {"experts": PADDED}, dispatcher="alltoall")["step_time_s"] == pytest.approx(passes * 0.1, abs=near)


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev"])
@pytest.mark.parametrize("graphs", ["none", "attention"])
def test_pairs_are_the_overlap_of_experts(schedule: str, graphs: str) -> None:
    """DualPipe runs a forward beside a backward by itself (arXiv 2412.19437, section 3.2.1): the switch of Megatron-Core's
    combined 1F1B launches nothing there, and changes no part of a step."""
    facts: dict[str, object] = {"host_experts": ["100 ms", "60 ms"], "host_overlap_ep": 2, "graphs": graphs}
    plan: dict[str, Any] = {"schedule": schedule, "pp": 2, "vpp": 2 if schedule == "dualpipev" else 1, "ga": 4, "all_gpus": 16}
    assert step(facts, overlap_ep=True, **plan) == step(facts, overlap_ep=False, **plan)


@pytest.mark.parametrize("ga", [1, 2, 8])
def test_overlap_hides_what_was_measured_where_the_host_waits(ga: int) -> None:
    """0.44 of all messages of experts, but for the first forward and the last backward, which have nothing beside them
    (combined_1f1b_schedule_for_no_pipelining); without a wait all that compute covers, but for contention."""
    facts: dict[str, object] = {"overlap_ep_hidden": 0.44}
    hidden = step(facts, overlap_ep=True, ga=ga)
    assert hidden["ep_exposed_s"] == pytest.approx((1 - 0.44 * (ga - 1) / ga) * hidden["ep_total_s"], rel=1e-9)
    if ga == 1:
        assert hidden == step(facts, overlap_ep=False, ga=1)
    assert hidden["ep_total_s"] == pytest.approx(step(ga=ga)["ep_total_s"], rel=1e-9)
    whole = step({**facts, "graphs": "full", "contention": 0.25}, overlap_ep=True, ga=ga)
    assert whole["ep_exposed_s"] == pytest.approx((1 - 0.75 * (ga - 1) / ga) * whole["ep_total_s"], rel=1e-9)


def interleaved_s(pp: int, vpp: int, ga: int, alone_s: float, beside_s: float) -> float:
    """Seconds of Megatron-LM's interleaved 1F1B of blocks that take `alone_s` in warm-up and cool-down, else `beside_s`.

    One more forward than usual comes first, and each forward that follows is a pair with a backward."""
    blocks, ended, at, now = ga * vpp, dict[tuple[str, int, int], float](), [0] * pp, [0.0] * pp
    warm = [min(2 * (pp - 1 - stage) + (vpp - 1) * pp + 1, blocks) for stage in range(pp)]

    def nth(stage: int, place: int) -> tuple[str, int]:
        steady = place - warm[stage]
        if steady < 0:
            return "forward", place
        if steady >= 2 * (blocks - warm[stage]):
            return "backward", place - blocks
        return ("backward", steady // 2) if steady % 2 else ("forward", warm[stage] + steady // 2)

    while min(at) < 2 * blocks:
        for stage in range(pp):
            while at[stage] < 2 * blocks:
                way, number = nth(stage, at[stage])
                rest, group = number % (pp * vpp), number // (pp * vpp)
                of_batch, forward = group * pp + rest % pp, way == "forward"
                virtual = (rest // pp if forward else vpp - 1 - rest // pp) * pp + stage
                before = virtual - 1 if forward else virtual + 1
                own = ("forward", of_batch, virtual) if before == pp * vpp else (way, of_batch, before)
                if before >= 0 and own not in ended:
                    break
                lone = number < warm[stage] if forward else number >= blocks - warm[stage]
                now[stage] = max(now[stage], ended.get(own, 0.0)) + (alone_s if lone else beside_s)
                ended[way, of_batch, virtual] = now[stage]
                at[stage] += 1
    return max(now)


@pytest.mark.parametrize(("pp", "vpp", "ga"), [(1, 1, 4), (2, 2, 2), (2, 2, 8), (4, 2, 4), (4, 2, 16), (4, 4, 8), (8, 2, 8)])
def test_blocks_of_warm_up_and_cool_down_have_nothing_beside_them(pp: int, vpp: int, ga: int) -> None:
    """A block takes what a micro-batch adds to a step of one stage; the order of blocks is Megatron-LM's."""
    model: dict[str, object] = {"layers": pp * vpp, "vocabulary": 128}

    def seconds(overlap_ep: bool, **plan: object) -> float:
        return step({"overlap_ep_hidden": 0.44}, model, overlap_ep=overlap_ep, **plan)["step_time_s"]

    alone_s, beside_s = ((seconds(on, ga=3) - seconds(on, ga=2)) / (2 * pp * vpp) for on in (False, True))
    plan: dict[str, Any] = {"pp": pp, "vpp": vpp, "ga": ga, "all_gpus": 8 * pp}
    saved_s = interleaved_s(pp, vpp, ga, alone_s, alone_s) - interleaved_s(pp, vpp, ga, alone_s, beside_s)
    assert seconds(False, **plan) - seconds(True, **plan) == pytest.approx(saved_s, rel=1e-2)


def test_metadata_crosses_nodes_once_a_layer() -> None:
    """10 ms more a message are 10 ms more a pass; nothing inside a node, with alltoall, or without experts elsewhere."""
    two: dict[str, Any] = {"ep": 16, "all_gpus": 16}
    times = [step({"metadata_across": f"{ms} ms"}, **two)["ep_total_s"] for ms in (10, 20)]
    assert times[1] - times[0] == pytest.approx(LAYERS * GA * 10e-3, rel=1e-6)
    assert added({"metadata_across": "10 ms"}) == 0
    assert added({"metadata_across": "10 ms"}, **two, dispatcher="alltoall") == 0


def of_layer(model: Model, unit: int = 0, precision: str = "bf16", **kernels: Any) -> dict[tuple[str, int], dict[str, float]]:
    """Bytes, launches and FLOPs of the operators of a layer of one rank, by name and phase."""
    keys = make_keys(ep=EP, precision=PRECISION_NAMES.index(precision))
    found = operators(model, model.layer_units[unit], keys, stack_with(**kernels))
    rows = zip(found.names, found.phase, found.bytes[0], found.kernels[0], found.flops[0], strict=True)
    return {(name, int(phase)): {"bytes": b, "kernels": k, "flops": f} for name, phase, b, k, f in rows}


def test_biases_of_experts_and_fused_experts() -> None:
    """4096 tokens in 4 copies of 2048 channels; 28 and 40 bytes of each where the bias is added by operators of its own."""
    model = parse_model(SMALL | {"mlp_bias": True}, "")
    apart = of_layer(model, expert_bias_bytes=(28.0, 40.0))
    copies = TOKENS * TOPK * HIDDEN
    assert apart["experts_output_bias", FORWARD]["bytes"] == 28 * copies
    assert apart["experts_output_bias", INPUT_GRADIENT]["bytes"] == 40 * copies
    fused = of_layer(model, fused_experts=True)
    assert {"experts_output_bias", "experts_bias", "experts_activation"}.isdisjoint(name for name, _ in fused)
    assert fused["experts_fc1", FORWARD]["flops"] == apart["experts_fc1", FORWARD]["flops"]


def test_fused_experts_write_their_operands_in_8_bits() -> None:
    """mxfp8 casts 4 bytes an element. Not those of the second product's input, nor of the first one's output gradient."""
    model = parse_model(SMALL, "")
    apart, fused = (of_layer(model, precision="mxfp8", fused_experts=on) for on in (False, True))
    second, first = TOKENS * TOPK * FFN, TOKENS * TOPK * 2 * FFN
    assert apart["casts", FORWARD]["bytes"] - fused["casts", FORWARD]["bytes"] == 4 * second
    assert apart["casts", INPUT_GRADIENT]["bytes"] - fused["casts", INPUT_GRADIENT]["bytes"] == 4 * first


def test_a_router_without_fusion_has_72_kernels_for_31() -> None:
    fused, apart = (of_layer(parse_model(SMALL, ""), fused_router=on) for on in (True, False))
    for phase in (FORWARD, INPUT_GRADIENT):
        assert apart["routing", phase]["kernels"] / fused["routing", phase]["kernels"] == pytest.approx(72 / 31)


def test_what_sinks_in_windows_cost_is_linear_in_tokens() -> None:
    """gpt-oss: every second layer has a window. Of a sequence twice as long it is twice as much, not four times."""
    found = {}
    for sequence in (4096, 8192):
        model = read_model("gpt-oss-20b", {"sequence": sequence})
        rows = [of_layer(model, unit, fused_window_sinks=False) for unit in range(2)]
        windows = [unit.window > 0 for unit in model.layer_units]
        assert [("window_sinks", FORWARD) in each for each in rows] == windows
        assert all(("attention", FORWARD) in each for each in rows)
        assert all(("window_sinks", FORWARD) not in of_layer(model, unit) for unit in range(2))
        found[sequence] = sum(rows[windows.index(True)]["window_sinks", way]["bytes"] for way in (FORWARD, INPUT_GRADIENT))
    assert found[8192] == 2 * found[4096] == 8192 * 64 * 64 * (540 + 1080)


def test_attention_in_8_bits_takes_as_long_as_nvidia_measured() -> None:
    """Causal, 64 heads: 1.141 ms in 8 bits and 1.708 in 16 forward, 6.392 and 5.083 backward on an H200, 1.851 and 2.150 on a
    GB200 (8,192 tokens; cuDNN 9.18 and 9.19); a step in 16 bits has it in 16."""
    found = [float(in_8_bits(device, phase, np.array([8192.0]))[0]) for device, phase in WHERE]
    assert found == pytest.approx([1.141 / 1.708, 6.392 / 5.083, 1.851 / 2.150, 1.851 / 2.150, 1.728 / 1.976], rel=0.01)
    plain: dict[str, object] = {"fp8_attention": False}
    narrow: dict[str, object] = {"fp8_attention": True}
    assert step(plain) == step(narrow)
    model: dict[str, object] = {"heads": 64, "kv_heads": 64, "head_dim": 128}
    attention = []
    for facts in (plain, narrow):
        once, twice = (
            step(facts | {"attention_scale": scale}, model, precision="fp8_tensorwise")["compute_forward_s"] for scale in (1, 2)
        )
        attention.append(twice - once)
    assert attention[1] / attention[0] == pytest.approx(0.69, rel=1e-6)


WHERE: Final[tuple[tuple[str, Literal["forward", "backward"]], ...]] = (
    ("H100-SXM", "forward"), ("H200-SXM", "backward"), ("GB200", "backward"), ("B200-SXM", "backward"),
    ("B300-SXM", "backward"),
)  # fmt: skip


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (2, 2)])
def test_a_virtual_stage_begins_each_micro_batch(pp: int, vpp: int) -> None:
    """GA micro-batches of vpp chunks wait on the last stage, the first of them after those of the stages before it. Nothing
    waits where there is no other stage, or a graph of the whole step."""
    dense: dict[str, object] = {"experts": None, "ffn": 8192}
    plan: dict[str, Any] = {"pp": pp, "vpp": vpp, "ep": 1, "ga": GA, "dispatcher": "alltoall"}
    for graphs in ("none", "full"):
        facts: dict[str, object] = {"graphs": graphs}
        without, with_it = (step(facts | {"host_micro_batch": each}, dense, **plan) for each in ("0 s", "20 ms"))
        waits = graphs == "none" and pp > 1
        assert with_it["step_time_s"] - without["step_time_s"] == pytest.approx(waits * (GA * vpp + pp - 1) * 20e-3, rel=1e-6)
        assert with_it["launch_s"] - without["launch_s"] == pytest.approx(waits * GA * vpp * 20e-3, rel=1e-6)


def test_collectives_of_a_layer_take_the_host_as_long_as_each_says() -> None:
    """At tp 2 with sequence parallelism: two gathers and two scatters forward, two of each and two more gathers backward; at
    tp 1 there are none. The host is what the device waits for."""
    dense: dict[str, object] = {"experts": None, "ffn": 8192}
    plan: dict[str, Any] = {"ep": 1, "ga": GA, "dispatcher": "alltoall"}
    bound: dict[str, object] = {"host_forward": "50 ms", "host_backward": "100 ms"}
    for tp, calls in ((1, 0), (2, 4 + 6)):
        found = [step(bound | {"host_collective": each}, dense, tp=tp, **plan)["step_time_s"] for each in ("0 s", "1 ms")]
        assert found[1] - found[0] == pytest.approx(GA * LAYERS * calls * 1e-3, rel=1e-6)
