"""A recorded file calibrated by a model: its compute times at its own plan, moved to other plans as the model's are."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.costing.operators import sum_of, unit_cost
from sim_core.errors import SpecError
from sim_core.hardware.description import Hardware
from sim_core.hardware.kernels.device import load_kernels
from sim_core.models.description import EMBEDDING, LAYER
from sim_core.workloads.workload import ALL_GATHER, FORWARD, REDUCE_SCATTER, TP, Modelled, Workload

Floats = npt.NDArray[np.float64]

SIMAI: Final = "simai"
LEAST_S: Final = 1e-6
"""No layer of a model takes less."""


def calibrated(recorded: Workload, of_model: Workload, measured_on: Hardware) -> Workload:
    """The workload of a model whose layers take the recorded seconds at the recorded plan, on the device of the recording.

    Seconds at another plan or device are recorded x modelled there / modelled here. Messages, gradients, optimizer and memory
    are the model's. So are embedding and head of a SimAI text, whose records of them are no measurements (docs/aicb.md).
    Raises SpecError if the model is not the recorded one.
    """
    modelled = of_model.modelled
    if modelled is None:
        raise SpecError("a file can be calibrated by a model only")
    _check(recorded, modelled)
    here, there = _recorded_s(recorded), _modelled_s(recorded, modelled, measured_on)
    kinds = len(modelled.model.layer_units)
    if not (here[0] > LEAST_S * recorded.layers).all():
        raise SpecError("the file has no times of its layers (1 ns stands for none): nothing to calibrate by")
    layers = (float(here[0, 0] / there[0, 0]), float(here[0, 1] / there[0, 1]))
    ends = [(1.0, 1.0), (1.0, 1.0)]
    if recorded.kind != SIMAI:
        ends = [
            (float(a[0] / b[0]), float(a[1] / b[1])) if (a > 0).all() and (b > 0).all() else (1.0, 1.0)
            for a, b in zip(here[1:], there[1:], strict=True)
        ]
    told = "embedding, head, " if recorded.kind == SIMAI else ""
    base = recorded.base
    note = (
        f"calibrated: a layer takes {layers[0]:.3g} x the model's forward and {layers[1]:.3g} x its backward on "
        f"{measured_on.name} at tp {base.tp}, ep {base.ep}, micro-batch {base.micro_batch}; {told}messages, gradients, "
        "optimizer and memory are the model's"
    )
    return replace(
        of_model,
        modelled=replace(modelled, calibration=(*[layers] * kinds, *ends)),
        recorded_fields={**of_model.recorded_fields, **base._asdict()},
        checks=recorded.checks,
        records=recorded.records,
        notes=(*of_model.notes, note, *_divided(recorded, modelled)),
    )


def parallel_sequence(recorded: Workload) -> bool:
    """Whether the recording shows sequence parallelism, or no tensor parallelism at all."""
    pieces = recorded.arrays.pieces
    on_tp = (pieces.comm_group == TP) & (pieces.comm_bytes > 0)
    shows = on_tp & ((pieces.comm_kind == ALL_GATHER) | (pieces.comm_kind == REDUCE_SCATTER))
    return bool(shows.any() or not on_tp.any())


def _divided(recorded: Workload, modelled: Modelled) -> tuple[str, ...]:
    """A note where the file divides its experts by tp and the stack does not."""
    pieces = recorded.arrays.pieces
    of_experts = np.array(["moe" in name for name in recorded.names], np.bool_)
    if not of_experts.any() or of_experts.all():
        return ()
    on_tp = np.where(pieces.comm_group == TP, pieces.comm_bytes, 0.0)
    divided = on_tp[of_experts].max() >= on_tp[~of_experts].max() > 0
    if not divided or modelled.stack.experts_with_tp:
        return ()
    return (f"the file divides experts by tp, stack {modelled.stack.name} does not (nemo-24 does): set workload.stack",)


def _check(recorded: Workload, modelled: Modelled) -> None:
    """Raise SpecError where the file contradicts the model."""
    model = modelled.model
    hidden = recorded.implied.hidden if recorded.implied else None
    pairs = (
        ("layers", recorded.layers, model.layers),
        ("hidden", hidden, model.hidden),
        ("sequence", recorded.sequence, model.sequence),
    )
    for name, found, expected in pairs:
        if found and found != expected:
            raise SpecError(f"{name}: found {found} in the file, and {expected} in the model {model.name}")


def _recorded_s(recorded: Workload) -> Floats:
    """Forward and backward seconds of a micro-batch: all layers, embedding, head, [3, 2]."""
    arrays = recorded.arrays
    seconds = np.zeros((3, 2))
    for unit, times in enumerate(arrays.unit_layers[:, -1]):
        compute = arrays.pieces.compute_s[arrays.pieces.unit == unit].sum(axis=0)
        both = np.array([compute[FORWARD], compute[FORWARD + 1 :].sum()])
        seconds[0] += times * both
        if unit == arrays.first_unit:
            seconds[1] += both
        elif unit == arrays.last_unit:
            seconds[2] += both
    return seconds


def _modelled_s(recorded: Workload, modelled: Modelled, device: Hardware) -> Floats:
    """The same of the model, under the recorded plan."""
    base = recorded.base
    keys = modelled.keys(*(np.array([size]) for size in (base.tp, base.ep, base.micro_batch)))
    seconds = np.zeros((3, 2))
    for unit in modelled.model.units:
        at = 0 if unit.kind == LAYER else 1 if unit.kind == EMBEDDING else 2
        cost = unit_cost(modelled, unit, keys, [load_kernels(device)], np.zeros(1, np.int64))
        forward = cost.operators.phase == FORWARD
        seconds[at] += unit.number * np.array([sum_of(cost.seconds, forward)[0], sum_of(cost.seconds, ~forward)[0]])
    return seconds
