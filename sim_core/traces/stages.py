"""What each stage of a job does in the mean: seconds of its operations without waiting; of missing stages, as inferred.

Known are the stages with a rank at hand. A missing stage is taken to be like the nearest known one, save the last: it is
slower by the mean of two things that betray it, the steady waits beyond a message and the waits of the cooldown beyond a
forward. Where only the last stage is known, the others' forwards are what fills the pipeline before its first message.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from sim_core.traces.job import Job, Operation, Rank
from sim_core.traces.meeting import OPTIMIZER, Meeting
from sim_core.traces.ranks import RankTimeline
from sim_core.units import short

BLOCKS: Final = ("forward_step", "backward_step")
EMBEDDING_REDUCTION: Final = "ep_allreduce"
TIED: Final = (EMBEDDING_REDUCTION, OPTIMIZER)
"""Operations that meet ranks of other stages."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operation of a stage, in the mean. `work_s` is its cost without waiting; messages cost what their link does."""

    name: str
    parts: tuple[str, ...]
    chunk: int
    state: str
    gap_s: float
    work_s: float
    meets: bool  # ends when its members on other stages are there, too


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A stage's operations in order; `inferred` where no rank of it is at hand."""

    stage: int
    steps: tuple[Step, ...]
    inferred: bool

    def mean_s(self, name: str) -> float:
        """Mean work of the operations of a name; 0 where there is none."""
        found = [step.work_s for step in self.steps if step.name == name]
        return fmean(found) if found else 0.0


@dataclass(frozen=True, kw_only=True)
class Stages:
    """All stages, the cost of a message by (channel's stages, direction), and what was assumed, in sentences."""

    stages: tuple[Stage, ...]
    message_s: Mapping[tuple[int, int, str], float]
    usual_message_s: float
    notes: tuple[str, ...]


def stages_of(job: Job, met: list[Meeting], timeline: RankTimeline | None = None) -> Stages:
    """The mean stages of a job. Of a replay of the ranks (`timeline`), they take a stage's waits for itself."""
    link_s, usual_s = message_costs(met)
    without_waits = call_costs(job, met)
    known = {
        stage: _mean_stage(job, stage, without_waits, timeline)
        for stage in range(job.layout.pp)
        if any(rank.stage == stage for rank in job.ranks)
    }
    notes: list[str] = []
    if len(known) < job.layout.pp:
        stages = _infer(job, known, usual_s, notes)
    else:
        stages = [known[stage] for stage in range(job.layout.pp)]
        if not job.whole:
            notes.append(
                f"{len(job.ranks)} of {job.layout.pp * job.layout.ranks_per_stage} ranks are at hand: the others are alike"
            )
    return Stages(stages=tuple(stages), message_s=link_s, usual_message_s=usual_s, notes=tuple(notes))


def chunk_of(job: Job, name: str, occurrence: int) -> int:
    """The virtual stage that the k-th forward or backward runs: groups of pp micro-batches (schedule.py)."""
    pp, vpp = job.layout.pp, job.layout.vpp
    if vpp == 1 or name not in BLOCKS:
        return 0
    chunk = occurrence // pp % vpp
    return chunk if name == BLOCKS[0] else vpp - 1 - chunk


def message_costs(met: list[Meeting]) -> tuple[dict[tuple[int, int, str], float], float]:
    """Seconds of a message on each link: the median over its messages of what the last to arrive paid.

    Where one end only is at hand, waiting cannot be told from transfer: the shortest message stands for all.
    """
    by_link: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    alone: list[float] = []
    for meeting in met:
        if not meeting.is_message:
            continue
        if len(meeting.members) == 2:
            by_link[meeting.link].append(meeting.cost_s)
        else:
            alone.append(meeting.cost_s)
    link_s = {link: median(costs) for link, costs in by_link.items()}
    usual_s = median(link_s.values()) if link_s else min(alone, default=0.0)
    return link_s, usual_s


def call_costs(job: Job, met: list[Meeting]) -> dict[tuple[int, int, int], float]:
    """Seconds, without waiting, of each operation or call that takes part in a collective, by (rank, operation, call)."""
    reduced = [(o.bytes, o.duration_s) for rank in job.ranks for o in rank.named("dp_allreduce") if o.bytes > 0]
    rate = min((seconds / size for size, seconds in reduced), default=None)
    costs: dict[tuple[int, int, int], float] = {}
    for meeting in met:
        if meeting.is_message:
            continue
        cost_s = meeting.cost_s
        rank, k, _ = meeting.members[0]
        size = job.ranks[rank].operations[k].bytes
        if meeting.key[0] == EMBEDDING_REDUCTION and len(meeting.members) == 1 and rate is not None and size > 0:
            cost_s = min(cost_s, size * rate)  # its wait for the other end is not told apart: as fast as dp_allreduce
        costs.update(dict.fromkeys(meeting.members, cost_s))
    return costs


