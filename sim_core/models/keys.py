"""`Keys`: what the cost of a layer depends on in a plan, as columns; and which keys a model cannot run with."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Bools, Floats, Ints
from sim_core.models.description import Model
from sim_core.models.precision import MULTIPLE, STORED

MILLIONTHS = 1e6


class Keys(NamedTuple):
    """Distinct keys, a column each, [n]. Pipeline, schedule and batch are no part of a key: a layer costs the same."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints  # tensor parallelism of the experts
    sequence_parallel: Ints  # 1 or 0
    micro_batch: Ints  # sequences
    a2a: Ints  # context-parallel ranks that exchange heads for tokens: cp, a part of it, or 1
    gathers: Ints  # 1: the other context-parallel ranks gather keys and values; 0: they pass them round a ring
    precision: Ints  # index into PRECISIONS
    load: Ints  # millionths: tokens of the busiest rank over the mean; 0: the model's own


def make_keys(**given: npt.ArrayLike) -> Keys:
    """Keys from numbers or columns of one length by the names of the fields; what is not given is off, sizes are 1.

    `sequence_parallel` has no effect where tp is 1, as in Megatron-LM.
    """
    columns = dict.fromkeys(Keys._fields, 1) | dict.fromkeys(("sequence_parallel", "gathers", "precision", "load"), 0) | given
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(column, int)) for column in columns.values()))
    keys = Keys(*map(np.ascontiguousarray, arrays))
    return keys._replace(sequence_parallel=np.where(keys.tp > 1, keys.sequence_parallel, 0))


def refusals(model: Model, keys: Keys, sequence: int) -> dict[str, Bools]:
    """Keys with which a model cannot run, by reason, [n] each; the first reason that holds is given.

    The rules are Megatron-LM's (core 0.20: transformer_config.py and arguments.py; tp above the key-value heads replicates
    them; experts with tp need sequence parallelism, moe_layer.py; chunks of half a rank's tokens need 2 cp of them), and
    Transformer Engine's (context_parallel.py: an all-to-all divides heads and key-value heads; a ring knows no windows).
    """
    tp, experts, state, no = keys.tp, model.experts, model.recurrent, np.zeros(len(keys.tp), bool)
    ffns = [size for size in (model.ffn, experts and experts.shared_ffn) if size]
    kv_fits = (model.kv_heads % tp == 0) | (tp % model.kv_heads == 0)
    count, ffn = (experts.count, experts.ffn) if experts else (1, 1)
    has_experts = no | (experts is not None)
    windowed = any(unit.window for unit in model.layer_units) and not (model.window and model.window.chunked)
    scanned = (state.heads % tp != 0) | (state.groups % tp != 0) if state else no
    apart = state.heads % (tp * keys.cp) != 0 if state else no
    if model.compressed:
        scanned = scanned | (model.compressed.out_groups % tp != 0)
    if state and state.kind != "mamba2":  # heads of queries and keys are exchanged for tokens, too
        apart = apart | (state.groups % (tp * keys.cp) != 0)
    # sizes of linear layers, which the scales of their precision must divide
    parts = [(model.heads * model.v_head_dim, tp), *((size, tp) for size in ffns), *([(ffn, keys.etp)] if experts else [])]
    sizes = [no + model.hidden, keys.micro_batch * sequence // keys.cp, *(size // by for size, by in parts)]
    return {
        "heads_not_divisible_by_tp": (model.heads % tp != 0) | scanned,
        "kv_heads_do_not_fit_tp": ~kv_fits & (model.mla is None),
        "ffn_not_divisible_by_tp": np.any([no, *(size % tp != 0 for size in ffns)], axis=0),
        "sequence_not_divisible_by_tp": (keys.sequence_parallel == 1) & (sequence % (tp * keys.cp) != 0),
        "experts_not_divisible_by_ep": has_experts & (count % keys.ep != 0),
        "expert_ffn_not_divisible_by_etp": has_experts & (ffn % keys.etp != 0),
        "experts_need_sequence_parallel": has_experts & (tp > 1) & (keys.sequence_parallel == 0),
        "sequence_not_divisible_by_cp": (keys.cp > 1) & (sequence % (2 * keys.cp) != 0),
        "heads_not_divisible_by_cp": (model.heads // tp % keys.a2a != 0)
        | (np.maximum(model.kv_heads // tp, 1) % keys.a2a != 0)
        | apart,
        "window_needs_whole_keys": (keys.cp > keys.a2a) & (keys.gathers == 0) & windowed,
        "sizes_unfit_precision": np.any([size % MULTIPLE[keys.precision] != 0 for size in sizes], axis=0),
    }


class Shape(NamedTuple):
    """Sizes on one rank, [n] each, that all operators are written in."""

    sequence: float
    tokens: Floats  # of a micro-batch and context-parallel rank: b s / c
    local: Floats  # tokens that a rank holds between tensor-parallel regions: tokens / tp with sequence parallelism
    micro_batch: Floats
    tp: Floats
    cp: Floats
    a2a: Floats
    ring: Floats  # context-parallel ranks that pass or gather keys and values: cp / a2a
    gathers: Floats  # 1: they gather them
    heads: Floats
    kv_heads: Floats  # at least one
    vocabulary: Floats  # padded rows
    routed: Floats  # copies of tokens that the experts of a rank compute, on the busiest rank
    sent: Floats  # copies of tokens that a rank exchanges with the ranks of other experts, on the busiest rank
    experts: Floats  # on a rank
    etp: Floats
    ep: Floats
    stored: Floats  # bytes of an element that a linear layer keeps, or gathers


def shape_of(model: Model, keys: Keys, sequence: int) -> Shape:
    """Sizes per key. Copies of tokens: Megatron-LM's alltoall dispatcher; the busiest rank has `load` times the mean.

    A capacity cuts what exceeds it; with padding every expert computes its full capacity.
    """
    tp, cp, ep, etp, a2a, gathers, micro_batch = (
        column.astype(float) for column in (keys.tp, keys.cp, keys.ep, keys.etp, keys.a2a, keys.gathers, keys.micro_batch)
    )
    tokens = keys.micro_batch * sequence / keys.cp
    local = tokens / np.where(keys.sequence_parallel == 1, tp, 1.0)
    experts, load, topk = model.experts, np.ones(len(keys.tp)), 0
    if experts:
        capacity, topk = experts.capacity_factor, experts.topk
        load = np.where(keys.load > 0, keys.load / MILLIONTHS, experts.imbalance)
        if capacity is not None:
            load = np.full(len(keys.tp), capacity) if experts.pad_to_capacity else np.minimum(load, capacity)
    return Shape(
        sequence=float(sequence),
        tokens=tokens,
        local=local,
        micro_batch=micro_batch,
        tp=tp,
        cp=cp,
        a2a=a2a,
        ring=cp / a2a,
        gathers=gathers,
        heads=model.heads / tp,
        kv_heads=np.maximum(model.kv_heads / tp, 1.0),
        vocabulary=padded_vocabulary(model, keys.tp).astype(float),
        routed=local * etp * topk * load,
        sent=local * topk * load,
        experts=(experts.count if experts else 0) / ep,
        etp=etp,
        ep=ep,
        stored=STORED[keys.precision],
    )


def padded_vocabulary(model: Model, tp: Ints) -> Ints:
    """Rows of the vocabulary as Megatron-LM pads it: a multiple of vocabulary_multiple x tp, [n]."""
    step = model.vocabulary_multiple * tp
    return -(-model.vocabulary // step) * step
