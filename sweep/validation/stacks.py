"""The software stack of a measured run: by framework, and by what the row says of its data parallelism."""

from __future__ import annotations

from typing import Final

from sim_core import Model, Stack, read_stack
from sweep.validation.reasons import NotSimulated
from sweep.validation.table import Row

STACKS: Final = (
    ("megatron-deepspeed", "megatron-deepspeed"),
    ("megatron-bridge", "nemo"),
    ("megatron-core", "megatron-core"),
    ("nemo framework", "nemo"),
    ("nemo,", "nemo"),
    ("nemo 25", "nemo"),
    ("nvidia release", "nemo"),
    ("nemo", "nemo-24"),
    ("megatron-lm", "megatron-2022"),
)
"""The first that a framework's name holds. NVIDIA's containers ("NVIDIA Release 25.09") train with NeMo on Megatron-Core."""
OVERLAPPING: Final = ("nemo", "megatron-bridge", "nvidia release")
"""Frameworks whose recipes overlap messages with compute. Megatron-LM does so on request only, and no row says that it did."""


def stack_of(row: Row, model: Model) -> Stack:
    """The stack that a row was run with. Raises NotSimulated."""
    framework = row.text("framework").lower()
    name = next((stack for words, stack in STACKS if words in framework), None)
    if name is None:
        raise NotSimulated(f"framework {row.text('framework')[:40] or 'not stated'}")
    if name == "megatron-2022" and (model.gated or model.position == "rotary" or model.experts is not None):
        name = "megatron-core"  # Megatron-LM of 2022 has neither; what has them runs on its later core
    stack = read_stack(name)
    if row.text("zero") in ("0", "1"):
        stack = stack.model_copy(update={"distributed_optimizer": row.text("zero") == "1"})
    return stack


def overlaps(row: Row) -> bool:
    """Whether its recipe runs messages beside compute."""
    return any(words in row.text("framework").lower() for words in OVERLAPPING)


def dispatcher(row: Row) -> str:
    """How its tokens reach experts. No row says so: Megatron-Bridge advises DeepEP or HybridEP on all GPUs since Hopper.

    (docs.nvidia.com/nemo/megatron-bridge, MoE Dispatcher Selection Guide.)
    """
    return "flex" if row.text("experts") and "megatron-bridge" in row.text("framework").lower() else "alltoall"
