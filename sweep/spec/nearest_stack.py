"""A framework that has no page of facts: the stack that it is simulated with, by what is known of it."""

from typing import Final

FULLY_SHARDED: Final = "torchtitan"
OF_2022: Final = "megatron-2022"
USUAL: Final = "megatron-core"


def nearest_stack(sharding: str, *, of_2022: bool = False) -> str:
    """The name of the nearest stack.

    `sharding`: what ranks share, empty where it is not known; who shares parameters gathers them layer by layer, as FSDP does.
    `of_2022`: it trains what was trained before 2023 (fp16, no rotary positions, no gated MLP, no experts), with the kernels of
    that time. All others are taken for Megatron-Core.
    """
    if sharding == "parameters":
        return FULLY_SHARDED
    return OF_2022 if of_2022 else USUAL


def assumed(framework: str, stack: str) -> str:
    """The name of a stack that stands for a framework without a page."""
    return f"{framework} as {stack}"
