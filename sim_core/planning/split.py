"""Which layers each virtual stage holds."""

from __future__ import annotations

from sim_core.jit import kernel


@kernel
def first_layer(chunk: int, chunks: int, layers: int) -> int:
    """First layer of virtual stage `chunk` of `chunks`: equal shares, as balanced as whole layers allow."""
    return chunk * layers // chunks
