"""The plans around one: what each change of one axis gives, simulated, also where the sweep has no such value."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sim_core import FOLLOWING, SCHEDULES, Hardware, Stack, Workload, schedules_to_try, sends_in_background
from sim_core.hardware.kernels.device import load_kernels, precisions
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.one_plan import fields_of
from sweep.evaluation.preparation import Prepared, prepare
from sweep.reopening import Reopened
from sweep.spec.spec import SweepSpec
from sweep.spec.values import STACK_AXIS, Value

Change = dict[str, Value]
HARDWARE: Final = "hardware"
NETWORK: Final = "hardware.nic_bandwidth"
ELSEWHERE: Final = ("all_gpus", "global_batch", NETWORK, "precision", "expert_imbalance")
"""Changes of the job or its machine, not of the plan alone."""
MXFP8: Final = "mxfp8"
TENSORWISE: Final = ("torchtitan",)
"""Stacks whose usual recipe in 8 bits scales each tensor anew (torchao.float8); the others have delayed scales."""


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A plan with one change: the name of the axis, the change in words, its result as a row."""

    axis: str
    change: str
    row: dict[str, Any]

    @property
    def runs(self) -> bool:
        """Whether it has a result."""
        return bool(self.row["status"] == "ok")

    @property
    def of_plan(self) -> bool:
        """Whether it trains the same job on the same machine."""
        return self.axis not in ELSEWHERE


def neighbours(
    opened: Reopened, number: int, row: Mapping[str, Any], wanted: Callable[[Change], bool] = lambda _: True
) -> list[Neighbour]:
    """The neighbours of plan `number`, whose result is `row`, by axis; those with a wanted change. Raises SimError."""
    changes = [(axis, change) for axis, change in _changes(opened, number, row) if wanted(change)]
    if not changes:
        return []
    sweep = sweep_around(opened, number, row, [change for _, change in changes]).sweep
    rows = pa.Table.from_batches([evaluate(sweep, np.arange(len(changes)))]).to_pylist()
    modelled = opened.prepared.sweep.of_plan(number).workload.modelled
    stack = modelled.stack if modelled else None
    return [
        Neighbour(axis=axis, change=_told(change, own, stack), row=own)
        for (axis, change), own in zip(changes, rows, strict=True)
    ]


def _told(change: Change, row: Mapping[str, Any], stack: Stack | None) -> str:
    """A change in words, with what the stack does not have."""
    words = []
    for name, value in change.items():
        if name == NETWORK:
            words.append(f"NIC {row['nic_bandwidth'] / 1e9:g} GB/s")
        elif name == "all_gpus":
            words.append(f"{value} GPUs (dp {row['dp']})")
        elif name == "global_batch":
            words.append(f"global batch {value} (ga {row['ga']})")
        elif name == "schedule" and stack and value not in stack.schedules:
            words.append(f"schedule {value} ({stack.name} lacks it)")
        else:
            words.append(f"{name} {('on' if value else 'off') if isinstance(value, bool) else value}")
    return ", ".join(words)


def _changes(opened: Reopened, number: int, row: Mapping[str, Any]) -> Iterator[tuple[str, Change]]:
    """Changes worth a look, each with the name of its axis; a value is halved and doubled."""
    workload, fields = opened.prepared.sweep.of_plan(number).workload, fields_of(opened.prepared.sweep.space, number)
    yield from _of_sizes(workload, row, int(fields["cp"]))
    yield from _of_layers(workload, row)
    for name, size in (("tp", "tp"), ("ep", "ep"), ("pp", "pp"), ("grad", "dp"), ("param", "dp")):
        if int(row[size]) > 1:
            yield f"overlap_{name}", {f"overlap_{name}": not row[f"overlap_{name}"]}
    if int(row["ep"]) > 1 and (len(workload.arrays.expert_load) or not workload.from_file):
        yield from _others("expert_imbalance", ("recorded", "balanced", "zipf:1"), fields)
    if not workload.from_file:
        if int(row["dp"]) > 1:
            yield from _others("sharding", ("none", "optimizer", "gradients", "parameters"), fields)
        if int(row["ep"]) > 1:
            yield from _others("dispatcher", ("alltoall", "flex"), fields)
        yield from _others("precision", _recipes(opened, workload, row), fields)
    for name in ("all_gpus", "global_batch"):
        for value in _both_ways(int(row[name])):
            yield name, {name: value}
    for times in (0.5, 2.0):
        yield NETWORK, {NETWORK: network_of(opened, row, times)}


