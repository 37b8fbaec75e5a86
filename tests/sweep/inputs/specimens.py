"""Logs and launch files in the forms of real ones, made up: no line is anybody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

ARGUMENTS: Mapping[str, object] = {
    "world_size": 16, "data_parallel_size": 2, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4,
    "virtual_pipeline_model_parallel_size": None, "context_parallel_size": 1, "expert_model_parallel_size": 1,
    "micro_batch_size": 2, "global_batch_size": 32, "num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
    "ffn_hidden_size": 5504, "seq_length": 4096, "max_position_embeddings": 4096, "swiglu": True, "normalization": "RMSNorm",
    "position_embedding_type": "rope", "add_bias_linear": False, "untie_embeddings_and_output_weights": True, "bf16": True,
    "fp16": False, "group_query_attention": True, "num_query_groups": 4, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    "recompute_granularity": "selective", "use_distributed_optimizer": True, "sequence_parallel": True,
    "overlap_grad_reduce": True, "overlap_param_gather": False, "tp_comm_overlap": False, "log_interval": 1,
    "save": "/home/somebody/secret-project/checkpoints", "use_mcore_models": True,
}  # fmt: skip
"""Of a job of Llama's kind on 16 GPUs."""
PRIVATE = ("somebody", "secret-project", "node-17", "/home")
STEPS = (9000.0, 2010.0, 2000.0, 1990.0, 2000.0)
"""Milliseconds of its iterations; the first holds the start."""


def dump(arguments: Mapping[str, object]) -> list[str]:
    """The dump that Megatron-LM prints."""
    rows = [f"  {name} {'.' * max(48 - len(name), 2)} {value}" for name, value in sorted(arguments.items())]
    return [
        "------------------------ arguments ------------------------",
        *rows,
        "-------------------- end of arguments ---------------------",
    ]


def iteration(number: int, ms: float, batch: int = 32) -> str:
    """An iteration line."""
    return (
        f" iteration {number:8}/     500 | consumed samples: {number * batch:12} | elapsed time per iteration (ms): {ms:.1f} "
        f"| learning rate: 1.000E-04 | global batch size: {batch:5} | lm loss: 7.1E+00 | loss scale: 1.0 |"
    )


def megatron_log(
    changes: Mapping[str, object] | None = None, steps: Sequence[float] = STEPS, prefix: str = "", more: Sequence[str] = ()
) -> str:
    """A log of Megatron-LM on 16 GPUs: tp 2, pp 4, dp 2."""
    arguments = {name: value for name, value in {**ARGUMENTS, **(changes or {})}.items() if value != "absent"}
    ranks = [
        f" > number of parameters on (tensor, pipeline) model parallel rank ({t}, {p}): "
        f"{150_000_000 if p in (0, 3) else 100_000_000}"
        for t in range(2)
        for p in range(4)
    ]
    lines = [
        "node-17: starting as somebody in /home/somebody/secret-project",
        "using world size: 16, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 2, "
        "encoder-tensor-model-parallel size: 0, pipeline-model-parallel size: 4",
        *dump(arguments),
        " > padded vocab (size: 32000) with 256 dummy tokens (new size: 32256)",
        "You are using a CUDA device ('NVIDIA H100 80GB HBM3') on node-17",
        *ranks[:6],
        ranks[6][:60] + ranks[7],  # two ranks wrote at once
        *more,
        *(iteration(number, ms) for number, ms in enumerate(steps, start=1)),
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 20480.0 | max allocated: 30720.0 | reserved: 40000.0 |",
    ]
    return "\n".join(prefix + line for line in lines) + "\n"


