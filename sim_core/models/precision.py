"""Precisions of training: in what the GEMMs of linear layers run, and what that costs besides.

Attention, logits and the router stay in 16 bits. Recipes are those of Transformer Engine (--fp8-recipe, --fp4-format).
"""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Ints


class Precision(NamedTuple):
    """One precision; bytes with the scales of blocks. Casts: bytes that are moved for an element of an operand."""

    name: str
    linear: str  # operands of the GEMMs of linear layers
    stored: float  # bytes of an element that a linear layer keeps for its backward, or gathers over tp
    cast: float  # of an operand in 16 bits
    normed: float  # the same of what a norm puts out
    transposed: float  # for the second copy, for products along the other side, by the kernel that casts
    apart: float  # the same by a kernel of its own, after a norm or a gather; 0: the copy is made, and gathered, like the first
    multiple: int  # what must divide the sizes of a GEMM
    gathered: float  # bytes of a gathered parameter over those of 16 bits
    copies: float  # bytes per weight besides the 2 of its 16 bits, or of two copies in 8
    frozen: (
        float  # bytes of a weight that is not trained: one scale for a matrix serves a copy that is transposed as it is used,
    )
    # scales of blocks along one side need two copies


PRECISIONS = (
    Precision("bf16", "bf16", 2.0, 0.0, 0.0, 0.0, 0.0, 1, 1.0, 0.0, 2.0),
    Precision("fp16", "fp16", 2.0, 0.0, 0.0, 0.0, 0.0, 1, 1.0, 0.0, 2.0),
    # read 2, write 1; a norm writes 1 byte instead of 2; the copy: write 1, alone read 1 as well
    Precision("fp8_delayed", "fp8", 1.0, 3.0, -1.0, 1.0, 2.0, 16, 0.5, 0.0, 1.0),
    # the largest value is found first: one more read; so a norm writes 16 bits
    Precision("fp8_tensorwise", "fp8", 1.0, 5.0, 5.0, 1.0, 2.0, 16, 0.5, 0.0, 1.0),
    # each copy has scales of its own: both are cast from 16 bits
    Precision("fp8_blockwise", "fp8_block", 1 + 4 / 128, 3.0, 3.0, 1.0, 0.0, 16, 0.5, 0.0, 2 * (1 + 4 / 128)),
    # gathered in 16 bits, then cast (Megatron-LM: reuse-grad-buf-for-mxfp8-param-ag)
    Precision("mxfp8", "mxfp8", 1 + 1 / 32, 3.0, 3.0, 1.0, 0.0, 32, 1.0, 0.0, 2 * (1 + 1 / 32)),
    # the largest value first (2), then read (2) and written twice (arXiv 2509.25149, section 4)
    Precision("nvfp4", "nvfp4", 0.5 + 1 / 16, 4.5, 4.5, 0.5, 0.0, 32, 1.0, 2 * (0.5 + 1 / 16), 2 * (0.5 + 1 / 16)),
)
"""The first is the default. Bytes of casts: counts of Transformer Engine's kernels."""

_TRANSPOSING = ("fp8_delayed", "fp8_tensorwise")
"""Recipes with one scale for both copies: where tensor cores take FP8 in any layout, one copy is enough."""
ON_DEVICES = PRECISIONS + tuple(
    one._replace(transposed=0.0, apart=0.0, copies=-1.0) for one in PRECISIONS if one.name in _TRANSPOSING
)
"""PRECISIONS, and after them what becomes of some on devices that take FP8 operands in any layout."""

PRECISION_NAMES = tuple(one.name for one in PRECISIONS)
STORED, MULTIPLE, GATHERED, COPIES, FROZEN = (
    np.array([getattr(one, field) for one in ON_DEVICES]) for field in ("stored", "multiple", "gathered", "copies", "frozen")
)
IN_ANY_LAYOUT: Ints = np.array(
    [max(k for k, other in enumerate(ON_DEVICES) if other.name == one.name) for one in ON_DEVICES], int
)
"""The row of ON_DEVICES that each becomes on devices that take FP8 operands in any layout."""
FP8_DELAYED = PRECISION_NAMES.index("fp8_delayed")
WIDE = 2
"""Precisions before this one are of 16 bits."""
