"""What published runs say of stacks before any run, against sums by hand; what is recorded covers every page."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.belief import Told, error_of, misnamed, share_of_fits, stand_in
from sim_core import stack_names
from sweep.runs.table import Row, published_rows
from sweep.uncertainty.belief import recorded


def told(name: str, error: float | None = None, part: float = 0.5, *, ran: bool = True) -> Told:
    return Told(name, part, error, ran)


def test_sets_count_nearly_alike_and_one_is_borrowed() -> None:
    """Five runs of one set count half, fifteen of another three quarters, beside one set around 0 that differs by 0.2."""
    runs = [told("a", 0.1)] * 5 + [told("b", -0.2)] * 15 + [told("b")]
    found = error_of(runs, 0.2)
    mean = (0.5 * 0.1 - 0.75 * 0.2) / 2.25
    assert found.mean == pytest.approx(mean)
    assert found.sd == pytest.approx(math.sqrt((0.5 * (0.1 - mean) ** 2 + 0.75 * (0.2 + mean) ** 2 + 0.2**2) / 2.25))
    assert error_of([told("a")], 0.3) == (0.0, 0.3)


def test_of_plans_that_fit_most_run() -> None:
    """Only sets that tell failures, and only plans far below the memory; one run more of each."""
    told_of = [told("a")] * 4 + [told("a", ran=False), told("a", part=0.9, ran=False), *[told("silent")] * 50]
    assert share_of_fits(told_of) == pytest.approx(5 / 6)


def row(**values: Any) -> Row:
    return Row("t.csv:2", {"set": "s", **values})


def test_a_publisher_may_name_another_framework() -> None:
    rows = [row(set="a", framework="Megatron-Core (really nanotron)"), row(set="b", framework="NeMo"), row(set="b")]
    assert misnamed(rows) == pytest.approx(2 / 4)


@pytest.mark.parametrize(
    ("stack", "sharding", "page"),
    [
        ("nanotron", "optimizer", "megatron-core"),
        ("llm-foundry", "parameters", "torchtitan"),
        ("torchtitan", "parameters", "megatron-core"),  # its own page is the one that would stand for it
        ("megatron-deepspeed", "optimizer", "megatron-2022"),
    ],
)
def test_a_framework_that_is_left_out_is_simulated_by_another(stack: str, sharding: str, page: str) -> None:
    assert stand_in(row(stack=stack, sharding=sharding)) == page


def test_what_is_recorded_knows_every_page() -> None:
    known = recorded()
    assert set(known.pages) == set(stack_names())
    assert known.misnamed == pytest.approx(misnamed(published_rows()), rel=1e-3)
    assert known.pages["megatron-core"].memory == known.pages["nemo"].memory, "Megatron-LM runs below both"
    assert known.unknown.sd > 2 * max(page.memory.sd for page in known.pages.values())
    assert 0.9 < known.usual < 1
