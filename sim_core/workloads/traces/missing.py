"""Stages without a trace, estimated from the known ones.

A missing stage is assumed to equal the nearest known one, except for the last stage, which is slower. Its extra time is the
mean of two estimates: steady waits minus a message, and cooldown waits minus a forward. If only the last stage is known, the
forward time of the others follows from the wait for its first message.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median
from typing import Final

from sim_core.errors import SpecError
from sim_core.units import short
from sim_core.workloads.traces.job import Job
from sim_core.workloads.traces.meeting import OPTIMIZER
from sim_core.workloads.traces.stage import BLOCKS, EMBEDDING_REDUCTION, Stage, Step, block_s

COOLDOWN: Final = "cooldown"


def infer(job: Job, known: dict[int, Stage], message_s: float, notes: list[str]) -> list[Stage]:
    """All stages, with estimates of the missing ones. Raises SpecError for an interleaved job."""
    pp, last = job.layout.pp, job.layout.pp - 1
    missing = sorted(set(range(pp)) - set(known))
    if job.layout.vpp > 1 or any(
        {"send_forward", "recv_forward"} <= set(o.parts) for rank in job.ranks for o in rank.operations
    ):
        held = f"of stages {', '.join(map(str, known))} only"
        raise SpecError(f"an interleaved job needs a rank of each of its {pp} stages: found those {held}")
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
        signs += [fmean(found) for found in (steady, cooling) if found]
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
