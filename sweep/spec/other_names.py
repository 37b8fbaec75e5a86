"""What other tools call our axes and keys: Megatron-LM, torchtitan, DeepSpeed, Hugging Face, Slurm scripts."""

from collections.abc import Iterable

from sim_core import nearest
from sweep.frameworks.names import FIELD_OF_NAME, by_word

SEQUENCE = "sequence"
_OF_MEASURES = {
    "step_time_s": "time step_ms iteration_time iter_time elapsed_time latency",
    "samples_per_s": "throughput speed samples_per_second",
    "tokens_per_s": "tokens_per_second",
    "tokens_per_s_per_gpu": "tokens_per_gpu tps tgs tok_s_gpu tokens_per_second_per_gpu tokens_per_sec_per_gpu",
    "peak_memory_bytes": "memory mem vram hbm max_memory memory_usage",
    "usd_per_gpu_hour": "price cost gpu_price price_per_gpu_hour hourly_rate usd",
}
_OURS = FIELD_OF_NAME | by_word(_OF_MEASURES) | {SEQUENCE: SEQUENCE}
_VALUES = {
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
_OUR_VALUES = {field: by_word(values) for field, values in _VALUES.items()}


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
