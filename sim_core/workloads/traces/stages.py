"""The mean of each stage of a job: seconds of its operations without waiting for other stages.

Stages with a trace are known. A stage without one is assumed to equal the nearest known one, except for the last, which is
slower. Its extra time is the mean of two estimates: steady waits minus a message, and cooldown waits minus a forward. If only
the last stage is known, the forward time of the others follows from the wait for its first message.

`stages_of` chooses the recorded ranks that stand for a job: all of them, or, where some have no trace, those that fit together.
More ranks are never worse than one: the step from several lies between the shortest and the longest step that one of them
alone would give. Where it does not, that rank is taken alone.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

import numpy as np

from sim_core.errors import SpecError
from sim_core.units import short
from sim_core.workloads.traces.job import BLOCKS, EXPERT_REDUCTIONS, OPTIMIZER, Job, Operation, Rank
from sim_core.workloads.traces.meeting import Builder, Meeting, Played, RankTimeline, Reference, channel, meetings, settle

Phases = tuple[float, float]
"""Of a forward and of a backward."""
Costs = Mapping[tuple[int, int, int], float]
"""Seconds without known waits of operations and calls, by (rank, operation, call or -1)."""
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
        work_s = [step.work_s for step in self.steps if step.name == name]
        return fmean(work_s) if work_s else 0.0


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


COOLDOWN: Final = "cooldown"


def infer(job: Job, known: dict[int, Stage], message_s: float, notes: list[str]) -> list[Stage]:
    """All stages, with estimates of the missing ones. Raises SpecError for an interleaved job."""
    pp, last = job.layout.pp, job.layout.pp - 1
    missing = sorted(set(range(pp)) - set(known))
    if job.layout.vpp > 1 or any({"send_forward", "recv_forward"} <= set(o.parts) for o in job.operations):
        recorded = ", ".join(map(str, known))
        raise SpecError(f"an interleaved job needs a rank of each of its {pp} stages: found those of stages {recorded} only")
    names = f"stage {missing[0]} is" if len(missing) == 1 else f"stages {', '.join(map(str, missing))} are"
    inner = sorted(stage for stage in known if stage != last)
    if not inner:
        forward_s, backward_s = _before_the_last(job, known[last], message_s)
        notes.append(
            f"{names} not recorded: assumed equal, forward {short(forward_s, 's')} from the pipeline's fill time, "
            f"backward {short(backward_s, 's')} in the ratio of stage {last}"
        )
        known = _without_norm_wait(known, backward_s + message_s)
        return [*(_made(job, stage, known[last], forward_s, backward_s) for stage in range(last)), known[last]]
    known = _without_norm_wait(known, block_s(known[inner[0]])[1] + message_s)
    stages = []
    for stage in range(last):
        near = known[min(inner, key=lambda k, s=stage: abs(k - s))]  # type: ignore[misc]
        stages.append(known.get(stage) or _made(job, stage, near, *block_s(near)))
    if last in known:
        notes.append(f"{names} not recorded: assumed equal to the nearest recorded stage")
        return [*stages, known[last]]
    near = known[inner[-1]]
    excess_s = _excess(job, near, message_s)
    forward_s, backward_s = block_s(near)
    own_s = forward_s + backward_s
    grown = 1 + excess_s / own_s if own_s > 0 else 1.0
    notes.append(
        f"{names} not recorded: assumed equal to the nearest recorded stage, the last slower by {short(excess_s, 's')} "
        "per micro-batch (mean of steady waits minus a message and cooldown waits minus a forward)"
    )
    return [*stages, _made(job, last, near, forward_s * grown, backward_s * grown)]


def _excess(job: Job, near: Stage, message_s: float) -> float:
    """Extra seconds per micro-batch of the last stage compared with `near`, from the waits of `near`'s ranks; at least 0."""
    forward_s, backward_s = block_s(near)
    after = job.layout.pp - 1 - near.stage
    signs: list[float] = []
    fills: list[float] = []
    for rank in job.of_stage(near.stage):
        exchanges = [o for o in rank.operations if "recv_backward" in o.parts]
        waits = [(o.state, o.duration_s - message_s) for o in exchanges[1:]]  # the first one waits for the pipeline to fill
        steady = [wait_s for state, wait_s in waits if state != COOLDOWN]
        cooling = [wait_s - forward_s for state, wait_s in waits if state == COOLDOWN]
        signs += [fmean(waits_s) for waits_s in (steady, cooling) if waits_s]
        fills += [o.duration_s - after * (forward_s + backward_s) - (2 * after - 1) * message_s for o in exchanges[:1]]
    return max(fmean(signs or fills or [0.0]), 0.0)


