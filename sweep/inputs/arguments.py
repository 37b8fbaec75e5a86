"""The plan in Megatron-LM's arguments, by their names: as a run dumps them, a script gives them, or a recipe has them."""

import re
from collections.abc import Mapping
from typing import Final

Value = int | float | str | bool
Plan = dict[str, Value | None]

PRECISIONS: Final = {"delayed": "fp8_delayed", "tensorwise": "fp8_tensorwise", "blockwise": "fp8_blockwise", "mxfp8": "mxfp8"}
ZERO: Final = {"0": "none", "1": "optimizer", "2": "gradients", "3": "parameters"}
FSDP: Final = {"optim": "optimizer", "optim_grads": "gradients", "optim_grads_params": "parameters", "no_shard": "none"}
OFF: Final = ("", "None", "False")
SUM_BYTES: Final = 4
"""Of an element of the gradients that a bucket holds."""
LAYOUT_PART: Final = re.compile(r"\(([^()]*)\)\*?x?(\d{1,4})|([a-zA-Z|])\*(\d{1,4})")
CP_TYPES: Final = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather", "all_gather": "all_gather", "a2a+p2p": "a2a+p2p"}
MODULES: Final = "core_attn"


def whole(values: Mapping[str, str], name: str) -> int | None:
    """A whole number; None if it is not there or no such number."""
    text = values.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def is_on(values: Mapping[str, str], *names: str) -> bool:
    """Whether one of some switches is on."""
    return any(values.get(name) == "True" for name in names)


def sizes(values: Mapping[str, str]) -> Plan:
    """The parallel sizes and the batch; those of a dump or script that does not give them are Megatron-LM's defaults."""
    tp = whole(values, "tensor_model_parallel_size") or whole(values, "model_parallel_size")
    pp = whole(values, "pipeline_model_parallel_size") or 1
    return {
        "tp": tp or 1,
        "pp": pp,
        "vpp": virtual_stages(values, pp),
        "cp": whole(values, "context_parallel_size") or 1,
        "ep": experts(values),
        "micro_batch": whole(values, "micro_batch_size") or None,
        "global_batch": whole(values, "global_batch_size") or None,
        "sequence": whole(values, "seq_length") or None,
    }


def virtual_stages(values: Mapping[str, str], pp: int) -> int:
    """Virtual stages of a rank."""
    layers, each = whole(values, "num_layers"), whole(values, "num_layers_per_virtual_pipeline_stage")
    stated = whole(values, "virtual_pipeline_model_parallel_size") or whole(values, "num_virtual_stages_per_pipeline_rank")
    if stated is None and layers and each and layers % (pp * each) == 0:
        return layers // (pp * each)
    layout = stages_of_layout(values.get("pipeline_model_parallel_layout", "")) or stages_of_pattern(values)
    if stated is None and layout and len(layout) % pp == 0:
        return len(layout) // pp
    return stated or 1


def stages_of_layout(text: str) -> list[int]:
    """Layers of each virtual stage of a layout such as `Et*4|(t*4|)*6t*4L`; empty for one that cannot be read."""
    text = text.strip("'\" ").replace(",", "")
    if text in OFF or not re.fullmatch(r"[EtmL|()*x\d]{1,2000}", text):
        return []
    for _ in range(10):
        longer = LAYOUT_PART.sub(lambda part: (part[1] or part[3]) * min(int(part[2] or part[4]), 1000), text)
        if longer == text or len(longer) > 100_000:
            break
        text = longer
    if set(text) - set("EtmL|"):
        return []
    return [stage.count("t") for stage in text.split("|")]


def stages_of_pattern(values: Mapping[str, str]) -> list[int]:
    """Layers of each virtual stage of a hybrid's pattern such as `M-M*|-M-M/*-`; empty for one that is not cut."""
    text = values.get("hybrid_layer_pattern", values.get("hybrid_override_pattern", "")).strip("'\" ").partition("/")[0]
    return [len(part) for part in text.split("|")] if "|" in text else []


def experts(values: Mapping[str, str]) -> int | None:
    """Ranks that share the experts; None for early cores, which take them from ranks that they do not state."""
    return None if is_on(values, "expert_parallel") else whole(values, "expert_model_parallel_size") or 1


def checkpointing(values: Mapping[str, str]) -> str:
    """What the backward computes again, by the words of `checkpointing`."""
    granularity = values.get("recompute_granularity", "None")
    if is_on(values, "recompute_activations") and granularity in OFF:
        granularity = "selective"
    if granularity == "full" or is_on(values, "checkpoint_activations"):
        return _full(values)
    if granularity == "selective":
        modules = re.findall(r"\w+", values.get("recompute_modules", ""))
        modules = [module for module in modules if module != "None"]
        return "selective" if modules in ([], [MODULES]) else "+".join(modules)
    return "full" if values.get("activations_checkpoint_method", "None") not in OFF else "none"


