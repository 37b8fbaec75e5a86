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
_OF_MODEL = (megatron_arguments.LAYERS, megatron_arguments.EXPERTS, megatron_arguments.SEQUENCE)
FIELD_OF_NAME = {
    **by_word(_OTHERS),
    **{name: row.field for row in _ROWS if row.field and row.name != row.field for name in row.names},
    **{row.name: row.field for row in _OF_MODEL},
    megatron_arguments.POSITIONS.name: megatron_arguments.SEQUENCE.field,
    "batch_size": "global_batch",  # in torchtitan of 2024 that of a rank
}
