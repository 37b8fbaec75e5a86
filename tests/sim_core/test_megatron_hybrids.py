"""Megatron-LM's arguments of hybrids, linear attention and sparse attention: public launch scripts, ratios, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim_core import (
    REASONS,
    HardwareTable,
    Model,
    SimError,
    parameters,
    plans,
    read_model,
    read_stack,
    shape_of,
    simulate,
    workload_from_model,
)
from sim_core.models.reading import model_of_dump

NANO = """
torchrun pretrain_hybrid.py --hybrid-layer-pattern MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME \\
  --spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec \\
  --hidden-size 2688 --num-attention-heads 32 --group-query-attention --num-query-groups 2 --mamba-num-heads 64 \\
  --untie-embeddings-and-output-weights --position-embedding-type none --ffn-hidden-size 1856 --kv-channels 128 \\
  --squared-relu --disable-bias-linear --normalization RMSNorm --hidden-dropout 0 --attention-dropout 0 \\
  --num-experts 128 --moe-router-topk 6 --moe-ffn-hidden-size 1856 --moe-shared-expert-intermediate-size 3712 \\
  --padded-vocab-size 131072 --seq-length 8192 --max-position-embeddings 8192
"""
QWEN = """
--num-layers 48 --hidden-size 2048 --num-attention-heads 16 --group-query-attention --num-query-groups 2 --kv-channels 256
--seq-length 4096 --normalization RMSNorm --apply-layernorm-1p --swiglu --disable-bias-linear --qk-layernorm
--untie-embeddings-and-output-weights --position-embedding-type rope --rotary-percent 0.25 --attention-output-gate
--attention-dropout 0.0 --hidden-dropout 0.0 --experimental-attention-variant gated_delta_net --linear-attention-freq 4
--linear-conv-kernel-dim 4 --linear-key-head-dim 128 --linear-value-head-dim 128 --linear-num-key-heads 16
--linear-num-value-heads 32 --num-experts 512 --moe-ffn-hidden-size 512 --moe-shared-expert-intermediate-size 512
--moe-shared-expert-gate --moe-router-topk 10 --make-vocab-size-divisible-by 128 --padded-vocab-size 151936
"""
SIZES = """--hidden-size 1024 --num-attention-heads 8 --ffn-hidden-size 4096 --squared-relu --position-embedding-type none
--disable-bias-linear --normalization RMSNorm --padded-vocab-size 1024 --seq-length 1024 --hidden-dropout 0
--attention-dropout 0"""
FREE = ("name", "source", "vocabulary_multiple", "sequence", "batch_tokens")


def read(folder: Path, text: str) -> Model:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return read_model(str(folder / "run.sh"))


@pytest.mark.parametrize(("text", "preset"), [(NANO, "nemotron3-nano-30b-a3b"), (QWEN, "qwen3-next-80b-a3b")])
def test_public_scripts_say_the_same_as_the_presets(text: str, preset: str, tmp_path: Path) -> None:
    """Nemotron-3 Nano of Megatron-LM's examples, the gated delta net as Megatron-Bridge trains Qwen3-Next."""
    found, ours = read(tmp_path, text), read_model(preset)
    assert found.model_dump(exclude={*FREE}) == ours.model_dump(exclude={*FREE})
    assert parameters(found).total == parameters(ours).total


def test_the_older_flags_of_a_hybrid_mean_the_same(tmp_path: Path) -> None:
    older = NANO.replace("--hybrid-layer-pattern", "--is-hybrid-model --num-layers 52 --hybrid-override-pattern")
    older = older.replace("models.hybrid.hybrid_layer_specs hybrid", "models.mamba.mamba_layer_specs mamba")
    assert read(tmp_path, older).model_dump(exclude={*FREE}) == read(tmp_path, NANO).model_dump(exclude={*FREE})


def test_a_printed_run_says_the_same_as_its_flags(tmp_path: Path) -> None:
    """Megatron-LM prints every argument, those of linear attention and ratios of 0.0 also where there is none of it."""
    dump = {
        "num_layers": "4", "hidden_size": "1024", "num_attention_heads": "8", "ffn_hidden_size": "4096", "seq_length": "1024",
        "padded_vocab_size": "1024", "position_embedding_type": "none", "hybrid_attention_ratio": "0.0",
        "hybrid_mlp_ratio": "0.0", "is_hybrid_model": "False", "linear_num_value_heads": "32", "mamba_state_dim": "128",
        "experimental_attention_variant": "None", "linear_attention_freq": "None", "spec": "None", "squared_relu": "True",
    }  # fmt: skip
    dense = model_of_dump(dump, "run.log", {})
    assert dense.recurrent is None
    assert dense.pattern is None
    spec = "['megatron.core.models.mamba.mamba_layer_specs', 'mamba_stack_spec']"
    hybrid = dump | {"is_hybrid_model": "True", "hybrid_override_pattern": "M-*-", "spec": spec}
    found = model_of_dump(hybrid, "run.log", {})
    assert found.pattern == "M-*-"
    assert found.recurrent
    assert (found.recurrent.heads, found.recurrent.head_dim, found.recurrent.groups) == (32, 64, 8)  # 2 x hidden wide


