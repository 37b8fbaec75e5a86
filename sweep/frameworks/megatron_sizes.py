"""Megatron-LM's arguments of groups, stages and batch, with what it refuses of them (core 0.20); those of a torchrun."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from sim_core import OF_NUMBER, OF_SWITCH, Argument, Dump, Rules, Words, megatron_arguments as model
from sweep.frameworks.plan import Launched

Size = Argument[Launched]
_LAYOUT_PART = re.compile(r"\(([^()]*)\)\*?x?(\d{1,4})|([a-zA-Z|])\*(\d{1,4})")
CP_TYPES = {"p2p": "p2p", "a2a": "a2a", "allgather": "all_gather", "all_gather": "all_gather", "a2a+p2p": "a2a+p2p"}


def stages_of_layout(text: str) -> list[int]:
    """Layers of each virtual stage of a layout such as `Et*4|(t*4|)*6t*4L`; empty for one that cannot be read."""
    text = text.strip("'\" ").replace(",", "")
    if not re.fullmatch(r"[EtmL|()*x\d]{1,2000}", text):
        return []
    for _ in range(10):
        longer = _LAYOUT_PART.sub(lambda part: (part[1] or part[3]) * min(int(part[2] or part[4]), 1000), text)
        if longer == text or len(longer) > 100_000:
            break
        text = longer
    if set(text) - set("EtmL|"):
        return []
    return [stage.count("t") for stage in text.split("|")]


def stages_of_pattern(text: str) -> list[int]:
    """Layers of each virtual stage of a hybrid's pattern such as `M-M*|-M-M/*-`; empty for one that is not cut."""
    stages = text.strip("'\" ").partition("/")[0].split("|")
    return [len(stage) for stage in stages] if len(stages) > 1 else []


def pattern_in(dump: Dump) -> str:
    """The pattern of a hybrid."""
    return model.PATTERN.word(dump, model.OLD_PATTERN.word(dump))


def pp_in(dump: Dump) -> int:
    """Stages."""
    return PP.whole(dump) or 1


def of_plan(field: str) -> Callable[[Launched], Any]:
    """A field of a plan as it stands."""
    return lambda plan: plan[field]


