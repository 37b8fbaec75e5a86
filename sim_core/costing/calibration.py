"""A recorded file calibrated by a model: what it records moves along the model's kernels, what it lacks is the model's."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.costing.ratios import LEAST_S, seconds_at_base
from sim_core.costing.record_values import of_model, untimed_records
from sim_core.errors import SpecError
from sim_core.hardware.description import Hardware
from sim_core.models.description import Model
from sim_core.models.stack import Stack
from sim_core.terms import OPTIMIZER_SHARDED, SHARDINGS
from sim_core.workloads.lacking import completed
from sim_core.workloads.modelled import workload_from_model
from sim_core.workloads.moving import padded
from sim_core.workloads.reading import SIMAI, Facts, read_workload
from sim_core.workloads.simai_repair.records import MODEL, flat
from sim_core.workloads.workload import ALL_GATHER, FORWARD, NO_LOAD, NO_RULE, REDUCE_SCATTER, TP, Modelled, Workload

Floats = npt.NDArray[np.float64]

LEAST_LAYER_S: Final = 1e-6
"""No layer takes less."""


def read_calibrated(
    path: str, facts: Facts, model: Model, stack: Stack, measured_on: Hardware, *, sequence_parallel: bool | None = None
) -> tuple[Workload, tuple[str, ...]]:
    """The file(s) at `path` calibrated by a model, and warnings. Raises SimError, OSError.

    Records that `facts` want from the model (`model` in place of a value) have its values on the device of the recording; so
    do all of a text without times.
    """
    given = dict(flat(facts.records or {}))
    wanted = [name for name, value in given.items() if value == MODEL]
    given = {name: value for name, value in given.items() if value != MODEL}
    facts = replace(facts, records=given or None)
    recorded, warnings = read_workload(path, facts)
    if recorded.kind == SIMAI:
        told = _told(recorded, facts, model)
        if told != facts:
            facts = told
            recorded, warnings = read_workload(path, facts)
        if not _has_times(recorded):
            wanted = [*wanted, *untimed_records(recorded, {*wanted, *given})]
    notes: tuple[str, ...] = ()
    if wanted:
        values = of_model(wanted, recorded, _by_model(recorded, model, stack, sequence_parallel), measured_on)
        recorded, warnings = read_workload(path, replace(facts, records={**given, **values}))
        doubts = tuple(check for check in recorded.checks if not {check.record, check.record.partition(".")[0]} & {*wanted})
        recorded = replace(recorded, checks=doubts)
        notes = (f"records that are the model's on {measured_on.name}: {', '.join(wanted)}",)
    try:
        found = calibrated(recorded, model, stack, measured_on, sequence_parallel=sequence_parallel)
    except SpecError as error:
        raise SpecError(f"workload.model: {error}: {path}") from None
    return replace(found, notes=(*found.notes, *notes)), warnings


def calibrated(
    recorded: Workload, model: Model, stack: Stack, measured_on: Hardware, *, sequence_parallel: bool | None = None
) -> Workload:
    """The recording with its compute moved by the ratios of a model, and with what it lacks derived from the model.

    Seconds of a unit at another plan or device are recorded x modelled there / modelled here. Messages, gradients and
    once-per-step records move by the rule table (docs/moving.md). Memory is the model's. Raises SpecError if the model is not
    the recorded one.
    """
    by_model = _by_model(recorded, model, stack, sequence_parallel)
    modelled = by_model.modelled
    if modelled is None:
        raise SpecError("a file can be calibrated by a model only")
    _check(recorded, model)
    if SHARDINGS.index(stack.sharding) > OPTIMIZER_SHARDED:
        raise SpecError(f"stack {stack.name} shards {stack.sharding} in every micro-batch, which a file does not tell")
    if not _has_times(recorded):
        raise SpecError("the file has no times of its layers (1 ns stands for none): nothing to calibrate by")
    whole, derived = completed(recorded, by_model, modelled)
    arrays = whole.arrays._replace(compute_rule=NO_RULE, expert_load=NO_LOAD)  # the model's ratios move the compute
    if model.experts:
        arrays = arrays._replace(shares=arrays.shares._replace(whole_experts=not modelled.stack.experts_with_tp))
    modelled = replace(modelled, dtype=recorded.dtype)
    modelled = replace(modelled, at_base=seconds_at_base(arrays, modelled, measured_on))
    base = recorded.base
    layers = _layer_s(recorded) / _modelled_layer_s(whole, modelled)
    notes = [
        f"calibrated: a layer takes {layers[0]:.3g} x the forward of model {model.name} and {layers[1]:.3g} x its backward on "
        f"{measured_on.name} at tp {base.tp}, ep {base.ep}, micro-batch {base.micro_batch}; recorded times move by the model's "
        "ratios, recorded messages and once-per-step records by the rule table",
        f"of the model: {', '.join((*derived, 'memory', 'FLOPs'))}; stack {stack.name}, "
        f"{'with' if modelled.sequence_parallel else 'without'} sequence parallelism",
    ]
    return replace(
        whole,
        arrays=arrays,
        modelled=modelled,
        memory_of=by_model,
        sequence=model.sequence,
        experts=model.experts.count if model.experts else None,
        notes=(*whole.notes, *notes, *_other_vocabulary(recorded, model)),
    )


def _by_model(recorded: Workload, model: Model, stack: Stack, sequence_parallel: bool | None) -> Workload:
    """The workload of the model alone. AICB divides experts by tp; so do files with tp, as far as their messages tell."""
    divided = recorded.kind == SIMAI or recorded.base.tp > 1 or stack.experts_with_tp
    shown = parallel_sequence(recorded)
    if None not in (shown, sequence_parallel) and shown != sequence_parallel:
        found, said = str(sequence_parallel).lower(), "with" if shown else "without"
        raise SpecError(f"sequence_parallel: found {found}, but the file's records are those {said} sequence parallelism")
    parallel = next((each for each in (sequence_parallel, shown) if each is not None), True)
    return workload_from_model(model, stack.model_copy(update={"experts_with_tp": divided}), sequence_parallel=parallel)


def parallel_sequence(recorded: Workload) -> bool | None:
    """Whether the recording shows sequence parallelism; None: it shows neither."""
    pieces = recorded.arrays.pieces
    on_tp = (pieces.comm_group == TP) & (pieces.comm_bytes > 0)
    attention = [name for name in recorded.names if name.startswith("attention")]
    if recorded.kind == SIMAI and attention:
        return any(name.endswith("_column") for name in attention)  # AICB's names with it
    if not on_tp.any():
        return None
    return bool((on_tp & ((pieces.comm_kind == ALL_GATHER) | (pieces.comm_kind == REDUCE_SCATTER))).any())


def _told(recorded: Workload, facts: Facts, model: Model) -> Facts:
    """Facts with those that the model tells and neither the user nor the file does."""
    width = model.experts.ffn if model.experts else model.ffn  # AICB's dense layers are as wide as an expert
    return replace(
        facts,
        ffn=width if facts.ffn is None and not recorded.ends_known else facts.ffn,
        heads=model.heads if facts.heads is None and not recorded.ends_known and recorded.kind == SIMAI else facts.heads,
        sequence=model.sequence if recorded.sequence is None else facts.sequence,
        experts=model.experts.count if facts.experts is None and model.experts else facts.experts,
    )


def _check(recorded: Workload, model: Model) -> None:
    """Raise SpecError where the file contradicts the model."""
    hidden = recorded.implied.hidden if recorded.implied else None
    pairs = (
        ("layers", recorded.layers, model.layers),
        ("hidden", hidden, model.hidden),
        ("sequence", recorded.sequence, model.sequence),
    )
    for name, found, expected in pairs:
        if found and found != expected:
            raise SpecError(f"{name}: found {found} in the file, and {expected} in the model {model.name}")
    if recorded.kind == SIMAI and recorded.has_experts != (model.experts is not None):
        raise SpecError(
            f"experts: found {'some' if recorded.has_experts else 'none'} in the file, unlike the model {model.name}"
        )


def _other_vocabulary(recorded: Workload, model: Model) -> list[str]:
    """A note where the file counts another vocabulary: AICB's default is GPT-2's, whatever the model."""
    found = recorded.implied.vocabulary if recorded.implied else None
    if not found or padded(model.vocabulary, recorded.base.tp) == padded(found, recorded.base.tp):
        return []
    return [f"vocabulary: {found} in the file, whose gradients count it, and {model.vocabulary} in the model"]


def _has_times(recorded: Workload) -> bool:
    return bool((_layer_s(recorded) > LEAST_LAYER_S).all())


def _layer_s(recorded: Workload) -> Floats:
    """Recorded forward and backward seconds of a layer, the mean of all, [2]."""
    arrays = recorded.arrays
    seconds = np.zeros(2)
    for unit, times in enumerate(arrays.unit_layers[:, -1]):
        compute = arrays.pieces.compute_s[arrays.pieces.unit == unit].sum(axis=0)
        seconds += times * np.array([compute[FORWARD], compute[FORWARD + 1 :].sum()])
    return seconds / recorded.layers


def _modelled_layer_s(recorded: Workload, modelled: Modelled) -> Floats:
    """The same of the model, at the recorded plan."""
    times = recorded.arrays.unit_layers[:, -1] / recorded.layers
    seconds: Floats = times @ np.array(modelled.at_base)[: len(times)]
    return np.maximum(seconds, LEAST_S)
