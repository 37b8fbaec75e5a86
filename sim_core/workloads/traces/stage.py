"""A stage of a job: its mean operations. A stage without a trace is what the waits of the others make of it.

It is assumed to equal the nearest known one, except for the last, which is slower. Its extra time is the mean of two estimates:
steady waits minus a message, and cooldown waits minus a forward. If only the last stage is known, the forward time of the
others follows from the wait for its first message.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean, median

from sim_core.errors import SpecError
from sim_core.units import short
from sim_core.workloads.traces.job import Job, Operation, Rank
from sim_core.workloads.traces.text import BLOCKS, EMBEDDING_REDUCTION, OPTIMIZER

Phases = tuple[float, float]
"""Of a forward and of a backward."""
COOLDOWN = "cooldown"


def stage_of(job: Job, stage: int, operations: Iterable[Operation]) -> Rank:
    """A stage as one rank: its mean operations take as long as without waiting; a message has the cost of its link."""
    return Rank(path="", rank=stage, stage=stage, index=0, operations=tuple(operations), beside={}, has_experts=job.has_experts)


def block_s(stage: Rank) -> Phases:
    """Seconds of a micro-batch's forward and backward on a stage, with batch, loss and the gaps before them."""
    count = max(len(stage.named(BLOCKS[0])), 1)
    forward_s, backward_s, batch_s, loss_s = (total_s(stage, name) / count for name in (*BLOCKS, "get_batch", "loss_func"))
    return batch_s + forward_s + loss_s, backward_s


def total_s(stage: Rank, name: str) -> float:
    """Seconds of the operations with this name on a stage, gaps before them included."""
    return sum(operation.duration_s + operation.gap_s for operation in stage.named(name))


def infer(job: Job, known: Mapping[int, Rank], message_s: float, notes: list[str]) -> list[Rank]:
    """All stages, with estimates of the missing ones. Raises SpecError for an interleaved job."""
    pp, last = job.layout.pp, job.layout.pp - 1
    missing = [str(stage) for stage in range(pp) if stage not in known]
    if job.layout.vpp > 1 or any({"send_forward", "recv_forward"} <= set(o.parts) for o in job.operations):
        recorded = ", ".join(map(str, known))
        raise SpecError(f"an interleaved job needs a rank of each of its {pp} stages: found those of stages {recorded} only")
    names = f"stage {missing[0]} is" if len(missing) == 1 else f"stages {', '.join(missing)} are"
    told = f"{names} not recorded: assumed equal"
    inner = [stage for stage in known if stage != last]
    forward_s, backward_s = block_s(known[inner[0]]) if inner else _before_the_last(job, known[last], message_s)
    if not job.has_experts:
        known = _without_norm_wait(known, backward_s + message_s)
    if not inner:
        notes.append(
            f"{told}, forward {short(forward_s, 's')} from the pipeline's fill time, "
            f"backward {short(backward_s, 's')} in the ratio of stage {last}"
        )
        return [*(_made(job, stage, known[last], forward_s, backward_s) for stage in range(last)), known[last]]
    stages = []
    for stage in range(last):
        near = known[min(inner, key=lambda k, s=stage: abs(k - s))]  # type: ignore[misc]
        stages.append(known.get(stage) or _made(job, stage, near, *block_s(near)))
    if last in known:
        notes.append(f"{told} to the nearest recorded stage")
        return [*stages, known[last]]
    near = known[inner[-1]]
    forward_s, backward_s = block_s(near)
    excess_s = _excess(job, inner[-1], forward_s, backward_s, message_s)
    grown = 1 + excess_s / (forward_s + backward_s) if forward_s + backward_s > 0 else 1.0
    notes.append(
        f"{told} to the nearest recorded stage, the last slower by {short(excess_s, 's')} "
        "per micro-batch (mean of steady waits minus a message and cooldown waits minus a forward)"
    )
    return [*stages, _made(job, last, near, forward_s * grown, backward_s * grown)]


