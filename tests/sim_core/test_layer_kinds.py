"""Layers of other kinds than attention and MLP: parameters and FLOPs as published, work and bytes as the papers count them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim_core.errors import SpecError
from sim_core.models.activations import activation_bytes, module_bytes
from sim_core.models.description import Model, Unit, parse_model
from sim_core.models.keys import make_keys, refusals
from sim_core.models.messages import messages, pipeline_bytes
from sim_core.models.operators import operators
from sim_core.models.reading import read_model
from sim_core.models.recompute import RECOMPUTE_MODULES
from sim_core.models.weights import model_flops_per_token, parameters
from sim_core.terms import ALL_TO_ALL, CP_A2A, CP_RING, EP, FORWARD
from tests.facts import stack_with

PUBLISHED = {
    "gemma3-27b": 27.009, "gemma3-12b": 11.766, "gemma3-1b": 1.000, "llama4-scout": 107.77, "llama4-maverick": 400.71,
    "phi-4": 14.660, "olmo2-7b": 7.299, "olmo2-32b": 32.234, "smollm3-3b": 3.075, "nemotron-h-8b": 8.101,
    "nemotron-h-56b": 56.324, "nemotron3-nano-30b-a3b": 31.578, "qwen3-next-80b-a3b": 79.674, "deepseek-v3.2": 671.878,
    "kimi-linear-48b-a3b": 49.123, "minimax-m2": 228.690, "nemotron3-super-120b-a12b": 120.669,
    "nemotron3-ultra-550b-a55b": 549.309, "deepseek-v4-flash": 284.28, "deepseek-v4-pro": 1573.0,
}  # fmt: skip
"""Billions: the formulas of each paper by hand; the publishers' own numbers are within 1.2 % of them."""
ACTIVE = {
    "llama4-scout": 17.2, "llama4-maverick": 17.2, "nemotron3-nano-30b-a3b": 3.6, "nemotron3-super-120b-a12b": 12.8,
    "nemotron3-ultra-550b-a55b": 56.1, "qwen3-next-80b-a3b": 3.9, "kimi-linear-48b-a3b": 3.5, "minimax-m2": 11.0,
    "deepseek-v4-flash": 13.8, "deepseek-v4-pro": 49.8,
}  # fmt: skip


