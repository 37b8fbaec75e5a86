"""A plan as launch flags of Megatron-LM (core 0.20): an array for bash, with what has no flag as comments."""

from __future__ import annotations

import shlex
from typing import Final

from sim_core import SpecError
from sweep.exporting.launched import Launched
from sweep.exporting.megatron_model import Flags, model_flags, without_flag
from sweep.exporting.megatron_rules import refused

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
