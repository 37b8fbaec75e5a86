"""Messages of each unit of a model: collectives within its pass, pipeline sends, as columns over keys."""

from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.documents import Words
from sim_core.models.description import (
    COMPRESSED,
    EMBEDDING,
    HEAD,
    LAYER,
    MTP,
    NONE,
    Compressed,
    Experts,
    Lora,
    Mla,
    Model,
    Recurrent,
    Unit,
)
from sim_core.models.keys import Keys, Shape, shape_of
from sim_core.models.recurrent import sizes_of
from sim_core.models.stack import Stack
from sim_core.models.weights import sequence_of
from sim_core.terms import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CP_A2A,
    CP_RING,
    EP,
    FORWARD,
    INPUT_GRADIENT,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    TP,
    WEIGHT_GRADIENT,
)

ETP = -1
"""Group of the ranks that share an expert, the TP group if etp is tp. The other groups are those of `sim_core.terms`."""
ELEMENT = 2.0
"""Bytes of an activation, bf16 or fp16."""


class Messages(NamedTuple):
    """Collectives of one unit on one micro-batch; a row of messages, [msgs]; bytes per key, [n, msgs].

    `bytes` are those of the whole group's tensor, for ALL_TO_ALL those that one rank sends (as AICB records them), for
    SEND_RECEIVE those of one hop of a ring, which has one hop less than ranks; 0 where a key has no such message.
    `operators[i]` names the operator that the message belongs to. It may be sent while phase `beside[i]` of that operator
    runs; -1: never.
    """

    names: Words
    kind: Ints  # ALL_REDUCE .. SEND_RECEIVE
    group: Ints  # TP, EP, ETP, CP_A2A or CP_RING
    phase: Ints  # FORWARD or INPUT_GRADIENT
    operators: Words
    beside: Ints
    bytes: Floats


_WORDS = {
    ALL_REDUCE: "all_reduce", ALL_GATHER: "all_gather", REDUCE_SCATTER: "reduce_scatter", ALL_TO_ALL: "all_to_all",
    SEND_RECEIVE: "send_receive",
}  # fmt: skip


class _Rows:
    def __init__(self) -> None:
        self._rows: list[tuple[str, int, int, int, str, int]] = []
        self._bytes: list[Floats] = []

    def add(self, kind: int, group: int, phase: int, operator: str, moved: Floats, beside: int = -1) -> None:
        """A message of `operator`."""
        self._rows.append((f"{operator}_{_WORDS[kind]}", kind, group, phase, operator, beside))
        self._bytes.append(moved)

    def stacked(self, keys: int) -> Messages:
        names, *columns, operators, beside = zip(*self._rows, strict=True) if self._rows else ((),) * 6
        kind, group, phase = (np.array(column, int) for column in columns)
        moved = np.stack(self._bytes, axis=1) if self._bytes else np.zeros((keys, 0))
        return Messages(names, kind, group, phase, operators, np.array(beside, int), moved)


class _Region(NamedTuple):
    """What a tensor-parallel region needs to know; bytes are 0 where a key does not send."""

    plain: Floats  # 1 where tp > 1 without sequence parallelism
    scattered: Floats  # 1 where tp > 1 with it
    narrow: Floats  # bytes of what a linear layer gathers over those of 16 bits: it is cast before
    lora: Lora | None  # all weights but those of adapters are frozen


def messages(model: Model, unit: Unit, keys: Keys, stack: Stack) -> Messages:
    """The collectives of one unit for one micro-batch. Raises SpecError if the sequence is unknown.

    Tensor parallelism: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; with sequence parallelism Korthikanti et al. 2022
    (arXiv 2205.05198), section 4.2.2. Experts: Megatron-LM's alltoall dispatcher.
    """
    shape = shape_of(model, keys, sequence_of(model))
    parallel, sequence = keys.tp > 1, keys.sequence_parallel == 1
    plain, scattered = ((parallel & way).astype(float) for way in (~sequence, sequence))
    region, rows = _Region(plain, scattered, shape.stored / ELEMENT, model.lora), _Rows()
    hidden = ELEMENT * shape.tokens * model.hidden
    if unit.kind in (EMBEDDING, MTP):  # every rank looks up its rows of the vocabulary; the sum is the embedding
        _row(rows, "embedding", hidden, region, linear=False)
    if unit.kind == MTP:
        _column(rows, "mtp_projection", 2 * hidden, region)
        rows.add(ALL_GATHER, TP, FORWARD, "mtp_projection", hidden * (plain + scattered))
    if unit.kind in (LAYER, MTP):
        _layer(rows, model, unit, shape, region)
    if unit.kind in (HEAD, MTP):  # the vocabulary-parallel loss: the maximum, the target's logit and the sum, fp32 per token
        _column(rows, "logits", hidden, region, linear=False)
        each = 4.0 * shape.tokens * (plain + scattered)
        for sums in (1.0, 2.0) if stack.fused_loss else (1.0, 1.0, 1.0):
            rows.add(ALL_REDUCE, TP, FORWARD, "loss", sums * each)
    return rows.stacked(len(keys.tp))