def unit_of(model: Model, name: str) -> Unit:
    """A unit by its name."""
    return next(unit for unit in model.units if unit.name == name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    counts = parameters(read_model(name))
    assert counts.total / 1e9 == pytest.approx(PUBLISHED[name], rel=1e-3)
    if name in ACTIVE:
        assert counts.active / 1e9 == pytest.approx(ACTIVE[name], abs=0.06)


@pytest.mark.parametrize(
    ("name", "published"),
    [("nemotron3-nano-30b-a3b", 22.28), ("nemotron3-super-120b-a12b", 84.74), ("nemotron3-ultra-550b-a55b", 358.9)],
)
def test_flops_per_token_are_those_of_the_published_throughput(name: str, published: float) -> None:
    """TFLOP/s over tokens/s of Megatron-Bridge's performance summary (51885cf).

    Its flop_utils.py counts the causal half of attention, no router and no projection of multi-token prediction, and takes the
    inner width of Mamba-2 as twice the hidden size, whatever its heads are.
    """
    model, tokens = read_model(name), 8192
    mixer, experts = model.recurrent, model.experts
    assert mixer is not None
    assert experts is not None
    letters = str(model.pattern)
    attending, routed, scans = (letters.count(each) for each in "*EM")
    attending, routed = attending + model.mtp_layers, routed + model.mtp_layers
    half = attending * 2 * model.heads * model.head_dim * tokens
    router = routed * 2 * model.hidden * experts.count
    joined = model.mtp_layers * 2 * 2 * model.hidden * model.hidden
    wider = 2 * model.hidden - mixer.heads * mixer.head_dim
    scan = scans * wider * (2 * model.hidden * 2 + 7 * mixer.state + 2 * model.hidden)
    counted = model_flops_per_token(model) + 3 * (scan - half - router - joined)
    assert counted / 1e9 == pytest.approx(published, rel=1e-3)


def test_the_scan_of_mamba_has_the_products_of_its_paper() -> None:
    """Per token and forward 2 Q g N + 2 Q D + 4 D N (arXiv 2405.21060, section 6), of which tensor parallelism divides all."""
    model = read_model("nemotron3-nano-30b-a3b")
    for tp in (1, 4):
        work = operators(model, unit_of(model, "recurrent_layer"), make_keys(tp=tp, sequence_parallel=1), stack_with())
        scan = [k for k, name in enumerate(work.names) if name.startswith("scan_") and work.phase[k] == FORWARD]
        chunk, groups, state, inner = 128, 8, 128, 64 * 64
        by_hand = 2 * chunk * groups * state + 2 * chunk * inner + 4 * inner * state
        assert work.flops[0, scan].sum() * tp / 8192 == pytest.approx(by_hand)


def test_a_delta_rule_does_what_its_core_counts_and_more() -> None:
    """Kernels that work in chunks do more than 8 P d d a token, which is what publishers count."""
    model = read_model("qwen3-next-80b-a3b")
    work = operators(model, unit_of(model, "recurrent_layer"), make_keys(), stack_with())
    scan = [k for k, name in enumerate(work.names) if name.startswith("scan_") and work.phase[k] == FORWARD]
    done = work.flops[0, scan].sum() / 4096
    assert 32 * 8 * 128 * 128 * 0.7 < done < 32 * 8 * 128 * 128 * 2


def test_a_layer_of_a_pattern_is_one_mixer() -> None:
    model = read_model("nemotron3-nano-30b-a3b")
    numbers = {unit.name: unit.number for unit in model.layer_units}
    assert numbers == {"recurrent_layer": 23, "moe_layer": 23, "attention_layer": 6}
    for name, absent in (("recurrent_layer", {"fc1", "attention"}), ("attention_layer", {"fc1", "mixer_in"})):
        names = set(operators(model, unit_of(model, name), make_keys(), stack_with()).names)
        assert not names & absent
    assert "attention_norm" not in operators(model, unit_of(model, "moe_layer"), make_keys(), stack_with()).names


def test_latent_experts_dispatch_their_latents() -> None:
    """Super sends 22 copies of 1,024 values of each token, 2 bytes each, where the hidden size would be four times as many."""
    model = read_model("nemotron3-super-120b-a12b")
    sent = messages(model, unit_of(model, "moe_layer"), make_keys(ep=8), stack_with())
    dispatched = [k for k in range(len(sent.names)) if sent.group[k] == EP and sent.kind[k] == ALL_TO_ALL]
    assert set(sent.bytes[0, dispatched]) == {8192 * 22 * 1024 * 2.0}


def test_a_scan_exchanges_heads_over_all_context_parallel_ranks() -> None:
    model = read_model("nemotron3-nano-30b-a3b")
    width = 2 * 4096 + 2 * 8 * 128 + 64  # what the input projection makes of a token
    for a2a, group in ((1, CP_RING), (4, CP_A2A)):
        sent = messages(model, unit_of(model, "recurrent_layer"), make_keys(cp=4, a2a=a2a), stack_with())
        own = [k for k in range(len(sent.names)) if sent.group[k] == group and sent.phase[k] == FORWARD]
        assert sorted(sent.bytes[0, own]) == [8192 / 4 * 4096 * 2, 8192 / 4 * width * 2]


def test_chunks_are_sequences_of_their_own_and_need_no_messages() -> None:
    model = read_model("llama4-scout", {"sequence": 32768})
    work = operators(model, unit_of(model, "window_layer"), make_keys(), stack_with())
    whole = operators(model, unit_of(model, "full_layer"), make_keys(), stack_with())
    row = work.row("attention", FORWARD)
    assert work.flops[0, row] / whole.flops[0, row] == pytest.approx(1 / 4)
    sent = messages(model, unit_of(model, "window_layer"), make_keys(cp=4), stack_with())
    assert not [k for k in range(len(sent.names)) if sent.group[k] in (CP_RING, CP_A2A)]


def test_an_indexer_is_on_every_tensor_parallel_rank_and_scores_half_of_the_square() -> None:
    model = read_model("deepseek-v3.2", {"sequence": 8192})
    one, eight = (
        operators(model, unit_of(model, "moe_layer"), make_keys(tp=tp, sequence_parallel=1), stack_with()) for tp in (1, 8)
    )
    row = one.row("indexer_scores", FORWARD)
    assert one.flops[0, row] == eight.flops[0, row] == 2 * 64 * 128 * 8192 * 8192 / 2
    read = one.flops[0, one.row("attention", FORWARD)]
    assert read == pytest.approx(2 * 128 * (192 + 128) * 8192 * 2048 * (1 - 2048 / 2 / 8192))


def test_what_is_kept_of_a_scan_is_its_projected_input() -> None:
    """2 (h + 2D + 2gN + P) bytes a token (mamba_ssm's fused path), the norm's input, and the output that is projected back."""
    model = read_model("nemotron-h-8b")
    kept = activation_bytes(model, unit_of(model, "recurrent_layer"), make_keys(), stack_with())[0, 0]
    by_hand = 2 * (4096 + 2 * 8192 + 2 * 8 * 128 + 128) + 2 * 4096 + 2 * 8192
    assert kept / 8192 == pytest.approx(by_hand)


def test_groups_of_states_limit_tensor_parallelism() -> None:
    model = read_model("nemotron-h-8b")
    keys = make_keys(tp=[8, 16], sequence_parallel=1)
    assert list(refusals(model, keys, 8192)["heads_not_divisible_by_tp"]) == [False, True]
    keys = make_keys(cp=[16, 256], a2a=1)
    assert list(refusals(model, keys, 2**20)["heads_not_divisible_by_cp"]) == [False, True]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pattern": "M-M"}, "pattern: found 3 layers, expected 52, as in layers"),
        ({"pattern": "MX"}, "pattern: found 'X', expected letters of * M G - E and |"),
        ({"recurrent": None}, "recurrent: missing, expected the sizes of the layers that do not attend"),
        ({"pattern": "E" * 52}, "recurrent: found without layers that use it"),
        ({"pattern": "ME" * 26}, "experts: missing, expected those of the layers E of the pattern"),
        ({"full_attention": 4}, "full_attention: found beside a pattern, expected one of both"),
        (
            {"recurrent": {"kind": "mamba2", "heads": 128, "head_dim": 64, "state": 128, "groups": 8, "chunk": 10**6}},
            "recurrent.chunk: found '1000000', expected",
        ),
        ({"recurrent": {"kind": "mamba3"}}, "recurrent.kind: found 'mamba3'"),
        ({"indexer": {"heads": 64, "head_dim": 128, "topk": 2048}}, "indexer: found without mla, which it needs"),
    ],
)
def test_a_wrong_pattern_is_one_line(values: dict[str, Any], message: str) -> None:
    numbers = read_model("nemotron-h-8b").model_dump(exclude_none=True) | values
    with pytest.raises(SpecError) as error:
        parse_model({key: value for key, value in numbers.items() if value is not None}, "here")
    assert str(error.value).startswith(f"here: {message}")


