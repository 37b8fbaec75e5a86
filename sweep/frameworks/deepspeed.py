"""Words of DeepSpeed: arguments of its fork of Megatron-LM, keys of its JSON and lines of its log."""

from typing import Final

from sim_core import OF_NUMBER, Argument
from sweep.frameworks.plan import Launched

ZERO: Final = ("none", "optimizer", "gradients", "parameters")
"""What ranks share, by the stage of ZeRO."""
PAGE: Final = "megatron-deepspeed"
"""The stack that simulates its fork of Megatron-LM."""
DEEPSPEED = Argument[Launched]("deepspeed", stack=PAGE)
ZERO_STAGE = Argument[Launched]("zero_stage", OF_NUMBER, "sharding", leaves_open=True, stack=PAGE)
