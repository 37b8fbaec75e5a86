"""Words of Primus: sections of its experiments, and what its own configurations say where an experiment does not."""

import re

from sim_core.documents import Fields

NAME, PAGE = "Primus", "primus"
TRAINERS = ("pre_trainer", "post_trainer", "sft_trainer")
SIGN = re.compile(rf"^\s+(?:{'|'.join(TRAINERS)}):\s*$", re.MULTILINE)
DEFAULTED = re.compile(r"\$\{\w+:-?([^{}]*)\}")
"""A variable of the shell with the value that it has where it is not set."""
CONFIGS, FOLDERS = "primus/configs", {"config": "modules", "model": "models"}
"""Folders of its own configurations, each with one for a framework, by what names a file in them."""
USUAL: Fields = {
    "bf16": True, "use_distributed_optimizer": True, "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1, "expert_model_parallel_size": 1, "virtual_pipeline_model_parallel_size": None,
    "sequence_parallel": True, "recompute_granularity": None,
}  # fmt: skip
"""Of Megatron-LM, what they say (modules/megatron/pre_trainer.yaml, models/megatron/language_model.yaml)."""
OWN = {
    "patch_zero_bubble": "schedule", "patch_primus_pipeline": "schedule", "decoder_pipeline_manual_split_list": "layer_split",
    "recompute_layer_ids": "checkpointing", "cpu_offload": "activation_offload",
}  # fmt: skip
"""What Megatron-LM does not have, and the field that it leaves open."""
