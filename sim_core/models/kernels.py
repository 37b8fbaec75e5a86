"""`Kernels`: how a software stack computes what a model asks for."""

from __future__ import annotations

from typing import NamedTuple

from sim_core.models.traffic import FUSED_ACCUMULATION


class Kernels(NamedTuple):
    """Choices that change the operators of a model. Their speed is not described here."""

    flash_attention: bool = True  # else scores, softmax and context are kernels of their own
    fused_loss: bool = True
    accumulation_bytes: float = FUSED_ACCUMULATION  # per weight and micro-batch
