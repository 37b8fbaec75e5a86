"""The numbers of a stack or a device that steps of runs can tell: how far each may lie from its page, and where fits begin."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sim_core import STACK_FACTS, Fields, Floats, Hardware, Stack, Words

Page = Stack | Hardware


class Number(NamedTuple):
    """A number to fit: a fact of its name, or some that move together.

    `width`: one standard deviation of what is thought of it before any run: of a factor, its logarithm; else in the unit of
    the fact. `starts`: values at which fits begin besides that of the page, as factors or in the unit. `seen`: the number is
    told by runs if they leave at most this part of its width; 0.7: half of its variance is gone. `furthest`: widths away from
    its page that it may be at most.
    """

    name: str
    width: float
    factor: bool = False
    together: Words = ()
    starts: tuple[float, ...] = ()
    seen: float = 0.7
    furthest: float = 8.0

    @property
    def facts(self) -> Words:
        """The facts that it sets."""
        return self.together or (self.name,)


NUMBERS = (
    Number("host", float(np.log(3)), True, ("host_forward", "host_backward"), (6.0,)),
    Number("host_without_tp", 0.3),
    Number("ring_step_in_pipelines", 150e-6, starts=(250e-6,)),
    Number("ring_step_across", 30e-6, starts=(50e-6,)),
    Number("host_collective", 30e-6),
    Number("host_micro_batch", 1e-3),
    Number("host_message", 1e-3),
    Number("host_gather", 20e-6),
    Number("host_step", 20e-3),
    Number("attention_scale", float(np.log(1.3)), True, furthest=4.0),  # 2.9: slower than any known kernel (Triton's 2.6)
    Number("contention", 0.2),
    Number("overlap_contention", 0.2),
    Number("dp_contention", 0.1),
    Number("jitter", 0.004),
    Number("optimizer_bytes", float(np.log(1.3)), True),
    Number("whole_bytes", 10.0),
)
"""Widths span what the pages of the known stacks and the public runs of others show: host times of a layer from 0.25 to 2.3 ms,
ring steps between nodes from 5 to 50 us, waits of rings in pipelines of 0 and 0.25 ms."""
OF_EXPERTS = (
    Number("host_experts", 1e-3),
    Number("host_alltoall", 0.3e-3),
    Number("host_expert", 30e-6),
    Number("host_expert_casts", 10e-6),
    Number("host_expert_padding", 10e-6),
    Number("host_overlap_ep", float(np.log(1.5)), True),
    Number("metadata_across", 0.5e-3),
)
"""Where some run has experts. What a fact says of the forward and of the backward moves together.

Widths: as much as the one page says that has them (nemo.yaml), less of what comes on top of another, so that runs that cannot
tell both say it of the other."""
OF_HARDWARE = {"sustained_scale": (0.01, 100.0), "nic_efficiency": (1e-3, 1.0), "step_overhead": (0.0, 1e3)}
"""Ranges of numbers of a device; those of a stack are with its facts."""


def facts_at(page: Page, numbers: Sequence[Number], values: Floats) -> Fields:
    """The facts that `values` mean, in widths away from the page, within the ranges of the facts, [numbers]."""
    return {
        fact: changed(_own(page, fact), partial(_moved, number, fact, value))
        for number, value in zip(numbers, values.tolist(), strict=True)
        for fact in number.facts
    }


def changed(value: Any, change: Callable[[float], float]) -> Any:
    """A fact with each part of it changed: it is a number, one for each way, or one for each device."""
    if isinstance(value, tuple):
        return tuple(map(change, value))
    return {device: change(part) for device, part in value.items()} if isinstance(value, Mapping) else change(value)


def bounds_of(page: Page, numbers: Sequence[Number]) -> tuple[Floats, Floats]:
    """Least and largest values in widths: where a fact reaches the end of its range, [numbers] each."""
    low, high = np.empty(len(numbers)), np.empty(len(numbers))
    for at, number in enumerate(numbers):
        ends = np.array([_ends(number, fact, own) for fact in number.facts for own in _parts(page, fact)])
        low[at], high[at] = ends[:, 0].max(), ends[:, 1].min()
    return low, high


def starts_of(page: Page, numbers: Sequence[Number], low: Floats, high: Floats) -> list[Floats]:
    """Where fits begin: the page, and every combination of the numbers' other starts, in widths."""
    starts = [np.zeros(len(numbers))]
    for at, number in enumerate(numbers):
        for start in number.starts:
            far = np.log(start) if number.factor else start - _parts(page, number.facts[0])[0]
            if abs(far / number.width) > 1e-9:
                others = np.array(starts)
                others[:, at] = np.clip(far / number.width, low[at], high[at])
                starts += list(others)
    return starts


def _own(page: Page, fact: str) -> Any:
    return page.value(fact) if isinstance(page, Hardware) else getattr(page, fact)


def _parts(page: Page, fact: str) -> list[float]:
    own = _own(page, fact)
    return list(own if isinstance(own, tuple) else own.values() if isinstance(own, Mapping) else [own])


def _range(fact: str) -> tuple[float, float]:
    return OF_HARDWARE[fact] if fact in OF_HARDWARE else (STACK_FACTS[fact].least, STACK_FACTS[fact].most)


def _moved(number: Number, fact: str, value: float, own: float) -> float:
    least, most = _range(fact)
    moved = own * float(np.exp(number.width * value)) if number.factor else own + number.width * value
    return min(max(moved, least), most)


def _ends(number: Number, fact: str, own: float) -> Floats:
    """How far a part of a fact may move at least and at most, in widths."""
    ends = np.array(_range(fact), float)
    if number.factor:
        ends = np.log(np.maximum(ends, own * 1e-6) / own) if own > 0 else np.zeros(2)
    else:
        ends -= own
    return np.clip(ends / number.width, -number.furthest, number.furthest)
