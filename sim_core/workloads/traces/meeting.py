"""Communications of a job: their members, their costs, and a replay of every rank with its own durations.

Pipeline messages match by channel: the k-th send from one rank to another is the k-th receive there. Collectives match by
group: the k-th call of a kind on each member. A communication costs what its last member to arrive recorded, because that one
does not wait. Usually that is the shortest recorded duration. It is too long where members also wait for something else (an
exchange with two neighbours), too short where it includes other work (the optimizer after the gradient norm): there the replay
finds the last member to arrive. Recorded timestamps and waits are not used.
"""

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from sim_core.engine.ranks import RankProgram, RankTimes, run_ranks
from sim_core.errors import SpecError
from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.layout import Layout
from sim_core.workloads.traces.text import EMBEDDING_REDUCTION, EXPERT_REDUCTIONS, OPTIMIZER

Place = tuple[int, int]
"""(stage, index among the ranks of the stage)."""
Group = tuple[Place, ...]
"""The places of its ranks."""
Key = tuple[str, Group, int]
"""Kind, places of the group, and how many of that kind came before in the group."""
Turn = tuple[int, int]
"""(rank, operation), as numbered in `Job.ranks` and `Rank.operations`."""
Member = tuple[int, int, int]
"""(rank, operation, call or -1)."""
Link = tuple[int, int, str]
"""(stage of the sender, stage of the receiver, kind of message)."""
ROUNDS = 3
"""Rounds of `settle`: which member arrives last depends slightly on the cost of earlier communications."""
MESSAGES = ("forward", "backward")
MODEL = "mp"
"""The group of the gradient norm, a sum over the ranks of the model."""
_GROUP_OF_OPERATION = {
    **{"dp_allreduce": "dp", EMBEDDING_REDUCTION: "ep", OPTIMIZER: MODEL},
    **dict.fromkeys(EXPERT_REDUCTIONS, "ep_dp"),
}


@dataclass(kw_only=True)
class Meeting:
    """One communication: its members in any order, and the seconds that each recorded."""

    key: Key
    members: list[Member] = field(default_factory=list)
    recorded_s: list[float] = field(default_factory=list)
    whole: bool  # whether every rank of its group has a trace
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
    def link(self) -> Link:
        """The link of a message."""
        kind, group, _ = self.key
        return group[0][0], group[-1][0], kind


def meetings(job: Job) -> list[Meeting]:
    """All communications of a job."""
    present = {(rank.stage, rank.index) for rank in job.ranks}
    by_key: dict[Key, Meeting] = {}
    sums_norms = not job.has_experts
    for number, rank in enumerate(job.ranks):
        counts: Counter[tuple[str, Group]] = Counter()
        for k, operation in enumerate(rank.operations):
            for kind, group, call, seconds in _communications(job.layout, rank, operation, sums_norms):
                counts[kind, group] += 1
                key = (kind, group, counts[kind, group])
                meeting = by_key.setdefault(key, Meeting(key=key, whole=set(group) <= present))
                meeting.members.append((number, k, call))
                meeting.recorded_s.append(seconds)
    return list(by_key.values())


def _communications(
    layout: Layout, rank: Rank, operation: Operation, sums_norms: bool
) -> Iterator[tuple[str, Group, int, float]]:
    """(kind, places of the group, call or -1, recorded seconds) of each communication of an operation."""
    for part in operation.parts:
        yield part.partition("_")[2], channel(layout, rank.stage, rank.index, part), -1, operation.duration_s
    calls = () if operation.parts else operation.calls
    collectives = [(f"{call.group} {call.name}", call.group, c, call.duration_s) for c, call in enumerate(calls)]
    name = _GROUP_OF_OPERATION.get(operation.name)
    if name is not None and (name != MODEL or (sums_norms and not calls)):
        collectives.append((operation.name, name, -1, operation.duration_s))
    for kind, name, call, seconds in collectives:
        group = group_of(layout, rank.stage, rank.index, name)
        if len(group) > 1:
            yield kind, group, call, seconds


def channel(layout: Layout, stage: int, index: int, part: str) -> tuple[Place, Place]:
    """(sender, receiver) of a pipeline message, seen from `stage`; the last stage also sends to the first."""
    sends = part.startswith("send")
    other = (stage + (1 if part.endswith("forward") == sends else -1)) % layout.pp
    return ((stage, index), (other, index)) if sends else ((other, index), (stage, index))


