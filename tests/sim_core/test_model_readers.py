"""Models from files of other programs: parameters as published; what may change the cost is read or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim_core import FormatError, Model, SimError, SpecError, model_document, parameters, read_model
from sim_core.models.readers.megatron_arguments import model_flags

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "rope_theta": 5e5, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
MISTRAL = LLAMA | {"model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096}
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "hidden_act": "silu", "use_sliding_window": False, "sliding_window": 131072,
    "max_window_layers": 28, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936, "hidden_act": "silu", "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "q_lora_rank": 1536,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280, "hidden_act": "silu", "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1, "quantization_config": {"quant_method": "fp8"}, "n_group": 8, "topk_group": 4,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_ctx": 1024, "n_positions": 1024, "vocab_size": 50257,
    "activation_function": "gelu_new",
}  # fmt: skip
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44, "vocab_size": 50432,
    "num_attention_heads": 64, "hidden_act": "gelu_fast", "use_parallel_residual": True, "tie_word_embeddings": False,
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088, "hidden_act": "silu", "num_local_experts": 32,
    "num_experts_per_tok": 4, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "hidden_size": 4608, "intermediate_size": 36864, "num_hidden_layers": 46, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 256000, "sliding_window": 4096, "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
OPT = {
    "model_type": "opt", "hidden_size": 12288, "ffn_dim": 49152, "num_hidden_layers": 96, "num_attention_heads": 96,
    "vocab_size": 50272, "max_position_embeddings": 2048, "activation_function": "relu", "word_embed_proj_dim": 12288,
}  # fmt: skip
BLOOM = {
    "model_type": "bloom",
    "n_embed": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "vocab_size": 250880,
    "seq_length": 2048,
}
NEMOTRON = {
    "model_type": "nemotron", "hidden_size": 18432, "intermediate_size": 73728, "num_hidden_layers": 96, "hidden_act": "relu2",
    "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 256000,
}  # fmt: skip
GLM = {
    "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944, "num_hidden_layers": 46, "head_dim": 128,
    "num_attention_heads": 96, "num_key_value_heads": 8, "vocab_size": 151552, "hidden_act": "silu", "attention_bias": True,
    "use_qk_norm": False, "n_routed_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1408,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
GROK = {
    "model_type": "grok-1", "hidden_size": 6144, "intermediate_size": 32768, "num_hidden_layers": 64, "num_attention_heads": 48,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 131072, "num_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip

# What transformers 5.23.0 counts on the meta device (Grok-1: closed form of xai-org/grok-1, model.py); the preset of its shape.
CONFIGS = [
    (LLAMA, 8_030_261_248, "llama3-8b"),
    (MISTRAL, 7_241_732_096, "mistral-7b-v0.1"),
    (MIXTRAL, 46_702_792_704, "mixtral-8x7b"),
    (QWEN2, 7_615_616_512, "qwen2.5-7b"),
    (QWEN3_MOE, 30_532_122_624, "qwen3-30b-a3b"),
    (DEEPSEEK, 671_026_404_352, "deepseek-v3"),
    (GPT2, 124_439_808, "gpt2"),
    (NEOX, 20_554_567_680, "gpt-neox-20b"),
    (GPT_OSS, 20_914_757_184, "gpt-oss-20b"),
    (GEMMA2, 27_227_128_320, "gemma2-27b"),
    (OPT, 174_604_468_224, "opt-175b"),
    (BLOOM, 176_247_271_424, "bloom-176b"),
    (NEMOTRON, 341_029_195_776, "nemotron4-340b"),
    (GLM, 106_852_245_504, "glm-4.5-air"),
    (GROK, 315_684_820_992, "grok-1"),
]


def without(fields: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


def written(folder: Path, fields: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    return str(path)


def shape(model: Model) -> dict[str, Any]:
    """The numbers, without what a configuration does not state."""
    apart = ("name", "source", "sequence", "batch_tokens", "mtp_layers")
    return {key: x for key, x in model_document(model).items() if key not in apart}


@pytest.mark.parametrize(("fields", "total", "preset"), CONFIGS, ids=[preset for _, _, preset in CONFIGS])
def test_a_config_has_the_parameters_that_transformers_counts(
    fields: dict[str, Any], total: int, preset: str, tmp_path: Path
) -> None:
    model = read_model(written(tmp_path, fields))
    assert parameters(model).total == total
    assert shape(model) == shape(read_model(preset))


def test_groups_of_experts_that_a_token_may_use(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite chooses among all (`greedy`); Kimi K2 has one group."""
    for fields, expected in (
        ({}, (8, 4)),
        ({"topk_method": "noaux_tc"}, (8, 4)),
        ({"topk_method": "group_limited_greedy", "topk_group": 3}, (8, 3)),
        ({"topk_method": "greedy"}, (1, 1)),
        ({"n_group": 1, "topk_group": 1}, (1, 1)),
        ({"n_group": None, "topk_group": None}, (1, 1)),
    ):
        experts = read_model(written(tmp_path, DEEPSEEK | fields)).experts
        assert experts is not None
        assert (experts.groups, experts.topk_groups) == expected


