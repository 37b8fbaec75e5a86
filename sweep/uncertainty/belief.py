"""Which stack runs a job, as far as is known: worlds with their chances, learnt from published runs (benchmarks/belief.py)."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core import Floats
from sweep.frameworks.megatron import PAGE as DEFAULT
from sweep.frameworks.stacks import WITHOUT_PAGE_AS, may_run
from sweep.uncertainty.process import normal

RECORDED = Path(__file__).parent / "data" / "belief.json"
UNNAMED = ""
"""The stack of a spec that names none: DEFAULT's page is simulated."""


FURTHEST = 8.0
"""Standard deviations within which a quantile is looked for."""
HALVINGS = 40


class Error(NamedTuple):
    """Mean and standard deviation of a logarithm."""

    mean: float
    sd: float


class Page(NamedTuple):
    """A stack as published runs tell it. `sets`: of them, each as n / (n + 5) of one; `memory`: of ln(read / simulated);
    `beside_step`, `beside_memory`: of ln(simulated by it / by DEFAULT's page)."""

    sets: float
    memory: Error
    beside_step: Error
    beside_memory: Error


class Belief(NamedTuple):
    """All pages. `without_page`: sets of runs of frameworks that have none, `unknown` their memory by the page that stands for
    them; `misnamed`: part of the sets whose publisher names another framework than ran; `usual`: of plans that fit, those that
    run."""

    pages: Mapping[str, Page]
    without_page: float
    unknown: Error
    misnamed: float
    usual: float


class World(NamedTuple):
    """What may run. `stack`: the page by which it is simulated, empty where that is the one of the result; `known`: published
    runs by its page tell its errors, else it is a framework without a page, somewhere around it."""

    stack: str
    chance: float
    memory: Error
    known: bool = True


@cache
def recorded() -> Belief:
    """What the published runs say."""
    plain = json.loads(RECORDED.read_text(encoding="utf-8"))
    pages = {name: Page(page[0], *(Error(*error) for error in page[1:])) for name, page in plain["pages"].items()}
    return Belief(**{**plain, "pages": pages, "unknown": Error(*plain["unknown"])})


def world_of(stack: str) -> World:
    """What is taken to run where a stack is named, until own runs say otherwise. `stack`: with facts in brackets where they are
    stated, and "as" its page where it has none; of a page of a user's own, whose errors nobody knows, those of a new one."""
    known = recorded()
    if WITHOUT_PAGE_AS in stack:
        return World("", 1.0, known.unknown, known=False)
    usual = known.pages[DEFAULT]._replace(memory=max((page.memory for page in known.pages.values()), key=lambda each: each.sd))
    return World("", 1.0, known.pages.get(stack.partition(" (")[0], usual).memory)


def worlds_of(stack: str, device: str) -> tuple[World, ...]:
    """All that may run, the chances of which are 1 in sum; with the named one first.

    UNNAMED: every page that jobs on the device may run and frameworks without one, by the sets of their published runs. Of a
    named stack, and of a framework without a page, the same have the part that is named wrongly.
    """
    known, own = recorded(), stack.rpartition(WITHOUT_PAGE_AS)[2].partition(" (")[0] or DEFAULT
    sets = {name: page.sets for name, page in known.pages.items() if page.sets and may_run(name, device)}
    total = sum(sets.values()) + known.without_page
    every = [World("" if name == own else name, count / total, known.pages[name].memory) for name, count in sets.items()]
    every.append(World("", known.without_page / total, known.unknown, known=False))
    if stack == UNNAMED:
        return tuple(every)
    others = [world for world in every if world.stack]
    rest = sum(world.chance for world in others)
    named = world_of(stack)._replace(chance=1 - known.misnamed)
    return (named, *(world._replace(chance=known.misnamed * world.chance / rest) for world in others))


def beside_page(page: str, stack: str, worlds: tuple[World, ...]) -> tuple[World, ...]:
    """A `page` that runs of the user's own `stack` told, and what was taken to run without it: it may be of another job."""
    wrong = recorded().misnamed
    others = (world._replace(chance=wrong * world.chance) for world in worlds)
    return (World(page, 1 - wrong, world_of(stack).memory), *others)


def quantile(level: float, chances: Floats, means: Floats, sds: Floats) -> Floats:
    """The quantile of a mixture of normal variables for each plan, [n], by bisection. All are [worlds, n]."""
    low, high = (means - FURTHEST * sds).min(0), (means + FURTHEST * sds).max(0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = (chances * normal((middle - means) / sds)).sum(0) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)
