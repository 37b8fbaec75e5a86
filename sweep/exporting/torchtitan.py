"""A plan as the TOML of torchtitan v0.2.2, the last version that reads TOML; what has no key is a comment."""

from typing import Final

from sim_core import SpecError
from sweep.frameworks.plan import Launched
from sweep.inputs.flavors import flavor_of

VERSION: Final = "v0.2.2"
_SCHEDULES: Final = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_NAMED: Final = {
    "schedule", "layer_split", "checkpointing", "precision", "dispatcher", "bucket_bytes", "overlap_tp", "sequence", "cp",
    "cp_comm_type", "sharding", "dp_shard", "reshard_after_forward", "prefetch_layers",
}  # fmt: skip
"""Fields with a key, or with a comment where they have none."""
Value = int | str | bool


def torchtitan_sections(plan: Launched) -> dict[str, dict[str, Value]]:
    """Sections and keys. Raises SpecError for what torchtitan cannot do."""
    fields = plan.fields
    pp, vpp, micro, ga = (plan.number_of(name) for name in ("pp", "vpp", "micro_batch", "ga"))
    replicate, shard, reshard = _data(plan)
    parallelism: dict[str, Value] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": reshard,
        "tensor_parallel_degree": plan.number_of("tp"),
        "enable_async_tensor_parallel": bool(fields["overlap_tp"]) and plan.number_of("tp") > 1,
        "context_parallel_degree": plan.number_of("cp"),
        "expert_parallel_degree": plan.number_of("ep"),
        "expert_tensor_parallel_degree": plan.number_of("tp") if plan.experts_with_tp else 1,
        "pipeline_parallel_degree": pp,
    }
    if pp > 1:
        parallelism |= {
            "pipeline_parallel_schedule": _schedule(plan),
            "pipeline_parallel_microbatch_size": micro,
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
            "pipeline_parallel_layers_per_stage": -(-plan.number_of("layers") // (pp * vpp)),
        }
    training: dict[str, Value] = {
        "local_batch_size": micro * ga if pp > 1 else micro,
        "global_batch_size": plan.number_of("global_batch"),
    }
    if plan.sequence:
        training["seq_len"] = plan.sequence
    sections: dict[str, dict[str, Value]] = {"parallelism": parallelism, "training": training}
    mode = str(fields["checkpointing"])
    sections["activation_checkpoint"] = {"mode": "full" if mode == "full" else "none"}
    if parallelism["enable_async_tensor_parallel"]:
        sections["compile"] = {"enable": True}
    return sections


def _data(plan: Launched) -> tuple[int, int, str]:
    """Replicas, ranks that share parameters (besides those of context parallelism), and when they give them back."""
    dp, cp = plan.number_of("dp"), plan.number_of("cp")
    if plan.sharding == "none":
        return dp, 1, "never"
    if plan.sharding == "optimizer" and not plan.stack.startswith("torchtitan"):
        raise SpecError(
            f"plan {plan.number}: torchtitan shards parameters or nothing, not the optimizer alone ({plan.sharding}); "
            "sweep with stack: torchtitan, or sharding: parameters"
        )
    group = plan.number_of("dp_shard") or dp * cp
    if group % cp:
        raise SpecError(
            f"plan {plan.number}: torchtitan shards over whole groups of context parallelism: cp must divide dp_shard"
        )
    kept = plan.sharding in ("gradients", "optimizer") or not plan.fields["reshard_after_forward"]
    return dp * cp // group, group // cp, "never" if kept else "always"


def _schedule(plan: Launched) -> str:
    name = str(plan.fields["schedule"])
    if name not in _SCHEDULES:
        raise SpecError(f"plan {plan.number}: torchtitan has no schedule {name}; it has {', '.join(_SCHEDULES)}")
    if name == "1f1b" and plan.number_of("vpp") > 1:
        return "Interleaved1F1B"
    return _SCHEDULES[name]


def _refused(plan: Launched) -> list[str]:
    """The rules of torchtitan that a plan breaks."""
    tp, cp, pp = (plan.number_of(name) for name in ("tp", "cp", "pp"))
    counts = {count for stage in plan.layers for count in stage}
    rules = {
        "tp x 2 cp must divide the sequence": bool(plan.sequence) and cp > 1 and (plan.sequence or 0) % (tp * 2 * cp) != 0,
        "stages of unequal layers have no key": pp > 1 and len(counts) > 1,
        "ep must divide dp_shard x cp x tp": plan.number_of("ep") > 1
        and (_data(plan)[1] * cp * tp) % plan.number_of("ep") != 0,
    }
    return [what for what, broken in rules.items() if broken]


def _not_said(plan: Launched) -> list[str]:
    fields = plan.fields
    told = {
        f"model {plan.model.name if plan.model else ''}: [model] name and flavor": True,
        f"checkpointing {fields['checkpointing']}": fields["checkpointing"] not in ("none", "full"),
        f"precision {fields['precision']}: converters of [model]": fields["precision"] != "bf16",
        f"cp_comm_type {fields['cp_comm_type']}: context_parallel_rotate_method": plan.number_of("cp") > 1,
        f"dispatcher {fields['dispatcher']}": plan.number_of("ep") > 1 and fields["dispatcher"] != "alltoall",
        f"bucket_bytes {fields['bucket_bytes']}": plan.number_of("bucket_bytes") > 0,
        f"prefetch_layers {fields['prefetch_layers']}": fields["prefetch_layers"] != 1,
        f"stack {plan.stack}: the step is simulated as that framework runs it": bool(plan.stack)
        and not plan.stack.startswith("torchtitan"),
    }
    lines = [what for what, there in told.items() if there] + plan.besides(_NAMED)
    return lines + [f"{key} {value}" for key, value in fields.items() if key.startswith("hardware.")]


def torchtitan_flags(plan: Launched) -> str:
    """The same in one line of flags, over a file of one's own; what is off is left out. Raises SpecError as the file does."""
    named = ((f"--{section}.{key}", value) for section, keys in _accepted(plan).items() for key, value in keys.items())
    return " ".join(flag if value is True else f"{flag} {value}" for flag, value in named if value is not False)


def torchtitan_text(plan: Launched) -> str:
    """The file. Raises SpecError if torchtitan would refuse it."""
    flavor = None if plan.model is None else flavor_of(plan.model)
    model: dict[str, dict[str, Value]] = {"model": {"name": flavor[0], "flavor": flavor[1]}} if flavor else {}
    sections = model | _accepted(plan)
    lines = [
        f"# Plan {plan.number} of the sweep {plan.name}: {plan.number_of('all_gpus')} x {plan.fields['hardware']}, "
        f"simulated step {plan.row['step_time_s']:.4g} s.",
        f"# For torchtitan {VERSION}, the last version that reads TOML (later ones take Python and --section.key flags).",
        *(f"# Without a key: {line}" for line in _not_said(plan)[bool(flavor) :]),
    ]
    for section, keys in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in keys.items())]
    return "\n".join([*lines, ""])


def _accepted(plan: Launched) -> dict[str, dict[str, Value]]:
    broken = _refused(plan)
    if broken:
        raise SpecError(f"plan {plan.number}: torchtitan refuses it: {'; '.join(broken)}")
    return torchtitan_sections(plan)


def _toml(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else f'"{value}"'
