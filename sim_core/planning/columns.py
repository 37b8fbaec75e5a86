"""Parallel plans as columns of one length, and the words that their coded columns stand for."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.schedule import SCHEDULES as SCHEDULES

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

FIDELITIES: Final = ("event", "simai")
EVENT, SIMAI = 0, 1
"""The event engine, or the cost model of SimAI-Analytical (simai_model.py)."""

PRECISIONS: Final = ("recorded", "fp32", "bf16")
"""Of gradients on the wire: as in the workload, or 4 or 2 bytes an element."""

SPLITS: Final = ("even", "balanced")
EVEN, BALANCED = 0, 1

NONE, FILE, FULL, SELECTIVE, EVERY, BLOCK = 0, 1, 2, 3, 4, 5
CHECKPOINTING: Final = ("none", "file", "full", "selective", "every", "block")
"""What backward computes again. `every:k` and `block:k` carry k: Megatron's recompute methods uniform and block."""


class Plans(NamedTuple):
    """Plans as columns of one length."""

    tp: Ints
    pp: Ints
    vpp: Ints
    ep: Ints
    all_gpus: Ints
    micro_batch: Ints
    ga: Ints  # 0 where dp * micro_batch does not divide the global batch
    schedule: Ints  # index into SCHEDULES
    layer_split: Ints  # index into SPLITS
    checkpointing: Ints  # index into CHECKPOINTING
    checkpoint_layers: Ints  # the k of `every:k` and `block:k`, else 0
    overlap_tp: Ints  # 0 or 1, as the other switches
    overlap_ep: Ints
    overlap_pp: Ints
    overlap_grad: Ints
    overlap_param: Ints
    bucket_bytes: Ints  # gradient bucket; 0: Megatron's default
    hardware: Ints  # row of the HardwareTable
    fidelity: Ints  # index into FIDELITIES
    layers: Ints  # of the model
    straggler_stage: Ints  # the stage whose compute takes straggler_factor times as long
    gradient_precision: Ints  # index into PRECISIONS
    straggler_factor: Floats
    device_speed: Floats  # compute runs this many times as fast
    dp_overlap_ratio: Floats  # 0 to 1: what fidelity simai takes as hidden of DP, TP, EP communication
    tp_overlap_ratio: Floats
    ep_overlap_ratio: Floats
    pp_overlap_ratio: Floats  # above 0 to 1


def slice_plans(plans: Plans, rows: slice | npt.NDArray[np.bool_] | Ints) -> Plans:
    """Some rows of the plans, as columns of their own."""
    return Plans(**{name: np.ascontiguousarray(column[rows]) for name, column in plans._asdict().items()})
