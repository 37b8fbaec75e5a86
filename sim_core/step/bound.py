"""A lower bound of the step of a plan, without running its pipeline: `bound_pipeline` fills what the engine would.

Every stage waits for its first forward (its head), then runs all its blocks one after another, whatever their order; after its
last input gradient those of the stages before it follow (its tail). The rest of a step grows with these ends, so the same code
as after the engine gives a bound of the whole step. The proof is in docs/search.md.
"""

from sim_core.arrays import Floats
from sim_core.compiled.jit import inner_kernel
from sim_core.engine.codes import chunks_of, rounds_of
from sim_core.engine.program import DOWN, KINDS, LONGER, PAIR, READY, SENT, UP, WEIGHT, Program, Times
from sim_core.engine.schedules import BOTH_WAYS, DEEPSPEED, PAIRS, PLACEMENT, SPLITS
from sim_core.planning.columns import Plan


@inner_kernel
def bound_pipeline(plan: Plan, program: Program, times: Times) -> None:
    """Write no later an end than the engine would: of all work of a stage to `free_s`, of the last backwards to `last_s`.

    `idle_s` gets the seconds that each stage computes.
    """
    pp, schedule = plan.pp, plan.schedule
    chunks, rounds = chunks_of(schedule, plan.vpp), rounds_of(schedule, plan.ga)
    both, begins_s = PLACEMENT[schedule] == BOTH_WAYS, times.exposed_s
    _fill_heads(plan, program, begins_s)
    following_s = -1.0
    for turn in range(pp):
        stage = pp - 1 - turn
        first = stage * chunks
        busy_s, weights_s = _busy(plan, program, stage, chunks, rounds)
        begun_s = begins_s[stage]
        end_s = begun_s + busy_s + _blocking_s(plan, program, stage)
        # after the last input gradient only weight gradients can follow; those of the stages before it must
        last_s = end_s - weights_s
        if following_s >= 0.0 and not both:
            apart_s = program.duration_s[WEIGHT, first] if SPLITS[schedule] else 0.0
            last_s = max(last_s, following_s + program.message_s[UP, stage] + program.duration_s[UP, first] - apart_s)
        following_s = last_s
        times.idle_s[stage] = busy_s
        times.free_s[stage] = max(end_s, last_s) + _last_send_s(plan, program, stage)
        for cell in range(first, first + chunks):
            times.last_s[:, cell] = last_s if cell == first else 0.0
            times.shared[cell] = _beside_own(program, cell)
            times.later_s[cell] = 0.0


@inner_kernel
def _beside_own(program: Program, cell: int) -> float:
    """The least part of a cell's last backward beside which gradients are reduced: that in which its own are ready."""
    return float(min(program.beside_s[READY, cell] / program.beside_s[KINDS + SENT, cell], 1.0))


@inner_kernel
def _fill_heads(plan: Plan, program: Program, begun_s: Floats) -> None:
    """The latest time before which a stage has certainly done nothing: its first forward waits for those before it."""
    pp, schedule = plan.pp, plan.schedule
    chunks, both = chunks_of(schedule, plan.vpp), PLACEMENT[schedule] == BOTH_WAYS
    arrived_s = 0.0
    for stage in range(pp):
        cell = stage * chunks
        seconds = program.duration_s[DOWN, cell]
        if stage > 0:
            arrived_s += program.message_s[DOWN, stage]
        end_s = max(max(arrived_s, program.gate_start_s[cell]) + seconds, program.gate_end_s[cell])
        begun_s[stage] = arrived_s if both else end_s - seconds
        arrived_s = end_s
    if both:  # the other copy of the model comes from the other end
        arrived_s = 0.0
        for turn in range(pp):
            stage = pp - 1 - turn
            cell = stage * 2 + 1
            if turn > 0:
                arrived_s += program.message_s[DOWN, stage + 1]
            begun_s[stage] = min(begun_s[stage], arrived_s)
            seconds = program.duration_s[DOWN, cell]
            arrived_s = max(max(arrived_s, program.gate_start_s[cell]) + seconds, program.gate_end_s[cell])


@inner_kernel
def _busy(plan: Plan, program: Program, stage: int, chunks: int, rounds: int) -> tuple[float, float]:
    """Seconds of all blocks of a stage, and of the weight gradients among them."""
    duration_s = program.duration_s
    block_s, weights_s = 0.0, 0.0
    for chunk in range(chunks):
        cell = stage * chunks + chunk
        if PAIRS[plan.schedule]:  # each forward runs alone or beside a backward of the other chunk
            backward_s = duration_s[UP, stage * chunks + 1 - chunk]
            block_s += min(duration_s[PAIR, cell], duration_s[DOWN, cell] + backward_s)
        else:
            block_s += duration_s[DOWN, cell] + duration_s[UP, cell]
        if SPLITS[plan.schedule]:
            weights_s += duration_s[WEIGHT, cell]
    slowed_s = 0.0
    for cell in range(stage * chunks, (stage + 1) * chunks):
        slowed_s += _beside_own(program, cell) * program.beside_s[KINDS + LONGER, cell]
    return rounds * block_s + slowed_s, rounds * weights_s


@inner_kernel
def _last_send_s(plan: Plan, program: Program, stage: int) -> float:
    """Seconds for which the gradient of its last block stops a stage."""
    stops = not SPLITS[plan.schedule] and (plan.overlap_pp == 0 or plan.schedule == DEEPSPEED)
    return float(program.message_s[UP, stage - 1]) if stops and stage > 0 else 0.0


@inner_kernel
def _blocking_s(plan: Plan, program: Program, stage: int) -> float:
    """Seconds for which messages stop a stage after its first block has begun, at least."""
    pp, ga, cost_s = plan.pp, plan.ga, program.message_s
    if SPLITS[plan.schedule] or pp == 1 or (plan.overlap_pp == 1 and plan.schedule != DEEPSPEED):
        return 0.0
    received_s = 0.0
    if stage > 0:
        received_s += (ga - 1) * cost_s[DOWN, stage]
    if stage < pp - 1:
        received_s += ga * cost_s[UP, stage]
    if plan.schedule == DEEPSPEED:  # both sides of a message wait for it; the last gradient goes up after the last block
        if stage > 0:
            received_s += (ga - 1) * cost_s[UP, stage - 1]
        if stage < pp - 1:
            received_s += ga * cost_s[DOWN, stage + 1]
    return received_s