def _mean_stage(job: Job, stage: int, costs: Mapping[tuple[int, int, int], float], timeline: RankTimeline | None) -> Stage:
    """Means over the stage's ranks and micro-batches, in the order of the rank that recorded most."""
    work: dict[tuple[str, int], list[float]] = defaultdict(list)
    gaps: dict[tuple[str, int], list[float]] = defaultdict(list)
    template: list[tuple[Operation, int]] = []
    for number, rank in enumerate(job.ranks):
        if rank.stage != stage:
            continue
        rows = []
        for k, (operation, chunk) in enumerate(numbered(job, rank)):
            rows.append((operation, chunk))
            gaps[operation.name, chunk].append(operation.gap_s)
            if timeline is not None and not operation.parts and operation.name not in TIED:
                work[operation.name, chunk].append(timeline.duration_s(number, k))
            elif not operation.parts:
                work[operation.name, chunk].append(work_without_waits(operation, number, k, costs))
        template = max(template, rows, key=len)
    steps = [
        Step(
            name=operation.name,
            parts=operation.parts,
            chunk=chunk,
            state=operation.state,
            gap_s=fmean(gaps[operation.name, chunk]),
            work_s=0.0 if operation.parts else fmean(work[operation.name, chunk]),
            meets=operation.name == EMBEDDING_REDUCTION or (operation.name == OPTIMIZER and not job.has_experts),
        )
        for operation, chunk in template
    ]
    return Stage(stage=stage, steps=tuple(steps), inferred=False)


def numbered(job: Job, rank: Rank) -> Iterable[tuple[Operation, int]]:
    """A rank's operations, each with its virtual stage."""
    counts: dict[str, int] = defaultdict(int)
    for operation in rank.operations:
        yield operation, chunk_of(job, operation.name, counts[operation.name])
        counts[operation.name] += 1


def work_without_waits(operation: Operation, rank: int, k: int, costs: Mapping[tuple[int, int, int], float]) -> float:
    """Seconds of an operation with every communication in it at its cost."""
    if (rank, k, -1) in costs:
        return costs[rank, k, -1]
    calls = (costs.get((rank, k, c), call.duration_s) for c, call in enumerate(operation.calls))
    return operation.compute_s + sum(calls)


def _infer(job: Job, known: dict[int, Stage], message_s: float, notes: list[str]) -> list[Stage]:
    """All stages, the missing ones made from the known."""
    pp, last = job.layout.pp, job.layout.pp - 1
    missing = sorted(set(range(pp)) - set(known))
    names = f"stage {missing[0]} is" if len(missing) == 1 else f"stages {', '.join(map(str, missing))} are"
    inner = sorted(stage for stage in known if stage != last)
    if not inner:
        forward_s, backward_s = _before_the_last(job, known[last], message_s)
        notes.append(
            f"{names} not recorded: taken alike, forward {short(forward_s, 's')} as the pipeline's fill tells, "
            f"backward {short(backward_s, 's')} in the proportion of stage {last}"
        )
        return [*(_made(job, stage, known[last], forward_s, backward_s) for stage in range(last)), known[last]]
    stages = []
    for stage in range(last):
        near = known[min(inner, key=lambda k, s=stage: abs(k - s))]  # type: ignore[misc]
        stages.append(known.get(stage) or _made(job, stage, near, *block_s(near)))
    if last in known:
        notes.append(f"{names} not recorded: taken to be like the nearest that is")
        return [*stages, known[last]]
    near = known[inner[-1]]
    excess_s = _excess(job, near, message_s)
    forward_s, backward_s = block_s(near)
    grown = 1 + excess_s / (forward_s + backward_s)
    notes.append(
        f"{names} not recorded: taken to be like the nearest that is, the last slower by {short(excess_s, 's')} a "
        "micro-batch (mean of the steady waits beyond a message and the cooldown's waits beyond a forward)"
    )
    return [*stages, _made(job, last, near, forward_s * grown, backward_s * grown)]