def _full(values: Mapping[str, str]) -> str:
    method = values.get("recompute_method", values.get("activations_checkpoint_method", "uniform"))
    number = whole(values, "recompute_num_layers") or whole(values, "checkpoint_num_layers") or 1
    if method == "block":
        return f"block:{number}"
    return "full" if number == 1 else f"every:{number}"


def precision(values: Mapping[str, str]) -> str:
    """The precision of training, by the words of `precision`."""
    fp8 = values.get("fp8", values.get("fp8_format", "None"))
    if fp8 not in OFF:
        return PRECISIONS.get(values.get("fp8_recipe", "delayed"), "fp8_delayed")
    if values.get("fp4", values.get("fp4_format", "None")) not in OFF:
        return "nvfp4"
    return "bf16" if is_on(values, "bf16") else "fp16" if is_on(values, "fp16") else "fp32"


def sharding(values: Mapping[str, str]) -> str:
    """What data-parallel ranks share, by the words of `sharding`."""
    if is_on(values, "deepspeed") and values.get("zero_stage", "") in ZERO:
        return ZERO[values["zero_stage"]]
    if is_on(values, "use_megatron_fsdp", "use_custom_fsdp"):
        return FSDP.get(values.get("data_parallel_sharding_strategy", ""), "parameters")
    if is_on(values, "use_torch_fsdp2"):
        return "parameters"
    divided = is_on(values, "use_distributed_optimizer") or values.get("optimizer") == "dist_muon"
    return "optimizer" if divided else "none"


OPTIMIZERS: Final = {"adam": "adamw", "muon": "muon", "dist_muon": "muon", "sgd": "sgd_momentum"}
"""Optimizers of Megatron-LM; `dist_muon` is what `muon` with the distributed optimizer was called before core 0.17."""
NS_STEPS: Final = "5"


def optimizer_notes(values: Mapping[str, str]) -> list[str]:
    """What is said of the optimizer and not simulated, one line each."""
    optimizer, steps = values.get("optimizer", "adam"), values.get("muon_num_ns_steps", NS_STEPS)
    notes = [] if optimizer in OPTIMIZERS else [f"optimizer {optimizer}: simulated as adamw"]
    if OPTIMIZERS.get(optimizer) == "muon" and steps != NS_STEPS:
        notes.append(f"muon_num_ns_steps {steps}: {NS_STEPS} are simulated")
    return notes


def choices(values: Mapping[str, str]) -> Plan:
    """All other fields of a plan that the arguments set; those at Megatron-LM's defaults are left out."""
    plan: Plan = {"overlap_tp": is_on(values, "tp_comm_overlap"), "overlap_grad": is_on(values, "overlap_grad_reduce")}
    plan["overlap_param"] = is_on(values, "overlap_param_gather")
    ranks, a2a = whole(values, "num_distributed_optimizer_instances"), values.get("hierarchical_context_parallel_sizes", "")
    if is_on(values, "overlap_moe_expert_parallel_comm"):
        plan["overlap_ep"] = True
    if is_on(values, "moe_shared_expert_overlap"):
        plan["overlap_shared_experts"] = True
    if values.get("moe_token_dispatcher_type") in ("flex", "alltoall"):
        plan["dispatcher"] = values["moe_token_dispatcher_type"]
    if is_on(values, "moe_enable_deepep"):
        plan["dispatcher"] = "flex"
    if bucket := whole(values, "ddp_bucket_size"):
        plan["bucket_bytes"] = bucket * SUM_BYTES
    if is_on(values, "grad_reduce_in_bf16"):
        plan["gradient_precision"] = "bf16"
    if (kind := CP_TYPES.get(values.get("cp_comm_type", "").strip("[]'\""), "")) and kind != "p2p":
        plan["cp_comm_type"] = kind
        plan |= {"cp_a2a_size": int(found[0])} if (found := re.findall(r"\d{1,6}", a2a)) and kind == "a2a+p2p" else {}
    if group := whole(values, "microbatch_group_size_per_virtual_pipeline_stage"):
        plan["microbatch_group_size"] = group
    if ranks and ranks > 1:
        plan["instances"] = ranks
    return {**plan, **_optimizer(values)}


def _optimizer(values: Mapping[str, str]) -> Plan:
    """The optimizer and its choices, where it is not AdamW."""
    optimizer = OPTIMIZERS.get(values.get("optimizer", "adam"), "adamw")
    plan: Plan = {} if optimizer == "adamw" else {"optimizer": optimizer}
    if optimizer == "muon" and (whole(values, "tensor_model_parallel_size") or 1) > 1:
        plan["muon_tp_mode"] = values.get("muon_tp_mode", "blockwise")
    if optimizer == "muon" and is_on(values, "no_use_layer_wise_param_layout"):
        plan["muon_aligned"] = False
    return plan
