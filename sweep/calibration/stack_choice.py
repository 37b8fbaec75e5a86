"""Which runs tell the numbers of a stack: what each is for, and which of some plans they are."""

from collections.abc import Sequence
from typing import Final, NamedTuple


class Purpose(NamedTuple):
    """A run that tells something: its sizes in nodes of g GPUs, and why."""

    name: str
    nodes: int
    tp: float  # over g; 0: no tensor parallelism
    pp: int
    largest: bool  # micro-batch: the largest at hand, else the least
    tells: str


PURPOSES: Final = (
    Purpose("host-bound", 1, 1, 1, False, "host time of a layer: kernels too small to keep the host waiting"),
    Purpose("pipeline across nodes", 2, 1, 2, False, "what a pipeline over two nodes adds: messages, waits of rings"),
    Purpose("tp across nodes", 2, 2, 1, False, "a step of a ring between nodes"),
    Purpose("full device", 1, 0, 1, False, "compute, and the host without tensor parallelism"),
    Purpose("reduction across nodes", 2, 0, 1, True, "gradients and parameters over two nodes, the optimizer, the fixed step"),
    Purpose("large messages", 1, 1, 1, True, "collectives of a layer that are large: contention, what is exposed"),
    Purpose("tp of half a node", 1, 0.5, 1, False, "the host with fewer ranks in a ring"),
    Purpose("pipeline in a node", 1, 0.5, 2, False, "messages of a pipeline inside a node"),
    Purpose("large pipeline across nodes", 2, 1, 2, True, "large messages of a pipeline between nodes"),
    Purpose("large tp across nodes", 2, 2, 1, True, "bandwidth of a ring between nodes"),
    Purpose("reduction in a node", 1, 0, 1, True, "gradients inside a node, the optimizer, the fixed step"),
)
"""In the order in which they are asked for: what moves steps most comes first."""
FEWEST: Final = 3
USUAL: Final = 5


class Sizes(NamedTuple):
    """A plan that may be run, or was."""

    gpus: int
    tp: int
    pp: int
    micro_batch: int
    shares_optimizer: bool = True  # as most stacks do, or there is nothing to share


class Chosen(NamedTuple):
    """A purpose and the plan that serves it, by its place; None: none at hand does."""

    purpose: Purpose
    at: int | None


def chosen(plans: Sequence[Sizes], runs: int, nodes: int, gpus_per_node: int) -> list[Chosen]:
    """The purposes on at most so many nodes in their order, with the plan of each, until `runs` of them have one."""
    found: list[Chosen] = []
    for purpose in PURPOSES:
        if purpose.nodes > nodes or sum(one.at is not None for one in found) == runs:
            continue
        taken = {one.at for one in found}
        fitting = [at for at, plan in enumerate(plans) if at not in taken and serves(plan, purpose, gpus_per_node)]
        sign = -1 if purpose.largest else 1
        found.append(
            Chosen(
                purpose,
                min(fitting, key=lambda at: (sign * plans[at].micro_batch, not plans[at].shares_optimizer), default=None),
            )
        )
    return found


def serves(plan: Sizes, purpose: Purpose, gpus_per_node: int) -> bool:
    """Whether a plan has the sizes of a purpose."""
    tp = max(int(purpose.tp * gpus_per_node), 1)
    return (plan.gpus, plan.tp, plan.pp) == (purpose.nodes * gpus_per_node, tp, purpose.pp)
