"""A plan as the TOML of torchtitan v0.2.2, the last version that reads TOML; what has no key is a comment."""

import json

from sim_core import SpecError
from sweep.frameworks import torchtitan
from sweep.frameworks.plan import Launched
from sweep.frameworks.torchtitan_models import flavor_of

VERSION = "v0.2.2"
NAMED = {
    "schedule", "layer_split", "checkpointing", "precision", "dispatcher", "bucket_bytes", "overlap_tp", "sequence", "cp",
    "cp_comm_type", "sharding", "dp_shard", "reshard_after_forward", "prefetch_layers", "parameter_offload",
    "optimizer_offload",
}  # fmt: skip
"""Fields with a key, or with a comment where they have none."""


def _not_said(plan: Launched) -> list[str]:
    fields = plan.fields
    told = {
        f"model {plan.model.name if plan.model else ''}: [model] name and flavor": True,
        f"checkpointing {fields['checkpointing']}": fields["checkpointing"] != "none" and torchtitan.mode_of(plan) == "none",
        f"precision {fields['precision']}: converters of [model]": fields["precision"] != "bf16",
        f"cp_comm_type {fields['cp_comm_type']}: {torchtitan.ROTATE.name}": plan["cp"] > 1,
        f"dispatcher {fields['dispatcher']}": plan["ep"] > 1 and fields["dispatcher"] != "alltoall",
        f"bucket_bytes {fields['bucket_bytes']}": plan["bucket_bytes"] > 0,
        f"prefetch_layers {fields['prefetch_layers']}": fields["prefetch_layers"] != 1,
        f"stack {plan.stack}: the step is simulated as that framework runs it": bool(plan.stack)
        and not plan.stack.startswith(torchtitan.PAGE),
    }
    return plan.besides(told, NAMED)


def torchtitan_flags(plan: Launched) -> str:
    """The same in one line of flags, over a file of one's own; what is off is left out. Raises SpecError as the file does."""
    if torchtitan.is_unequal(plan):
        raise SpecError(f"plan {plan.number}: stages of unequal layers are listed in a file: `sweep export` writes it")
    named = ((f"--{section}.{key}", value) for section, keys in _accepted(plan).items() for key, value in keys.items())
    return " ".join(flag if value is True else f"{flag} {value}" for flag, value in named if value is not False)


def torchtitan_text(plan: Launched) -> str:
    """The file. Raises SpecError if torchtitan would refuse it."""
    flavor = None if plan.model is None else flavor_of(plan.model)
    model = {}
    if flavor:
        model["model"] = {torchtitan.NAME.name: flavor[0], torchtitan.FLAVOR.name: flavor[1]}
    lines = [
        f"# Plan {plan.number} of the sweep {plan.name}: {plan['all_gpus']} x {plan['hardware']}, "
        f"simulated step {plan.row['step_time_s']:.4g} s.",
        f"# For torchtitan {VERSION}, the last version that reads TOML (later ones take Python and --section.key flags).",
        *(f"# Without a key: {line}" for line in _not_said(plan)[bool(flavor) :]),
    ]
    for section, keys in (model | _accepted(plan)).items():
        lines += ["", f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return "\n".join([*lines, ""])


def _accepted(plan: Launched) -> torchtitan.Sections:
    if broken := torchtitan.refused(plan):
        raise SpecError(f"plan {plan.number}: torchtitan refuses it: {'; '.join(broken)}")
    return torchtitan.sections_of(plan)