# Altered configurations, with what transformers 5.23.0 builds from them (closed forms in terms of the fields).
@pytest.mark.parametrize(
    ("fields", "more"),
    [
        (LLAMA | {"attention_bias": True}, 32 * (4096 + 2 * 1024 + 4096)),
        (LLAMA | {"mlp_bias": True}, 32 * (2 * 14336 + 4096)),
        (LLAMA | {"tie_word_embeddings": True}, -128256 * 4096),
        (LLAMA | {"num_key_value_heads": None}, 32 * 2 * 4096 * (4096 - 1024)),
        (LLAMA | {"head_dim": 64}, -32 * (2 * 4096 * 2048 + 2 * 4096 * 512)),
        (GPT2 | {"n_inner": 768}, -12 * (2 * 768 * 2304 + 2304)),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, -24 * (128 * 3 * 2048 * 768 + 2048 * 128 - 3 * 2048 * 6144)),
        (QWEN3_MOE | {"mlp_only_layers": [5]}, -(128 * 3 * 2048 * 768 + 2048 * 128 - 3 * 2048 * 6144)),
        (DEEPSEEK | {"q_lora_rank": None}, 61 * (7168 * 128 * 192 - (7168 * 1536 + 1536 + 1536 * 128 * 192))),
        (GLM | {"use_qk_norm": True}, 46 * 2 * 128),
        (OPT | {"enable_bias": False}, -96 * (4 * 12288 + 49152 + 12288)),
        (GPT_OSS | {"attention_bias": False}, -24 * (64 * 64 + 2 * 8 * 64 + 2880)),
    ],
)
def test_every_field_that_changes_parameters_does(fields: dict[str, Any], more: int, tmp_path: Path) -> None:
    (base,) = [total for known, total, _ in CONFIGS if known["model_type"] == fields["model_type"]]
    assert parameters(read_model(written(tmp_path, fields))).total == base + more


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        (MISTRAL, (4096,) * 32),
        (MISTRAL | {"sliding_window": None}, (0,) * 32),
        (GEMMA2, (4096, 0) * 23),
        (GPT_OSS | {"layer_types": None}, (128, 0) * 12),
        (GPT_OSS | {"layer_types": ["full_attention"] * 24}, (0,) * 24),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 20}, (0,) * 20 + (131072,) * 8),
    ],
)
def test_the_window_is_in_the_layers_that_have_one(fields: dict[str, Any], window: tuple[int, ...], tmp_path: Path) -> None:
    model = read_model(written(tmp_path, fields))
    assert tuple(model.layer_units[unit].window for unit in model.unit_of_layer) == window


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (LLAMA | {"model_type": 7}, "model_type: found '7', valid: afmoe"),
        ({"hidden_size": 3}, "model_type: missing, valid: afmoe"),
        (LLAMA | {"hidden_size": None}, "hidden_size: missing; it is a size"),
        (LLAMA | {"hidden_size": "4k"}, "hidden_size: found '4k', expected a whole number"),
        (LLAMA | {"num_hidden_layers": 10**9}, "num_hidden_layers: found '1000000000', expected a whole number from 1 to"),
        (LLAMA | {"kv_compression": 4}, "kv_compression: unknown field that may change the cost (found '4')"),
        (LLAMA | {"num_experts": 4}, "num_experts: unknown field that may change the cost"),
        (LLAMA | {"hidden_act": "gela"}, "hidden_act: found 'gela', nearest valid: gelu"),
        (LLAMA | {"text_config": {}}, "text_config: num_hidden_layers: missing"),
        (LLAMA | {"vision_config": {}}, "a multimodal model without text_config"),
        ({**QWEN3_MOE, "num_experts": None}, "num_experts: missing"),
        (without(MISTRAL, "num_key_value_heads"), "num_key_value_heads: missing; transformers would take 8"),
        (without(MISTRAL, "sliding_window"), "sliding_window: missing; transformers would take 4096"),
        (without(DEEPSEEK, "first_k_dense_replace"), "first_k_dense_replace: missing; transformers would"),
        (GPT_OSS | {"layer_types": ["full_attention"]}, "layer_types: found 1 layers, expected 24"),
        (GPT_OSS | {"layer_types": [["full_attention"]] * 24}, "layer_types: found "),
        (GPT_OSS | {"layer_types": ["linear_attention"] * 24}, "layer_types: found 'linear_attention', nearest valid:"),
        (OPT | {"do_layer_norm_before": False}, "do_layer_norm_before: found 'False', which is not modelled; expected True"),
        (OPT | {"word_embed_proj_dim": 512}, "word_embed_proj_dim: found '512', which is not modelled"),
        (LLAMA | {"num_attention_heads": 33}, "head_dim: missing, and hidden 4096 does not divide by heads 33"),
    ],
)  # fmt: skip
def test_a_config_that_may_cost_otherwise_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path, fields)
    with pytest.raises(SpecError) as caught:
        read_model(path)
    where = f"{path}:1" if message.partition(":")[0] in fields else str(path)
    assert str(caught.value).startswith(f"{where}: {message}")
    assert "\n" not in str(caught.value)


