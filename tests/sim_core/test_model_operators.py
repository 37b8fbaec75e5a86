"""Operators, messages and activations of models: shapes by hand, closed forms of papers, files recorded by AICB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core import (
    Model,
    SpecError,
    model_flops_per_token,
    model_names,
    parameters,
    read_hardware,
    read_model,
    read_workload,
    workload_from_model,
)
from sim_core.costing.operators import Shapes, unit_cost
from sim_core.hardware.kernels.device import load_kernels
from sim_core.models.activations import MODES, activation_bytes, backward_bytes
from sim_core.models.description import EMBEDDING, HEAD, LAYER, MTP, Unit
from sim_core.models.keys import Keys, make_keys, padded_vocabulary, refusals
from sim_core.models.messages import ETP, Messages, messages, pipeline_bytes
from sim_core.models.operators import operators
from sim_core.models.precision import PRECISION_NAMES
from sim_core.models.rows import ATTENTION, GEMM, GROUPED_GEMM, MEMORY, Operators
from sim_core.models.stack import Stack
from sim_core.models.weights import held
from sim_core.terms import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, EP, FORWARD, INPUT_GRADIENT, REDUCE_SCATTER, TP, WEIGHT_GRADIENT
from tests.conftest import EXAMPLES
from tests.facts import stack_with

UNFUSED = stack_with(flash_attention=False, fused_loss=False)
PAPERS = ("megatron-22b", "gpt3-175b", "megatron-530b", "megatron-1t")  # Korthikanti et al. 2022, table 3


def unit_of(model: Model, kind: str, moe: bool = False) -> Unit:
    return next(unit for unit in model.units if unit.kind == kind and unit.moe == moe)


def layer_of(model: Model, keys: Keys, kernels: Stack = UNFUSED, moe: bool = False) -> Operators:
    return operators(model, unit_of(model, LAYER, moe), keys, kernels)


def gemms(found: Operators, phase: int, kind: int = GEMM) -> dict[str, tuple[float, ...]]:
    """Name -> (m, n, k, count) of the first key."""
    return {
        name: (found.m[0, i], found.n[0, i], found.k[0, i], found.batch[0, i])
        for i, name in enumerate(found.names)
        if found.kind[i] == kind and found.phase[i] == phase
    }


def test_gemms_of_a_gpt_layer() -> None:
    """Narayanan et al. 2021 (arXiv 2104.04473), appendix: the six products, divided by tp."""
    found = layer_of(read_model("gpt3-175b"), make_keys(tp=8, micro_batch=2))
    tokens, h = 2 * 2048, 12288
    assert gemms(found, FORWARD) == {
        "qkv": (tokens, 3 * h / 8, h, 1),
        "scores": (2048, 2048, 128, 2 * 12),
        "context": (2048, 128, 2048, 2 * 12),
        "projection": (tokens, h, h / 8, 1),
        "fc1": (tokens, 4 * h / 8, h, 1),
        "fc2": (tokens, h, 4 * h / 8, 1),
    }
    assert gemms(found, INPUT_GRADIENT)["fc1"] == (tokens, h, 4 * h / 8, 1)
    assert gemms(found, WEIGHT_GRADIENT)["fc1"] == (4 * h / 8, h, tokens, 1)
    assert [name for i, name in enumerate(found.names) if found.core[i]] == [
        "scores", "softmax", "attention_dropout", "context", "context_transpose",
    ]  # fmt: skip


def test_gemms_with_grouped_queries_and_a_gate() -> None:
    """A rank holds at least one key-value head, so tp 16 repeats the 8 of Llama."""
    model = read_model("llama3-70b")
    for tp, kv in ((8, 1), (16, 1), (2, 4)):
        found = gemms(layer_of(model, make_keys(tp=tp, sequence_parallel=1), stack_with()), FORWARD)
        assert found == {
            "qkv": (8192, (64 / tp + 2 * kv) * 128, 8192, 1),
            "projection": (8192, 8192, 8192 / tp, 1),
            "fc1": (8192, 2 * 28672 / tp, 8192, 1),
            "fc2": (8192, 8192, 28672 / tp, 1),
        }


def test_gemms_of_latent_attention_and_experts() -> None:
    """DeepSeek-V3: sizes of arXiv 2412.19437, section 4.2; down projections on the tokens that a rank holds."""
    model, keys = read_model("deepseek-v3"), make_keys(tp=4, ep=8, sequence_parallel=1, micro_batch=1)
    found = layer_of(model, keys, stack_with(), moe=True)
    assert gemms(found, FORWARD) == {
        "q_down": (1024, 1536, 7168, 1),
        "q_up": (4096, 192 * 128 / 4, 1536, 1),
        "kv_down": (1024, 576, 7168, 1),
        "kv_up": (4096, 256 * 128 / 4, 512, 1),
        "projection": (4096, 7168, 128 * 128 / 4, 1),
        "router": (1024, 256, 7168, 1),
        "shared_fc1": (4096, 2 * 2048 / 4, 7168, 1),
        "shared_fc2": (4096, 7168, 2048 / 4, 1),
    }
    each = 4096 / 4 * 8 * 8 / 256  # tokens of 8 ranks, 8 copies, over 256 experts
    assert gemms(found, FORWARD, GROUPED_GEMM) == {
        "experts_fc1": (each, 2 * 2048, 7168, 32),
        "experts_fc2": (each, 7168, 2048, 32),
    }
    assert found.attention is not None
    assert (found.attention.head_dim, found.attention.v_head_dim, found.attention.heads[0]) == (192, 128, 32)


@pytest.mark.parametrize(
    ("more", "load"),
    [
        ({}, 1.0),
        ({"imbalance": 1.5}, 1.5),
        ({"imbalance": 1.5, "capacity_factor": 1.25}, 1.25),
        ({"imbalance": 1.1, "capacity_factor": 1.25}, 1.1),
        ({"imbalance": 1.1, "capacity_factor": 1.25, "pad_to_capacity": True}, 1.25),
    ],
)
def test_rows_of_an_expert_on_the_busiest_rank(more: dict[str, Any], load: float) -> None:
    model = read_model("mixtral-8x7b", {f"experts.{key}": value for key, value in more.items()} | {"sequence": 4096})
    found = layer_of(model, make_keys(tp=2, ep=4, etp=2, sequence_parallel=1), stack_with(), moe=True)
    m, n, k, count = gemms(found, FORWARD, GROUPED_GEMM)["experts_fc1"]
    assert (m, n, k, count) == (load * 4096 / 2 * 2 * 4 * 2 / 8, 14336, 4096, 2)


WITH_ATTENTION_ALONE = [name for name in model_names() if not (read_model(name).recurrent or read_model(name).indexer)]
"""Kernels of a scan do more than publishers count, and what an indexer chooses is no square."""


@pytest.mark.parametrize("name", PAPERS)
def test_flops_of_all_operators_are_those_of_the_papers(name: str) -> None:
    """Narayanan et al. 2021, eq. 3, with full recompute: 96 B s l h^2 (1 + s / 6h + V / 16 l h)."""
    model, tp, b = read_model(name, {"vocabulary": 51200}), 8, 3
    s, h, layers = 2048, model.hidden, model.layers
    total = 0.0
    for unit in model.units:
        found = operators(model, unit, make_keys(tp=tp, micro_batch=b), UNFUSED)
        again = found.flops[0, found.phase == FORWARD].sum() if unit.kind == LAYER else 0.0
        total += unit.number * (found.flops[0].sum() + again) * tp
    assert total == pytest.approx(96 * b * s * layers * h**2 * (1 + s / (6 * h) + 51200 / (16 * layers * h)), rel=1e-12)


@pytest.mark.parametrize("name", WITH_ATTENTION_ALONE)
def test_flops_of_all_operators_are_the_models_own(name: str) -> None:
    """The flash kernel leaves out the masked half and computes the scores twice in the backward."""
    model = read_model(name)
    s = model.sequence or 0
    if model.window:
        model = read_model(name, {"window": None})
    logits = 6 * model.hidden * (int(padded_vocabulary(model, np.array([1]))[0]) - model.vocabulary) * (1 + model.mtp_layers)
    whole = causal = 0.0
    for unit in model.units:
        whole += unit.number * operators(model, unit, make_keys(), UNFUSED).flops.sum() / s
        causal += unit.number * operators(model, unit, make_keys(), stack_with()).flops.sum() / s
    assert whole == pytest.approx(model_flops_per_token(model) + logits, rel=1e-9)
    squares = 2 * s * model.heads * (model.layers + model.mtp_layers)
    d, v = model.head_dim, model.v_head_dim
    assert whole - causal == pytest.approx(squares * (3 * (d + v) - (d + v) / 2 - (3 * d + 2 * v) / 2), rel=1e-6)


def test_the_flash_kernel_of_a_window() -> None:
    """Pairs of query and key that the mask leaves, counted one by one (but half of the diagonal)."""
    model = read_model("mistral-7b-v0.1", {"sequence": 64, "window.tokens": 16})
    found = layer_of(model, make_keys(micro_batch=2), stack_with())
    pairs = sum(min(query + 1, 16) for query in range(64))
    (forward,) = found.flops[0, (found.kind == ATTENTION) & (found.phase == FORWARD)]
    assert forward == pytest.approx(2 * 2 * 32 * pairs * (128 + 128), rel=1e-2)
    assert found.attention
    assert (found.attention.window, found.attention.sequences[0], found.attention.kv_heads[0]) == (16, 2, 8)


@pytest.mark.parametrize(("window", "length"), [(4096, 8192), (1024, 8192), (8192, 8192)])
def test_attention_in_a_window_takes_as_long_as_the_part_of_the_square_that_it_sees(window: int, length: int) -> None:
    """A query sees itself and window - 1 before it; without a window all before it."""
    seconds = []
    for tokens in (window, None):
        changes = {"sequence": length, **({"window.tokens": tokens} if tokens else {"window": None})}
        model = read_model("mistral-7b-v0.1", changes)
        work = workload_from_model(model, stack_with(), sequence_parallel=True)
        assert work.modelled
        kernels = load_kernels(read_hardware("H100-SXM"))
        cost = unit_cost(work.modelled, unit_of(model, LAYER), Shapes(make_keys(), [kernels], np.zeros(1, np.int64)))
        rows = [cost.operators.row("attention", phase) for phase in (FORWARD, INPUT_GRADIENT)]
        seconds.append(cost.seconds[0, rows])
    seen = sum(min(query + 1, window) for query in range(length)) / sum(query + 1 for query in range(length))
    assert seconds[0] / seconds[1] == pytest.approx([seen, seen], rel=1e-3)


def test_memory_traffic_of_a_gpt_layer() -> None:
    """Bytes counted kernel by kernel: two norms, two residuals with dropout, GELU, softmax, dropout, transpose."""
    model, tp, b, s, h = read_model("megatron-22b"), 8, 4, 2048, 6144
    for sp in (0, 1):
        found = layer_of(model, make_keys(tp=tp, sequence_parallel=sp, micro_batch=b))
        local, scores = b * s * h / (tp if sp else 1), b * 64 / tp * s * s
        forward = (2 * 4 + 2 * 7) * local + 4 * b * s * 4 * h / tp + (4 + 5) * scores + 4 * b * s * h / tp
        assert found.bytes[0, found.phase == FORWARD].sum() == forward
        assert found.kernels[0, (found.phase == FORWARD) & (found.kind == MEMORY)].sum() == 8


def test_the_norms_after_the_blocks_of_gemma_and_its_softcap() -> None:
    model, keys = read_model("gemma2-27b"), make_keys()
    found = layer_of(model, keys, stack_with())
    norms = [i for i, name in enumerate(found.names) if name.endswith("_norm") and found.phase[i] == FORWARD]
    assert found.bytes[0, norms].sum() == 4 * 4 * 8192 * 4608
    assert found.kernels[0, norms].sum() == 4
    assert "logit_softcap" in operators(model, unit_of(model, HEAD), keys, stack_with()).names


def moved(model: Model, unit: Unit, keys: Keys, name: str) -> tuple[float, float]:
    """Bytes that one operator of a unit reads and writes, forward and in all of its backward."""
    found = operators(model, unit, keys, stack_with())
    own = np.array([each == name for each in found.names])
    forward = found.phase == FORWARD
    return float(found.bytes[0, own & forward].sum()), float(found.bytes[0, own & ~forward].sum())


def test_the_gate_of_attention_reads_and_writes_the_output_of_all_heads() -> None:
    """Qwen3-Next (Qwen3NextAttention: attn_output * sigmoid(gate)), 16 heads of 256: reads output and gate, writes their
    product; backward reads these two and a gradient, writes two gradients; 2 bytes each."""
    model = read_model("qwen3-next-80b-a3b")
    unit = next(unit for unit in model.units if unit.kind == LAYER and unit.attends)
    for tp in (1, 2):
        output = 2 * 4096 * 16 * 256 / tp
        assert moved(model, unit, make_keys(tp=tp, sequence_parallel=1), "output_gate") == (3 * output, 5 * output)


@pytest.mark.parametrize(("tp", "rows"), [(1, 128_256), (4, 251 * 512)])
def test_the_ends_move_the_table_and_the_hidden_states(tp: int, rows: int) -> None:
    """Of Llama 3 70B, 128,256 rows of 8,192, padded to 128 a rank: each micro-batch writes the gradient of a rank's part of
    the table in 16 bits. The last norm reads and writes the hidden state once at least; in its backward three of them."""
    model, keys = read_model("llama3-70b"), make_keys(tp=tp, sequence_parallel=1)
    assert moved(model, unit_of(model, EMBEDDING), keys, "embedding_table") == (0, 2 * rows * 8192 / tp)
    forward, backward = moved(model, unit_of(model, HEAD), keys, "final_norm")
    state = 2 * 8192 * 8192 / tp
    assert 2 * state <= forward <= 4 * state
    assert 3 * state <= backward <= 6 * state


def test_streams_are_joined_before_the_head() -> None:
    """DeepSeek-V4, 4 streams: forward reads them for their gates, reads them for the sum, writes it: 9 hidden states. Backward
    reads them twice again and the sum's gradient, writes their gradients of gates and sum: 17."""
    model, keys = read_model("deepseek-v4-flash"), make_keys()
    state = 2 * 4096 * 4096
    assert moved(model, unit_of(model, HEAD), keys, "head_streams") == (9 * state, 17 * state)


