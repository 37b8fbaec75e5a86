"""Which runs tell the numbers of a stack: chosen among measured ones, or made: launch flags, and a table to fill."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from sim_core import Fields, Hardware, Model, SpecError, Stack, Values, model_document, model_names
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.runs.logs import LLAMA, usual_overlaps
from sweep.runs.table import NotSimulated, Row
from sweep.spec.document import first_error
from sweep.spec.spec import SweepSpec


class Purpose(NamedTuple):
    """A run that tells something: its sizes in nodes of g GPUs, and why."""

    name: str
    nodes: int
    tp: float  # over g; 0: no tensor parallelism
    pp: int
    largest: bool  # micro-batch: the largest at hand, else the least
    tells: str

    def sizes_on(self, gpus_per_node: int) -> tuple[int, int, int]:
        """GPUs, tp and pp."""
        return self.nodes * gpus_per_node, max(int(self.tp * gpus_per_node), 1), self.pp


PURPOSES = (
    Purpose("host-bound", 1, 1, 1, False, "host time of a layer: kernels too small to keep the host waiting"),
    Purpose("pipeline across nodes", 2, 1, 2, False, "what a pipeline over two nodes adds: messages, waits of rings"),
    Purpose("tp across nodes", 2, 2, 1, False, "a step of a ring between nodes"),
    Purpose("full device", 1, 0, 1, False, "compute, and the host without tensor parallelism"),
    Purpose("reduction across nodes", 2, 0, 1, True, "gradients and parameters over two nodes, the optimizer, the fixed step"),
    Purpose("large messages", 1, 1, 1, True, "collectives of a layer that are large: contention, what is exposed"),
    Purpose("tp of half a node", 1, 0.5, 1, False, "the host with fewer ranks in a ring"),
    Purpose("pipeline in a node", 1, 0.5, 2, False, "messages of a pipeline inside a node"),
    Purpose("large pipeline across nodes", 2, 1, 2, True, "large messages of a pipeline between nodes"),
    Purpose("large tp across nodes", 2, 2, 1, True, "bandwidth of a ring between nodes"),
    Purpose("reduction in a node", 1, 0, 1, True, "gradients inside a node, the optimizer, the fixed step"),
)
"""In the order in which they are asked for: what moves steps most comes first."""
FEWEST = 3
USUAL = 5


class Sizes(NamedTuple):
    """A plan that may be run, or was."""

    gpus: int
    tp: int
    pp: int
    micro_batch: int
    shares_optimizer: bool = True  # as most stacks do, or there is nothing to share


class Chosen(NamedTuple):
    """A purpose and the plan that serves it, by its place; None: none at hand does."""

    purpose: Purpose
    at: int | None


def chosen(plans: Sequence[Sizes], runs: int, nodes: int, gpus_per_node: int) -> list[Chosen]:
    """The purposes on at most so many nodes in their order, with the plan of each, until `runs` of them have one."""
    found: list[Chosen] = []
    for purpose in PURPOSES:
        if purpose.nodes > nodes or sum(one.at is not None for one in found) == runs:
            continue
        taken = {one.at for one in found}
        fitting = [at for at, plan in enumerate(plans) if at not in taken and serves(plan, purpose, gpus_per_node)]
        sign = -1 if purpose.largest else 1
        found.append(
            Chosen(
                purpose,
                min(fitting, key=lambda at: (sign * plans[at].micro_batch, not plans[at].shares_optimizer), default=None),
            )
        )
    return found


def serves(plan: Sizes, purpose: Purpose, gpus_per_node: int) -> bool:
    """Whether a plan has the sizes of a purpose."""
    return plan[:3] == purpose.sizes_on(gpus_per_node)


SMALL: Values = {
    "name": "llama-1b", "layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 32, "ffn": 8192, "vocabulary": 131072,
    "sequence": 4096, **LLAMA,
}  # fmt: skip
"""The model of the runs unless another is named: 1.6B parameters, so that its kernels are small and it fits on a GPU."""
AXIS = "all_gpus,tp,pp,micro_batch"


class Asked(NamedTuple):
    """The runs to make: purposes, each with a row of the table and a launch text, None where no plan serves it."""

    model: Model
    stack: Stack
    device: str
    runs: list[tuple[Chosen, Fields, str]]
    missing: list[Chosen]


def runs_to_make(
    model: str | None, stack: str, device: str, hardware: Hardware, *, nodes: int, runs: int, global_batch: int
) -> Asked:
    """Choose among plans of the model that fit. Raises SpecError where none does."""
    per_node = int(hardware.value("gpus_per_node"))
    rows = _candidates(per_node, nodes, global_batch)
    prepared = prepare(_spec(model, stack, device, rows, global_batch), Path.cwd())
    statuses = pa.Table.from_batches([evaluate(prepared.sweep, np.arange(len(rows)))])
    fits = [at for at, status in enumerate(statuses["status"].to_pylist()) if status == "ok"]
    if not fits:
        why = sorted(set(statuses["reason"].to_pylist()))
        raise SpecError(f"--plan: no plan of the model on {nodes} nodes of {device} can run: {', '.join(map(str, why))}")
    found = chosen([rows[at] for at in fits], runs, nodes, per_node)
    known = prepared.sweep.workload.modelled
    if known is None:
        raise SpecError("--plan: found a workload file, expected a model")
    text = torchtitan_text if known.stack.name.startswith("torchtitan") else megatron_text
    name = known.model.name
    as_all: Fields = {
        "set": "calibrate", "framework": stack, "hw": device, "model_name": name,
        "model": name if name in model_names() else model_document(known.model), "stack": stack, "hardware": device,
        "global_batch": global_batch, "precision": "bf16", "checkpointing": "none", "layer_split": "balanced",
        "sequence_parallel": True, **usual_overlaps(stack),
    }  # fmt: skip
    made = list[tuple[Chosen, Fields, str]]()
    for one in found:
        if one.at is not None:
            plan = fits[one.at]
            sizes = dict(zip(AXIS.split(","), rows[plan], strict=False))
            row = {"id": len(made) + 1, **as_all, **sizes, "notes": one.purpose.name}
            made.append((one, row, text(launched(prepared, plan))))
    return Asked(known.model, known.stack, device, made, [one for one in found if one.at is None])


def runs_at_hand(rows: Sequence[Row], hardware: Hardware | None, runs: int, nodes: int) -> tuple[list[Row], list[Chosen]]:
    """Those of measured runs that a plan for them would ask for, and the purposes that none serves. Raises SpecError."""
    known = [(row, sizes) for row in rows if (sizes := _sizes(row, hardware)) is not None]
    if not known:
        raise SpecError("--plan: found no run with a time, quality ok and a known device in the table")
    nodes_of = {per_node for _, (_, per_node) in known}
    if len(nodes_of) > 1:
        raise SpecError(f"--plan: found nodes of {' and '.join(map(str, sorted(nodes_of)))} GPUs, expected one: say --set")
    smallest = smallest_model([row for row, _ in known])
    rows, plans = zip(*((row, plan) for row, (plan, _) in known if row.text("model_name") == smallest), strict=True)
    found = chosen(plans, runs, nodes, nodes_of.pop())
    return [rows[one.at] for one in found if one.at is not None], [one for one in found if one.at is None]


def smallest_model(rows: Sequence[Row]) -> str:
    """The name of the model with the fewest matrices: its kernels are the smallest."""
    return min(rows, key=lambda row: (row.model.layers * row.model.hidden**2, row.text("model_name"))).text("model_name")


def _sizes(row: Row, hardware: Hardware | None) -> tuple[Sizes, int] | None:
    """The plan of a run and the GPUs of its nodes; None for one that cannot be used."""
    if row.quality != "ok" or row.number("step_time_s") is None or row.text("reason"):
        return None
    try:
        per_node = int((hardware or row.hardware).value("gpus_per_node"))
    except (NotSimulated, SpecError):
        return None
    plan = row.plan
    if any(plan[key] != 1 for key in ("cp", "vpp", "ep")) or str(plan.get("checkpointing", "")).startswith("full"):
        return None
    dp = plan["all_gpus"] // (plan["tp"] * plan["pp"])
    shared = "sharding" not in plan and (row.stack().sharding == "optimizer" or dp == 1)
    return Sizes(plan["all_gpus"], plan["tp"], plan["pp"], plan["micro_batch"], shared), per_node


def _candidates(per_node: int, nodes: int, global_batch: int) -> list[Sizes]:
    """Plans that may serve some purpose: GPUs, tp, pp and micro-batches that divide the batch."""
    found = []
    for purpose in PURPOSES:
        gpus, tp, pp = purpose.sizes_on(per_node)
        if purpose.nodes <= nodes and gpus % (tp * pp) == 0:
            sizes = [2**power for power in range(global_batch.bit_length())]
            found += [Sizes(gpus, tp, pp, size) for size in sizes if global_batch % (gpus // (tp * pp) * size) == 0]
    return list(dict.fromkeys(found))


def _spec(model: str | None, stack: str, device: str, rows: Sequence[Sizes], global_batch: int) -> SweepSpec:
    document = {
        "name": "calibrate-stack",
        "workload": {"model": dict(SMALL) if model is None else model, "stack": stack},
        "hardware": device,
        "axes": {AXIS: [[row.gpus, row.tp, row.pp, row.micro_batch] for row in rows]},
        "fixed": {"global_batch": global_batch, "layer_split": "balanced", **usual_overlaps(stack)},
    }
    try:
        return SweepSpec.model_validate(document)
    except ValidationError as error:
        raise first_error(error, "--plan", {}, SweepSpec) from None