def _without_norm_wait(known: dict[int, Stage], a_stage_s: float) -> dict[int, Stage]:
    """The known stages without the wait of their optimizers for the missing first stage, which ends its backwards last.

    `a_stage_s` is a backward and its message. A stage that reduces embeddings with the first stage has already waited there.
    """
    lowest = min(known)
    return {
        number: replace(
            stage,
            steps=tuple(
                replace(step, work_s=max(step.work_s - lowest * a_stage_s, 0.0))
                if step.meets and step.name == OPTIMIZER and not any(s.name == EMBEDDING_REDUCTION for s in stage.steps)
                else step
                for step in stage.steps
            ),
        )
        for number, stage in known.items()
    }


def _before_the_last(job: Job, last: Stage, message_s: float) -> tuple[float, float]:
    """Forward and backward of a stage before the last, from the wait for the first message there."""
    fills = [next((o.end_s for o in rank.operations if "recv_forward" in o.parts), 0.0) for rank in job.of_stage(last.stage)]
    stages = job.layout.pp - 1
    forward_s = max(fmean(fills) / stages - message_s, 0.0)
    own_forward_s, own_backward_s = last.mean_s(BLOCKS[0]), last.mean_s(BLOCKS[1])
    ratio = own_backward_s / own_forward_s if own_forward_s > 0 else 2.0
    return forward_s, forward_s * ratio


def _made(job: Job, stage: int, like: Stage, forward_s: float, backward_s: float) -> Stage:
    """A stage without a trace: 1F1B with blocks of these seconds, and the end of the step as in stage `like`."""
    ends = (0, job.layout.pp - 1)
    finalize = [
        step
        for step in like.steps
        if not step.parts
        and step.name not in ("get_batch", "loss_func", *BLOCKS)
        and (step.name != EMBEDDING_REDUCTION or stage in ends)
    ]
    gap_s = median([step.gap_s for step in like.steps if step.parts] or [0.0])
    steps = [*_one_f_one_b(stage, job.layout.pp, job.layout.ga, forward_s, backward_s, gap_s), *finalize]
    return Stage(stage=stage, steps=tuple(steps), inferred=True)


def _one_f_one_b(stage: int, pp: int, ga: int, forward_s: float, backward_s: float, gap_s: float) -> list[Step]:
    """Operations of a stage in 1F1B as Megatron-LM runs it without interleaving (core/pipeline_parallel/schedules.py)."""
    warmup = min(pp - 1 - stage, ga)
    steps: list[Step] = []

    def block(name: str, work_s: float) -> None:
        steps.append(Step(name=name, parts=(), gap_s=0.0, work_s=work_s, meets=False))

    def message(*parts: str) -> None:
        if stage == 0:
            parts = tuple(p for p in parts if p not in ("recv_forward", "send_backward"))
        if stage == pp - 1:
            parts = tuple(p for p in parts if p not in ("send_forward", "recv_backward"))
        if parts:
            steps.append(Step(name="+".join(parts), parts=parts, gap_s=gap_s, work_s=0.0, meets=False))

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


Turn = tuple[str, int]
"""An operation's name, and how many of that name came before it on its rank."""


def mean_stages(job: Job) -> Stages:
    """The mean stages of the ranks that have a trace, with the waits of a stage's ranks for each other from a replay of all
    of them, if each has the other end of its messages.

    Raises SpecError if the ranks wait for each other in a cycle.
    """
    met = meetings(job)
    notes: list[str] = []
    timeline = settle(job, met) if all(len(m.members) == 2 for m in met if m.is_message) else None
    link_s, usual_s = message_costs(met)
    without_waits = call_costs(job, met)
    slowest = _slowest_replica(job, timeline) if timeline is not None else None
    known = {
        stage: _mean_stage(job, stage, without_waits, timeline, slowest)
        for stage in range(job.layout.pp)
        if any(rank.stage == stage for rank in job.ranks)
    }
    if len(known) < job.layout.pp:
        stages = infer(job, known, usual_s, notes)
    else:
        stages = [known[stage] for stage in range(job.layout.pp)]
    return Stages(stages=tuple(stages), message_s=link_s, usual_message_s=usual_s, notes=tuple(notes))


