"""Gradients that are summed tensor by tensor in a pipeline over several nodes: each ring waits for the host."""

from __future__ import annotations

import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model

WAIT_S, TENSORS, LAYERS = 2e-3, 7, 8


@pytest.mark.parametrize(
    ("pp", "dp", "boundaries"),
    [(2, 16, 1), (2, 32, 3), (4, 16, 1), (2, 8, 0), (1, 32, 0)],  # stages of 16, 32, 16 and 8 GPUs; no pipeline
)
@pytest.mark.parametrize("sharding", ["none", "optimizer"])
def test_each_tensor_of_a_layer_waits_at_each_boundary(pp: int, dp: int, boundaries: int, sharding: str) -> None:
    """8 GPUs a node: a ring over a stage crosses as many boundaries of nodes as it has nodes, less one,
    twice: once to sum, once to hand the sum round."""
    hardware = hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB", "shared_nics": False})], None)
    found = []
    for wait in ("0 s", f"{WAIT_S} s"):
        facts = {"jitter": 0, "dp_contention": 0, "reduced_tensors": TENSORS, "ring_step_in_pipelines": wait}
        stack = read_stack("megatron-core").with_facts(facts)
        work = workload_from_model(read_model("llama3-8b", {"layers": LAYERS, "sequence": 1024}), stack, sequence_parallel=True)
        given = plans(work, pp=pp, dp=dp, ga=4, overlap_grad=False, sharding=sharding, layer_split="balanced")
        found.append(simulate(work, hardware, given).named()["dp_total_s"][0])
    waits = 2 * boundaries * LAYERS / pp if sharding == "none" else 0
    assert found[1] - found[0] == pytest.approx(WAIT_S * TENSORS * waits, rel=1e-6, abs=1e-9)
