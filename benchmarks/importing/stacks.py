"""The software stack of a measured run: by framework, and by what the row says of its data parallelism."""

import re
from typing import Final

from benchmarks.importing.features import recipe_of
from benchmarks.importing.table import Row
from sim_core import RECOMPUTE_MODULES, STACK_FACTS, Model
from sim_core.models.features import dispatcher_named, split_features
from sweep.frameworks.stacks import nearest_stack
from sweep.runs.logs import ENDS_AS_LAYERS, FP32_GRADIENTS
from sweep.runs.table import NotSimulated

STACKS: Final = (
    ("primus", "primus"), ("(rocm)", "primus"), ("automodel", "nemo-automodel"), ("torchtitan", "torchtitan"),
    ("nanotron", "nanotron"), ("llm-foundry", "llm-foundry"), ("maxtext", "maxtext"), ("paxml", "maxtext"),
    ("megatron-deepspeed", "megatron-deepspeed"), ("megatron-bridge", "nemo"), ("megatron-core", "megatron-core"),
    ("nemo framework", "nemo"), ("nemo,", "nemo"), ("nemo 25", "nemo"), ("nvidia release", "nemo"), ("nemo", "nemo-24"),
    ("megatron-lm", "megatron-2022"),
)  # fmt: skip
"""Words in a framework's name, and its stack; the first that match decide.

NVIDIA's containers ("NVIDIA Release 25.09") train with NeMo on Megatron-Core."""
OVERLAPPING: Final = ("nemo", "megatron-bridge", "nvidia release")
"""Frameworks whose recipes overlap messages with compute. Megatron-LM does so on request only, and no row says that it did."""
REDUCING: Final = ("nanotron",)
"""Frameworks that reduce gradients behind the last backward without being asked, and hide no tensor-parallel messages so."""
JAX: Final = ("maxtext", "paxml")
OF_TPU: Final = {"maxtext": "maxtext-tpu"}
"""Stacks that are another on TPUs."""
POLICIES: Final = {
    "minimal_with_context": "none", "minimal_flash": "none", "minimal": "selective",
    "save_dot_with_context_except_mlp": "mlp",
    "save_dot_except_mlp": "core_attn+mlp", "save_dot_except_mlpwi": "core_attn+mlp", "save_qkv_proj": "core_attn+mlp",
}  # fmt: skip
"""Policies of recompute of MaxText (layers/decoders.py: get_remat_policy) by what they do not save, in whole modules: XLA drops
products that no gradient needs, as the second of an MLP, which run again here."""
CUSTOM: Final = "custom remat"
SAVED: Final = "offload_modules"
"""MaxText's custom policy of recompute, and the feature that lists what it saves: tensors of a layer, most on the host."""
SHARDED: Final = ("2", "3", "fsdp")
OPTIMIZER: Final = {"0": "none", "1": "optimizer"}
"""What ranks share under stages of ZeRO without parameters."""
RECOMPUTE: Final = (("full", "full"), ("sel", "selective"), ("none", "none"))
"""What a cell begins with and the plan's `checkpointing`."""
FP32_ACCUMULATION: Final = r"fp32 (?:main )?grad|fp32 accumulation|bf16[_ ]optimizer"
"""In the notes of runs with DeepSpeed's BF16_Optimizer."""
NOTED: Final = r"(?P<not>\b(?:no|not|without|w/o)\s+)?\b(?:deep-?ep|hybrid-?ep)(?P<off>\s*(?:=\s*0|off|disabled)\b)?"
"""What notes say of the libraries behind `flex`."""
LAYOUT_LAYERS: Final = 61
LAYOUTS: Final = {4: [16, 16, 16, 13], 8: [8] * 7 + [5], 16: [4] * 15 + [1], 32: [1] + [2] * 30 + [0]}
"""Layers of each virtual stage, by the number of these, in Megatron-Bridge's recipes of DeepSeek-V3 and Kimi K2, both of 61
layers: the last one has multi-token prediction and the loss besides (recipes/deepseek/deepseek_v3.py, recipes/kimi/kimi_k2.py;
32 virtual stages: `Et|(tt|)*30mL` in scripts/performance/configs/deepseek)."""
LONGEST_NAME: Final = 40
ACCOUNTING: Final = (*OVERLAPPING, "megatron-core")
"""Frameworks on Megatron-Core (`sweep.runs.logs.LAYER_EACH`)."""
ASYNC_TP: Final = "async tp"
"""In the notes of torchtitan's runs: tensor-parallel collectives run beside their GEMMs."""


