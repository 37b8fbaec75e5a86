"""Megatron-LM's arguments of experts, recompute, sharding, precision, optimizer; what it refuses of them (core 0.20)."""

import re
from collections.abc import Collection

from sim_core import (
    OF_NUMBER,
    OF_SWITCH,
    OFF,
    OFFLOAD_MODULES as OFFLOAD_NAMES,
    Argument,
    Dump,
    Rules,
    SpecError,
    Words,
    megatron_arguments as model,
)
from sweep.frameworks.deepspeed import DEEPSPEED, ZERO, ZERO_STAGE, part_in
from sweep.frameworks.megatron_sizes import TP, Launch, has_experts
from sweep.frameworks.plan import Launched

Choice = Argument[Launched]
DISPATCHERS = ("alltoall", "flex")
FSDP = {"optim": "optimizer", "optim_grads": "gradients", "optim_grads_params": "parameters", "no_shard": "none"}
STRATEGIES = {"gradients": "optim_grads", "parameters": "optim_grads_params"}
FSDP_CHECKPOINTS = "fsdp_dtensor"
RECIPES = {"delayed": "fp8_delayed", "tensorwise": "fp8_tensorwise", "blockwise": "fp8_blockwise", "mxfp8": "mxfp8"}
"""Recipes of 8 bits, and our precisions."""
_E4M3 = ("fp8_blockwise", "mxfp8")
"""Precisions whose gradients have the format of weights."""
SUM_BYTES = 4
"""Of an element of the gradients that a bucket holds."""
OPTIMIZERS = {"adam": "adamw", "muon": "muon", "dist_muon": "muon", "sgd": "sgd_momentum"}
"""Optimizers of Megatron-LM; `dist_muon` is what `muon` with the distributed optimizer was called before core 0.17."""
_WRITTEN_OPTIMIZERS = {"adamw": None, "muon": "muon", "sgd_momentum": "sgd"}  # None: Megatron-LM's default
CORE_ATTENTION = "core_attn"


def _known(plan: Launched, field: str, words: Collection[str]) -> str:
    """The word of a field, if Megatron-LM has it. Raises SpecError."""
    word = str(plan[field])
    if word not in words:
        raise SpecError(f"plan {plan.number}: Megatron-LM has no {field} {word}, only {', '.join(words)}")
    return word


def _refuses_overlap_ep(r: Launch) -> Rules:
    flag, there, shared = OVERLAP_EP.flag, r.has(OVERLAP_EP), r.has(OVERLAP_SHARED)
    gathers = r.word(DISPATCHER, "allgather") == "allgather"
    return (
        (shared and gathers, f"{OVERLAP_SHARED.flag} needs the dispatcher alltoall or flex"),
        (there and shared, f"{flag} does not go with {OVERLAP_SHARED.flag}"),
        (there and r.pp > 1 and r.vpp == 1, f"{flag} with pp > 1 needs virtual stages"),
        (there and r.ep == 1, f"{flag} needs ep > 1"),
        (there and r.word(GRANULARITY, "") == "full", f"{flag} does not go with full recompute"),
        (there and gathers, f"{flag} needs the dispatcher alltoall or flex"),
        (there and r.number(model.MTP, 0) > 1, f"{flag} allows one {model.MTP.flag}"),
    )


DISPATCHER: Choice = Choice(
    "moe_token_dispatcher_type", field="dispatcher",
    read=lambda dump: "flex" if DEEPEP.on(dump) else given if (given := DISPATCHER.word(dump)) in DISPATCHERS else None,
    write=lambda plan: _known(plan, "dispatcher", DISPATCHERS) if has_experts(plan) else None,
)  # fmt: skip
FLEX_BACKEND = Choice(
    "moe_flex_dispatcher_backend", field="dispatcher",
    write=lambda plan: "deepep" if has_experts(plan) and plan["dispatcher"] == "flex" else None,
)  # fmt: skip
DEEPEP: Choice = Choice("moe_enable_deepep", OF_SWITCH)
OVERLAP_EP: Choice = Choice(
    "overlap_moe_expert_parallel_comm", OF_SWITCH, "overlap_ep", read=lambda dump: OVERLAP_EP.on(dump) or None,
    write=lambda plan: bool(plan["overlap_ep"]) and plan["ep"] > 1, refuses=_refuses_overlap_ep,
)  # fmt: skip
OVERLAP_SHARED: Choice = Choice(
    "moe_shared_expert_overlap", OF_SWITCH, "overlap_shared_experts", read=lambda dump: OVERLAP_SHARED.on(dump) or None,
    write=lambda plan: has_experts(plan) and bool(plan.fields.get("overlap_shared_experts")),
)  # fmt: skip


