"""Stage durations as a `Workload`: layers that take what their stage took, and messages that cost what its step tells."""

import numpy as np

from sim_core.errors import SpecError
from sim_core.workloads.stages.text import StageDurations
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    FORWARD,
    INPUT_GRADIENT,
    Arrays,
    BasePlan,
    StepRow,
    Workload,
    layers_by_unit,
    no_work,
    step_pieces,
)

STAGES = "stage durations"
PARTS = 8
"""Equal layers into which a stage is divided where their number is not told."""
INTERVAL = 0.05
"""Of the step under another schedule: one model on 8 GPUs, 1F1B and interleaved, each from the other (docs/traces.md)."""


def workload_from_stages(recorded: StageDurations, *, layers: int | None, micro_batch: int | None) -> Workload:
    """The workload of a recorded pipeline. Raises SpecError for layers that its stages do not divide.

    A stage's time is that of its layers; what the last has beyond the middle of the others is the head, run once after them.
    """
    virtual = recorded.pp * recorded.vpp
    layers, micro_batch = layers or recorded.layers, micro_batch or recorded.micro_batch
    count = layers or virtual * max(PARTS // recorded.vpp, 1)
    if count % virtual:
        raise SpecError(f"workload.layers: found {count}, expected a multiple of {virtual}, the stages that were recorded")
    # [virtual, 2] in the order of the model: the chunks of all stages one after the other
    times = np.stack([recorded.forward_s.T.ravel(), recorded.backward_s.T.ravel()], axis=1)
    head = np.maximum(times[-1] - np.median(times[:-1], axis=0), 0.0) if virtual > 2 else np.zeros(2)
    times[-1] -= head
    per_layer = times / (count // virtual)
    pieces = no_work(virtual + 1)._replace(unit=np.arange(virtual + 1))
    pieces.compute_s[:, (FORWARD, INPUT_GRADIENT)] = np.vstack((per_layer, head))
    pp = recorded.pp
    base = BasePlan(pp=pp, vpp=recorded.vpp, all_gpus=pp, ga=recorded.micro_batches, micro_batch=micro_batch or 1)
    arrays = Arrays(
        base=base,
        pieces=pieces,
        step=step_pieces([StepRow(AFTER_GRADIENTS, compute_s=recorded.after_s)] if recorded.after_s else []),
        unit_layers=layers_by_unit(np.arange(count) // (count // virtual), virtual + 1),
        last_unit=virtual,
        p2p_bytes=1.0,  # not in the file: a message costs what the recorded step tells, whatever its size
        micro_batches=float(base.ga),
        gradient_width=2.0,
    )
    return Workload(
        kind=STAGES,
        base=base,
        layers=count,
        names=(*(f"layer of virtual stage {stage}" for stage in range(virtual)), "head"),
        arrays=arrays,
        gradients_known=(False, False),
        recorded_step_s=recorded.step_s,
        replayed_s=recorded.step_s,
        files="stages",
        notes=tuple(_notes(recorded, layers, count, micro_batch)),
    )


def _notes(recorded: StageDurations, layers: int | None, count: int, micro_batch: int | None) -> list[str]:
    whole = "the step" if recorded.after_s else "the step is the pipeline's"
    notes = [
        *recorded.notes,
        f"{whole}: the middle of {recorded.steps} steps, {recorded.step_s * 1e3:,.0f} ms, spread {recorded.spread:.1%}",
        "a message costs what brings the recorded plan to the recorded step",
        f"another schedule, vpp, number of micro-batches or split: +-{INTERVAL:.0%}; nothing is claimed for tp and dp, which "
        "need a second measured plan",
    ]
    if recorded.after_s:
        notes.append(f"{recorded.after_s * 1e3:,.1f} ms of the step are after the pipeline, under every plan")
    if layers is None:
        notes.append(f"the file does not state its layers: each stage is divided into {count // recorded.pp} equal ones "
                     "(set workload.layers)")  # fmt: skip
    if micro_batch is None:
        notes.append("the file does not state its micro-batch: taken as 1 (set workload.micro_batch)")
    return notes
