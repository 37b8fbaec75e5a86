"""The `features` cell of a measured run, `key=value;...`: what its recipe sets, by names of its own; which of them we know."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from sim_core import nearest, shown
from sweep.validation.table import Row

USED: Final = (
    "cuda_graph", "ep_overlap", "router_fusion", "permute_fusion", "force_balance", "shared_expert_overlap", "token_drop",
    "capacity_factor", "pad_to_capacity", "recompute", "hybrid_pattern", "base_frozen", "fused_grouped_mlp", "fp8_attention",
)  # fmt: skip
"""Keys that change what is simulated, or whether it is."""
WITHOUT_EFFECT: Final = (
    "recipe", "recipe_const", "recipe_match", "dispatcher_from", "quality_reason", "tok_from_tflops", "block_spread_p10_p90",
    "account_embedding", "attention", "cross_entropy", "delay_wgrad", "dispatch_sms", "exp_avg_dtype", "fp4_param_gather",
    "fp8_param_gather", "fp8_recipe", "fsdp", "grad_overlap", "grad_reduce_dtype", "ici_fsdp_parallelism", "kernels", "layout",
    "lora_alpha", "lora_rank", "lora_targets", "mtp", "offload_layers", "offload_modules", "paged_stash", "rank_capacity",
    "precision_aware_optimizer", "remat_policy", "seq_packed", "tp_overlap", "use_iota_embed",
)  # fmt: skip
"""Keys that say where a run comes from, or what other columns say, too, or what we do not simulate."""


def features_of(row: Row) -> Mapping[str, str]:
    """The value of each key of a row's cell, which was checked when the table was read."""
    parts = [part.partition("=") for part in row.text("features").split(";")]
    return {key.strip(): value.strip() for key, _, value in parts if key.strip()}


def unknown_features(rows: Sequence[Row]) -> list[str]:
    """A line for each key that we do not know: it has no effect."""
    known = (*USED, *WITHOUT_EFFECT)
    found = Counter(key for row in rows for key in features_of(row) if key not in known)
    first = {key: row.where for row in reversed(rows) for key in features_of(row)}
    return [
        f"feature {shown(key)} of {count} run{'s' if count > 1 else ''} has no effect ({first[key]}), {nearest(key, USED)}"
        for key, count in sorted(found.items())
    ]


def effective(row: Row) -> str:
    """The features of a row that are used, as they stand in its cell."""
    return ";".join(f"{key}={value}" for key, value in features_of(row).items() if key in USED)
