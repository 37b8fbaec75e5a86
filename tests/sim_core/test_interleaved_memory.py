"""Micro-batches in flight of interleaved 1F1B by the size of its groups."""

from __future__ import annotations

import pytest

from sim_core import hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (4, 3), (8, 2)])
@pytest.mark.parametrize("group", [1, 2, 3])
def test_larger_groups_keep_more_in_flight(pp: int, vpp: int, group: int) -> None:
    """The first stage runs 2 (pp - 1) + (vpp - 1) g + 1 forwards of a chunk before its first backward, g micro-batches a group
    (Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Megatron-LM's schedules.py); 1F1B runs pp of all chunks."""
    model = read_model("gpt3-175b", {"sequence": 1024, "vocabulary": 1024})
    work = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)
    hardware = hardware_table([read_hardware("H100-SXM").with_values({"memory": "100 TB"})], None)
    given = {"tp": 8, "pp": pp, "dp": 1, "ga": 6 * pp, "overlap_pp": True}
    plain = simulate(work, hardware, plans(work, **given)).named()["activation_bytes"][0]
    grouped = plans(work, **given, vpp=vpp, microbatch_group_size=group * pp)
    found = simulate(work, hardware, grouped).named()["activation_bytes"][0]
    forwards = 2 * (pp - 1) + (vpp - 1) * group * pp + 1
    assert found / plain == pytest.approx(forwards / (pp * vpp), rel=0.03)
