"""What a measured run needs that not every simulator has: training of adapters alone, layers that are no attention."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from sim_core import Model, model_names
from sweep.validation.reasons import NotSimulated
from sweep.validation.table import Row

WHOLE: Final = ("", "pretrain", "pretraining", "training", "sft", "finetune", "fine-tuning", "continued pretraining")
"""Kinds of run that train all weights of a model."""


class Need(NamedTuple):
    """Something that a run needs: how a row says so, and the field of `Model` that describes it once we have it."""

    field: str
    what: str
    said: str  # in `kind`, `simulable` or `features`
    models: tuple[str, ...] = ()  # beginnings of models' names, letters and digits alone


NEEDS: Final = (
    Need("adapters", "LoRA: frozen weights with adapters", r"\bq?lora\b|\bpeft\b|\badapters?\b|base_frozen=1"),
    Need(
        "state_space", "a hybrid: state-space layers", r"mamba|hybrid_pattern=|state.space|\bssm\b",
        ("nemotronh", "nemotron3nano", "nemotron3super", "nemotron3ultra", "mamba", "jamba", "zamba", "bamba", "falconh1"),
    ),
    Need("linear_attention", "linear attention", r"linear attention|delta.?net", ("qwen3next", "kimilinear", "rwkv")),
    Need("sparse_attention", "sparse attention", r"sparse attention", ("deepseekv32",)),
)  # fmt: skip
OTHERWISE: Final = r"preset|not stated|batch|device"
"""Words of a `simulable` cell whose subject other columns tell, too."""


def check_needs(row: Row) -> None:
    """Raises NotSimulated for a run that needs what we do not have: asked of our `Model`, whatever the row says of it."""
    name = row.text("model").lower().rpartition(":")[2]
    bare = re.sub(r"[^a-z0-9]", "", name)
    kind, verdict = row.text("kind").lower(), row.text("simulable").lower()
    said = f"{kind} {verdict} {row.text('features').lower()}"
    needed = []
    for need in NEEDS:
        named = bool(need.models) and bare.startswith(need.models)
        if named or re.search(need.said, said):
            needed.append(need)
            if need.field not in Model.model_fields and not (named and name in model_names()):
                raise NotSimulated(f"not modelled: {need.what}")
    if needed:
        return
    if kind not in WHOLE:
        raise NotSimulated(f"not modelled: kind {row.text('kind')[:40]}")
    if verdict.startswith("none") and not re.search(OTHERWISE, verdict):
        raise NotSimulated(f"not modelled: {row.text('simulable')[:60]}")
