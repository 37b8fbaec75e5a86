"""Blocks of a search: which axes are inside, that every plan is in one of them once, slices that cut them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sweep.evaluation.preparation import Prepared, prepare
from sweep.results.slice_file import Slice
from sweep.search.ahead import Frontier
from sweep.search.blocks import blocks_of
from sweep.search.candidates import search_blocks
from sweep.search.objective import Objective
from sweep.spec.spec import load_spec
from tests.conftest import GPT7B
from tests.sweep.search.test_search import exhaustive

AXES: dict[str, list[Any]] = {
    "overlap_grad": [False, True],
    "pp": [1, 2, 4],
    "bucket_bytes": ["25 MB", "200 MB"],
    "tp": [2, 4],
    "hardware.nic_bandwidth": ["400 Gb/s", "100 Gb/s"],
    "overlap_tp,ga": [[True, 8], [False, 16]],
    "all_gpus": [64, 128],
}


def prepared_of(folder: Path, **changed: Any) -> Prepared:
    workload = {"path": str(GPT7B), "micro_batch": 1, "sequence": 2048}
    spec = {"name": "blocks", "workload": workload, "hardware": "H100-SXM", "axes": AXES, **changed}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return prepare(load_spec(path), folder)


def objective_of(column: str = "gpu_s_per_sample", **changed: Any) -> Objective:
    return Objective(**{"column": column, "descending": False, "per": (), "best": 3, **changed})


@pytest.mark.parametrize(
    ("asked", "changed", "width"),
    [
        ({}, {}, 8),
        ({"per": ("overlap_grad",)}, {}, 4),
        ({}, {"where": ["NIC_bandwidth > 1e9"]}, 4),
        ({}, {"where": ["bucket > 1e6 and pp < 4"]}, 4),
        ({"column": "bucket_bytes"}, {}, 4),
        ({}, {"fixed": {"schedule": "1f1b-deepspeed", "overlap_pp": False}}, 4),
        ({}, {"fixed": {"fidelity": "simai"}}, 1),
        ({}, {"sample": {"n": 40}}, 1),
    ],
)
def test_what_the_coarse_bound_leaves_out_is_inside(asked: Any, changed: Any, width: int, tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path, **changed)
    blocks = blocks_of(prepared.sweep, objective_of(**asked))
    count = prepared.sweep.space.count
    assert (blocks.width, blocks.width * blocks.count) == (width, count)
    numbers = blocks.numbers(np.arange(count))
    assert np.array_equal(np.sort(numbers), np.arange(count))
    standing = blocks.standing_for(np.arange(blocks.count))
    assert all(number in block for number, block in zip(standing, numbers.reshape(-1, width), strict=True))


def test_the_plan_that_stands_for_a_block_has_the_best_network(tmp_path: Path) -> None:
    prepared = prepared_of(tmp_path)
    standing = blocks_of(prepared.sweep, objective_of()).standing_for(np.arange(24))
    columns = prepared.sweep.space.decode(standing)
    assert set(columns["hardware.nic_bandwidth"]) == {0}
    assert set(columns["overlap_grad"]) == {1}


BY_FAMILIES: dict[str, list[Any]] = {
    "bucket_bytes": ["25 MB", "200 MB"],
    "ga": [24, 8, 16, 4, 12],
    "pp": [1, 2, 4],
    "tp": [2, 4],
    "micro_batch": [1, 2],
    "all_gpus": [64, 128],
}


@pytest.mark.parametrize(
    ("asked", "changed", "micro_batches"),
    [
        ({}, {}, (24, 8, 16, 4, 12)),
        ({"column": "step_time_s"}, {"where": ["micro_batch * tp < 8"]}, (24, 8, 16, 4, 12)),
        ({"per": ("global_batch",)}, {}, ()),
        ({}, {"where": ["batch > 256"]}, ()),
        ({"column": "peak_memory_bytes"}, {}, ()),
        ({}, {"axes": AXES}, ()),
    ],
)
def test_blocks_that_differ_in_micro_batches_alone_are_a_family(
    asked: Any, changed: Any, micro_batches: tuple[int, ...], tmp_path: Path
) -> None:
    prepared = prepared_of(tmp_path, **{"axes": BY_FAMILIES, **changed})
    blocks = blocks_of(prepared.sweep, objective_of(**asked))
    assert blocks.micro_batches == micro_batches
    number = np.arange(blocks.count)
    numbers = blocks.standing_for(number)
    assert np.array_equal(blocks.block_of(numbers), number)
    if micro_batches:
        assert prepared.sweep.space.decode(numbers)["ga"].reshape(-1, 5).tolist() == [list(micro_batches)] * (blocks.count // 5)


@pytest.mark.parametrize("axes", [AXES, BY_FAMILIES])
def test_slices_that_cut_blocks_find_the_same(axes: dict[str, list[Any]], tmp_path: Path) -> None:
    prepared, objective = prepared_of(tmp_path, axes=axes), objective_of()
    count = prepared.sweep.space.count
    blocks, frontier = blocks_of(prepared.sweep, objective), Frontier(objective=objective)
    cuts = [0, 3, 29, 30, 101, count]
    parts = [search_blocks(prepared.sweep, blocks, Slice(*cut), frontier) for cut in pairwise(cuts)]
    assert [part.plans for part in parts] == list(np.diff(cuts))
    found = {plan for part in parts for plan in part.rows.column("plan").to_pylist()}
    assert exhaustive(prepared, objective) <= found
    whole = search_blocks(prepared.sweep, blocks, Slice(0, count), Frontier(objective=objective))
    assert set(whole.rows.column("plan").to_pylist()) == exhaustive(prepared, objective)
    legal = {"bound_beaten", "not_among_best"}
    by_reason = [{k: v for k, v in part.counted.items() if k not in legal} for part in (whole, *parts)]
    assert by_reason[0] == {key: sum(each.get(key, 0) for each in by_reason[1:]) for key in by_reason[0]}
