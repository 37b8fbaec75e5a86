"""Compute of a recorded layer with other tokens or tp: the longer of launching its kernels and running them.

Host and device work beside each other. Where a recorded layer takes longer than its kernels do, the host sets the pace:
launching takes as long for more tokens, until their kernels take longer (recorded jobs, docs/traces.md). Kernels are costed by
the device's tables: the products with all dense parameters of the rank, and flash attention, which grows with the square of
the sequence.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sim_core.distinct import distinct_rows
from sim_core.hardware.kernels.attention import attention_backward_s, attention_forward_s
from sim_core.hardware.kernels.device import load_kernels
from sim_core.hardware.kernels.gemm import gemm_s
from sim_core.hardware.table import HardwareTable, recorded_on
from sim_core.planning.columns import Plans
from sim_core.workloads.moving import COMPUTE
from sim_core.workloads.workload import FORWARD, RecordedLayer, Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HEAD_DIMS: Final = (128, 64, 32)
"""Channels of a head: the first that divides the hidden size; attention takes nearly as long with any."""
PRODUCTS: Final = 2
"""The dense parameters as so many matrices, each of a multiple of `TILE` columns."""
TILE: Final = 64
UNKNOWN: Final = np.zeros((0, 2))


def layer_scales(workload: Workload, hardware: HardwareTable, plans: Plans, first: Ints) -> Floats:
    """Factors of a layer's recorded compute in the plans `first`, forward and backward, [n, 2]; no rows where unknown."""
    layer, arrays = workload.layer, workload.arrays
    if layer is None or workload.modelled is not None or workload.sequence is None:
        return UNKNOWN
    base = arrays.base
    sequence = np.where(plans.sequence[first] > 0, plans.sequence[first], workload.sequence)
    own = np.array([[base.tp, base.micro_batch, workload.sequence]])
    table = np.concatenate([own, np.column_stack([plans.tp[first], plans.micro_batch[first], sequence])])
    of_row, picked = distinct_rows(table)
    running = _running_s(layer, base.tp, hardware, table[picked])[of_row]
    here, there = running[0], running[1:]
    pieces = arrays.pieces
    rows = (pieces.unit == arrays.layer_unit) & (arrays.compute_rule == COMPUTE)
    seconds = pieces.compute_s[rows]
    recorded = np.array([seconds[:, FORWARD].sum(), seconds[:, FORWARD + 1 :].sum()])
    if not (recorded > 0).all():
        return UNKNOWN
    scales: Floats = np.where(recorded > here, np.maximum(there / recorded, 1.0), there / here)
    return scales


def _running_s(layer: RecordedLayer, base_tp: int, hardware: HardwareTable, keys: Ints) -> Floats:
    """Seconds of the kernels of a layer by (tp, micro-batch, sequence), forward and backward, [n, 2]."""
    kernels = load_kernels(recorded_on(hardware))
    tp, micro_batch, sequence = keys.astype(np.float64).T
    hidden = np.full(len(keys), float(layer.hidden))
    columns = layer.parameters * base_tp / tp / hidden / PRODUCTS
    columns = np.maximum(np.round(columns / TILE), 1.0) * TILE
    products = PRODUCTS * gemm_s(kernels, layer.dtype, micro_batch * sequence, columns, hidden).seconds
    dim = next((dim for dim in HEAD_DIMS if layer.hidden % dim == 0), layer.hidden)
    heads = np.maximum(hidden / dim / tp, 1.0)
    sizes = (micro_batch, sequence, heads, heads, np.full(len(keys), float(dim)))
    forward = products + attention_forward_s(kernels, layer.dtype, *sizes).seconds
    backward = 2 * products + attention_backward_s(kernels, layer.dtype, *sizes).seconds
    return np.column_stack([forward, backward])
