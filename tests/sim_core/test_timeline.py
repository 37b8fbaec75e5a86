"""The timeline of a plan: its seconds add up to the parts of the result, nothing overlaps, messages keep their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    SCHEDULES,
    SPAN_KINDS,
    STREAMS,
    Facts,
    HardwareTable,
    Timeline,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_model,
    read_stack,
    read_workload,
    shape_of,
    simulate,
    timeline,
    trace,
    workload_from_model,
)
from sim_core.metrics import PEAK_BYTES
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES

COMPUTE = STREAMS.index("compute")


@pytest.fixture(scope="module")
def dense() -> Workload:
    return workload_from_model(read_model("llama3-8b", {"sequence": 4096}), read_stack("megatron-core"), sequence_parallel=True)


@pytest.fixture(scope="module")
def experts() -> Workload:
    return workload_from_model(
        read_model("mixtral-8x7b", {"sequence": 4096}), read_stack("megatron-core"), sequence_parallel=True
    )


@pytest.fixture(scope="module")
def torchtitan() -> Workload:
    return workload_from_model(read_model("llama3-8b", {"sequence": 4096}), read_stack("torchtitan"), sequence_parallel=True)


SIZES: dict[str, Any] = {"tp": 2, "pp": 4, "all_gpus": 64, "ga": 8, "checkpointing": "none"}
CASES: dict[str, dict[str, Any]] = {
    "blocking sends": {"overlap_pp": False},
    "background sends": {"overlap_pp": True},
    "nothing overlaps": {"overlap_pp": False, "overlap_grad": False, "overlap_param": False},
    "interleaved": {"vpp": 4, "checkpointing": "full"},
    "interleaved, overlapped tp": {"vpp": 2, "overlap_tp": True, "checkpointing": "selective"},
    "recompute of some layers": {"checkpointing": "block:3"},
    "recompute of modules": {"checkpointing": "layernorm"},
    "gpipe": {"schedule": "gpipe", "overlap_pp": True},
    "looped": {"schedule": "looped-bfs", "vpp": 2},
    "deepspeed": {"schedule": "1f1b-deepspeed", "overlap_pp": False, "overlap_grad": False},
    "zero bubble": {"schedule": "zb-h1"},
    "zero bubble, two": {"schedule": "zb-h2", "overlap_grad": False},
    "interleaved zero bubble": {"schedule": "interleaved-zb", "vpp": 2},
    "v": {"schedule": "zb-v", "vpp": 2},
    "v with half": {"schedule": "v-half", "vpp": 2, "checkpointing": "full"},
    "pairs in a v": {"schedule": "dualpipev", "vpp": 2},
    "pairs both ways": {"schedule": "dualpipe"},
    "post-validation": {"post_validation": True, "overlap_pp": True},
    "post-validation, split": {"post_validation": True, "schedule": "zb-h1"},
    "context parallel": {"cp": 2, "pp": 2},
    "on the host": {"optimizer_offload": 0.7, "overlap_offload": False, "activation_offload": 0.5, "vpp": 4},
    "a straggler": {"straggler_stage": 2, "straggler_factor": 1.3},
    "deepspeed without a barrier": {
        **{"schedule": "1f1b-deepspeed", "overlap_pp": False, "overlap_grad": False},
        **{"post_validation": True, "checkpointing": "full"},
    },
    "one stage": {"pp": 1, "ga": 2},
}


def _adds_up(found: Timeline) -> None:
    """Parts of all spans are those of the result; on each stage blocks and waits fill the step without a gap."""
    result, step_s = found.result(), found.result()["step_time_s"]
    for name, seconds in found.totals().items():
        assert seconds == pytest.approx(result[name], rel=1e-9, abs=1e-9 * step_s), name
    spans = found.spans
    for stage in range(found.stages):
        mine = (spans.stage == stage) & (spans.stream == COMPUTE)
        start_s, end_s = spans.start_s[mine], spans.end_s[mine]
        assert start_s[1:] == pytest.approx(end_s[:-1], rel=1e-9, abs=1e-9 * step_s), stage
        assert end_s[-1] - start_s[0] == pytest.approx(step_s, rel=1e-9), stage
    lasting = spans.end_s - spans.start_s
    blocks = spans.parts.sum(axis=1) > 0
    single = blocks & (spans.stream == COMPUTE) & ~np.isin(spans.kind, (0, 1))
    assert spans.parts.sum(axis=1)[single] == pytest.approx(lasting[single], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_its_seconds_are_the_parts_of_the_result(dense: Workload, h100: HardwareTable, case: str) -> None:
    _adds_up(timeline(dense, h100, plans(dense, **SIZES | CASES[case])))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev", "zb-v", "dualpipe"])
def test_experts_too(experts: Workload, h100: HardwareTable, schedule: str) -> None:
    vpp = 2 if schedule in ("dualpipev", "zb-v") else 1
    sizes = SIZES | {"tp": 1, "ep": 4, "schedule": schedule, "vpp": vpp, "checkpointing": "full"}
    found = timeline(experts, h100, plans(experts, **sizes))
    assert found.result()["ep_exposed_s"] > 0
    _adds_up(found)


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
@pytest.mark.parametrize("overlap", [True, False])
def test_sharded_layers_too(torchtitan: Workload, h100: HardwareTable, sharding: str, overlap: bool) -> None:
    switches: dict[str, Any] = {"sharding": sharding, "overlap_grad": overlap, "overlap_param": overlap}
    found = timeline(torchtitan, h100, plans(torchtitan, tp=1, pp=2, dp=32, ga=4, checkpointing="full", **switches))
    _adds_up(found)
    sent = {SPAN_KINDS[kind] for kind in found.spans.kind[found.spans.stream != COMPUTE]}
    assert sent >= ({"gather parameters", "reduce gradients"} if sharding == "parameters" else {"reduce gradients"})


@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_the_time_of_the_host_too(h100: HardwareTable, sharding: str) -> None:
    model = read_model("llama2-7b", {"sequence": 2048})
    nanotron = workload_from_model(model, read_stack("nanotron"), sequence_parallel=True)
    _adds_up(timeline(nanotron, h100, plans(nanotron, tp=2, pp=2, dp=8, ga=4, micro_batch=1, sharding=sharding)))


def test_a_file_too(gpt7b: Workload, h100: HardwareTable) -> None:
    for given in ({"checkpointing": "file"}, {"pp": 4, "ga": 8, "checkpointing": "full"}, {"pp": 4, "vpp": 3, "ga": 8}):
        _adds_up(timeline(gpt7b, h100, plans(gpt7b, **given)))


def test_hidden_messages_are_the_total_less_the_exposed_part(dense: Workload, h100: HardwareTable) -> None:
    """Seconds of all buckets of gradients and parameters are dp_total_s; those of one stream never overlap."""
    found = timeline(dense, h100, plans(dense, **SIZES))
    spans = found.spans
    of_dp = np.isin(spans.stream, (STREAMS.index("gradients"), STREAMS.index("parameters")))
    total_s = (spans.end_s - spans.start_s)[of_dp].sum() / found.stages
    assert total_s == pytest.approx(found.result()["dp_total_s"], rel=1e-9)
    sends = spans.stream == STREAMS.index("sends")
    assert not sends.any(), "blocking sends are waits"
    for stream in ("gradients", "parameters"):
        for stage in range(found.stages):
            mine = (spans.stream == STREAMS.index(stream)) & (spans.stage == stage)
            assert (spans.start_s[mine][1:] >= spans.end_s[mine][:-1] - 1e-12).all()


def test_a_message_begins_when_its_block_ends(dense: Workload, h100: HardwareTable) -> None:
    plan = plans(dense, **SIZES, vpp=2)
    found, events = timeline(dense, h100, plan).spans, trace(dense, h100, plan)
    down = found.kind == SPAN_KINDS.index("send activations")
    ends = {(int(s), int(c), int(m)): float(e) for s, c, m, b, e in zip(
        events.stage, events.chunk, events.micro_batch, events.backward, events.end_s, strict=True) if b == 0}  # fmt: skip
    assert down.sum() == (4 * 2 - 1) * 8, "every virtual stage but the last sends each micro-batch"
    for row in np.flatnonzero(down):
        key = (int(found.stage[row]), int(found.chunk[row]), int(found.micro_batch[row]))
        assert found.start_s[row] == pytest.approx(ends[key], rel=1e-12)


SHARING: dict[str, dict[str, Any]] = {
    "gradients and sends": {"pp": 2, "ep": 16, "tp": 1, "ga": 4, "overlap_pp": True},
    "blocking sends": {"pp": 2, "ep": 16, "tp": 1, "ga": 4, "overlap_pp": False},
    "interleaved": {"pp": 4, "vpp": 4, "ep": 16, "tp": 1, "ga": 4},
    "zero bubble": {"pp": 4, "ep": 16, "tp": 1, "schedule": "zb-h1"},
    "a v": {"pp": 4, "vpp": 2, "ep": 16, "tp": 1, "schedule": "zb-v"},
    "pairs": {"pp": 2, "ep": 16, "tp": 1, "ga": 8, "schedule": "dualpipe"},
    "sharded layers": {"pp": 1, "ep": 16, "tp": 1, "ga": 2, "sharding": "gradients", "overlap_grad": True},
}


@pytest.mark.parametrize("case", SHARING)
def test_what_shares_nics_shows_by_how_much(case: str) -> None:
    """Of each block and message; buckets and gathers with it are the row's total; the last bucket ends in time."""
    model = read_model("qwen3-30b-a3b", {"sequence": 4096, "layers": 16})
    experts = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    sizes = SIZES | {"all_gpus": 64 * SHARING[case]["pp"], "checkpointing": "full", "bucket_bytes": 2**24} | SHARING[case]
    plan = plans(experts, **sizes)
    slow = read_hardware("H100-SXM").with_values({"nic_bandwidth": "100 Gb/s", "memory": "100 TB"})
    alone, found = (
        timeline(experts, hardware_table([slow.with_values({"shared_nics": on})], None), plan) for on in (False, True)
    )
    assert not alone.spans.shared_s.any()
    _adds_up(found)
    spans, result = found.spans, found.result()
    assert (spans.shared_s <= (spans.end_s - spans.start_s) * (1 + 1e-9)).all()
    longer = {STREAMS[stream] for stream in spans.stream[spans.shared_s > 0]}
    assert longer >= {"compute"} | ({"sends"} if sizes["pp"] > 1 and sizes.get("overlap_pp") is not False else set())
    of_dp = np.isin(spans.stream, (STREAMS.index("gradients"), STREAMS.index("parameters")))
    if sizes.get("schedule") == "dualpipe":
        return  # the sum over its two copies is not among the spans
    assert (spans.end_s - spans.start_s)[of_dp].sum() / found.stages == pytest.approx(result["dp_total_s"], rel=1e-9)
    if "schedule" not in sizes:
        assert "gradients" in longer
        for stage in range(found.stages):
            mine = spans.stage == stage
            buckets = mine & (spans.stream == STREAMS.index("gradients"))
            ended_s = max(
                spans.end_s[mine & (spans.kind == SPAN_KINDS.index(kind))].max(initial=0.0)
                for kind in ("backward", "wait for gradients")
            )
            assert spans.end_s[buckets].max() <= ended_s * (1 + 1e-9)


