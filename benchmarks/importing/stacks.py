"""The software stack of a measured run: by framework, and by what the row says of its data parallelism."""

import re
from collections.abc import Sequence
from typing import Final

from benchmarks.importing import words_of
from benchmarks.importing.features import features_of, recipe_of
from benchmarks.importing.table import HF_TRAINER, Row
from sim_core import STACK_FACTS, Model, read_stack
from sim_core.models.features import NO, YES, dispatcher_named, read_features, split_features
from sim_core.models.traffic import LOSS_FUSED, NORM, ROTARY
from sweep.frameworks.maxtext import POLICIES
from sweep.frameworks.names import by_word
from sweep.frameworks.stacks import nearest_stack
from sweep.frameworks.torchtitan import of_selective
from sweep.runs.logs import ENDS_AS_LAYERS, FP32_GRADIENTS
from sweep.runs.table import NotSimulated

SAID = words_of("stacks")
MODULES: Final = by_word(SAID.modules)
WHOLE: Final = ("full", "whole", "uniform", "all", *YES)
LONGEST_NAME: Final = 40
ACCOUNTING: Final = (*SAID.overlapping, "megatron-core")
"""Frameworks on Megatron-Core (`sweep.runs.logs.LAYER_EACH`)."""


def stack_cell(row: Row, model: Model) -> str | dict[str, object]:
    """The page that a row was run with, and what the row says of its gradients and optimizer. Raises NotSimulated.

    A framework without a page has the nearest one (`sweep.frameworks.stacks`).
    """
    name = _page(row, model)
    cell: dict[str, object] = {} if stack_name(row, model) else {"framework": row.text("framework")[:LONGEST_NAME]}
    cell |= {fact: STACK_FACTS[fact].plain(value) for fact, value in _facts(row, name).items()}
    return {"preset": name, **cell} if cell else name


def _page(row: Row, model: Model) -> str:
    """The name of the page of a row's framework, or of the nearest."""
    of_2022 = _is_of_2022(row, model, usual=row.text("dtype") == "fp16")
    return stack_name(row, model) or nearest_stack("parameters" if sharded(row) else "", of_2022=of_2022)


def _facts(row: Row, name: str) -> dict[str, object]:
    """What a row says of its stack, in place of the page of `name`."""
    facts: dict[str, object] = {}
    # Megatron-LM sets --accumulate-allreduce-grads-in-fp32 wherever it trains in bf16 (arguments.py); BLOOM's launch script has
    # "ZERO_STAGE=0 # important: bf16 must use z0" (bigscience, tr11-176B-ml.slurm), as BF16_Optimizer does what ZeRO 1 would;
    # and the one run of its trials without ZeRO held 20 bytes a weight (chronicles-prequel.md#L670), 2 + 2 + 4 + 12. Under
    # ZeRO 1 bf16 ran with 16-bit gradients before.
    without_zero = row.text("dtype") == "bf16" and row.text("zero") in ("", "0")
    if name == "megatron-deepspeed" and (without_zero or re.search(SAID.fp32_accumulation, row.text("notes").lower())):
        facts |= FP32_GRADIENTS
    if row.text("zero") in SAID.optimizer:
        facts["sharding"] = SAID.optimizer[row.text("zero")]
    if _is_of(row, SAID.eager_gates) and row.text("model").lower().startswith("llama"):
        facts["activation_input_bytes"] = 3.0
    recipe = dict(recipe_of(row).facts)
    if HF_TRAINER in row.text("framework").lower():
        autocast = re.search(SAID.autocast, row.text("source")) is not None
        if sharded(row) and autocast:
            recipe = {fact: value for fact, value in recipe.items() if fact not in SAID.pure}
        facts |= _of_trainer(row, pure="adam_bytes" in recipe, autocast=autocast)
    return {**facts, **recipe}


def _of_trainer(row: Row, *, pure: bool, autocast: bool) -> dict[str, object]:
    """What a run of transformers' Trainer states besides its page (transformers 4.45, PyTorch 2.4).

    Adam in 16 bits makes its copy of the second moments so. foak's kernels are norm, rotation and a loss that writes its
    gradient over the shifted logits (reads 18 bytes, writes 26 with what remains around it); Liger's makes logits in pieces.
    Without autocast those of 16 bits are there, too (read off its runs); GPTBigCode's loss is in 16 bits
    (modeling_gpt_bigcode.py).
    """
    kernels = split_features(row.text("features")).get("kernels", "")
    logits = 0.0 if "liger" in kernels else 8.0 if "foak" in kernels else 12.0
    logits += 2.0 if logits and not autocast else 0.0
    logits *= 0.5 if row.text("model").lower().startswith(tuple(SAID.big_code)) else 1.0
    foak = {"norm_bytes": NORM, "rotary_bytes": ROTARY, "loss_bytes": (18.0, 26.0)}
    fused: dict[str, object] = {**foak} if "foak" in kernels else {}
    fused |= {"loss_bytes": LOSS_FUSED} if "liger" in kernels else {}
    if not sharded(row) and row.count("ga", 1) == 1:  # the only gradient is .grad
        fused["accumulation_bytes"] = 0.0
    return {**fused, "step_bytes": 2.0 if pure else 4.0, "logit_bytes": logits}


