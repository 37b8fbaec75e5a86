"""Reasons over many numbers of micro-batches against those of each plan by itself, memory included."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import (
    SCHEDULES,
    Workload,
    hardware_table,
    legality,
    plans,
    read_hardware,
    read_model,
    read_stack,
    slice_plans,
    workload_from_model,
)
from sim_core.bounding import reasons_over
from sim_core.metrics import PEAK_BYTES

GA = np.array([1, 2, 3, 4, 6, 8, 12, 16, 17, 32, 64, 160])


def llama(*, receives_apart: bool = False) -> Workload:
    model = read_model("llama3-8b", {"sequence": 4096})
    stack = read_stack("megatron-core").model_copy(update={"receives_apart": receives_apart})
    return workload_from_model(model, stack, sequence_parallel=True)


@pytest.mark.parametrize("receives_apart", [False, True])
def test_each_number_has_the_reason_of_its_own_plan(receives_apart: bool) -> None:
    work = llama(receives_apart=receives_apart)
    grid = plans(
        work,
        pp=[1, 2, 4, 8],
        vpp=[1, 2, 3],
        all_gpus=64,
        micro_batch=[1, 2],
        ga=1,
        checkpointing=["none", "full"],
        microbatch_group_size=[0, 6],
        layer_split="balanced",
        schedule=list(SCHEDULES),
    )
    each = slice_plans(grid, np.repeat(np.arange(len(grid.tp)), len(GA)))._replace(ga=np.tile(GA, len(grid.tp)))
    told_apart = 0
    peak = legality(work, hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None), each)[1][
        PEAK_BYTES
    ]
    for part in (0.1, 0.3, 0.6):
        device = read_hardware("H100-SXM").with_values({"memory": f"{np.nanquantile(peak, part)} B"})
        machine = hardware_table([device], None)
        expected = legality(work, machine, each)[0].reshape(len(grid.tp), len(GA))
        assert np.array_equal(reasons_over(work, machine, grid, GA), expected)
        told_apart += int((expected != expected[:, -1:]).sum())
    assert told_apart > 1000


def test_a_global_batch_that_is_too_large_is_one_of_its_number() -> None:
    work = llama()
    machine = hardware_table([read_hardware("H100-SXM")], None)
    grid = plans(work, pp=[1, 4], all_gpus=2**35, micro_batch=2**12, ga=1, checkpointing="full")
    ga = np.array([2**k for k in range(12)])
    each = slice_plans(grid, np.repeat([0, 1], len(ga)))._replace(ga=np.tile(ga, 2))
    expected = legality(work, machine, each)[0].reshape(2, len(ga))
    assert np.array_equal(reasons_over(work, machine, grid, ga), expected)
    assert (np.diff(expected, axis=1) != 0).any()
