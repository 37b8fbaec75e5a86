"""Models: the presets have the published parameters; a wrong number is refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import (
    Model,
    SpecError,
    model_document,
    model_flops_per_token,
    model_names,
    model_yaml,
    parameters,
    parse_model,
    read_model,
)
from sim_core.models.description import LAYER, MTP
from tests.sim_core.test_layer_kinds import PUBLISHED

# name, parameters, active, of attention, of dense MLPs, of routed experts, of norms. The first is what transformers 5.23.0
# counts on the meta device for the published configuration (numel of AutoModelForCausalLM, tied weights once); Grok-1, which
# has no class there: closed form of xai-org/grok-1, model.py.
COUNTED = [
    ("bloom-176b", 176_247_271_424, 176_247_271_424, 57_549_864_960, 115_096_719_360, 0, 4_071_424),
    ("deepseek-v2", 235_741_434_880, 21_375_800_320, 8_953_651_200, 188_743_680, 222_717_542_400, 619_520),
    ("deepseek-v3", 671_026_404_352, 37_552_282_624, 11_413_547_008, 1_189_085_184, 653_908_770_816, 881_664),
    ("gemma2-27b", 27_227_128_320, 27_227_128_320, 2_604_662_784, 23_441_965_056, 0, 852_480),
    ("glm-4.5", 352_797_814_784, 33_632_251_904, 12_542_311_424, 566_231_040, 335_963_750_400, 947_200),
    ("glm-4.5-air", 106_852_245_504, 13_424_123_904, 5_017_047_040, 134_479_872, 99_656_663_040, 380_928),
    ("gpt-neox-20b", 20_554_567_680, 20_554_567_680, 6_644_858_880, 13_288_906_752, 0, 1_093_632),
    ("gpt-oss-120b", 116_829_156_672, 5_711_982_912, 955_805_184, 0, 114_701_598_720, 210_240),
    ("gpt-oss-20b", 20_914_757_184, 4_187_440_704, 637_203_456, 0, 19_116_933_120, 141_120),
    ("gpt2", 124_439_808, 124_439_808, 28_348_416, 56_669_184, 0, 38_400),
    ("gpt2-large", 774_030_080, 774_030_080, 236_113_920, 472_089_600, 0, 186_880),
    ("gpt2-medium", 354_823_168, 354_823_168, 100_761_600, 201_449_472, 0, 100_352),
    ("gpt2-xl", 1_557_611_200, 1_557_611_200, 491_827_200, 983_424_000, 0, 310_400),
    ("grok-1", 315_684_820_992, 83_756_587_008, 5_637_144_576, 0, 309_237_645_312, 1_579_008),
    ("kimi-k2", 1_026_408_209_408, 32_861_477_888, 6_168_569_856, 396_361_728, 1_014_686_023_680, 881_664),
    ("llama2-13b", 13_015_864_320, 13_015_864_320, 4_194_304_000, 8_493_465_600, 0, 414_720),
    ("llama2-70b", 68_976_648_192, 68_976_648_192, 12_079_595_520, 56_371_445_760, 0, 1_318_912),
    ("llama2-7b", 6_738_415_616, 6_738_415_616, 2_147_483_648, 4_328_521_728, 0, 266_240),
    ("llama3-70b", 70_553_706_496, 70_553_706_496, 12_079_595_520, 56_371_445_760, 0, 1_318_912),
    ("llama3-8b", 8_030_261_248, 8_030_261_248, 1_342_177_280, 5_637_144_576, 0, 266_240),
    ("llama3.1-405b", 405_853_388_800, 405_853_388_800, 71_873_593_344, 329_772_957_696, 0, 4_145_152),
    ("llama3.1-70b", 70_553_706_496, 70_553_706_496, 12_079_595_520, 56_371_445_760, 0, 1_318_912),
    ("llama3.1-8b", 8_030_261_248, 8_030_261_248, 1_342_177_280, 5_637_144_576, 0, 266_240),
    ("mistral-7b-v0.1", 7_241_732_096, 7_241_732_096, 1_342_177_280, 5_637_144_576, 0, 266_240),
    ("mistral-7b-v0.3", 7_248_023_552, 7_248_023_552, 1_342_177_280, 5_637_144_576, 0, 266_240),
    ("mixtral-8x22b", 140_620_634_112, 39_152_031_744, 4_932_501_504, 0, 135_291_469_824, 694_272),
    ("mixtral-8x7b", 46_702_792_704, 12_879_925_248, 1_342_177_280, 0, 45_097_156_608, 266_240),
    ("nemotron4-340b", 341_029_195_776, 341_029_195_776, 70_665_633_792, 260_919_263_232, 0, 7_114_752),
    ("opt-175b", 174_604_468_224, 174_604_468_224, 57_986_777_088, 115_970_015_232, 0, 4_743_168),
    ("qwen2.5-72b", 72_706_203_648, 72_706_203_648, 12_080_414_720, 58_133_053_440, 0, 1_318_912),
    ("qwen2.5-7b", 7_615_616_512, 7_615_616_512, 822_212_608, 5_703_204_864, 0, 204_288),
    ("qwen3-0.6b", 596_049_920, 596_049_920, 176_167_936, 264_241_152, 0, 58_368),
    ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520, 6_702_521_856, 0, 227_096_395_776, 774_144),
    ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704, 905_981_952, 0, 28_991_029_248, 198_656),
    ("qwen3-32b", 32_762_123_264, 32_762_123_264, 6_039_814_144, 25_165_824_000, 0, 660_480),
    ("qwen3-8b", 8_190_735_360, 8_190_735_360, 1_509_958_656, 5_435_817_984, 0, 299_008),
]  # fmt: skip
WITHOUT_COUNT = {  # Narayanan et al. 2021 (arXiv 2104.04473), table 1; Korthikanti et al. 2022 (arXiv 2205.05198), table 3
    "megatron-1.7b": 1.7,
    "megatron-3.6b": 3.6,
    "megatron-7.5b": 7.5,
    "megatron-18.4b": 18.4,
    "megatron-39.1b": 39.1,
    "megatron-76.1b": 76.1,
    "megatron-145.6b": 145.6,
    "megatron-310.1b": 310.1,
    "megatron-530b": 529.6,
    "megatron-1t": 1008.0,
    "megatron-22b": 22,
    "gpt3-175b": 175,
}


def gpt(**changes: Any) -> dict[str, Any]:
    """A small model, with some numbers changed."""
    numbers = {"name": "small", "source": "made up", "layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "gated": False}
    return (
        numbers | {"activation": "gelu", "norm": "layernorm", "position": "none", "tied": False, "vocabulary": 1000} | changes
    )


@pytest.mark.parametrize(("name", "total", "active", "attention", "mlp", "experts", "norms"), COUNTED)
def test_a_preset_has_the_parameters_that_transformers_counts(
    name: str, total: int, active: int, attention: int, mlp: int, experts: int, norms: int
) -> None:
    found = parameters(read_model(name))
    parts = tuple(found.by_part.get(part, 0) for part in ("attention", "mlp", "routed_experts", "norms"))
    assert (found.total, found.active, *parts) == (total, active, attention, mlp, experts, norms)
    assert sum(found.by_part.values()) == found.total


@pytest.mark.parametrize(("name", "billions"), WITHOUT_COUNT.items())
def test_the_sizes_of_the_megatron_papers(name: str, billions: float) -> None:
    """Their formula leaves out the final norm (Narayanan et al. 2021, eq. 2)."""
    model = read_model(name)
    h, layers, tokens = model.hidden, model.layers, model.vocabulary + 2048
    formula = 12 * layers * h**2 * (1 + 13 / (12 * h) + tokens / (12 * layers * h))
    assert parameters(model).total - 2 * h == pytest.approx(formula, rel=1e-12)
    assert round(formula / 1e9, 1 if isinstance(billions, float) else 0) == billions


def test_every_preset_is_counted_and_has_its_source() -> None:
    assert set(model_names()) == {row[0] for row in COUNTED} | set(WITHOUT_COUNT) | set(PUBLISHED)
    for name in model_names():
        model = read_model(name)
        assert model.name == name
        assert len(model.source) > 30
        assert "sequence" in model.source
        assert model.sequence is not None


@pytest.mark.parametrize("name", model_names())
def test_a_model_written_is_read_back(name: str, tmp_path: Path) -> None:
    model = read_model(name)
    (tmp_path / "mine.yaml").write_text(model_yaml(model), encoding="utf-8")
    assert read_model("mine.yaml", base=tmp_path) == model
    assert parse_model(yaml.safe_load(model_yaml(model))["model"], "here") == model
    assert parse_model(model_document(model), "here") == model


def test_multi_token_prediction_of_deepseek_v3_is_counted_apart() -> None:
    """DeepSeek-V3's README: 685B on the hub = 671B of the main model + 14B of MTP, embedding and head counted in both."""
    found = parameters(read_model("deepseek-v3"))
    shared = found.by_part["embedding"] + found.by_part["head"]
    assert found.mtp + shared == pytest.approx(14e9, rel=0.05)
    assert (found.total + found.mtp + shared) / 1e9 == pytest.approx(685, rel=1e-3)


