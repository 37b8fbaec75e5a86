"""Megatron-LM: all its arguments that a plan is read from and written in, and what follows from the rows of them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sim_core import (
    OF_NUMBER,
    OF_SWITCH,
    OFF,
    Argument,
    Dump,
    Fields,
    SpecError,
    Values,
    Words,
    arguments_in,
    flag_of,
    flags_of,
    megatron_arguments as model,
    read_stack,
    says_model,
)
from sim_core.documents import shipped_document
from sim_core.models.features import read_features
from sweep.frameworks import megatron_choices as choices, megatron_sizes as sizes
from sweep.frameworks.deepspeed import DEEPSPEED
from sweep.frameworks.plan import Launched

PAGE = "megatron-core"
PAGE_OF_2022 = "megatron-2022"
"""Of a version before its core."""
WORLD = Argument[Launched]("world_size", OF_NUMBER, "all_gpus")
DP = Argument[Launched]("data_parallel_size", OF_NUMBER, "dp")
NODES = (Argument[Launched]("nnodes", OF_NUMBER), Argument[Launched]("num_nodes", OF_NUMBER))
EACH = (Argument[Launched]("nproc_per_node", OF_NUMBER), Argument[Launched]("num_gpus", OF_NUMBER, "all_gpus"))
_ROWS = shipped_document(Path(__file__).with_suffix(".yaml"))
ARGUMENTS: tuple[Argument[Launched], ...] = (
    *dict.fromkeys(each for file in (sizes, choices) for each in arguments_in(vars(file), Argument)), *NODES, *EACH, WORLD, DP
)  # fmt: skip
"""Of a plan, in the order in which they are written; and of what starts it."""
STATED = (
    WORLD, DP, sizes.TP, sizes.PP, sizes.VPP, sizes.CP, sizes.EP, sizes.MICRO_BATCH, sizes.GLOBAL_BATCH, model.SEQUENCE,
)  # fmt: skip
"""Arguments that state the sizes of a plan in a dump."""
CORE = (sizes.CP.name, "use_mcore_models", "transformer_impl")
"""Arguments that Megatron-LM has since it runs on its core."""
SIGNS = "|".join([model.LAYERS.either, model.HIDDEN.either, *(each.either for each in ARGUMENTS if each.is_sign)])
"""A pattern of the names by which a script is known."""
ALL: tuple[Argument[Any], ...] = (*(each for each in ARGUMENTS if not each.is_kept), model.SEQUENCE)
FIELD_OF = {flag_of(name): each.field for each in ALL if each.leaves_open for name in each.names}
"""Flags without whose value a field of the plan is not known."""
DECIDES = {flag_of(name): each.field for each in ALL if each.field for name in each.names}
"""Flags, and the field that each has a part in."""
BESIDE = {
    "precision": ("precision", "mixed_precision", *choices.BF16.names, *choices.FP16.names, *choices.FP4.names),
    "checkpointing": (choices.ACTIVATIONS.name, choices.CHECKPOINT.name, choices.OLD_METHOD.name),
    "sharding": (*choices.MEGATRON_FSDP.names, choices.TORCH_FSDP.name, DEEPSPEED.name), "ep": (sizes.OLD_EP.name,),
}  # fmt: skip
"""Names besides the rows of a field that say something of it, in scripts and recipes."""
NUMBERED = tuple(flag_of(name) for each in ALL if each.kind == OF_NUMBER for name in each.names)
SWITCHES = tuple(flag_of(name) for each in ALL if each.kind == OF_SWITCH for name in each.names)
KNOWN = frozenset(map(flag_of, (*(name for each in ALL for name in each.names), *_ROWS["launcher"])))
"""Flags that the plan is read from, and those of the launcher."""
READ = frozenset(
    flag_of(name)
    for name in (
        *(name for each in ARGUMENTS for name in each.names), *_ROWS["flash"], *_ROWS["graphs"], *_ROWS["facts"],
    )
) - {choices.FLEX_BACKEND.flag}  # fmt: skip
"""Flags that a plan or a fact of the stack is read from."""
TOLD: Words = tuple(_ROWS["told"])
SIZES = TOLD[:10]
BY_ITSELF: Words = _ROWS["by_itself"]
"""Fields that Megatron-LM has a value of where nothing is said."""


def is_kept(flag: str) -> bool:
    """Whether a flag has no part in the plan or the model."""
    return flag not in KNOWN and flag != model.TOKENIZER.flag and not says_model(flag)


def is_read(flag: str) -> bool:
    """Whether the plan, the model or a fact of the stack follows from a flag."""
    return flag in READ or flag == model.TOKENIZER.flag or says_model(flag)


def fields_of(dump: Dump) -> Fields:
    """Fields of the plan that arguments mean, whatever the number of GPUs; those at Megatron-LM's defaults are left out."""
    read = {each.field: each.read(dump) for each in ARGUMENTS if each.read is not None}
    return {field: value for field, value in read.items() if value is not None}


