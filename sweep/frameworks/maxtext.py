"""Words of MaxText: keys of its configuration, which its log prints, and what they make of a plan."""

import re
from math import prod
from pathlib import Path

from sim_core import Dump, whole_of
from sim_core.documents import Words, shipped_document
from sweep.frameworks.plan import Plan

NAME, PAGE, PAGE_OF_TPU = "MaxText", "maxtext", "maxtext-tpu"
DEVICE = "hardware"
BATCH, SEQUENCE, GA, MODEL = "per_device_batch_size", "max_target_length", "gradient_accumulation_steps", "model_name"
REMAT, QUANTIZATION = "remat_policy", "quantization"
_ROWS = shipped_document(Path(__file__).with_suffix(".yaml"))
POLICIES: dict[str, str] = _ROWS["policies"]
AXES, PRESETS = _ROWS["axes"], _ROWS["presets"]
"""Axes of its mesh by our fields, our words of its policies of recompute, our names of its models (maxtext.yaml)."""
USUAL = {"ici_fsdp_parallelism": "-1"}
"""What is not 1 unless it is stated (configs/base.yml)."""
WHOLE = "full"
"""The policy unless another is stated (configs/base.yml)."""
NARROW = {"": "bf16", "fp8": "fp8_delayed"}


def plan_of(settings: Dump, gpus: int | None) -> Plan:
    """The plan that its settings make on so many devices; what follows from their number is None without it.

    The batch of a device counts for all of them, whatever shares a sequence or a model (configs/pyconfig.py).
    """
    tp, pp, cp, ep, shard = (_degree({**USUAL, **settings}, axes) for axes in AXES.values())
    width = tp * pp * cp if tp and pp and cp else None
    each = float(settings[BATCH]) if re.fullmatch(r"\d{1,6}(\.\d{1,9})?", settings.get(BATCH, ""), re.ASCII) else 0.0
    ga, policy = whole_of(settings, GA) or 1, settings.get(REMAT, WHOLE)
    apart = {settings.get(f"{mesh}_data_parallelism", "1") for mesh in ("ici", "dcn")} - {"1", "-1"}
    micro = each * width if width and pp == 1 else 0.0
    return {
        "tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": 1 if pp == 1 else None, "all_gpus": gpus,
        "dp": gpus // width if gpus and width and gpus % width == 0 else None,
        "micro_batch": int(micro) or None if micro.is_integer() else None,
        "global_batch": int(each * gpus * ga) or None if gpus else None, "ga": None if gpus else ga,
        "sequence": whole_of(settings, SEQUENCE), "sharding": "none" if shard == 1 else "parameters",
        **({"dp_shard": shard * cp if shard and cp else None} if shard != 1 and (shard or apart) else {}),
        "checkpointing": WHOLE if policy == WHOLE else POLICIES.get(policy),
        "precision": NARROW.get(settings.get(QUANTIZATION, "").lower()),
    }  # fmt: skip


def _degree(settings: Dump, axes: Words) -> int | None:
    """Ranks along some axes; None where one of them is what is left, or no number."""
    stated = [settings.get(f"{mesh}_{axis}_parallelism", "1") for mesh in ("ici", "dcn") for axis in axes]
    return prod(map(int, stated)) if all(re.fullmatch(r"[1-9]\d{0,5}", size, re.ASCII) for size in stated) else None
