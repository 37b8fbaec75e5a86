"""One variation: a plan, what changes of it, its job or its machine, both simulated, and the difference by part."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from sim_core import FOLLOWING, SCHEDULES, Fields, Hardware, Plans, Stack, sends_in_background
from sweep.columns import NO_CHOICE
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.one_plan import fields_of, plans_of, row_of
from sweep.evaluation.preparation import Prepared, Sweep, prepare
from sweep.exporting.meant import as_expected, known_of
from sweep.reopening import Reopened
from sweep.spec.document import first_error
from sweep.spec.spec import SweepSpec
from sweep.spec.values import STACK_AXIS, Value
from sweep.tuning.tuner import Tuner
from sweep.wording import Values

Change = Mapping[str, Value]
"""Fields of a plan and numbers of its hardware, with what they become."""
HARDWARE = "hardware"
NETWORK = "hardware.nic_bandwidth"
COST = "gpu_s_per_sample"
STEP = "step_time_s"


@dataclass(frozen=True, kw_only=True)
class PlanOfResult:
    """Plan number `plan` of a result, with its row."""

    opened: Reopened
    plan: int
    row: Values

    @cached_property
    def sweep(self) -> Sweep:
        """The sweep, with the workload of this plan."""
        return self.opened.prepared.sweep.of_plan(self.plan)

    @cached_property
    def plans(self) -> Plans:
        """The plan as columns of length 1."""
        return plans_of(self.opened.prepared, self.plan)

    @property
    def hardware(self) -> Hardware:
        """The device that it runs on."""
        return self.sweep.hardware.variants[int(self.plans.hardware[0])]

    @property
    def stack(self) -> Stack | None:
        """The framework of a model in numbers."""
        modelled = self.sweep.workload.modelled
        return modelled.stack if modelled else None

    @property
    def runs(self) -> bool:
        """Whether the plan has a result."""
        return bool(self.row["status"] == "ok")

    @cached_property
    def tuner(self) -> Tuner | None:
        """What runs tell of the plans of its result; None without any."""
        return known_of(self.opened.folder, self.opened)

    @cached_property
    def here(self) -> Values | None:
        """Its row as expected here, if it runs and a step of the job is known."""
        return as_expected(self.row, self.tuner) if self.runs and self.tuner and self.tuner.is_timed else None

    @property
    def fields(self) -> dict[str, Value]:
        """Its fields; GPUs and global batch are those of its row, for `ga` follows."""
        sizes = {name: int(self.row[name]) for name in ("all_gpus", "global_batch")}
        return fields_of(self.opened.prepared.sweep.space, self.plan) | sizes

    def network(self, times: float = 1.0) -> str:
        """The bandwidth of a NIC under it, multiplied, as text with its unit."""
        return f"{self.row.get('nic_bandwidth', self.hardware.value('nic_bandwidth')) * times!r} B/s"


def plan_of(opened: Reopened, number: int) -> PlanOfResult:
    """Plan `number` of a result. Raises SimError."""
    return PlanOfResult(opened=opened, plan=number, row=row_of(opened.prepared, number))


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A plan as it is, `before`, and under a change, `after`: both as rows of a result, empty where there is no such plan."""

    change: str = ""  # in words
    axis: str = ""  # the axis that is changed, where it is one
    before: Values
    after: Values

    @property
    def runs(self) -> bool:
        """Whether the changed plan has a result."""
        return bool(self.after.get("status") == "ok")

    @property
    def fields(self) -> dict[str, tuple[Any, Any]]:
        """Plan columns in which the two differ, with both values; those that are no choice of a plan, too."""
        names = takewhile(lambda name: name not in ("status", STEP), self.after)
        both = {name: (self.before.get(name), self.after[name]) for name in names if name != "plan"}
        return {name: (before, after) for name, (before, after) in both.items() if before != after}

    @property
    def chosen(self) -> Fields:
        """What one has to choose for the changed plan: its values of the plan columns in which the two differ."""
        return {name: value for name, (_, value) in self.fields.items() if name not in NO_CHOICE}

    def times(self, column: str) -> float:
        """How many times as large a column is before as after: of a column that is a time, the speed-up."""
        return float(self.before[column]) / float(self.after[column])

    def gain(self, column: str = COST) -> float:
        """How much faster the changed plan is, for each GPU, or by another column that is a time; a fraction."""
        return self.times(column) - 1

    def apart(self, columns: Iterable[str]) -> dict[str, float]:
        """After - before of parts of the step, seconds, or of the memory, bytes, as far as both are known."""
        before, after = self.before, self.after
        known = (name for name in columns if None not in (before.get(name), after.get(name)))
        return {name: after[name] - before[name] for name in known}


