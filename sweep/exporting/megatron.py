"""One plan and its model as launch flags of Megatron-LM (core 0.20): an array for bash, with what has no flag as comments."""

import shlex

from sim_core import Model, SpecError, Words, megatron_arguments
from sweep.frameworks import megatron, megatron_choices as choices
from sweep.frameworks.plan import Launched

VERSION = "core 0.20 (d98e8a64, August 2026)"
ARRAY = "MEGATRON_ARGS"
LARGEST_HOST = 8
"""GPUs that one operating system has at most: a larger NVLink domain is a rack of trays, of which torchrun starts one each."""
TRAY = 4
"""GPUs of a tray of GB200 and GB300 NVL72 (NVIDIA's specifications)."""
NAMED = {each.field for each in megatron.ARGUMENTS} | {
    "schedule", "sequence", "reshard_after_forward", "prefetch_layers", "straggler_factor", "straggler_stage",
}  # fmt: skip
"""Fields with a flag, or with a comment where they have none."""


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
            plan.sharding in choices.STRATEGIES and 0 < plan["dp_shard"] < plan["dp"] * plan["cp"]
        ),
        f"prefetch_layers {fields['prefetch_layers']}": plan.sharding == "parameters" and fields["prefetch_layers"] != 1,
        "reshard_after_forward: false": plan.sharding == "parameters" and not fields["reshard_after_forward"],
        f"stack {plan.stack}: not Megatron-LM": bool(plan.stack) and not plan.stack.startswith(("megatron", "nemo")),
        "checkpointing: file": fields["checkpointing"] == "file",
    }
    return [f"model: {what}" for what in missing] + plan.besides(told, NAMED)


def flags_text(plan: Launched) -> str:
    """The flags in one line. Raises SpecError if Megatron-LM would refuse them."""
    return " ".join(_rows(_accepted(plan)))


def _accepted(plan: Launched) -> dict[str, Words]:
    """The flags. Raises SpecError if Megatron-LM would refuse them."""
    flags = megatron.flags_of_plan(plan)
    if broken := megatron.refused(flags, plan["all_gpus"]):
        raise SpecError(f"plan {plan.number}: Megatron-LM refuses it: {'; '.join(broken)}")
    return flags


def _rows(flags: dict[str, Words]) -> list[str]:
    return [" ".join([flag, *(shlex.quote(value) for value in values)]) for flag, values in flags.items()]


def megatron_text(plan: Launched) -> str:
    """A file for bash that sets the array of flags. Raises SpecError if Megatron-LM would refuse them."""
    flags = _accepted(plan)
    world = plan["all_gpus"]
    host = plan.gpus_per_node if plan.gpus_per_node <= LARGEST_HOST else TRAY
    lines = [
        f"# Plan {plan.number} of the sweep {plan.name}: {world} x {plan['hardware']}, simulated step "
        f"{plan.row['step_time_s']:.4g} s.",
        f"# Flags of Megatron-LM {VERSION}, by `sweep export`; older and newer versions may differ.",
        f"# torchrun --nproc-per-node {min(host, world)} --nnodes {-(-world // host)} "
        f"pretrain_{'hybrid' if megatron_arguments.PATTERN.flag in flags else 'gpt'}.py "
        f'"${{{ARRAY}[@]}}" ...',
        "# Yours to add: data, tokenizer (NullTokenizer here stands for the size of the vocabulary), learning rate, "
        "checkpoints, iterations;",
        "# and what costs no time but belongs to the model: --rotary-base (Megatron's default is 10000), --norm-epsilon, "
        "initialisation.",
        *(f"# Without a flag: {line}" for line in not_said(plan)),
    ]
    if choices.MEGATRON_FSDP.flag in flags:
        lines += ["# Megatron-FSDP refuses CUDA_DEVICE_MAX_CONNECTIONS=1", "unset CUDA_DEVICE_MAX_CONNECTIONS"]
    elif plan["tp"] > 1 or plan["cp"] > 1:
        lines += ["# needed before Blackwell for tp or cp > 1", "export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    return "\n".join([*lines, f"{ARRAY}=(", *(f"    {row}" for row in _rows(flags)), ")", ""])


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
        "a bias of the head": model.head_bias,
        "queries through a narrow projection without mla": model.q_rank is not None,
        "state-space mixers beside attention": bool(model.recurrent and model.recurrent.beside),
        f"norm: {model.norm}": model.norm not in ("layernorm", "rmsnorm"),
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
