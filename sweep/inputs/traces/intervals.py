"""Unions of intervals and what they have in common, in seconds or any unit of time."""

import numpy as np

from sim_core import Floats


def length(start: Floats, end: Floats) -> float:
    """The time that intervals cover together; `start` and `end` (n,)."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    first = np.ones(len(start), bool)
    first[1:] = start[1:] > latest[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return float((latest[last] - start[first]).sum())


def common(a: tuple[Floats, Floats], b: tuple[Floats, Floats]) -> float:
    """The time that two sets of intervals both cover: |a| + |b| - |a or b|."""
    return max(0.0, length(*a) + length(*b) - length(np.concatenate((a[0], b[0])), np.concatenate((a[1], b[1]))))
