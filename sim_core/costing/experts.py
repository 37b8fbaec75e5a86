"""What a layer with experts costs besides kernels and messages: its CPU time, and what the device waits for it."""

from typing import Final, NamedTuple

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.models.description import Model
from sim_core.models.precision import WIDE
from sim_core.models.stack import Stack
from sim_core.planning.columns import FLEX, Plans

ALLTOALL: Final = 0
CAPTURED: Final = {"none": (1.0, False), "attention": (0.0, False), "router": (1.0, True), "attention and router": (0.0, True)}
"""By `graphs`: part of a dense layer's CPU time that is left in a layer with experts, and whether its router is captured."""


class Host(NamedTuple):
    """CPU seconds of one pass of a layer, forward and backward, [rows] each; and those that the device waits in any case."""

    launch_s: tuple[Floats, Floats]
    wait_s: tuple[Floats, Floats]


def dynamic(model: Model, stack: Stack) -> bool:
    """Whether the host has to know how many tokens each expert gets: not with padded capacities, nor in a graph of all."""
    padded = model.experts is not None and model.experts.capacity_factor is not None and model.experts.pad_to_capacity
    return model.experts is not None and not padded and stack.graphs != "full"


def host_of(model: Model, stack: Stack, plans: Plans, first: Ints, dense_s: tuple[Floats, Floats], *, moe: bool) -> Host:
    """The host in a layer whose dense part takes `dense_s` to launch; rows are those of the plans `first`.

    The GEMMs of the experts of a rank run one after another, each with casts of its operands (Megatron-LM's TEGroupedMLP on
    Transformer Engine's GroupedLinear): small kernels behind a wait for counts, which the device has run dry.
    """
    none = np.zeros(len(first))
    if stack.graphs == "full":
        return Host((none, none), (none, none))
    if not moe or model.experts is None:
        left = 0.0 if stack.graphs.startswith("attention") else 1.0
        return Host((left * dense_s[0], left * dense_s[1]), (none, none))
    dense_share, router = CAPTURED[stack.graphs]
    number = model.experts.count / plans.ep[first]
    narrow = plans.precision[first] >= WIDE
    waits = (plans.dispatcher[first] == ALLTOALL) & dynamic(model, stack)
    slower = np.where((plans.overlap_ep[first] == 1) & (plans.ep[first] > 1), stack.host_overlap_ep, 1.0)
    launch_s, wait_s = [], []
    for phase in range(2):
        each = stack.host_expert[phase] + np.where(narrow, stack.host_expert_casts[phase], 0.0)
        each = number * (each + np.where(narrow & waits, stack.host_expert_padding[phase], 0.0))
        own = np.where(waits, stack.host_alltoall[phase], 0.0)
        own = own + stack.host_experts[phase] * (1 - stack.router_share if router else 1.0)
        launch_s.append(slower * (dense_share * dense_s[phase] + own + each))
        wait_s.append(each)
    return Host((launch_s[0], launch_s[1]), (wait_s[0], wait_s[1]))


def metadata_s(stack: Stack, model: Model, plans: Plans, first: Ints, across: Bools) -> Floats:
    """Least seconds of what ranks exchange before a dispatch, [rows]; `across`: whether their groups lie on several nodes."""
    exchanged = (plans.dispatcher[first] == FLEX) & across & (plans.ep[first] > 1)
    return np.where(exchanged, stack.metadata_across if model.experts is not None else 0.0, 0.0)
