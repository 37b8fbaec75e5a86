"""Activations of a recorded file, estimated from the sizes that it implies: a dense transformer with flash attention.

Korthikanti et al. 2022 (arXiv 2205.05198), eq. 2 and 4 without the scores (5as/h), which flash attention does not keep: of
their 34 bytes per token and hidden element, 10 are inputs of norms, attention and MLP and two dropout masks, and 24 belong to
the weights: each row or column of a matrix keeps 2 bytes per token. So the weights of a layer tell the rest of any MLP.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.costing.calibration import parallel_sequence
from sim_core.models.activations import LOGIT
from sim_core.workloads.moving import padded
from sim_core.workloads.plausibility import implied_model
from sim_core.workloads.workload import Workload

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

INPUTS: Final = 10.0
"""Bytes per token and hidden element that tensor parallelism divides only with sequence parallelism."""


class Estimate(NamedTuple):
    """Sizes of a dense transformer."""

    sequence: int
    hidden: int
    vocabulary: int
    width: float  # elements that the matrices of a layer keep of a token: 12 hidden with a plain MLP
    parallel: bool  # sequence parallelism


def estimate_of(workload: Workload) -> Estimate | str:
    """The sizes that a file implies, or why its activations are unknown."""
    model, arrays = implied_model(workload), workload.arrays
    if workload.has_experts:
        return "how many tokens its experts get"
    if not (model.hidden and model.sequence):
        return "hidden size and sequence"
    if not model.vocabulary or model.active is None:
        return "the vocabulary, or the weights of a layer"
    if arrays.last_unit < 0:
        return "the head (it has no record of logits)"
    weights = (model.active - model.vocabulary * model.hidden) / model.layers
    return Estimate(
        sequence=model.sequence,
        hidden=model.hidden,
        vocabulary=model.vocabulary,
        width=weights / model.hidden,
        parallel=bool(parallel_sequence(workload)),
    )


def estimated_bytes(workload: Workload, found: Estimate, tp: Ints, micro_batch: Ints) -> tuple[Floats, Floats]:
    """Bytes that one micro-batch keeps of each unit, [n, units, 4], and those of buffers: gathered, received, [n, 2].

    The columns are those of `costing/peak.py`.
    """
    arrays = workload.arrays
    tokens = micro_batch.astype(np.float64) * found.sequence
    local = tokens / (tp if found.parallel else 1)
    layer = INPUTS * local * found.hidden + 2.0 * tokens * found.width / tp
    kept = np.zeros((len(tp), arrays.unit_layers.shape[0], 4))
    kept[:, :, :2] = layer[:, None, None]
    kept[:, :, 2] = 2.0 * (local * found.hidden)[:, None]
    if arrays.first_unit >= 0:
        kept[:, arrays.first_unit] = 0.0
        kept[:, arrays.first_unit, :3] = (local * found.hidden)[:, None]  # a dropout mask
    rows = np.array([padded(found.vocabulary, int(ranks)) for ranks in tp])
    logits = LOGIT * tokens * rows / tp
    kept[:, arrays.last_unit, :3] = (4.0 * local * found.hidden + logits)[:, None]
    kept[:, arrays.last_unit, 3] = logits
    gathered = np.where((tp > 1) & found.parallel, 2.0 * tokens * found.hidden, 0.0)
    return kept, np.stack([gathered, 2.0 * local * found.hidden], axis=1)
