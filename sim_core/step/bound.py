"""A lower bound of the step of a plan, without running its pipeline: `bound_pipeline` fills what the engine would.

Every stage waits for its first forward (its head), then runs all its blocks one after another, whatever their order; after its
last input gradient those of the stages before it follow (its tail). The rest of a step grows with these ends, so the same code
as after the engine gives a bound of the whole step. The proof is in docs/search.md.
"""

from sim_core.compiled.jit import inner_kernel
from sim_core.costing.case import Case
from sim_core.engine.codes import rounds_of
from sim_core.engine.program import DOWN, KINDS, LONGER, PAIR, READY, SENT, UP, WEIGHT, Program
from sim_core.engine.schedules import BOTH_WAYS, DEEPSPEED, PAIRS, SPLITS
from sim_core.step.scratch import Scratch


@inner_kernel
def bound_pipeline(case: Case, scratch: Scratch) -> None:
    """Write no later an end than the engine would: of all work of a stage to `free_s`, of the last backwards to `last_s`.

    `idle_s` gets the seconds that each stage computes.
    """
    plan, program, times = case.plan, scratch.program, scratch.times
    pp, chunks, splits = plan.pp, case.chunks, SPLITS[plan.schedule]
    duration_s, message_s, begins_s = program.duration_s, program.message_s, times.exposed_s
    waits = plan.overlap_pp == 0 or plan.schedule == DEEPSPEED  # for the last gradient that a stage sends
    _fill_heads(case, scratch)
    following_s = -1.0
    for turn in range(pp):
        stage = pp - 1 - turn
        first = stage * chunks
        busy_s, weights_s = _busy(case, program, stage)
        end_s = begins_s[stage] + busy_s + _blocking_s(case, program, stage)
        # after the last input gradient only weight gradients can follow; those of the stages before it must
        last_s = end_s - weights_s
        if following_s >= 0.0 and case.placement != BOTH_WAYS:
            apart_s = duration_s[WEIGHT, first] if splits else 0.0
            last_s = max(last_s, following_s + message_s[UP, stage] + duration_s[UP, first] - apart_s)
        following_s = last_s
        times.idle_s[stage] = busy_s
        times.free_s[stage] = max(end_s, last_s) + (message_s[UP, stage - 1] if waits and not splits and stage > 0 else 0.0)
        for cell in range(first, first + chunks):
            times.last_s[:, cell] = last_s if cell == first else 0.0
            times.shared[cell] = _beside_own(program, cell)
            times.later_s[cell] = 0.0


@inner_kernel
def _beside_own(program: Program, cell: int) -> float:
    """The least part of a cell's last backward beside which gradients are reduced: that in which its own are ready."""
    return float(min(program.beside_s[READY, cell] / program.beside_s[KINDS + SENT, cell], 1.0))


@inner_kernel
def _fill_heads(case: Case, scratch: Scratch) -> None:
    """The latest time before which a stage has certainly done nothing: its first forward waits for those before it.

    Where two copies of the model run both ways, the other one comes from the other end.
    """
    pp, program, begun_s = case.plan.pp, scratch.program, scratch.times.exposed_s
    for copy in range(2 if case.placement == BOTH_WAYS else 1):
        arrived_s = 0.0
        for turn in range(pp):
            stage = pp - 1 - turn if copy == 1 else turn
            cell = stage * case.chunks + copy
            if turn > 0:
                arrived_s += program.message_s[DOWN, stage + copy]
            seconds = program.duration_s[DOWN, cell]
            end_s = max(max(arrived_s, program.gate_start_s[cell]) + seconds, program.gate_end_s[cell])
            if case.placement != BOTH_WAYS:
                begun_s[stage] = end_s - seconds
            else:
                begun_s[stage] = arrived_s if copy == 0 else min(begun_s[stage], arrived_s)
            arrived_s = end_s


@inner_kernel
def _busy(case: Case, program: Program, stage: int) -> tuple[float, float]:
    """Seconds of all blocks of a stage, and of the weight gradients among them."""
    schedule, chunks, duration_s = case.plan.schedule, case.chunks, program.duration_s
    rounds = rounds_of(schedule, case.plan.ga)
    block_s, weights_s, slowed_s = 0.0, 0.0, 0.0
    for cell in range(stage * chunks, (stage + 1) * chunks):
        if PAIRS[schedule]:  # each forward runs alone or beside a backward of the other chunk
            backward_s = duration_s[UP, stage * chunks * 2 + 1 - cell]
            block_s += min(duration_s[PAIR, cell], duration_s[DOWN, cell] + backward_s)
        else:
            block_s += duration_s[DOWN, cell] + duration_s[UP, cell]
        if SPLITS[schedule]:
            weights_s += duration_s[WEIGHT, cell]
        slowed_s += _beside_own(program, cell) * program.beside_s[KINDS + LONGER, cell]
    return rounds * block_s + slowed_s, rounds * weights_s


@inner_kernel
def _blocking_s(case: Case, program: Program, stage: int) -> float:
    """Seconds for which messages stop a stage after its first block has begun, at least."""
    plan, ga, cost_s = case.plan, case.plan.ga, program.message_s
    if SPLITS[plan.schedule] or plan.pp == 1 or (plan.overlap_pp == 1 and plan.schedule != DEEPSPEED):
        return 0.0
    received_s = 0.0
    both = plan.schedule == DEEPSPEED  # sides of a message wait for it; the last gradient goes up after the last block
    if stage > 0:
        received_s += (ga - 1) * cost_s[DOWN, stage]
    if stage < plan.pp - 1:
        received_s += ga * cost_s[UP, stage]
    if both and stage > 0:
        received_s += (ga - 1) * cost_s[UP, stage - 1]
    if both and stage < plan.pp - 1:
        received_s += ga * cost_s[DOWN, stage + 1]
    return received_s
