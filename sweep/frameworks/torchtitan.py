"""Keys of torchtitan's TOML (v0.2.2, the last version that reads TOML), read and written; what it refuses."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from sim_core import Argument, Rules, SpecError, arguments_in
from sim_core.documents import shipped_document
from sweep.frameworks.megatron_sizes import GLOBAL_BATCH as MEGATRON_BATCH, of_plan
from sweep.frameworks.plan import Launched

PAGE = "torchtitan"
Sections = dict[str, dict[str, int | str | list[list[str]]]]
SCHEDULES: dict[str, tuple[str, int]] = shipped_document(Path(__file__).with_suffix(".yaml"))
IN_PIPELINE = "optimizer"
"""What ranks share where pp > 1, unless parameters are freed after each forward: they stay for all micro-batches."""
_TURNING = ("zb-v", "dualpipev")
"""Schedules whose second chunks go back, from the last rank to the first."""
RESHARD_WORDS = {"always": True, "never": False}
ROTATE_WORDS = {"allgather": "all_gather", "alltoall": "p2p"}


@dataclass(frozen=True, eq=False)
class Key(Argument[Launched]):
    """A key of a section of the file."""

    section: str = "parallelism"


def schedule_named(name: str) -> tuple[str, int] | None:
    """Our schedule, and the virtual stages of a rank without layers for each; None for one that is not modelled."""
    return {each.lower(): ours for each, ours in SCHEDULES.items()}.get(name.lower())


def _schedule(plan: Launched) -> str:
    name = plan["schedule"]
    if name == "1f1b" and plan["vpp"] > 1:
        return "Interleaved1F1B"
    known = {ours: each for each, (ours, _) in reversed(SCHEDULES.items())}
    if name not in known:
        raise SpecError(f"plan {plan.number}: torchtitan has no schedule {name}; it has {', '.join(reversed(known))}")
    return known[name]


def shared(plan: Launched) -> tuple[int, int, str]:
    """Replicas, ranks that share parameters (besides those of context parallelism), and when they give them back.

    Raises SpecError for what torchtitan cannot do.
    """
    dp, cp = plan["dp"], plan["cp"]
    if plan.sharding == "none":
        return dp, 1, "never"
    if plan.sharding == "optimizer" and not plan.stack.startswith(PAGE):
        raise SpecError(
            f"plan {plan.number}: torchtitan shards parameters or nothing, not the optimizer alone ({plan.sharding}); "
            "sweep with stack: torchtitan, or sharding: parameters"
        )
    group = plan["dp_shard"] or dp * cp
    if group % cp:
        raise SpecError(
            f"plan {plan.number}: torchtitan shards over whole groups of context parallelism: cp must divide dp_shard"
        )
    kept = plan.sharding in ("gradients", "optimizer") or not plan["reshard_after_forward"]
    return dp * cp // group, group // cp, "never" if kept else "always"


def _in_equal_stages(value: Callable[[Launched], int]) -> Callable[[Launched], int | None]:
    """What is written of plans with several stages of as many layers each."""
    return lambda plan: None if plan["pp"] == 1 or is_unequal(plan) else value(plan)


def _in_pipeline(value: Callable[[Launched], int | str]) -> Callable[[Launched], int | str | None]:
    """What is written of plans with several stages only."""
    return lambda plan: value(plan) if plan["pp"] > 1 else None


def is_unequal(plan: Launched) -> bool:
    """Whether virtual stages hold other numbers of layers, so that each is listed."""
    return plan["pp"] > 1 and len({count for stage in plan.layers for count in stage}) > 1


def _modules(plan: Launched) -> tuple[str, ...] | None:
    """The modules of each virtual stage in model order, apart by commas, with embedding and head at the ends."""
    if not is_unequal(plan):
        return None
    chunks = list(zip(*plan.layers, strict=True))
    turned = plan["schedule"] in _TURNING
    counts = [count for number, chunk in enumerate(chunks) for count in (chunk[::-1] if turned and number % 2 else chunk)]
    ends = list(accumulate(counts))
    modules = [[f"layers.{layer}" for layer in range(end - count, end)] for count, end in zip(counts, ends, strict=True)]
    return tuple(map(",".join, (["tok_embeddings", *modules[0]], *modules[1:-1], [*modules[-1], "norm", "output"])))


def _overlaps_tp(plan: Launched) -> bool:
    return bool(plan["overlap_tp"]) and plan["tp"] > 1


def _refuses_cp(plan: Launched) -> Rules:
    tp, cp, ep = (plan[name] for name in ("tp", "cp", "ep"))
    return (
        (cp > 1 and (plan.sequence or 0) % (tp * 2 * cp), "tp x 2 cp must divide the sequence"),
        (ep > 1 and (shared(plan)[1] * cp * tp) % ep, "ep must divide dp_shard x cp x tp"),
    )


REPLICATE = Key("data_parallel_replicate_degree", field="dp", write=lambda plan: shared(plan)[0])
SHARD = Key("data_parallel_shard_degree", field="dp_shard", write=lambda plan: shared(plan)[1])
OLD_SHARD = Key("data_parallel_degree")
RESHARD = Key("fsdp_reshard_after_forward", field="reshard_after_forward", write=lambda plan: shared(plan)[2])
TP = Key("tensor_parallel_degree", field="tp", write=of_plan("tp"))
ASYNC_TP = Key("enable_async_tensor_parallel", field="overlap_tp", write=_overlaps_tp)
CP = Key("context_parallel_degree", field="cp", write=of_plan("cp"), refuses=_refuses_cp)
EP = Key("expert_parallel_degree", field="ep", write=of_plan("ep"))
EXPERT_TP = Key("expert_tensor_parallel_degree", write=lambda plan: plan["tp"] if plan.experts_with_tp else 1)
PP = Key("pipeline_parallel_degree", field="pp", write=of_plan("pp"))
SCHEDULE = Key("pipeline_parallel_schedule", field="schedule", write=_in_pipeline(_schedule))
MICRO_BATCH = Key("pipeline_parallel_microbatch_size", field="micro_batch", write=_in_pipeline(of_plan("micro_batch")))
FIRST_LESS = Key("pipeline_parallel_first_stage_less_layers", write=_in_equal_stages(lambda plan: 0))
LAST_LESS = Key("pipeline_parallel_last_stage_less_layers", write=_in_equal_stages(lambda plan: 0))
LAYERS_EACH = Key(
    "pipeline_parallel_layers_per_stage", field="vpp",
    write=_in_equal_stages(lambda plan: -(-plan["layers"] // (plan["pp"] * plan["vpp"]))),
)  # fmt: skip
MODULES = Key("module_fqns_per_model_part", field="layer_split", write=_modules)
MICRO_BATCHES = Key("pipeline_parallel_microbatches")
ROTATE = Key("context_parallel_rotate_method", field="cp_comm_type")
LOCAL_BATCH = Key(
    "local_batch_size", field="micro_batch", older=("batch_size",), section="training",
    write=lambda plan: plan["micro_batch"] * (plan["ga"] if plan["pp"] > 1 else 1),
)  # fmt: skip
GLOBAL_BATCH = Key(MEGATRON_BATCH.name, field="global_batch", section="training", write=of_plan("global_batch"))
SEQUENCE = Key("seq_len", field="sequence", section="training", write=lambda plan: plan.sequence or None)
CPU_OFFLOAD: Key = Key(
    "enable_cpu_offload", field="parameter_offload", section="training",
    write=lambda plan: True if plan.fields.get("parameter_offload") else None,
    refuses=lambda plan: (
        (
            plan.fields.get("optimizer_offload", 0) > 0 and not plan.fields.get("parameter_offload"),
            f"{CPU_OFFLOAD.name} moves parameters and optimizer together: parameter_offload: true",
        ),
    ),
)  # fmt: skip


def of_selective(layers: int, stages: int, each: int = 2) -> str:
    """What the selective mode runs again on each of `stages` virtual stages: one layer of `each`; or, "op", what it does not
    save of each layer (it does attention and every second product), which takes as long as half of the layers run again
    (A100s: 2,973 and 2,904 tokens/s, docs/performance.md at 0413364) and keeps about as much."""
    return f"block:{max(layers // stages // each, 1)}"


def mode_of(plan: Launched) -> str:
    """Its mode of recompute; "none" where it has none as a plan does."""
    how = plan["checkpointing"]
    selective = of_selective(plan["layers"], plan["pp"] * plan["vpp"])
    return "full" if how == "full" else "selective" if how == selective else "none"


MODE = Key("mode", section="activation_checkpoint", write=mode_of)
SELECTIVE = Key(
    "selective_ac_option", field="checkpointing", section="activation_checkpoint",
    write=lambda plan: "op" if mode_of(plan) == "selective" else None,
)  # fmt: skip
COMPILE = Key("enable", section="compile", write=lambda plan: _overlaps_tp(plan) or None)
NAME, FLAVOR, CONVERTERS = (Key(name, section="model") for name in ("name", "flavor", "converters"))
ARGUMENTS = arguments_in(globals(), Key)
"""In the order in which they are written."""
SECTIONS = ("parallelism", "training", "experimental")
"""Where the degrees stand: before v0.1 in [training] and [experimental]."""
SIGN = rf"^\s*(?:data_parallel_\w*degree|{TP.name}|{PP.name}|\[{SECTIONS[0]}\]|{FLAVOR.name})\s*(?:=|$)"
_USED = {name for key in ARGUMENTS if key is not COMPILE for name in key.names}


def is_kept(section: str, key: str) -> bool:
    """Whether a key of a section has no part in the plan or the model."""
    return key not in _USED or section not in (*SECTIONS, NAME.section, MODE.section)


def refused(plan: Launched) -> list[str]:
    """The rules of torchtitan that a plan breaks."""
    return [rule for key in ARGUMENTS if key.refuses is not None for broken, rule in key.refuses(plan) if broken]


def sections_of(plan: Launched) -> Sections:
    """Sections and keys of a plan. Raises SpecError for what torchtitan cannot do."""
    sections: Sections = {}
    for key in ARGUMENTS:
        value = None if key.write is None else key.write(plan)
        if value is not None:
            told = [part.split(",") for part in value] if isinstance(value, tuple) else value
            sections.setdefault(key.section, {})[key.name] = told
    return sections