def test_a_field_switched_off_or_known_to_cost_nothing_is_ignored(tmp_path: Path) -> None:
    free = {
        "new_switch": False,
        "new_number": None,
        "rope_scaling": {"factor": 8},
        "torch_dtype": "bfloat16",
        "use_cache": True,
    }
    assert parameters(read_model(written(tmp_path, LLAMA | free))).total == 8_030_261_248


@pytest.mark.parametrize("text", ["{", "[1]", "\x00", "[" * 100_000])
def test_a_file_that_is_no_config_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(SimError, match=r"config\.json"):
        read_model("config.json", base=tmp_path)
    with pytest.raises(SpecError, match="No such file"):
        read_model("other/config.json", base=tmp_path)


# Argument sets of public launch scripts (NVIDIA/Megatron-LM d98e8a64, bigscience 9e64edec), shortened.
MIXTRAL_ARGUMENTS = """#!/bin/bash
MODEL_ARGS=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 4096          # a comment with --num-layers 7
    --max-position-embeddings 32768
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 8
    --no-position-embedding
)
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-token-dispatcher-type alltoall
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} ${MOE_ARGS[@]} --tokenizer-model $2 --bf16
"""
GPT3_ARGUMENTS = (
    "--num-layers 96\n--hidden-size 12288\n--num-attention-heads 96\n--seq-length 2048\n--max-position-embeddings 2048"
)
BLOOM_ARGUMENTS = """
NHIDDEN=14336
GPT_ARGS=" \\
    --num-layers ${NLAYERS:-70} --hidden-size $NHIDDEN \\
    --num-attention-heads 112 \\
    --seq-length 2048 --max-position-embeddings=2048 \\
    --embed-layernorm --position-embedding-type alibi --pad-vocab-size-to 250880 \\
    --train-samples 220_000_000 --deepspeed --zero-stage 0
    "
"""
DEEPSEEK_YAML = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --disable-bias-linear: true
  --seq-length: 4096
  --num-layers: 61
  --hidden-size: 7168
  --ffn-hidden-size: 18432
  --num-attention-heads: 128
  --kv-channels: 128
  --position-embedding-type: rope
  --make-vocab-size-divisible-by: 3232
  --normalization: RMSNorm
  --swiglu: true
  --untie-embeddings-and-output-weights: true
  --multi-latent-attention: true
  --qk-layernorm: true
  --num-experts: 256
  --moe-layer-freq: ([0]*3+[1]*58)
  --moe-ffn-hidden-size: 2048
  --moe-shared-expert-intermediate-size: 2048
  --moe-router-topk: 8
  --moe-router-num-groups: 8
  --moe-router-group-topk: 4
  --q-lora-rank: 1536
  --kv-lora-rank: 512
  --recompute-activations: false
  --hidden-dropout: 0.0
  --attention-dropout: 0.0
