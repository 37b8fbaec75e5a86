"""The ranks of a job in one step: operations in order of time, the calls inside them, messages, idle gaps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim_core.workloads.traces.layout import Layout
from sim_core.workloads.traces.text import EXPERT_REDUCTIONS


@dataclass(frozen=True, kw_only=True)
class Call:
    """A communication call inside an operation; `begin_s` counts from the start of the operation."""

    name: str
    group: str
    bytes: float
    begin_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.duration_s


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a rank. `parts` are the pipeline messages of an exchange; `start_s` counts from the rank's first start.

    `compute_s` is the duration without the calls inside.
    """

    name: str
    parts: tuple[str, ...]
    state: str
    micro_batch: int
    start_s: float
    duration_s: float
    gap_s: float  # idle before it
    compute_s: float
    group: str
    bytes: float
    width: float  # bytes of an element of the message; 0: unknown
    calls: tuple[Call, ...]
    line: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def expert_exchanges(self) -> list[Call]:
        """The all-to-alls of experts inside it, in order."""
        return [call for call in self.calls if (call.group, call.name) == ("exp", "all_to_all")]


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank of the job; `index` is its position among the ranks of its stage."""

    path: str
    rank: int
    stage: int
    index: int
    operations: tuple[Operation, ...]
    beside: Mapping[str, float]  # bytes of gradients that were reduced during the backward, by group
    began_s: float = np.nan  # its first start by its host's clock; NaN: unknown

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first operation to the end of the last, by the rank's own clock."""
        return max(operation.end_s for operation in self.operations)

    def named(self, *names: str) -> list[Operation]:
        """Operations of these names."""
        return [operation for operation in self.operations if operation.name in names]


@dataclass(frozen=True, kw_only=True)
class Job:
    """All ranks with a trace, by stage and rank; `sequence` is in tokens, 0 if no message has it.

    `token_bytes`: of a token in an all-to-all of experts, 0 without one.
    `alone`: each rank was profiled by itself (Megatron's scaling mode): what its messages took is made up.
    """

    ranks: tuple[Rank, ...]
    layout: Layout
    warnings: tuple[str, ...]
    sequence: int
    token_bytes: float = 0.0
    alone: bool = False

    @property
    def stages(self) -> dict[int, list[Rank]]:
        """The ranks with a trace of each stage that has one."""
        return {stage: [r for r in self.ranks if r.stage == stage] for stage in sorted({r.stage for r in self.ranks})}

    @property
    def operations(self) -> list[Operation]:
        """Those of all ranks."""
        return [operation for rank in self.ranks for operation in rank.operations]

    def named(self, *names: str) -> list[Operation]:
        """Operations of these names on all ranks."""
        return [operation for rank in self.ranks for operation in rank.named(*names)]

    @property
    def total(self) -> int:
        """Ranks of the job, those without a trace included."""
        return self.layout.pp * self.layout.ranks_per_stage

    @property
    def whole(self) -> bool:
        """Whether every rank of every stage has a trace."""
        return len(self.ranks) == self.total

    @property
    def has_step(self) -> bool:
        """Whether the stages ran one step together: they sent each other messages."""
        return not self.alone and (self.layout.pp == 1 or any(o.parts for o in self.operations))

    @property
    def messages(self) -> list[Operation]:
        """The pipeline messages of all ranks whose size is known."""
        return [o for o in self.operations if o.parts and o.bytes > 0]

    @property
    def has_experts(self) -> bool:
        """Whether the job has experts: their gradients or tokens are communicated."""
        return any(o.name in EXPERT_REDUCTIONS or any(call.group == "exp" for call in o.calls) for o in self.operations)

    @property
    def span_s(self) -> float:
        """Seconds of the recorded step: the longest span of a rank."""
        return max(rank.span_s for rank in self.ranks)
