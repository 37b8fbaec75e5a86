"""Vectors of LANES numbers in compiled code: one instruction for the same step of as many plans.

numba has no such type, and LLVM turns a loop into one only where it can prove that no arrays overlap. In compiled code a vector
is a value of LLVM's vector type, in as many registers as the processor needs (one with AVX-512, two with AVX2); with
`NUMBA_DISABLE_JIT=1` it is a NumPy array. Every operation rounds as that of plain floats. `vector_code` says it to numba.
"""

import numpy as np

from sim_core.arrays import Floats

LANES = 8


def allocate_rows(rows: int) -> Floats:
    """Memory [rows, LANES]. Each row lies in one cache line: a vector across two of them takes twice as long to load."""
    line = LANES * 8  # bytes
    memory = np.empty(rows * LANES + LANES)
    first = -memory.ctypes.data % line // 8
    return memory[first : first + rows * LANES].reshape(rows, LANES)


def load(rows: Floats, row: int) -> Floats:
    """Row `row` of `rows[n, LANES]`, which must be C-contiguous, as a vector."""
    return np.array(rows[row])


def store(rows: Floats, row: int, vector: Floats) -> None:
    """Write a vector to a row of the same."""
    rows[row] = vector


def larger(a: Floats, b: Floats) -> Floats:
    """`max(a, b)` of each lane as Python defines it: `a` where the two are not in order."""
    return np.where(b > a, b, a)


def smaller(a: Floats, b: Floats) -> Floats:
    """`min(a, b)`, likewise."""
    return np.where(b < a, b, a)


def zeros() -> Floats:
    """A vector of zeros."""
    return np.zeros(LANES)


def any_above(a: Floats, b: Floats) -> bool:
    """Whether `a` is above `b` in any lane."""
    return bool((a > b).any())