def test_gradient_accumulation_moves_bytes_of_all_weights_of_a_rank() -> None:
    model, keys = read_model("mixtral-8x7b", {"sequence": 4096}), make_keys(tp=2, ep=4, etp=1, sequence_parallel=1)
    found = layer_of(model, keys, stack_with(accumulation_bytes=10.0), moe=True)
    mine = held(model, unit_of(model, LAYER, True), keys)
    assert found.bytes[0, found.names.index("gradient_accumulation")] == 10 * (mine.dense[0] + mine.experts[0])
    assert mine.experts[0] == 2 * 3 * 4096 * 14336
    assert mine.dense[0] == (2 * 4096 * 4096 + 2 * 4096 * 1024) / 2 + 8 * 4096 + 2 * 4096
    assert mine.replicated[0] == 8 * 4096 + 2 * 4096


@pytest.mark.parametrize("name", model_names())
def test_ranks_hold_all_parameters_together(name: str) -> None:
    """At tp 1: those of the model, and the padding; with tp what is divided is a tp-th."""
    model = read_model(name)
    padding = int(padded_vocabulary(model, np.array([1]))[0]) - model.vocabulary
    total = sum(
        unit.number * (part.dense[0] + part.experts[0]) for unit in model.units for part in [held(model, unit, make_keys())]
    )
    counts = parameters(model)
    assert total == pytest.approx(counts.total + counts.mtp + padding * model.hidden * (1 if model.tied else 2), rel=1e-12)
    if model.experts:
        experts = sum(unit.number * held(model, unit, make_keys(ep=2, etp=2)).experts[0] for unit in model.layer_units)
        assert 4 * experts == counts.by_part["routed_experts"]


