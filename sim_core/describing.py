"""What one plan looks like on its machine: communication groups on nodes, layers and memory of each stage, work of each."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.compiled.jit import quickest
from sim_core.costing.groups import group_plans
from sim_core.costing.peak import stage_memory
from sim_core.costing.running import as_run
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.schedules import PLACEMENT
from sim_core.hardware.table import HardwareTable
from sim_core.planning.columns import Plans
from sim_core.planning.legality import REASON, refuse
from sim_core.planning.split import split_plans
from sim_core.simulator import legality, plain_python_s
from sim_core.terms import GROUP_NAMES
from sim_core.workloads.workload import Workload


class Group(NamedTuple):
    """The communication groups of one kind: ranks of each, and on how many nodes the widest of them lies."""

    name: str
    ranks: int
    nodes: int


class Shape(NamedTuple):
    """One plan on its machine.

    `layers[stage][chunk]` are the layers of each virtual stage; `memory[len(MEMORY), stages]` bytes on a rank, NaN if unknown.
    """

    groups: tuple[Group, ...]
    layers: tuple[tuple[int, ...], ...]
    memory: Floats


def shape_of(workload: Workload, hardware: HardwareTable, plans: Plans) -> Shape:
    """The shape of one plan. Raises SpecError if it cannot run, unless only its memory is too small."""
    with quickest(plain_python_s(workload, plans)):
        reason = int(legality(workload, hardware, plans)[0][0])
        if reason != REASON["memory_exceeds_device"]:
            refuse(reason)
        plans, row = as_run(workload, hardware, plans), np.zeros(1, int)
        placed = group_plans(hardware.columns, plans, row, workload.arrays.shares.whole_experts)
        nodes = [int(placed.placed[begin:end, 0].max()) for begin, end in zip(placed.first[0], placed.end[0], strict=True)]
        groups = tuple(map(Group, GROUP_NAMES, placed.ranks[0].tolist(), nodes))
        schedule, pp, vpp = (int(column[0]) for column in (plans.schedule, plans.pp, plans.vpp))
        split, placement, chunks = split_plans(workload.arrays, plans, row), int(PLACEMENT[schedule]), chunks_of(schedule, vpp)
        of = np.array([[virtual_of(placement, stage, chunk, pp) for chunk in range(chunks)] for stage in range(pp)])
        layers = tuple(map(tuple, (split.end - split.begin)[of].tolist()))
        return Shape(groups, layers, stage_memory(workload.memory_of or workload, plans))
