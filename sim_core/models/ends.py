"""Operators before and after the layers: embedding, head with loss, and the layer of multi-token prediction."""

from __future__ import annotations

from sim_core.models import traffic
from sim_core.models.description import Model, Unit
from sim_core.models.keys import Shape
from sim_core.models.layer import add_layer
from sim_core.models.rows import Rows
from sim_core.terms import WEIGHT_GRADIENT


def add_embedding(rows: Rows, model: Model, shape: Shape) -> None:
    """Look-up of the rank's rows for all tokens; the gradient of the table is written whole."""
    rows.both("embedding", traffic.EMBEDDING, shape.tokens * model.hidden)
    rows.memory("embedding_table", WEIGHT_GRADIENT, traffic.EMBEDDING_TABLE * shape.vocabulary * model.hidden / shape.tp)
    local = shape.local * model.hidden
    if model.embedding_norm:
        rows.both("embedding_norm", traffic.NORM, local)
    if model.hidden_dropout:
        rows.both("embedding_dropout", traffic.UNFUSED_DROPOUT, local)


def add_head(rows: Rows, model: Model, shape: Shape, *, fused_loss: bool) -> None:
    """Final norm, logits over the rank's part of the vocabulary, cross entropy."""
    rows.both("final_norm", traffic.NORM, shape.local * model.hidden)
    columns = shape.vocabulary / shape.tp
    rows.gemm("logits", shape.tokens, columns, model.hidden, linear=False)
    if model.logit_softcap:
        rows.both("logit_softcap", traffic.SOFTCAP, shape.tokens * columns)
    rows.both("loss", traffic.LOSS_FUSED if fused_loss else traffic.LOSS_UNFUSED, shape.tokens * columns)


def add_mtp(rows: Rows, model: Model, unit: Unit, shape: Shape, *, flash: bool, fused_loss: bool) -> None:
    """DeepSeek-V3 (arXiv 2412.19437), section 2.2: embedding again, two norms, a projection of 2h to h, a layer, the head."""
    add_embedding(rows, model, shape)
    rows.both("mtp_norms", traffic.NORM, 2 * shape.local * model.hidden, kernels=(2.0, 2.0))
    rows.gemm("mtp_projection", shape.tokens, model.hidden / shape.tp, 2 * model.hidden)
    add_layer(rows, model, unit, shape, flash=flash)
    add_head(rows, model, shape, fused_loss=fused_loss)
