"""Where the groups of a plan are placed on the nodes."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Bools, Ints
from sim_core.compiled.jit import kernel


class Placement(NamedTuple):
    """One placement of a group's ranks on nodes."""

    ranks: int
    nodes: int
    fewest: int  # ranks on one of its nodes
    most: int  # ranks on one of its nodes
    stride: int = 1  # GPUs from one of its ranks to the next, at most a node's; groups of the kind that lie side by side
    per_leaf: int = 0  # ranks in a leaf that is full of such groups; 0: a group is in one
    per_pod: int = 0  # the same of a pod


@kernel
def _common_divisor(a: int, b: int) -> int:
    while b != 0:
        a, b = b, a % b
    return a


@kernel
def _span(ranks: int, stride: int, offset: int, gpus_per_node: int) -> tuple[int, int, int]:
    """Nodes of a group, and its fewest and most ranks on one of them; it starts at GPU `offset` of a node."""
    common = _common_divisor(stride, gpus_per_node)
    # the pattern repeats every gpus_per_node / common ranks: skip all but two of these rounds
    rounds = max(ranks // (gpus_per_node // common) - 2, 0)
    nodes = rounds * (stride // common)
    left = ranks - rounds * (gpus_per_node // common)
    fewest, most = ranks, 0
    while left > 0:
        here = min((gpus_per_node - offset + stride - 1) // stride, left)
        left -= here
        nodes += 1
        fewest, most = min(fewest, here), max(most, here)
        offset = (offset + here * stride) % gpus_per_node
    return nodes, fewest, most


@kernel
def _offsets(stride: int, starts: int, block: int, blocks: int, gpus_per_node: int) -> tuple[Bools, int]:
    """Offsets into a node at which groups start, in units of the second value; offsets within a unit are equivalent."""
    common = _common_divisor(stride, gpus_per_node)
    reached = np.zeros(gpus_per_node // common, np.bool_)
    left = reached.shape[0]
    offset = 0
    for _ in range(blocks):
        for start in range(offset // common, (offset + starts - 1) // common + 1):
            at = start % reached.shape[0]
            left -= not reached[at]
            reached[at] = True
            if left == 0:
                return reached, common
        offset = (offset + block) % gpus_per_node
        if offset == 0:
            break
    return reached, common


@kernel
def placements(ranks: int, stride: int, starts: int, block: int, blocks: int, gpus_per_node: int) -> Ints:
    """The distinct placements of a kind of group: rows of (nodes, fewest ranks on a node, most), in ascending order.

    A group has `ranks` GPUs, `stride` apart. There are `blocks` consecutive blocks of `block` GPUs; in each, one group starts
    at each of the first `starts` GPUs.
    """
    distinct = np.ones((1, 3), np.int64)
    if ranks <= 1:
        return distinct
    if stride >= gpus_per_node:
        distinct[0, 0] = ranks
        return distinct
    if gpus_per_node % block == 0:  # no block crosses nodes
        distinct[0, 1:] = ranks
        return distinct
    reached, common = _offsets(stride, starts, block, blocks, gpus_per_node)
    distinct = np.empty((reached.shape[0], 3), np.int64)
    count = 0
    for at in range(reached.shape[0]):
        if not reached[at]:
            continue
        nodes, fewest, most = _span(ranks, stride, at * common, gpus_per_node)
        k = count
        while k > 0 and (distinct[k - 1, 0], distinct[k - 1, 1], distinct[k - 1, 2]) > (nodes, fewest, most):
            k -= 1
        if k > 0 and (distinct[k - 1, 0], distinct[k - 1, 1], distinct[k - 1, 2]) == (nodes, fewest, most):
            continue
        for later in range(count, k, -1):
            for part in range(3):
                distinct[later, part] = distinct[later - 1, part]
        distinct[k, 0], distinct[k, 1], distinct[k, 2] = nodes, fewest, most
        count += 1
    return distinct[:count].copy()


@kernel
def crosses_nodes(stage: int, stage_gpus: int, gpus_per_node: int) -> bool:
    """Whether some rank of `stage` is on another node than its partner in the next stage."""
    if stage_gpus >= gpus_per_node:
        return True
    first = stage * stage_gpus // gpus_per_node
    return first != ((stage + 2) * stage_gpus - 1) // gpus_per_node
