"""One plan of a sweep with all that a launch needs: its fields by name, its layers by stage, the model it trains."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from sim_core import PLAN_DEFAULTS, Model, SpecError, shape_of
from sweep.evaluation.one_plan import fields_of, plans_of, row_of
from sweep.evaluation.preparation import Prepared
from sweep.spec.values import Value


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A plan that can run.

    `fields`: every field of the plan by name. `layers[stage][chunk]`: layers of each virtual stage. `model`: None where a file
    holds no model. `sharding`: what the ranks of a group share, with the stack's own choice filled in.
    """

    name: str
    number: int
    fields: dict[str, Value]
    row: dict[str, Any]
    layers: tuple[tuple[int, ...], ...]
    model: Model | None
    sequence: int | None
    stack: str
    sequence_parallel: bool
    sharding: str
    experts_with_tp: bool
    reduces_in_bf16: bool
    gpus_per_node: int
    spec: dict[str, Any]

    def number_of(self, field: str) -> int:
        """A field that is a whole number."""
        return int(self.fields[field])

    def besides(self, named: Set[str]) -> list[str]:
        """Fields with another value than the default that a format does not name: no choice of a plan is dropped in silence."""
        return [
            f"{name} {value}"
            for name, value in self.fields.items()
            if name not in named and name in PLAN_DEFAULTS and value != PLAN_DEFAULTS[name]
        ]


def launched(prepared: Prepared, number: int) -> Launched:
    """Plan `number` of a sweep over every plan. Raises SpecError if it cannot run, unless only its memory is too small."""
    plans = plans_of(prepared, number)
    row = row_of(prepared, number)
    if row["status"] != "ok":
        raise SpecError(f"plan {number} is {row['status']}: {row['reason']}")
    workload, hardware = prepared.sweep.of_plan(number).workload, prepared.sweep.hardware
    fields = fields_of(prepared.sweep.space, number)
    fields |= {name: row[name] for name in ("tp", "pp", "vpp", "ep", "dp", "all_gpus", "micro_batch", "ga", "global_batch")}
    fields |= {name: row[name] for name in ("layer_split", "checkpointing", "schedule", "hardware", "overlap_pp")}
    known = workload.modelled
    chosen, own = str(fields["sharding"]), "optimizer" if known is None else known.stack.sharding
    if known is not None and row["pp"] > 1:
        own = known.stack.sharding_in_pipeline or own
    return Launched(
        name=str(prepared.provenance["name"]),
        number=number,
        fields=fields,
        row=row,
        layers=shape_of(workload, hardware, plans).layers,
        model=None if known is None else known.model,
        sequence=workload.sequence,
        stack="" if known is None else known.stack.name,
        sequence_parallel=known is not None and known.sequence_parallel and row["tp"] > 1,
        sharding=own if chosen == "stack" else chosen,
        experts_with_tp=known is not None and known.stack.experts_with_tp,
        reduces_in_bf16=fields["precision"] != "fp16"
        and (fields["gradient_precision"] == "bf16" or (known is not None and known.stack.gradient_bytes == 2)),
        gpus_per_node=int(hardware.variants[int(plans.hardware[0])].value("gpus_per_node")),
        spec=prepared.provenance["spec"],
    )
