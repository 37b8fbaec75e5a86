"""The event engine for DeepSpeed's 1F1B: numbered slots, in each of which a stage meets one neighbour, then computes.

DeepSpeed, runtime/pipe/schedule.py, TrainSchedule: in a forward slot a stage sends its last gradient to the stage before and
receives an activation from it, which in this slot receives the one and sends the other. All sends wait for each other.
"""

from __future__ import annotations

from sim_core.engine.events import DOWN, UP, Program, Times, clear
from sim_core.engine.streams import first_forward_end, last_backward_s
from sim_core.jit import outer_kernel


@outer_kernel
def run_slots(program: Program, pp: int, ga: int, times: Times) -> bool:
    """Run all slots; the order of blocks is that of 1F1B. Always True."""
    duration_s, cost_s, end_s, free_s = program.duration_s, program.message_s, times.end_s, times.free_s
    clear(program, times, pp, 2 * pp * ga)
    beside_s, streams = program.beside_s, times.streams
    for slot in range(2 * (ga + pp - 1)):
        for stage in range(1, pp):
            if (slot - stage) % 2:
                continue
            micro_batch = (slot - stage) // 2
            returned = (slot - 2 * pp + stage) // 2
            cost = 0.0
            if 0 <= micro_batch < ga:
                cost += cost_s[DOWN, stage]
            if 0 <= returned < ga:
                cost += cost_s[UP, stage - 1]
            elif not 0 <= micro_batch < ga:
                continue
            met = max(free_s[stage - 1], free_s[stage]) + cost
            for one in (stage - 1, stage):
                waited = met - free_s[one]
                times.message_s[one] += cost
                times.exposed_s[one] += min(waited, cost)
                times.idle_s[one] += max(waited - cost, 0.0)
                free_s[one] = met
        for stage in range(pp):
            direction = DOWN if (slot - stage) % 2 == 0 else UP
            micro_batch = (slot - stage) // 2 if direction == DOWN else (slot - 2 * pp + 1 + stage) // 2
            if not 0 <= micro_batch < ga:
                continue
            end = free_s[stage] + duration_s[direction, stage]
            if micro_batch == 0 and direction == DOWN:
                gate_s = program.gate_start_s[stage], program.gate_end_s[stage]
                of_block = duration_s[DOWN, stage], duration_s[DOWN, stage]
                gated = first_forward_end(beside_s, stage, stage, free_s[stage], of_block, gate_s, streams)
                times.gated_s[stage] += gated - end
                end = gated
            elif micro_batch == ga - 1 and direction == UP:
                block = (UP * pp + stage) * ga + micro_batch
                end += last_backward_s(beside_s, stage, stage, block, free_s[stage], duration_s[UP, stage], streams)
            end_s[(direction * pp + stage) * ga + micro_batch] = end
            free_s[stage] = end
    return True
