"""A plan of a sweep, by its number, with all that a launch needs."""

from sim_core import SpecError, shape_of
from sweep.evaluation.one_plan import fields_of, plans_of, row_of
from sweep.evaluation.preparation import Prepared
from sweep.frameworks.plan import Launched


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
