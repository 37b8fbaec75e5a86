"""The members of each communication of a job, and its cost.

Pipeline messages match by channel: the k-th send from one rank to another is the k-th receive there. Collectives match by
group: the k-th call of a kind on each member. The cost of a communication is the shortest duration that any member recorded,
which is that of the last member to arrive, because it does not wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, Job, Operation, Rank
from sim_core.workloads.traces.layout import Layout

Place = tuple[int, int]
"""(stage, index among the ranks of the stage)."""
Key = tuple[str, tuple[Place, ...], int]
MESSAGES: Final = ("forward", "backward")
OPTIMIZER: Final = "optimizer_step"
_GROUP_OF_OPERATION: Final = {"dp_allreduce": "dp", "ep_allreduce": "ep", **dict.fromkeys(EXPERT_REDUCTIONS, "ep_dp")}


@dataclass(kw_only=True)
class Meeting:
    """One communication: its members as (rank, operation, call or -1), in any order, and the seconds that each recorded."""

    key: Key
    members: list[tuple[int, int, int]] = field(default_factory=list)
    recorded_s: list[float] = field(default_factory=list)
    whole: bool = True  # whether every rank of its group has a trace
    paid_s: float | None = None  # duration of the last member to arrive, if the replay found it

    @property
    def cost_s(self) -> float:
        """Cost in seconds: duration of the last member to arrive, by default the shortest recorded one."""
        return min(self.recorded_s) if self.paid_s is None else self.paid_s

    @property
    def is_message(self) -> bool:
        """Whether it is a pipeline message between two ranks."""
        return self.key[0] in MESSAGES

    @property
    def link(self) -> tuple[int, int, str]:
        """Stages of a message's sender and receiver, and its kind."""
        kind, group, _ = self.key
        return group[0][0], group[-1][0], kind


def meetings(job: Job) -> list[Meeting]:
    """All communications of a job. Ranks and operations are numbered as in `job.ranks` and `Rank.operations`."""
    present = {(rank.stage, rank.index) for rank in job.ranks}
    found: dict[Key, Meeting] = {}
    waits_in_optimizer = not job.has_experts
    for number, rank in enumerate(job.ranks):
        counts: Counter[tuple[str, tuple[Place, ...]]] = Counter()
        for k, operation in enumerate(rank.operations):
            for kind, group, call, seconds in _communications(job.layout, rank, operation, waits_in_optimizer):
                counts[kind, group] += 1
                key = (kind, group, counts[kind, group])
                meeting = found.setdefault(key, Meeting(key=key, whole=set(group) <= present))
                meeting.members.append((number, k, call))
                meeting.recorded_s.append(seconds)
    return list(found.values())


def _communications(
    layout: Layout, rank: Rank, operation: Operation, waits_in_optimizer: bool
) -> Iterator[tuple[str, tuple[Place, ...], int, float]]:
    """(kind, places of the group, call or -1, recorded seconds) of each communication of an operation."""
    if operation.parts:
        for part in operation.parts:
            yield part.partition("_")[2], channel(layout, rank.stage, rank.index, part), -1, operation.duration_s
        return
    for c, call in enumerate(operation.calls):
        group = group_of(layout, rank, call.group)
        if len(group) > 1:
            yield f"{call.group} {call.name}", group, c, call.duration_s
    if operation.name == OPTIMIZER and waits_in_optimizer and not operation.calls:
        group = group_of(layout, rank, "mp")  # the gradient norm is a sum over the ranks of the model
        if len(group) > 1:
            yield operation.name, group, -1, operation.duration_s
    elif operation.name in _GROUP_OF_OPERATION:
        group = group_of(layout, rank, _GROUP_OF_OPERATION[operation.name])
        if len(group) > 1:
            yield operation.name, group, -1, operation.duration_s


def channel(layout: Layout, stage: int, index: int, part: str) -> tuple[Place, Place]:
    """(sender, receiver) of a pipeline message, seen from `stage`; the last stage also sends to the first."""
    down = part.endswith("forward")
    sends = part.startswith("send")
    other = (stage + (1 if down == sends else -1)) % layout.pp
    return ((stage, index), (other, index)) if sends else ((other, index), (stage, index))


def group_of(layout: Layout, rank: Rank, group: str) -> tuple[Place, ...]:
    """Places (stage, index) of a rank's group; TP fastest, then DP (EP inside DP), then PP."""
    tp, dp, ep = layout.tp, layout.dp, layout.ep
    own_tp, own_dp = rank.index % tp, rank.index // tp
    stage = rank.stage
    if group == "tp":
        return tuple((stage, own_dp * tp + t) for t in range(tp))
    if group == "dp":
        return tuple((stage, d * tp + own_tp) for d in range(dp))
    if group == "exp":
        return tuple((stage, d * tp + own_tp) for d in range(own_dp // ep * ep, own_dp // ep * ep + ep))
    if group in ("ep_dp", "exp_dp"):
        return tuple((stage, d * tp + own_tp) for d in range(own_dp % ep, dp, ep))
    if group == "ep":  # the embedding group: first and last stage share tied weights
        ends = dict.fromkeys((0, layout.pp - 1))
        return tuple((s, rank.index) for s in ends) if stage in ends else ((stage, rank.index),)
    if group == "mp":
        return tuple((s, own_dp * tp + t) for s in range(layout.pp) for t in range(tp))
    return ((stage, rank.index),)