@pytest.mark.parametrize("kernels", [UNFUSED, stack_with()])
@pytest.mark.parametrize("name", ["gpt3-175b", "deepseek-v3", "gemma2-27b", "gpt-oss-20b"])
def test_a_message_finds_its_operators(name: str, kernels: Stack) -> None:
    """Every operator has one row per phase; what runs beside a message is among them."""
    model, keys = read_model(name), make_keys(tp=2, sequence_parallel=1)
    for unit in model.units:
        found, sending = operators(model, unit, keys, kernels), messages(model, unit, keys, kernels)
        rows = list(zip(found.names, found.phase.tolist(), strict=True))
        assert len(set(rows)) == len(rows)
        assert [found.row(*row) for row in rows] == list(range(len(rows)))
        for operator, phase, beside in zip(sending.operators, sending.phase.tolist(), sending.beside.tolist(), strict=True):
            assert found.row(operator, phase) >= 0
            assert beside == -1 or found.kind[found.row(operator, beside)] == GEMM
    with pytest.raises(KeyError):
        found.row("nothing", FORWARD)


def test_key_value_weights_are_repeated_beyond_their_heads() -> None:
    model = read_model("llama3-8b")
    one, eight, sixteen = held(model, unit_of(model, LAYER), make_keys(tp=[1, 8, 16])).dense
    norms, kv = 2 * 4096, 2 * 4096 * 1024
    assert one == 218_112_000
    assert eight == (one - norms) / 8 + norms
    assert sixteen == (one - norms - kv) / 16 + kv / 8 + norms


