"""Mixers with a state, Mamba-2 and the delta rules: weights, FLOPs, kernels, activations, messages of a layer.

All of them project the input, run a short convolution, scan the sequence in chunks, gate and norm the result and project it
back. What a chunk costs are small products on tensor cores and the states that go through memory.
"""

from functools import partial
from typing import NamedTuple

import numpy as np

from sim_core.arrays import Floats
from sim_core.models import traffic
from sim_core.models.description import Model, Recurrent
from sim_core.models.keys import Shape
from sim_core.models.rows import SCAN, Rows
from sim_core.terms import FORWARD, INPUT_GRADIENT

FP32 = 4.0
WIDE = 2.0
"""Bytes of an element in 16 bits."""


class Sizes(NamedTuple):
    """Widths of one layer over all its heads, in elements."""

    projected: int  # columns of the input projection
    convolved: int  # channels of the short convolution
    inner: int  # values: what is projected back
    low_rank: int  # inner width of the two narrow projections of gates; 0: none
    vectors: int  # weights that are no matrix, the convolution left out
    normed: int  # weights of the norm of the output
    core_flops: float  # of a token, forward, as publishers count them


def sizes_of(mixer: Recurrent) -> Sizes:
    """Of Mamba-2 (Megatron-LM core/ssm/mamba_mixer.py), gated delta net (core/ssm/gated_delta_net), KDA (arXiv 2510.26692).

    FLOPs of the core as Megatron-Bridge's flop_utils.py counts them (51885cf): 7 D N for Mamba-2, 8 P d d for the delta rules.
    """
    heads, size, inner = mixer.heads, mixer.head_dim, mixer.heads * mixer.head_dim
    channels = inner + 2 * mixer.groups * mixer.state
    core = 8.0 * inner * mixer.state + 2.0 * mixer.conv * channels
    if mixer.kind == "mamba2":  # its convolution has a bias
        return Sizes(
            inner + channels + heads, channels, inner, 0, 3 * heads + channels, inner * mixer.normed, 7.0 * inner * mixer.state
        )
    if mixer.kind == "gated_delta":
        return Sizes(inner + channels + 2 * heads, channels, inner, 0, 2 * heads, size, core)
    return Sizes(channels + heads, channels, inner, size, heads + inner, size, core)


class Product(NamedTuple):
    """A product of the chunked scan: C[m, n] = A[m, k] B[k, n] for each chunk and each head or group."""

    name: str
    m: int
    n: int
    k: int
    by_head: bool = True


def products_of(mixer: Recurrent) -> tuple[Product, ...]:
    """Products of a chunk. Mamba-2: arXiv 2405.21060, section 6; delta rules: arXiv 2412.06464, section 3.3."""
    q, n, p = mixer.chunk, mixer.state, mixer.head_dim
    scores = Product("scan_scores", q, q, n, by_head=mixer.kind != "mamba2")
    within = Product("scan_within", q, p, q)
    states = Product("scan_states", n, p, q)
    out = Product("scan_out", q, p, n)
    if mixer.kind == "mamba2":
        return scores, within, states, out
    # the inverse of a triangular matrix of products of keys corrects keys and values before they enter the state
    keys, values = Product("scan_keys", q, n, q), Product("scan_values", q, p, q)
    return scores, Product("scan_solve", q, q, n), keys, values, Product("scan_removed", q, p, n), within, states, out


def add_operators(rows: Rows, model: Model, mixer: Recurrent, shape: Shape) -> None:
    """The operators between the norm before the layer and the residual after it.

    The backward keeps the projected input alone and runs convolution and scan again (mamba_ssm's and FLA's fused kernels).
    """
    sizes, parts = sizes_of(mixer), shape.tp
    rows.gemm("mixer_in", shape.tokens, sizes.projected / parts, model.hidden)
    if sizes.low_rank:
        rows.gemm("mixer_gates_down", shape.local, 2 * sizes.low_rank, model.hidden)
        rows.gemm("mixer_gates_up", shape.tokens, 2 * sizes.inner / parts, sizes.low_rank)
    rows.both("mixer_conv", traffic.CONVOLUTION, shape.tokens * sizes.convolved / parts)
    chunks = shape.tokens / shape.tp / mixer.chunk
    for each in products_of(mixer):
        batch = chunks * (mixer.heads if each.by_head else mixer.groups)
        m, n, k = float(each.m), float(each.n), float(each.k)
        product = partial(rows.product, batch=batch, kind=SCAN)
        product(each.name, FORWARD, m, n, k)
        product(f"{each.name}_again", INPUT_GRADIENT, m, n, k)
        product(f"{each.name}_left", INPUT_GRADIENT, m, k, n)
        product(f"{each.name}_right", INPUT_GRADIENT, k, n, m)
    states = chunks * mixer.heads * mixer.head_dim * mixer.state
    streams = WIDE * shape.tokens * (sizes.convolved + sizes.inner) / parts
    for phase, times in ((FORWARD, 1.0), (INPUT_GRADIENT, 3.0)):
        # states are written and read in 32 bits, passed on from chunk to chunk, and written and read in 16 (ssd_combined.py)
        rows.memory("scan_memory", phase, times * (2 * (FP32 + WIDE) * states + streams), kernels=5.0 * times)
    rows.both("mixer_norm", traffic.GATED_NORM, shape.tokens * sizes.inner / parts, kernels=(1.0, 2.0))
    rows.gemm("mixer_out", shape.tokens, model.hidden, sizes.inner / parts)


def kept_bytes(mixer: Recurrent, shape: Shape) -> Floats:
    """Bytes kept from forward to backward: the projected input, the scan's output and states of chunks of delta rules."""
    sizes = sizes_of(mixer)
    kept = shape.tokens * (WIDE * (sizes.projected + (2 * sizes.inner if sizes.low_rank else 0)) + WIDE * sizes.inner)
    if mixer.kind != "mamba2":
        kept = kept + shape.tokens * WIDE * (sizes.convolved + mixer.heads * mixer.head_dim * mixer.state / mixer.chunk)
    return np.asarray(kept / shape.tp)
