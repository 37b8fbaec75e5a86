"""A stage of a job: its mean operations. A stage without a trace is what the waits of the others make of it.

It is assumed to equal the nearest known one, except for the last, which is slower. Its extra time is the mean of two estimates:
steady waits minus a message, and cooldown waits minus a forward. If only the last stage is known, the forward time of the
others follows from the wait for its first message.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Final

from sim_core.errors import SpecError
from sim_core.units import short
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.text import BLOCKS, EMBEDDING_REDUCTION, OPTIMIZER

Phases = tuple[float, float]
"""Of a forward and of a backward."""


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


def block_s(stage: Stage) -> Phases:
    """Seconds of a micro-batch's forward and backward on a stage, with batch, loss and the gaps before them."""
    took_s = {name: [s.work_s + s.gap_s for s in stage.steps if s.name == name] for name in (*BLOCKS, "get_batch", "loss_func")}
    count = max(len(took_s[BLOCKS[0]]), 1)
    forward_s, backward_s, batch_s, loss_s = (sum(seconds) / count for seconds in took_s.values())
    return batch_s + forward_s + loss_s, backward_s


COOLDOWN: Final = "cooldown"


def infer(job: Job, known: Mapping[int, Stage], message_s: float, notes: list[str]) -> list[Stage]:
    """All stages, with estimates of the missing ones. Raises SpecError for an interleaved job."""
    pp, last = job.layout.pp, job.layout.pp - 1
    missing = [stage for stage in range(pp) if stage not in known]
    if job.layout.vpp > 1 or any({"send_forward", "recv_forward"} <= set(o.parts) for o in job.operations):
        recorded = ", ".join(map(str, known))
        raise SpecError(f"an interleaved job needs a rank of each of its {pp} stages: found those of stages {recorded} only")
    names = f"stage {missing[0]} is" if len(missing) == 1 else f"stages {', '.join(map(str, missing))} are"
    told = f"{names} not recorded: assumed equal"
    inner = [stage for stage in known if stage != last]
    if not inner:
        forward_s, backward_s = _before_the_last(job, known[last], message_s)
        notes.append(
            f"{told}, forward {short(forward_s, 's')} from the pipeline's fill time, "
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
        notes.append(f"{told} to the nearest recorded stage")
        return [*stages, known[last]]
    near = known[inner[-1]]
    forward_s, backward_s = block_s(near)
    excess_s = _excess(job, near, message_s)
    grown = 1 + excess_s / (forward_s + backward_s) if forward_s + backward_s > 0 else 1.0
    notes.append(
        f"{told} to the nearest recorded stage, the last slower by {short(excess_s, 's')} "
        "per micro-batch (mean of steady waits minus a message and cooldown waits minus a forward)"
    )
    return [*stages, _made(job, last, near, forward_s * grown, backward_s * grown)]


def _excess(job: Job, near: Stage, message_s: float) -> float:
    """Extra seconds per micro-batch of the last stage compared with `near`, from the waits of `near`'s ranks; at least 0."""
    forward_s, backward_s = block_s(near)
    after = job.layout.pp - 1 - near.stage
    signs: list[float] = []
    fills: list[float] = []
    for rank in job.stages[near.stage]:
        exchanges = [o for o in rank.operations if "recv_backward" in o.parts]
        waits = [(o.state, o.duration_s - message_s) for o in exchanges[1:]]  # the first one waits for the pipeline to fill
        steady = [wait_s for state, wait_s in waits if state != COOLDOWN]
        cooling = [wait_s - forward_s for state, wait_s in waits if state == COOLDOWN]
        signs += [fmean(waits_s) for waits_s in (steady, cooling) if waits_s]
        fills += [o.duration_s - after * (forward_s + backward_s) - (2 * after - 1) * message_s for o in exchanges[:1]]
    return max(fmean(signs or fills or [0.0]), 0.0)


def _without_norm_wait(known: Mapping[int, Stage], a_stage_s: float) -> dict[int, Stage]:
    """The known stages without the wait of their optimizers for the missing first stage, which ends its backwards last.

    `a_stage_s` is a backward and its message. A stage that reduces embeddings with the first stage has already waited there.
    """
    wait_s = min(known) * a_stage_s
    without = {}
    for number, stage in known.items():
        waits = all(step.name != EMBEDDING_REDUCTION for step in stage.steps)
        steps = tuple(
            replace(step, work_s=max(step.work_s - wait_s, 0.0)) if waits and step.meets and step.name == OPTIMIZER else step
            for step in stage.steps
        )
        without[number] = replace(stage, steps=steps)
    return without


def _before_the_last(job: Job, last: Stage, message_s: float) -> Phases:
    """Forward and backward of a stage before the last, from the wait for the first message there."""
    fills = [next((o.end_s for o in rank.operations if "recv_forward" in o.parts), 0.0) for rank in job.stages[last.stage]]
    forward_s = max(fmean(fills) / (job.layout.pp - 1) - message_s, 0.0)
    own_s = [fmean([step.work_s for step in last.steps if step.name == name] or [0.0]) for name in BLOCKS]
    return forward_s, forward_s * (own_s[1] / own_s[0] if own_s[0] > 0 else 2.0)


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
    work_s = dict(zip(BLOCKS, (forward_s, backward_s), strict=True))
    absent = ("recv_forward", "send_backward") * (stage == 0) + ("send_forward", "recv_backward") * (stage == pp - 1)
    warmup = min(pp - 1 - stage, ga)
    steady = [BLOCKS[0], "send_forward+recv_backward", BLOCKS[1], "send_backward+recv_forward"] * (ga - warmup)
    names = ["recv_forward", BLOCKS[0], "send_forward"] * warmup
    if steady:
        names += ["recv_forward", *steady[:-1], "send_backward"]
    names += ["recv_backward", BLOCKS[1], "send_backward"] * warmup
    steps = []
    for name in names:
        if name in BLOCKS:
            steps.append(Step(name=name, parts=(), gap_s=0.0, work_s=work_s[name], meets=False))
        elif parts := tuple(part for part in name.split("+") if part not in absent):
            steps.append(Step(name="+".join(parts), parts=parts, gap_s=gap_s, work_s=0.0, meets=False))
    return steps
