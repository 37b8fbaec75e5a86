"""Communications of a job: their members, their costs, and a replay of every rank with its own durations.

Pipeline messages match by channel: the k-th send from one rank to another is the k-th receive there. Collectives match by
group: the k-th call of a kind on each member. A communication costs what its last member to arrive recorded, because that one
does not wait. Usually that is the shortest recorded duration. It is too long where members also wait for something else (an
exchange with two neighbours), too short where it includes other work (the optimizer after the gradient norm): there the replay
finds the last member to arrive. Recorded timestamps and waits are not used.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from sim_core.engine.ranks import RankProgram, RankTimes, run_ranks
from sim_core.errors import SpecError
from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.layout import Layout
from sim_core.workloads.traces.text import EXPERT_REDUCTIONS, OPTIMIZER

Place = tuple[int, int]
"""(stage, index among the ranks of the stage)."""
Key = tuple[str, tuple[Place, ...], int]
"""Kind, places of the group, and how many of that kind came before in the group."""
Turn = tuple[int, int]
"""(rank, operation), as numbered in `Job.ranks` and `Rank.operations`."""
Member = tuple[int, int, int]
"""(rank, operation, call or -1)."""
Link = tuple[int, int, str]
"""(stage of the sender, stage of the receiver, kind of message)."""
Reference = tuple[object, ...]
"""What names a communication in a program."""
ROUNDS: Final = 3
"""Rounds of `settle`: which member arrives last depends slightly on the cost of earlier communications."""
MESSAGES: Final = ("forward", "backward")
_GROUP_OF_OPERATION: Final = {"dp_allreduce": "dp", "ep_allreduce": "ep", **dict.fromkeys(EXPERT_REDUCTIONS, "ep_dp")}


@dataclass(kw_only=True)
class Meeting:
    """One communication: its members in any order, and the seconds that each recorded."""

    key: Key
    members: list[Member] = field(default_factory=list)
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
    def link(self) -> Link:
        """The link of a message."""
        kind, group, _ = self.key
        return group[0][0], group[-1][0], kind


def meetings(job: Job) -> list[Meeting]:
    """All communications of a job."""
    present = {(rank.stage, rank.index) for rank in job.ranks}
    by_key: dict[Key, Meeting] = {}
    waits_in_optimizer = not job.has_experts
    for number, rank in enumerate(job.ranks):
        counts: Counter[tuple[str, tuple[Place, ...]]] = Counter()
        for k, operation in enumerate(rank.operations):
            for kind, group, call, seconds in _communications(job.layout, rank, operation, waits_in_optimizer):
                counts[kind, group] += 1
                key = (kind, group, counts[kind, group])
                meeting = by_key.setdefault(key, Meeting(key=key, whole=set(group) <= present))
                meeting.members.append((number, k, call))
                meeting.recorded_s.append(seconds)
    return list(by_key.values())


def _communications(
    layout: Layout, rank: Rank, operation: Operation, waits_in_optimizer: bool
) -> Iterator[tuple[str, tuple[Place, ...], int, float]]:
    """(kind, places of the group, call or -1, recorded seconds) of each communication of an operation."""
    if operation.parts:
        for part in operation.parts:
            yield part.partition("_")[2], channel(layout, rank.stage, rank.index, part), -1, operation.duration_s
        return
    collectives = [(f"{call.group} {call.name}", call.group, c, call.duration_s) for c, call in enumerate(operation.calls)]
    if operation.name == OPTIMIZER and waits_in_optimizer and not operation.calls:
        # the gradient norm is a sum over the ranks of the model
        collectives.append((operation.name, "mp", -1, operation.duration_s))
    elif operation.name in _GROUP_OF_OPERATION:
        collectives.append((operation.name, _GROUP_OF_OPERATION[operation.name], -1, operation.duration_s))
    for kind, name, call, seconds in collectives:
        group = group_of(layout, rank, name)
        if len(group) > 1:
            yield kind, group, call, seconds


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


@dataclass(frozen=True, kw_only=True)
class Played:
    """One replayed operation, seconds from the start of the step; `row` names the rank or stage."""

    row: int
    stage: int
    name: str
    start_s: float
    end_s: float
    wait_s: float


class Act(NamedTuple):
    """One operation of a program; `parts` are its communications, named by anything, with their cost."""

    row: int
    stage: int
    name: str
    gap_s: float
    work_s: float
    parts: Mapping[Reference, float]


def run(ranks: Sequence[Sequence[Act]]) -> tuple[Played, ...]:
    """Run the operations of some ranks. Raises SpecError if the ranks wait for each other in a cycle."""
    acts = [act for rank in ranks for act in rank]
    cost_s: dict[Reference, float] = {}
    for key, cost in (part for act in acts for part in act.parts.items()):
        cost_s.setdefault(key, cost)
    number = {key: k for k, key in enumerate(cost_s)}
    part = np.array([number[key] for act in acts for key in act.parts], np.int64)
    program = RankProgram(
        first=np.cumsum([0, *map(len, ranks)], dtype=np.int64),
        gap_s=np.array([act.gap_s for act in acts], np.float64),
        work_s=np.array([act.work_s for act in acts], np.float64),
        first_part=np.cumsum([0, *(len(act.parts) for act in acts)], dtype=np.int64),
        part=part,
        members=np.bincount(part, minlength=len(cost_s)).astype(np.int64),
        cost_s=np.array(list(cost_s.values()), np.float64),
    )
    times = RankTimes(*np.zeros((3, len(acts))))
    stuck = run_ranks(program, times)
    if stuck >= 0:
        act = acts[stuck]
        told = f"{act.name} of rank {act.row} (stage {act.stage})"
        raise SpecError(f"the recorded operations wait for each other in a cycle: {told}")
    columns = zip(acts, times.start_s.tolist(), times.end_s.tolist(), times.wait_s.tolist(), strict=True)
    return tuple(
        Played(row=act.row, stage=act.stage, name=act.name, start_s=start_s, end_s=end_s, wait_s=wait_s)
        for act, start_s, end_s, wait_s in columns
    )


@dataclass(frozen=True, kw_only=True)
class RankTimeline:
    """The events of all ranks; operation k of rank r has `events[first[r][k]:first[r][k + 1]]`."""

    events: tuple[Played, ...]
    first: tuple[tuple[int, ...], ...]

    def start_s(self, turn: Turn) -> float:
        return self.events[self.first[turn[0]][turn[1]]].start_s

    def end_s(self, rank: int) -> float:
        return self.events[self.first[rank][-1] - 1].end_s

    def duration_s(self, rank: int, k: int) -> float:
        """Seconds of an operation in the replay, including its waits."""
        return self.events[self.first[rank][k + 1] - 1].end_s - self.start_s((rank, k))


def settle(job: Job, met: Sequence[Meeting]) -> RankTimeline:
    """Set the cost of each communication (`paid_s`) and replay all ranks. Raises SpecError for a cycle of waits."""
    met_in: dict[Turn, list[Meeting]] = defaultdict(list)
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
        timeline = play(job, met)
        for meeting in norms:
            starts_s = [timeline.start_s(member[:2]) for member in meeting.members]
            meeting.paid_s = meeting.recorded_s[starts_s.index(max(starts_s))]
        _settle_messages(mixed, _paid_by_the_last(met_in, timeline))
    return play(job, met)


def _paid_by_the_last(met_in: Mapping[Turn, list[Meeting]], timeline: RankTimeline) -> dict[Key, float]:
    """Seconds of the messages of each exchange that begins after all its counterparts and thus does not wait."""
    paid: dict[Key, float] = {}
    for turn, messages in met_in.items():
        start_s = timeline.start_s(turn)
        if not messages[0].is_message or any(start_s < timeline.start_s(m[:2]) for each in messages for m in each.members):
            continue
        for message in messages:
            pairs = zip(message.members, message.recorded_s, strict=True)
            own = next(seconds for member, seconds in pairs if member[:2] == turn)
            paid[message.key] = min(paid.get(message.key, own), own)
    return paid


def _settle_messages(mixed: Sequence[Meeting], paid: Mapping[Key, float]) -> None:
    """Cost of messages in mixed exchanges: of the last member, else of others on the link, else the shortest recorded there."""
    on_link: dict[Link, list[Meeting]] = defaultdict(list)
    for message in mixed:
        on_link[message.link].append(message)
    for messages in on_link.values():
        known = [paid[message.key] for message in messages if message.key in paid]
        usual_s = median(known) if known else min(seconds for message in messages for seconds in message.recorded_s)
        for message in messages:
            message.paid_s = min(paid.get(message.key, usual_s), *message.recorded_s)


def play(job: Job, met: Sequence[Meeting]) -> RankTimeline:
    """Run all ranks; operations are split at their calls into compute and communications."""
    met_in: dict[Member, dict[Reference, float]] = defaultdict(dict)
    for m, meeting in enumerate(met):
        for member in meeting.members:
            met_in[member][m,] = meeting.cost_s
    ranks: list[list[Act]] = []
    first: list[tuple[int, ...]] = []
    played = 0
    for number, rank in enumerate(job.ranks):
        acts: list[Act] = []
        begins: list[int] = []
        for k, operation in enumerate(rank.operations):
            begins.append(played + len(acts))
            own = met_in.get((number, k, -1), {})
            if own or operation.parts:
                acts.append(Act(rank.rank, rank.stage, operation.name, operation.gap_s, 0.0, own))
            else:
                acts += _cut(rank, operation, [met_in.get((number, k, c)) for c in range(len(operation.calls))])
        played += len(acts)
        first.append((*begins, played))
        ranks.append(acts)
    return RankTimeline(events=run(ranks), first=tuple(first))


def _cut(rank: Rank, operation: Operation, called: Sequence[Mapping[Reference, float] | None]) -> Iterator[Act]:
    """A computation with the calls inside it, each with its communications; compute keeps its position between the calls."""
    gap_s, at_s, work_s = operation.gap_s, 0.0, 0.0
    for call, parts in zip(operation.calls, called, strict=True):
        work_s += max(call.begin_s - at_s, 0.0)
        at_s = max(at_s, call.begin_s) + call.duration_s
        if parts is None:  # no other member: counts as compute
            work_s += call.duration_s
            continue
        yield Act(rank.rank, rank.stage, operation.name, gap_s, work_s, {})
        yield Act(rank.rank, rank.stage, f"{call.group} {call.name}", 0.0, 0.0, parts)
        gap_s, work_s = 0.0, 0.0
    yield Act(rank.rank, rank.stage, operation.name, gap_s, work_s + max(operation.duration_s - at_s, 0.0), {})
