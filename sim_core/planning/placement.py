"""Where the groups of a plan sit on the nodes."""

from __future__ import annotations

from sim_core.jit import kernel


@kernel
def _span(ranks: int, stride: int, offset: int, gpus_per_node: int) -> tuple[int, int]:
    """Nodes that a group touches, and its fewest ranks on one of them; it starts `offset` GPUs into a node."""
    common = gpus_per_node
    rest = stride
    while rest != 0:
        common, rest = rest, common % rest
    # after gpus_per_node / common ranks the group stands in its nodes as at first: all but two such rounds are skipped
    rounds = max(ranks // (gpus_per_node // common) - 2, 0)
    nodes = rounds * (stride // common)
    left = ranks - rounds * (gpus_per_node // common)
    fewest = ranks
    while left > 0:
        here = min((gpus_per_node - offset + stride - 1) // stride, left)
        left -= here
        nodes += 1
        fewest = min(fewest, here)
        offset = (offset + here * stride) % gpus_per_node
    return nodes, fewest


@kernel
def place(ranks: int, stride: int, block: int, groups: int, gpus_per_node: int) -> tuple[int, int]:
    """The worst placement of a kind of group: (nodes, fewest of its ranks on a node).

    A group is `ranks` GPUs, `stride` apart; in each of `groups` blocks of `block` GPUs there is one for each of the first
    `stride` GPUs. The slowest group holds up all, so the one that touches the most nodes, and of those the one with the
    fewest ranks on a node, stands for all.
    """
    if ranks <= 1:
        return 1, 1
    if stride >= gpus_per_node:
        return ranks, 1
    nodes, fewest = 0, 0
    start = 0
    if gpus_per_node % block == 0:
        groups = 1  # no block crosses nodes, all lie alike
    step = stride if gpus_per_node % stride == 0 else 1  # the groups of a block lie alike where the stride divides a node
    for _ in range(groups):
        for inner in range(0, stride, step):
            n, f = _span(ranks, stride, (start + inner) % gpus_per_node, gpus_per_node)
            if n > nodes or (n == nodes and f < fewest):
                nodes, fewest = n, f
        start = (start + block) % gpus_per_node
        if start == 0:
            break
    return nodes, fewest


@kernel
def crosses_nodes(stage: int, stage_gpus: int, gpus_per_node: int) -> bool:
    """Whether some rank of `stage` sits on another node than its partner in the next stage."""
    if stage_gpus >= gpus_per_node:
        return True
    first = stage * stage_gpus // gpus_per_node
    return first != ((stage + 2) * stage_gpus - 1) // gpus_per_node
