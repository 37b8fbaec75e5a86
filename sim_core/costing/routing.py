"""How a token's copies lie on the places of an expert-parallel group: nodes, or ranks."""

from __future__ import annotations

from typing import NamedTuple

from sim_core.jit import outer_kernel
from sim_core.models.description import Experts


class Routing(NamedTuple):
    """A token goes to `topk` experts, all of them in `topk_groups` of `groups` equal groups of experts in a row."""

    topk: int
    groups: int
    topk_groups: int


def routing_of(experts: Experts | None) -> Routing:
    """The routing of a model; of one without experts, that to a single one."""
    return Routing(experts.topk, experts.groups, experts.topk_groups) if experts else Routing(1, 1, 1)


@outer_kernel
def reached(places: int, routing: Routing) -> float:
    """Mean number of `places` with some expert of a token: groups at random, and experts at random of those groups.

    A place holds as many experts as any other, in a row: some whole groups, and a part of one more. It is missed if each of
    the `topk` experts is another's: (1 - c / topk_groups)^topk, where c of the picked groups are its own, a part counted as
    one. Of one group: n (1 - (1 - 1/n)^topk). Experts are drawn with replacement, and no place has parts of two groups.
    """
    whole, part = routing.groups // places, routing.groups % places / places
    parts = 1 if part > 0 else 0
    missed = 0.0
    for own in range(min(whole, routing.topk_groups) + 1):
        for in_part in range(parts + 1):
            ways = _ways(whole, own) * _ways(routing.groups - whole - parts, routing.topk_groups - own - in_part)
            missed += ways * (1.0 - (own + in_part * part) / routing.topk_groups) ** routing.topk
    return places * (1.0 - missed / _ways(routing.groups, routing.topk_groups))


@outer_kernel
def _ways(count: int, chosen: int) -> float:
    """Ways to choose some of `count`."""
    if chosen < 0 or chosen > count:
        return 0.0
    ways = 1.0
    for k in range(chosen):
        ways *= (count - k) / (k + 1)
    return ways