def test_the_vocabulary_is_padded_as_megatron_does() -> None:
    """gpt2: 50,304 rows at tp 1, 51,200 at tp 8 (--make-vocab-size-divisible-by 128); DeepSeek-V3 with 3,232 stays."""
    tp = np.array([1, 2, 8])
    assert padded_vocabulary(read_model("gpt2"), tp).tolist() == [50304, 50432, 51200]
    assert padded_vocabulary(read_model("deepseek-v3", {"vocabulary_multiple": 3232}), tp).tolist() == [129280, 129280, 129280]


def sent(found: Messages, phase: int, key: int = 0) -> list[tuple[str, int, int, float]]:
    """(operator, kind, group, bytes) of the messages of one key."""
    return [
        (found.operators[i], int(found.kind[i]), int(found.group[i]), float(found.bytes[key, i]))
        for i in range(len(found.names))
        if found.phase[i] == phase and found.bytes[key, i] > 0
    ]


def test_messages_of_a_layer_with_and_without_sequence_parallelism() -> None:
    """Korthikanti et al. 2022, section 4.2.2: two all-reduces become all-gather and reduce-scatter; the backward mirrors it."""
    model = read_model("gpt3-175b")
    found = messages(model, unit_of(model, LAYER), make_keys(tp=[8, 8, 1], sequence_parallel=[0, 1, 0], micro_batch=1), UNFUSED)
    whole = 2 * 2048 * 12288
    assert sent(found, FORWARD, 0) == [(name, ALL_REDUCE, TP, whole) for name in ("projection", "fc2")]
    assert sent(found, INPUT_GRADIENT, 0) == [(name, ALL_REDUCE, TP, whole) for name in ("qkv", "fc1")]
    assert sent(found, FORWARD, 1) == [
        ("qkv", ALL_GATHER, TP, whole),
        ("projection", REDUCE_SCATTER, TP, whole),
        ("fc1", ALL_GATHER, TP, whole),
        ("fc2", REDUCE_SCATTER, TP, whole),
    ]
    backward = sent(found, INPUT_GRADIENT, 1)
    assert sorted(kind for _, kind, _, _ in backward) == [ALL_GATHER] * 4 + [REDUCE_SCATTER] * 2
    assert (found.bytes[2] == 0).all()
    beside = {(found.operators[i], int(found.kind[i])): int(found.beside[i]) for i in range(len(found.names)) if found.phase[i]}
    assert beside[("qkv", ALL_REDUCE)] == WEIGHT_GRADIENT
    assert beside[("qkv", ALL_GATHER)] == INPUT_GRADIENT
    assert beside[("projection", ALL_GATHER)] == -1