def group_of(layout: Layout, stage: int, index: int, group: str) -> Group:
    """Places (stage, index) of a rank's group; TP fastest, then DP (EP inside DP), then PP."""
    tp, dp, ep, ends = layout.tp, layout.dp, layout.ep, (0, layout.pp - 1)
    replica, shard = divmod(index, tp)
    stages: Sequence[int] = (stage,)
    replicas: Sequence[int] = (replica,)
    if group == MODEL:
        stages = range(layout.pp)
    elif group == "ep" and stage in ends:  # the embedding group: first and last stage share tied weights
        stages = tuple(dict.fromkeys(ends))
    elif group == "dp":
        replicas = range(dp)
    elif group == "exp":
        replicas = range(replica // ep * ep, replica // ep * ep + ep)
    elif group in ("ep_dp", "exp_dp"):
        replicas = range(replica % ep, dp, ep)
    shards = range(tp) if group in ("tp", MODEL) else (shard,)
    return tuple((s, r * tp + t) for s in stages for r in replicas for t in shards)


class Played(NamedTuple):
    """One replayed operation, seconds from the start of the step; `row` names the rank or stage."""

    row: int
    stage: int
    name: str
    start_s: float
    end_s: float
    wait_s: float


def ends_of(events: Sequence[Played], stages: Container[int]) -> tuple[float, float]:
    """The end of a step, and that of some of its stages."""
    return max(event.end_s for event in events), max(event.end_s for event in events if event.stage in stages)


Times = Mapping[Turn, tuple[float, float]]
"""Start and end of each operation of each rank in a replay, waits included."""


def settle(job: Job, met: Sequence[Meeting]) -> tuple[tuple[Played, ...], Times]:
    """Set the cost of each communication (`paid_s`) and replay all ranks. Raises SpecError for a cycle of waits."""
    met_in = defaultdict(list)
    for meeting in met:
        for rank, k, _ in meeting.members:
            met_in[rank, k].append(meeting)

    def is_mixed(meeting: Meeting) -> bool:
        """Whether a member of a message exchanges other messages with another rank at the same time."""
        beside = ({other[:2] for each in met_in[member[:2]] for other in each.members} for member in meeting.members)
        return any(len(turns) > 2 for turns in beside)

    mixed = [meeting for meeting in met if meeting.is_message and is_mixed(meeting)]
    norms = [meeting for meeting in met if meeting.key[0] == OPTIMIZER]
    _settle_messages(mixed, {})
    for _ in range(ROUNDS if mixed or norms else 0):
        _, times = play(job, met)
        for meeting in norms:
            starts_s = [times[member[:2]][0] for member in meeting.members]
            meeting.paid_s = meeting.recorded_s[starts_s.index(max(starts_s))]
        _settle_messages(mixed, _paid_by_the_last(met_in, times))
    return play(job, met)


def _paid_by_the_last(met_in: Mapping[Turn, list[Meeting]], times: Times) -> dict[Key, float]:
    """Seconds of the messages of each exchange that begins after all its counterparts and thus does not wait."""
    paid: dict[Key, float] = {}
    for turn, messages in met_in.items():
        starts_s = (times[member[:2]][0] for message in messages for member in message.members)
        if messages[0].is_message and times[turn][0] >= max(starts_s):
            for message in messages:
                own = message.recorded_s[[member[:2] for member in message.members].index(turn)]
                paid[message.key] = min(paid.get(message.key, own), own)
    return paid


def _settle_messages(mixed: Sequence[Meeting], paid: Mapping[Key, float]) -> None:
    """Cost of messages in mixed exchanges: of the last member, else of others on the link, else the shortest recorded there."""
    on_link = defaultdict(list)
    for message in mixed:
        on_link[message.link].append(message)
    for messages in on_link.values():
        known = [paid[message.key] for message in messages if message.key in paid]
        usual_s = median(known) if known else min(seconds for message in messages for seconds in message.recorded_s)
        for message in messages:
            message.paid_s = min(paid.get(message.key, usual_s), *message.recorded_s)


class _Act(NamedTuple):
    """A piece of an operation: what it computes, and the communications that it takes part in."""

    turn: Turn
    name: str
    gap_s: float
    work_s: float
    meetings: Sequence[int]


def play(job: Job, met: Sequence[Meeting]) -> tuple[tuple[Played, ...], Times]:
    """Run all ranks; operations are split at their calls into compute and communications.

    Raises SpecError if the ranks wait for each other in a cycle.
    """
    met_in: dict[Member, list[int]] = defaultdict(list)
    for m, meeting in enumerate(met):
        for member in meeting.members:
            met_in[member].append(m)
    acts = []
    first = [0]
    for number, rank in enumerate(job.ranks):
        for k, operation in enumerate(rank.operations):
            own = met_in.get((number, k, -1), [])
            if own or operation.parts:
                acts.append(_Act((number, k), operation.name, operation.gap_s, 0.0, own))
            else:
                acts += _cut((number, k), operation, met_in)
        first.append(len(acts))
    part = np.array([m for act in acts for m in act.meetings], int)
    program = RankProgram(
        first=np.array(first),
        gap_s=np.array([act.gap_s for act in acts]),
        work_s=np.array([act.work_s for act in acts]),
        first_part=np.cumsum([0, *(len(act.meetings) for act in acts)]),
        part=part,
        members=np.bincount(part, minlength=len(met)),
        cost_s=np.array([meeting.cost_s for meeting in met], float),
    )
    seconds = RankTimes(*np.zeros((3, len(acts))))
    stuck = run_ranks(program, seconds)
    if stuck >= 0:
        rank = job.ranks[acts[stuck].turn[0]]
        told = f"{acts[stuck].name} of rank {rank.rank} (stage {rank.stage})"
        raise SpecError(f"the recorded operations wait for each other in a cycle: {told}")
    events = []
    times: dict[Turn, tuple[float, float]] = {}
    for act, start_s, end_s, wait_s in zip(acts, *(column.tolist() for column in seconds), strict=True):
        rank = job.ranks[act.turn[0]]
        events.append(Played(rank.rank, rank.stage, act.name, start_s, end_s, wait_s))
        times[act.turn] = times.get(act.turn, (start_s,))[0], end_s
    return tuple(events), times


def _cut(turn: Turn, operation: Operation, met_in: Mapping[Member, list[int]]) -> Iterator[_Act]:
    """A computation with the calls inside it, each with its communications; compute keeps its position between the calls."""
    gap_s, at_s, work_s = operation.gap_s, 0.0, 0.0
    for c, call in enumerate(operation.calls):
        work_s += max(call.begin_s - at_s, 0.0)
        at_s = max(at_s, call.begin_s) + call.duration_s
        if (*turn, c) not in met_in:  # no other member: counts as compute
            work_s += call.duration_s
            continue
        yield _Act(turn, operation.name, gap_s, work_s, ())
        yield _Act(turn, f"{call.group} {call.name}", 0.0, 0.0, met_in[*turn, c])
        gap_s, work_s = 0.0, 0.0
    yield _Act(turn, operation.name, gap_s, work_s + max(operation.duration_s - at_s, 0.0), ())
