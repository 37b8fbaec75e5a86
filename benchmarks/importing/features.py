"""The `features` cell of a measured run, `key=value;...`: what its recipe sets, as facts and fields; which keys we know."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.importing.table import Row
from sim_core import SpecError, nearest, shown
from sim_core.models.features import ALIASES, FEATURES, Recipe, read_features, split_features
from sim_core.models.releases import Defaults, number_of, release_defaults, releases_of
from sweep.frameworks.names import FIELD_OF_NAME
from sweep.runs.table import NotSimulated

DIFFERS: Final = "differs"
WHOLE: Final = "recipe"
"""A key of features that were read from a recipe: what it does not set is off."""
RELEASED: Final = (("megatron-bridge", "nemo"),)
"""Words in a framework's name, and the stack whose releases are described."""
ROUNDS: Final = (("(rocm)", "primus"), ("nemo", "nemo-24"), ("kwai fork", "megatron-kwai"))
"""The same of rounds of MLPerf and of forks, which are releases by name: what runs were trained with, dense or not."""
CORE_IMAGE: Final = r"-(\d\d\.\d\d)$"
"""NVIDIA's image in the name of a release: Megatron-Core 0.12 is of April 2025 (NVIDIA/Megatron-LM, core_v0.12.0)."""
ELSEWHERE: Final = (
    "base_frozen", "hybrid_pattern", "lora_rank", "lora_targets", "lora_dropout", "mtp", "tied", "untied", "head_dim",
    "recompute", "remat_policy", "offload_layers", "offload_modules", "account_embedding", "account_loss",
    "layers_redistributed", "fp8_recipe", "kernels",
)  # fmt: skip
"""Keys of the model (models.py), of recompute, and of where layers lie (stacks.py)."""
OF_FIELDS: Final = {feature.name: name for name, feature in FEATURES.items() if feature.name.startswith("overlap_")}
"""Features that are overlaps of a plan, by its fields."""
WITHOUT_EFFECT: Final = (
    "recipe", "recipe_const", "recipe_match", "dispatcher_from", "quality_reason", "tok_from_tflops", "block_spread_p10_p90",
    "amp_level", "compile", "delay_wgrad", "dispatch_sms", "exp_avg_dtype", "fast_rmsnorm", "fast_rope",
    "force_balance", "fp4_param_gather", "fp8_param_gather", "framework_rows", "fsdp", "fsdp_over",
    "fused_rms_norm", "grad_dtype", "ici_fsdp_parallelism", "ici_tensor", "layout", "lora_alpha", "manual_gc",
    "optimizer_state", "packing", "paged_stash", "permute_fusion", "precision_aware_optimizer", "rank_capacity",
    "selective_fraction", "seq_packed", "slices", "token_drop", "transformer_engine", "use_iota_embed", "zero3_over",
    "zero_overlap",
)  # fmt: skip
"""Keys that say where a run comes from, or what other columns say, too, or what we do not simulate."""


def features_of(row: Row) -> dict[str, str]:
    """A row's features, those of a plan field by our name where a framework's stands."""
    features = split_features(row.text("features"))
    return {
        key if key in FEATURES else OF_FIELDS.get(FIELD_OF_NAME.get(key, ""), key): value for key, value in features.items()
    }


def recipe_of(row: Row) -> Recipe:
    """What a row's features mean, over what its release sets. Raises NotSimulated for a value that we cannot read.

    `recipe_match=differs(...)`: the run's plan is not that of the recipe which the features were read from. What a recipe
    chooses for its plan (overlap) is then left to the row's other columns; kernels are those of the release.
    """
    features = features_of(row)
    if part := next((part for part in row.text("features").split(";") if part.strip() and "=" not in part), ""):
        raise NotSimulated(f"features: found {shown(part.strip())}, expected key=value; ...")
    try:
        recipe = read_features({**_usual(row), **features}, others=True)
    except SpecError as error:
        raise NotSimulated(f"features: {error}") from None
    return recipe._replace(plan={}) if features.get("recipe_match", "").startswith(DIFFERS) else recipe


def _usual(row: Row) -> Mapping[str, str]:
    """What the row's release sets; of a row without one, the last. Nothing where the features were read from the recipe."""
    if WHOLE in features_of(row):
        return {}
    of_round = _named(row, ROUNDS)  # of MLPerf, that a row was submitted to
    if row.text("release") in releases_of(of_round):
        return release_defaults(of_round, row.text("release"), *_run_on(row)).features
    if (image := re.search(CORE_IMAGE, row.text("release"))) and "megatron-core" in row.text("framework").lower():
        return release_defaults("megatron-core", "0.12" if image[1] >= "25.04" else "0.11", *_run_on(row)).features
    defaults = _defaults(row) if row.text("experts") else None
    return {} if defaults is None else defaults.features


def _named(row: Row, stacks: Sequence[tuple[str, str]]) -> str:
    return next((stack for words, stack in stacks if words in row.text("framework").lower()), "")


def _run_on(row: Row) -> tuple[str, str]:
    """Model and device."""
    return row.text("model").lower().rpartition(":")[2], row.text("hw").removeprefix("AMD Instinct ")


def _defaults(row: Row) -> Defaults | None:
    """The defaults of a row's release; None where its framework has none."""
    stack = _named(row, RELEASED)
    if not stack:
        return None
    model, device = _run_on(row)
    last = max(releases_of(stack), key=number_of, default="")
    try:
        return release_defaults(stack, row.text("release") or last, model, device)
    except SpecError:  # no number
        return release_defaults(stack, last, model, device)._replace(known=False)


def unknown_features(rows: Sequence[Row]) -> list[str]:
    """A line for each release that we do not know, and for each key: it has no effect."""
    used = (*FEATURES, *ALIASES)
    known = {*used, *ELSEWHERE, *WITHOUT_EFFECT}
    cells = [(row.where, features_of(row)) for row in rows]
    found = Counter(key for _, features in cells for key in features if key not in known)
    first: Mapping[str, str] = {key: where for where, features in reversed(cells) for key in features}
    unknown = Counter(
        defaults.note(row.text("release"))
        for row in rows
        if row.text("release") and row.text("experts") and (defaults := _defaults(row)) is not None and not defaults.known
    )
    lines = [f"{note} ({count} run{'s' if count > 1 else ''})" for note, count in sorted(unknown.items())]
    return lines + [
        f"feature {shown(key)} of {count} run{'s' if count > 1 else ''} has no effect ({first[key]}), {nearest(key, used)}"
        for key, count in sorted(found.items())
    ]