TORCHTITAN = """\
[rank0]:[titan] 2025-06-16 10:00:00,000 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory
[rank0]:[titan] 2025-06-16 10:00:00,100 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]
[rank0]:[titan] 2025-06-16 10:00:01,000 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] 2025-06-16 10:00:02,000 - root - INFO - Applied selective activation checkpointing to the model
[rank0]:[titan] 2025-06-16 10:00:03,000 - root - INFO - Training starts at step 1, with local batch size 2, \
global batch size 8, sequence length 8192, total steps 100 (warmup 2)
[rank0]:[titan] 2025-06-16 10:00:13,000 - root - INFO - step:  1  loss: 12.1  memory: 40.00GiB(50.6%)  tps: 800  mfu: 4.0%
[rank0]:[titan] 2025-06-16 10:00:33,000 - root - INFO - step: 10  loss: 9.1  memory: 49.66GiB(62.8%)  tps: 4,096  mfu: 24.3%
[rank1]:[titan] 2025-06-16 10:00:33,500 - root - INFO - step: 10  loss: 9.1  memory: 51.00GiB(64.5%)  tps: 4,000  mfu: 24.3%
[rank0]:[titan] 2025-06-16 10:00:53,000 - root - INFO - step: 20  loss: 8.1  memory: 49.66GiB(62.8%)  tps: 4,096  mfu: 24.3%
[rank0]:[titan] 2025-06-16 10:00:53,100 - root - INFO - Dumping profiler traces at step 20
[rank0]:[titan] 2025-06-16 10:01:23,000 - root - INFO - step: 30  loss: 7.1  memory: 49.66GiB(62.8%)  tps: 2,730  mfu: 16.0%
[rank0]:[titan] 2025-06-16 10:01:43,000 - root - INFO - step: 40  loss: 6.1  memory: 49.66GiB(62.8%)  tps: 4,096  mfu: 24.3%
"""
"""8 GPUs, 8 x 8192 tokens a step at 4,096 tokens a second of a GPU: 2 s; the interval of the profiler is slower."""
TORCHTITAN_2024 = """\
2024-10-03 16:44:50,000 - root - INFO - step:  8  loss:  8.9617  memory: 33.11GiB(74.54%)  wps: 1,952  mfu: 26.82%
2024-10-03 16:44:54,000 - root - INFO - step:  9  loss:  8.9453  memory: 33.11GiB(74.54%)  wps: 1,948  mfu: 26.77%
2024-10-03 16:44:58,500 - root - INFO - step: 10  loss:  8.7203  memory: 33.11GiB(74.54%)  wps: 1,955  mfu: 26.86%
"""
COLOURED = "".join(
    f"[32m2026-02-01 00:00:{second:02},000 - root - INFO - [31mstep:  {step}  [32mloss: 12.2  [38;5;1mgrad_norm: 1.0  "
    f"{word}:  {used}GiB(1.1%)  [34mtps: 1,000  [36mtflops: 1.0  [35mmfu: 1.0%[0m\n"
    for step, second, word, used in ((1, 0, "[33mmemory", "1.00"), (2, 5, "mmemory", "1.50"), (3, 8, "[33mmemory", "1.25"))
)
"""Colours whose first character was lost in copying."""
NANOTRON = """\
10/17/2025 16:31:40 [INFO|DP=0|PP=0|TP=0]: Config(general=GeneralArgs(project='secret-project', run='node-17'),
10/17/2025 16:31:40 [INFO|DP=0|PP=0|TP=0]:        parallelism=ParallelismArgs(dp=4, pp=2, tp=2, recompute_layer=False),
10/17/2025 16:31:40 [INFO|DP=0|PP=0|TP=0]:        tokens=TokensArgs(sequence_length=4096, micro_batch_size=2)
10/17/2025 16:31:41 [INFO|DP=0|PP=0|TP=0]: Total number of parameters: 1.71G (3260.19MiB). Local number of parameters: 428M
10/17/2025 16:31:42 [INFO|DP=0|PP=0|TP=0]:  Memory usage: 3260.57MiB. Peak allocated 10240.0MiB Peak reserved: 11000.0MiB
10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 1 / 90 | consumed_tokens: 262K | elapsed_time_per_iteration_ms: 31.5K \
| tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 1.42K | global_batch_size: 64 | lm_loss: 9.1
10/17/2025 16:32:07 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 90 | consumed_tokens: 524K | elapsed_time_per_iteration_ms: 11.4K \
| tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 1.42K | global_batch_size: 64 | lm_loss: 9.1
10/17/2025 16:32:19 [INFO|DP=0|PP=0|TP=0]: iteration: 3 / 90 | consumed_tokens: 786K | elapsed_time_per_iteration_ms: 11.6K \
| tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 1.42K | global_batch_size: 64 | lm_loss: 9.1
"""
NEMO = """\
[NeMo I 2025-01-01 00:00:00 nemo_logging:393] Rank 0 has data parallel group : [0, 4]
[NeMo I 2025-01-01 00:00:00 nemo_logging:393] Rank 0 has context parallel group: [0]
[NeMo I 2025-01-01 00:00:00 nemo_logging:393] Rank 0 has tensor model parallel group: [0, 1]
[NeMo I 2025-01-01 00:00:00 nemo_logging:393] Rank 0 has pipeline model parallel group: [0, 2]
Training epoch 0, iteration 0/99 | lr: 6e-06 | global_batch_size: 128 | global_step: 0 | max_memory_allocated: 10737418240 \
| train_step_timing in s: 60.8 | consumed_samples: 128
Training epoch 0, iteration 1/99 | lr: 6e-06 | global_batch_size: 128 | global_step: 1 | max_memory_allocated: 21474836480 \
| train_step_timing in s: 6.061 | consumed_samples: 256
Training epoch 0, iteration 2/99 | lr: 6e-06 | global_batch_size: 128 | global_step: 2 | max_memory_allocated: 21474836480 \
| train_step_timing in s: 6.063 | consumed_samples: 384
"""
MLLOG = "".join(
    f':::MLLOG {{"namespace": "", "time_ms": {n}, "event_type": "POINT_IN_TIME", "key": "{key}", "value": {value}, '
    f'"metadata": {{"file": "/home/somebody/run.py", "lineno": 3}}}}\n'
    for n, (key, value) in enumerate(
        [
            ("submission_benchmark", '"llama31_405b"'),
            ("submission_platform", '"4xNVIDIA DGX H100"'),
            *[("init_start", "null")] * 32,
            ("global_batch_size", "128"),
            ("max_sequence_length", "8192"),
            ("tracked_stats", '{"train_step_time": 70.5, "reduced_train_loss": 7.7}'),
            ("tracked_stats", '{"train_step_time": 50.5}'),
            ("eval_start", "null"),
            ("tracked_stats", '{"train_step_time": 66.0}'),
            ("tracked_stats", '{"train_step_time": 50.7}'),
        ]
    )
)
DEEPSPEED_PIPELINE = "".join(
    f"steps: {n} loss: 4.61 iter time (s): {s:.3f} samples/sec: {256 / s:.3f}\n" for n, s in ((10, 2.0), (20, 1.0), (30, 1.02))
)
DEEPSPEED_RATE = """\
[2023-07-25 21:00:00,000] [INFO] [config.py:904:print]   train_batch_size ............. 32
[2023-07-25 21:00:00,000] [INFO] [stage3.py:1:__init__] Creating fp16 ZeRO stage 3 optimizer
[2023-07-25 21:01:20,125] [INFO] [timer.py:215:stop] epoch=0/micro_step=1/global_step=1, RunningAvgSamplesPerSec=1.0, \
CurrSamplesPerSec=1.0, MemAllocated=59.65GB, MaxMemAllocated=63.31GB
[2023-07-25 21:01:24,125] [INFO] [timer.py:215:stop] epoch=0/micro_step=2/global_step=2, RunningAvgSamplesPerSec=7.9, \
CurrSamplesPerSec=8.0, MemAllocated=59.65GB, MaxMemAllocated=63.31GB
"""
TRAINER = """\
[INFO|trainer.py:1144] 2021-05-25 06:29:50,976 >> ***** Running training *****
[INFO|trainer.py:1146] 2021-05-25 06:29:50,976 >>   Instantaneous batch size per device = 4
[INFO|trainer.py:1147] 2021-05-25 06:29:50,976 >>   Total train batch size (w. parallel, distributed & accumulation) = 128
[INFO|trainer.py:1149] 2021-05-25 06:29:50,976 >>   Total optimization steps = 8
[2021-05-25 06:30:01,035] [INFO] [utils.py:11:_initialize_parameter_parallel_groups] data_parallel_size: 32, \
parameter_parallel_size: 32
{'train_runtime': 896.0, 'train_samples_per_second': 1.116, 'train_steps_per_second': 0.009, 'epoch': 1.0}
"""
OUT_OF_MEMORY = """\
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.10 GiB
"""

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --job-name=secret-project
GPUS_PER_NODE=8
TP=4
LAYERS=${LAYERS:-32}
LAUNCH="--nproc_per_node $GPUS_PER_NODE --nnodes 4 --node_rank $SLURM_PROCID"
MODEL=(
    --num-layers ${LAYERS} --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --position-embedding-type rope
    --disable-bias-linear --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0
    --tokenizer-type NullTokenizer --vocab-size 128255 --max-position-embeddings 8192 --seq-length 8192
)
PLAN=(
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 8
    --micro-batch-size 1 --global-batch-size 128 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --bf16
)
OTHER=(--lr 3e-4 --data-path /home/somebody/data --our-own-flag 3)
torchrun $LAUNCH pretrain_gpt.py ${MODEL[@]} ${PLAN[@]} ${OTHER[@]}
"""
TOML = """\
[job]
description = "secret-project"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 8
pipeline_parallel_microbatch_size = 2
pipeline_parallel_first_stage_less_layers = 0
pipeline_parallel_last_stage_less_layers = 0
[activation_checkpoint]
mode = "full"
"""
TOML_2024 = """\
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 8192
tensor_parallel_degree = 2
data_parallel_degree = 8
[experimental]
pipeline_parallel_degree = 1
[activation_checkpoint]
mode = "none"
"""
NANOTRON_YAML = """\
model:
  dtype: bfloat16
  model_config: {is_llama_config: true, hidden_size: 2048, intermediate_size: 8192, num_attention_heads: 32,
    num_hidden_layers: 16, num_key_value_heads: 8, vocab_size: 49152, tie_word_embeddings: true,
    max_position_embeddings: 4096, hidden_act: silu}
