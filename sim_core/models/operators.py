"""The operators of each unit of a model, as columns over keys."""

from __future__ import annotations

from sim_core.models.description import EMBEDDING, HEAD, LAYER, Model, Unit
from sim_core.models.ends import add_embedding, add_head, add_mtp
from sim_core.models.flops import sequence_of
from sim_core.models.kernels import Kernels
from sim_core.models.keys import Keys, shape_of
from sim_core.models.layer import add_accumulation, add_layer
from sim_core.models.precision import CAST
from sim_core.models.rows import Operators, Rows
from sim_core.models.sharding import held


def operators(model: Model, unit: Unit, keys: Keys, kernels: Kernels) -> Operators:
    """The operators of one unit for one micro-batch. Raises SpecError if the sequence is unknown.

    Keys must be free of `refusals`. Operators of the backward stand beside those of the forward; the order in which a rank
    runs them is that of the names, forward, and the reverse of it.
    """
    shape = shape_of(model, keys, sequence_of(model))
    rows = Rows(len(keys.tp))
    if unit.kind == EMBEDDING:
        add_embedding(rows, model, shape)
    elif unit.kind == HEAD:
        add_head(rows, model, shape, fused_loss=kernels.fused_loss)
    elif unit.kind == LAYER:
        add_layer(rows, model, unit, shape, flash=kernels.flash_attention)
    else:
        add_mtp(rows, model, unit, shape, flash=kernels.flash_attention, fused_loss=kernels.fused_loss)
    rows.casts(*(width[keys.precision] for width in CAST))
    mine = held(model, unit, keys)
    add_accumulation(rows, mine.dense + mine.experts, kernels.accumulation_bytes)
    return rows.stacked()
