"""Optimizers: one row each, with the bytes of its state and of its update; and what Muon does with a matrix.

What a stack states of Adam (`adam_bytes`, `optimizer_bytes`) holds two fp32 moments, 8 bytes a weight, read and written once a
step. Another optimizer has other state in their place; the fp32 weights beside it stay.
"""

from typing import NamedTuple

from sim_core.models.weights import Matrix

MOMENTS = 8.0
"""Bytes of Adam's two fp32 moments."""


class Optimizer(NamedTuple):
    """What an optimizer keeps and moves of a weight, in bytes, where Adam keeps MOMENTS and moves twice as many."""

    name: str
    state: float  # of a weight
    factored: float = 0.0  # of each row and each column of a matrix; a weight that is in no matrix keeps as many
    traffic: float = 0.0  # of a weight besides reading and writing its state
    orthogonal: bool = False  # only matrices have this state, and are orthogonalised; all else is Adam's


ROWS = (
    Optimizer("adamw", MOMENTS),
    # momentum in fp32; the matrix is normed, cast, cast back and scaled by kernels of their own (4 + 8 + 6 + 6 + 8 bytes; count
    # of NVIDIA-NeMo/Emerging-Optimizers, orthogonalized_optimizers/muon_utils.py, newton_schulz)
    Optimizer("muon", 4.0, traffic=32.0, orthogonal=True),
    Optimizer("sgd_momentum", 4.0),
    # means of squares of rows and columns, no momentum (arXiv 1804.04235, algorithm 4); gradients are read for the means and
    # the update once more for its root mean square (count)
    Optimizer("adafactor", 0.0, factored=4.0, traffic=8.0),
    # two moments of 8 bits with an fp32 scale for each block of 256 (arXiv 2110.02861; blocks as in bitsandbytes 0.43)
    Optimizer("adam8bit", 2.0 + 2 * 4.0 / 256),
)
OPTIMIZERS = tuple(row.name for row in ROWS)
ADAMW, MUON = OPTIMIZERS.index("adamw"), OPTIMIZERS.index("muon")
MUON_TP_MODES = ("blockwise", "duplicated", "distributed")
BLOCKWISE, DUPLICATED, DISTRIBUTED = range(len(MUON_TP_MODES))
"""How Muon treats a matrix that tensor parallelism divides (Megatron-LM's --muon-tp-mode): each part by itself; the whole one,
gathered, on every rank; or with the small product summed over the ranks in each step."""
NS_STEPS = 5
"""Steps of Newton-Schulz (Megatron-LM's --muon-num-ns-steps)."""


class Local(NamedTuple):
    """A matrix as one rank has it: what a step of Newton-Schulz does with it, and how many weights of it the rank owns."""

    products: tuple[tuple[float, float, float], ...]  # m, n, k of each step
    cost: int  # by which ranks are balanced: the long side times the square of the short one
    elements: int
    gathered: float = 0.0  # bytes of the group's matrix, once
    summed: float = 0.0  # bytes of the small product, in each step


def local_of(matrix: Matrix, parts: int, mode: int) -> Local:
    """A matrix of which each of `parts` tensor-parallel ranks holds an equal part.

    X X^T, A A and B X of each step: 4 m^2 n + 2 m^3 FLOPs with m the short side (Megatron-LM core/optimizer/
    emerging_optimizers.py; Emerging-Optimizers, muon_utils.py). Gathered in fp32, summed in bf16, in which products run.
    """
    divided, other = (matrix.rows, matrix.columns) if matrix.by_rows else (matrix.columns, matrix.rows)
    mine = max(divided // parts, 1)
    short, long = sorted((mine, other))
    cost, gathered, summed = long * short**2, 0.0, 0.0
    if parts > 1 and mode == DUPLICATED:
        short, long = sorted((divided, other))
        gathered = 4.0 * divided * other
    elif parts > 1 and mode == DISTRIBUTED:  # the side that is not divided, whichever is the shorter one
        short, long, summed = other, mine, 2.0 * other * other
    m, n = float(short), float(long)
    return Local(((m, m, n), (m, m, m), (m, n, m)), cost, mine * other, gathered, summed)
