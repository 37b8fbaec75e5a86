"""The numbers of a stack that steps of runs can tell: how far each may lie from its page, and where fits begin."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from sim_core import STACK_FACTS, Floats, Stack


class Number(NamedTuple):
    """A number to fit: facts that move together.

    `width`: one standard deviation of what is thought of it before any run: of a factor, its logarithm; else in the unit of
    the fact. `starts`: values at which fits begin besides that of the page, as factors or in the unit.
    """

    name: str
    facts: tuple[str, ...]
    width: float
    factor: bool
    starts: tuple[float, ...] = ()


NUMBERS: Final = (
    Number("host", ("host_forward", "host_backward"), float(np.log(3)), True, (6.0,)),
    Number("host_without_tp", ("host_without_tp",), 0.3, False),
    Number("ring_step_in_pipelines", ("ring_step_in_pipelines",), 150e-6, False, (250e-6,)),
    Number("ring_step_across", ("ring_step_across",), 30e-6, False, (50e-6,)),
    Number("host_collective", ("host_collective",), 30e-6, False),
    Number("host_micro_batch", ("host_micro_batch",), 1e-3, False),
    Number("host_message", ("host_message",), 1e-3, False),
    Number("host_gather", ("host_gather",), 20e-6, False),
    Number("host_step", ("host_step",), 20e-3, False),
    Number("attention_scale", ("attention_scale",), float(np.log(1.3)), True),
    Number("contention", ("contention",), 0.2, False),
    Number("overlap_contention", ("overlap_contention",), 0.2, False),
    Number("dp_contention", ("dp_contention",), 0.1, False),
    Number("jitter", ("jitter",), 0.004, False),
    Number("optimizer_bytes", ("optimizer_bytes",), float(np.log(1.3)), True),
    Number("whole_bytes", ("whole_bytes",), 10.0, False),
)
"""Widths span what the pages of the known stacks and the public runs of others show: host times of a layer from 0.25 to 2.3 ms,
ring steps between nodes from 5 to 50 us, waits of rings in pipelines of 0 and 0.25 ms."""


OF_EXPERTS: Final = (
    Number("host_experts", ("host_experts",), 1e-3, False),
    Number("host_alltoall", ("host_alltoall",), 0.3e-3, False),
    Number("host_expert", ("host_expert",), 30e-6, False),
    Number("host_expert_casts", ("host_expert_casts",), 10e-6, False),
    Number("host_expert_padding", ("host_expert_padding",), 10e-6, False),
    Number("host_overlap_ep", ("host_overlap_ep",), float(np.log(1.5)), True),
    Number("metadata_across", ("metadata_across",), 0.5e-3, False),
)
"""Where some run has experts. What a fact says of the forward and of the backward moves together.

Widths: as much as the one page says that has them (nemo.yaml), less of what comes on top of another, so that runs that cannot
tell both say it of the other."""


def fitted_facts(numbers: Sequence[Number]) -> tuple[str, ...]:
    """The facts that these numbers set."""
    return tuple(fact for number in numbers for fact in number.facts)


def facts_at(stack: Stack, numbers: Sequence[Number], values: Floats) -> dict[str, Any]:
    """The facts that `values` mean, in widths away from the page, within the ranges of the facts, [numbers]."""
    facts: dict[str, Any] = {}
    for number, value in zip(numbers, values.tolist(), strict=True):
        for fact in number.facts:
            own = getattr(stack, fact)
            if isinstance(own, tuple):
                facts[fact] = tuple(_moved(number, fact, part, value) for part in own)
            elif isinstance(own, Mapping):
                facts[fact] = {device: _moved(number, fact, float(part), value) for device, part in own.items()}
            else:
                facts[fact] = _moved(number, fact, float(own), value)
    return facts


def bounds_of(stack: Stack, numbers: Sequence[Number]) -> tuple[Floats, Floats]:
    """Least and largest values in widths: where a fact reaches the end of its range, [numbers] each."""
    low, high = np.empty(len(numbers)), np.empty(len(numbers))
    for at, number in enumerate(numbers):
        ends = [_ends(number, fact, own) for fact in number.facts for own in _parts(stack, fact)]
        low[at], high[at] = max(end[0] for end in ends), min(end[1] for end in ends)
    return low, high


def starts_of(stack: Stack, numbers: Sequence[Number], low: Floats, high: Floats) -> list[Floats]:
    """Where fits begin: the page, and every combination of the numbers' other starts, in widths."""
    starts = [np.zeros(len(numbers))]
    for at, number in enumerate(numbers):
        own = _parts(stack, number.facts[0])[0]
        for start in number.starts:
            place = np.log(start) / number.width if number.factor else (start - own) / number.width
            if abs(place) > 1e-9:
                starts += [_with(one, at, float(np.clip(place, low[at], high[at]))) for one in starts]
    return starts


def _with(values: Floats, at: int, value: float) -> Floats:
    changed = values.copy()
    changed[at] = value
    return changed


def _parts(stack: Stack, fact: str) -> list[float]:
    own = getattr(stack, fact)
    if isinstance(own, tuple):
        return [float(part) for part in own]
    return [float(part) for part in own.values()] if isinstance(own, Mapping) else [float(own)]


def _moved(number: Number, fact: str, own: float, value: float) -> float:
    moved = own * float(np.exp(number.width * value)) if number.factor else own + number.width * value
    return min(max(moved, STACK_FACTS[fact].least), STACK_FACTS[fact].most)


WIDEST: Final = 8.0
"""Widths away from its page that a number may be at most."""


def _ends(number: Number, fact: str, own: float) -> tuple[float, float]:
    least, most = STACK_FACTS[fact].least, STACK_FACTS[fact].most
    if number.factor:
        if own <= 0:
            return 0.0, 0.0
        least, most = np.log(max(least, own * 1e-6) / own), np.log(most / own)
    else:
        least, most = least - own, most - own
    return max(least / number.width, -WIDEST), min(most / number.width, WIDEST)
