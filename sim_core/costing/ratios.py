"""Compute of a recorded file under other plans and on other devices: recorded x modelled there / modelled at its own plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sim_core.costing.case import Blocks
from sim_core.costing.operators import devices_of, sum_of, unit_cost
from sim_core.distinct import distinct_rows
from sim_core.hardware.description import Hardware
from sim_core.hardware.kernels.device import Kernels, load_kernels
from sim_core.hardware.table import HardwareTable
from sim_core.metrics import RECOMPUTE_S
from sim_core.models.description import EMBEDDING, LAYER
from sim_core.models.keys import Keys
from sim_core.planning.columns import SELECTIVE, Plans
from sim_core.planning.keys import key_table, keys_of
from sim_core.workloads.lacking import unit_shares
from sim_core.workloads.workload import FORWARD, Arrays, BasePlan, Modelled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_S = 1e-9
"""What the model takes for a unit that it does not have: its ratio is 1."""


def seconds_at_base(arrays: Arrays, modelled: Modelled, device: Hardware) -> tuple[tuple[float, float], ...]:
    """The model's seconds of one pass of each recorded unit at the recorded plan, forward and backward (`Modelled.at_base`)."""
    found = _unit_s(arrays, modelled, _keys_at(arrays.base, modelled), [load_kernels(device)], np.zeros(1, np.int64))
    return tuple((float(unit[0]), float(unit[1])) for unit in found[0])


def fill_ratios(arrays: Arrays, modelled: Modelled, hardware: HardwareTable, plans: Plans, first: Ints, blocks: Blocks) -> None:
    """Fill the factors of recorded compute in all rows of `blocks`; row k is that of plan `first[k]`."""
    found = _of_rows(arrays, modelled, hardware, plans, first)
    base = np.array(modelled.at_base)
    blocks.compute[:] = found[:, :, :2] / base / plans.device_speed[first][:, None, None]


def add_core(arrays: Arrays, modelled: Modelled, hardware: HardwareTable, plans: Plans, first: Ints, blocks: Blocks) -> None:
    """Add what selective recompute runs again where the recording does not tell core attention apart: the model's part."""
    selective = plans.checkpointing[first] == SELECTIVE
    if not selective.any():
        return
    found = _of_rows(arrays, modelled, hardware, plans, first)
    pieces = arrays.pieces
    recorded = np.bincount(pieces.unit, pieces.compute_s[:, FORWARD], len(modelled.at_base))
    again = found[:, :, 2] * recorded / np.array(modelled.at_base)[:, 0] / plans.device_speed[first][:, None]
    again *= selective[:, None]
    blocks.again[:, :, RECOMPUTE_S] += again
    blocks.again_s[:] += again


def _of_rows(arrays: Arrays, modelled: Modelled, hardware: HardwareTable, plans: Plans, first: Ints) -> Floats:
    """Seconds of each unit in each row, [rows, units, 3]."""
    devices, of_variant = devices_of(hardware)
    table = np.column_stack([key_table(plans, first), of_variant[plans.hardware[first]]])
    shape, picked = distinct_rows(table)
    return _unit_s(arrays, modelled, keys_of(modelled, table[picked]), devices, table[picked, -1])[shape]


def _keys_at(base: BasePlan, modelled: Modelled) -> Keys:
    return modelled.keys(*(np.array([size]) for size in (base.tp, base.ep, base.micro_batch)))


def _unit_s(arrays: Arrays, modelled: Modelled, keys: Keys, devices: list[Kernels], of_shape: Ints) -> Floats:
    """The model's seconds of one pass of each recorded unit: forward, backward, core attention's forward, [keys, units, 3].

    A recorded unit has the mean of the kinds of layer that it stands for.
    """
    share = unit_shares(arrays, modelled)
    seconds = np.zeros((len(keys.tp), len(arrays.unit_layers), 3))
    number = 0
    for unit in modelled.model.units:
        if unit.kind == LAYER:
            part, number = share[:, number], number + 1
        else:
            at = arrays.first_unit if unit.kind == EMBEDDING else arrays.last_unit
            part = float(unit.number) * (np.arange(len(share)) == at)
        if not part.any():
            continue
        cost = unit_cost(modelled, unit, keys, devices, of_shape)
        forward = cost.operators.phase == FORWARD
        for column, which in enumerate((forward, ~forward, cost.operators.core)):
            seconds[:, :, column] += sum_of(cost.seconds, which)[:, None] * part
    known = seconds[:, :, :2] > LEAST_S
    seconds[:, :, :2] = np.where(known, seconds[:, :, :2], 1.0)
    return seconds
