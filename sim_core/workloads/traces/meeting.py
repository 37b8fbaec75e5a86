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
from typing import Final

import numpy as np

from sim_core.engine.ranks import RankProgram, RankTimes, run_ranks
from sim_core.errors import SpecError
from sim_core.workloads.traces.job import EXPERT_REDUCTIONS, OPTIMIZER, Job, Operation, Rank
from sim_core.workloads.traces.layout import Layout

Place = tuple[int, int]
"""(stage, index among the ranks of the stage)."""
Key = tuple[str, tuple[Place, ...], int]
"""Kind, places of the group, and how many of that kind came before in the group."""
Turn = tuple[int, int]
"""(rank, operation), as numbered in `Job.ranks` and `Rank.operations`."""
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


@dataclass(kw_only=True)
class Builder:
    """Collects operations rank by rank; any key may name a communication."""

    operations: list[tuple[int, int, str]] = field(default_factory=list)  # row, stage, name
    first: list[int] = field(default_factory=lambda: [0])
    gap_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    first_part: list[int] = field(default_factory=lambda: [0])
    part: list[int] = field(default_factory=list)
    cost_s: list[float] = field(default_factory=list)
    number: dict[Reference, int] = field(default_factory=dict)

    def add(self, row: int, stage: int, name: str, gap_s: float, work_s: float, parts: Mapping[Reference, float]) -> None:
        """One operation; `parts` are its communications, with their cost."""
        self.operations.append((row, stage, name))
        self.gap_s.append(gap_s)
        self.work_s.append(work_s)
        for key, cost_s in parts.items():
            number = self.number.setdefault(key, len(self.cost_s))
            if number == len(self.cost_s):
                self.cost_s.append(cost_s)
            self.part.append(number)
        self.first_part.append(len(self.part))

    def end_of_rank(self) -> None:
        self.first.append(len(self.operations))

    def run(self) -> tuple[Played, ...]:
        """Run the program. Raises SpecError if the ranks wait for each other in a cycle."""
        members = np.bincount(np.array(self.part, np.int64), minlength=len(self.cost_s)).astype(np.int64)
        program = RankProgram(
            first=np.array(self.first, np.int64),
            gap_s=np.array(self.gap_s, np.float64),
            work_s=np.array(self.work_s, np.float64),
            first_part=np.array(self.first_part, np.int64),
            part=np.array(self.part, np.int64),
            members=members,
            cost_s=np.array(self.cost_s, np.float64),
        )
        n = len(self.operations)
        times = RankTimes(start_s=np.zeros(n), end_s=np.zeros(n), wait_s=np.zeros(n))
        stuck = run_ranks(program, times)
        if stuck >= 0:
            row, stage, name = self.operations[stuck]
            raise SpecError(f"the recorded operations wait for each other in a cycle: {name} of rank {row} (stage {stage})")
        columns = zip(self.operations, times.start_s.tolist(), times.end_s.tolist(), times.wait_s.tolist(), strict=True)
        return tuple(
            Played(row=row, stage=stage, name=name, start_s=start_s, end_s=end_s, wait_s=wait_s)
            for (row, stage, name), start_s, end_s, wait_s in columns
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
    met_in: dict[Turn, list[int]] = defaultdict(list)
    for m, meeting in enumerate(met):
        for rank, k, _ in meeting.members:
            met_in[rank, k].append(m)
    mixed = [m for m, meeting in enumerate(met) if meeting.is_message and _is_mixed(met, met_in, meeting)]
    norms = [meeting for meeting in met if meeting.key[0] == OPTIMIZER]
    _settle_messages(met, mixed, {})
    for _ in range(ROUNDS if mixed or norms else 0):
        timeline = play(job, met)
        for meeting in norms:
            member = max(range(len(meeting.members)), key=lambda i, m=meeting: timeline.start_s(m.members[i][:2]))  # type: ignore[misc]
            meeting.paid_s = meeting.recorded_s[member]
        _settle_messages(met, mixed, _paid_by_the_last(met, met_in, timeline))
    return play(job, met)


def _is_mixed(met: Sequence[Meeting], met_in: dict[Turn, list[int]], meeting: Meeting) -> bool:
    """Whether a member of a message exchanges other messages with another rank at the same time."""
    return any(len({other[:2] for m in met_in[member[:2]] for other in met[m].members}) > 2 for member in meeting.members)


def _paid_by_the_last(met: Sequence[Meeting], met_in: dict[Turn, list[int]], timeline: RankTimeline) -> dict[int, float]:
    """Seconds of the messages of each exchange that begins after all its counterparts and thus does not wait."""
    paid: dict[int, float] = {}
    for turn, messages in met_in.items():
        if not met[messages[0]].is_message:
            continue
        start_s = timeline.start_s(turn)
        if all(start_s >= timeline.start_s(member[:2]) for m in messages for member in met[m].members):
            for m in messages:
                own = next(s for member, s in zip(met[m].members, met[m].recorded_s, strict=True) if member[:2] == turn)
                paid[m] = min(paid.get(m, own), own)
    return paid


def _settle_messages(met: Sequence[Meeting], mixed: Sequence[int], paid: dict[int, float]) -> None:
    """Cost of messages in mixed exchanges: of the last member, else of others on the link, else the shortest recorded there."""
    known: dict[Link, list[float]] = defaultdict(list)
    shortest: dict[Link, float] = {}
    for m in mixed:
        link = met[m].link
        shortest[link] = min(shortest.get(link, met[m].recorded_s[0]), *met[m].recorded_s)
        if m in paid:
            known[link].append(paid[m])
    for m in mixed:
        link = met[m].link
        usual_s = median(known[link]) if link in known else shortest[link]
        met[m].paid_s = min(paid.get(m, usual_s), *met[m].recorded_s)


def play(job: Job, met: Sequence[Meeting]) -> RankTimeline:
    """Run all ranks; operations are split at their calls into compute and communications."""
    met_in: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for m, meeting in enumerate(met):
        for member in meeting.members:
            met_in[member].append(m)
    builder = Builder()
    first: list[tuple[int, ...]] = []
    for number, rank in enumerate(job.ranks):
        begins: list[int] = []
        for k, operation in enumerate(rank.operations):
            begins.append(len(builder.operations))
            own = met_in.get((number, k, -1), [])
            if own or operation.parts:
                parts: dict[Reference, float] = {(m,): met[m].cost_s for m in own}
                builder.add(rank.rank, rank.stage, operation.name, operation.gap_s, 0.0, parts)
            else:
                called = [met_in.get((number, k, c)) for c in range(len(operation.calls))]
                _cut(builder, rank.rank, rank.stage, operation, called, met)
        first.append((*begins, len(builder.operations)))
        builder.end_of_rank()
    return RankTimeline(events=builder.run(), first=tuple(first))


def _cut(
    builder: Builder, rank: int, stage: int, operation: Operation, called: list[list[int] | None], met: Sequence[Meeting]
) -> None:
    """Add a computation with the calls inside it; compute keeps its position between the calls."""
    gap_s, at_s, work_s = operation.gap_s, 0.0, 0.0
    for call, meeting in zip(operation.calls, called, strict=True):
        work_s += max(call.begin_s - at_s, 0.0)
        at_s = max(at_s, call.begin_s) + call.duration_s
        if meeting is None:  # no other member: counts as compute
            work_s += call.duration_s
            continue
        builder.add(rank, stage, operation.name, gap_s, work_s, {})
        builder.add(rank, stage, f"{call.group} {call.name}", 0.0, 0.0, {(m,): met[m].cost_s for m in meeting})
        gap_s, work_s = 0.0, 0.0
    builder.add(rank, stage, operation.name, gap_s, work_s + max(operation.duration_s - at_s, 0.0), {})
