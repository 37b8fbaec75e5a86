"""`config.json` of newer families, with the keys of their configuration classes: the same parameters as the presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim_core.errors import SpecError
from sim_core.models.reading import read_model
from sim_core.models.weights import parameters


def sizes(layers: int, hidden: int, heads: int, kv: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    """The usual names."""
    usual = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv}
    return usual | {"vocab_size": vocabulary} | more


def v4(layers: int, hidden: int, heads: int, ratios: list[int], **more: Any) -> dict[str, Any]:
    """Of DeepSeek-V4, with the numbers that both sizes share."""
    shared: dict[str, Any] = {"head_dim": 512, "qk_rope_head_dim": 64, "o_lora_rank": 1024, "sliding_window": 128, "hc_mult": 4}
    shared |= {"index_n_heads": 64, "index_head_dim": 128, "n_shared_experts": 1, "num_experts_per_tok": 6}
    shared |= {"num_hash_layers": 3, "hc_sinkhorn_iters": 20, "num_nextn_predict_layers": 1, "swiglu_limit": 10.0}
    config = sizes(layers, hidden, heads, 1, 129280, model_type="deepseek_v4", hidden_act="silu", compress_ratios=ratios)
    return config | shared | more


def named(pattern: str) -> list[str]:
    """The layers of a pattern by the names of transformers 5."""
    return [{"M": "linear_attention", "*": "full_attention", "E": "moe"}[letter] for letter in pattern]


CONFIGS: dict[str, dict[str, Any]] = {
    "phi-4": sizes(40, 5120, 40, 10, 100352, model_type="phi3", intermediate_size=17920),
    "olmo2-7b": sizes(32, 4096, 32, 32, 100352, model_type="olmo2", intermediate_size=11008),
    "smollm3-3b": sizes(36, 2048, 16, 4, 128256, model_type="smollm3", intermediate_size=11008, no_rope_layer_interval=4),
    "gemma3-27b": {
        "model_type": "gemma3",
        "vision_config": {"hidden_size": 1152},
        "text_config": sizes(
            62, 5376, 32, 16, 262208, model_type="gemma3_text", intermediate_size=21504, head_dim=128, sliding_window=1024
        ),
    },
    "llama4-maverick": sizes(
        48, 5120, 40, 8, 202048, model_type="llama4_text", intermediate_size=8192, intermediate_size_mlp=16384, head_dim=128,
        num_local_experts=128, num_experts_per_tok=1, interleave_moe_layer_step=2, attention_chunk_size=8192,
    ),
    "minimax-m2": sizes(
        62, 3072, 48, 8, 200064, model_type="minimax_m2", intermediate_size=1536, head_dim=128, num_local_experts=256,
        num_experts_per_tok=8, use_qk_norm=True,
    ),
    "nemotron3-nano-30b-a3b": sizes(
        52, 2688, 32, 2, 131072, model_type="nemotron_h", head_dim=128, mlp_hidden_act="relu2", mamba_num_heads=64,
        mamba_head_dim=64, ssm_state_size=128, n_groups=8, n_routed_experts=128, num_experts_per_tok=6,
        moe_intermediate_size=1856, moe_shared_expert_intermediate_size=3712,
        hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    ),
    "qwen3-next-80b-a3b": sizes(
        48, 2048, 16, 2, 151936, model_type="qwen3_next", head_dim=256, full_attention_interval=4, num_experts=512,
        num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512, linear_num_value_heads=32,
        linear_value_head_dim=128, linear_key_head_dim=128, linear_num_key_heads=16, linear_conv_kernel_dim=4,
    ),
    "kimi-linear-48b-a3b": sizes(
        27, 2304, 32, 32, 163840, model_type="kimi_linear", intermediate_size=9216, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128, num_experts=256, num_experts_per_token=8, moe_intermediate_size=1024,
        num_shared_experts=1, first_k_dense_replace=1,
        linear_attn_config={
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
        },
    ),
    "deepseek-v3.2": sizes(
        61, 7168, 128, 128, 129280, model_type="deepseek_v32", intermediate_size=18432, moe_intermediate_size=2048,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=256,
        n_shared_experts=1, num_experts_per_tok=8, n_group=8, topk_group=4, num_nextn_predict_layers=1, index_n_heads=64,
        index_head_dim=128, index_topk=2048, first_k_dense_replace=3, hidden_act="silu", layer_types=["indexed_attention"] * 61,
        mlp_layer_types=["dense"] * 3 + ["sparse"] * 58,
    ),
    "deepseek-v4-flash": v4(43, 4096, 64, [0, 0, *[4, 128] * 20, 4, 0], q_lora_rank=1024, o_groups=8, index_topk=512,
                            n_routed_experts=256, moe_intermediate_size=2048),
    "deepseek-v4-pro": v4(61, 7168, 128, [128, 128, *[4, 128] * 29, 4, 0], q_lora_rank=1536, o_groups=16, index_topk=1024,
                          n_routed_experts=384, moe_intermediate_size=3072),
    "gemma3-12b": {"model_type": "gemma3", "text_config": sizes(
        48, 3840, 16, 8, 262208, model_type="gemma3_text", intermediate_size=15360, head_dim=256, sliding_window=1024,
        layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 8,
    )},
    "olmo2-32b": sizes(64, 5120, 40, 8, 100352, model_type="olmo2", intermediate_size=27648),
    "llama4-scout": sizes(
        48, 5120, 40, 8, 202048, model_type="llama4_text", intermediate_size=8192, intermediate_size_mlp=16384, head_dim=128,
        num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=8192,
    ),
    "nemotron-h-8b": sizes(
        52, 4096, 32, 8, 131072, model_type="nemotron_h", head_dim=128, mlp_hidden_act="relu2", mamba_num_heads=128,
        mamba_head_dim=64, ssm_state_size=128, n_groups=8, intermediate_size=21504,
        hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    ),
    "nemotron3-super-120b-a12b": {
        key: value for key, value in sizes(
            0, 4096, 32, 2, 131072, model_type="nemotron_h", head_dim=128, mlp_hidden_act="relu2", mamba_num_heads=128,
            mamba_head_dim=64, ssm_state_size=128, n_groups=8, n_routed_experts=512, num_experts_per_tok=22,
            moe_intermediate_size=2688, moe_shared_expert_intermediate_size=5376, moe_latent_size=1024,
            num_nextn_predict_layers=2, layers_block_type=named(str(read_model("nemotron3-super-120b-a12b").pattern)),
        ).items() if key != "num_hidden_layers"
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_the_parameters_of_the_preset(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    model, preset = read_model(str(tmp_path / "config.json")), read_model(name)
    assert parameters(model).total == parameters(preset).total
    assert [unit[1:] for unit in model.layer_units] == [unit[1:] for unit in preset.layer_units]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("deepseek-v4-flash", {"compress_ratios": None}, "compress_ratios: missing; they decide what each layer costs"),
        ("deepseek-v4-flash", {"compress_ratios": [0, 4]}, "compressed.ratios: found 2 layers, expected 43"),
        ("deepseek-v4-flash", {"engram_layers": [3]}, "engram_layers: unknown field that may change the cost"),
        ("deepseek-v4-flash", {"num_key_value_heads": 8}, "num_key_value_heads: found '8', which is not modelled; expected 1"),
        ("deepseek-v3.2", {"indexer_types": ["full", "shared"]}, "indexer_types: found 'shared'"),
        ("deepseek-v3.2", {"mlp_layer_types": ["dense"]}, "mlp_layer_types: found 1 layers, expected 61"),
        ("nemotron3-super-120b-a12b", {"layers_block_type": ["rwkv"]}, "layers_block_type: found 'rwkv'"),
    ],
)
def test_what_decides_the_cost_is_not_guessed(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    fields = CONFIGS[name] | changes
    (tmp_path / "config.json").write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
    with pytest.raises(SpecError) as error:
        read_model(str(tmp_path / "config.json"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gemma3-27b"]), encoding="utf-8")
    assert read_model(str(tmp_path / "config.json")).source.endswith("text_config; not counted: vision_config")