def v4_layer(ratio: int) -> int:
    """Attention of DeepSeek-V4 Flash by hand: h 4096, 64 heads of 512, ranks 1024, 8 groups, indexer of 64 heads of 128."""
    h, d, heads, rank, groups = 4096, 512, 64, 1024, 8
    count = h * rank + rank * heads * d + h * d + heads * d * rank + groups * rank * h + rank + d + heads
    if ratio:
        width = d * (2 if ratio == 4 else 1)
        count += 2 * h * width + ratio * width + d
    if ratio == 4:
        count += rank * 64 * 128 + h * 64 + 2 * h * 2 * 128 + ratio * 2 * 128 + 128
    return count


def test_compressed_attention_has_the_weights_of_its_modules() -> None:
    model = read_model("deepseek-v4-flash")
    found = {unit.name: unit.by_part["attention"] for unit in parameters(model).units if "attention" in unit.by_part}
    assert found == {
        "window_layer": v4_layer(0), "ratio_4_layer": v4_layer(4), "ratio_128_layer": v4_layer(128), "mtp": v4_layer(0)
    }  # fmt: skip
    assert [unit.number for unit in model.layer_units] == [2, 21, 20]


def test_flops_of_deepseek_v4_are_those_of_its_published_throughput() -> None:
    """Megatron-Bridge: TFLOP/s over tokens/s are 90.95 GFLOP a token at 4,096 tokens with one layer of prediction."""
    assert model_flops_per_token(read_model("deepseek-v4-flash")) / 1e9 == pytest.approx(90.95, rel=5e-3)


