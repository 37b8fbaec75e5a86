"""Rings of context parallelism that share NICs with gradients: each of their hops is on the wires."""

from __future__ import annotations

import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model

SLOW = {"memory": "100 TB", "nic_bandwidth": "0.2 Gb/s", "nic_efficiency": 1, "fabric_efficiency": 1, "nic_latency": "0 s"}
MODEL = {"layers": 4, "sequence": 32768, "vocabulary": 1024}


@pytest.mark.parametrize("cp", [16, 32])
def test_a_ring_on_slow_wires_hides_no_gradients(cp: int) -> None:
    """Compute is nothing beside the wires, and the rank at the end of a node sends every hop: a step of one micro-batch
    lasts as long as its ring and its gradients one after another. With NICs of their own both are sent at once."""
    stack = read_stack("megatron-core").with_facts({"jitter": 0, "dp_contention": 0})
    work = workload_from_model(read_model("llama3-8b", MODEL), stack, sequence_parallel=True)
    plan = plans(work, cp=cp, all_gpus=2 * cp, ga=1, overlap_grad=True, overlap_param=False, bucket_bytes=2**20)
    alone, shared = (
        simulate(work, hardware_table([read_hardware("H100-SXM").with_values({**SLOW, "shared_nics": on})], None), plan).named()
        for on in (False, True)
    )
    carried = alone["cp_total_s"][0] + alone["dp_total_s"][0]
    assert alone["step_time_s"][0] < 0.9 * carried
    assert shared["step_time_s"][0] == pytest.approx(carried, rel=0.01)
