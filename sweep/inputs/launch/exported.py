"""Plans that `sweep export --format json` wrote: the fields as they are."""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from sim_core import SimError, SpecError, parse_model
from sweep.inputs.launch.job import Launch, missing_of, number, section
from sweep.inputs.launch.megatron import numbers_of
from sweep.inputs.text import model_note

SIGN: Final = re.compile(r"\A\s*\{\s*\"sweep\":.{0,4096}\"fields\":\s*\{", re.DOTALL)
SIZES: Final = ("tp", "pp", "vpp", "cp", "ep", "dp", "all_gpus", "micro_batch", "global_batch")
CHOICES: Final = (
    "checkpointing", "precision", "overlap_tp", "overlap_ep", "overlap_pp", "overlap_grad", "overlap_param", "bucket_bytes",
    "reshard_after_forward", "dispatcher", "overlap_shared_experts",
)  # fmt: skip
FRAMEWORKS: Final = {"megatron-core": "Megatron-LM", "torchtitan": "torchtitan", "nemo": "NeMo"}


def read_json(path: str, document: Mapping[str, Any]) -> Launch:
    """The plan of an exported file. Raises SpecError if its sizes do not fit together."""
    fields, model = section(document, "fields"), section(document, "model")
    stack = str(document.get("stack", ""))[:40]
    plan: dict[str, Any] = {name: number(fields, name) for name in SIZES}
    sizes = [plan[name] for name in ("tp", "pp", "cp", "dp")]
    if None in sizes or math.prod(sizes) != plan["all_gpus"]:
        raise SpecError(f"{path}: tp x pp x cp x dp of its fields are not all_gpus")
    plan |= {name: fields[name] for name in CHOICES if isinstance(fields.get(name), bool | int | str)}
    plan |= {"sequence": number(document, "sequence"), "sequence_parallel": document.get("sequence_parallel") is True}
    plan["sharding"] = document.get("sharding") if isinstance(document.get("sharding"), str) else None
    plan["overlap_param"] = plan.get("overlap_param") is True and plan["sharding"] != "none"
    if (plan["pp"] or 1) > 1 and isinstance(fields.get("schedule"), str):
        plan["schedule"] = fields["schedule"]
    if (plan["cp"] or 1) > 1 and isinstance(fields.get("cp_comm_type"), str):
        plan["cp_comm_type"] = fields["cp_comm_type"]
    if shard := number(fields, "dp_shard"):
        plan["dp_shard"] = shard
    split = fields.get("layer_split")
    if isinstance(split, list) and all(type(layers) is int for layers in split):
        plan["layer_split"] = split
    numbers: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    try:
        numbers = numbers_of(parse_model({"name": "model", "source": path, **model}, path)) if model else {}
    except SimError as error:
        notes = (model_note(error, path),)
    return Launch(
        path=path, framework=FRAMEWORKS.get(stack, stack), plan=plan, model=numbers, stack=stack,
        missing=missing_of(plan, numbers), notes=notes,
    )  # fmt: skip
