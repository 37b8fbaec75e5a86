"""Distinct rows of a table: what depends on a few columns is computed once per combination of their values."""

from collections.abc import Hashable, Sequence

import numpy as np

from sim_core.arrays import Ints
from sim_core.compiled.jit import kernel

_MASK = 2**31 - 1


@kernel
def distinct_rows(table: Ints) -> tuple[Ints, Ints]:
    """The key of each row of `table[n, columns]`, equal for equal rows; and the first row of each key.

    Keys count from 0 in the order of their first rows. Uses a hash table with linear probing, at most half full.
    """
    rows, columns = table.shape
    size = 4
    while size < 2 * rows:
        size *= 2
    slots = np.full(size, -1, np.int64)
    key_of = np.empty(rows, np.int64)
    first = np.empty(rows, np.int64)
    keys = 0
    for row in range(rows):
        mixed = 0
        for column in range(columns):  # 31 bits at a time: no overflow, in plain Python either
            value = table[row, column]
            mixed = ((mixed ^ (value & _MASK) ^ (value >> 31 & _MASK)) * 1_000_003) & _MASK
            mixed ^= mixed >> 15
        slot = mixed & (size - 1)
        while True:
            key = slots[slot]
            if key < 0:
                slots[slot] = keys
                first[keys] = row
                key_of[row] = keys
                keys += 1
                break
            same = True
            for column in range(columns):
                if table[row, column] != table[first[key], column]:
                    same = False
                    break
            if same:
                key_of[row] = key
                break
            slot = (slot + 1) & (size - 1)
    return key_of, first[:keys].copy()


def distinct(kinds: Sequence[Hashable]) -> tuple[list[int], Ints]:
    """Where each distinct one comes first, and the number among the distinct ones of each."""
    number = {kind: at for at, kind in enumerate(dict.fromkeys(kinds))}
    return [kinds.index(kind) for kind in number], np.array([number[kind] for kind in kinds], int)