def pipeline_bytes(model: Model, keys: Keys) -> Floats:
    """Bytes that one rank sends to the next stage for one micro-batch, and back, [n].

    With sequence parallelism a rank sends its part; without, all ranks of a group send the same tensor whole. Of
    hyper-connections all streams (arXiv 2512.24880, section 3.2).
    """
    return ELEMENT * shape_of(model, keys, sequence_of(model)).local * model.hidden * model.residual_streams


def _column(rows: _Rows, name: str, whole: Floats, region: _Region, *, linear: bool = True) -> None:
    """The input of a column-parallel GEMM; `linear` False: it runs in 16 bits in every precision."""
    gathered = whole * region.scattered * (region.narrow if linear else 1.0)
    rows.add(ALL_REDUCE, TP, INPUT_GRADIENT, name, whole * region.plain, WEIGHT_GRADIENT)
    rows.add(ALL_GATHER, TP, FORWARD, name, gathered)
    if region.lora is None or name in region.lora.targets:
        rows.add(ALL_GATHER, TP, INPUT_GRADIENT, name, gathered, INPUT_GRADIENT)  # its input, for the weights
    rows.add(REDUCE_SCATTER, TP, INPUT_GRADIENT, name, whole * region.scattered, WEIGHT_GRADIENT)


def _row(rows: _Rows, name: str, whole: Floats, region: _Region, *, linear: bool = True) -> None:
    """The output of a row-parallel GEMM."""
    rows.add(ALL_REDUCE, TP, FORWARD, name, whole * region.plain)
    rows.add(REDUCE_SCATTER, TP, FORWARD, name, whole * region.scattered)
    rows.add(ALL_GATHER, TP, INPUT_GRADIENT, name, whole * region.scattered * (region.narrow if linear else 1.0))


def _layer(rows: _Rows, model: Model, unit: Unit, shape: Shape, region: _Region) -> None:
    whole = ELEMENT * shape.tokens * model.hidden
    if state := model.state_of(unit):
        _column(rows, "mixer_in", whole, region)
        _scanned(rows, state, shape)
        _row(rows, "mixer_out", whole, region)
    if unit.mixer == COMPRESSED and model.compressed:
        _compressed(rows, model, unit, model.compressed, shape, region)
        _row(rows, "projection", whole, region)
    elif unit.attends:
        if model.mla:
            _latents(rows, model, model.mla, shape, region)
        else:
            _column(rows, "qkv", whole, region)
            if model.q_rank:
                _column(rows, "q_up", ELEMENT * shape.tokens * model.q_rank, region)
        _context(rows, model, unit, shape)
        if not model.parallel_residual:  # GPT-NeoX adds both, then reduces once
            _row(rows, "projection", whole, region)
    experts = model.experts if unit.moe else None
    if experts:
        _experts(rows, experts, experts.latent or model.hidden, shape)
    if unit.channel != NONE and (experts is None or experts.shared_ffn):
        prefix = "shared_" if experts else ""
        _column(rows, f"{prefix}fc1", whole, region)
        _row(rows, f"{prefix}fc2", whole, region)


def _scanned(rows: _Rows, mixer: Recurrent, shape: Shape) -> None:
    """A scan over the tokens of all context-parallel ranks: heads for tokens before it, tokens for heads after.

    Megatron-LM (core/ssm/mamba_context_parallel.py): an all-to-all over all of them, whatever attention does.
    """
    if not (shape.cp > 1).any():
        return
    sizes = sizes_of(mixer)
    for phase in (FORWARD, INPUT_GRADIENT):
        for width in (sizes.projected, sizes.inner):
            sent = ELEMENT * shape.tokens * width / shape.tp
            rows.add(ALL_TO_ALL, CP_A2A, phase, "mixer_conv", sent * (shape.a2a > 1))
            rows.add(ALL_TO_ALL, CP_RING, phase, "mixer_conv", sent * (shape.ring > 1))


