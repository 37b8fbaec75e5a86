"""Words of DeepSpeed and the Hugging Face Trainer: keys of their files, lines of their logs, arguments of its Megatron-LM."""

from contextlib import suppress

from sim_core import OF_NUMBER, Argument, Fields, arguments_in
from sweep.frameworks import megatron_sizes as sizes
from sweep.frameworks.plan import Launched

ZERO = ("none", "optimizer", "gradients", "parameters")
"""What ranks share, by the stage of ZeRO."""
PAGE = "megatron-deepspeed"
"""The stack that simulates its fork of Megatron-LM."""
NAME, TRAINER_NAME, TRAINER_ALONE = "DeepSpeed", "Hugging Face Trainer + DeepSpeed", "Hugging Face Trainer"
"""Frameworks: the first two have no page, and their jobs an empty stack."""
TRAINER_PAGE = "hf-trainer"
AUTO = "auto"
"""What DeepSpeed leaves to the Trainer."""
FSDP = {"full_shard": "parameters", "shard_grad_op": "gradients", "no_shard": "none"}
"""Words of the Trainer's `fsdp`, and what ranks share."""


def part_in(stated: object) -> float | None:
    """A part of the optimizer as it is stated; None for what is no number from 0 to 1."""
    with suppress(ValueError):
        return part if 0 <= (part := float(str(stated))) <= 1 else None
    return None


Word = Argument[Launched]
DEEPSPEED = Word("deepspeed", stack=PAGE)
ZERO_STAGE = Word("zero_stage", OF_NUMBER, "sharding", leaves_open=True, stack=PAGE)
BATCH = Word("train_batch_size", OF_NUMBER, "global_batch", is_sign=True)
MICRO_BATCH = Word(f"train_{sizes.MICRO_BATCH.name}_per_gpu", OF_NUMBER, "micro_batch", is_sign=True)
GA = Word("gradient_accumulation_steps", OF_NUMBER, "ga")
ZERO_SECTION = Word("zero_optimization", field="sharding", is_sign=True)
STAGE = Word("stage", OF_NUMBER, "sharding")
OVERLAP = Word("overlap_comm", field="overlap_grad")
OFFLOAD_OPTIMIZER = Word("offload_optimizer", field="optimizer_offload")
OFFLOAD_PARAMETERS = Word("offload_param", field="parameter_offload")
OFFLOAD_RATIO = Word("ratio", field="optimizer_offload")
HOST, NOWHERE = "cpu", (None, "none")
"""Devices that a section of offloading names."""
TRAINER_OFFLOAD = "offload"
"""A word of the Trainer's `fsdp`: parameters, gradients and optimizer on the host."""
CHECKPOINTS, ON_HOST = "activation_checkpointing", "cpu_checkpointing"
"""Of the section of recompute, whether the layers' inputs go to the host."""
TRAINER_MICRO_BATCH = Word("per_device_train_batch_size", OF_NUMBER, "micro_batch")
CHECKPOINTING = Word("gradient_checkpointing", field="checkpointing")
TRAINER_FSDP = Word("fsdp", field="sharding")
LIGER, OPTIMIZER = "use_liger_kernel", "optim"
OF_LIGER: Fields = {
    "norm_bytes": (4.0, 8.0), "rotary_bytes": (4.0, 4.0), "gated_bytes": (6.0, 10.0),
    "loss_bytes": (18.0, 10.0), "logit_bytes": 0.0,
}  # fmt: skip
"""Facts with Liger's kernels: one for each, and logits in pieces."""
OF_OPTIMIZER: dict[str, Fields] = {"adamw_torch_fused": {"optimizer_bytes": 36.0, "step_bytes": 0.0}}
SEQUENCES = ("model_max_length", "max_seq_length", "block_size", "max_length", "cutoff_len")
"""What training scripts call the longest sequence."""
NARROW = ("bf16", "fp16")
BUCKET = Word("reduce_bucket_size", OF_NUMBER, "bucket_bytes")
ARGUMENTS: tuple[Word, ...] = arguments_in(globals(), Argument)
LOGGED = (BATCH, MICRO_BATCH, GA)
LOGGED_STAGE = f"{ZERO_SECTION.name}_{STAGE.name}"
"""Settings that its log prints, and that of the ZeRO stage."""