def checkpointing(dump: Dump) -> str:
    """What the backward computes again, by the words of `checkpointing`."""
    granularity = GRANULARITY.word(dump, "None")
    told = any(name in dump for name in GRANULARITY.names)  # null: nothing runs again, whatever the method
    if ACTIVATIONS.on(dump) and granularity in OFF:
        granularity = "selective"
    if granularity == "full" or CHECKPOINT.on(dump):
        number = 1 if (stated := LAYERS.whole(dump)) is None else stated
        if METHOD.word(dump, OLD_METHOD.word(dump)) == "block":
            return f"block:{number}" if number else "none"
        return "full" if number == 1 else f"every:{number}"
    if granularity == "selective":
        modules = [module for module in re.findall(r"\w+", MODULES.word(dump)) if module != "None"]
        return "selective" if modules in ([], [CORE_ATTENTION]) else "+".join(modules)
    return "full" if OLD_METHOD.word(dump, "None") not in OFF and not told else "none"


def _recompute(plan: Launched) -> tuple[str, str, str, Words | None]:
    """Granularity, method, layers and modules of a plan; empty: left out."""
    kind, _, layers = plan["checkpointing"].partition(":")
    if kind in ("none", "file"):
        return "", "", "", None
    if kind in ("full", "every", "block"):
        return "full", "block" if kind == "block" else "uniform", layers or "1", None
    modules = tuple(kind.split("+"))  # by Megatron's names
    if "mlp_act" in modules:
        raise SpecError(f"plan {plan.number}: Megatron-LM runs a dense mlp again as a whole, not its activation (mlp_act)")
    return "selective", "", "", None if kind == "selective" else modules


