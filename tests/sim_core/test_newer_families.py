"""`config.json` of newer families, with the keys of their configuration classes: the same parameters as the presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sim_core.models.reading import read_model
from sim_core.models.weights import parameters


def sizes(layers: int, hidden: int, heads: int, kv: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    """The usual names."""
    usual = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv}
    return usual | {"vocab_size": vocabulary} | more


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
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_the_parameters_of_the_preset(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    model, preset = read_model(str(tmp_path / "config.json")), read_model(name)
    assert parameters(model).total == parameters(preset).total
    assert [unit[1:] for unit in model.layer_units] == [unit[1:] for unit in preset.layer_units]


def test_what_is_not_counted_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["gemma3-27b"]), encoding="utf-8")
    assert read_model(str(tmp_path / "config.json")).source.endswith("text_config; not counted: vision_config")