def recorded(name: str, unit: int) -> list[tuple[int, float]]:
    """(kind, bytes) of the forward's tensor-parallel messages of one layer in a file that AICB made."""
    pieces = read_workload(str(EXAMPLES / "workloads" / name))[0].arrays.pieces
    mine = (pieces.unit == unit) & (pieces.comm_kind[:, FORWARD] > 0) & (pieces.comm_group[:, FORWARD] == TP)
    return [(int(pieces.comm_kind[i, FORWARD]), float(pieces.comm_bytes[i, FORWARD])) for i in np.flatnonzero(mine)]


@pytest.mark.parametrize(
    ("file", "name", "changes", "tp", "sp"),
    [
        ("gpt7b_tp4_dp128.simai.txt", "megatron-7.5b", {"sequence": 2048}, 4, 0),
        ("llama405b_tp8_pp16.simai.txt", "llama3.1-405b", {"sequence": 4096}, 8, 1),
    ],
)
def test_messages_are_those_that_aicb_recorded(file: str, name: str, changes: dict[str, object], tp: int, sp: int) -> None:
    workload, _ = read_workload(str(EXAMPLES / "workloads" / file))
    model = read_model(name, changes)
    found = messages(model, unit_of(model, LAYER), make_keys(tp=tp, sequence_parallel=sp), UNFUSED)
    mine = [(kind, moved) for _, kind, _, moved in sent(found, FORWARD)]
    units = [unit for unit in range(workload.arrays.unit_layers.shape[0]) if workload.arrays.unit_layers[unit, -1]]
    assert mine == [message for unit in units[:1] for message in recorded(file, unit)]


def test_messages_of_experts_are_those_that_aicb_recorded() -> None:
    """AICB (aliyun/aicb), a Mixtral of sequence 2048, micro-batch 1, 8 experts, top 2, at tp 4, ep 4 and expert tp 4."""
    model = read_model("mixtral-8x7b", {"sequence": 2048})
    unit = unit_of(model, LAYER, True)
    found = messages(model, unit, make_keys(tp=4, ep=4, etp=4, sequence_parallel=1), UNFUSED)
    attention = [("qkv", ALL_GATHER, TP, 16777216), ("projection", REDUCE_SCATTER, TP, 16777216)]
    assert sent(found, FORWARD) == [
        *attention,
        ("routing", ALL_GATHER, TP, 512),
        ("permute", ALL_TO_ALL, EP, 8388608),
        ("experts_fc1", ALL_GATHER, ETP, 33554432),
        ("experts_fc2", REDUCE_SCATTER, ETP, 33554432),
        ("unpermute", ALL_TO_ALL, EP, 8388608),
    ]
    backward = [message for message in sent(found, INPUT_GRADIENT) if message[2] != TP]
    assert [(kind, moved) for _, kind, _, moved in backward] == [
        (ALL_TO_ALL, 8388608), (REDUCE_SCATTER, 33554432), (ALL_GATHER, 33554432), (ALL_TO_ALL, 8388608),
    ]  # fmt: skip
    alone = messages(model, unit, make_keys(tp=[1, 2], ep=[1, 1], sequence_parallel=1), UNFUSED)
    assert sent(alone, FORWARD, 0) == []
    assert [kind for _, kind, _, _ in sent(alone, FORWARD, 1)] == [ALL_GATHER, REDUCE_SCATTER, ALL_GATHER]


