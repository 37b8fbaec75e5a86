"""Activations of recorded files, estimated: against the paper, and against the same model in numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim_core import (
    MEMORY,
    Facts,
    Workload,
    hardware_table,
    memory_basis,
    parse_model,
    plans,
    read_hardware,
    read_stack,
    read_workload,
    shape_of,
    simulate,
    workload_from_model as from_model,
)
from sim_core.costing.peak import Estimate, estimate_of, estimated_bytes
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from tests.aicb import write
from tests.aicb_generator import DENSE, Plan, Text
from tests.conftest import EXAMPLES

ROOMY = hardware_table([read_hardware("H100-SXM").with_values({"memory": "1e6 GB"})], None)
GPT_7B = {
    "name": "gpt7b", "source": "a test", "layers": 36, "hidden": 4096, "heads": 32, "ffn": 10880, "gated": True,
    "activation": "silu", "norm": "layernorm", "position": "learned", "positions": 2048, "tied": False, "vocabulary": 50257,
    "sequence": 2048, "hidden_dropout": 0.1,
}  # fmt: skip


@pytest.fixture(scope="module")
def gpt() -> Workload:
    path = EXAMPLES / "gpt7b.yaml"
    return prepare(load_spec(path), path.parent).sweep.workload


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("parallel", [False, True])
def test_a_layer_keeps_what_korthikanti_counts(gpt: Workload, tp: int, parallel: bool) -> None:
    """arXiv 2205.05198, eq. 2 (10 + 24/t) and eq. 4 (34/t) without the scores, which flash attention does not keep."""
    s, b, h = 2048, 4, 4096
    found = Estimate(sequence=s, hidden=h, vocabulary=51200, width=12 * h, parallel=parallel)
    kept, _ = estimated_bytes(gpt, found, np.array([tp]), np.array([b]))
    assert kept[0, 0, 0] == pytest.approx(s * b * h * (34 / tp if parallel else 10 + 24 / tp))
    assert kept[0, 0, 2] == pytest.approx(2 * s * b * h / (tp if parallel else 1))


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 1, "micro_batch": 2},
        {"tp": 4, "pp": 4},
        {"tp": 2, "pp": 3, "vpp": 2, "overlap_pp": True},
        {"tp": 1, "pp": 2, "checkpointing": "full"},
        {"tp": 4, "pp": 2, "checkpointing": "block:4", "schedule": "gpipe"},
    ],
)
def test_a_file_keeps_what_its_model_in_numbers_keeps(gpt: Workload, plan: dict[str, Any]) -> None:
    """The model's own operators, item by item, against the weights of a layer: within 3 %."""
    model = from_model(parse_model(GPT_7B, "here"), read_stack("megatron-core"), sequence_parallel=False)
    grid: dict[str, Any] = {"all_gpus": 192, "ga": 6, "checkpointing": "none", "overlap_pp": False, "layer_split": "balanced"}
    of_file, of_model = (simulate(work, ROOMY, plans(work, **{**grid, **plan})).named() for work in (gpt, model))
    for name in ("activation_bytes", "logits_bytes", "communication_bytes", "reserved_bytes"):
        assert of_file[name][0] == pytest.approx(of_model[name][0], rel=0.03), name


def test_unknown_activations_are_said_and_only_the_state_is_checked(gpt7b: Workload) -> None:
    assert estimate_of(gpt7b) == "the head (it has no record of logits)"
    assert "activations are unknown: the file does not tell the head" in memory_basis(gpt7b)
    found = simulate(gpt7b, ROOMY, plans(gpt7b)).named()
    assert found["state_bytes"][0] > 0
    assert np.isnan(found["peak_memory_bytes"][0])
    assert np.isnan(found["activation_bytes"][0])


def test_what_a_file_that_recomputes_keeps_is_unknown() -> None:
    path = EXAMPLES / "llama405b.yaml"
    work = prepare(load_spec(path), path.parent).sweep.workload
    found = simulate(work, ROOMY, plans(work, checkpointing=["file", "full"])).named()
    assert np.isnan(found["peak_memory_bytes"]).tolist() == [bool(work.arrays.pieces.rerun.any()), False]


def test_a_file_without_times_holds_the_parameters_that_its_generator_counts(tmp_path: Path) -> None:
    """Its one message of gradients is of all of them; nothing gathers parameters, so each rank has the whole optimizer."""
    text = Text(DENSE, Plan(tp=2, dp=4), profiled=False)
    work, _ = read_workload(write(tmp_path, str(text)), Facts(micro_batch=1, ffn=DENSE.ffn))
    found = simulate(work, ROOMY, plans(work)).named()
    assert found["activation_bytes"][0] > 0
    assert found["state_bytes"][0] == pytest.approx((2 + 4 + 12) * text.dense())
    stages = shape_of(work, ROOMY, plans(work)).memory[MEMORY.index("state_bytes")]
    assert stages == pytest.approx(found["state_bytes"])
