"""Plans that `sweep export --format json` wrote: the fields as they are."""

import math
import re

from sim_core import PLAN_DEFAULTS, Fields, SpecError, Values, parse_model
from sweep.inputs.launch.keys import number, numbers_or_why, section
from sweep.inputs.told import Job

SIGN = re.compile(r"\A\s*\{\s*\"sweep\":.{0,4096}\"fields\":\s*\{", re.DOTALL)
SIZES = ("tp", "pp", "vpp", "cp", "ep", "dp", "all_gpus", "micro_batch", "global_batch")
ALWAYS = ("checkpointing", "precision", "overlap_tp", "overlap_pp", "overlap_grad", "overlap_param")
"""Choices that are told though they are the default; the rest where they are not."""
OF_THE_SWEEP = (
    "hardware", "fidelity", "sequence", "experts", "dp_overlap_ratio", "tp_overlap_ratio", "ep_overlap_ratio",
    "pp_overlap_ratio", "expert_imbalance", "straggler_stage", "straggler_factor", "device_speed",
)  # fmt: skip
"""Fields that say how a plan is simulated, not what is launched."""
LIST = re.compile(r"\d{1,4}(?:,\d{1,4})+")
FRAMEWORKS = {"megatron-core": "Megatron-LM", "torchtitan": "torchtitan", "nemo": "NeMo"}


def read_json(path: str, document: Values) -> Job:
    """The plan of an exported file. Raises SpecError if its sizes do not fit together."""
    fields, model = section(document, "fields"), section(document, "model")
    stack = str(document.get("stack", ""))[:40]
    plan: Fields = {name: number(fields, name) for name in SIZES}
    sizes = [plan[name] for name in ("tp", "pp", "cp", "dp")]
    if None in sizes or math.prod(sizes) != plan["all_gpus"]:
        raise SpecError(f"{path}: tp x pp x cp x dp of its fields are not all_gpus")
    plan |= {
        name: value for name, value in fields.items()
        if name in PLAN_DEFAULTS.keys() - OF_THE_SWEEP and name not in SIZES and isinstance(value, bool | int | str)
        and (name in ALWAYS or value != PLAN_DEFAULTS[name])
    }  # fmt: skip
    sharding, kind = document.get("sharding"), fields.get("cp_comm_type")
    plan |= {
        "sequence": number(document, "sequence"),
        "sequence_parallel": document.get("sequence_parallel") is True,
        "sharding": sharding if isinstance(sharding, str) else None,
        "overlap_param": plan.get("overlap_param") is True and sharding != "none",
    }
    if (plan["pp"] or 1) > 1 and isinstance(fields.get("schedule"), str):
        plan["schedule"] = fields["schedule"]
    if plan["cp"] == 1:
        plan.pop("cp_comm_type", None)
    elif isinstance(kind, str):
        plan["cp_comm_type"] = kind
    split = plan.get("layer_split")
    if isinstance(split, str) and LIST.fullmatch(split):
        plan["layer_split"] = [int(layers) for layers in split.split(",")]
    named = {"name": "model", "source": path, **model}
    numbers, notes = numbers_or_why(lambda: parse_model(named, path), path) if model else ({}, ())
    return Job(framework=FRAMEWORKS.get(stack, stack), plan=plan, model=numbers, stack=stack, notes=notes)