def block_s(stage: Stage) -> tuple[float, float]:
    """Seconds of a micro-batch's forward and backward on a stage: with its batch, its loss and the gaps before them."""
    blocks = {name: [s for s in stage.steps if s.name == name] for name in ("get_batch", *BLOCKS, "loss_func")}
    count = max(len(blocks[BLOCKS[0]]), 1)

    def total_s(name: str) -> float:
        return sum(step.work_s + step.gap_s for step in blocks[name]) / count

    return total_s("get_batch") + total_s(BLOCKS[0]) + total_s("loss_func"), total_s(BLOCKS[1])


def _excess(job: Job, near: Stage, message_s: float) -> float:
    """How much slower than `near` the last stage is in a micro-batch, from the waits of the ranks of `near`; at least 0."""
    steady: list[float] = []
    cooling: list[float] = []
    for rank in job.of_stage(near.stage):
        exchanges = [o for o in rank.operations if o.parts and o.state == "steady" and "recv_backward" in o.parts]
        steady += [o.duration_s - message_s for o in exchanges[1:]]  # the first waits for the pipeline to fill
        cooling += [o.duration_s - message_s for o in rank.operations if o.state == "cooldown" and "recv_backward" in o.parts]
    forward_s, _ = block_s(near)
    signs = []
    if steady:
        signs.append(fmean(steady))
    if cooling:
        signs.append(fmean(cooling) - forward_s)
    return max(fmean(signs), 0.0) if signs else 0.0


def _before_the_last(job: Job, last: Stage, message_s: float) -> tuple[float, float]:
    """Forward and backward of a stage before the last, from the wait for the first message there."""
    fills = [next((o.end_s for o in rank.operations if "recv_forward" in o.parts), 0.0) for rank in job.of_stage(last.stage)]
    stages = job.layout.pp - 1
    forward_s = max(fmean(fills) / stages - message_s, 0.0)
    own_forward_s, own_backward_s = last.mean_s(BLOCKS[0]), last.mean_s(BLOCKS[1])
    ratio = own_backward_s / own_forward_s if own_forward_s > 0 else 2.0
    return forward_s, forward_s * ratio


def _made(job: Job, stage: int, like: Stage, forward_s: float, backward_s: float) -> Stage:
    """A stage that is not recorded: 1F1B of blocks of these seconds, and the end of the step of a stage `like` it."""
    ends = (0, job.layout.pp - 1)
    finalize = [
        step
        for step in like.steps
        if not step.parts
        and step.name not in ("get_batch", "loss_func", *BLOCKS)
        and (step.name != EMBEDDING_REDUCTION or stage in ends)
    ]
    steps = [
        *_one_f_one_b(stage, job.layout.pp, job.layout.ga, forward_s, backward_s, _gap(like)),
        *finalize,
    ]
    return Stage(stage=stage, steps=tuple(steps), inferred=True)


def _gap(like: Stage) -> float:
    gaps = [step.gap_s for step in like.steps if step.parts]
    return median(gaps) if gaps else 0.0


def _one_f_one_b(stage: int, pp: int, ga: int, forward_s: float, backward_s: float, gap_s: float) -> list[Step]:
    """Operations of a stage in 1F1B as Megatron-LM runs it without interleaving (core/pipeline_parallel/schedules.py)."""
    warmup = min(pp - 1 - stage, ga)
    steps: list[Step] = []

    def block(name: str, work_s: float) -> None:
        steps.append(Step(name=name, parts=(), chunk=0, state="", gap_s=0.0, work_s=work_s, meets=False))

    def message(*parts: str) -> None:
        held = tuple(p for p in parts if stage > 0 or p not in ("recv_forward", "send_backward"))
        held = tuple(p for p in held if stage < pp - 1 or p not in ("send_forward", "recv_backward"))
        if held:
            steps.append(Step(name="+".join(held), parts=held, chunk=0, state="", gap_s=gap_s, work_s=0.0, meets=False))

    for _ in range(warmup):
        message("recv_forward")
        block("forward_step", forward_s)
        message("send_forward")
    if ga > warmup:
        message("recv_forward")
    for k in range(ga - warmup):
        block("forward_step", forward_s)
        message("send_forward", "recv_backward")
        block("backward_step", backward_s)
        message("send_backward", *(("recv_forward",) if k < ga - warmup - 1 else ()))
    for _ in range(warmup):
        message("recv_backward")
        block("backward_step", backward_s)
        message("send_backward")
    return steps
