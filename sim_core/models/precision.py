"""Precisions of training: in what the GEMMs of linear layers run, and what that costs besides.

Attention, logits and the router stay in 16 bits. Recipes are those of Transformer Engine (--fp8-recipe, --fp4-format).
"""

from typing import Final, NamedTuple

import numpy as np


class Precision(NamedTuple):
    """One precision; bytes with the scales of blocks."""

    name: str
    linear: str  # operands of the GEMMs of linear layers
    stored: float  # bytes of an element that a linear layer keeps for its backward, or gathers over tp
    forward: float  # bytes that the casts of a GEMM's input move, per element; each is stored twice, once transposed
    backward: float  # the same of the gradient of its output
    multiple: int  # what must divide the sizes of a GEMM
    gathered: float  # bytes of a gathered parameter over those of 16 bits
    copies: float  # bytes per weight besides the 2 of its 16 bits, or of two copies in 8


PRECISIONS: Final = (
    Precision("bf16", "bf16", 2.0, 0.0, 0.0, 1, 1.0, 0.0),
    Precision("fp16", "fp16", 2.0, 0.0, 0.0, 1, 1.0, 0.0),
    # a norm writes 1 byte instead of 2 and another kernel transposes (1 in all); other inputs are read (2) and written twice:
    # 3 on average over a layer. Gradients are read (2) and written twice
    Precision("fp8_delayed", "fp8", 1.0, 3.0, 4.0, 16, 0.5, 0.0),
    # the largest value is found first: one more read
    Precision("fp8_tensorwise", "fp8", 1.0, 6.0, 6.0, 16, 0.5, 0.0),
    Precision("fp8_blockwise", "fp8_block", 1 + 4 / 128, 4.0, 4.0, 16, 0.5, 0.0),
    # gathered in 16 bits, then cast (Megatron-LM: reuse-grad-buf-for-mxfp8-param-ag)
    Precision("mxfp8", "mxfp8", 1 + 1 / 32, 4.0, 4.0, 32, 1.0, 0.0),
    # the largest value first (2), then read (2) and written twice (arXiv 2509.25149, section 4)
    Precision("nvfp4", "nvfp4", 0.5 + 1 / 16, 5.0, 5.0, 32, 1.0, 2 * (0.5 + 1 / 16)),
)
"""The first is the default. Bytes of casts: counts of Transformer Engine's kernels, for operands that are stored twice."""

PRECISION_NAMES: Final = tuple(one.name for one in PRECISIONS)
STORED: Final = np.array([one.stored for one in PRECISIONS])
CAST: Final = (np.array([one.forward for one in PRECISIONS]), np.array([one.backward for one in PRECISIONS]))
MULTIPLE: Final = np.array([one.multiple for one in PRECISIONS])
GATHERED: Final = np.array([one.gathered for one in PRECISIONS])
COPIES: Final = np.array([one.copies for one in PRECISIONS])
FP8_DELAYED: Final = PRECISION_NAMES.index("fp8_delayed")
WIDE: Final = 2
"""Precisions before this one are of 16 bits."""