def message_costs(met: list[Meeting]) -> tuple[dict[tuple[int, int, str], float], float]:
    """Seconds of a message on each link: the median over its messages, without waiting.

    If only one end has a trace, waiting and transfer cannot be separated: the shortest message is used for all.
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
    reduced = [(o.bytes, o.duration_s) for o in job.named("dp_allreduce") if o.bytes > 0]
    rate = min((seconds / size for size, seconds in reduced), default=None)
    costs: dict[tuple[int, int, int], float] = {}
    for meeting in met:
        if meeting.is_message:
            continue
        cost_s = meeting.cost_s
        rank, k, _ = meeting.members[0]
        size = job.ranks[rank].operations[k].bytes
        if meeting.key[0] == EMBEDDING_REDUCTION and len(meeting.members) == 1 and rate is not None and size > 0:
            cost_s = min(cost_s, size * rate)  # its wait for the other end is unknown: as fast as dp_allreduce
        costs.update(dict.fromkeys(meeting.members, cost_s))
    return costs


def _slowest_replica(job: Job, timeline: RankTimeline) -> int:
    """The replica whose rank ends the step: a step ends with its last rank, not with the mean of them."""
    last = max(range(len(job.ranks)), key=lambda number: timeline.end_s(number))
    return job.ranks[last].index // job.layout.tp


def _tail(rank: Rank) -> int:
    """The first operation after the last that all replicas of a stage end together."""
    ends = [k for k, operation in enumerate(rank.operations) if operation.name in TOGETHER]
    return ends[-1] + 1 if ends else len(rank.operations)


def _mean_stage(job: Job, stage: int, costs: Costs, timeline: RankTimeline | None, slowest: int | None) -> Stage:
    """Means over the stage's ranks of each operation in turn, in the order of the rank with the most operations.

    With a replay of all ranks (`timeline`), what follows the last reduction among replicas is that of the replica `slowest`.
    Without it, an operation takes as long as recorded: its waits for ranks of its own stage are the stage's, too.
    """
    work: dict[Turn, list[float]] = defaultdict(list)
    gaps: dict[Turn, list[float]] = defaultdict(list)
    template: list[tuple[Operation, Turn]] = []
    for number, rank in enumerate(job.ranks):
        if rank.stage != stage:
            continue
        rows: list[tuple[Operation, Turn]] = []
        tail = _tail(rank)
        counts: Counter[str] = Counter()
        for k, operation in enumerate(rank.operations):
            turn = (operation.name, counts[operation.name])
            counts[operation.name] += 1
            rows.append((operation, turn))
            if slowest not in (None, rank.index // job.layout.tp) and k >= tail:
                continue
            gaps[turn].append(operation.gap_s)
            if operation.parts:
                continue
            if operation.name in TIED:
                work[turn].append(work_without_waits(operation, number, k, costs))
            else:
                work[turn].append(operation.duration_s if timeline is None else timeline.duration_s(number, k))
        template = max(template, rows, key=len)
    steps = [
        Step(
            name=operation.name,
            parts=operation.parts,
            gap_s=fmean(gaps[turn]),
            work_s=0.0 if operation.parts else fmean(work[turn]),
            meets=operation.name == EMBEDDING_REDUCTION or (operation.name == OPTIMIZER and not job.has_experts),
        )
        for operation, turn in template
    ]
    return Stage(stage=stage, steps=tuple(steps), inferred=False)


def work_without_waits(operation: Operation, rank: int, k: int, costs: Costs) -> float:
    """Seconds of an operation with all its communications at their cost."""
    if (rank, k, -1) in costs:
        return costs[rank, k, -1]
    calls = (costs.get((rank, k, c), call.duration_s) for c, call in enumerate(operation.calls))
    return operation.compute_s + sum(calls)


def play_stages(job: Job, stages: Stages) -> tuple[Played, ...]:
    """The events of the stages. Raises SpecError if they wait for each other in a cycle."""
    builder, met = Builder(), _met_s(stages)
    for stage in stages.stages:
        counts: Counter[Reference] = Counter()
        for step in stage.steps:
            parts: dict[Reference, float] = {}
            for key, cost_s in _parts(job, stages, met, stage.stage, step):
                counts[key] += 1
                parts[*key, counts[key]] = cost_s
            builder.add(stage.stage, stage.stage, step.name, step.gap_s, 0.0 if parts else step.work_s, parts)
        builder.end_of_rank()
    return builder.run()


def _met_s(stages: Stages) -> dict[str, float]:
    """Mean seconds of the steps of each name, over the stages that have a trace."""
    costs: defaultdict[str, list[float]] = defaultdict(list)
    for stage in stages.stages:
        for step in stage.steps if not stage.inferred else ():
            costs[step.name].append(step.work_s)
    return {name: sum(seconds) / len(seconds) for name, seconds in costs.items()}


def _parts(job: Job, stages: Stages, met: dict[str, float], stage: int, step: Step) -> list[tuple[Reference, float]]:
    if step.parts:
        messages: list[tuple[Reference, float]] = []
        for part in step.parts:
            (sender, _), (receiver, _) = channel(job.layout, stage, 0, part)
            key = (sender, receiver, part.partition("_")[2])
            messages.append((key, stages.message_s.get(key, stages.usual_message_s)))
        return messages
    if step.meets:
        return [((step.name,), met[step.name])]
    return []


MOST_ALONE: Final = 16
"""Ranks that are replayed one by one, spread over the job: the bounds of fewer ranks are as valid, and narrower."""


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Some of the ranks, the stages that they give, and the step of these."""

    ranks: tuple[Rank, ...]
    stages: Stages
    step_s: float
    off_s: float  # between the recorded end of the stages with a trace and the replayed one


