"""The stack of Megatron-Core with other facts, for tests of single layers."""

from __future__ import annotations

from sim_core import Stack, read_stack


def stack_with(**facts: object) -> Stack:
    """Megatron-Core with these facts, in SI, in place of its own."""
    return read_stack("megatron-core").model_copy(update=facts)


FREE_HOST: dict[str, object] = {
    **dict.fromkeys(("host_experts", "host_alltoall", "host_expert", "host_expert_casts", "host_expert_padding"), (0.0, 0.0)),
    "host_overlap_ep": 1.0, "router_share": 1.0, "overlap_ep_hidden": None, "metadata_across": 0.0,
}  # fmt: skip
"""Experts that cost the host nothing."""
