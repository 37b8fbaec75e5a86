"""What frameworks and users call fields of plans: one look-up by name, filled from the arguments of all frameworks."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from sim_core import Argument, megatron_arguments
from sweep.frameworks import deepspeed, maxtext, megatron, nanotron, torchtitan
from sweep.frameworks.plan import Launched

_OTHERS = {
    "sequence": "seqlen context_length max_seq_len max_sequence_length",
    "all_gpus": "gpu gpus n_gpus gpu_count nproc ntasks",
    "micro_batch": f"mbs_size {maxtext.BATCH}",
    "ga": "gradient_accumulation num_microbatches grad_acc_steps",
    "checkpointing": "recompute activation_checkpointing activation_checkpoint",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "ep": "moe_expert_parallel_size",
    "dp": "dp_replicate",
    "dp_shard": "dp_shard_degree hsdp_shard_size",
    "sharding": "zero fsdp_sharding_strategy",
    "schedule": "pp_schedule pipeline_schedule",
    "layer_split": "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split",
    "precision": "dtype mixed_precision mixed_precision_param torch_dtype",
    "overlap_tp": "async_tensor_parallel",
    "overlap_ep": "delay_wgrad_compute",
    "overlap_pp": "overlap_p2p_comm overlap_p2p_communication",
    "bucket_bytes": "bucket_cap_mb",
    "layers": "num_hidden_layers n_layers",
    "experts": "n_routed_experts num_local_experts",
}
"""Names that no framework's arguments here have."""
Meaning = TypeVar("Meaning")


def by_word(words: Mapping[Meaning, str]) -> dict[str, Meaning]:
    """What each word means, of the words for each meaning."""
    return {word: meaning for meaning, several in words.items() for word in several.split()}


_ROWS: Iterable[Argument[Launched]] = (
    *nanotron.ARGUMENTS, *torchtitan.ARGUMENTS, *deepspeed.ARGUMENTS, *megatron.ARGUMENTS,
)  # fmt: skip
_OF_MODEL = (megatron_arguments.LAYERS, megatron_arguments.EXPERTS, megatron_arguments.SEQUENCE, megatron_arguments.KV_HEADS)
FIELD_OF_NAME = {
    **by_word(_OTHERS),
    **{name: row.field for row in _ROWS if row.field and row.name != row.field for name in row.names},
    **{row.name: row.field for row in _OF_MODEL},
    megatron_arguments.POSITIONS.name: megatron_arguments.SEQUENCE.field,
    "batch_size": "global_batch",  # in torchtitan of 2024 that of a rank
}
SAID_AS = FIELD_OF_NAME | by_word(
    {
        "sequence": "encoder_seq_length model_max_length max_seq_length block_size max_length cutoff_len max_target_length",
        "precision": "bf16 fp16 float8 quantization", "checkpointing": "remat_policy mode", "sharding": "deepspeed fsdp_config",
        "all_gpus": "nodes nnodes num_nodes gpus_per_node nproc_per_node devices",
        "tp": "ici_tensor_parallelism dcn_tensor_parallelism", "pp": "ici_pipeline_parallelism dcn_pipeline_parallelism",
        "cp": "ici_context_parallelism", "ep": "ici_expert_parallelism",
        "hidden": "hidden_size", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
        "ffn": "ffn_hidden_size intermediate_size", "vocabulary": "vocab_size",
    }
)  # fmt: skip
"""Beside them what says one field in part, and numbers of a model."""
