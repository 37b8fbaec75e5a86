"""The event core for single ranks: each runs its operations in order; a communication ends at max(start of its members) + cost.

Where `engine` runs stages of alike ranks and blocks of one duration, this one runs every rank with durations of its own: it
replays what was measured. It knows ranks, operations and communications, nothing of models or plans.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.jit import kernel

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class RankProgram(NamedTuple):
    """What each rank runs. An operation has work of its own, or takes part in one or more communications, and is through
    when all of them are."""

    first: Ints  # [ranks + 1] first operation of each rank
    gap_s: Floats  # [operations] idle before the operation
    work_s: Floats  # [operations] its own work; 0 for a communication
    first_part: Ints  # [operations + 1] first part of each operation
    part: Ints  # [parts] the communication that a part belongs to
    members: Ints  # [communications] parts that make it up
    cost_s: Floats  # [communications] from the last member's start to its end


class RankTimes(NamedTuple):
    """When each operation runs, and how much of it is waiting for other members."""

    start_s: Floats  # [operations]
    end_s: Floats
    wait_s: Floats


@kernel
def run_ranks(program: RankProgram, times: RankTimes) -> int:
    """Run all operations; returns the operation at which the ranks wait for each other in a circle, -1 where all ran."""
    ranks = program.first.shape[0] - 1
    arrived = np.zeros(program.members.shape[0], np.int64)
    latest_s = np.zeros(program.members.shape[0])
    at = program.first[:-1].copy()
    free_s = np.zeros(ranks)
    posted = np.zeros(ranks, np.bool_)
    left = program.gap_s.shape[0]
    while left > 0:
        before = left
        for rank in range(ranks):
            while at[rank] < program.first[rank + 1]:
                k = at[rank]
                parts = range(program.first_part[k], program.first_part[k + 1])
                if not posted[rank]:
                    start_s = free_s[rank] + program.gap_s[k]
                    times.start_s[k] = start_s
                    posted[rank] = True
                    for p in parts:
                        arrived[program.part[p]] += 1
                        latest_s[program.part[p]] = max(latest_s[program.part[p]], start_s)
                whole = True
                end_s = times.start_s[k] + program.work_s[k]
                cost_s = program.work_s[k]
                for p in parts:
                    c = program.part[p]
                    whole = whole and arrived[c] == program.members[c]
                    end_s = max(end_s, latest_s[c] + program.cost_s[c])
                    cost_s = max(cost_s, program.cost_s[c])
                if not whole:
                    break
                times.end_s[k] = end_s
                times.wait_s[k] = max(end_s - times.start_s[k] - cost_s, 0.0)
                free_s[rank] = end_s
                posted[rank] = False
                at[rank] += 1
                left -= 1
        if left == before:
            stuck = -1
            for rank in range(ranks):
                if stuck < 0 and at[rank] < program.first[rank + 1]:
                    stuck = at[rank]
            return stuck
    return -1
