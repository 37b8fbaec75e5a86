"""Random pages of stacks: one of the product, and facts drawn from all pages, from near them, and from the ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim_core import STACK_FACTS, Fact, Stack, read_stack, stack_names
from sim_core.models.facts import DEVICES, SWITCH

TYPICAL = {"s": 1e-4, "B": 8.0}
"""A value of a fact that no page states, by unit; else a half."""
MEASURED = ("H100-SXM", "A100-80G-SXM", "B200-SXM")


def random_stack(rng: np.random.Generator) -> Stack:
    """A page of the product as it is, or with a tenth or two fifths of its facts drawn anew."""
    pages = [read_stack(name) for name in stack_names()]
    page, part = pages[int(rng.integers(len(pages)))], float(rng.choice([0.0, 0.1, 0.4]))
    drawn = [name for name in STACK_FACTS if name != "schedules" and rng.random() < part]
    return page.model_copy(
        update={name: _fact(rng, STACK_FACTS[name], [getattr(one, name) for one in pages]) for name in drawn}
    )


def _fact(rng: np.random.Generator, fact: Fact, stated: list[Any]) -> Any:
    """A value of a fact, in SI; `stated`: those of the pages."""
    if fact.optional and rng.random() < 0.3:
        return None
    if fact.unit == DEVICES:
        return tuple(device for device in MEASURED if rng.random() < 0.5)
    parts = [part for value in stated for part in _parts(value)]
    return (_one(rng, fact, parts), _one(rng, fact, parts)) if fact.pair else _one(rng, fact, parts)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, tuple) else [value]


def _one(rng: np.random.Generator, fact: Fact, stated: list[Any]) -> Any:
    if fact.unit == SWITCH:
        return bool(rng.integers(2))
    if " | " in fact.unit:
        return str(rng.choice(fact.unit.split(" | ")))
    if fact.among:
        return float(rng.choice(fact.among))
    above = [value for value in stated if value] or [TYPICAL.get(fact.unit, 0.5)]
    typical = float(rng.choice(above))
    end = fact.most if fact.most <= 100 else typical
    value = float(rng.choice([0.0, typical, typical * np.exp(rng.uniform(-3, 3)), end], p=[0.2, 0.3, 0.4, 0.1]))
    return min(max(value, fact.least), fact.most)
