"""A plan and its model as launch flags of Megatron-LM (core 0.20): an array for bash, with what has no flag as comments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from sim_core import Model, SpecError
from sweep.exporting.launched import Launched
from sweep.exporting.megatron_rules import refused

Flags = dict[str, tuple[str, ...]]
VERSION: Final = "core 0.20 (d98e8a64, August 2026)"
ARRAY: Final = "MEGATRON_ARGS"
_CP_TYPES: Final = {"all_gather": "allgather"}
_RECIPES: Final = {
    "fp8_delayed": ("--fp8-format", "hybrid", "--fp8-recipe", "delayed"),
    "fp8_tensorwise": ("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise"),
    "fp8_blockwise": ("--fp8-format", "e4m3", "--fp8-recipe", "blockwise"),
    "mxfp8": ("--fp8-format", "e4m3", "--fp8-recipe", "mxfp8"),
    "nvfp4": ("--fp4-format", "e2m1"),
}
_STRATEGIES: Final = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
_DISPATCHERS: Final = ("alltoall", "flex")
_GRADIENT_BYTES: Final = 4
NULL_TOKENIZER_ADDS: Final = 1
"""Megatron's NullTokenizer adds a token for the end of a document."""


def megatron_flags(plan: Launched) -> Flags:
    """Flags and values of a plan, and of its model where it is known. Raises SpecError for what Megatron-LM cannot do."""
    schedule = str(plan.fields["schedule"])
    if schedule != "1f1b":
        raise SpecError(f"plan {plan.number}: Megatron-LM has no schedule {schedule}, only 1f1b (interleaved with vpp > 1)")
    flags: Flags = {} if plan.model is None else model_flags(plan.model, plan.sequence or 0)
    flags["--num-layers"] = (str(plan.number_of("layers")),)
    flags |= {
        "--tensor-model-parallel-size": (str(plan.number_of("tp")),),
        "--pipeline-model-parallel-size": (str(plan.number_of("pp")),),
        "--context-parallel-size": (str(plan.number_of("cp")),),
        "--micro-batch-size": (str(plan.number_of("micro_batch")),),
        "--global-batch-size": (str(plan.number_of("global_batch")),),
    }
    return flags | _pipeline(plan) | _context(plan) | _experts(plan) | _recompute(plan) | _data(plan) | _precision(plan)


def _pipeline(plan: Launched) -> Flags:
    flags: Flags = {}
    pp, vpp = plan.number_of("pp"), plan.number_of("vpp")
    counts = {count for stage in plan.layers for count in stage}
    if len(counts) > 1:
        flags["--pipeline-model-parallel-layout"] = (_layout(plan),)
    elif vpp > 1:
        flags["--num-virtual-stages-per-pipeline-rank"] = (str(vpp),)
    if vpp > 1 and (group := plan.number_of("microbatch_group_size")) not in (0, pp):
        flags["--microbatch-group-size-per-virtual-pipeline-stage"] = (str(group),)
    if vpp > 1 and not plan.fields["overlap_pp"]:
        flags["--no-overlap-p2p-communication"] = ()
    if plan.sequence_parallel:
        flags["--sequence-parallel"] = ()
    if plan.fields["overlap_tp"] and plan.number_of("tp") > 1:
        flags["--tp-comm-overlap"] = ()
    return flags


def _layout(plan: Launched) -> str:
    """The layers of each virtual stage in model order, where they differ."""
    chunks = [stage[chunk] for chunk in range(len(plan.layers[0])) for stage in plan.layers]
    parts = [f"t*{count}" if count > 1 else "t" * count for count in chunks]
    parts[0] = "E" + parts[0]
    mtp = plan.model.mtp_layers if plan.model else 0
    parts[-1] += "m" * mtp + "L"
    return "|".join(parts)