def differences(row: Row, model: Model) -> list[str]:
    """A line for each fact that a row states and the page that its name suggests has otherwise: the row's is taken."""
    name, suggested = stack_name(row, model), _named(row)
    if suggested == "megatron-2022" and _is_newer(model):
        suggested = "megatron-core"
    dated = row.text("release") or row.text("framework")
    lines = [f"name and model say {suggested}, {dated} is {name}: the page of {name} is taken"] if name != suggested else []
    page = read_stack(_page(row, model))
    said = dict[str, str]()
    for key, text in features_of(row).items():
        said |= dict.fromkeys(read_features({key: text}, others=True).facts, f"{key} {text}")
    for fact, value in _facts(row, page.name).items():
        own, of_page = (STACK_FACTS[fact].plain(each) for each in (value, getattr(page, fact)))
        if own != of_page:
            row_has = said.get(fact, f"{fact} {own}")
            lines.append(f"the row says {row_has}; the page of {page.name} has {fact} {of_page}: the row's is taken")
    return lines


def stack_name(row: Row, model: Model) -> str:
    """The name of the stack of a row's framework; empty for one without a page. Raises NotSimulated where none is stated.

    A release that is stated decides over the name and over what the model has.
    """
    name, release = _named(row), row.text("release")
    if name in ("nemo", "nemo-24") and re.fullmatch(SAID.of_nemo, release):
        return "nemo" if re.fullmatch(SAID.nemo_25, release) else "nemo-24"
    return "megatron-core" if name == "megatron-2022" and not _is_of_2022(row, model, usual=True) else name


def _named(row: Row) -> str:
    """The stack that a framework's name means; empty for one without a page."""
    framework = row.text("framework").lower()
    if not framework:
        raise NotSimulated("framework not stated")
    name = next((stack for words, stack in SAID.stacks.items() if words in framework), "")
    return SAID.of_tpu.get(name, name) if row.text("hw").upper().startswith("TPU") else name


def _is_of_2022(row: Row, model: Model, usual: bool) -> bool:
    """Whether a run had the kernels of 2022: as its release or name dates it, else not where it states FlashAttention, which
    they lack, or has what is newer; else `usual`."""
    said = f"{row.text('release')} {row.text('framework')}".lower()
    for pattern, old in ((SAID.since_core, False), (SAID.before_core, True)):
        if re.search(pattern, said):
            return old
    return usual and not _is_newer(model) and not recipe_of(row).facts.get("flash_attention")


def _is_newer(model: Model) -> bool:
    """Whether a model has what Megatron-LM of 2022 lacks: it runs on its later core."""
    return model.gated or model.position == "rotary" or model.experts is not None


def overlaps(row: Row) -> dict[str, bool]:
    """What runs of a row's framework send beside compute: messages of tp, gradients, parameters (if sharded, always)."""
    beside_tp = _is_of(row, SAID.overlapping) or SAID.async_tp in row.text("notes").lower()
    beside = sharded(row) or _is_of(row, (*SAID.reducing, *SAID.overlapping))
    return {"overlap_tp": beside_tp, "overlap_grad": beside, "overlap_param": beside}


def _is_of(row: Row, frameworks: Sequence[str]) -> bool:
    return any(words in row.text("framework").lower() for words in frameworks)


def sharded(row: Row) -> bool:
    """Whether it shards parameters."""
    return re.fullmatch(SAID.sharded, row.text("zero").lower()) is not None


def sharding_of(row: Row) -> dict[str, object]:
    """How it shards, by the names of `sim_core.plans`; empty where the stack decides.

    ZeRO "2" of FSDP is SHARD_GRAD_OP: parameters stay after the forward. MaxText's notes state the shards (`FSDP=128`),
    llm-foundry's the precision of reductions (`mp mode PURE`: bf16).
    """
    if not sharded(row):
        return {}
    shard = re.search(r"\bFSDP=(\d+)", row.text("notes"))
    in_nodes = re.search(SAID.in_nodes, row.text("zero").lower()) and row.count("gpus_per_node")
    return {
        "sharding": "parameters",
        "reshard_after_forward": re.fullmatch(r"(?:zero-?)?2|.*grad_op.*", row.text("zero").lower()) is None,
        **({"dp_shard": int(shard[1])} if shard else {"dp_shard": in_nodes} if in_nodes else {}),
        **({"gradient_precision": "bf16"} if "mp mode PURE" in row.text("notes") else {}),
    }


