"""FLOPs that recompute runs again, against the closed forms of the papers."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core import (
    HardwareTable,
    Workload,
    hardware_table,
    model_flops_per_token,
    plans,
    read_hardware,
    read_model,
    read_stack,
    simulate,
    workload_from_model,
)
from tests.conftest import make_plans

L, H, S, V = 96, 12288, 2048, 51200
PLAN = {"tp": 8, "pp": 8, "all_gpus": 64, "ga": 8, "micro_batch": 1, "overlap_pp": 0}


def gpt3() -> Workload:
    model = read_model("gpt3-175b", {"sequence": S, "vocabulary": V})
    return workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)


def again(workload: Workload, **plan: object) -> float:
    table = hardware_table([read_hardware("A100-80G-SXM").with_values({"memory": "1e6 GB"})], None)
    found = simulate(workload, table, plans(workload, **{**PLAN, **plan}))  # type: ignore[arg-type]
    assert found.reason[0] == 0
    return float(found.recomputed_flops[0])


def test_full_recompute_is_equation_3_of_narayanan() -> None:
    """arXiv 2104.04473, eq. 3: F = 96 B s l h^2 (1 + s / 6h + V / 16lh), with every layer's forward run twice."""
    work = gpt3()
    assert work.modelled
    hardware = model_flops_per_token(work.modelled.model) + again(work, checkpointing="full")
    assert hardware == pytest.approx(96 * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H)), rel=1e-12)
    # Narayanan et al. 2021, section 5.1: 300 G tokens on 1,024 A100s at 140 TFLOP/s a GPU take 34 days, without attention
    assert 300e9 * hardware / (1024 * 140e12) / 86400 == pytest.approx(34, abs=1)


@pytest.mark.parametrize(
    ("checkpointing", "layers"), [("none", 0), ("every:3", L), ("every:12", L), ("block:1", 8), ("block:12", L)]
)
def test_only_layers_that_run_again_count(checkpointing: str, layers: int) -> None:
    forward = 24 * H**2 + 4 * S * H  # of a layer: Korthikanti et al. 2022, appendix A
    assert again(gpt3(), checkpointing=checkpointing) == pytest.approx(layers * forward, rel=1e-12)


def test_selective_recompute_runs_core_attention_again() -> None:
    """4 B s^2 h a layer: scores and context over the whole square (Korthikanti et al. 2022, appendix A)."""
    assert again(gpt3(), checkpointing="selective") == pytest.approx(L * 4 * S * H, rel=1e-12)


def test_chunks_of_a_stage_each_run_their_first_layers_again() -> None:
    forward = 24 * H**2 + 4 * S * H
    assert again(gpt3(), checkpointing="block:1", vpp=2, overlap_pp=1) == pytest.approx(16 * forward, rel=1e-12)


def test_a_file_runs_again_what_its_model_tells(gpt7b: Workload, h100: HardwareTable) -> None:
    """2 FLOPs per parameter of a layer (36 layers of 4 x 4096^2 + 3 x 4096 x 10880); core attention is not in them."""
    layer = 2 * (4 * 4096**2 + 3 * 4096 * 10880)
    rows = {"checkpointing": [0, 2, 5, 3, 1, 2], "checkpoint_layers": [0, 0, 5, 0, 0, 0], "fidelity": [0, 0, 0, 0, 0, 1]}
    base = {**gpt7b.base._asdict(), "pp": 2, "overlap_pp": 0, "all_gpus": 1024}
    found = simulate(gpt7b, h100, make_plans(gpt7b, **{**base, **rows}))
    expected = [0, 36 * layer, 10 * layer, np.nan, 0, 36 * layer]
    assert found.recomputed_flops.tolist() == pytest.approx(expected, rel=2e-3, nan_ok=True)