def stack_cell(row: Row, model: Model) -> str | dict[str, object]:
    """The page that a row was run with, and what the row says of its gradients and optimizer. Raises NotSimulated.

    A framework without a page has the nearest one (`sweep.frameworks.stacks`).
    """
    name, framework = stack_name(row, model), ""
    if not name:
        of_2022 = not model.gated and model.position != "rotary" and model.experts is None and row.text("dtype") == "fp16"
        framework = row.text("framework")[:LONGEST_NAME]
        name = nearest_stack("parameters" if sharded(row) else "", of_2022=of_2022)
    facts: dict[str, object] = {}
    if name == "megatron-deepspeed" and _accumulates_in_fp32(row):
        facts = dict(FP32_GRADIENTS)
    if row.text("zero") in OPTIMIZER:
        facts["sharding"] = OPTIMIZER[row.text("zero")]
    facts |= recipe_of(row).facts
    plain = {fact: STACK_FACTS[fact].plain(value) for fact, value in facts.items()}
    named = {"preset": name, "framework": framework} if framework else {"preset": name}
    return {**named, **plain} if facts or framework else name


def _accumulates_in_fp32(row: Row) -> bool:
    """Whether a run with DeepSpeed has fp32 gradients: as its notes say, or in bf16 without ZeRO.

    Megatron-LM sets --accumulate-allreduce-grads-in-fp32 wherever it trains in bf16 (arguments.py); BLOOM's launch script has
    "ZERO_STAGE=0 # important: bf16 must use z0" (bigscience, tr11-176B-ml.slurm), as BF16_Optimizer does what ZeRO 1 would; and
    the one run of its trials without ZeRO held 20 bytes a weight (chronicles-prequel.md#L670), 2 + 2 + 4 + 12. Under ZeRO 1
    bf16 ran with 16-bit gradients before.
    """
    without_zero = row.text("dtype") == "bf16" and row.text("zero") in ("", "0")
    return without_zero or re.search(FP32_ACCUMULATION, row.text("notes").lower()) is not None


def stack_name(row: Row, model: Model) -> str:
    """The name of the stack of a row's framework; empty for one without a page. Raises NotSimulated where none is stated."""
    framework = row.text("framework").lower()
    if not framework:
        raise NotSimulated("framework not stated")
    name = next((stack for words, stack in STACKS if words in framework), "")
    if row.text("hw").upper().startswith("TPU"):
        name = OF_TPU.get(name, name)
    if name == "megatron-2022" and (model.gated or model.position == "rotary" or model.experts is not None):
        return "megatron-core"  # Megatron-LM of 2022 has neither; what has them runs on its later core
    return name


def overlaps(row: Row) -> bool:
    """Whether gradients and parameters travel beside compute; sharded parameters always do."""
    return sharded(row) or _is_of(row, (*REDUCING, *OVERLAPPING))


def overlaps_tp(row: Row) -> bool:
    """Whether tensor-parallel messages travel beside compute."""
    return _is_of(row, OVERLAPPING) or ASYNC_TP in row.text("notes").lower()


def _is_of(row: Row, frameworks: tuple[str, ...]) -> bool:
    return any(words in row.text("framework").lower() for words in frameworks)


