"""A recorded file calibrated by a model: what it records moves along the model's kernels, what it lacks is the model's.

Its compute under other plans and on other devices is recorded x modelled there / modelled at its own plan. Records of a SimAI
text may have the values of the model under the text's own plan: `NAME: model` in `workload.records`.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.costing.case import Blocks
from sim_core.costing.operators import Shapes, rows_of_units, shapes_at, shapes_of, sum_of, unit_cost
from sim_core.documents import Words
from sim_core.errors import SpecError
from sim_core.hardware.description import Hardware
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import RECOMPUTE_S
from sim_core.models.description import EMBEDDING, LAYER, Model
from sim_core.models.stack import Stack
from sim_core.planning.columns import SELECTIVE, Plans
from sim_core.terms import OPTIMIZER_SHARDED, SHARDINGS
from sim_core.workloads.facts import Facts
from sim_core.workloads.lacking import completed, optimizer_of, unit_shares
from sim_core.workloads.modelled import workload_from_model
from sim_core.workloads.moving import padded
from sim_core.workloads.reading import SIMAI, read_workload
from sim_core.workloads.simai.records import FINAL, MODEL, PHASES, flat
from sim_core.workloads.workload import (
    ALL_GATHER,
    FORWARD,
    NO_LOAD,
    NO_RULE,
    REDUCE_SCATTER,
    TP,
    Arrays,
    Modelled,
    Workload,
)

LEAST_S = 1e-9
"""What the model takes for a unit that it does not have: its ratio is 1."""


def fill_ratios(arrays: Arrays, modelled: Modelled, hardware: HardwareTable, plans: Plans, first: Ints, blocks: Blocks) -> None:
    """Fill the factors of recorded compute in all rows of `blocks`; row k is that of plan `first[k]`."""
    unit_s = _of_rows(arrays, modelled, hardware, plans, first)
    base = np.array(modelled.at_base)
    blocks.compute[:] = unit_s[:, :, :2] / base / plans.device_speed[first][:, None, None]


def add_core(arrays: Arrays, modelled: Modelled, hardware: HardwareTable, plans: Plans, first: Ints, blocks: Blocks) -> None:
    """Add what selective recompute runs again where the recording does not tell core attention apart: the model's part."""
    selective = plans.checkpointing[first] == SELECTIVE
    if not selective.any():
        return
    unit_s, pieces = _of_rows(arrays, modelled, hardware, plans, first), arrays.pieces
    recorded = np.bincount(pieces.unit, pieces.compute_s[:, FORWARD], len(modelled.at_base))
    again = unit_s[:, :, 2] * recorded / np.array(modelled.at_base)[:, 0] / plans.device_speed[first][:, None]
    again *= selective[:, None]
    blocks.again[:, :, RECOMPUTE_S] += again
    blocks.again_s[:] += again


def _of_rows(arrays: Arrays, modelled: Modelled, hardware: HardwareTable, plans: Plans, first: Ints) -> Floats:
    """Seconds of each unit in each row, [rows, units, 3]."""
    shapes, shape, _ = shapes_of(modelled, hardware, plans, first)
    return _unit_s(arrays, modelled, shapes)[shape]


def _unit_s(arrays: Arrays, modelled: Modelled, shapes: Shapes) -> Floats:
    """The model's seconds of one pass of each recorded unit: forward, backward, core attention's forward, [shapes, units, 3].

    A recorded unit has the mean of the kinds of layer that it stands for.
    """
    share = unit_shares(arrays, modelled)
    seconds = np.zeros((len(shapes.device), len(arrays.unit_layers), 3))
    for at, times, unit in rows_of_units(modelled.model):
        end = arrays.first_unit if unit.kind == EMBEDDING else arrays.last_unit
        part = share[:, at] if unit.kind == LAYER else times * (np.arange(len(share)) == end).astype(float)
        if not part.any():
            continue
        cost = unit_cost(modelled, unit, shapes)
        forward = cost.operators.phase == FORWARD
        for column, which in enumerate((forward, ~forward, cost.operators.core)):
            seconds[:, :, column] += sum_of(cost.seconds, which)[:, None] * part
    known = seconds[:, :, :2] > LEAST_S
    seconds[:, :, :2] = np.where(known, seconds[:, :, :2], 1.0)
    return seconds


EMBEDDING_RECORD = "embedding_layer"
OPTIMIZER = "grad_param_compute"
WITHOUT_MESSAGE = ("layernorm", "embedding_grads")
"""Records whose messages on TP no training has (docs/aicb.md)."""
PLACEHOLDER_S = 1.5e-9
_LAYER = re.compile(r"attention|mlp|moe|ffn")
_ATTENTION = re.compile(r"attention")
_MLP_FROM = "mlp_norm"
"""The first operator of a layer that is the MLP's; the last one accumulates the gradients of all."""