class Launch:
    """Flags with their values, as a script has them: what it asks for on `world` GPUs, with Megatron-LM's defaults."""

    def __init__(self, flags: Mapping[str, Words], world: int) -> None:
        self._flags = flags
        self.world = world
        self.tp, self.pp, self.cp, self.ep = (self.number(size, 1) for size in (TP, PP, CP, EP))
        self.etp = self.number(EXPERT_TP, self.tp)
        self.experts = self.number(model.EXPERTS, 0)
        self.pattern = self.word(model.PATTERN, "").partition("/")[0]
        self.layers = len(self.pattern.replace("|", "")) or self.number(model.LAYERS, 0)
        self.layout = stages_of_layout(self.word(LAYOUT, ""))
        self.stages = len(self.pattern.split("|")) if self.pattern else len(self.layout)
        self.vpp = self.stages // self.pp if self.stages else self.number(STAGES_OF_RANK, 1)
        self.dp = max(world // (self.tp * self.pp * self.cp), 1)
        self.micro = self.number(MICRO_BATCH, 1)
        self.batch = self.number(GLOBAL_BATCH, self.micro * self.dp)
        self.sequence_parallel = self.has(SEQUENCE_PARALLEL) and self.tp > 1

    def has(self, argument: Argument[Any]) -> bool:
        return argument.flag in self._flags

    def words(self, argument: Argument[Any]) -> Words:
        return self._flags.get(argument.flag, ())

    def word(self, argument: Argument[Any], default: str) -> str:
        return next(iter(self.words(argument)), default)

    def number(self, argument: Argument[Any], default: int) -> int:
        return int(self.word(argument, str(default)))


def _refuses_tp(r: Launch) -> Rules:
    groups = r.number(model.KV_HEADS, 1)
    divided = (model.MAMBA_HEADS, model.LINEAR_GROUPS, model.LINEAR_HEADS)
    return (
        (r.world % (r.tp * r.pp * r.cp), "tp x pp x cp must divide the GPUs"),
        (r.number(model.HEADS, r.tp) % r.tp, f"tp must divide {model.HEADS.flag}"),
        (
            r.has(model.GROUPED) and groups % r.tp != 0 and r.tp % groups,
            f"tp must divide {model.KV_HEADS.flag}, or be a multiple of it",
        ),
        *((r.number(each, r.tp * r.cp) % (r.tp * r.cp), f"tp x cp must divide {each.flag}") for each in divided),
        (r.number(model.MAMBA_GROUPS, r.tp) % r.tp, f"tp must divide {model.MAMBA_GROUPS.flag}"),
        (r.has(model.MLA) and r.has(model.GROUPED), f"{model.MLA.flag} and {model.GROUPED.flag} exclude each other"),
    )


def _refuses_cp(r: Launch) -> Rules:
    tokens = r.number(model.SEQUENCE, 0)
    return (
        (r.cp > 1 and tokens % (2 * r.cp), f"2 x cp must divide {model.SEQUENCE.flag}"),
        (tokens > r.number(model.POSITIONS, tokens), f"{model.POSITIONS.flag} must be at least {model.SEQUENCE.flag}"),
    )


def _is_cut(plan: Launched) -> bool:
    """Whether the pattern of the model says where stages begin."""
    return plan.model is not None and bool(plan.model.pattern)


def stages_of(plan: Launched) -> list[int]:
    """The layers of each virtual stage in model order."""
    return [stage[chunk] for chunk in range(len(plan.layers[0])) for stage in plan.layers]


def _layout(plan: Launched) -> str | None:
    """Where the layers of virtual stages differ."""
    stages = stages_of(plan)
    if _is_cut(plan) or len({*stages}) < 2:
        return None
    mtp = plan.model.mtp_layers if plan.model else 0
    return f"E{'|'.join(f't*{count}' if count > 1 else 't' * count for count in stages)}{'m' * mtp}L"


def virtual_stages(dump: Dump) -> int:
    """Virtual stages of a rank."""
    pp, layers, each = pp_in(dump), model.LAYERS.whole(dump), LAYERS_EACH.whole(dump)
    stated = VPP.whole(dump) or STAGES_OF_RANK.whole(dump)
    layers = layers and layers + EMBEDDING_COUNTS.on(dump) + LOSS_COUNTS.on(dump)
    if stated is None and layers and each and layers % (pp * each) == 0:
        return layers // (pp * each)
    stages = stages_of_layout(LAYOUT.word(dump)) or stages_of_pattern(pattern_in(dump))
    if stated is None and stages and len(stages) % pp == 0:
        return len(stages) // pp
    return stated or 1


def _split(dump: Dump) -> list[int] | None:
    """The layers of each virtual stage, where they are not equal."""
    vpp, layers = virtual_stages(dump), model.LAYERS.whole(dump)
    stages = pp_in(dump) * vpp
    layout, cut = stages_of_layout(LAYOUT.word(dump)), stages_of_pattern(pattern_in(dump))
    if layout and len(layout) == stages and sum(layout) == layers:
        return layout
    if cut and len(cut) == stages:
        return cut
    ends = [EMBEDDING_COUNTS.on(dump), LOSS_COUNTS.on(dump)]
    if any(ends) and layers and stages > 1 and (whole := layers + sum(ends)) % stages == 0:
        each = whole // stages
        return [each - ends[0], *[each] * (stages - 2), each - ends[1]]
    first, last = ([] if (count := end.whole(dump)) is None else [count] for end in (FIRST_STAGE, LAST_STAGE))
    left, inside = stages - len(first + last), (layers or 0) - sum(first + last)
    if (first or last) and layers and stages > 1 and vpp == 1 and left and inside % left == 0:
        return [*first, *[inside // left] * left, *last]
    return None


def _cp_type(dump: Dump) -> str | None:
    return CP_TYPES.get(CP_TYPE.word(dump).strip("[]'\""))


def _a2a_size(dump: Dump) -> int | None:
    found = re.findall(r"\d{1,6}", A2A_SIZES.word(dump))
    return int(found[0]) if found and _cp_type(dump) == "a2a+p2p" else None


def _a2a_sizes(plan: Launched) -> Words | None:
    cp, a2a = plan["cp"], plan["cp_a2a_size"]
    return (str(a2a), str(cp // a2a)) if cp > 1 and plan["cp_comm_type"] == "a2a+p2p" else None


OLD_TP = Size("model_parallel_size", OF_NUMBER, "tp", is_sign=True)
OLD_PP = Size("pipe_parallel_size", OF_NUMBER, "pp")
TP: Size = Size(
    "tensor_model_parallel_size", OF_NUMBER, "tp", leaves_open=True, is_sign=True, refuses=_refuses_tp,
    read=lambda dump: TP.whole(dump) or OLD_TP.whole(dump) or 1, write=of_plan("tp"),
)  # fmt: skip
PP: Size = Size(
    "pipeline_model_parallel_size", OF_NUMBER, "pp", leaves_open=True, is_sign=True, read=pp_in, write=of_plan("pp"),
    refuses=lambda r: (
        (not r.stages and r.layers % r.pp, f"pp must divide {model.LAYERS.flag}"),
        (r.vpp > 1 and r.pp == 1, "virtual stages need pp > 1"),
        (
            r.vpp > 1 and r.pp == 2 and r.has(NO_OVERLAP_PP),
            f"virtual stages without {NO_OVERLAP_PP.flag.replace('no-', '')} need pp > 2",
        ),
        (not r.stages and r.vpp > 1 and r.layers // r.pp % r.vpp, "virtual stages must divide the layers of a stage"),
        (r.vpp > 1 and r.batch // (r.micro * r.dp) < r.pp, "virtual stages need at least pp micro-batches"),
    ),
)  # fmt: skip
CP: Size = Size(
    "context_parallel_size", OF_NUMBER, "cp", leaves_open=True, stack="megatron-core", refuses=_refuses_cp,
    read=lambda dump: CP.whole(dump) or 1, write=of_plan("cp"),
)  # fmt: skip
MICRO_BATCH: Size = Size(
    "micro_batch_size", OF_NUMBER, "micro_batch", leaves_open=True, is_sign=True,
    read=lambda dump: MICRO_BATCH.whole(dump) or None, write=of_plan("micro_batch"),
)  # fmt: skip
GLOBAL_BATCH: Size = Size(
    "global_batch_size", OF_NUMBER, "global_batch", leaves_open=True,
    read=lambda dump: GLOBAL_BATCH.whole(dump) or None, write=of_plan("global_batch"),
    refuses=lambda r: ((r.batch % (r.micro * r.dp), f"micro-batch x dp must divide {GLOBAL_BATCH.flag}"),),
)  # fmt: skip
LAYOUT: Size = Size(
    "pipeline_model_parallel_layout", field="layer_split", read=_split, write=_layout,
    refuses=lambda r: (
        (r.layout and r.stages % r.pp, f"pp must divide the stages of {LAYOUT.flag}"),
        (r.pattern and r.stages % r.pp, f"pp must divide the parts of {model.PATTERN.flag}"),
        (r.pattern and r.layout, f"{model.PATTERN.flag} and {LAYOUT.flag} exclude each other"),
        (r.layout and sum(r.layout) != r.layers, f"{LAYOUT.flag} must hold {model.LAYERS.flag} layers"),
        (r.layout and r.has(STAGES_OF_RANK), f"{LAYOUT.flag} and {STAGES_OF_RANK.flag} exclude each other"),
    ),
)  # fmt: skip
FIRST_STAGE = Size("decoder_first_pipeline_num_layers", OF_NUMBER, "layer_split", is_kept=True)
LAST_STAGE = Size("decoder_last_pipeline_num_layers", OF_NUMBER, "layer_split", is_kept=True)
EMBEDDING_COUNTS = Size("account_for_embedding_in_pipeline_split", OF_SWITCH, "layer_split", is_kept=True)
LOSS_COUNTS = Size("account_for_loss_in_pipeline_split", OF_SWITCH, "layer_split", is_kept=True)
"""Switches that count the embedding and the loss as a layer each."""
VPP = Size("virtual_pipeline_model_parallel_size", OF_NUMBER, "vpp", leaves_open=True, read=virtual_stages)
LAYERS_EACH = Size("num_layers_per_virtual_pipeline_stage", OF_NUMBER, "vpp", leaves_open=True)
STAGES_OF_RANK: Size = Size(
    "num_virtual_stages_per_pipeline_rank", OF_NUMBER, "vpp", leaves_open=True,
    write=lambda plan: plan["vpp"] if plan["vpp"] > 1 and len({*stages_of(plan)}) == 1 and not _is_cut(plan) else None,
)  # fmt: skip
GROUP_SIZE: Size = Size(
    "microbatch_group_size_per_virtual_pipeline_stage", OF_NUMBER, "microbatch_group_size",
    read=lambda dump: GROUP_SIZE.whole(dump) or None,
    write=lambda plan: (
        size if plan["vpp"] > 1 and (size := plan["microbatch_group_size"]) not in (0, plan["pp"])
        else None
    ),
)  # fmt: skip
NO_OVERLAP_PP: Size = Size(
    "no_overlap_p2p_communication", OF_SWITCH, "overlap_pp",
    read=lambda dump: False if NO_OVERLAP_PP.on(dump) and virtual_stages(dump) > 1 else None,
    write=lambda plan: plan["vpp"] > 1 and not plan["overlap_pp"],
)  # fmt: skip
SEQUENCE_PARALLEL: Size = Size("sequence_parallel", OF_SWITCH, "sequence_parallel", write=lambda plan: plan.sequence_parallel)
TP_OVERLAP: Size = Size(
    "tp_comm_overlap", OF_SWITCH, "overlap_tp", read=lambda dump: TP_OVERLAP.on(dump),
    write=lambda plan: bool(plan["overlap_tp"]) and plan["tp"] > 1,
    refuses=lambda r: (
        (r.has(TP_OVERLAP) and not r.sequence_parallel, f"{TP_OVERLAP.flag} needs {SEQUENCE_PARALLEL.flag}"),
    ),
)  # fmt: skip
CP_TYPE: Size = Size(
    "cp_comm_type", field="cp_comm_type",
    refuses=lambda r: (
        (r.word(CP_TYPE, "p2p") == "a2a+p2p" and not r.words(A2A_SIZES), f"{CP_TYPE.flag} a2a+p2p needs {A2A_SIZES.flag}"),
        (bool(r.words(A2A_SIZES)) and math.prod(map(int, r.words(A2A_SIZES))) != r.cp, f"{A2A_SIZES.flag} must multiply to cp"),
    ),
    read=lambda dump: kind if (kind := _cp_type(dump)) != "p2p" else None,
    write=lambda plan: (
        {"all_gather": "allgather"}.get(kind := plan["cp_comm_type"], kind) if plan["cp"] > 1 else None
    ),
)  # fmt: skip
A2A_SIZES: Size = Size("hierarchical_context_parallel_sizes", field="cp_a2a_size", read=_a2a_size, write=_a2a_sizes)
OLD_EP = Size("expert_parallel", OF_SWITCH)
"""Of early cores, which take the size from ranks that they do not state."""
EP: Size = Size(
    "expert_model_parallel_size", OF_NUMBER, "ep", leaves_open=True,
    read=lambda dump: None if OLD_EP.on(dump) else EP.whole(dump) or 1,
    write=lambda plan: plan["ep"] if has_experts(plan) else None,
    refuses=lambda r: (
        (r.ep > 1 and not r.experts, f"{EP.flag} needs {model.EXPERTS.flag}"),
        (r.experts and r.experts % r.ep, f"ep must divide {model.EXPERTS.flag}"),
        (
            r.experts and r.tp > 1 and not r.sequence_parallel,
            f"experts with tp > 1 need {SEQUENCE_PARALLEL.flag}",
        ),
        (
            r.has(model.PAD_TO_CAPACITY) and not r.has(model.CAPACITY),
            f"{model.PAD_TO_CAPACITY.flag} needs {model.CAPACITY.flag}",
        ),
        (r.experts and r.world % (r.etp * r.ep * r.pp), "etp x ep x pp must divide the GPUs"),
    ),
)  # fmt: skip
EXPERT_TP: Size = Size(
    "expert_tensor_parallel_size", OF_NUMBER,
    write=lambda plan: (plan["tp"] if plan.experts_with_tp else 1) if has_experts(plan) else None,
)  # fmt: skip


def has_experts(plan: Launched) -> bool:
    """Whether a plan is launched with the arguments of experts."""
    return plan["ep"] > 1 or (plan.model is not None and plan.model.experts is not None)
