"""The ranks of a job in one step: operations in order of time, the calls inside them, messages, idle gaps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim_core.documents import Words
from sim_core.workloads.traces.layout import Layout


class Call(NamedTuple):
    """A communication call inside an operation; `begin_s` counts from the start of the operation."""

    name: str
    group: str
    bytes: float
    begin_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.begin_s + self.duration_s


class Operation(NamedTuple):
    """One operation of a rank. `parts` are the pipeline messages of an exchange; `start_s` counts from the rank's first start.

    `compute_s` is the duration without the calls inside. A mean operation has only the first four.
    """

    name: str
    parts: Words
    gap_s: float  # idle before it
    duration_s: float
    start_s: float = 0.0
    state: str = ""
    compute_s: float = 0.0
    group: str = ""
    bytes: float = 0.0
    width: float = 0.0  # bytes of an element of the message; 0: unknown
    calls: tuple[Call, ...] = ()
    line: int = 0

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
    has_experts: bool  # whether gradients or tokens of experts are communicated
    began_s: float = np.nan  # its first start by its host's clock; NaN: unknown

    @property
    def span_s(self) -> float:
        """Seconds from the start of the first operation to the end of the last, by the rank's own clock."""
        return max(operation.end_s for operation in self.operations)

    def named(self, *names: str) -> list[Operation]:
        """Operations of these names."""
        return [operation for operation in self.operations if operation.name in names]


class Job(NamedTuple):
    """All ranks with a trace, by stage and rank; `sequence` is in tokens, 0 if no message has it.

    `token_bytes`: of a token in an all-to-all of experts, 0 without one.
    `alone`: each rank was profiled by itself (Megatron's scaling mode): what its messages took is made up.
    """

    ranks: tuple[Rank, ...]
    layout: Layout
    warnings: Words
    sequence: int
    token_bytes: float
    alone: bool

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
        return [operation for operation in self.operations if operation.name in names]

    @property
    def total(self) -> int:
        """Ranks of the job, those without a trace included."""
        return self.layout.pp * self.layout.ranks_per_stage

    @property
    def whole(self) -> bool:
        """Whether every rank of every stage has a trace."""
        return len(self.ranks) == self.total

    @property
    def messages(self) -> list[Operation]:
        """The pipeline messages of all ranks whose size is known."""
        return [o for o in self.operations if o.parts and o.bytes > 0]

    @property
    def has_experts(self) -> bool:
        return any(rank.has_experts for rank in self.ranks)

    @property
    def span_s(self) -> float:
        """Seconds of the recorded step: the longest span of a rank."""
        return max(rank.span_s for rank in self.ranks)