def sharded(row: Row) -> bool:
    """Whether it shards parameters."""
    return row.text("zero").lower() in SHARDED


def sharding_of(row: Row) -> dict[str, object]:
    """How it shards, by the names of `sim_core.plans`; empty where the stack decides.

    ZeRO "2" of FSDP is SHARD_GRAD_OP: parameters stay after the forward. MaxText's notes state the shards (`FSDP=128`),
    llm-foundry's the precision of reductions (`mp mode PURE`: bf16).
    """
    if not sharded(row):
        return {}
    shard = re.search(r"\bFSDP=(\d+)", row.text("notes"))
    return {
        "sharding": "parameters",
        "reshard_after_forward": row.text("zero") != "2",
        **({"dp_shard": int(shard[1])} if shard else {}),
        **({"gradient_precision": "bf16"} if "mp mode PURE" in row.text("notes") else {}),
    }


def checkpointing_of(row: Row) -> str:
    """What its backward pass recomputes. Raises NotSimulated.

    Where a row does not state it: nothing, and everything in JAX, whose runs of 70B models do not fit otherwise. torchtitan's
    "selective (op)" keeps every second product, which costs as much as recomputing every second layer (its own A100s reach
    2,973 tokens/s with the former and 2,904 with the latter: docs/performance.md at 0413364).
    """
    stated = row.text("recompute").lower() or str(recipe_of(row).plan.get("checkpointing", ""))
    if not stated and _is_of(row, JAX):
        return "full"
    if stated == CUSTOM and (saved := split_features(row.text("features")).get(SAVED)):
        # all runs again but what it saves and what is cheap: an output projection and norms, at most 5 % of a forward
        again = "mlp" if "context" in saved.split("+") else "core_attn+mlp"
        return "full" if saved == "decoder_layer_input" else again
    if stated in POLICIES:
        return POLICIES[stated]
    if "(op)" in stated:
        return f"block:{max(row.count('layers') // 2, 1)}"
    if stated.split("+")[0] in RECOMPUTE_MODULES or stated.startswith("block:"):
        return stated
    checkpointing = next((word for start, word in RECOMPUTE if stated.startswith(start)), None)
    if stated and not checkpointing:
        raise NotSimulated(f"not modelled: recompute {row.text('recompute')[:40]}")
    return checkpointing or "none"


def keeps_tensors(row: Row) -> bool:
    """Whether its layers keep single tensors (JAX's policies), or some on the host: whole modules do not tell its memory."""
    features = split_features(row.text("features"))
    named = SAVED in features or POLICIES.get(row.text("recompute").lower(), "none") != "none"
    return named or features.get("offload_layers", "0") not in ("0", "none")


def layer_split(row: Row) -> str | list[int]:
    """Where its layers lie: as its recipe says, or, where we know none, stages that differ by at most one layer."""
    layers, parts = row.count("layers"), row.count("pp", 1) * row.count("vpp", 1)
    if _is_of(row, ("megatron-bridge",)) and layers == LAYOUT_LAYERS:
        return LAYOUTS.get(parts, "balanced")
    if _is_of(row, ACCOUNTING) and layers % parts and (layers + 2) % parts == 0:
        return ENDS_AS_LAYERS
    return "balanced"


def dispatcher_of(row: Row) -> str:
    """How its tokens reach experts: by its column, else its features, its notes, its release. Raises NotSimulated."""
    if stated := row.text("dispatcher"):
        if (dispatcher := dispatcher_named(stated)) is None:
            raise NotSimulated(f"not modelled: dispatcher {stated[:40]}")
        return dispatcher
    recipe = str(recipe_of(row).plan.get("dispatcher", "alltoall"))
    if "dispatcher" in split_features(row.text("features")):
        return recipe
    if (named := re.search(NOTED, row.text("notes").lower())) is not None:
        return "alltoall" if named["not"] or named["off"] else "flex"
    return recipe