def test_messages_of_the_ends() -> None:
    """cross_entropy1..3 of AICB: 4 bytes per token. The fused loss sends two of its sums as one."""
    model = read_model("megatron-7.5b")
    keys = make_keys(tp=[4, 4], sequence_parallel=[0, 1])
    head = messages(model, unit_of(model, HEAD), keys, UNFUSED)
    assert [moved for _, kind, _, moved in sent(head, FORWARD) if kind == ALL_REDUCE] == [8192] * 3
    fused = messages(model, unit_of(model, HEAD), keys, stack_with())
    assert [moved for _, kind, _, moved in sent(fused, FORWARD) if kind == ALL_REDUCE] == [8192, 16384]
    embedding = messages(model, unit_of(model, EMBEDDING), keys, UNFUSED)
    assert sent(embedding, FORWARD, 0) == [("embedding", ALL_REDUCE, TP, 16777216)]
    assert sent(embedding, FORWARD, 1) == [("embedding", REDUCE_SCATTER, TP, 16777216)]
    assert pipeline_bytes(model, keys).tolist() == [16777216, 16777216 / 4]


def test_latents_are_gathered_instead_of_the_hidden_state() -> None:
    model = read_model("deepseek-v3")
    found = messages(model, unit_of(model, LAYER), make_keys(tp=8, sequence_parallel=1), UNFUSED)
    gathered = [moved for name, kind, _, moved in sent(found, FORWARD) if kind == ALL_GATHER and name != "fc1"]
    assert sum(gathered) == 2 * 4096 * (1536 + 512 + 64)


def test_parallel_blocks_are_summed_once() -> None:
    model = read_model("gpt-neox-20b")
    found = messages(model, unit_of(model, LAYER), make_keys(tp=2), UNFUSED)
    assert [name for name, *_ in sent(found, FORWARD)] == ["fc2"]
    assert [name for name, *_ in sent(found, INPUT_GRADIENT)] == ["qkv", "fc1"]


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("tp", [1, 8])
def test_activations_of_a_layer_are_those_of_the_paper(name: str, tp: int) -> None:
    """Korthikanti et al. 2022 (arXiv 2205.05198), table 2: s b h times what stands there."""
    model, b = read_model(name), 2
    s, h, a = 2048, model.hidden, model.heads
    keys = make_keys(tp=tp, sequence_parallel=[0, 1], micro_batch=b)
    plain, sequence = activation_bytes(model, unit_of(model, LAYER), keys, stack_with(flash_attention=False)) / (s * b * h)
    scores = 5 * a * s / (h * tp)
    assert plain == pytest.approx([10 + 24 / tp + scores, 10 + 24 / tp, 2])
    assert sequence == pytest.approx([34 / tp + scores, 34 / tp, 2 / tp])
    flash = activation_bytes(model, unit_of(model, LAYER), keys, stack_with())
    assert flash[1] == pytest.approx(s * b * h * np.array([34 / tp, 34 / tp, 2 / tp]))
    assert MODES == ("none", "selective", "full")


def test_activations_with_a_gate_and_experts() -> None:
    """Llama: T (8h / sp + (2 (a + 2k) d + 2 a d + 6 f) / t); an expert: 4h + 6f per copy that it gets."""
    model = read_model("llama3-70b")
    found = activation_bytes(model, unit_of(model, LAYER), make_keys(tp=8, sequence_parallel=1), stack_with())
    assert found[0, 0] == 8192 * (8 * 8192 + 2 * (64 + 16) * 128 + 2 * 8192 + 6 * 28672) / 8
    moe = read_model("mixtral-8x7b", {"sequence": 4096})
    found = activation_bytes(moe, unit_of(moe, LAYER, True), make_keys(ep=8), stack_with())
    assert found[0, 0] == 4096 * (8 * 4096 + 2 * (32 + 16) * 128 + 2 * 4096 + 2 * (4 * 4096 + 6 * 14336))
    head = activation_bytes(moe, unit_of(moe, HEAD), make_keys(), stack_with())
    assert head[0].tolist() == [4096 * (4 * 4096 + 8 * 32000)] * 3


def kept_by_layer(model: Model, keys: Keys, **facts: object) -> list[float]:
    """Bytes that the last kind of layer that attends keeps without recompute, of each key."""
    unit = next(unit for unit in reversed(model.units) if unit.kind == LAYER and unit.attends)
    kept: list[float] = activation_bytes(model, unit, keys, stack_with(**facts))[:, 0].tolist()
    return kept


