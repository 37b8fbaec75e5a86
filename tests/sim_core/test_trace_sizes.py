"""A trace under other sequences, micro-batches and numbers of experts: closed forms, and recorded layers of other lengths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.pairs import sent_bytes
from sim_core import HardwareTable, Workload, hardware_table, plans, read_hardware, read_workload, simulate
from sim_core.costing.recorded import layer_scales
from sim_core.workloads.workload import RecordedLayer
from tests.trace_jobs import JobSpec, make_job

OWN = JobSpec(pp=4, dp=4, ep=2, ga=4, moe=True, tied=False, embedding=200_000_000, layers=8, seed=51)
PEAK = 1e13


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return read_workload(str(make_job(OWN).write(tmp_path_factory.mktemp("sizes"))))[0]


@pytest.fixture(scope="module")
def a800() -> HardwareTable:
    return hardware_table([read_hardware("A800-80G-SXM").with_values({"memory": "10 TB"})], None)


def without_tables() -> HardwareTable:
    """A device whose kernels take their FLOPs over its peak."""
    numbers = {"gemm_efficiency": 1.0, "attention_efficiency": 1.0, "sustained_scale": 1.0, "gemm_scale": 1.0}
    one = read_hardware("A800-80G-SXM").with_values(
        {**numbers, "peak_flops_bf16": f"{PEAK} FLOP/s", "kernel_overhead": "0 s", "memory_bandwidth": "1000 TB/s"}
    )
    return hardware_table([one.model_copy(update={"kernels": one.kernels.model_copy(update={"tables": None})})], None)


def scales(workload: Workload, hardware: HardwareTable, **plan: int | list[int]) -> np.ndarray:
    """Factors of a layer's compute, forward and backward, of each plan."""
    table = plans(workload, **plan)
    return layer_scales(workload, hardware, table, np.arange(len(table.tp)))


def test_sizes_are_read_from_messages_and_gradients(workload: Workload) -> None:
    """A pipeline message [1024, 1, 1024] in bf16; what the inner stages reduce, over the two layers of a stage."""
    assert workload.sequence == 1024
    assert workload.layer == RecordedLayer(hidden=1024, parameters=290_013_184 / 4 / 2, dtype="bf16")


def test_launching_takes_as_long_for_more_tokens(workload: Workload, a800: HardwareTable) -> None:
    """Small kernels: a layer takes what it took; messages, embedding and head are in proportion to the tokens."""
    small = replace(workload, layer=RecordedLayer(hidden=64, parameters=16384.0, dtype="bf16"))
    for more in ({"sequence": [1024, 4096]}, {"micro_batch": [1, 4]}):
        np.testing.assert_array_equal(scales(small, a800, **more), np.ones((2, 2)))
        found = simulate(small, a800, plans(small, **more)).named()
        end = small.arrays.pieces.unit == small.arrays.last_unit
        head_s = float(small.arrays.pieces.compute_s[end].sum()) / OWN.pp * OWN.ga  # a mean over the stages
        head_s += (
            float(small.arrays.pieces.compute_s[small.arrays.pieces.unit == small.arrays.first_unit].sum()) * OWN.ga / OWN.pp
        )
        rise_s = np.diff(found["compute_forward_s"] + found["compute_backward_s"])[0]
        assert rise_s == pytest.approx(3 * head_s, rel=0.02)
    at = plans(small, sequence=[1024, 4096])
    sent = [sent_bytes(small, at, row) for row in (0, 1)]
    assert sent[1]["EP", "all-to-all"] == 4 * sent[0]["EP", "all-to-all"]
    assert sent[1]["DP", "all-reduce"] == sent[0]["DP", "all-reduce"]