def _recipes(opened: Reopened, workload: Workload, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Precisions worth a look: 16 bits, the usual 8 bits of the stack, and those of the device with scales of blocks."""
    name = workload.modelled.stack.name if workload.modelled else ""
    recipes = ("bf16", "fp8_tensorwise" if name in TENSORWISE else "fp8_delayed")
    return (*recipes, MXFP8) if MXFP8 in precisions(load_kernels(_device(opened, row))) else recipes


def _of_sizes(workload: Workload, row: Mapping[str, Any], cp: int) -> Iterator[tuple[str, Change]]:
    """Changes of the sizes of groups and of the micro-batch."""
    pp, vpp = int(row["pp"]), int(row["vpp"])
    sizes = {"tp": int(row["tp"]), "cp": cp, "pp": pp, "ep": int(row["ep"]), "micro_batch": int(row["micro_batch"])}
    if workload.from_file:
        del sizes["cp"]  # no file tells what context parallelism changes
    if not workload.has_experts:
        del sizes["ep"]
    for name, size in sizes.items():
        for value in _both_ways(size):
            alone = name == "pp" and value == 1 and vpp > 1
            yield name, {name: value, **({"vpp": 1} if alone else {})}
    for value in _chunks(pp, vpp, workload.layers, str(row["layer_split"])):
        yield "vpp", {"vpp": value}


def _of_layers(workload: Workload, row: Mapping[str, Any]) -> Iterator[tuple[str, Change]]:
    """Changes of recompute, of the schedule and of the split of layers."""
    pp, vpp = int(row["pp"]), int(row["vpp"])
    half = max(workload.layers // (pp * vpp) // 2, 1)
    yield from _others("checkpointing", ("none", "selective", "full", f"block:{half}"), row)
    if pp > 1:
        yield from _others("schedule", schedules_to_try(vpp), row)
        yield from _others("layer_split", ("balanced", "balanced_cost", "embedding_and_loss_as_layer"), row)


def _both_ways(value: int) -> list[int]:
    """Half of it, if that is whole, and twice as much."""
    return [value // 2, value * 2] if value % 2 == 0 else [value * 2]


def _others(name: str, values: tuple[str, ...], own: Mapping[str, Any]) -> Iterator[tuple[str, Change]]:
    for value in values:
        if value != own[name]:
            yield name, {name: value}


def _chunks(pp: int, vpp: int, layers: int, split: str) -> list[int]:
    """The next smaller and larger numbers of chunks; of an even split, those that divide the layers."""
    if pp == 1:
        return []
    if split != "even":
        return _both_ways(vpp)
    fitting = [each for each in range(1, layers // pp + 1) if layers % (pp * each) == 0]
    below, above = [each for each in fitting if each < vpp], [each for each in fitting if each > vpp]
    return [*below[-1:], *above[:1]]


def sweep_around(opened: Reopened, number: int, row: Mapping[str, Any], changes: Sequence[Mapping[str, Value]]) -> Prepared:
    """A sweep of one row for each of `changes`, which replace fields of plan `number`; `row` is its result.

    GPUs and global batch stay what they are unless they are changed; `ga` follows. Raises SimError.
    """
    sections = pinned(opened, number, row)
    hardware, fixed = sections["hardware"], sections["fixed"]
    fields = fields_of(opened.prepared.sweep.space, number)
    fields |= {"all_gpus": int(row["all_gpus"]), "global_batch": int(row["global_batch"])}
    changed = list(dict.fromkeys(name for change in changes for name in change))
    for name in changed:
        fixed.pop(name, None)
    if NETWORK in changed:
        hardware.pop("nic_bandwidth", None)
        fields[NETWORK] = network_of(opened, row)
    rows = [[_value(name, change, fields) for name in changed] for change in changes]
    document = opened.spec.model_dump(mode="json") | {
        **sections,
        "name": "around",
        "axes": {",".join(changed): rows if len(changed) > 1 else [value for (value,) in rows]},
        "where": [],
        "objectives": [{"column": "step_time_s", "direction": "minimize"}],
        "per": [],
        "sample": None,
    }
    return prepare(SweepSpec.model_validate(document), opened.base)


def pinned(opened: Reopened, number: int, row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sections `workload`, `hardware` and `fixed` of a spec that is plan `number` alone.

    GPUs and global batch are those of `row`.
    """
    space = opened.prepared.sweep.space
    fields = fields_of(space, number) | {"all_gpus": int(row["all_gpus"]), "global_batch": int(row["global_batch"])}
    named = {*space.named, NETWORK} - {*FOLLOWING, STACK_AXIS}
    workload = opened.spec.workload.model_dump(mode="json")
    if STACK_AXIS in fields:
        workload["stack"] = fields[STACK_AXIS]
    hardware = dict(opened.spec.hardware)
    fixed: dict[str, Any] = {name: fields[name] for name in ("all_gpus", "global_batch")}
    for name, value in fields.items():
        if name == HARDWARE and name in named:
            hardware = {"preset": value, **hardware}
        elif name.startswith(f"{HARDWARE}."):
            hardware[name.removeprefix(f"{HARDWARE}.")] = value
        elif name in named:
            fixed[name] = value
    return {"workload": workload, "hardware": hardware, "fixed": fixed}


def network_of(opened: Reopened, row: Mapping[str, Any], times: float = 1.0) -> str:
    """The bandwidth of a NIC under a plan, multiplied, as text with its unit."""
    return f"{row.get('nic_bandwidth', _device(opened, row).value('nic_bandwidth')) * times!r} B/s"


def _device(opened: Reopened, row: Mapping[str, Any]) -> Hardware:
    """The hardware of a plan."""
    variants = opened.prepared.sweep.hardware.variants
    return next((variant for variant in variants if variant.name == row["hardware"]), variants[0])


def _value(name: str, change: Mapping[str, Value], fields: Mapping[str, Value]) -> Value:
    """The value of a field under a change; sends in the background follow schedule and vpp unless the sweep says otherwise."""
    if name in change:
        return change[name]
    if name == "overlap_pp" and name not in fields:
        schedule = SCHEDULES.index(str(change.get("schedule", fields["schedule"])))
        vpp = int(change.get("vpp", fields["vpp"]))
        return bool(sends_in_background(np.array([schedule]), np.array([vpp]))[0])
    return fields[name]
