"""What one plan looks like on its machine: communication groups on nodes, layers and memory of each stage, work of each."""

from dataclasses import dataclass

import numpy as np

from sim_core.arrays import Floats
from sim_core.compiled.jit import quickest
from sim_core.costing.groups import group_plans
from sim_core.costing.peak import stage_memory
from sim_core.costing.running import as_run
from sim_core.engine.codes import chunks_of, virtual_of
from sim_core.engine.schedules import PLACEMENT
from sim_core.errors import SpecError
from sim_core.hardware.table import HardwareTable
from sim_core.planning.columns import Plans
from sim_core.planning.legality import EXPLANATIONS, REASONS
from sim_core.planning.split import split_plans
from sim_core.simulator import legality, plain_python_s
from sim_core.terms import GROUP_NAMES
from sim_core.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Group:
    """The communication groups of one kind: ranks of each, and on how many nodes the widest of them lies."""

    name: str
    ranks: int
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One plan on its machine.

    `layers[stage][chunk]` are the layers of each virtual stage; `memory[len(MEMORY), stages]` bytes on a rank, NaN if unknown.
    """

    groups: tuple[Group, ...]
    layers: tuple[tuple[int, ...], ...]
    memory: Floats


def shape_of(workload: Workload, hardware: HardwareTable, plans: Plans) -> Shape:
    """The shape of one plan. Raises SpecError if it cannot run, unless only its memory is too small."""
    with quickest(plain_python_s(workload, plans)):
        return _shape_of(workload, hardware, plans)


def _shape_of(workload: Workload, hardware: HardwareTable, plans: Plans) -> Shape:
    reason = REASONS[int(legality(workload, hardware, plans)[0][0])]
    if reason not in ("", "memory_exceeds_device"):
        raise SpecError(f"{reason}: {EXPLANATIONS[reason]}")
    plans, row = as_run(workload, hardware, plans), np.zeros(1, np.int64)
    placed = group_plans(hardware.columns, plans, row, workload.arrays.shares.whole_experts)
    groups = [
        Group(
            name=name,
            ranks=int(placed.ranks[0, kind]),
            nodes=int(placed.placed[placed.first[0, kind] : placed.end[0, kind], 0].max()),
        )
        for kind, name in enumerate(GROUP_NAMES)
    ]
    schedule, pp = int(plans.schedule[0]), int(plans.pp[0])
    split, placement = split_plans(workload.arrays, plans, row), int(PLACEMENT[schedule])
    layers_of = split.end - split.begin
    chunks = range(chunks_of(schedule, int(plans.vpp[0])))
    layers = tuple(tuple(int(layers_of[virtual_of(placement, stage, chunk, pp)]) for chunk in chunks) for stage in range(pp))
    return Shape(groups=tuple(groups), layers=layers, memory=stage_memory(workload.memory_of or workload, plans))