def test_norms_of_queries_and_keys_keep_their_inputs() -> None:
    """Qwen3 0.6B, 16 heads and 8 of keys, 128 wide: the queries and keys before their norms, 2 bytes each."""
    with_norm, without = (kept_by_layer(read_model("qwen3-0.6b", {"qk_norm": on}), make_keys()) for on in (True, False))
    assert with_norm[0] - without[0] == 2 * 4096 * (16 + 8) * 128


def test_latent_queries_are_kept_before_and_after_their_norm() -> None:
    """Of a model whose queries alone go through 512 numbers, with a norm: both in 2 bytes of each local token; 1 where its
    GEMM multiplies 8 bits."""
    keys = make_keys(tp=2, sequence_parallel=1, precision=[PRECISION_NAMES.index(name) for name in ("bf16", "fp8_tensorwise")])
    with_rank, without = (kept_by_layer(read_model("llama3-8b", {"q_rank": rank}), keys) for rank in (512, None))
    local = read_model("llama3-8b").sequence or 0
    assert np.subtract(with_rank, without).tolist() == [(2 + 2) * local / 2 * 512, (2 + 1) * local / 2 * 512]


def test_attention_in_8_bits_keeps_bytes_only_where_the_plan_runs_in_8_bits() -> None:
    """Llama 3 8B: queries and output of 32 heads, keys and values of 8, 128 wide; 16-bit plans keep them in 2 bytes."""
    model = read_model("llama3-8b", {"sequence": 4096})
    keys = make_keys(precision=[PRECISION_NAMES.index(name) for name in ("bf16", "fp8_tensorwise")])
    wide, narrow = (kept_by_layer(model, keys, fp8_attention=on) for on in (False, True))
    assert np.subtract(wide, narrow).tolist() == [0, 4096 * (2 * 32 + 2 * 8) * 128]


def test_a_backward_works_on_the_gradients_of_what_enters_the_activation() -> None:
    """The hidden state's gradient, and those of gate and up, 2 bytes each: of every copy that a rank's experts compute, and of
    each token in the shared expert (DeepSeek-V3: 8 of 256, 2,048 wide; Mixtral: 2 of 8, 14,336 wide, no shared one)."""
    for name, ffn, topk, shared in (("deepseek-v3", 2048, 8, 2048), ("mixtral-8x7b", 14336, 2, 0)):
        model = read_model(name, {"sequence": 4096})
        found = backward_bytes(model, unit_of(model, LAYER, True), make_keys(ep=8))
        assert found.tolist() == [4096 * (2 * model.hidden + 2 * 2 * (topk * ffn + shared))]
    dense = read_model("llama3-8b", {"sequence": 4096})
    assert backward_bytes(dense, unit_of(dense, LAYER), make_keys()).tolist() == [4096 * 2 * (4096 + 2 * 14336)]


def test_prediction_layers_have_a_layer_an_embedding_and_a_head() -> None:
    model, keys = read_model("deepseek-v3"), make_keys(tp=2, ep=2, sequence_parallel=1)
    layer, mtp = (unit_of(model, kind, True) for kind in (LAYER, MTP))
    assert {"embedding", "mtp_projection", "logits", "experts_fc1"} <= set(operators(model, mtp, keys, stack_with()).names)
    assert {"embedding", "mtp_projection", "logits"} <= set(messages(model, mtp, keys, stack_with()).operators)
    assert (
        activation_bytes(model, mtp, keys, stack_with()) > activation_bytes(model, unit_of(model, HEAD), keys, stack_with())
    ).all()
    assert held(model, mtp, keys).experts == held(model, layer, keys).experts


def test_many_keys_give_what_each_gives_alone() -> None:
    model = read_model("mixtral-8x7b", {"sequence": 4096})
    columns: dict[str, Any] = {
        "tp": [1, 2, 4],
        "ep": [8, 2, 1],
        "etp": [1, 2, 4],
        "sequence_parallel": [0, 1, 1],
        "micro_batch": [1, 2, 4],
    }
    together = make_keys(**columns)
    for unit in model.units:
        for i in range(3):
            alone = make_keys(**{name: column[i] for name, column in columns.items()})
            for function in (operators, messages):
                many, one = function(model, unit, together, stack_with()), function(model, unit, alone, stack_with())
                for name in many._fields:
                    column = getattr(many, name)
                    if isinstance(column, np.ndarray) and column.ndim == 2:
                        assert (column[i] == getattr(one, name)[0]).all(), (unit.name, name)


def first_refusal(model: Model, keys: Keys, sequence: int) -> str:
    """The reason why a model cannot run with the first key, or nothing."""
    return next((reason for reason, refused in refusals(model, keys, sequence).items() if refused[0]), "")