def most_held(found: Timeline) -> list[float]:
    """The highest memory of each stage."""
    return [float(found.held.bytes[found.held.stage == stage].max()) for stage in range(found.stages)]


@pytest.mark.parametrize("case", CASES)
def test_memory_is_at_its_highest_what_the_row_has(dense: Workload, h100: HardwareTable, case: str) -> None:
    """Where weight gradients run apart the row looks at five moments of each stage: nearly."""
    plan = plans(dense, **SIZES | CASES[case])
    found, shape = timeline(dense, h100, plan), shape_of(dense, h100, plan)
    whole = SCHEDULES.index(CASES[case].get("schedule", "1f1b")) < SCHEDULES.index("zb-h1")
    assert most_held(found) == pytest.approx(shape.memory[PEAK_BYTES].tolist(), rel=1e-12 if whole else 0.03)
    held = found.held
    for stage in range(found.stages):
        mine = held.bytes[held.stage == stage]
        assert mine[0] == pytest.approx(mine[-1], rel=1e-12), "all that is taken is given back"
        assert (mine >= mine[0] * (1 - 1e-12)).all()
        assert (np.diff(held.at_s[held.stage == stage]) >= -1e-12).all()


def test_memory_of_a_file_is_drawn_where_it_is_known(h100: HardwareTable) -> None:
    gpt = prepare(load_spec(EXAMPLES / "gpt7b.yaml"), EXAMPLES).sweep.workload
    plan = plans(gpt, pp=4, ga=8, checkpointing="full")
    found = timeline(gpt, h100, plan)
    assert max(most_held(found)) == pytest.approx(float(simulate(gpt, h100, plan).memory[PEAK_BYTES, 0]), rel=1e-12)
    table = read_workload(str(EXAMPLES / "workloads" / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt"), Facts(layers=12))[0]
    assert not len(timeline(table, h100, plans(table)).held.stage), "a trace does not tell its activations"
