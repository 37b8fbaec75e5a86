"""Values of a model for records of a SimAI text, under the text's own plan: `NAME: model` in `workload.records`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.costing.operators import sum_of, unit_cost
from sim_core.errors import SpecError
from sim_core.hardware.description import Hardware
from sim_core.hardware.kernels.device import load_kernels
from sim_core.models.description import EMBEDDING, LAYER, Unit
from sim_core.workloads.lacking import optimizer_of
from sim_core.workloads.simai_repair.records import FINAL, PHASES
from sim_core.workloads.workload import Modelled, Workload

Floats = npt.NDArray[np.float64]

EMBEDDING_RECORD: Final = "embedding_layer"
OPTIMIZER: Final = "grad_param_compute"
WITHOUT_MESSAGE: Final = ("layernorm", "embedding_grads")
"""Records whose messages on TP no training has (docs/aicb.md)."""
PLACEHOLDER_S: Final = 1.5e-9
_LAYER = re.compile(r"attention|mlp|moe|ffn")
_ATTENTION = re.compile(r"attention")
_MLP_FROM: Final = "mlp_norm"
"""The first operator of a layer that is the MLP's; the last one accumulates the gradients of all."""


def of_model(wanted: Iterable[str], recorded: Workload, by_model: Workload, device: Hardware) -> dict[str, object]:
    """Values in place of `model`, by record and phase: times on `device` in ns, or bytes. Raises SpecError."""
    modelled = by_model.modelled
    if modelled is None:
        raise SpecError("records can be taken from a model only")
    values: dict[str, object] = {}
    for key in wanted:
        name, dot, phase = key.rpartition(".")
        if not dot:
            name, phase = key, ""
        if name in WITHOUT_MESSAGE:
            values[key] = "0 B"
            continue
        seconds = _seconds(name, recorded, modelled, by_model, device)
        for number, each in enumerate(PHASES):
            if phase in ("", each):
                values[f"{name}.{each}"] = f"{round(float(seconds[number]) * 1e9)} ns"
    return values


def untimed_records(recorded: Workload, besides: set[str]) -> list[str]:
    """Records of a text without times that the model has times of, those that the user chose left out."""
    chosen = {key.rpartition(".")[0] or key for key in besides}
    return [name for name in dict.fromkeys(recorded.names) if name not in chosen and _is_known(name)]


def _is_known(name: str) -> bool:
    return name == EMBEDDING_RECORD or name.startswith(FINAL) or bool(_LAYER.search(name))


def _seconds(name: str, recorded: Workload, modelled: Modelled, by_model: Workload, device: Hardware) -> Floats:
    """Seconds of one line of a record in each phase, [3]."""
    if name == OPTIMIZER:
        return np.array([0.0, _optimizer_s(recorded, by_model, device), 0.0])
    if not _is_known(name):
        known = f"{EMBEDDING_RECORD}, {FINAL}*, records of attention and MLP, {OPTIMIZER}, {', '.join(WITHOUT_MESSAGE)}"
        raise SpecError(f"workload.records: {name}: a model has no value for it, only for {known}")
    if name == EMBEDDING_RECORD:
        return _unit_s(recorded, modelled, device, lambda unit: float(unit.kind == EMBEDDING))
    if name.startswith(FINAL):
        beside = sum(each.startswith(FINAL) for each in dict.fromkeys(recorded.names)) or 1
        head = _unit_s(recorded, modelled, device, lambda unit: float(unit.number * (unit.kind not in (EMBEDDING, LAYER))))
        return head / beside
    attention = bool(_ATTENTION.search(name))
    moe = "moe" in name

    def share(unit: Unit) -> float:
        alike = [each for each in modelled.model.layer_units if attention or each.moe == moe]
        return unit.number / sum(each.number for each in alike) if unit in alike else 0.0

    layer = _unit_s(recorded, modelled, device, share, attention=attention)
    return layer / _lines(name, recorded, attention)


def _unit_s(
    recorded: Workload, modelled: Modelled, device: Hardware, share: Callable[[Unit], float], attention: bool | None = None
) -> Floats:
    """Seconds of operators in each phase, the units by their share, at the recorded plan, [3].

    `attention`: of a layer only those of attention, or only the others.
    """
    base = recorded.base
    keys = modelled.keys(*(np.array([size]) for size in (base.tp, base.ep, base.micro_batch)))
    seconds = np.zeros(3)
    for unit in modelled.model.units:
        part = share(unit)
        if not part:
            continue
        cost = unit_cost(modelled, unit, keys, [load_kernels(device)], np.zeros(1, np.int64))
        names = cost.operators.names
        mine = np.ones(len(names), np.bool_)
        if attention is not None:
            mine = (np.arange(len(names)) < names.index(_MLP_FROM)) == attention
        for phase in range(3):
            seconds[phase] += part * float(sum_of(cost.seconds, mine & (cost.operators.phase == phase))[0])
    return seconds


def _lines(name: str, recorded: Workload, attention: bool) -> int:
    """Lines of a layer that share the time of its attention or its MLP: those with a time, or all if none has one."""
    pieces = recorded.arrays.pieces
    unit = pieces.unit[recorded.names.index(name)] if name in recorded.names else 0
    mine = [
        k for k, other in enumerate(recorded.names)
        if pieces.unit[k] == unit and _LAYER.search(other) and bool(_ATTENTION.search(other)) == attention
    ]  # fmt: skip
    timed = [k for k in mine if pieces.compute_s[k].max() > PLACEHOLDER_S]
    return max(len(timed or mine), 1)


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
