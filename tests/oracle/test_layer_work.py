"""Products of layers that few models have, by hand: compressed attention and scans; bytes that casts and norms move."""

from __future__ import annotations

import pytest

from sim_core import Model, model_flops_per_token, read_model
from sim_core.models.activations import activation_bytes
from sim_core.models.description import Unit
from sim_core.models.keys import make_keys
from sim_core.models.operators import operators
from sim_core.models.precision import PRECISIONS
from tests.facts import stack_with

FORWARD = 0
Shape = tuple[float, float, float, float]
"""m, n, k, and how many of them."""


def forward_products(model: Model, unit: Unit, tp: int) -> dict[str, Shape]:
    """Products of the forward of one layer on one rank of tp, by name."""
    found = operators(model, unit, make_keys(tp=tp, sequence_parallel=1), stack_with())
    columns = found.names, found.phase, found.m[0], found.n[0], found.k[0], found.batch[0]
    return {name: (m, n, k, b) for name, phase, m, n, k, b in zip(*columns, strict=True) if phase == FORWARD and m * n * k > 0}


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_products_of_compressed_attention(ratio: int, tp: int) -> None:
    """DeepSeek-V4 Flash: h 4096, 64 heads of 512, queries of rank 1024, 8 groups of outputs of rank 1024, indexer 64 x 128."""
    model = read_model("deepseek-v4-flash", {"sequence": 4096})
    found = forward_products(model, next(unit for unit in model.layer_units if unit.ratio == ratio), tp)
    local = 4096 / tp
    expected: dict[str, Shape] = {
        "q_down": (local, 1024, 4096, 1),
        "q_up": (4096, 64 * 512 / tp, 1024, 1),
        "kv_down": (local, 512, 4096, 1),
        "out_down": (4096, 1024, 64 * 512 / 8, 8 / tp),
        "projection": (4096, 4096, 8 * 1024 / tp, 1),
    }
    if ratio:  # what is summed and the weights of the sum; entries of 4 tokens overlap
        expected["compressor"] = (local, 2 * 512 * (2 if ratio == 4 else 1), 4096, 1)
    if ratio == 4:
        expected |= {
            "indexer_q": (4096, 64 * 128, 1024, 1),
            "indexer_k": (local, 2 * 2 * 128, 4096, 1),
            "indexer_weights": (4096, 64, 4096, 1),
        }
    assert {name: shape for name, shape in found.items() if name in expected} == expected
    assert {name for name in found if name.startswith(("q_", "kv_", "out_", "compressor", "indexer"))} - {"indexer_scores"} == (
        expected.keys() - {"projection"}
    )


@pytest.mark.parametrize(("ratio", "tp"), [(0, 1), (4, 1), (128, 1), (4, 4), (128, 4)])
def test_compressed_attention_keeps_what_its_backward_reads(ratio: int, tp: int) -> None:
    """Bytes of a token, less those of the same layer with a window alone: compressors in 32 bits, entries, the indexer's."""
    model = read_model("deepseek-v4-flash", {"sequence": 4096})
    kept = {}
    for unit in model.layer_units:
        kept[unit.ratio] = activation_bytes(model, unit, make_keys(tp=tp, sequence_parallel=1), stack_with())[0, 0] / 4096
    pooled, entry = {0: (0, 0.0), 4: (2 * 512 + 2 * 128, (512 + 128) / 4), 128: (512, 512 / 128)}[ratio]
    more = 4 * 2 * pooled / tp + 2 * entry
    more += 2 * 64 * 128 + 4 * 512 if ratio == 4 else 0  # queries of the indexer, indices of the best 512
    window = next(unit for unit in model.layer_units if unit.ratio == 0)
    assert kept[ratio] - kept[0] == pytest.approx(more, rel=1e-9, abs=1e-6), window


@pytest.mark.parametrize(
    ("name", "heads", "groups", "dim", "state", "chunk"),
    [
        ("nemotron-h-8b", 128, 8, 64, 128, 128),
        ("qwen3-next-80b-a3b", 32, 16, 128, 128, 64),
        ("kimi-linear-48b-a3b", 32, 32, 128, 128, 64),
    ],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_products_of_a_scan(name: str, heads: int, groups: int, dim: int, state: int, chunk: int, tp: int) -> None:
    """Of each chunk: Mamba-2 shares its scores in a group (arXiv 2405.21060, section 6); a delta rule has all by head and
    solves for what corrects keys and values (arXiv 2412.06464, section 3.3)."""
    model = read_model(name, {"sequence": 4096})
    unit = next(unit for unit in model.layer_units if unit.mixer == "recurrent")
    found = forward_products(model, unit, tp)
    chunks = 4096 / chunk / tp
    by_head = chunks * heads
    expected: dict[str, Shape] = {
        "scan_scores": (chunk, chunk, state, chunks * groups if name == "nemotron-h-8b" else by_head),
        "scan_within": (chunk, dim, chunk, by_head),
        "scan_states": (state, dim, chunk, by_head),
        "scan_out": (chunk, dim, state, by_head),
    }
    if name != "nemotron-h-8b":
        expected |= {
            "scan_solve": (chunk, chunk, state, by_head),
            "scan_keys": (chunk, state, chunk, by_head),
            "scan_values": (chunk, dim, chunk, by_head),
            "scan_removed": (chunk, dim, state, by_head),
        }
    assert {name: shape for name, shape in found.items() if name.startswith("scan_")} == expected
    norms = operators(model, unit, make_keys(tp=tp, sequence_parallel=1), stack_with())
    launched = {(n, int(p)): k for n, p, k in zip(norms.names, norms.phase, norms.kernels[0], strict=True)}
    assert (launched["mixer_norm", 0], launched["mixer_norm", 1]) == (1, 2)  # backward: of the input, of the weights


def test_an_indexer_scores_all_keys_of_a_sequence() -> None:
    """DeepSeek-V3.2: 64 heads of 128 score all tokens, attention reads 2,048 of them: beyond, a token more costs scores alone.

    In 61 layers and in that of multi-token prediction."""
    short, long = (model_flops_per_token(read_model("deepseek-v3.2", {"sequence": tokens})) for tokens in (4096, 8192))
    assert long - short == pytest.approx(3 * (61 + 1) * 2 * 4096 * 64 * 128)


READ, WRITE, BYTE = 2.0, 2.0, 1.0
CASTS = {
    "bf16": (0, 0, 0, 0),
    "fp16": (0, 0, 0, 0),
    "fp8_delayed": (READ + BYTE, BYTE - WRITE, BYTE, BYTE + BYTE),
    "fp8_tensorwise": (READ + READ + BYTE, READ + READ + BYTE, BYTE, BYTE + BYTE),
    "fp8_blockwise": (READ + BYTE, READ + BYTE, BYTE, 0),
    "mxfp8": (READ + BYTE, READ + BYTE, BYTE, 0),
    "nvfp4": (READ + READ + BYTE / 2, READ + READ + BYTE / 2, BYTE / 2, 0),
}
"""Bytes of an element: cast from 16 bits, by a norm that writes it so, of a transposed copy beside it, and apart."""


def test_casts_read_and_write_what_their_kernels_do() -> None:
    """The largest value of a tensor is read for first, unless its scale is delayed or of a block."""
    assert {row.name: (row.cast, row.normed, row.transposed, row.apart) for row in PRECISIONS} == CASTS