@pytest.mark.parametrize(("ratio", "entries"), [(0, 0.0), (4, 512 * (1 - 512 / 2048)), (128, 16.0)])
def test_a_query_reads_its_window_and_entries_before_it(ratio: int, entries: float) -> None:
    """At 4,096 tokens: 128 of the window but at the begin, the best 512 of up to 1,024 entries, or 0 to 32 of them all."""
    model = read_model("deepseek-v4-flash")
    unit = next(unit for unit in model.layer_units if unit.ratio == ratio)
    for tp in (1, 4):
        work = operators(model, unit, make_keys(tp=tp, sequence_parallel=1), stack_with())
        read = work.flops[0, work.row("attention", FORWARD)] / (4096 * 64 / tp * 4 * 512)
        assert read == pytest.approx(128 - 128 * 127 / 8192 + entries)
        if ratio == 4:  # on every tensor-parallel rank, over the causal half of 1,024 entries
            assert work.flops[0, work.row("indexer_scores", FORWARD)] == 4096 * 2 * 64 * 128 * 1024 / 2


def test_hyper_connections_read_and_write_four_streams() -> None:
    """(4n + 2) h elements of a sublayer forward; the product of the gates has n h rows and n (n + 2) columns."""
    model = read_model("deepseek-v4-flash")
    unit = unit_of(model, "window_layer")
    work = operators(model, unit, make_keys(), stack_with())
    for name in ("attention_streams", "mlp_streams"):
        assert work.bytes[0, work.row(name, FORWARD)] == 4096 * 4096 * 2 * 18
    by_part = next(each.by_part for each in parameters(model).units if each.name == "window_layer")
    assert by_part["streams"] == 2 * (4 * 4096 * 24 + 24 + 3)
    plain = parse_model(model.model_dump(exclude_none=True) | {"residual_streams": 1}, "here")
    more = activation_bytes(model, unit, make_keys(), stack_with()) - activation_bytes(plain, unit, make_keys(), stack_with())
    assert more[0].tolist() == [4096 * 4096 * 2 * 2 * (4 + 1)] * 2 + [4096 * 4096 * 2 * 3]  # streams and output, twice; input
    assert pipeline_bytes(model, make_keys())[0] == 4 * pipeline_bytes(plain, make_keys())[0]
    saved = module_bytes(model, unit, make_keys(), stack_with())[0, RECOMPUTE_MODULES.index("mhc")]
    assert saved == 4096 * 4096 * 2 * (2 * (4 + 1) - 4)  # all but the streams at the begin of the layer


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"compressed.ratios": [0, 4]}, "compressed.ratios: found 2 layers, expected 43"),
        ({"compressed.out_groups": 7}, "compressed.out_groups: found 7, expected a divisor of heads 64"),
        ({"indexer": None}, "indexer: missing, expected that of the layers of ratio 4"),
        ({"window": {"tokens": 128}}, "compressed: found beside window, expected one of both"),
        ({"kv_heads": 2}, "kv_heads: found 2, expected 1 with compressed"),
        ({"compressed.rope": 7}, "compressed.rope: unknown key"),
    ],
)
def test_wrong_numbers_of_compressed_attention_are_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        read_model("deepseek-v4-flash", values)
    assert message in str(error.value)


def test_groups_of_the_output_limit_tensor_parallelism() -> None:
    keys = make_keys(tp=[8, 16], sequence_parallel=1)
    assert list(refusals(read_model("deepseek-v4-flash"), keys, 4096)["heads_not_divisible_by_tp"]) == [False, True]


def test_layers_may_be_given_as_a_pattern() -> None:
    numbers = read_model("nemotron-h-8b").model_dump(exclude_none=True)
    pattern = numbers.pop("pattern")
    model = parse_model(numbers | {"layers": {"pattern": f"{pattern[:26]}|{pattern[26:]}"}}, "here")
    assert (model.layers, parameters(model)) == (52, parameters(read_model("nemotron-h-8b")))
    short = read_model("nemotron-h-8b", {"layers.pattern": "M-M-*-"})
    assert (short.layers, short.unit_of_layer) == (6, (0, 1, 0, 1, 2, 1))
    assert np.all(model.unit_of_layer == read_model("nemotron-h-8b").unit_of_layer)