def _context(plan: Launched) -> Flags:
    kind = str(plan.fields["cp_comm_type"])
    cp, a2a = plan.number_of("cp"), plan.number_of("cp_a2a_size")
    flags: Flags = {"--cp-comm-type": (_CP_TYPES.get(kind, kind),)} if cp > 1 else {}
    if cp > 1 and kind == "a2a+p2p":
        flags["--hierarchical-context-parallel-sizes"] = (str(a2a), str(cp // a2a))
    return flags


def _experts(plan: Launched) -> Flags:
    if plan.number_of("ep") == 1 and (plan.model is None or plan.model.experts is None):
        return {}
    dispatcher = str(plan.fields["dispatcher"])
    if dispatcher not in _DISPATCHERS:
        raise SpecError(f"plan {plan.number}: Megatron-LM has no dispatcher {dispatcher}, only {', '.join(_DISPATCHERS)}")
    flags: Flags = {
        "--expert-model-parallel-size": (str(plan.number_of("ep")),),
        "--expert-tensor-parallel-size": (str(plan.number_of("tp") if plan.experts_with_tp else 1),),
        "--moe-token-dispatcher-type": (dispatcher,),
    }
    if dispatcher == "flex":
        flags["--moe-flex-dispatcher-backend"] = ("deepep",)
    if plan.fields["overlap_ep"] and plan.number_of("ep") > 1:
        flags["--overlap-moe-expert-parallel-comm"] = ()
    if plan.fields.get("overlap_shared_experts"):
        flags["--moe-shared-expert-overlap"] = ()
    return flags


def _recompute(plan: Launched) -> Flags:
    kind, _, layers = str(plan.fields["checkpointing"]).partition(":")
    if kind == "selective":
        return {"--recompute-granularity": ("selective",)}
    if kind in ("none", "file"):
        return {}
    method = {"full": "uniform", "every": "uniform", "block": "block"}.get(kind)
    if method is None:  # modules by Megatron's names
        return {"--recompute-granularity": ("selective",), "--recompute-modules": tuple(kind.split("+"))}
    return {"--recompute-granularity": ("full",), "--recompute-method": (method,), "--recompute-num-layers": (layers or "1",)}


def _data(plan: Launched) -> Flags:
    flags: Flags = {}
    ranks = plan.number_of("dp") * plan.number_of("cp")
    if plan.sharding == "optimizer":
        flags["--use-distributed-optimizer"] = ()
        shard = plan.number_of("dp_shard") or ranks
        if shard < ranks:
            flags["--num-distributed-optimizer-instances"] = (str(ranks // shard),)
    elif plan.sharding in _STRATEGIES:
        flags |= {
            "--use-megatron-fsdp": (),
            "--data-parallel-sharding-strategy": (_STRATEGIES[plan.sharding],),
            "--ckpt-format": ("fsdp_dtensor",),
        }
    if plan.fields["overlap_grad"]:
        flags["--overlap-grad-reduce"] = ()
    if plan.fields["overlap_param"] and plan.sharding != "none":
        flags["--overlap-param-gather"] = ()
    if plan.number_of("bucket_bytes"):
        flags["--ddp-bucket-size"] = (str(plan.number_of("bucket_bytes") // _GRADIENT_BYTES),)
    if plan.reduces_in_bf16:
        flags["--grad-reduce-in-bf16"] = ()
    return flags


def _precision(plan: Launched) -> Flags:
    name = str(plan.fields["precision"])
    if name == "fp16":
        return {"--fp16": ()}
    words = _RECIPES.get(name, ())
    return {"--bf16": ()} | {flag: (value,) for flag, value in zip(words[::2], words[1::2], strict=True)}


def not_said(plan: Launched) -> list[str]:
    """What the plan or its model says and no flag does, one line each."""
    fields = plan.fields
    found = [] if plan.model is None else [f"model: {what}" for what in without_flag(plan.model)]
    if plan.model is None:
        found.append("model: its sizes, which the workload file does not hold (workload.model adds them)")
    told = {
        f"device_speed {fields['device_speed']}": fields["device_speed"] != 1.0,
        f"straggler_factor {fields['straggler_factor']} on stage {fields['straggler_stage']}": fields["straggler_factor"]
        != 1.0,
        "post_validation": bool(fields["post_validation"]),
        f"dp_shard {fields['dp_shard']}: replicas of sharded groups": (
            plan.sharding in _STRATEGIES and 0 < plan.number_of("dp_shard") < plan.number_of("dp") * plan.number_of("cp")
        ),
        f"prefetch_layers {fields['prefetch_layers']}": plan.sharding == "parameters" and fields["prefetch_layers"] != 1,
        "reshard_after_forward: false": plan.sharding == "parameters" and not fields["reshard_after_forward"],
        f"stack {plan.stack}: not Megatron-LM": bool(plan.stack) and not plan.stack.startswith(("megatron", "nemo")),
        "checkpointing: file": fields["checkpointing"] == "file",
        "fidelity: simai": fields["fidelity"] == "simai",
    }
    found += [what for what, there in told.items() if there]
    return found + [f"{key} {value}" for key, value in fields.items() if key.startswith("hardware.")]


def megatron_text(plan: Launched) -> str:
    """A file for bash that sets the array of flags. Raises SpecError if Megatron-LM would refuse them."""
    flags = megatron_flags(plan)
    world, per_node = plan.number_of("all_gpus"), plan.gpus_per_node
    broken = refused(flags, world)
    if broken:
        raise SpecError(f"plan {plan.number}: Megatron-LM refuses it: {'; '.join(broken)}")
    lines = [
        f"# Plan {plan.number} of the sweep {plan.name}: {world} x {plan.fields['hardware']}, simulated step "
        f"{plan.row['step_time_s']:.4g} s.",
        f"# Flags of Megatron-LM {VERSION}, by `sweep export`; older and newer versions may differ.",
        f"# torchrun --nproc-per-node {min(per_node, world)} --nnodes {-(-world // per_node)} pretrain_gpt.py "
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
        lines += ["# Megatron-FSDP refuses 1", "unset CUDA_DEVICE_MAX_CONNECTIONS"]
    rows = [" ".join([flag, *(shlex.quote(value) for value in values)]) for flag, values in flags.items()]
    return "\n".join([*lines, f"{ARRAY}=(", *(f"    {row}" for row in rows), ")", ""])


def model_flags(model: Model, sequence: int) -> Flags:
    """The flags that describe a model, with their values."""
    flags: Flags = {
        "--num-layers": (str(model.layers),),
        "--hidden-size": (str(model.hidden),),
        "--num-attention-heads": (str(model.heads),),
        "--ffn-hidden-size": (str(model.ffn or (model.experts.ffn if model.experts else 0)),),
        "--seq-length": (str(sequence),),
        "--max-position-embeddings": (str(model.positions or sequence),),
        "--normalization": ("RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",),
        "--hidden-dropout": (f"{model.hidden_dropout:g}",),
        "--attention-dropout": (f"{model.attention_dropout:g}",),
        "--tokenizer-type": ("NullTokenizer",),
        "--vocab-size": (str(model.vocabulary - NULL_TOKENIZER_ADDS),),
        "--make-vocab-size-divisible-by": (str(model.vocabulary_multiple),),
    }
    position = {"rotary": "rope", "learned": "learned_absolute"}.get(model.position, "none")
    flags["--position-embedding-type"] = (position,)
    switches = {
        "--swiglu": model.gated and model.activation == "silu",
        "--quick-geglu": model.gated and model.activation == "gelu",
        "--squared-relu": not model.gated and model.activation == "squared_relu",
        "--disable-bias-linear": not (model.qkv_bias and model.projection_bias and model.mlp_bias),
        "--add-qkv-bias": model.qkv_bias and not model.projection_bias,
        "--qk-layernorm": model.qk_norm,
        "--untie-embeddings-and-output-weights": not model.tied,
    }
    flags |= {flag: () for flag, wanted in switches.items() if wanted}
    if model.attention_sinks:
        flags["--softmax-type"] = ("learnable",)
    return flags | _attention(model) | _experts_of_model(model)


def _attention(model: Model) -> Flags:
    flags: Flags = {}
    mla = model.mla
    if mla is not None:
        flags["--multi-latent-attention"] = ()
        if mla.q_rank is not None:
            flags["--q-lora-rank"] = (str(mla.q_rank),)
        flags |= {
            "--kv-lora-rank": (str(mla.kv_rank),),
            "--qk-head-dim": (str(mla.nope_head_dim),),
            "--qk-pos-emb-head-dim": (str(mla.rope_head_dim),),
            "--v-head-dim": (str(mla.v_head_dim),),
        }
    else:
        flags["--kv-channels"] = (str(model.head_dim),)
        if model.kv_heads != model.heads:
            flags |= {"--group-query-attention": (), "--num-query-groups": (str(model.kv_heads),)}
    if model.window is not None:
        flags["--window-size"] = (f"{model.window.tokens - 1},0",)  # a token sees itself and so many before it
        inside = [unit_window > 0 for unit_window in windows_of(model)]
        if not all(inside):
            flags["--window-attn-skip-freq"] = (pattern(inside),)
    return flags


def windows_of(model: Model) -> list[int]:
    """Tokens of the window of each layer, 0 without one."""
    return [model.layer_units[unit].window for unit in model.unit_of_layer]


def _experts_of_model(model: Model) -> Flags:
    experts = model.experts
    flags: Flags = {"--mtp-num-layers": (str(model.mtp_layers),)} if model.mtp_layers else {}
    if experts is None:
        return flags
    flags |= {
        "--num-experts": (str(experts.count),),
        "--moe-router-topk": (str(experts.topk),),
        "--moe-ffn-hidden-size": (str(experts.ffn),),
        "--moe-grouped-gemm": (),
    }
    if experts.groups > 1:
        flags["--moe-router-num-groups"] = (str(experts.groups),)
        flags["--moe-router-group-topk"] = (str(experts.topk_groups),)
    if experts.shared_ffn:
        flags["--moe-shared-expert-intermediate-size"] = (str(experts.shared_ffn),)
    if experts.dense_layers:
        flags["--moe-layer-freq"] = (pattern([model.layer_units[unit].moe for unit in model.unit_of_layer]),)
    if experts.capacity_factor is not None:
        flags["--moe-expert-capacity-factor"] = (f"{experts.capacity_factor:g}",)
    if experts.pad_to_capacity:
        flags["--moe-pad-expert-input-to-capacity"] = ()
    return flags


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
    found = {
        f"position: {model.position}": model.position == "alibi",
        f"{'gated ' * gated}{activation}: the flags mean {'SwiGLU or GEGLU' if gated else 'GELU or squared ReLU'}": (
            activation not in (("silu", "gelu") if gated else ("gelu", "squared_relu"))
        ),
        "biases of the attention's output or the MLP alone": len({*biases, model.qkv_bias}) > 1 and any(biases),
        "a norm after the embedding": model.embedding_norm,
        "attention and MLP side by side": model.parallel_residual,
        f"{model.norms_per_layer} norms a layer": model.norms_per_layer != 2,
        "a soft cap on the logits": model.logit_softcap,
        "a bias of the router": bool(model.experts and model.experts.router_bias),
        f"load of the busiest expert rank {model.experts.imbalance if model.experts else 1:g} x the mean": bool(
            model.experts and model.experts.imbalance != 1
        ),
    }
    return [what for what, there in found.items() if there]
