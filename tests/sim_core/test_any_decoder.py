"""Families of `config.json` against what their publishers and transformers count; families that nobody has described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import ASSUMED, Model, SpecError, model_document, parameters, parse_model, read_model
from sim_core.models.activations import activation_bytes
from sim_core.models.keys import make_keys
from sim_core.models.messages import messages
from sim_core.models.operators import operators
from sim_core.models.readers.config_fields import row_of, tables
from sim_core.models.readers.families import PARTS
from sim_core.models.stack import read_stack

PUBLISHED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("decoders.yaml").read_text(encoding="utf-8"))
ROUNDED = 0.035
"""Publishers round the total: 230 for 228.7 billion, 21 for 21.8 (with the digits that they write)."""
NEW = {
    "model_type": "newest", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu", "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
}  # fmt: skip
LATENT = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
EXPERTS = {"n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1}


def written(folder: Path, fields: dict[str, Any]) -> str:
    """The path of a config.json with these fields; `attention_at` stands for a long list of layers."""
    at, fields = fields.get("attention_at"), {key: value for key, value in fields.items() if key != "attention_at"}
    if at is not None:
        layers = range(fields["num_hidden_layers"])
        fields["layer_types"] = ["attention" if layer in at else "mamba" for layer in layers]
    path = folder / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return str(path)


def read(folder: Path, name: str, **changes: Any) -> Model:
    return read_model(written(folder, PUBLISHED[name]["config"] | changes))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_parameters(name: str, tmp_path: Path) -> None:
    model, (total, active) = read(tmp_path, name), PUBLISHED[name]["published"]
    counted = parameters(model)
    assert counted.total == PUBLISHED[name].get("total", counted.total)
    assert counted.total / 1e9 == pytest.approx(total, rel=ROUNDED, abs=0.9 if total > 9 else 0.2)
    if active:  # some leave out the embedding or the head
        without = counted.active - counted.by_part["embedding"]
        assert without / 1e9 * 0.96 <= active <= counted.active / 1e9 * 1.04
    assert ASSUMED not in model.source
    assert parse_model(model_document(model), "again") == model


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("seed-oss-36b", {"qkv_bias": True, "projection_bias": False, "hidden_dropout": 0.1, "attention_dropout": 0.1}),
        ("command-a-111b", {"norm": "layernorm_unbiased", "norms_per_layer": 1, "parallel_residual": True, "tied": True}),
        ("command-r-plus-104b", {"qk_norm_whole": True, "norms_per_layer": 1, "window": None}),
        ("falcon-7b", {"kv_heads": 1, "norms_per_layer": 1, "norm": "layernorm", "gated": False, "ffn": 18176}),
        ("falcon-40b", {"kv_heads": 8, "norms_per_layer": 2, "parallel_residual": True, "mlp_bias": False}),
        ("falcon2-11b", {"norms_per_layer": 1, "ffn": 16384, "tied": False}),
        ("stablelm2-1.6b", {"qkv_bias": True, "projection_bias": False, "norms_per_layer": 2, "parallel_residual": False}),
        ("olmo-7b", {"norm": "layernorm_plain", "gated": True}),
        ("phi-3.5-moe", {"head_bias": True, "projection_bias": True, "norm": "layernorm", "ffn": None}),
        ("gpt-j-6b", {"head_bias": True, "qkv_bias": False, "mlp_bias": True, "norms_per_layer": 1}),
        ("mpt-7b", {"position": "alibi", "qkv_bias": False, "mlp_bias": False, "tied": True}),
        ("glm-4-9b", {"qkv_bias": True, "projection_bias": False}),
        ("glm-4-32b", {"norms_per_layer": 4, "qkv_bias": False}),
        ("trinity-mini", {"output_gate": True, "qk_norm": True, "norms_per_layer": 4}),
        ("granite4-h-small", {"full_attention": (5, 15, 25, 35), "position": "none", "tied": True}),
        ("granite4-h-micro", {"experts": None, "ffn": 8192}),
        ("bamba-9b", {"full_attention": (9, 18, 27), "position": "rotary"}),
        ("minimax-m2", {"qk_norm_whole": True, "mtp_layers": 3}),
        ("step3-316b", {"q_rank": 2048, "kv_heads": 1, "head_dim": 256, "ffn": 18432}),
        ("arctic-480b", {"norms_per_layer": 3, "ffn": None, "kv_heads": 8}),
        ("falcon-h1-34b", {"full_attention": None, "head_dim": 128, "kv_heads": 4}),
    ],
)
def test_what_a_layer_is_made_of(name: str, numbers: dict[str, Any], tmp_path: Path) -> None:
    model = read(tmp_path, name)
    assert {key: getattr(model, key) for key in numbers} == numbers


@pytest.mark.parametrize(
    ("name", "changes", "windows"),
    [
        ("olmo3-32b", {}, (4096, 4096, 4096, 0) * 16),
        ("exaone4-32b", {}, (4096, 4096, 4096, 0) * 16),
        ("exaone4-1.2b", {}, (0,) * 30),
        ("command-a-111b", {}, (4096, 4096, 4096, 0) * 16),
        ("command-a-111b", {"layer_types": ["full_attention"] * 32 + ["sliding_attention"] * 32}, (0,) * 32 + (4096,) * 32),
        ("phi-4-mini", {}, (262144,) * 32),
        ("qwen1.5-moe-a2.7b", {}, (0,) * 24),
        ("trinity-mini", {}, (2048, 2048, 2048, 0) * 8),
    ],
)
def test_where_windows_are(name: str, changes: dict[str, Any], windows: tuple[int, ...], tmp_path: Path) -> None:
    model = read(tmp_path, name, **changes)
    assert tuple(model.layer_units[unit].window for unit in model.unit_of_layer) == windows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model_type": "bert", "hidden_size": 768, "type_vocab_size": 2},
            "type_vocab_size: found '2': embeddings of segments",
        ),
        ({"model_type": "t5", "d_model": 512, "is_encoder_decoder": True}, "is_encoder_decoder: found 'True': an encoder"),
        ({"model_type": "longcat_flash", "zero_expert_num": 256}, "zero_expert_num: found '256': experts that compute nothing"),
        ({"model_type": "gemma3n_text", "altup_num_inputs": 4}, "altup_num_inputs: found '4': alternating updates"),
        ({"model_type": "jamba", "mamba_dt_rank": 256}, "mamba_dt_rank: found '256': the scan of Mamba-1"),
        (NEW | {"mamba_d_ssm": 1024}, "mamba_d_ssm: found '1024': a state-space mixer beside attention"),
        (PUBLISHED["arctic-480b"]["config"] | {"moe_layer_frequency": 2}, "moe_layer_frequency: found '2', which is not"),
        (PUBLISHED["glm-5"]["config"] | {"index_topk_freq": 4}, "index_topk_freq: found '4', which is not modelled"),
        (PUBLISHED["glm-5"]["config"] | {"indexer_types": ["full", "shared"] * 39}, "indexer_types: found 'shared'"),
        (PUBLISHED["minimax-m2"]["config"] | {"qk_norm_type": "per_head"}, "qk_norm_type: found 'per_head', which is not"),
        (PUBLISHED["k-exaone-236b"]["config"] | {"is_moe_layer": [True]}, "is_moe_layer: found '[True]', expected true or"),
        (NEW | {"kv_compression": 4}, "kv_compression: unknown field that may change the cost (found '4')"),
        (NEW | {"sliding_window": 4096}, "layer_types: missing, expected which layers have the window"),
        (NEW | {"rms_norm_eps": None}, "rms_norm_eps: missing, and layer_norm_eps, too"),
        ({key: NEW[key] for key in NEW if key != "tie_word_embeddings"}, "tie_word_embeddings: missing"),
        ({key: NEW[key] for key in NEW if key != "intermediate_size"}, "intermediate_size: missing; it is a size"),
        (NEW | {"n_layer": 31}, "n_layer: found '31', but num_hidden_layers is '32'"),
        (NEW | {"use_parallel_residual": True}, "use_parallel_residual: unknown field that may change the cost"),
        (PUBLISHED["hunyuan-a13b"]["config"] | {"moe_topk": [8, 4]}, "moe_topk: found '[8, 4]', expected a whole number"),
        (PUBLISHED["hunyuan-a13b"]["config"] | {"use_cla": True}, "use_cla: found 'True': keys and values that layers share"),
        (PUBLISHED["minimax-m2"]["config"] | {"attn_type_list": [0, 1] * 31}, "attn_type_list: found '[0, 1,"),
        (PUBLISHED["granite4-h-micro"]["config"] | {"mamba_proj_bias": True}, "mamba_proj_bias: found 'True', which is not"),
        (PUBLISHED["exaone4-32b"]["config"] | {"sliding_window_pattern": "LGLG"}, "sliding_window_pattern: found 'LGLG'"),
    ],
)
def test_what_changes_the_cost_and_is_not_known_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_model(written(tmp_path, fields))
    assert f": {message}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "total"),
    [
        ({}, 8_030_261_248),  # as Llama 3 8B
        ({"attention_bias": True}, 8_030_261_248 + 32 * (4096 + 2 * 1024 + 4096)),
        ({"qkv_bias": True}, 8_030_261_248 + 32 * (4096 + 2 * 1024)),
        ({"use_qk_norm": True}, 8_030_261_248 + 32 * 2 * 128),
        ({"layer_types": ["full_attention"] * 32}, 8_030_261_248),
        ({"hidden_act": "relu2"}, 8_030_261_248 - 32 * 4096 * 14336),
        ({"layer_norm_eps": 1e-5, "rms_norm_eps": None}, 8_030_261_248 + 65 * 4096),
        (EXPERTS, 8_030_261_248 + 31 * (64 * 3 * 4096 * 1408 + 64 * 4096 - 3 * 4096 * 14336)),
        (
            LATENT,
            8_030_261_248 - 32 * 4096 * (2 * 4096 + 2 * 1024)
            + 32 * (4096 * (1536 + 576) + 1536 * 32 * 192 + 512 * 32 * 256 + 32 * 128 * 4096 + 1536 + 512),
        ),
    ],
)  # fmt: skip
def test_an_unknown_family_is_a_decoder_with_the_parts_it_names(more: dict[str, Any], total: int, tmp_path: Path) -> None:
    model = read_model(written(tmp_path, {key: x for key, x in (NEW | more).items() if x is not None}))
    assert parameters(model).total == total
    assert f"model_type 'newest': {ASSUMED}" in model.source
    assert model.source.endswith(f"{total:,} parameters: compare them with the published ones")


def test_layers_with_experts_by_a_list(tmp_path: Path) -> None:
    model = read(tmp_path, "k-exaone-236b", is_moe_layer=[False, False] + [True] * 46)
    assert model.experts
    assert model.experts.dense_layers == 2


def test_every_row_names_parts_that_are_read() -> None:
    rows, families = tables()["rows"], tables()["families"]
    for kind, given in families.items():
        likes = [given["like"]] if isinstance(given["like"], str) else given["like"]
        assert set(likes) <= {*rows, *families}, kind
        row = row_of(kind)
        assert set(row.parts.split()) <= set(PARTS), kind
        assert not set(row.reads) & set(row.must), kind


def test_side_by_side_with_one_norm(tmp_path: Path) -> None:
    """Command A: attention and MLP read the output of one norm."""
    model = read_model(written(tmp_path, PUBLISHED["command-a-111b"]["config"]), {"sequence": 4096})
    names = operators(model, model.layer_units[0], make_keys(), read_stack("megatron-core")).names
    assert "attention_norm" in names
    assert "mlp_norm" not in names
    with pytest.raises(SpecError, match="norms_per_layer: found 1, expected parallel_residual"):
        parse_model(model_document(model) | {"parallel_residual": False}, "here")


def test_two_mixers_beside_one_another(tmp_path: Path) -> None:
    """Falcon-H1: a layer costs its attention, as if alone, and its state-space mixer, as if alone, and a sum of both."""
    both = read_model(written(tmp_path, PUBLISHED["falcon-h1-7b"]["config"]), {"sequence": 4096})
    document = model_document(both)
    alone = parse_model({key: value for key, value in document.items() if key != "recurrent"}, "attention")
    state = parse_model(document | {"recurrent": document["recurrent"] | {"beside": False}, "full_attention": []}, "state")
    keys, stack, work = make_keys(tp=[1, 2], sequence_parallel=1), read_stack("megatron-core"), []
    for model in (both, alone, state):
        unit = next(each for each in model.layer_units if each.kind == "layer")
        found = operators(model, unit, keys, stack)
        inside = [i for i, name in enumerate(found.names) if name.startswith(("mixer_", "scan", "qkv", "attention", "proj"))]
        apart = [i for i in inside if found.names[i] not in ("attention_norm", "attention_residual")]
        sent = messages(model, unit, keys, stack)
        own = sent.bytes[:, [name.startswith(("mixer_", "qkv", "proj")) for name in sent.operators]].sum(axis=1)
        kept = activation_bytes(model, unit, keys, stack)[:, 0]
        work.append((found.flops[:, apart].sum(axis=1), kept, own))
    assert (work[0][0] == work[1][0] + work[2][0]).all()
    assert (work[0][2] == work[1][2] + work[2][2]).all()
    assert (work[0][1] > work[1][1]).all()
    assert both.state_of(both.layer_units[0]) is both.recurrent


def test_a_shared_expert_with_a_norm_of_its_own(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, PUBLISHED["arctic-480b"]["config"]), {"sequence": 4096})
    names = operators(model, model.layer_units[0], make_keys(), read_stack("megatron-core")).names
    assert {"attention_norm", "shared_norm", "mlp_norm", "shared_fc1"} <= set(names)
    assert parameters(model).by_part["norms"] == (3 * 35 + 1) * 7168


def test_queries_through_a_narrow_projection(tmp_path: Path) -> None:
    """Step-3 (arXiv 2507.19427, table 2): 64 heads of 256 from 2,048; one head of keys and values."""
    model = read_model(written(tmp_path, PUBLISHED["step3-316b"]["config"]), {"sequence": 4096})
    assert model.experts
    assert model.experts.dense_layers == (0, 1, 2, 3, 60)
    found = operators(model, model.layer_units[0], make_keys(), read_stack("megatron-core"))
    flops = {name: found.flops[0, found.row(name, 0)] for name in ("q_down", "q_up", "qkv", "projection")}
    token = {"q_down": 7168 * 2048, "q_up": 2048 * 64 * 256, "qkv": 7168 * 2 * 256, "projection": 64 * 256 * 7168}
    assert flops == {name: 2 * 4096 * size for name, size in token.items()}
    with pytest.raises(SpecError, match="q_rank: found beside mla or lora"):
        parse_model(model_document(model) | {"lora": {"rank": 8}}, "here")