"""


def arguments(folder: Path, text: str, values: dict[str, object] | None = None, name: str = "args.sh") -> Model:
    (folder / name).write_text(text, encoding="utf-8")
    return read_model(name, values, base=folder)


def test_megatron_arguments_have_the_parameters_of_the_published_models(tmp_path: Path) -> None:
    mixtral = arguments(tmp_path, MIXTRAL_ARGUMENTS, {"vocabulary": 32000})
    assert shape(mixtral) == shape(read_model("mixtral-8x7b"))
    assert (parameters(mixtral).total, mixtral.sequence) == (46_702_792_704, 4096)
    bloom = arguments(tmp_path, BLOOM_ARGUMENTS)
    assert parameters(bloom).total == 176_247_271_424
    assert bloom.vocabulary_multiple == 1
    deepseek = arguments(tmp_path, DEEPSEEK_YAML, {"vocabulary": 129280}, "model_config.yaml")
    assert parameters(deepseek).total == 671_026_404_352
    assert shape(deepseek) == shape(read_model("deepseek-v3")) | {"vocabulary_multiple": 3232}
    gpt = arguments(tmp_path, GPT3_ARGUMENTS, {"vocabulary": 50257})
    assert shape(gpt) == shape(read_model("gpt3-175b"))


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ("", "ffn", 49152),
        ("--swiglu", "ffn", 32768),
        ("--geglu", "activation", "gelu"),
        ("--squared-relu", "activation", "squared_relu"),
        ("--tokenizer-type NullTokenizer --vocab-size 131072", "vocabulary", 131073),
        ("--tokenizer-type GPT2BPETokenizer", "vocabulary", 50257),
        ("--vocab-file /data/gpt2-vocab.json", "vocabulary", 50257),
        ("--padded-vocab-size 51200", "vocabulary", 51200),
        ("--group-query-attention", "kv_heads", 1),
        ("--num-query-groups 8", "kv_heads", 96),
        ("--num-key-value-heads 4 $ds_args", "kv_heads", 4),
        ("--disable-bias-linear --add-qkv-bias", "qkv_bias", True),
        ("--disable-bias-linear", "mlp_bias", False),
        ("--hidden-dropout 0", "hidden_dropout", 0.0),
        ("--use-rotary-position-embeddings", "position", "rotary"),
        ("--normalization rmsnorm", "norm", "rmsnorm"),
        ("--softmax-type learnable", "attention_sinks", True),
        ("--mtp-num-layers 1", "mtp_layers", 1),
        ("--num-experts 1", "experts", None),
    ],
)
def test_flags_and_their_defaults(more: str, key: str, value: object, tmp_path: Path) -> None:
    model = arguments(tmp_path, f"{GPT3_ARGUMENTS}\n{more}", {} if key == "vocabulary" else {"vocabulary": 50257})
    assert getattr(model, key) == value


def test_every_sixth_layer_of_megatron_sees_all(tmp_path: Path) -> None:
    """Gemma 3's five layers with a window and one without (Megatron-LM, transformer/utils.py, is_layer_window_attention: those
    whose number the frequency does not divide)."""
    more = "--window-size 1023,0 --window-attn-skip-freq 6"
    model = arguments(tmp_path, f"{GPT3_ARGUMENTS}\n{more}", {"vocabulary": 50257, "layers": 12})
    windows = [model.layer_units[unit].window for unit in model.unit_of_layer]
    assert windows == [*[1024] * 5, 0] * 2


def test_a_model_with_experts_alone_says_their_width() -> None:
    """Mixtral's config.json: intermediate_size 14336, which is that of its experts; Llama's of its MLP."""
    for name in ("mixtral-8x7b", "llama3-8b"):
        assert model_flags(read_model(name), 4096)["--ffn-hidden-size"] == ("14336",)


def test_a_config_json_is_called_as_its_folder_and_another_file_as_itself(tmp_path: Path) -> None:
    """Every published model's is called config.json."""
    folder = tmp_path / "Llama-3-8B"
    folder.mkdir()
    for name in ("config.json", "llama.json"):
        (folder / name).write_text(json.dumps(LLAMA), encoding="utf-8")
    names = [read_model(f"Llama-3-8B{rest}", base=tmp_path).name for rest in ("", "/config.json", "/llama.json")]
    assert names == ["Llama-3-8B", "Llama-3-8B", "llama"]


def test_a_model_beside_other_keys_is_not_read_alone(tmp_path: Path) -> None:
    """A document with a section `model` is read as that section; with more beside it, what stands there would be lost."""
    inner = model_document(read_model("llama3-8b"))
    (tmp_path / "a.yaml").write_text(json.dumps({"model": inner}), encoding="utf-8")
    assert shape(read_model("a.yaml", base=tmp_path)) == shape(read_model("llama3-8b"))
    (tmp_path / "b.yaml").write_text(json.dumps({"model": inner, "layers": 16}), encoding="utf-8")
    with pytest.raises(SpecError, match=r"b\.yaml"):
        read_model("b.yaml", base=tmp_path)


