"""The model that a text suggests is the one that the generator was given, as far as a text tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim_core import Facts, SpecError, model_yaml, suggest_model
from tests.aicb import write
from tests.aicb_generator import DEEPSEEK, DENSE, EXPERTS, Model, Plan, Text


@pytest.mark.parametrize("seed", range(8))
def test_numbers_are_those_of_the_generator(tmp_path: Path, seed: int) -> None:
    """Widths and vocabulary are the generator's defaults, or a fact is given; with experts any."""
    rng = np.random.default_rng(seed)
    hidden = 1024 * int(rng.choice([1, 2, 4, 6]))
    experts = int(rng.choice([0, 0, 8, 16]))
    model = Model(
        layers=int(rng.choice([8, 24])), hidden=hidden, ffn=int(rng.choice([4 * hidden, int(8 * hidden / 3 / 64) * 64])),
        sequence=int(rng.choice([1024, 4096])), sequence_parallel=bool(experts or rng.choice([True, False])),
        experts=experts, topk=int(rng.choice([1, 2])), word_copies=int(rng.choice([2, 4])),
    )  # fmt: skip
    plan = Plan(tp=int(rng.choice([2, 8])), pp=int(rng.choice([1, 4])), ep=2 if experts else 1, dp=8)
    found, comments = suggest_model(write(tmp_path, str(Text(model, plan))), Facts(micro_batch=1))
    told = (found.layers, found.hidden, found.sequence, found.experts.ffn if found.experts else found.ffn)
    assert told == (model.layers, hidden, model.sequence, model.ffn)
    assert found.vocabulary == 50257
    if found.experts:
        assert (found.experts.count, found.experts.topk) == (experts, model.topk)
    assert found.heads * found.head_dim == hidden
    assert comments["heads"].startswith("assumed")


def test_a_width_that_only_a_preset_knows_is_found_by_the_parameters(tmp_path: Path) -> None:
    """Llama 2 7B with the generator's vocabulary: its width fits one of the two ways to count the embedding."""
    llama = replace(DENSE, ffn=11008, word_copies=2)
    found, comments = suggest_model(write(tmp_path, str(Text(llama, Plan(tp=4)))), Facts(micro_batch=1))
    assert (found.name, found.ffn, found.gated, found.vocabulary) == ("llama2-7b-as-recorded", 11008, True, 50257)
    assert comments["vocabulary"] == "of the text; the preset has 32000"
    assert "assumed vocabulary 50257 counted 2 times" in comments["ffn"]
    assert "# assumed: preset llama2-7b is the nearest" in model_yaml(found, comments)


def test_the_sequence_is_solved_where_a_text_is_cut_before_it(tmp_path: Path) -> None:
    lines = str(Text(DENSE, Plan(tp=4))).splitlines()
    kept = [line for line in lines if not line.startswith(("cross_entropy", "optimizer"))]
    kept[1] = str(len(kept) - 2)
    path = write(tmp_path, "\n".join(kept) + "\n")
    found, _ = suggest_model(path, Facts(micro_batch=1))
    assert (found.hidden, found.sequence, found.ffn) == (4096, 2048, 10880)


@pytest.mark.parametrize("shared", [True, False])
def test_a_deepseek_is_suggested_with_its_latents_and_experts(tmp_path: Path, shared: bool) -> None:
    model = replace(DEEPSEEK, hidden=7168, heads=40, vocabulary=128256, shared=shared, dense_layers=3 * shared)
    found, comments = suggest_model(write(tmp_path, str(Text(model, Plan(tp=4, pp=2, ep=2, dp=16)))), Facts(micro_batch=1))
    assert found.mla is not None
    assert found.experts is not None
    assert (found.layers, found.hidden, found.heads, found.vocabulary) == (32, 7168, 40, 128256)
    assert (found.mla.q_rank, found.mla.kv_rank, found.ffn) == (1536, 512, 2048 if shared else None)
    experts = found.experts
    assert (experts.count, experts.topk, experts.ffn, experts.shared_ffn) == (64, 8, 2048, 2048 * shared)
    assert experts.dense_layers == 3 * shared
    assert "assumed" not in comments["heads"]


def test_a_micro_batch_that_nobody_states_is_said_to_be_assumed(tmp_path: Path) -> None:
    text = write(tmp_path, str(Text(DENSE, Plan(tp=4, micro_batch=2))))
    model, comments = suggest_model(text)
    assert (model.sequence, comments["sequence"]) == (4096, "assumed: micro-batch 1 (set micro_batch)")
    model, comments = suggest_model(text, Facts(micro_batch=2))
    assert (model.sequence, "sequence" in comments) == (2048, False)


@pytest.mark.parametrize(
    ("model", "plan", "message"),
    [
        (DENSE, Plan(tp=1), r"the hidden size is unknown \(it has no message of an activation: made at tp 1\?\)"),
        (EXPERTS, Plan(tp=2, ep=8, dp=8), "of the experts it does not tell their parameters"),
        (replace(DEEPSEEK, vocabulary=77777), Plan(tp=2, ep=2), r"of latent attention it does not tell heads \(set heads\)"),
        (replace(DEEPSEEK, q_rank=1000), Plan(tp=2, ep=2), "of latent attention it does not tell"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, model: Model, plan: Plan, message: str) -> None:
    with pytest.raises(SpecError, match=f"suggests no model: {message}"):
        suggest_model(write(tmp_path, str(Text(model, plan))))
