"""Keys of nanotron's YAML, which its log prints as settings."""

from sim_core import Argument, arguments_in
from sweep.frameworks import deepspeed, megatron_sizes as sizes
from sweep.frameworks.plan import Launched

PAGE = "nanotron"
Key = Argument[Launched]
DP, PP, TP = (Key(name, field=name) for name in ("dp", "pp", "tp"))
CP, EP = Key(sizes.CP.name, field="cp"), Key("expert_parallel_size", field="ep")
MICRO_BATCH = Key(sizes.MICRO_BATCH.name, field="micro_batch")
GA = Key("batch_accumulation_per_replica", field="ga", is_sign=True)
SEQUENCE = Key("sequence_length", field="sequence")
STAGE = Key(deepspeed.ZERO_STAGE.name, field="sharding")
RECOMPUTE = Key("recompute_layer", field="checkpointing")
TP_MODE = Key("tp_mode", field="sequence_parallel")
ASYNC_TP = Key("tp_linear_async_communication", field="overlap_tp", is_sign=True)
ENGINE = Key("pp_engine", field="schedule", is_sign=True)
STAGES = deepspeed.ZERO[:2]
"""What ranks share, by the stage of ZeRO."""
ARGUMENTS: tuple[Key, ...] = arguments_in(globals(), Argument)
SIGN = "|".join(key.name for key in ARGUMENTS if key.is_sign)
LOGGED = {key.name: key.field for key in (DP, PP, TP, EP, CP, MICRO_BATCH, SEQUENCE)}
"""Settings of a plan that its log prints, by our fields."""
