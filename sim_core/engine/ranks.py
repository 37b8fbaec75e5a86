"""The event engine for single ranks: operations run in order; a communication ends at max(start of its members) + cost.

`events` runs stages of equal ranks and blocks of equal duration. This engine runs each rank with its own durations, to
replay measurements. It knows ranks, operations and communications, not models or plans.
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.compiled.jit import kernel


class RankProgram(NamedTuple):
    """The operations of each rank. An operation either computes, or takes part in one or more communications and ends when
    all of them have ended."""

    first: Ints  # [ranks + 1] first operation of each rank
    gap_s: Floats  # [operations] idle before the operation
    work_s: Floats  # [operations] seconds of compute; 0 for a communication
    first_part: Ints  # [operations + 1] first part of each operation
    part: Ints  # [parts] the communication that a part belongs to
    members: Ints  # [communications] number of its parts
    cost_s: Floats  # [communications] from the last member's start to its end


class RankTimes(NamedTuple):
    """When each operation runs, and how long it waits for other members."""

    start_s: Floats  # [operations]
    end_s: Floats
    wait_s: Floats


@kernel
def run_ranks(program: RankProgram, times: RankTimes) -> int:
    """Run all operations. Returns -1, or an operation that waits forever because ranks wait for each other in a cycle."""
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
