"""The largest whole numbers that files, specs and callers may give: no product of them leaves 64 bits.

The products that the simulator forms as integers are pp * vpp * ga, pp * vpp * layers, tp * pp * dp, tp * cp * pp,
tp * pp * ep, and twice each; the longest are below 2^58. `product` cuts tp * cp * pp * dp. The number of sequences in a step,
dp * micro_batch * ga, is formed in floating point.
All are far beyond any job: 65,536 stages, a million layers, 2^24 micro-batches in a step, 2^40 GPUs.
"""

from collections.abc import Mapping

import numpy as np

from sim_core.arrays import Ints

MOST_RANKS = 2**16
MOST_LAYERS = 2**20
MOST_IN_STEP = 2**24
MOST_BYTES = 2**40

LARGEST: Mapping[str, int] = {
    **dict.fromkeys(("tp", "cp", "pp", "vpp", "ep"), MOST_RANKS),
    **dict.fromkeys(("layers", "micro_batch", "experts"), MOST_LAYERS),
    **dict.fromkeys(("dp", "ga", "global_batch"), MOST_IN_STEP),
    "all_gpus": 2**40,
    "step": 2**20,
    **dict.fromkeys(("sequence", "ffn", "heads"), 2**31 - 1),
}
"""The largest value of what files and models may give, by name; the least is 1. Fields that only plans have bound themselves in
their rows (planning/fields.py)."""


def product(a: Ints, b: Ints) -> Ints:
    """a x b, cut at 2^62 if it would leave 64 bits; such plans are infeasible (numbers_too_large)."""
    return np.where(a.astype(float) * b < 2.0**62, a * b, 2**62)


def whole_number(least: int, most: int) -> str:
    """What a message expects: a whole number within bounds."""
    return f"a whole number from {least} to {most:,}"
