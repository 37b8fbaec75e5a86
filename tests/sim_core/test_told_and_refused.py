"""Small rules that decide what is read and refused: names, flags, unknown fields, line ends, and what a field is for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pairs import sent_bytes
from sim_core import (
    EXPLANATIONS,
    Facts,
    SimError,
    SpecError,
    hardware_table,
    parse_model,
    plans,
    read_hardware,
    read_model,
    read_stack,
    read_workload,
    simulate,
    workload_from_model,
)
from sim_core.costing.collectives import two_stage_s
from sim_core.hardware.table import device_at
from sim_core.planning.fields import FIELDS
from sim_core.planning.placement import Placement
from tests.aicb import write
from tests.aicb_generator import EXPERTS, Plan, Text

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 2816,
    "vocab_size": 32000, "hidden_act": "silu", "num_key_value_heads": 8, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip


def test_a_model_may_have_a_name_of_one_letter() -> None:
    document = read_model("gpt2").model_dump(exclude_none=True)
    assert parse_model(document | {"name": "a"}, "here").name == "a"
    with pytest.raises(SpecError, match="name"):
        parse_model(document | {"name": ""}, "here")


def read_config(folder: Path, **values: object) -> str:
    """The name of a model of a config.json with these values besides, or what is wrong."""
    (folder / "config.json").write_text(json.dumps(LLAMA | values))
    try:
        return "read " + read_model(str(folder / "config.json")).norm
    except SimError as error:
        return str(error)


def test_flags_of_a_config_are_true_or_false(tmp_path: Path) -> None:
    assert read_config(tmp_path, tie_word_embeddings=True, attention_bias=False) == "read rmsnorm"
    assert "attention_bias: found 'yes', expected true or false" in read_config(tmp_path, attention_bias="yes")


@pytest.mark.parametrize(("value", "taken"), [(True, False), (1.0, False), (3, False), ([1], False), (0.0, True), ("", True)])
def test_an_unknown_field_of_a_config_is_taken_only_where_it_says_nothing(value: object, taken: bool, tmp_path: Path) -> None:
    told = read_config(tmp_path, tie_word_embeddings=False, sparse_rope_blend=value)
    assert told.startswith("read") if taken else "sparse_rope_blend: unknown field that may change the cost" in told


def test_fields_that_only_the_other_cost_model_uses() -> None:
    assert {name for name, field in FIELDS.items() if field.only_simai} == {
        f"{g}_overlap_ratio" for g in ("dp", "tp", "ep", "pp")
    }


def test_schedules_that_interleave_are_named() -> None:
    """docs/schedules.md: those with as many chunks as a plan asks for."""
    assert "(1f1b, looped-bfs, interleaved-zb and those in a V" in EXPLANATIONS["vpp_needs_1f1b"]


def test_line_ends_and_bytes_of_a_text_are_told_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "work.txt"
    for content, what in ((b"a\rb\rc", "CR alone"), (b"HYBRID \xff", "byte 0xff"), (b"HYBRID \xc3", "byte 0xc3")):
        path.write_bytes(content)
        with pytest.raises(SimError) as error:
            read_workload(str(path), Facts(micro_batch=1, sequence=2048))
        assert str(path) in str(error.value)
        assert what in str(error.value)


def test_whole_experts_are_reduced_over_tensor_parallel_ranks_too(tmp_path: Path) -> None:
    """dp 4, ep 4: no replica without them, tp 2 of them with; each sends the gradients of its experts."""
    plan = Plan(tp=2, pp=1, ep=4, dp=8)
    workload, _ = read_workload(write(tmp_path, str(Text(EXPERTS, plan))), Facts(micro_batch=1))
    given = plans(workload, vpp=1, tp=2, pp=1, ep=4, all_gpus=8, micro_batch=1, ga=plan.ga)
    shares = workload.arrays.shares._replace(whole_experts=True)
    whole = replace(workload, arrays=workload.arrays._replace(shares=shares))
    groups = [{group for group, _ in sent_bytes(one, given)} for one in (workload, whole)]
    assert "DP_EP" not in groups[0]
    assert "DP_EP" in groups[1]


@pytest.mark.parametrize(("nodes", "here"), [(2, 1), (4, 2), (3, 8)])
def test_an_all_to_all_in_two_stages_waits_for_the_ranks_at_its_place_on_other_nodes(nodes: int, here: int) -> None:
    """A hop for the first, an eighth for each further one: eight messages are under way at once."""
    at = Placement(ranks=nodes * here, nodes=nodes, fewest=here, most=here)
    seconds = []
    for latency in ("10 us", "30 us"):
        device = read_hardware("H100-SXM").with_values({"nic_latency": latency})
        seconds.append(float(two_stage_s(1.0, at, device_at(hardware_table([device], None).columns, 0))))
    assert seconds[1] - seconds[0] == pytest.approx((1 + (nodes - 2) / 8) * 20e-6, rel=1e-6)


def test_pods_do_not_make_crowded_leaves_faster() -> None:
    """Sums over 32 nodes in leaves of 4 and pods of 16: the narrower of both levels sets the pace."""
    work = workload_from_model(
        read_model("qwen3-0.6b", {"sequence": 1024}), read_stack("megatron-core"), sequence_parallel=True
    )
    given = plans(work, dp=256, ga=1, overlap_grad=False)
    leaves = {"nodes_per_leaf": 4, "leaf_oversubscription": 8}
    seconds = []
    for pods in ({}, {"nodes_per_pod": 16, "pod_oversubscription": 2}, {"nodes_per_pod": 16, "pod_oversubscription": 64}):
        device = read_hardware("H100-SXM").with_values({**leaves, **pods})
        seconds.append(simulate(work, hardware_table([device], None), given).named()["dp_total_s"][0])
    assert seconds[0] == seconds[1] < seconds[2]