def test_windows_and_expert_layers_of_megatron(tmp_path: Path) -> None:
    """Layer numbers in Megatron-LM count from 1 in window-attn-skip-freq, from 0 in moe-layer-freq."""
    more = "--window-size 127,0 --window-attn-skip-freq 2 --num-experts 4 --moe-layer-freq 2 --moe-expert-capacity-factor 1.5"
    model = arguments(tmp_path, f"{GPT3_ARGUMENTS}\n{more}", {"vocabulary": 50257, "layers": 4})
    kinds = [model.layer_units[unit] for unit in model.unit_of_layer]
    assert [kind.window for kind in kinds] == [128, 0, 128, 0]
    assert [kind.moe for kind in kinds] == [True, False, True, False]
    assert model.experts
    assert (model.experts.topk, model.experts.ffn, model.experts.capacity_factor) == (2, 49152, 1.5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "--num-layer 3",
            "args.sh:6: --num-layer: unknown flag that may change the model (leave it out if it does not), nearest",
        ),
        ("--frobnicate", "args.sh:6: --frobnicate: unknown flag that may change the model (leave it out"),
        ("--hybrid-layer-pattern M*M", "args.sh:6: --hybrid-layer-pattern: found 3 layers, expected 96, as in --num-layers"),
        ("--num-layers 48", "args.sh:6: --num-layers: given with different values: '96', '48': keep the one that runs"),
        ("--ffn-hidden-size $FFN", "args.sh:6: --ffn-hidden-size: found '$FFN', which this file does not set to one value"),
        ("--ffn-hidden-size", "args.sh:6: --ffn-hidden-size: found '', expected one value"),
        ("--ffn-hidden-size 1 2", "args.sh:6: --ffn-hidden-size: found '1 2', expected one value"),
        ("--ffn-hidden-size many", "args.sh:6: --ffn-hidden-size: found 'many', expected a whole number"),
        (
            "--mtp-num-layers 99999999999",
            "args.sh:6: --mtp-num-layers: found '99999999999', expected a whole number up to 2147483647",
        ),
        ("--normalization batchnorm", "args.sh:6: --normalization: found 'batchnorm', nearest valid:"),
        ("--position-embedding-type relative", "args.sh:6: --position-embedding-type: found 'relative', valid:"),
        ("--num-experts 8 --moe-layer-freq [0]*3+[1]", "args.sh:6: --moe-layer-freq: found 4 layers, expected 96"),
        ("--num-experts 8 --moe-layer-freq range(3)", "args.sh:6: --moe-layer-freq: found "),
        ("--num-experts 8 --deepspeed", "args.sh:6: --num-experts: experts of DeepSpeed: not modelled"),
        ("--window-size left", "args.sh:6: --window-size: found 'left', expected LEFT,RIGHT"),
        ("--hidden-dropout much", "args.sh:6: --hidden-dropout: found 'much', expected a number"),
    ],
)
def test_arguments_that_may_cost_otherwise_are_refused(more: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((SpecError, FormatError)) as caught:
        arguments(tmp_path, f"{GPT3_ARGUMENTS}\n{more}", {"vocabulary": 50257})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_variables_of_a_script(tmp_path: Path) -> None:
    """Defaults and references are followed; a variable with a value per branch is not guessed."""
    script = """
SIZE=${SIZE:-4096} # a comment
export HIDDEN="$SIZE"
LAYERS=32
TOKENS=2048
MODEL_ARGS=(
    --num-layers ${LAYERS} --hidden-size $HIDDEN
    --num-attention-heads 32
    "--seq-length $TOKENS"
    "--max-position-embeddings ${TOKENS}"
    --vocab-size 1000 # --vocab-size 2000
)
python prepare.py --output-file here
"""
    model = arguments(tmp_path, script)
    assert (model.layers, model.hidden, model.sequence, model.vocabulary) == (32, 4096, 2048, 1000)
    branches = "if [ $1 = small ]; then\n  LAYERS=2\nelse\n  LAYERS=32\nfi\n" + script
    with pytest.raises(
        FormatError, match=r"args\.sh:12: --num-layers: found '\$\{LAYERS\}', which this file does not set to one"
    ):
        arguments(tmp_path, branches)
    assert arguments(tmp_path, branches, {"layers": 7}).layers == 7


def test_arguments_without_a_vocabulary_ask_for_it(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"args\.sh: vocabulary: missing; Megatron-LM takes it from the tokenizer"):
        arguments(tmp_path, GPT3_ARGUMENTS)
    with pytest.raises(SpecError, match=r"args\.sh: --num-attention-heads: missing"):
        arguments(tmp_path, "--num-layers 3 --hidden-size 64", {"vocabulary": 100})
    with pytest.raises(SpecError, match=r"notes\.txt: found no model"):
        arguments(tmp_path, "nothing here", name="notes.txt")
    with pytest.raises(SpecError, match=r"notes\.yaml: found a text, expected keys such as layers"):
        arguments(tmp_path, "nothing", name="notes.yaml")