def test_the_layer_of_a_prediction_is_like_the_last_one() -> None:
    """DeepSeek-V3 (arXiv 2412.19437), 4.2: the first three layers are dense, the prediction's layer has experts; so with four
    layers, of which the last one is the first with experts, and with one layer alone."""
    four = read_model("deepseek-v3", {"layers": 4})
    assert [unit.moe for unit in four.units if unit.kind in (LAYER, MTP)] == [False, True, True]
    assert read_model("llama3-8b", {"layers": 1, "mtp_layers": 1}).units[-1].kind == MTP


def test_layers_of_different_kinds_are_units_of_their_own() -> None:
    model = parse_model(
        gpt(window={"tokens": 8, "layers": "even"}, experts={"count": 4, "topk": 2, "ffn": 32, "dense_layers": [0]}), "here"
    )
    assert [(unit.name, unit.number) for unit in model.units] == [
        ("embedding", 1),
        ("window_dense_layer", 1),
        ("full_moe_layer", 2),
        ("window_moe_layer", 1),
        ("head", 1),
    ]
    assert model.unit_of_layer == (0, 1, 2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": 3}, "layer: unknown key, nearest valid: layers"),
        ({"layers": "many"}, "layers: found 'many', expected a whole number"),
        ({"layers": 0}, "layers: found '0', expected greater than or equal to 1"),
        ({"layers": 10_001}, "layers: found '10001', expected less than or equal to 10000"),
        ({"layers": True}, "layers: found 'True', expected a whole number"),
        ({"gated": 1}, "gated: found '1', expected true or false"),
        ({"heads": 5}, "head_dim: missing, and hidden 64 does not divide by heads 5"),
        ({"kv_heads": 3}, "kv_heads: found 3, expected a divisor of heads 4"),
        ({"activation": "gelo"}, "activation: found 'gelo', nearest valid: gelu"),
        ({"position": "learned"}, "positions: missing"),
        ({"positions": 7}, "positions: found 7, expected none with position: none"),
        ({"position": "learned", "positions": 7, "sequence": 8}, "sequence: found 8, expected at most positions 7"),
        ({"ffn": None}, "ffn: missing"),
        ({"experts": 3}, "experts: found '3', expected a mapping"),
        ({"experts": {"count": 2, "topk": 3, "ffn": 8}}, "experts.topk: found 3, expected at most count 2"),
        ({"experts": {"count": 8, "topk": 2, "ffn": 8, "groups": 3}}, "experts.groups: found 3, expected a divisor of count 8"),
        ({"experts": {"count": 8, "topk": 2, "ffn": 8, "topk_groups": 2}}, "experts.topk_groups: found 2, expected at most"),
        ({"experts": {"count": 8, "topk": 3, "ffn": 8, "groups": 4}}, "experts.topk: found 3, expected at most 2, the experts"),
        ({"experts": {"count": 2, "topk": 1, "fnn": 8}}, "experts.fnn: unknown key, nearest valid: ffn"),
        ({"experts": {"count": 2, "topk": 1, "ffn": 8, "dense_layers": 4}}, "experts.dense_layers: found 4, expected fewer"),
        ({"experts": {"count": 2, "topk": 1, "ffn": 8, "dense_layers": [9]}}, "experts.dense_layers: found [9]"),
        ({"experts": {"count": 2, "topk": 1, "ffn": 8, "pad_to_capacity": True}}, "experts.pad_to_capacity: found"),
        ({"window": {"tokens": 4, "layers": "some"}}, "window.layers: found 'some', valid: a list of layers, all, even, odd"),
        ({"mla": {}, "kv_heads": 4}, "kv_heads: found '4'"),
        ({"hidden_dropout": 1.5}, "hidden_dropout: found '1.5', expected less than 1"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_model(gpt(**changes), "here")
    assert str(caught.value).startswith(f"here: {message}")
    assert "\n" not in str(caught.value)


def test_a_number_is_replaced_by_its_name() -> None:
    model = read_model("mixtral-8x7b", {"layers": 2, "experts.topk": 1})
    assert (model.layers, model.experts and model.experts.topk) == (2, 1)
    with pytest.raises(SpecError, match=r"gpt2: expert.topk: unknown key, nearest valid: experts.topk"):
        read_model("gpt2", {"expert.topk": 1})
    with pytest.raises(SpecError, match=r"unknown model 'lama3.1-8b', nearest valid: llama3.1-8b"):
        read_model("lama3.1-8b")


def with_sequence(name: str, sequence: int) -> Model:
    return read_model(name, {"sequence": sequence})


@pytest.mark.parametrize("name", ["megatron-22b", "gpt3-175b", "megatron-530b", "megatron-1t"])
def test_model_flops_are_those_of_the_papers(name: str) -> None:
    """Korthikanti et al. 2022 (arXiv 2205.05198), eq. 7 and Narayanan et al. 2021, eq. 3 without its recompute."""
    model = read_model(name)
    h, layers, v, s = model.hidden, model.layers, model.vocabulary, model.sequence or 0
    assert model_flops_per_token(model) == pytest.approx(
        72 * layers * h**2 * (1 + s / (6 * h) + v / (12 * h * layers)), rel=1e-12
    )
    recomputed = 24 * layers * h**2 * (1 + s / (6 * h))  # one more forward of the layers
    eq_3 = 96 * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert model_flops_per_token(model) + recomputed == pytest.approx(eq_3, rel=1e-12)


def test_model_flops_with_experts_are_six_per_active_weight_and_attention() -> None:
    """PaLM (arXiv 2204.02311), appendix B: 6N + 12LHQT, N without embedding and vectors."""
    model = with_sequence("mixtral-8x7b", 4096)
    found = parameters(model)
    weights = found.active - found.by_part["embedding"] - found.by_part["norms"]
    assert model_flops_per_token(model) == 6 * weights + 12 * 32 * 32 * 128 * 4096


def test_a_window_limits_the_scores() -> None:
    whole, windowed = (model_flops_per_token(with_sequence("mistral-7b-v0.1", s)) for s in (4096, 32768))
    assert whole == windowed
    with pytest.raises(SpecError, match=r"model mistral-7b-v0.1: sequence: missing"):
        model_flops_per_token(read_model("mistral-7b-v0.1", {"sequence": None}))