def pinned(plan: PlanOfResult) -> Fields:
    """The spec of a result with all that is the plan in `workload`, `hardware` and `fixed`; its axes are left as they are."""
    fields, spec = plan.fields, plan.opened.spec
    named = {*plan.opened.prepared.sweep.space.named, NETWORK} - {*FOLLOWING, STACK_AXIS}
    document = spec.model_dump(mode="json") | {"sample": None, "per": []}
    workload, hardware = dict(document["workload"]), dict(spec.hardware)
    if STACK_AXIS in fields:
        workload["stack"] = fields[STACK_AXIS]
    fixed = {name: fields[name] for name in ("all_gpus", "global_batch")}
    for name, value in fields.items():
        if name == HARDWARE and name in named:
            hardware = {"preset": value, **hardware}
        elif name.startswith(f"{HARDWARE}."):
            hardware[name.removeprefix(f"{HARDWARE}.")] = value
        elif name in named:
            fixed[name] = value
    return document | {"workload": workload, "hardware": hardware, "fixed": fixed}


def prepared(document: Values, base: Path) -> Prepared:
    """The sweep of a spec that is changed here. Raises SpecError."""
    try:
        return prepare(SweepSpec.model_validate(document), base)
    except ValidationError as error:
        raise first_error(error, "what if", {}, SweepSpec) from None


def vary(plan: PlanOfResult, changes: Sequence[Change]) -> list[Fields]:
    """The rows of a plan under each of some changes, simulated together. Raises SimError."""
    if not changes:
        return []
    return list(pa.Table.from_batches([evaluate(sweep_around(plan, changes).sweep, np.arange(len(changes)))]).to_pylist())


def sweep_around(plan: PlanOfResult, changes: Sequence[Change]) -> Prepared:
    """A sweep of one row for each of `changes`, which replace fields of a plan.

    GPUs and global batch stay what they are unless they are changed; `ga` follows. Raises SimError.
    """
    document, fields = pinned(plan), plan.fields
    changed = list(dict.fromkeys(name for change in changes for name in change))
    for name in changed:
        document["fixed"].pop(name, None)
    if NETWORK in changed:
        document["hardware"].pop("nic_bandwidth", None)
        fields[NETWORK] = plan.network()
    rows = [[_value(name, change, fields) for name in changed] for change in changes]
    document |= {
        "name": "around",
        "axes": {",".join(changed): rows if len(changed) > 1 else [value for (value,) in rows]},
        "where": [],
        "objectives": [{"column": STEP, "direction": "minimize"}],
    }
    return prepared(document, plan.opened.base)


def _value(name: str, change: Change, fields: Mapping[str, Value]) -> Value:
    """The value of a field under a change; sends in the background follow schedule and vpp unless the sweep says otherwise."""
    if name in change:
        return change[name]
    if name == "overlap_pp" and name not in fields:
        schedule = SCHEDULES.index(str(change.get("schedule", fields["schedule"])))
        return bool(sends_in_background(np.array([schedule]), np.array([int(change.get("vpp", fields["vpp"]))]))[0])
    return fields[name]
