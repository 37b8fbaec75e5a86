"""The mean of a stage of a job: its operations in order, with their seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from sim_core.workloads.traces.job import EXPERT_REDUCTIONS
from sim_core.workloads.traces.meeting import OPTIMIZER

BLOCKS: Final = ("forward_step", "backward_step")
Phases = tuple[float, float]
"""Of a forward and of a backward."""
EMBEDDING_REDUCTION: Final = "ep_allreduce"
TIED: Final = (EMBEDDING_REDUCTION, OPTIMIZER)
"""Operations that communicate with ranks of other stages."""
TOGETHER: Final = ("dp_allreduce", *EXPERT_REDUCTIONS)
"""Operations that end at the same time on all replicas of a stage, or on those that hold the same experts."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One mean operation of a stage. `work_s` is without waiting; a message has the cost of its link."""

    name: str
    parts: tuple[str, ...]
    chunk: int
    state: str
    gap_s: float
    work_s: float
    meets: bool  # ends when its members on other stages have arrived, too


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage's operations in order; `inferred` if no rank of it has a trace."""

    stage: int
    steps: tuple[Step, ...]
    inferred: bool

    def mean_s(self, name: str) -> float:
        """Mean work of the operations with this name; 0 if there are none."""
        found = [step.work_s for step in self.steps if step.name == name]
        return fmean(found) if found else 0.0


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All stages, the cost of a message by (stages of the channel, direction), and the assumptions."""

    stages: tuple[Stage, ...]
    message_s: Mapping[tuple[int, int, str], float]
    usual_message_s: float
    notes: tuple[str, ...]


def block_s(stage: Stage) -> tuple[float, float]:
    """Seconds of a micro-batch's forward and backward on a stage, with batch, loss and the gaps before them."""
    blocks = {name: [s for s in stage.steps if s.name == name] for name in ("get_batch", *BLOCKS, "loss_func")}
    count = max(len(blocks[BLOCKS[0]]), 1)

    def total_s(name: str) -> float:
        return sum(step.work_s + step.gap_s for step in blocks[name]) / count

    return total_s("get_batch") + total_s(BLOCKS[0]) + total_s("loss_func"), total_s(BLOCKS[1])
