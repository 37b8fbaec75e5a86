"""One plan of a sweep as values by field, and a sweep of its own around it: the plan with some fields changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sim_core import SCHEDULES, sends_in_background
from sweep.preparation import Prepared, prepare
from sweep.reopening import Reopened
from sweep.space import Space, is_labelled
from sweep.spec import FIELDS, SweepSpec, Value

Fields = dict[str, Value]
HARDWARE: Final = "hardware"
NETWORK: Final = "hardware.nic_bandwidth"


def fields_of(space: Space, number: int) -> Fields:
    """The values of every field of plan `number`, those of hardware axes included."""
    fields: Fields = {}
    for name, column in space.decode(np.array([number], np.int64)).items():
        code = int(column[0])
        if is_labelled(name):
            fields[name] = space.labels[name][code]
        elif FIELDS[name].words:
            fields[name] = FIELDS[name].words[code]
        else:
            fields[name] = bool(code) if FIELDS[name].kind == "switch" else code
    return fields


def sweep_around(opened: Reopened, number: int, row: Mapping[str, Any], changes: Sequence[Mapping[str, Value]]) -> Prepared:
    """A sweep of one row for each of `changes`, which replace fields of plan `number`; `row` is its result.

    GPUs and global batch stay what they are unless they are changed; `ga` follows. Raises SimError.
    """
    space = opened.prepared.sweep.space
    fields = fields_of(space, number)
    named = {*space.named, NETWORK} - {"dp", "ga"}
    fields |= {"all_gpus": int(row["all_gpus"]), "global_batch": int(row["global_batch"])}
    changed = list(dict.fromkeys(name for change in changes for name in change))
    hardware = dict(opened.spec.hardware)
    fixed: dict[str, Any] = {name: fields[name] for name in ("all_gpus", "global_batch")}
    for name, value in fields.items():
        if name == HARDWARE and name in named:
            hardware = {"preset": value, **hardware}
        elif name.startswith(f"{HARDWARE}."):
            hardware[name.removeprefix(f"{HARDWARE}.")] = value
        elif name in named:
            fixed[name] = value
    for name in changed:
        fixed.pop(name, None)
    if NETWORK in changed:
        hardware.pop("nic_bandwidth", None)
        fields[NETWORK] = network_of(opened, row)
    rows = [[_value(name, change, fields) for name in changed] for change in changes]
    document = opened.spec.model_dump(mode="json") | {
        "name": "around",
        "hardware": hardware,
        "axes": {",".join(changed): rows if len(changed) > 1 else [value for (value,) in rows]},
        "fixed": fixed,
        "where": [],
        "objectives": [{"column": "step_time_s", "direction": "minimize"}],
        "per": [],
        "sample": None,
    }
    return prepare(SweepSpec.model_validate(document), opened.base)


def network_of(opened: Reopened, row: Mapping[str, Any], times: float = 1.0) -> str:
    """The bandwidth of a NIC under a plan, multiplied, as text with its unit."""
    variants = opened.prepared.sweep.hardware.variants
    own = next((variant for variant in variants if variant.name == row["hardware"]), variants[0])
    return f"{row.get('nic_bandwidth', own.value('nic_bandwidth')) * times!r} B/s"


def _value(name: str, change: Mapping[str, Value], fields: Fields) -> Value:
    """The value of a field under a change; sends in the background follow schedule and vpp unless the sweep says otherwise."""
    if name in change:
        return change[name]
    if name == "overlap_pp" and name not in fields:
        schedule = SCHEDULES.index(str(change.get("schedule", fields["schedule"])))
        vpp = int(change.get("vpp", fields["vpp"]))
        return bool(sends_in_background(np.array([schedule]), np.array([vpp]))[0])
    return fields[name]