def _refuses_full(r: Launch) -> Rules:
    kind, flag = r.word(GRANULARITY, ""), GRANULARITY.flag
    return (
        (kind == "full" and not r.has(METHOD), f"{flag} full needs {METHOD.flag}"),
        (
            kind == "full" and not 0 < r.number(LAYERS, 0) <= max(r.layers // r.pp, 1),
            f"{LAYERS.flag} must be from 1 to the layers of a stage",
        ),
        (kind == "selective" and (r.has(METHOD) or r.has(LAYERS)), f"{flag} selective takes no {METHOD.flag}"),
    )


def _refuses_modules(r: Launch) -> Rules:
    flag, modules = MODULES.flag, r.words(MODULES)
    delayed = r.has(FP8) and r.word(FP8_RECIPE, "delayed") == "delayed"
    return (
        ("moe_act" in modules and not r.has(model.GROUPED_GEMM), f"{flag} moe_act needs {model.GROUPED_GEMM.flag}"),
        ("mla_up_proj" in modules and not r.has(model.MLA), f"{flag} mla_up_proj needs {model.MLA.flag}"),
        (
            "shared_experts" in modules and r.has(OVERLAP_SHARED),
            f"{flag} shared_experts does not go with {OVERLAP_SHARED.flag}",
        ),
        ("moe" in modules and r.has(OVERLAP_EP), f"{flag} moe does not go with {OVERLAP_EP.flag}"),
        (
            bool({"moe_act", "layernorm"} & {*modules}) and delayed,
            f"{flag} moe_act and layernorm do not go with {FP8_RECIPE.flag} delayed",
        ),
    )


GRANULARITY: Choice = Choice(
    "recompute_granularity", field="checkpointing", leaves_open=True, read=checkpointing,
    write=lambda plan: _recompute(plan)[0] or None, refuses=_refuses_full,
)  # fmt: skip
METHOD = Choice("recompute_method", field="checkpointing", write=lambda plan: _recompute(plan)[1] or None)
LAYERS = Choice(
    "recompute_num_layers", OF_NUMBER, "checkpointing", older=("checkpoint_num_layers",),
    write=lambda plan: _recompute(plan)[2] or None,
)  # fmt: skip
MODULES = Choice(
    "recompute_modules", field="checkpointing", write=lambda plan: _recompute(plan)[3], refuses=_refuses_modules
)  # fmt: skip
ACTIVATIONS, CHECKPOINT = Choice("recompute_activations", OF_SWITCH), Choice("checkpoint_activations", OF_SWITCH)
OLD_METHOD = Choice("activations_checkpoint_method")


def sharding(dump: Dump) -> str | None:
    """What data-parallel ranks share, by the words of `sharding`; None where the version of Megatron-LM decides it."""
    stage = ZERO_STAGE.whole(dump)
    if DEEPSPEED.on(dump) and stage is not None and stage < len(ZERO):
        return ZERO[stage]
    if MEGATRON_FSDP.on(dump):
        return FSDP.get(STRATEGY.word(dump))
    if TORCH_FSDP.on(dump):
        return "parameters"
    return "optimizer" if DISTRIBUTED.on(dump) or OPTIMIZER.word(dump) == "dist_muon" else "none"


def _instances(plan: Launched) -> int | None:
    """Replicas of groups that share the optimizer."""
    ranks = plan["dp"] * plan["cp"]
    shard = plan["dp_shard"] or ranks
    return ranks // shard if plan.sharding == "optimizer" and shard < ranks else None


def _overlaps(dump: Dump, switch: Choice, *strategies: str) -> bool:
    """Whether a collective overlaps: as the switch says, or as Megatron's FSDP has it (MegatronFSDP.__init__)."""
    return switch.on(dump) or (MEGATRON_FSDP.on(dump) and STRATEGY.word(dump) in strategies)


def _shares(r: Launch) -> bool:
    return r.has(DISTRIBUTED) or r.has(MEGATRON_FSDP)


DISTRIBUTED = Choice(
    "use_distributed_optimizer", OF_SWITCH, "sharding", read=sharding, write=lambda plan: plan.sharding == "optimizer"
)  # fmt: skip
INSTANCES: Choice = Choice(
    "num_distributed_optimizer_instances", OF_NUMBER, "dp_shard", write=_instances,
    refuses=lambda r: (
        (r.dp * r.cp % r.number(INSTANCES, 1), f"{INSTANCES.flag} must divide dp x cp"),
    ),
)  # fmt: skip
MEGATRON_FSDP: Choice = Choice(
    "use_megatron_fsdp", OF_SWITCH, older=("use_custom_fsdp",), write=lambda plan: plan.sharding in STRATEGIES,
    refuses=lambda r: (
        (
            r.has(MEGATRON_FSDP) and r.word(CHECKPOINT_FORMAT, "torch_dist") != FSDP_CHECKPOINTS,
            f"{MEGATRON_FSDP.flag} needs {CHECKPOINT_FORMAT.flag} {FSDP_CHECKPOINTS}",
        ),
    ),
)  # fmt: skip
STRATEGY = Choice(
    "data_parallel_sharding_strategy", field="sharding", leaves_open=True, write=lambda plan: STRATEGIES.get(plan.sharding)
)  # fmt: skip
CHECKPOINT_FORMAT: Choice = Choice("ckpt_format", write=lambda plan: FSDP_CHECKPOINTS if plan.sharding in STRATEGIES else None)
TORCH_FSDP = Choice("use_torch_fsdp2", OF_SWITCH)
OVERLAP_GRAD: Choice = Choice(
    "overlap_grad_reduce", OF_SWITCH, "overlap_grad", read=lambda dump: _overlaps(dump, OVERLAP_GRAD, *STRATEGIES.values()),
    write=lambda plan: bool(plan["overlap_grad"]),
)  # fmt: skip
OVERLAP_PARAM: Choice = Choice(
    "overlap_param_gather", OF_SWITCH, "overlap_param",
    read=lambda dump: _overlaps(dump, OVERLAP_PARAM, STRATEGIES["parameters"]),
    write=lambda plan: bool(plan["overlap_param"]) and plan.sharding != "none",
    refuses=lambda r: (
        (r.has(OVERLAP_PARAM) and not _shares(r), f"{OVERLAP_PARAM.flag} needs {DISTRIBUTED.flag}"),
        (r.has(OVERLAP_PARAM) and not r.has(OVERLAP_GRAD), f"{OVERLAP_PARAM.flag} needs {OVERLAP_GRAD.flag}"),
    ),
)  # fmt: skip
BUCKET: Choice = Choice(
    "ddp_bucket_size", OF_NUMBER, "bucket_bytes",
    read=lambda dump: elements * SUM_BYTES if (elements := BUCKET.whole(dump)) else None,
    write=lambda plan: plan["bucket_bytes"] // SUM_BYTES or None,
)  # fmt: skip
REDUCE_IN_BF16: Choice = Choice(
    "grad_reduce_in_bf16", OF_SWITCH, "gradient_precision", read=lambda dump: "bf16" if REDUCE_IN_BF16.on(dump) else None,
    write=lambda plan: plan.reduces_in_bf16,
)  # fmt: skip


def precision(dump: Dump) -> str:
    """The precision of training, by the words of `precision`."""
    if FP8.word(dump, "None") not in OFF:
        return RECIPES.get(FP8_RECIPE.word(dump), "fp8_delayed")
    if FP4.word(dump, "None") not in OFF:
        return "nvfp4"
    return "bf16" if BF16.on(dump) else "fp16" if FP16.on(dump) else "fp32"


BF16: Choice = Choice(
    "bf16", OF_SWITCH, write=lambda plan: plan["precision"] != "fp16",
    refuses=lambda r: ((r.has(BF16) and r.has(FP16), f"{BF16.flag} and {FP16.flag} exclude each other"),),
)  # fmt: skip
FP16: Choice = Choice("fp16", OF_SWITCH, write=lambda plan: plan["precision"] == "fp16")
FP8: Choice = Choice(
    "fp8_format", field="precision", older=("fp8",), read=precision,
    write=lambda plan: ("e4m3" if plan["precision"] in _E4M3 else "hybrid") if plan["precision"] in RECIPES.values() else None,
    refuses=lambda r: ((r.has(FP8) and r.has(FP4), f"{FP8.flag} and {FP4.flag} exclude each other"),),
)  # fmt: skip
FP8_RECIPE = Choice(
    "fp8_recipe", field="precision", write=lambda plan: {ours: name for name, ours in RECIPES.items()}.get(plan["precision"])
)  # fmt: skip
FP4: Choice = Choice("fp4_format", older=("fp4",), write=lambda plan: "e2m1" if plan["precision"] == "nvfp4" else None)


def _offloaded(dump: Dump) -> str | float | None:
    """What layers send to the host: modules; or, of whole layers, their share."""
    if FINE_OFFLOAD.on(dump):
        modules = re.findall(r"\w+", OFFLOAD_MODULES.word(dump))
        return "+".join(modules) if modules and {*modules} <= {*OFFLOAD_NAMES} else None
    layers, sent = model.LAYERS.whole(dump), OFFLOAD_LAYERS.whole(dump)
    return sent / layers if layers and sent and sent <= layers else None


def _modules_sent(plan: Launched) -> Words:
    """Modules whose inputs go to the host. Raises SpecError for a share."""
    sent = str(plan.fields.get("activation_offload", "0"))
    if sent[0].isdigit() and float(sent) > 0:
        raise SpecError(
            f"plan {plan.number}: Megatron-LM sends modules to the host, such as {OFFLOAD_NAMES[2]}, not {sent} of a layer"
        )
    return () if sent[0].isdigit() else tuple(sent.split("+"))


def _updates_on_host(plan: Launched) -> float:
    return float(plan.fields.get("optimizer_offload", 0.0))


def _fraction_in(dump: Dump) -> float | None:
    """The part of the optimizer that the host has; all of it where no part is stated."""
    if not OPTIMIZER_OFFLOAD.on(dump):
        return None
    return part_in(FRACTION.word(dump, "1"))


def open_notes(dump: Dump) -> list[str]:
    """What is said of sharding and of the host and left open, one line each."""
    names = [each.name for each in (FINE_OFFLOAD, CPU_OFFLOAD) if each.on(dump)]
    versions = MEGATRON_FSDP.on(dump) and STRATEGY.word(dump) not in FSDP
    return [f"{MEGATRON_FSDP.name} without {STRATEGY.name}: versions differ, so sharding is left open"] * versions + [
        f"{' and '.join(names)}: of what, is not told in words that we know"
    ] * (bool(names) and _offloaded(dump) is None)


FINE_OFFLOAD: Choice = Choice(
    "fine_grained_activation_offloading", OF_SWITCH, "activation_offload", read=_offloaded,
    write=lambda plan: bool(_modules_sent(plan)),
    refuses=lambda r: (
        (r.has(FINE_OFFLOAD) and r.has(CPU_OFFLOAD), f"{FINE_OFFLOAD.flag} and {CPU_OFFLOAD.flag} exclude each other"),
        (r.has(FINE_OFFLOAD) and not r.words(OFFLOAD_MODULES), f"{FINE_OFFLOAD.flag} needs {OFFLOAD_MODULES.flag}"),
    ),
)  # fmt: skip
OFFLOAD_MODULES: Choice = Choice(
    "offload_modules", field="activation_offload", leaves_open=True, write=lambda plan: _modules_sent(plan) or None,
    refuses=lambda r: (
        (
            "attn_proj" in r.words(OFFLOAD_MODULES) and CORE_ATTENTION not in r.words(OFFLOAD_MODULES),
            f"{OFFLOAD_MODULES.flag} attn_proj needs {CORE_ATTENTION}",
        ),
    ),
)  # fmt: skip
CPU_OFFLOAD: Choice = Choice(
    "cpu_offloading", OF_SWITCH,
    refuses=lambda r: (
        (r.has(CPU_OFFLOAD) and r.pp > 1, f"{CPU_OFFLOAD.flag} needs pp 1"),
        (r.has(CPU_OFFLOAD) and r.word(GRANULARITY, ""), f"{CPU_OFFLOAD.flag} does not go with {GRANULARITY.flag}"),
    ),
)  # fmt: skip
OFFLOAD_LAYERS = Choice("cpu_offloading_num_layers", OF_NUMBER, "activation_offload", leaves_open=True)
OPTIMIZER_OFFLOAD: Choice = Choice(
    "optimizer_cpu_offload", OF_SWITCH, "optimizer_offload", older=("cpu_optimizer",), read=_fraction_in,
    write=lambda plan: _updates_on_host(plan) > 0,
    refuses=lambda r: (
        (r.has(OPTIMIZER_OFFLOAD) and not r.has(PRECISION_AWARE), f"{OPTIMIZER_OFFLOAD.flag} needs {PRECISION_AWARE.flag}"),
        (r.has(OPTIMIZER_OFFLOAD) and not _shares(r), f"{OPTIMIZER_OFFLOAD.flag} needs {DISTRIBUTED.flag}"),
    ),
)  # fmt: skip
FRACTION = Choice(
    "optimizer_offload_fraction", field="optimizer_offload", leaves_open=True,
    write=lambda plan: f"{_updates_on_host(plan):g}" if _updates_on_host(plan) else None,
)  # fmt: skip
PRECISION_AWARE: Choice = Choice("use_precision_aware_optimizer", OF_SWITCH, write=lambda plan: _updates_on_host(plan) > 0)
OVERLAP_OFFLOAD: Choice = Choice(
    "overlap_cpu_optimizer_d2h_h2d", OF_SWITCH, "overlap_offload",
    read=lambda dump: OVERLAP_OFFLOAD.on(dump) if OPTIMIZER_OFFLOAD.on(dump) else None,
    write=lambda plan: _updates_on_host(plan) > 0 and bool(plan.fields.get("overlap_offload", True)),
)  # fmt: skip


def _optimizer_in(dump: Dump) -> str | None:
    """The optimizer, where it is not AdamW."""
    name = OPTIMIZERS.get(OPTIMIZER.word(dump, "adam"), "adamw")
    return None if name == "adamw" else name


MAIN_PARAMS, EXP_AVG, EXP_AVG_SQ = Choice("main_params_dtype"), Choice("exp_avg_dtype"), Choice("exp_avg_sq_dtype")
"""Types of what Adam keeps, where it is aware of them."""
OPTIMIZER: Choice = Choice(
    "optimizer", field="optimizer", read=_optimizer_in,
    write=lambda plan: _WRITTEN_OPTIMIZERS[_known(plan, "optimizer", _WRITTEN_OPTIMIZERS)],
    refuses=lambda r: (
        (r.word(OPTIMIZER, "adam") == "sgd" and _shares(r), f"{OPTIMIZER.flag} sgd does not go with {DISTRIBUTED.flag}"),
    ),
)  # fmt: skip
MUON_TP: Choice = Choice(
    "muon_tp_mode", field="muon_tp_mode",
    read=lambda dump: (
        MUON_TP.word(dump, "blockwise") if _optimizer_in(dump) == "muon" and (TP.whole(dump) or 1) > 1 else None
    ),
    write=lambda plan: plan["muon_tp_mode"] if plan["optimizer"] == "muon" and plan["tp"] > 1 else None,
)  # fmt: skip
MUON_UNALIGNED: Choice = Choice(
    "no_use_layer_wise_param_layout", OF_SWITCH, "muon_aligned",
    read=lambda dump: False if _optimizer_in(dump) == "muon" and MUON_UNALIGNED.on(dump) else None,
    write=lambda plan: (
        plan["optimizer"] == "muon" and plan.sharding == "optimizer" and not plan["muon_aligned"]
    ),
)  # fmt: skip