def test_keys_that_a_model_cannot_run_with_are_named() -> None:
    model = read_model("qwen3-30b-a3b")
    cases = [
        (make_keys(tp=4, ep=8, sequence_parallel=1), ""),
        (make_keys(tp=3, sequence_parallel=1), "heads_not_divisible_by_tp"),
        (make_keys(tp=4, sequence_parallel=0), "experts_need_sequence_parallel"),
        (make_keys(ep=3), "experts_not_divisible_by_ep"),
        (make_keys(etp=5), "expert_ffn_not_divisible_by_etp"),
        (make_keys(cp=3), "sequence_not_divisible_by_cp"),
        (make_keys(cp=8, a2a=8), "heads_not_divisible_by_cp"),
    ]
    for keys, reason in cases:
        assert first_refusal(model, keys, 4096) == reason
    dense = read_model("llama3-8b", {"kv_heads": 4})
    cases = [
        (make_keys(tp=8), ""),
        (make_keys(tp=16, sequence_parallel=1), "sequence_not_divisible_by_tp"),
    ]
    for keys, reason in cases:
        assert first_refusal(dense, keys, 8200) == reason
    assert first_refusal(read_model("qwen2.5-7b"), make_keys(tp=7), 4096) == "kv_heads_do_not_fit_tp"
    assert first_refusal(read_model("llama3-8b", {"ffn": 1001}), make_keys(tp=8), 4096) == "ffn_not_divisible_by_tp"


def test_sequence_parallelism_without_tensor_parallelism_is_none() -> None:
    assert make_keys(tp=[1, 2], sequence_parallel=1).sequence_parallel.tolist() == [0, 1]


def test_a_model_without_a_sequence_has_no_operators() -> None:
    model = read_model("llama3-8b", {"sequence": None})
    with pytest.raises(SpecError, match=r"model llama3-8b: sequence: missing: give the tokens of a training sequence"):
        operators(model, unit_of(model, LAYER), make_keys(), stack_with())


# Peak allocated bytes of Megatron-LM on eight A100-PCIe: MooreThreads/SimuMax@4dcaae513, docs/FULL_RESULTS.md (its estimates
# and the errors that it states against them; +-2 %): model, changes, tp, pp, ep, GPUs, GiB. bf16, fp32 gradients, distributed
# Adam, flash attention, sequence parallelism, no recompute, micro-batch 1, 1F1B.
PEAKS = [
    ("llama3-70b", {"layers": 12}, 1, 2, 1, 65.4),
    ("llama3-70b", {"layers": 12}, 2, 1, 1, 59.9),
    ("llama3-70b", {"layers": 12}, 4, 1, 1, 38.6),
    ("llama3-70b", {"layers": 12}, 8, 1, 1, 28.0),
    ("llama3-8b", {}, 1, 2, 1, 51.5),
    ("llama3-8b", {}, 2, 1, 1, 44.0),
    ("llama3-8b", {}, 4, 1, 1, 27.6),
    ("llama3-8b", {}, 8, 1, 1, 19.5),
    ("deepseek-v2", {"layers": 4}, 1, 1, 8, 46.6),
    ("deepseek-v2", {"layers": 4}, 1, 2, 4, 47.3),
]


@pytest.mark.parametrize(("name", "changes", "tp", "pp", "ep", "gib"), PEAKS)
def test_state_and_activations_are_the_memory_that_was_read(
    name: str, changes: dict[str, object], tp: int, pp: int, ep: int, gib: float
) -> None:
    model = read_model(name, {"sequence": 4096, **changes})
    keys = make_keys(tp=tp, ep=ep, sequence_parallel=1)
    dp, experts_dp = 8 / (tp * pp), 8 / (pp * ep)
    head = unit_of(model, HEAD)
    layers = [model.layer_units[unit] for unit in model.unit_of_layer]
    per_stage, peaks = model.layers // pp, []
    for stage in range(pp):
        units = layers[stage * per_stage : (stage + 1) * per_stage]
        kept = sum(activation_bytes(model, unit, keys, stack_with())[0, 0] for unit in units) * (pp - stage)
        if stage == pp - 1:
            kept += activation_bytes(model, head, keys, stack_with())[0, 0]
        parts = [held(model, unit, keys) for unit in units]
        parts += [held(model, unit_of(model, EMBEDDING), keys)] * (stage == 0) + [held(model, head, keys)] * (stage == pp - 1)
        dense, experts = (sum(part[kind][0] for part in parts) for kind in (0, 1))
        peaks.append(kept + dense * (6 + 12 / dp) + experts * (6 + 12 / experts_dp))
    assert max(peaks) / 2**30 == pytest.approx(gib, rel=0.04)
