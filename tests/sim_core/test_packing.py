"""Packed sequences: attention against an enumeration of texts and of the chunks of ranks; all else by tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core.errors import SpecError
from sim_core.models.description import Model
from sim_core.models.keys import make_keys
from sim_core.models.operators import operators
from sim_core.models.reading import read_model
from sim_core.models.weights import model_flops_per_token
from sim_core.terms import FORWARD, INPUT_GRADIENT
from tests.facts import stack_with

TEXTS = (512, 64, 1024, 256, 128, 64)
"""Lengths in tokens: 2,048 in all."""


def packed(name: str, **other: Any) -> Model:
    mean, spread = int(np.sum(TEXTS)) / len(TEXTS), float(np.std(TEXTS))
    tokens = sum(TEXTS) * 3
    values = {"sequence": tokens, "packing": {"mean": mean, "spread": spread}, **other}
    return read_model(name, values)


def pairs(lengths: tuple[int, ...], rank: int, ranks: int) -> int:
    """Pairs of a query of one rank and a key before it, text by text: a rank has two chunks of 2 x ranks of each text."""
    found = 0
    for length in lengths:
        chunk = length // (2 * ranks)
        for part in (rank, 2 * ranks - 1 - rank):
            found += sum(query + 1 for query in range(part * chunk, (part + 1) * chunk))
    return found


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_attention_works_on_the_squares_of_texts(cp: int) -> None:
    """Every rank has the same work, whatever the lengths: each text is cut, not the sequence."""
    model = packed("llama3-8b")
    counted = [3 * pairs(TEXTS, rank, cp) for rank in range(cp)]
    assert max(counted) <= min(counted) * 1.001 + 3 * len(TEXTS)
    work = operators(model, model.layer_units[0], make_keys(cp=cp), stack_with())
    for phase, products in ((FORWARD, 2), (INPUT_GRADIENT, 5)):
        done = work.flops[0, work.row("attention", phase)]
        assert done == pytest.approx(products * 2 * 32 * 128 * np.mean(counted), rel=0.004)  # the diagonal is half a square


def test_all_else_is_done_by_tokens() -> None:
    for name in ("llama3-8b", "qwen3-next-80b-a3b", "nemotron-h-8b"):
        one, many = read_model(name, {"sequence": sum(TEXTS) * 3}), packed(name)
        for unit, other in zip(one.units, many.units, strict=True):
            whole, parts = (operators(m, u, make_keys(), stack_with()) for m, u in ((one, unit), (many, other)))
            assert whole.names == parts.names
            differing = {whole.names[k] for k in np.flatnonzero(whole.flops[0] != parts.flops[0])}
            assert differing <= {"attention"}, "a state is reset for nothing"
            assert (whole.bytes == parts.bytes).all()


def test_flops_of_a_token_have_the_squares_of_texts() -> None:
    """The whole squares, as of a text that fills its sequence: 2 products, 3 passes, 32 layers, 32 heads of 128."""
    one, many = read_model("llama3-8b", {"sequence": sum(TEXTS) * 3}), packed("llama3-8b")
    squares = sum(length**2 for length in TEXTS) / sum(TEXTS)
    saved = model_flops_per_token(one) - model_flops_per_token(many)
    assert saved == pytest.approx(3 * 2 * 2 * 32 * 32 * 128 * (3 * sum(TEXTS) - squares), rel=1e-9)


def test_windows_are_those_of_equal_texts() -> None:
    """Without a spread exact: w (l - w / 2) pairs of a text of l tokens that is longer than the window w."""
    window, text = 1024, 4096
    model = read_model("gemma3-12b", {"sequence": 4 * text, "packing": {"mean": text}})
    near = next(unit for unit in model.layer_units if unit.window)
    assert near.window == window
    work = operators(model, near, make_keys(), stack_with())
    assert work.flops[0, work.row("attention", FORWARD)] == 2 * 2 * 16 * 256 * 4 * (window * text - window**2 / 2)


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        ({"mean": 0}, "packing.mean: found '0'"),
        ({"mean": 5000}, "packing.mean: found 5000, expected at most sequence 4096"),
        ({"mean": 1024, "spread": 2000.0}, "packing.spread: found 2000, expected at most 1774: none is longer than 4096"),
        ({"mean": 1024, "spread": -1.0}, "packing.spread: found '-1.0'"),
        ({"mean": 1024, "spred": 1.0}, "packing.spred: unknown key, nearest valid: spread"),
    ],
)
def test_wrong_lengths_are_one_line(packing: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError) as error:
        read_model("llama3-8b", {"sequence": 4096, "packing": packing})
    assert str(error.value).startswith(f"llama3-8b: {message}")