def in_order(plan: Values) -> Fields:
    """A plan with its fields in the order in which they are told."""
    return {field: plan[field] for field in (*TOLD, *plan) if field in plan}


def plan_of(dump: Dump, gpus: int | None) -> Fields:
    """Fields of the plan that Megatron's arguments mean on `gpus` GPUs."""
    plan = {**dict.fromkeys(SIZES), **fields_of(dump)}
    width = plan["tp"] * plan["pp"] * plan["cp"]
    plan |= {
        "sequence": model.SEQUENCE.whole(dump) or None,
        "all_gpus": gpus,
        "dp": gpus // width if gpus and gpus % width == 0 else None,
        "sequence_parallel": sizes.SEQUENCE_PARALLEL.on(dump) and plan["tp"] > 1,
    }
    instances = choices.INSTANCES.whole(dump) or 1
    if instances > 1:
        ranks = (plan["dp"] or 0) * plan["cp"]
        plan["dp_shard"] = ranks // instances or None if ranks % instances == 0 else None
    return in_order(plan)


def left_open(plan: Values, unset: Collection[str], maybe: Collection[str] = ()) -> Fields:
    """A plan without the fields of flags that the file does not set to one value, or only under a condition."""
    lost = {FIELD_OF[flag] for flag in unset if flag in FIELD_OF} | {DECIDES[flag] for flag in maybe if flag in DECIDES}
    lost &= plan.keys()
    lost |= {"dp", "dp_shard"} & plan.keys() if lost & {"tp", "pp", "cp"} else set()
    return {**plan, **dict.fromkeys(lost)}


def as_stated(plan: Values, names: Collection[str], *, part: bool) -> tuple[Fields, list[str]]:
    """A plan with no more than the names in a file state, where it is `part` of a launch, and a line of what is not stated."""
    said = {DECIDES[flag] for name in names if (flag := flag_of(name)) in DECIDES}
    said |= {field for field, others in BESIDE.items() if not {*others}.isdisjoint(names)}
    absent = [field for field in BY_ITSELF if field in plan and field not in said]
    if not part:
        shown = ", ".join(f"{field} {plan[field]}" for field in absent if plan[field] is not None)
        return dict(plan), [f"not in this file, so what Megatron-LM does by itself: {shown}"] * bool(shown)
    said |= {"sequence", "all_gpus", *(() if {"tp", "pp", "cp"} & {*absent} else ("dp",))}
    return {field: value if field in said else None for field, value in plan.items()}, [
        f"a part of a launch: not in this file, so left open: {', '.join(absent)}"
    ] * bool(absent)


def flags_of_plan(plan: Launched) -> dict[str, Words]:
    """Flags and values of a plan, and of its model where it is known. Raises SpecError for what Megatron-LM cannot do."""
    schedule = plan["schedule"]
    if schedule != "1f1b":
        raise SpecError(f"plan {plan.number}: Megatron-LM has no schedule {schedule}, only 1f1b (interleaved with vpp > 1)")
    flags: dict[str, Words] = {model.LAYERS.flag: (str(plan["layers"]),)}
    if plan.model is not None:
        flags = model.model_flags(plan.model, plan.sequence or 0, sizes.stages_of(plan))
    return flags | flags_of(ARGUMENTS, plan)