def of_model(wanted: Iterable[str], recorded: Workload, by_model: Workload, device: Hardware) -> dict[str, object]:
    """Values in place of `model`, by record and phase: times on `device` in ns, or bytes. Raises SpecError."""
    if by_model.modelled is None:
        raise SpecError("records can be taken from a model only")
    values: dict[str, object] = {}
    for key in wanted:
        name, dot, phase = key.rpartition(".")
        if not dot:
            name, phase = key, ""
        if name in WITHOUT_MESSAGE:
            values[key] = "0 B"
            continue
        if name == OPTIMIZER:
            seconds = np.array([0.0, _optimizer_s(recorded, by_model, device), 0.0])
        else:
            seconds = _record_s(name, recorded, by_model.modelled, device)
        for each, ns in zip(PHASES, seconds * 1e9, strict=True):
            if phase in ("", each):
                values[f"{name}.{each}"] = f"{round(float(ns))} ns"
    return values


def untimed_records(recorded: Workload, besides: set[str]) -> list[str]:
    """Records of a text without times that the model has times of, those that the user chose left out."""
    chosen = {key.rpartition(".")[0] or key for key in besides}
    return [name for name in dict.fromkeys(recorded.names) if name not in chosen and _is_known(name)]


def _is_known(name: str) -> bool:
    return name == EMBEDDING_RECORD or name.startswith(FINAL) or bool(_LAYER.search(name))


def _record_s(name: str, recorded: Workload, modelled: Modelled, device: Hardware) -> Floats:
    """Seconds of one line of a record in each phase at the recorded plan, [3]: of the units that it stands for by their parts.

    Of a layer, those of the operators of attention or of the others, shared by lines with a time, or by all if none has one.
    """
    if not _is_known(name):
        known = f"{EMBEDDING_RECORD}, {FINAL}*, records of attention and MLP, {OPTIMIZER}, {', '.join(WITHOUT_MESSAGE)}"
        raise SpecError(f"workload.records: {name}: a model has no value for it, only for {known}")
    model, names, lines, attention = modelled.model, recorded.names, 1, None
    if name == EMBEDDING_RECORD:
        parts = [(1.0, unit) for unit in model.units if unit.kind == EMBEDDING]
    elif name.startswith(FINAL):
        parts = [(float(unit.number), unit) for unit in model.units if unit.kind not in (EMBEDDING, LAYER)]
        lines = sum(each.startswith(FINAL) for each in dict.fromkeys(names))
    else:
        attention = bool(_ATTENTION.search(name))
        alike = [unit for unit in model.layer_units if attention or unit.moe == ("moe" in name)]
        parts = [(unit.number / sum(each.number for each in alike), unit) for unit in alike]
        pieces = recorded.arrays.pieces
        layer = pieces.unit[names.index(name)] if name in names else 0
        mine = [
            k for k, other in enumerate(names)
            if pieces.unit[k] == layer and _LAYER.search(other) and bool(_ATTENTION.search(other)) == attention
        ]  # fmt: skip
        lines = len([k for k in mine if pieces.compute_s[k].max() > PLACEHOLDER_S] or mine)
    shapes, seconds = shapes_at(modelled.keys_at(recorded.base), device), np.zeros(3)
    for part, unit in parts:
        operators, of_shapes, _ = unit_cost(modelled, unit, shapes)
        which = np.ones(len(operators.names), bool)
        if attention is not None:
            which = (np.arange(len(which)) < operators.names.index(_MLP_FROM)) == attention
        for phase in range(3):
            seconds[phase] += part * float(sum_of(of_shapes, which & (operators.phase == phase))[0])
    return seconds / max(lines, 1)


def _optimizer_s(recorded: Workload, by_model: Workload, device: Hardware) -> float:
    """Seconds of the optimizer of the recorded rank."""
    base = recorded.base
    optimizer = optimizer_of(by_model, base)
    dp = base.all_gpus // (base.tp * base.pp)
    replicas = dp / base.ep * (base.tp if by_model.arrays.shares.whole_experts else 1)
    dense, experts = optimizer.dense_bytes, optimizer.expert_bytes
    moved = (dense / dp + experts / replicas) if optimizer.sharded else dense + experts
    moved += (dense + experts) * optimizer.clear
    return moved / (device.value("memory_bandwidth") * device.value("hbm_efficiency")) + optimizer.step_s


