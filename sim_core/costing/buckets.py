"""The size of gradient buckets where a plan does not set it."""

from __future__ import annotations

from typing import Final

from sim_core.jit import inner_kernel

MEGATRON_BUCKET_PARAMETERS: Final = 40_000_000
MEGATRON_BUCKET_PARAMETERS_PER_DP: Final = 1_000_000
"""Default gradient bucket: max(40e6, 1e6 * dp) parameters; Megatron-LM core/distributed/distributed_data_parallel.py."""


@inner_kernel
def default_bucket_bytes(width: float, dp: int) -> float:
    """Bytes of Megatron's default bucket; `width`: bytes of a gradient."""
    return width * max(MEGATRON_BUCKET_PARAMETERS, MEGATRON_BUCKET_PARAMETERS_PER_DP * dp)