def _compressed(rows: _Rows, model: Model, unit: Unit, mixer: Compressed, shape: Shape, region: _Region) -> None:
    """Latents of queries and the one head of keys are computed on local tokens, then gathered over tp; over cp the entries
    that far queries read, and those of the indexer (the window reads a neighbour's last tokens, which is not counted)."""
    _column(rows, "q_up", ELEMENT * shape.tokens * mixer.q_rank, region)
    entry = model.head_dim + (model.indexer.head_dim if model.indexer and unit.ratio == mixer.chosen else 0)
    entries = ELEMENT * shape.tokens * entry / unit.ratio if unit.ratio else np.zeros(len(shape.tp))
    keys = (ELEMENT * shape.tokens * model.head_dim + entries) * region.scattered
    rows.add(ALL_GATHER, TP, FORWARD, "kv_down", keys)
    rows.add(REDUCE_SCATTER, TP, INPUT_GRADIENT, "kv_down", keys)
    if unit.ratio and (shape.cp > 1).any():
        for group, ranks in ((CP_A2A, shape.a2a), (CP_RING, shape.ring)):
            gathered = entries * ranks * (ranks > 1)
            rows.add(ALL_GATHER, group, FORWARD, "attention", gathered)
            rows.add(REDUCE_SCATTER, group, INPUT_GRADIENT, "attention", gathered)


def _context(rows: _Rows, model: Model, unit: Unit, shape: Shape) -> None:
    """Core attention over the tokens of all context-parallel ranks (Transformer Engine, context_parallel.py).

    Ring (Liu et al. 2023, arXiv 2310.01889): keys and values go round beside the attention of each step; in the backward
    their gradients go with them. All-to-all (DeepSpeed-Ulysses, arXiv 2309.14509, section 3): tokens for heads before, heads
    for tokens after. Gathered (Llama 3, arXiv 2407.21783, section 3.3.2): keys and values of all ranks before.
    """
    if not (shape.cp > 1).any():
        return
    if model.window and model.window.chunked and unit.window and (unit.window * shape.cp <= shape.sequence).all():
        return  # whole chunks lie on a rank
    keys = ELEMENT * shape.tokens * shape.kv_heads * (model.head_dim + model.v_head_dim)
    exchanged = (shape.a2a > 1).astype(float)
    passed, gathered = ((shape.ring > 1) * (shape.gathers == way).astype(float) for way in (0, 1))
    for phase in (FORWARD, INPUT_GRADIENT):
        queries, values = (ELEMENT * shape.tokens * shape.heads * dim for dim in (model.head_dim, model.v_head_dim))
        rows.add(ALL_TO_ALL, CP_A2A, phase, "attention", exchanged * (queries + keys))
        rows.add(ALL_TO_ALL, CP_A2A, phase, "attention", exchanged * values)
        rows.add(SEND_RECEIVE, CP_RING, phase, "attention", passed * keys * (1 if phase == FORWARD else 2), phase)
        rows.add(ALL_GATHER, CP_RING, phase, "attention", gathered * keys * shape.ring)
    rows.add(REDUCE_SCATTER, CP_RING, INPUT_GRADIENT, "attention", gathered * keys * shape.ring)


def _latents(rows: _Rows, model: Model, mla: Mla, shape: Shape, region: _Region) -> None:
    """Latents are computed on local tokens, then gathered: far fewer bytes than the hidden state."""
    q_width, q = (mla.q_rank, "q_up") if mla.q_rank else (model.hidden, "q")
    _column(rows, q, ELEMENT * shape.tokens * q_width, region)
    _column(rows, "kv_up", ELEMENT * shape.tokens * mla.kv_rank, region)
    rotated = ELEMENT * shape.tokens * mla.rope_head_dim * region.scattered
    rows.add(ALL_GATHER, TP, FORWARD, "kv_down", rotated)
    rows.add(REDUCE_SCATTER, TP, INPUT_GRADIENT, "kv_down", rotated)


def _experts(rows: _Rows, experts: Experts, width: int, shape: Shape) -> None:
    """Dispatch and combine; with expert tensor parallelism the ranks of an expert gather and reduce.

    Counts of tokens come first: 4 bytes for each expert and rank of tp x ep, on the TP group if there is one (as in AICB).
    """
    ep, etp, tp = ((size > 1).astype(float) for size in (shape.ep, shape.etp, shape.tp))
    sent = ELEMENT * shape.sent * width
    gathered = sent * shape.etp
    counts = 4.0 * experts.count * shape.tp * shape.ep
    rows.add(ALL_GATHER, TP, FORWARD, "routing", counts * tp)
    rows.add(ALL_GATHER, EP, FORWARD, "routing", counts * ep * (1 - tp))
    for phase in (FORWARD, INPUT_GRADIENT):
        rows.add(ALL_TO_ALL, EP, phase, "permute", sent * ep)
        rows.add((ALL_GATHER, REDUCE_SCATTER)[phase], ETP, phase, "experts_fc1", gathered * etp)
        rows.add((REDUCE_SCATTER, ALL_GATHER)[phase], ETP, phase, "experts_fc2", gathered * etp)
        rows.add(ALL_TO_ALL, EP, phase, "unpermute", sent * ep)