optimizer: {zero_stage: 1}
parallelism: {dp: 4, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
tokens: {batch_accumulation_per_replica: 8, micro_batch_size: 2, sequence_length: 4096}
"""
DEEPSPEED_JSON = """\
{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
 "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, "overlap_comm": true}, "steps_per_print": 10}
"""
TRAINER_YAML = """\
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
max_seq_length: 2048
deepspeed: {zero_optimization: {stage: 3}}
"""
NEMO_YAML = """\
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  num_query_groups: 8
  activation: fast-swiglu
  normalization: rmsnorm
  position_embedding_type: rope
  bias: false
  share_embeddings_and_output_weights: false
  vocab_size: 32000
  hidden_dropout: 0.0
  attention_dropout: 0.0
  activations_checkpoint_granularity: selective
  sequence_parallel: true
  optim: {name: distributed_fused_adam}
"""
MEGATRON_YAML = """\
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --tensor-model-parallel-size: 2
  --pipeline-model-parallel-size: 2
  --vocab-size: 50304
  --bf16: true
"""

EXPORTED = """\
{
 "sweep": "trip",
 "plan": 1,
 "fields": {"all_gpus": 32, "global_batch": 64, "checkpointing": "selective", "ep": 1, "micro_batch": 1, "schedule": "1f1b",
  "layer_split": "even", "overlap_grad": true, "overlap_param": true, "cp": 1, "dp_shard": 0, "precision": "bf16", "tp": 2,
  "pp": 4, "vpp": 2, "dp": 4, "ga": 16},
 "stack": "megatron-core",
 "sharding": "optimizer",
 "sequence": 8192,
 "sequence_parallel": true,
 "model": {"name": "own", "source": "/home/somebody/config.json", "layers": 32, "hidden": 4096, "heads": 32, "gated": true,
  "activation": "silu", "norm": "rmsnorm", "position": "rotary", "ffn": 14336, "vocabulary": 128256, "sequence": 8192}
}
"""
MAXTEXT = """\
Config param base_emb_dim: 4096
Config param gradient_accumulation_steps: 1
Config param ici_fsdp_parallelism: -1
Config param ici_tensor_parallelism: 1
Config param dcn_data_parallelism: -1
Config param max_target_length: 8192
Config param model_name: llama3-8b
Config param per_device_batch_size: 2.0
Config param quantization: 
Config param remat_policy: full
System Information: Jax Version: 0.7.2.dev20250826
System Information: Jax Backend: PJRT C API
TFRT TPU v6 lite
Num_devices: 64, shape (1, 1, 64, 1, 1, 1, 1, 1, 1, 1, 1, 1)
number parameters: 8.030 billion
completed step: 0, seconds: 44.923, TFLOP/s/device: 17.022, Tokens/s/device: 1094.129, total_weights: 196608, loss: 12.038
completed step: 1, seconds: 0.319, TFLOP/s/device: 2400.734, Tokens/s/device: 154316.608, total_weights: 196608, loss: 12.038
completed step: 2, seconds: 2.458, TFLOP/s/device: 135.158, Tokens/s/device: 8687.815, total_weights: 196608, loss: 11.689
completed step: 3, seconds: 2.402, TFLOP/s/device: 141.542, Tokens/s/device: 9098.189, total_weights: 196608, loss: 11.379
completed step: 4, seconds: 2.469, TFLOP/s/device: 134.884, Tokens/s/device: 8670.207, total_weights: 196608, loss: 11.110
"""
MAXTEXT_SCRIPT = """\
#!/bin/bash
python3 -m MaxText.train MaxText/configs/base.yml run_name=$RUN base_output_directory=gs://x \\
  model_name=llama3.1-70b per_device_batch_size=4 max_target_length=8192 remat_policy=save_qkv_proj \\
  ici_fsdp_parallelism=32 ici_tensor_parallelism=8 steps=20 quantization='' dataset_type=synthetic
"""
NEOX = """\
# braces of YAML, with the words and commas of Python
{
  "pipe-parallel-size": 4, "model-parallel-size": 2,
  "num-layers": 44, "hidden-size": 6144, "num-attention-heads": 64, "seq-length": 2048, "max-position-embeddings": 2048,
  "norm": "layernorm", "pos-emb": "rotary", "no-weight-tying": true, "gpt_j_residual": true,
  "vocab-file": "/home/somebody/vocab.json",
  "optimizer": {"type": "Adam", "params": {"lr": 0.97e-4,}},
  "zero_optimization": {"stage": 1, "overlap_comm": True,},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32,
  "checkpoint-activations": true, "hidden-dropout": 0, "attention-dropout": 0,
  "fp16": {"fp16": true, "enabled": true,},
}
"""
AUTOMODEL = """\
step_scheduler: {global_batch_size: 512, local_batch_size: 8}
distributed:
  strategy: fsdp2
  dp_size: none
  pp_size: 2
  cp_size: 1
  ep_size: 1
  activation_checkpointing: true
  pipeline: {pp_schedule: 1f1b, pp_microbatch_size: 1}
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.3-70B-Instruct
peft: {match_all_linear: true, dim: 16}
dataset: {path_or_dataset: /home/somebody/data, seq_len: 4096}
"""
FOUNDRY = """\
variables: {max_seq_len: 2048}
max_seq_len: ${variables.max_seq_len}
run_name: secret-project
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  expansion_ratio: 4
  max_seq_len: ${variables.max_seq_len}
  vocab_size: 50368
  no_bias: true
  attn_config: {attn_impl: flash, attn_type: grouped_query_attention, kv_n_heads: 8}
optimizer: {name: decoupled_adamw}
global_train_batch_size: 1024
device_train_microbatch_size: 8
precision: amp_bf16
fsdp_config: {sharding_strategy: SHARD_GRAD_OP, mixed_precision: PURE, activation_checkpointing: false}
"""
PRIMUS = """\
exp_name: ${PRIMUS_EXP_NAME:secret-project}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: llama3.1_70B.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: ${PRIMUS_SEQ_LENGTH:8192}
      max_position_embeddings: 8192
      tensor_model_parallel_size: ${PRIMUS_TP:8}
      pipeline_model_parallel_size: 1
      expert_model_parallel_size: 1
      overlap_grad_reduce: true
      recompute_granularity: full
      recompute_method: block
      recompute_num_layers: 20
      fp8: hybrid
"""
OLMO_CORE = """\
ExperimentConfig(
    run_name='secret-project',
    model=TransformerConfig(
        d_model=4096,
        vocab_size=100352,
        n_layers=32,
        block=TransformerBlockConfig(
            attention=AttentionConfig(n_heads=32, n_kv_heads=8, bias=False),
            feed_forward=FeedForwardConfig(hidden_size=11008, bias=False),
        ),
    ),
    dataset=NumpyFSLDatasetConfig(
        tokenizer=TokenizerConfig(vocab_size=100278, eos_token_id=100257),
        sequence_length=4096,
        max_target_sequence_length=8192,
    ),
    data_loader=NumpyDataLoaderConfig(global_batch_size=4194304, seed=34521),
    train_module=TransformerTrainModuleConfig(
        rank_microbatch_size=8192,
        max_sequence_length=4096,
        dp_config=TransformerDataParallelConfig(param_dtype='bfloat16', reduce_dtype='float32'),
    )
)
2025-01-01 00:00:00.000\tnode-17:0\tolmo_core.nn.transformer.config:383\tINFO\tBuilding transformer with 6,887,575,552 total \
params, 6,476,533,760 non-embedding params
2025-01-01 00:00:01.000\tnode-17:0\tolmo_core.distributed.parallel:252\tINFO\tBuilt 3D device mesh with shape \
(dp_replicate=8, dp_shard=8, tp=2)
2025-01-01 00:00:01.100\tnode-17:0\tolmo_core.train.train_module:154\tINFO\tData parallel world size = 64
2025-01-01 00:00:01.200\tnode-17:0\tolmo_core.train.train_module:104\tINFO\tApplied 'full' activation checkpointing to the model
2025-01-01 00:00:01.300\tnode-17:0\tolmo_core.train.train_module:137\tINFO\tApplied FSDP to the model with 2D device mesh with \
shape (dp_replicate=8, dp_shard=8)
2025-01-01 00:00:02.000\tnode-17:0\tolmo_core.train.callbacks.gpu_memory_monitor:40\tINFO\tGPU capacity: NVIDIA H100 80GB HBM3 \
with 79.10GiB memory of which 1.00GiB is currently allocated and 2.00GiB is currently reserved.
""" + "".join(
    f"2025-01-01 00:{step:02}:00.000\tnode-17:0\tolmo_core.train.callbacks.console_logger:80\tINFO\t"
    f"[step={step}/1000,epoch=1,eta=5h11m]\n    train/CE loss=6.234\n    throughput/total tokens=41,943,040\n"
    f"    throughput/device/TPS=13,107\n    throughput/device/BPS={rate}\n    throughput/device/BPS (actual avg)=0.1000\n"
    f"    gpu_memory/GPU active mem (GiB)=40.00\n    gpu_memory/GPU reserved mem (GiB)={40 + step / 100:.2f}\n"
    for step, rate in ((10, "0.2000"), (20, "0.4000"), (30, "0.4000"), (40, "0.3900"))
)
"""128 GPUs: 8 replicas of 8 that share parameters, tp 2."""
COMPOSER = "".join(
    f"[batch={batch}/4800]:\n"
    + "".join(
        f"\t Train {name}: {value}\n"
        for name, value in {
            "time/epoch": 0, "time/batch": batch - 1, "time/sample": 320 * (batch - 1), "time/token": 655_360 * (batch - 1),
            "memory/peak_reserved_mem": 30 + batch / 10, "memory/alloc_retries": 0, "trainer/device_train_microbatch_size": 5,
            "loss/train/total": 9.5, "throughput/batches_per_sec": f"{rate:.4f}",
            "throughput/samples_per_sec": f"{320 * rate:.4f}", "throughput/device/samples_per_sec": f"{40 * rate:.4f}",
            "throughput/tokens_per_sec": f"{655_360 * rate:.4f}", "throughput/device/tokens_per_sec": f"{81_920 * rate:.4f}",
            "time/train": 0.01,
        }.items() if rate or not name.startswith("throughput")
    )
    for batch, rate in ((1, 0), (10, 0.05), (20, 0.1), (30, 0.1), (40, 0.125))
)  # fmt: skip
"""8 GPUs, 320 sequences of 2,048 tokens a batch."""
FILES: Mapping[str, str] = {
    "Megatron-LM": megatron_log(), "torchtitan": TORCHTITAN, "torchtitan 2024": TORCHTITAN_2024, "nanotron": NANOTRON,
    "MaxText": MAXTEXT, "OLMo-core": OLMO_CORE, "Composer": COMPOSER,
    "NeMo": NEMO, "MLLOG": MLLOG, "DeepSpeed pipeline": DEEPSPEED_PIPELINE, "DeepSpeed": DEEPSPEED_RATE, "Trainer": TRAINER,
    "Megatron-LM script": SCRIPT, "torchtitan TOML": TOML, "MaxText script": MAXTEXT_SCRIPT,
    "nanotron YAML": NANOTRON_YAML, "DeepSpeed JSON": DEEPSPEED_JSON,
    "exported plan": EXPORTED, "Trainer YAML": TRAINER_YAML, "NeMo YAML": NEMO_YAML, "Megatron-LM YAML": MEGATRON_YAML,
    "GPT-NeoX YAML": NEOX, "NeMo AutoModel YAML": AUTOMODEL, "llm-foundry YAML": FOUNDRY, "Primus YAML": PRIMUS,
}  # fmt: skip
"""A file of each kind."""
LOGS = tuple(FILES)[: list(FILES).index("Trainer") + 1]