def stages_of(job: Job) -> Stages:
    """The mean stages of a job. Raises SpecError if the ranks wait for each other in a cycle."""
    if job.whole or len(job.ranks) == 1:
        return mean_stages(job)
    some = np.unique(np.linspace(0, len(job.ranks) - 1, min(len(job.ranks), MOST_ALONE)).round().astype(np.int64)).tolist()
    alone = [trial for k in some if (trial := _trial(job, (job.ranks[k],))) is not None]
    least_s, most_s = min((t.step_s for t in alone), default=0.0), max((t.step_s for t in alone), default=np.inf)
    first: _Trial | None = None
    inside: list[_Trial] = []
    for ranks in _candidates(job):
        trial = _trial(job, ranks)
        first = first or trial
        if trial is not None and least_s <= trial.step_s <= most_s:
            inside.append(trial)
    if inside:
        taken = min(inside, key=lambda trial: trial.off_s)
    elif first is not None and alone:
        taken = min(alone, key=lambda trial, step_s=first.step_s: abs(trial.step_s - step_s))  # type: ignore[misc]
    else:
        return mean_stages(job)  # says what is wrong
    return replace(taken.stages, notes=(*_notes(job, taken), *taken.stages.notes))


def _candidates(job: Job) -> Iterator[tuple[Rank, ...]]:
    """Ranks that may be taken together: complete pipelines, else all; each stage; the rank that the recorded step is from.

    Replicas may differ so much that a stage of one and a stage of another make no step.
    """
    yield whole_pipelines(job)
    stages = sorted({rank.stage for rank in job.ranks})
    if len(stages) > 1:
        for stage in stages:
            yield tuple(job.of_stage(stage))
    yield (max(job.ranks, key=lambda rank: rank.span_s),)


def _trial(job: Job, ranks: tuple[Rank, ...]) -> _Trial | None:
    """These ranks alone; None where they do not make a step."""
    some = replace(job, ranks=ranks)
    try:
        stages = mean_stages(some)
        events = play_stages(some, stages)
    except SpecError:
        return None
    recorded = {rank.stage for rank in job.ranks}
    step_s, end_s = max(e.end_s for e in events), max(e.end_s for e in events if e.stage in recorded)
    return _Trial(ranks=ranks, stages=stages, step_s=step_s, off_s=abs(end_s - job.span_s))


def whole_pipelines(job: Job) -> tuple[Rank, ...]:
    """The ranks of complete pipelines, if any pipeline is complete; else all ranks."""
    stages: dict[int, set[int]] = defaultdict(set)
    for rank in job.ranks:
        stages[rank.index].add(rank.stage)
    return tuple(rank for rank in job.ranks if len(stages[rank.index]) == job.layout.pp) or job.ranks


def _notes(job: Job, taken: _Trial) -> Iterator[str]:
    """The assumptions about ranks without a trace, and those that are left out."""
    if {rank.stage for rank in taken.ranks} == set(range(job.layout.pp)):
        yield f"{len(job.ranks)} of {job.layout.pp * job.layout.ranks_per_stage} ranks have a trace; others are taken as equal"
    kept = {rank.rank for rank in taken.ranks}
    left_out = [rank for rank in job.ranks if rank.rank not in kept]
    if not left_out:
        return
    numbers = ", ".join(str(rank.rank) for rank in left_out)
    whole = {rank.rank for rank in whole_pipelines(job)}
    if kept == whole:
        yield f"ranks {numbers} are skipped: other ranks of their pipelines have no trace"
    else:
        yield f"ranks {numbers} are skipped: the others alone are nearer to the recorded step"
