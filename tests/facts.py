"""The stack of Megatron-Core with other facts, for tests of single layers."""

from __future__ import annotations

from sim_core import Stack, read_stack


def stack_with(**facts: object) -> Stack:
    """Megatron-Core with these facts, in SI, in place of its own."""
    return read_stack("megatron-core").model_copy(update=facts)