@pytest.mark.parametrize(
    ("layers", "ratios", "pattern"),
    [
        (10, "--hybrid-attention-ratio 0.2", "MMM*MM*MMM"),  # as the documentation of Megatron-LM's allocation has it
        (8, "--hybrid-mlp-ratio 0.5", "M-M-M-M-"),
        (4, "", "MMMM"),
    ],
)
def test_shares_of_layers_are_spread_evenly(layers: int, ratios: str, pattern: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"--is-hybrid-model --num-layers {layers} {SIZES} {ratios}").pattern == pattern


def test_prediction_layers_and_stages_of_a_pattern(tmp_path: Path) -> None:
    found = read(tmp_path, f"--hybrid-layer-pattern 'M-M*|-M-M/*-/*-' {SIZES}")
    assert (found.layers, found.pattern, found.mtp_layers) == (8, "M-M*|-M-M", 2)
    assert found.cut == (4, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--hybrid-layer-pattern MM*-X", "--hybrid-layer-pattern: found 'X', a kind of layer that is not modelled, expected"),
        ("--num-layers 6 --hybrid-override-pattern MM*-", "--hybrid-override-pattern: found 4 layers, expected 6, as in"),
        ("--hybrid-layer-pattern M*-/MM", "--hybrid-layer-pattern: found 'MM' for multi-token prediction, expected *-"),
        ("--hybrid-layer-pattern MG*-", "--hybrid-layer-pattern: state-space and linear-attention layers in one"),
        ("--is-hybrid-model --num-layers 4 --hybrid-attention-ratio 1.5", "--hybrid-attention-ratio: found 1.5, expected"),
        ("--num-layers 4 --linear-attention-freq 4", "--linear-attention-freq: found without --experimental-attention-variant"),
        ("--num-layers 4 --experimental-attention-variant gdn", "variant: --linear-attention-freq: missing"),
        ("--num-layers 4 --experimental-attention-variant gdnn", "-variant: found 'gdnn', a kind that is not modelled"),
        (
            "--num-layers 4 --experimental-attention-variant gdn --linear-attention-freq [1]*3",
            "--linear-attention-freq: found 3 layers, expected 4",
        ),
        (
            "--num-layers 4 --multi-latent-attention --experimental-attention-variant dsa --dsa-indexer-topk 64",
            "--dsa-indexer-n-heads: missing",
        ),
        ("--num-layers 4 --dsa-indexer-topk-freq 2", "--dsa-indexer-topk-freq: keys that layers choose for each other"),
        ("--num-layers 4 --spec my.layers my_spec", "--spec: layers of another specification: not modelled"),
        ("--hybrid-layer-pattern M*-- --mamba-num-groups 3", "recurrent.groups: found 3, expected a divisor of heads 32"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line(flags: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SimError) as caught:
        read(tmp_path, f"{flags} {SIZES}")
    assert message in str(caught.value)
    assert "run.sh" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pattern_cut_into_stages_is_how_its_plans_are_divided(tmp_path: Path, h100: HardwareTable) -> None:
    """Where a plan has as many virtual stages as parts; else as it says."""
    model = read(tmp_path, f"--hybrid-layer-pattern 'M-|M*-|M-M' --mamba-num-groups 1 {SIZES}")
    work = workload_from_model(model, read_stack("megatron-core"), sequence_parallel=True)

    def layers(**plan: object) -> list[int]:
        chosen = plans(work, dp=1, micro_batch=1, ga=4, **plan)  # type: ignore[arg-type]
        return [count for stage in shape_of(work, h100, chosen).layers for count in stage]

    assert layers(pp=3) == [2, 3, 3]
    assert layers(pp=2) == [4, 4]
    assert layers(pp=3, layer_split="balanced") == [2, 3, 3]
    assert layers(pp=3, layer_split=[[4, 2, 2]]) == [4, 2, 2]


def test_heads_that_tp_or_cp_do_not_divide_have_a_reason(h100: HardwareTable) -> None:
    """Mamba: heads over tp x cp, groups over tp; delta nets: all heads over tp x cp (megatron/core/ssm)."""

    def reasons(model: str, **plan: object) -> list[str]:
        work = workload_from_model(read_model(model), read_stack("megatron-core"), sequence_parallel=True)
        chosen = plans(work, dp=1, micro_batch=1, **plan)  # type: ignore[arg-type]
        return [REASONS[code] for code in simulate(work, h100, chosen).reason]

    assert "heads_not_divisible_by_tp" in reasons("nemotron-h-8b", tp=[16])
    assert reasons("nemotron3-nano-30b-a3b", tp=[1], cp=[3])[0] != ""
    gated = reasons("qwen3-next-80b-a3b", tp=[2], cp=[2, 16], cp_comm_type=["p2p"])
    assert gated[1] == "heads_not_divisible_by_cp"
    assert gated[0] != "heads_not_divisible_by_cp"
    assert np.unique(gated).size == 2