LEAST_LAYER_S = 1e-6
"""No layer takes less."""


def read_calibrated(
    path: str, facts: Facts, model: Model, stack: Stack, measured_on: Hardware, *, sequence_parallel: bool | None = None
) -> tuple[Workload, Words]:
    """The file(s) at `path` calibrated by a model, and warnings. Raises SimError, OSError.

    Records that `facts` want from the model (`model` in place of a value) have its values on the device of the recording; so
    do all of a text without times.
    """
    records = dict(flat(facts.records or {}))
    wanted = [name for name, value in records.items() if value == MODEL]
    records = {name: value for name, value in records.items() if value != MODEL}
    facts = replace(facts, records=records or None)
    recorded, warnings = read_workload(path, facts)
    if recorded.kind == SIMAI:
        told = _told(recorded, facts, model)
        if told != facts:
            facts = told
            recorded, warnings = read_workload(path, facts)
        if not _has_times(recorded):
            wanted = [*wanted, *untimed_records(recorded, {*wanted, *records})]
    notes: Words = ()
    if wanted:
        values = of_model(wanted, recorded, _by_model(recorded, model, stack, sequence_parallel), measured_on)
        recorded, warnings = read_workload(path, replace(facts, records={**records, **values}))
        doubts = tuple(check for check in recorded.checks if not {check.record, check.record.partition(".")[0]} & {*wanted})
        recorded = replace(recorded, checks=doubts)
        notes = (f"records that are the model's on {measured_on.name}: {', '.join(wanted)}",)
    try:
        workload = calibrated(recorded, model, stack, measured_on, sequence_parallel=sequence_parallel)
    except SpecError as error:
        raise SpecError(f"workload.model: {error}: {path}") from None
    return replace(workload, notes=(*workload.notes, *notes)), warnings


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
    modelled, base = replace(modelled, dtype=recorded.dtype), recorded.base
    unit_s = _unit_s(arrays, modelled, shapes_at(modelled.keys_at(base), measured_on))[0, :, :2]
    modelled = replace(modelled, at_base=tuple(map(tuple, unit_s.tolist())))
    times = whole.arrays.unit_layers[:, -1] / whole.layers
    layers = _layer_s(recorded) / np.maximum(times @ unit_s[: len(times)], LEAST_S)
    notes = [
        f"calibrated: a layer takes {layers[0]:.3g} x the forward of model {model.name} and {layers[1]:.3g} x its backward on "
        f"{measured_on.name} at tp {base.tp}, ep {base.ep}, micro-batch {base.micro_batch}; recorded times move by the model's "
        "ratios, recorded messages and once-per-step records by the rule table",
        f"of the model: {', '.join((*derived, 'memory', 'FLOPs'))}; stack {stack.name}, "
        f"{'with' if modelled.sequence_parallel else 'without'} sequence parallelism",
    ]
    counted = recorded.implied.vocabulary if recorded.implied else None  # AICB's default is GPT-2's, whatever the model
    if counted and padded(model.vocabulary, base.tp) != padded(counted, base.tp):
        notes.append(f"vocabulary: {counted} in the file, whose gradients count it, and {model.vocabulary} in the model")
    return replace(
        whole,
        arrays=arrays,
        modelled=modelled,
        memory_of=by_model,
        sequence=model.sequence,
        experts=model.experts.count if model.experts else None,
        notes=(*whole.notes, *notes),
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
    """Facts of a SimAI text with those that the model tells and neither the user nor the file does."""
    width = model.experts.ffn if model.experts else model.ffn  # AICB's dense layers are as wide as an expert
    return replace(
        facts,
        ffn=width if facts.ffn is None and not recorded.ends_known else facts.ffn,
        heads=model.heads if facts.heads is None and not recorded.ends_known else facts.heads,
        sequence=model.sequence if recorded.sequence is None else facts.sequence,
        experts=model.experts.count if facts.experts is None and model.experts else facts.experts,
    )


def _check(recorded: Workload, model: Model) -> None:
    """Raise SpecError where the file contradicts the model."""
    pairs = (
        ("layers", recorded.layers, model.layers),
        ("hidden", recorded.implied and recorded.implied.hidden, model.hidden),
        ("sequence", recorded.sequence, model.sequence),
    )
    for name, found, expected in pairs:
        if found and found != expected:
            raise SpecError(f"{name}: found {found} in the file, and {expected} in the model {model.name}")
    if recorded.kind == SIMAI and recorded.has_experts != (model.experts is not None):
        raise SpecError(
            f"experts: found {'some' if recorded.has_experts else 'none'} in the file, unlike the model {model.name}"
        )


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