def _excess(job: Job, near: int, forward_s: float, backward_s: float, message_s: float) -> float:
    """Extra seconds per micro-batch of the last stage compared with `near`, from the waits of its ranks; at least 0."""
    after = job.layout.pp - 1 - near
    signs = []
    fills = []
    for rank in job.stages[near]:
        exchanges = [o for o in rank.operations if "recv_backward" in o.parts]
        waits = [(o.state, o.duration_s - message_s) for o in exchanges[1:]]  # the first one waits for the pipeline to fill
        steady = [wait_s for state, wait_s in waits if state != COOLDOWN]
        cooling = [wait_s - forward_s for state, wait_s in waits if state == COOLDOWN]
        signs += [fmean(waits_s) for waits_s in (steady, cooling) if waits_s]
        fills += [o.duration_s - after * (forward_s + backward_s) - (2 * after - 1) * message_s for o in exchanges[:1]]
    return max(fmean(signs or fills or [0.0]), 0.0)


def _without_norm_wait(known: Mapping[int, Rank], a_stage_s: float) -> dict[int, Rank]:
    """The known stages without the wait of their optimizers for the missing first stage, which ends its backwards last.

    `a_stage_s` is a backward and its message. A stage that reduces embeddings with the first stage has already waited there.
    """
    wait_s = min(known) * a_stage_s

    def shortened(operation: Operation) -> Operation:
        ends = operation.name == OPTIMIZER
        return operation._replace(duration_s=max(operation.duration_s - wait_s, 0.0)) if ends else operation

    return {
        number: stage
        if stage.named(EMBEDDING_REDUCTION)
        else replace(stage, operations=tuple(map(shortened, stage.operations)))
        for number, stage in known.items()
    }


def _before_the_last(job: Job, last: Rank, message_s: float) -> Phases:
    """Forward and backward of a stage before the last, from the wait for the first message there."""
    ranks = job.stages[job.layout.pp - 1]
    fills = [next((o.end_s for o in rank.operations if "recv_forward" in o.parts), 0.0) for rank in ranks]
    forward_s = max(fmean(fills) / (job.layout.pp - 1) - message_s, 0.0)
    own_s = [fmean([operation.duration_s for operation in last.named(name)] or [0.0]) for name in BLOCKS]
    return forward_s, forward_s * (own_s[1] / own_s[0] if own_s[0] > 0 else 2.0)


def _made(job: Job, stage: int, like: Rank, forward_s: float, backward_s: float) -> Rank:
    """A stage without a trace: 1F1B with blocks of these seconds, and the end of the step as in stage `like`.

    1F1B is as Megatron-LM runs it without interleaving (core/pipeline_parallel/schedules.py).
    """
    last, ga = job.layout.pp - 1, job.layout.ga
    warmup = min(last - stage, ga)
    steady = [BLOCKS[0], "send_forward+recv_backward", BLOCKS[1], "send_backward+recv_forward"] * (ga - warmup)
    names = ["recv_forward", BLOCKS[0], "send_forward"] * warmup
    if steady:
        names += ["recv_forward", *steady[:-1], "send_backward"]
    names += ["recv_backward", BLOCKS[1], "send_backward"] * warmup
    absent = ("recv_forward", "send_backward") * (stage == 0) + ("send_forward", "recv_backward") * (stage == last)
    work_s = dict(zip(BLOCKS, (forward_s, backward_s), strict=True))
    gap_s = median([operation.gap_s for operation in like.operations if operation.parts] or [0.0])
    operations = []
    for name in names:
        parts = tuple(part for part in name.split("+") if part not in absent)
        if name in BLOCKS:
            operations.append(Operation(name, (), 0.0, work_s[name]))
        elif parts:
            operations.append(Operation("+".join(parts), parts, gap_s, 0.0))
    left_out = ("get_batch", "loss_func", *BLOCKS, *([] if stage in (0, last) else [EMBEDDING_REDUCTION]))
    operations += [each for each in like.operations if not each.parts and each.name not in left_out]
    return stage_of(job, stage, operations)
