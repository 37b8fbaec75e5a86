"""Words of MaxText: keys of its configuration, which its log prints, and what they make of a plan."""

import re
from math import prod

from sim_core import Dump, whole_of
from sweep.frameworks.plan import Plan

NAME, PAGE, PAGE_OF_TPU = "MaxText", "maxtext", "maxtext-tpu"
DEVICE = "hardware"
BATCH, SEQUENCE, GA, MODEL = "per_device_batch_size", "max_target_length", "gradient_accumulation_steps", "model_name"
REMAT, QUANTIZATION = "remat_policy", "quantization"
AXES = {
    "tp": ("tensor", "tensor_transpose", "tensor_sequence"), "pp": ("pipeline",), "cp": ("context", "sequence"),
    "ep": ("expert",), "shard": ("fsdp", "fsdp_transpose"),
}  # fmt: skip
"""Axes of its mesh, inside a slice and between slices: `ici_fsdp_parallelism`; -1 is what is left."""
USUAL = {"ici_fsdp_parallelism": "-1"}
"""What is not 1 unless it is stated (configs/base.yml)."""
POLICIES = {
    "minimal_with_context": "none", "minimal_flash": "none", "minimal": "selective",
    "save_dot_with_context_except_mlp": "mlp",
    "save_dot_except_mlp": "core_attn+mlp", "save_dot_except_mlpwi": "core_attn+mlp", "save_qkv_proj": "core_attn+mlp",
}  # fmt: skip
"""Policies of recompute (layers/decoders.py: get_remat_policy) by what they do not save, in whole modules: XLA drops products
that no gradient needs, as the second of an MLP, which run again here."""
WHOLE = "full"
"""The policy unless another is stated (configs/base.yml)."""
NARROW = {"": "bf16", "fp8": "fp8_delayed"}
PRESETS = {
    "mistral-7b": "mistral-7b-v0.1", "deepseek3-671b": "deepseek-v3", "llama4-17b-16e": "llama4-scout",
    "llama4-17b-128e": "llama4-maverick", "kimi-k2-1t": "kimi-k2",
}  # fmt: skip
"""Models by its names, where ours is another."""


def plan_of(settings: Dump, gpus: int | None) -> Plan:
    """The plan that its settings make on so many devices; what follows from their number is None without it.

    The batch of a device counts for all of them, whatever shares a sequence or a model (configs/pyconfig.py).
    """
    tp, pp, cp, ep, shard = (_degree({**USUAL, **settings}, axes) for axes in AXES.values())
    width = tp * pp * cp if tp and pp and cp else None
    each = float(settings[BATCH]) if re.fullmatch(r"\d{1,6}(\.\d{1,9})?", settings.get(BATCH, ""), re.ASCII) else 0.0
    ga, policy = whole_of(settings, GA) or 1, settings.get(REMAT, WHOLE)
    micro = each * width if width and pp == 1 else 0.0
    return {
        "tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": 1 if pp == 1 else None, "all_gpus": gpus,
        "dp": gpus // width if gpus and width and gpus % width == 0 else None,
        "micro_batch": int(micro) or None if micro.is_integer() else None,
        "global_batch": int(each * gpus * ga) or None if gpus else None, "ga": None if gpus else ga,
        "sequence": whole_of(settings, SEQUENCE), "sharding": "none" if shard == 1 else "parameters",
        "checkpointing": WHOLE if policy == WHOLE else POLICIES.get(policy),
        "precision": NARROW.get(settings.get(QUANTIZATION, "").lower()),
    }  # fmt: skip


def _degree(settings: Dump, axes: tuple[str, ...]) -> int | None:
    """Ranks along some axes; None where one of them is what is left, or no number."""
    stated = [settings.get(f"{mesh}_{axis}_parallelism", "1") for mesh in ("ici", "dcn") for axis in axes]
    return prod(map(int, stated)) if all(re.fullmatch(r"[1-9]\d{0,5}", size, re.ASCII) for size in stated) else None
