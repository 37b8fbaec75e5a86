"""A plan and its model as launch flags of Megatron-LM (core 0.20): an array for bash, with what has no flag as comments."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from sim_core import Model, SpecError
from sweep.exporting.launched import Launched
from sweep.exporting.megatron_rules import refused

Flags = dict[str, tuple[str, ...]]
Value = str | int | tuple[str, ...] | None  # a bool: a switch
Values = dict[str, Value]
VERSION: Final = "core 0.20 (d98e8a64, August 2026)"
ARRAY: Final = "MEGATRON_ARGS"
LARGEST_HOST: Final = 8
"""GPUs that one operating system has at most: a larger NVLink domain is a rack of trays, of which torchrun starts one each."""
TRAY: Final = 4
"""GPUs of a tray of GB200 and GB300 NVL72 (NVIDIA's specifications)."""
_CP_TYPES: Final = {"all_gather": "allgather"}
_RECIPES: Final[dict[str, Values]] = {
    "fp8_delayed": {"--fp8-format": "hybrid", "--fp8-recipe": "delayed"},
    "fp8_tensorwise": {"--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "fp8_blockwise": {"--fp8-format": "e4m3", "--fp8-recipe": "blockwise"},
    "mxfp8": {"--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
    "nvfp4": {"--fp4-format": "e2m1"},
}
_STRATEGIES: Final = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
_VARIANTS: Final = {"gated_delta": "gated_delta_net"}
_STACK: Final = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
_DISPATCHERS: Final = ("alltoall", "flex")
_OPTIMIZERS: Final = {"adamw": None, "muon": "muon", "sgd_momentum": "sgd"}  # None: Megatron-LM's default
_GRADIENT_BYTES: Final = 4
_NAMED: Final = {
    "schedule", "layer_split", "checkpointing", "precision", "dispatcher", "bucket_bytes", "sequence", "cp",
    "cp_comm_type", "cp_a2a_size", "sharding", "dp_shard", "reshard_after_forward", "prefetch_layers",
    "microbatch_group_size", "overlap_tp", "overlap_ep", "overlap_shared_experts", "overlap_grad", "overlap_param",
    "gradient_precision", "straggler_factor", "straggler_stage", "optimizer", "muon_tp_mode",
    "muon_aligned",
}  # fmt: skip
"""Fields with a flag, or with a comment where they have none."""
NULL_TOKENIZER_ADDS: Final = 1
"""Megatron's NullTokenizer adds a token for the end of a document."""


def flags_of(values: Mapping[str, Value]) -> Flags:
    """Flags with their values as text: none for a switch that is on; what is None or off is left out."""
    flags: Flags = {}
    for flag, value in values.items():
        if value is True:
            flags[flag] = ()
        elif value is not None and value is not False:
            flags[flag] = value if isinstance(value, tuple) else (str(value),)
    return flags


def megatron_flags(plan: Launched) -> Flags:
    """Flags and values of a plan, and of its model where it is known. Raises SpecError for what Megatron-LM cannot do."""
    schedule = str(plan.fields["schedule"])
    if schedule != "1f1b":
        raise SpecError(f"plan {plan.number}: Megatron-LM has no schedule {schedule}, only 1f1b (interleaved with vpp > 1)")
    flags: Flags = {} if plan.model is None else model_flags(plan.model, plan.sequence or 0, _stages(plan))
    patterned = plan.model is not None and bool(plan.model.pattern)
    return flags | flags_of(
        {
            "--num-layers": None if patterned else plan.number_of("layers"),
            "--tensor-model-parallel-size": plan.number_of("tp"),
            "--pipeline-model-parallel-size": plan.number_of("pp"),
            "--context-parallel-size": plan.number_of("cp"),
            "--micro-batch-size": plan.number_of("micro_batch"),
            "--global-batch-size": plan.number_of("global_batch"),
            **_pipeline(plan),
            **_context(plan),
            **_experts(plan),
            **_recompute(plan),
            **_data(plan),
            **_precision(plan),
            **_optimizer(plan),
        }
    )


def _pipeline(plan: Launched) -> Values:
    pp, vpp, group = plan.number_of("pp"), plan.number_of("vpp"), plan.number_of("microbatch_group_size")
    cut = plan.model is not None and bool(plan.model.pattern)  # the pattern says where stages begin
    unequal = len({*_stages(plan)}) > 1 and not cut
    return {
        "--pipeline-model-parallel-layout": _layout(plan) if unequal else None,
        "--num-virtual-stages-per-pipeline-rank": vpp if vpp > 1 and not unequal and not cut else None,
        "--microbatch-group-size-per-virtual-pipeline-stage": group if vpp > 1 and group not in (0, pp) else None,
        "--no-overlap-p2p-communication": vpp > 1 and not plan.fields["overlap_pp"],
        "--sequence-parallel": plan.sequence_parallel,
        "--tp-comm-overlap": bool(plan.fields["overlap_tp"]) and plan.number_of("tp") > 1,
    }


def _stages(plan: Launched) -> list[int]:
    """The layers of each virtual stage in model order."""
    return [stage[chunk] for chunk in range(len(plan.layers[0])) for stage in plan.layers]


def _layout(plan: Launched) -> str:
    """Where the layers of virtual stages differ."""
    parts = [f"t*{count}" if count > 1 else "t" * count for count in _stages(plan)]
    mtp = plan.model.mtp_layers if plan.model else 0
    return f"E{'|'.join(parts)}{'m' * mtp}L"


def _context(plan: Launched) -> Values:
    kind, cp, a2a = str(plan.fields["cp_comm_type"]), plan.number_of("cp"), plan.number_of("cp_a2a_size")
    if cp == 1:
        return {}
    sizes = (str(a2a), str(cp // a2a)) if kind == "a2a+p2p" else None
    return {"--cp-comm-type": _CP_TYPES.get(kind, kind), "--hierarchical-context-parallel-sizes": sizes}


def _experts(plan: Launched) -> Values:
    ep, dispatcher = plan.number_of("ep"), str(plan.fields["dispatcher"])
    if ep == 1 and (plan.model is None or plan.model.experts is None):
        return {}
    if dispatcher not in _DISPATCHERS:
        raise SpecError(f"plan {plan.number}: Megatron-LM has no dispatcher {dispatcher}, only {', '.join(_DISPATCHERS)}")
    return {
        "--expert-model-parallel-size": ep,
        "--expert-tensor-parallel-size": plan.number_of("tp") if plan.experts_with_tp else 1,
        "--moe-token-dispatcher-type": dispatcher,
        "--moe-flex-dispatcher-backend": "deepep" if dispatcher == "flex" else None,
        "--overlap-moe-expert-parallel-comm": bool(plan.fields["overlap_ep"]) and ep > 1,
        "--moe-shared-expert-overlap": bool(plan.fields.get("overlap_shared_experts")),
    }


def _recompute(plan: Launched) -> Values:
    kind, _, layers = str(plan.fields["checkpointing"]).partition(":")
    if kind in ("none", "file"):
        return {}
    method = {"full": "uniform", "every": "uniform", "block": "block"}.get(kind)
    if method is not None:
        number = layers or "1"
        return {"--recompute-granularity": "full", "--recompute-method": method, "--recompute-num-layers": number}
    modules = None if kind == "selective" else tuple(kind.split("+"))  # by Megatron's names
    return {"--recompute-granularity": "selective", "--recompute-modules": modules}


def _data(plan: Launched) -> Values:
    ranks, bucket = plan.number_of("dp") * plan.number_of("cp"), plan.number_of("bucket_bytes")
    shard = plan.number_of("dp_shard") or ranks
    optimizer, fsdp = plan.sharding == "optimizer", plan.sharding in _STRATEGIES
    return {
        "--use-distributed-optimizer": optimizer,
        "--num-distributed-optimizer-instances": ranks // shard if optimizer and shard < ranks else None,
        "--use-megatron-fsdp": fsdp,
        "--data-parallel-sharding-strategy": _STRATEGIES.get(plan.sharding),
        "--ckpt-format": "fsdp_dtensor" if fsdp else None,
        "--overlap-grad-reduce": bool(plan.fields["overlap_grad"]),
        "--overlap-param-gather": bool(plan.fields["overlap_param"]) and plan.sharding != "none",
        "--ddp-bucket-size": bucket // _GRADIENT_BYTES if bucket else None,
        "--grad-reduce-in-bf16": plan.reduces_in_bf16,
    }


def _precision(plan: Launched) -> Values:
    name = str(plan.fields["precision"])
    return {"--fp16": True} if name == "fp16" else {"--bf16": True} | _RECIPES.get(name, {})


def _optimizer(plan: Launched) -> Values:
    name = str(plan.fields["optimizer"])
    if name not in _OPTIMIZERS:
        raise SpecError(f"plan {plan.number}: Megatron-LM has no optimizer {name}, only {', '.join(_OPTIMIZERS)}")
    muon = name == "muon"
    return {
        "--optimizer": _OPTIMIZERS[name],
        "--muon-tp-mode": str(plan.fields["muon_tp_mode"]) if muon and plan.number_of("tp") > 1 else None,
        "--no-use-layer-wise-param-layout": muon and plan.sharding == "optimizer" and not plan.fields["muon_aligned"],
    }


def not_said(plan: Launched) -> list[str]:
    """What the plan or its model says and no flag does, one line each."""
    fields = plan.fields
    missing = ["its sizes, which the workload file does not hold (workload.model adds them)"]
    if plan.model is not None:
        missing = without_flag(plan.model)
    straggler = fields["straggler_factor"]
    told = {
        f"straggler_factor {straggler} on stage {fields['straggler_stage']}": straggler != 1.0,
        f"dp_shard {fields['dp_shard']}: replicas of sharded groups": (
            plan.sharding in _STRATEGIES and 0 < plan.number_of("dp_shard") < plan.number_of("dp") * plan.number_of("cp")
        ),
        f"prefetch_layers {fields['prefetch_layers']}": plan.sharding == "parameters" and fields["prefetch_layers"] != 1,
        "reshard_after_forward: false": plan.sharding == "parameters" and not fields["reshard_after_forward"],
        f"stack {plan.stack}: not Megatron-LM": bool(plan.stack) and not plan.stack.startswith(("megatron", "nemo")),
        "checkpointing: file": fields["checkpointing"] == "file",
    }
    lines = [f"model: {what}" for what in missing] + [what for what, there in told.items() if there] + plan.besides(_NAMED)
    return lines + [f"{key} {value}" for key, value in fields.items() if key.startswith("hardware.")]


def flags_text(plan: Launched) -> str:
    """The flags in one line. Raises SpecError if Megatron-LM would refuse them."""
    return " ".join(_rows(_accepted(plan)))


def _accepted(plan: Launched) -> Flags:
    """The flags. Raises SpecError if Megatron-LM would refuse them."""
    flags = megatron_flags(plan)
    broken = refused(flags, plan.number_of("all_gpus"))
    if broken:
        raise SpecError(f"plan {plan.number}: Megatron-LM refuses it: {'; '.join(broken)}")
    return flags


def _rows(flags: Flags) -> list[str]:
    return [" ".join([flag, *(shlex.quote(value) for value in values)]) for flag, values in flags.items()]


def megatron_text(plan: Launched) -> str:
    """A file for bash that sets the array of flags. Raises SpecError if Megatron-LM would refuse them."""
    flags = _accepted(plan)
    world = plan.number_of("all_gpus")
    host = plan.gpus_per_node if plan.gpus_per_node <= LARGEST_HOST else TRAY
    lines = [
        f"# Plan {plan.number} of the sweep {plan.name}: {world} x {plan.fields['hardware']}, simulated step "
        f"{plan.row['step_time_s']:.4g} s.",
        f"# Flags of Megatron-LM {VERSION}, by `sweep export`; older and newer versions may differ.",
        f"# torchrun --nproc-per-node {min(host, world)} --nnodes {-(-world // host)} "
        f"pretrain_{'hybrid' if '--hybrid-layer-pattern' in flags else 'gpt'}.py "
        f'"${{{ARRAY}[@]}}" ...',
        "# Yours to add: data, tokenizer (NullTokenizer here stands for the size of the vocabulary), learning rate, "
        "checkpoints, iterations;",
        "# and what costs no time but belongs to the model: --rotary-base (Megatron's default is 10000), --norm-epsilon, "
        "initialisation.",
        *(f"# Without a flag: {line}" for line in not_said(plan)),
    ]
    fsdp, grouped = "--use-megatron-fsdp" in flags, plan.number_of("tp") > 1 or plan.number_of("cp") > 1
    if grouped and not fsdp:
        lines += ["# needed before Blackwell for tp or cp > 1", "export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    elif fsdp:
        lines += ["# Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1", "unset CUDA_DEVICE_MAX_CONNECTIONS"]
    return "\n".join([*lines, f"{ARRAY}=(", *(f"    {row}" for row in _rows(flags)), ")", ""])


def model_flags(model: Model, sequence: int, stages: Sequence[int] = ()) -> Flags:
    """The flags that describe a model, with their values; `stages`: layers of each virtual stage, which cut a pattern."""
    return flags_of(
        {
            "--num-layers": None if model.pattern else model.layers,
            "--hidden-size": model.hidden,
            "--num-attention-heads": model.heads,
            "--ffn-hidden-size": model.ffn or (model.experts.ffn if model.experts else 0),
            "--seq-length": sequence,
            "--max-position-embeddings": model.positions or sequence,
            "--normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
            "--hidden-dropout": f"{model.hidden_dropout:g}",
            "--attention-dropout": f"{model.attention_dropout:g}",
            "--tokenizer-type": "NullTokenizer",
            "--vocab-size": model.vocabulary - NULL_TOKENIZER_ADDS,
            "--make-vocab-size-divisible-by": model.vocabulary_multiple,
            "--position-embedding-type": {"rotary": "rope", "learned": "learned_absolute"}.get(model.position, "none"),
            "--swiglu": model.gated and model.activation == "silu",
            "--quick-geglu": model.gated and model.activation == "gelu",
            "--squared-relu": not model.gated and model.activation == "squared_relu",
            "--disable-bias-linear": not (model.qkv_bias and model.projection_bias and model.mlp_bias),
            "--add-qkv-bias": model.qkv_bias and not model.projection_bias,
            "--qk-layernorm": model.qk_norm,
            "--untie-embeddings-and-output-weights": not model.tied,
            "--softmax-type": "learnable" if model.attention_sinks else None,
            **_attention(model),
            **_experts_of_model(model),
            **_kinds(model, stages or (model.layers,)),
        }
    )


def _attention(model: Model) -> Values:
    mla, values = model.mla, Values()
    if mla is not None:
        values |= {"--multi-latent-attention": True, "--q-lora-rank": mla.q_rank, "--kv-lora-rank": mla.kv_rank}
        values |= {"--qk-head-dim": mla.nope_head_dim, "--qk-pos-emb-head-dim": mla.rope_head_dim}
        values["--v-head-dim"] = mla.v_head_dim
    else:
        values["--kv-channels"] = model.head_dim
        if model.kv_heads != model.heads:
            values |= {"--group-query-attention": True, "--num-query-groups": model.kv_heads}
    if model.window is not None and not model.window.chunked:
        values["--window-size"] = f"{model.window.tokens - 1},0"  # a token sees itself and so many before it
        inside = [window > 0 for window in windows_of(model)]
        values["--window-attn-skip-freq"] = None if all(inside) else _every(inside) or pattern(inside)
    return values


def _kinds(model: Model, stages: Sequence[int]) -> Values:
    """Layers that are not attention and MLP, the gate of attention, the indexer. A pattern is cut into `stages`."""
    values: Values = {"--attention-output-gate": model.output_gate}
    if model.pattern:
        letters = iter(model.pattern.replace("|", ""))
        cut = "|".join("".join(islice(letters, count)) for count in stages)
        heads = f"/*{'E' if model.experts else '-'}" * model.mtp_layers
        values |= {"--hybrid-layer-pattern": cut + heads, "--mtp-num-layers": None, "--spec": _STACK}
    if model.indexer is not None and model.mla is not None:
        values |= {"--experimental-attention-variant": "dsa", "--dsa-indexer-topk": model.indexer.topk}
        values |= {"--dsa-indexer-n-heads": model.indexer.heads, "--dsa-indexer-head-dim": model.indexer.head_dim}
    mixer = model.recurrent
    if mixer is not None and mixer.kind == "mamba2":
        values |= {"--mamba-num-heads": mixer.heads, "--mamba-head-dim": mixer.head_dim}
        values |= {"--mamba-state-dim": mixer.state, "--mamba-num-groups": mixer.groups}
    elif mixer is not None and mixer.kind in _VARIANTS:
        values["--experimental-attention-variant"] = None if model.pattern else _VARIANTS[mixer.kind]
        values |= {"--linear-num-value-heads": mixer.heads, "--linear-value-head-dim": mixer.head_dim}
        values |= {"--linear-num-key-heads": mixer.groups, "--linear-key-head-dim": mixer.state}
        values["--linear-conv-kernel-dim"] = mixer.conv
        attends = model.full_attention
        if isinstance(attends, tuple):
            values["--linear-attention-freq"] = pattern([layer not in attends for layer in range(model.layers)])
        else:
            values["--linear-attention-freq"] = attends
    return values


def _every(inside: list[bool]) -> str:
    """N where each N-th layer is full and all others see a window; else empty."""
    periods = [n for n in range(2, len(inside) + 1) if inside == [(layer + 1) % n != 0 for layer in range(len(inside))]]
    return str(periods[0]) if periods else ""


def windows_of(model: Model) -> list[int]:
    """Tokens of the window of each layer, 0 without one."""
    return [model.layer_units[unit].window for unit in model.unit_of_layer]


def _experts_of_model(model: Model) -> Values:
    experts, mtp = model.experts, Values({"--mtp-num-layers": model.mtp_layers or None})
    if experts is None:
        return mtp
    grouped, capacity = experts.groups > 1, experts.capacity_factor
    moe_layers = [model.layer_units[unit].moe for unit in model.unit_of_layer]
    return mtp | {
        "--num-experts": experts.count,
        "--moe-router-topk": experts.topk,
        "--moe-ffn-hidden-size": experts.ffn,
        "--moe-grouped-gemm": True,
        "--moe-router-num-groups": experts.groups if grouped else None,
        "--moe-router-group-topk": experts.topk_groups if grouped else None,
        "--moe-shared-expert-intermediate-size": experts.shared_ffn or None,
        "--moe-shared-expert-gate": experts.shared_gate,
        "--moe-latent-size": experts.latent or None,
        "--moe-layer-freq": pattern(moe_layers) if experts.dense_layers else None,
        "--moe-expert-capacity-factor": None if capacity is None else f"{capacity:g}",
        "--moe-pad-expert-input-to-capacity": bool(experts.pad_to_capacity),
    }


def pattern(inside: Sequence[bool]) -> str:
    """One number per layer, as Megatron-LM's flags of layers take it: ([0]*3+[1]*58)."""
    runs: list[tuple[bool, int]] = []
    for here in inside:
        runs = [*runs[:-1], (here, runs[-1][1] + 1)] if runs and runs[-1][0] == here else [*runs, (here, 1)]
    return "(" + "+".join(f"[{int(here)}]*{count}" for here, count in runs) + ")"


def without_flag(model: Model) -> list[str]:
    """What Megatron-LM has no flag for, one line each."""
    gated, activation = model.gated, model.activation
    biases = (model.projection_bias, model.mlp_bias)
    lacking = {
        f"position: {model.position}": model.position == "alibi",
        f"{'gated ' * gated}{activation}: the flags mean {'SwiGLU or GEGLU' if gated else 'GELU or squared ReLU'}": (
            activation not in (("silu", "gelu") if gated else ("gelu", "squared_relu"))
        ),
        "biases of the attention's output or the MLP alone": len({*biases, model.qkv_bias}) > 1 and any(biases),
        "a norm after the embedding": model.embedding_norm,
        "attention and MLP side by side": model.parallel_residual,
        f"{model.norms_per_layer} norms a layer": model.norms_per_layer != 2,
        "a soft cap on the logits": model.logit_softcap,
        "norms of queries and keys over the whole projection": model.qk_norm_whole,
        "adapters beside frozen weights": model.lora is not None,
        "Kimi delta attention (only in branches of core 0.20)": bool(model.recurrent and model.recurrent.kind == "kda"),
        "compressed sparse attention (DeepSeek-V4)": model.compressed is not None,
        f"{model.residual_streams} residual streams": model.residual_streams > 1,
        "attention in chunks": bool(model.window and model.window.chunked),
        "a bias of the router": bool(model.experts and model.experts.router_bias),
        f"load of the busiest expert rank {model.experts.imbalance if model.experts else 1:g} x the mean": bool(
            model.experts and model.experts.imbalance != 1
        ),
    }
    return [what for what, there in lacking.items() if there]