def test_running_kernels_grow_with_tokens_and_the_square_of_the_sequence(workload: Workload) -> None:
    """2 P FLOPs a token in products and 2 s h in attention's causal half (Korthikanti et al. 2022, appendix A), twice as many
    in the backward's products, from the peak alone: the recorded layer takes less than that, so all of it is running."""
    hidden, parameters, hardware = 4096, 4096**2 * 12, without_tables()
    large = replace(workload, layer=RecordedLayer(hidden=hidden, parameters=float(parameters), dtype="bf16"))

    def flops(sequence: int, micro_batch: int = 1) -> float:
        return micro_batch * sequence * (2 * parameters + 2 * sequence * hidden)

    found = scales(large, hardware, sequence=[1024, 4096, 16384])
    expected = [flops(sequence) / flops(1024) for sequence in (1024, 4096, 16384)]
    assert found[:, 0] == pytest.approx(expected, rel=1e-6)
    assert scales(large, hardware, micro_batch=[1, 2, 8])[:, 0] == pytest.approx([1, 2, 8], rel=1e-6)
    assert scales(large, hardware, tp=[1, 2, 8])[:, 0] == pytest.approx([1, 1 / 2, 1 / 8], rel=1e-6)
    quadratic = replace(large, layer=RecordedLayer(hidden=hidden * 64, parameters=float(hidden * 64 * 128), dtype="bf16"))
    assert scales(quadratic, hardware, sequence=[1024, 8192])[1, 0] == pytest.approx(64, rel=0.2)


RECORDED_MS = ((1024, 2.79, 1.80), (4096, 3.64, 4.5))
"""Forward and backward of a layer without its experts in two recorded jobs of one model: hidden size 4,096, 42.0 M dense
parameters a layer, one sequence of so many tokens on an A800."""


def test_recorded_layers_of_another_length(workload: Workload, a800: HardwareTable) -> None:
    """From one length to the other, forward and backward together within 15 %; in proportion they would be 57 % off."""
    for (own, *own_ms), (other, *other_ms) in (RECORDED_MS, RECORDED_MS[::-1]):
        pieces = workload.arrays.pieces
        seconds = pieces.compute_s.copy()
        seconds[0] = own_ms[0] / 1e3, own_ms[1] / 2e3, own_ms[1] / 2e3
        arrays = workload.arrays._replace(pieces=pieces._replace(compute_s=seconds), sequence=float(own))
        layer = RecordedLayer(hidden=4096, parameters=42.0e6, dtype="bf16")
        one = replace(workload, arrays=arrays, sequence=own, layer=layer)
        moved = scales(one, a800, sequence=other)[0] * own_ms
        assert moved.sum() == pytest.approx(sum(other_ms), rel=0.15)
        assert abs(sum(own_ms) * other / own / sum(other_ms) - 1) > 0.5


def test_more_experts_are_more_weights_and_as_many_tokens(workload: Workload, a800: HardwareTable) -> None:
    table = plans(workload, experts=[8, 16])
    found = simulate(workload, a800, table)
    sent = [sent_bytes(workload, table, row) for row in (0, 1)]
    assert sent[1]["DP_EP", "all-reduce"] == 2 * sent[0]["DP_EP", "all-reduce"]
    assert {k: v for k, v in sent[1].items() if k[0] != "DP_EP"} == {k: v for k, v in sent[0].items() if k[0] != "DP_EP"}
    of_experts = float(workload.arrays.step.comm_bytes[workload.arrays.step.comm_group == 3].sum()) / 4 * 18  # bytes of state
    assert np.diff(found.state_bytes)[0] == pytest.approx(of_experts)
    named = found.named()
    assert named["optimizer_s"][1] > named["optimizer_s"][0]
    for phase, size in zip(("forward", "backward"), workload.expert_weights, strict=True):
        weights_s = size / read_hardware("A800-80G-SXM").value("memory_bandwidth")
        rise_s = np.diff(named[f"compute_{phase}_s"])[0]  # of each layer's pass: one more time what streams
        assert rise_s == pytest.approx(OWN.ga * OWN.layers / OWN.pp * weights_s, rel=0.02), phase


def test_what_a_trace_does_not_tell_is_refused(workload: Workload, a800: HardwareTable, tmp_path: Path) -> None:
    alone, _ = read_workload(str(make_job(replace(OWN, pp=1, moe=False, ep=1)).write(tmp_path)))  # no pipeline message
    given = simulate(alone, a800, plans(alone, sequence=[0, 2048])).named()["reason"]
    assert given.tolist() == ["", "sequence_not_movable"]
    assert simulate(alone, a800, plans(alone, experts=[4])).named()["reason"].tolist() == ["experts_not_movable"]
    odd = plans(workload, experts=[8, 7, 1], sequence=[1024])
    reasons = simulate(workload, a800, odd).named()["reason"].tolist()
    assert reasons == ["", "experts_not_divisible_by_ep", "ep_exceeds_experts"]
