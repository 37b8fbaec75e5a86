"""What other tools call our axes and keys: Megatron-LM, torchtitan, DeepSpeed, Hugging Face, Slurm scripts."""

from collections.abc import Iterable
from typing import Final

from sim_core import nearest

SEQUENCE: Final = "sequence"
_CALLED: Final = {
    SEQUENCE: "seq_len seqlen seq_length sequence_length context_length max_seq_len "
    "max_position_embeddings max_sequence_length",
    "all_gpus": "world_size gpu gpus num_gpus n_gpus gpu_count nproc ntasks",
    "global_batch": "batch_size global_batch_size train_batch_size",
    "micro_batch": "micro_batch_size mbs_size per_device_batch_size per_device_train_batch_size local_batch_size "
    "train_micro_batch_size_per_gpu pipeline_parallel_microbatch_size",
    "ga": "gradient_accumulation gradient_accumulation_steps num_microbatches grad_acc_steps",
    "checkpointing": "recompute recompute_granularity recompute_method recompute_modules recompute_num_layers "
    "activation_checkpointing activation_checkpoint gradient_checkpointing selective_ac_option",
    "tp": "tensor_model_parallel_size tensor_parallel_degree tensor_parallel_size model_parallel_size",
    "pp": "pipeline_model_parallel_size pipeline_parallel_degree pipeline_parallel_size pipe_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage "
    "num_virtual_stages_per_pipeline_rank pipeline_parallel_layers_per_stage",
    "ep": "expert_model_parallel_size expert_parallel_degree expert_parallel_size moe_expert_parallel_size",
    "cp": "context_parallel_size context_parallel_degree",
    "dp": "data_parallel_size data_parallel_replicate_degree dp_replicate",
    "dp_shard": "data_parallel_shard_degree dp_shard_degree num_distributed_optimizer_instances hsdp_shard_size",
    "sharding": "zero zero_stage zero_optimization stage fsdp use_distributed_optimizer data_parallel_sharding_strategy "
    "fsdp_sharding_strategy",
    "reshard_after_forward": "fsdp_reshard_after_forward",
    "schedule": "pipeline_parallel_schedule pp_schedule pipeline_schedule",
    "layer_split": "pipeline_model_parallel_layout account_for_embedding_in_pipeline_split "
    "account_for_loss_in_pipeline_split decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers",
    "precision": "dtype fp8 fp8_recipe fp8_format mixed_precision mixed_precision_param torch_dtype",
    "dispatcher": "moe_token_dispatcher_type moe_flex_dispatcher_backend",
    "overlap_tp": "tp_comm_overlap async_tensor_parallel enable_async_tensor_parallel",
    "overlap_ep": "overlap_moe_expert_parallel_comm delay_wgrad_compute",
    "overlap_shared_experts": "moe_shared_expert_overlap",
    "overlap_grad": "overlap_grad_reduce overlap_comm",
    "overlap_param": "overlap_param_gather",
    "overlap_pp": "overlap_p2p_comm overlap_p2p_communication",
    "bucket_bytes": "ddp_bucket_size reduce_bucket_size bucket_cap_mb",
    "cp_a2a_size": "hierarchical_context_parallel_sizes",
    "microbatch_group_size": "microbatch_group_size_per_virtual_pipeline_stage",
    "layers": "num_layers num_hidden_layers n_layers",
    "experts": "num_experts n_routed_experts num_local_experts",
    "step_time_s": "time step_ms iteration_time iter_time elapsed_time latency",
    "samples_per_s": "throughput speed samples_per_second",
    "tokens_per_s": "tokens_per_second",
    "tokens_per_s_per_gpu": "tokens_per_gpu tps tgs tok_s_gpu tokens_per_second_per_gpu tokens_per_sec_per_gpu",
    "peak_memory_bytes": "memory mem vram hbm max_memory memory_usage",
    "usd_per_gpu_hour": "price cost gpu_price price_per_gpu_hour hourly_rate usd",
}
_OURS: Final = {name: ours for ours, names in _CALLED.items() for name in names.split()} | {SEQUENCE: SEQUENCE}
_VALUES: Final = {
    "sharding": {
        "none": "0 zero0 ddp no_shard",
        "optimizer": "1 zero1 zero_1 distributed_optimizer os optim",
        "gradients": "2 zero2 zero_2 shard_grad_op optim_grads",
        "parameters": "3 zero3 zero_3 fsdp fsdp2 full_shard fully_shard optim_grads_params",
        "parameters, with dp_shard": "hsdp hybrid_shard",
    },
    "dispatcher": {"flex": "deepep hybridep deep_ep hybrid_ep", "alltoall": "a2a all2all all_to_all alltoall_seq"},
    "precision": {
        "bf16": "bfloat16 torch.bfloat16 bf16_mixed amp_bf16",
        "fp16": "float16 half",
        "fp8_blockwise": "blockwise fp8_block deepseek",
        "fp8_tensorwise": "tensorwise rowwise fp8_cs current",
        "fp8_delayed": "delayed hybrid e4m3",
    },
    "schedule": {
        "1f1b, which interleaves where vpp > 1": "interleaved interleaved_1f1b interleaved1f1b 1f1b_interleaved vpp",
        "zb-h1 (interleaved-zb where vpp > 1)": "zerobubble zero_bubble zb zbh1 interleavedzerobubble",
        "zb-v": "zbv zbvzerobubble",
    },
    "checkpointing": {
        "full": "true on all yes uniform",
        "none": "false off no 0",
        "selective (core attention), or modules such as layernorm+mlp": "op selective_ac core_attention attention",
    },
    "layer_split": {"even": "uniform equal default"},
}
_OUR_VALUES: Final = {
    field: {name: ours for ours, names in values.items() for name in names.split()} for field, values in _VALUES.items()
}


def value_meant(field: str, value: object) -> str:
    """Our value of a field for what another tool calls it; empty if nothing is known."""
    return _OUR_VALUES.get(field, {}).get(str(value).lower().replace("-", "_"), "")


def our_name(name: str) -> str:
    """Our name for what another tool calls an axis or key; empty if nothing is known."""
    return _OURS.get(name.lower().lstrip("-").replace("-", "_").rsplit(".", 1)[-1], "")


def meant(name: str, valid: Iterable[str]) -> str:
    """A hint which valid name was meant: by another tool's name for it, else by its letters."""
    words, ours = list(valid), our_name(name)
    if ours == SEQUENCE and (ours not in words or "checkpointing" in words):  # among axes
        return f"set workload.{SEQUENCE}, the same for all plans (a trace has the axis {SEQUENCE}, too)"
    return f"nearest valid: {ours}" if ours in words else nearest(name, words)