def checkpointing_of(row: Row) -> str:
    """What its backward pass recomputes. Raises NotSimulated.

    Where a row does not state it: nothing, and everything in JAX, whose runs of 70B models do not fit otherwise.
    """
    features = split_features(row.text("features"))
    stated = row.text("recompute").lower() or str(recipe_of(row).plan.get("checkpointing", ""))
    stated = stated or features.get("recompute", "").lower() or features.get("remat_policy", "").lower()
    if not stated:
        return "full" if _is_of(row, SAID.jax) else "none"
    if stated == SAID.custom:  # all runs again but what it saves and what is cheap: an output projection and norms
        saved = features.get(SAID.saved, "decoder_layer_input")  # at most 5 % of a forward
        return "full" if saved == "decoder_layer_input" else "mlp" if "context" in saved.split("+") else "core_attn+mlp"
    if (policy := stated.removeprefix(SAID.custom).strip()) in POLICIES:
        return POLICIES[policy]
    if "(op)" in stated:
        return of_selective(row.count("layers"), row.count("pp", 1) * row.count("vpp", 1))
    if (part := re.match(r"(?:full|block)\W*(\d+)(?:\s*(?:/|of)\s*\d+)?", stated)) is not None:
        return f"block:{max(-(-int(part[1]) // (1 if stated.startswith('block') else row.count('pp', 1))), 1)}"
    first = re.split(r"[\s:(,]", stated, maxsplit=1)[0]
    if first in WHOLE or stated in NO:
        return "full" if first in WHOLE else "none"
    modules = _modules(stated)
    if modules is None:
        raise NotSimulated(f"not modelled: recompute {row.text('recompute')[:40]}")
    if not row.text("experts"):
        modules = ["mlp_act" if module == "moe_act" else module for module in modules]
        return "+".join(module for module in modules if module not in SAID.of_experts) or "none"
    return "+".join(modules)


def _modules(stated: str) -> list[str] | None:
    """The modules that a cell names; ["selective"] where it says no more, or the core of attention; None for what is none."""
    listed = re.sub(r"^sel(?:ective)?\b[\s:(]*", "", stated).rstrip(") ")
    words = [re.sub(r"[\s-]+", "_", word.strip()) for word in re.split(r"[+,;&]|\sand\s", listed)]
    if listed and not set(words) <= set(MODULES):
        return None
    modules = list(dict.fromkeys(MODULES[word] for word in words)) if listed else []
    return ["selective"] if listed != stated and modules in ([], ["core_attn"]) else modules


def memory_untold(row: Row) -> bool:
    """Whether its memory cannot be told: no plan is stated, its layers keep single tensors (JAX's policies), of which some
    custom policies do not say which, or some are on the host by the layer, stated or not."""
    noted = re.search(r"\bremat (\w+)", row.text("notes").lower())  # of MaxText
    recompute = noted[1] if noted and noted[1] in POLICIES else row.text("recompute").lower()
    features = split_features(row.text("features"))
    if not row.text("tp") or "plan_unknown" in features.get("quality_reason", ""):
        return True
    if _is_of(row, SAID.recomputing) and row.text("experts") and not recompute:
        return True
    if sharded(row) and _is_of(row, SAID.overlapping) and row.text("hw").startswith(tuple(SAID.offloading)):
        return features.get("offload_layers", "untold") not in NO  # all but a recipe that says otherwise
    policy = POLICIES.get(recompute.removeprefix(SAID.custom).strip(), "none")
    named = SAID.saved in features or recompute == SAID.custom or policy != "none"
    return named or features.get("offload_layers", "0").strip("0.") not in ("", "none")


def layer_split(row: Row) -> str | list[int]:
    """Where its layers lie: as its recipe says, or, where we know none, stages that differ by at most one layer."""
    layers, parts = row.count("layers"), row.count("pp", 1) * row.count("vpp", 1)
    features = split_features(row.text("features"))
    counted = [name for name in ("embedding", "loss") if features.get(f"account_{name}", "0") not in NO]
    if counted and (layers + len(counted)) % parts == 0:
        return f"{'_and_'.join(counted)}_as_layer"
    if features.get("layers_redistributed", "0") not in NO:
        return "balanced_cost"
    if _is_of(row, ("megatron-bridge",)) and layers == SAID.layout_layers:
        layout: str | list[int] = SAID.layouts.get(parts, "balanced")
        return layout
    ends = _is_of(row, ACCOUNTING) and layers % parts and (layers + 2) % parts == 0
    return ENDS_AS_LAYERS if ends else "balanced"


def dispatcher_of(row: Row) -> str:
    """How its tokens reach experts: by its column, else its features, its notes, its release. Raises NotSimulated."""
    if stated := row.text("dispatcher"):
        if (dispatcher := dispatcher_named(stated)) is None:
            raise NotSimulated(f"not modelled: dispatcher {stated[:40]}")
        return dispatcher
    recipe = str(recipe_of(row).plan.get("dispatcher", "alltoall"))
    if "dispatcher" in split_features(row.text("features")):
        return recipe
    if (named := re.search(SAID.noted, row.text("notes").lower())) is not None:
        return "alltoall" if named["not"] or named["off"] else "flex"
    return recipe