def refused(flags: Mapping[str, Words], world: int) -> list[str]:
    """The rules of arguments that these flags break on `world` GPUs, one line each.

    As its validators say (megatron/training/arguments.py, megatron/core/transformer/transformer_config.py at d98e8a64), and
    what fails later: layers that virtual stages do not divide, experts under tensor parallelism without sequence parallelism,
    groups.
    """
    asked = sizes.Launch(flags, world)
    return [rule for each in ARGUMENTS if each.refuses is not None for broken, rule in each.refuses(asked) if broken]


def stack_of(dump: Dump) -> str:
    """The page that simulates a run with these arguments."""
    if any(each.stack == DEEPSPEED.stack and each.name in dump for each in ARGUMENTS):
        return DEEPSPEED.stack
    return PAGE if not dump or any(name in dump for name in CORE) else PAGE_OF_2022


def features_of(dump: Dump) -> dict[str, str]:
    """What arguments state of the kernels, as features (`sim_core.models.features`); `auto` says nothing."""
    given = {name: value.lower() for name, value in dump.items()}
    versions = [version for name, version in _ROWS["flash"].items() if given.get(name) == "true"]
    found = {"flash_attention": versions[-1]} if versions else {}
    if given.get("transformer_impl") == "local" and given.get("use_flash_attn", "false") == "false":
        found["flash_attention"] = "off"
    if (backend := given.get("attention_backend", "none").rpartition(".")[2]) not in ("none", "auto"):
        found["flash_attention"] = backend
    switched = [way for name, way in _ROWS["graphs"].items() if given.get(name) == "true"]
    if graphs := given.get("cuda_graph_impl", switched[-1] if switched else ""):
        scope = given.get("cuda_graph_scope", "").strip("[]").replace("'", "").replace("none", "")
        found["cuda_graph"] = f"{graphs}:{scope}"
    if given.get("use_precision_aware_optimizer") == "true":
        kept = (choices.MAIN_PARAMS, choices.EXP_AVG, choices.EXP_AVG_SQ)
        found["adam_dtypes"] = ",".join(given.get(each.name, "fp32") for each in kept)
    if "moe_router_fusion" in given and _may_have_experts(dump):
        found["router_fusion"] = given["moe_router_fusion"]
    return found


def _may_have_experts(dump: Dump) -> bool:
    return (model.EXPERTS.whole({model.EXPERTS.name: "2", **dump}) or 0) > 1


def stated(dump: Dump, page: str) -> tuple[Fields, list[str]]:
    """Facts of the stack in SI that arguments state, which win over its page, and a line where they differ."""
    facts, lines, of_page = Fields(), choices.open_notes(dump), read_stack(page)
    for name, value in features_of(dump).items():
        try:
            found = read_features({name: value}).facts
        except SpecError as error:
            lines.append(f"not read: {error}")
            continue
        differs = [fact for fact in found if found[fact] != getattr(of_page, fact)]
        lines += [
            f"it says {name} {value}; the page of {page} has {each} {getattr(of_page, each)}: the job's is taken"
            for each in differs[:1]
        ]
        facts |= found
    words: dict[Argument[Launched], Collection[str]] = {
        choices.OPTIMIZER: choices.OPTIMIZERS, choices.FP8_RECIPE: choices.RECIPES, sizes.CP_TYPE: sizes.CP_TYPES,
        **({choices.DISPATCHER: choices.DISPATCHERS} if _may_have_experts(dump) else {}),
    }  # fmt: skip
    lines += [
        f"{each.name} {each.word(dump)}: not modelled"
        for each, known in words.items()
        if each.word(dump, "None").strip("[]'\"") not in (*OFF, *known)
    ]
    etp, tp = sizes.EXPERT_TP.whole(dump), sizes.TP.whole(dump) or 1
    if etp and tp > 1 and model.EXPERTS.whole(dump):
        facts["experts_with_tp"] = etp > 1
        lines += [f"{sizes.EXPERT_TP.name} {etp} of tp {tp}: not modelled, experts are taken as divided by tp"] * (1 < etp < tp)
    return facts, lines
