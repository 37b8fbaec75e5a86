"""Megatron-LM's arguments of a model: each with its name, the number of the model that it is, and how a model is written in it.

As in core 0.20 (d98e8a64: training/arguments.py, core/transformer/transformer_config.py, core/models/hybrid).
"""

from collections.abc import Callable, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

from sim_core.models.description import Model
from sim_core.models.readers.argument import OF_NUMBER, OF_SWITCH, Argument, Written, arguments_in, flags_of

NULL_TOKENIZER = "NullTokenizer"
NULL_TOKENIZER_ADDS = 1
"""Megatron's NullTokenizer adds a token for the end of a document."""
LINEAR_VARIANTS = {"gated_delta": "gated_delta_net"}
HYBRID_STACK = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


class Described(NamedTuple):
    """A model as flags say it. `stages`: layers of each virtual stage, which cut the pattern of a hybrid."""

    model: Model
    sequence: int
    stages: Sequence[int]


def model_flags(model: Model, sequence: int, stages: Sequence[int] = ()) -> dict[str, tuple[str, ...]]:
    """The flags that describe a model, with their values; `stages`: layers of each virtual stage, which cut a pattern."""
    return flags_of(ALL, Described(model, sequence, stages or (model.layers,)))


def pattern(inside: Sequence[bool]) -> str:
    """One number per layer, as Megatron-LM's flags of layers take it: ([0]*3+[1]*58)."""
    return "(" + "+".join(f"[{int(here)}]*{len([*run])}" for here, run in groupby(inside)) + ")"


Said = Argument[Described]
Write = Callable[[Model], Any]


def _at(path: str, when: Write) -> Callable[[Described], Any]:
    """What a model has under a dotted name, where it has that section and `when` holds; 0 is as good as none."""
    section, _, name = path.rpartition(".")

    def written(of: Described) -> Any:
        inside = getattr(of.model, section) if section else of.model
        return getattr(inside, name) or None if inside is not None and when(of.model) else None

    return written


def _number(name: str, path: str = "", when: Write = lambda model: True) -> Said:
    """An argument of one whole number, which is that of a model under a dotted name."""
    return Said(name, OF_NUMBER, path.rpartition(".")[2], write=_at(path, when) if path else None)


def _switch(name: str, when: Write | None = None) -> Said:
    """A switch that is on where this holds for a model."""
    return Said(name, OF_SWITCH, write=None if when is None else lambda of: bool(when(of.model)))


def _is_grouped(model: Model) -> bool:
    return model.mla is None and model.kv_heads != model.heads


def _is_mamba(model: Model) -> bool:
    return model.recurrent is not None and model.recurrent.kind == "mamba2"


def _is_linear(model: Model) -> bool:
    return model.recurrent is not None and model.recurrent.kind in LINEAR_VARIANTS


def _is_whole(model: Model) -> bool:
    """Layers are attention and MLP, not the letters of a pattern."""
    return not model.pattern


def _is_in_groups(model: Model) -> bool:
    return model.experts is not None and model.experts.groups > 1


def _has_latents(model: Model) -> bool:
    return model.mla is not None


def _skipped(of: Described) -> str | None:
    """Which layers see the whole sequence: N where it is each N-th, else a list."""
    inside = [of.model.layer_units[unit].window > 0 for unit in of.model.unit_of_layer]
    if of.model.window is None or of.model.window.chunked or all(inside):
        return None
    every = (n for n in range(2, len(inside) + 1) if inside == [(layer + 1) % n != 0 for layer in range(len(inside))])
    return str(next(every, "")) or pattern(inside)


def _cut(of: Described) -> str | None:
    """The pattern of a hybrid, cut into stages, and those of its layers of multi-token prediction."""
    model = of.model
    if not model.pattern:
        return None
    letters = iter(model.pattern.replace("|", ""))
    cut = "|".join("".join(islice(letters, count)) for count in of.stages)
    return cut + f"/*{'E' if model.experts else '-'}" * model.mtp_layers


def _attending(of: Described) -> Written:
    """Which layers attend where the others are linear."""
    attends = of.model.full_attention if _is_linear(of.model) else None
    return pattern([layer not in attends for layer in range(of.model.layers)]) if isinstance(attends, tuple) else attends


def _variant(of: Described) -> str | None:
    model = of.model
    if model.recurrent is not None and _is_linear(model):
        return None if model.pattern else LINEAR_VARIANTS[model.recurrent.kind]
    return "dsa" if model.indexer and model.mla else None


def _moe_layers(of: Described) -> str | None:
    model = of.model
    there = model.experts is not None and model.experts.dense_layers
    return pattern([model.layer_units[unit].moe for unit in model.unit_of_layer]) if there else None


def _window(of: Described) -> str | None:
    window = of.model.window
    return f"{window.tokens - 1},0" if window and not window.chunked else None  # a token sees itself and so many before it


def _capacity(of: Described) -> str | None:
    experts = of.model.experts
    return None if experts is None or experts.capacity_factor is None else f"{experts.capacity_factor:g}"


LAYERS, HIDDEN, HEADS = (
    _number("num_layers", "layers", _is_whole), _number("hidden_size", "hidden"), _number("num_attention_heads", "heads")
)  # fmt: skip
FFN = Said(
    "ffn_hidden_size", OF_NUMBER, "ffn", write=lambda of: of.model.ffn or (of.model.experts.ffn if of.model.experts else 0)
)  # fmt: skip
SEQUENCE = Said("seq_length", OF_NUMBER, "sequence", leaves_open=True, write=lambda of: of.sequence)
POSITIONS = Said("max_position_embeddings", OF_NUMBER, write=lambda of: of.model.positions or of.sequence)
NORM = Said("normalization", write=lambda of: "RMSNorm" if of.model.norm == "rmsnorm" else "LayerNorm")
HIDDEN_DROPOUT = Said("hidden_dropout", write=lambda of: f"{of.model.hidden_dropout:g}")
ATTENTION_DROPOUT = Said("attention_dropout", write=lambda of: f"{of.model.attention_dropout:g}")
TOKENIZER = Said("tokenizer_type", write=lambda of: NULL_TOKENIZER)
VOCABULARY = Said("vocab_size", OF_NUMBER, write=lambda of: of.model.vocabulary - NULL_TOKENIZER_ADDS)
VOCABULARY_MULTIPLE = _number("make_vocab_size_divisible_by", "vocabulary_multiple")
POSITION = Said(
    "position_embedding_type",
    write=lambda of: {"rotary": "rope", "learned": "learned_absolute"}.get(of.model.position, "none"),
)  # fmt: skip
SWIGLU = _switch("swiglu", lambda model: model.gated and model.activation == "silu")
GEGLU = _switch("geglu")
QUICK_GEGLU = _switch("quick_geglu", lambda model: model.gated and model.activation == "gelu")
SQUARED_RELU = _switch("squared_relu", lambda model: not model.gated and model.activation == "squared_relu")
NO_BIAS = _switch("disable_bias_linear", lambda model: not (model.qkv_bias and model.projection_bias and model.mlp_bias))
QKV_BIAS = _switch("add_qkv_bias", lambda model: model.qkv_bias and not model.projection_bias)
QK_NORM = _switch("qk_layernorm", lambda model: model.qk_norm)
UNTIED = _switch("untie_embeddings_and_output_weights", lambda model: not model.tied)
SOFTMAX = Said("softmax_type", write=lambda of: "learnable" if of.model.attention_sinks else None)

MLA = _switch("multi_latent_attention", _has_latents)
Q_RANK, KV_RANK = _number("q_lora_rank", "mla.q_rank"), _number("kv_lora_rank", "mla.kv_rank")
NOPE_DIM, ROPE_DIM = _number("qk_head_dim", "mla.nope_head_dim"), _number("qk_pos_emb_head_dim", "mla.rope_head_dim")
V_DIM = _number("v_head_dim", "mla.v_head_dim")
OLD_NOPE_DIM, OLD_ROPE_DIM = _number("qk_nope_head_dim"), _number("qk_rope_head_dim")
HEAD_DIM = _number("kv_channels", "head_dim", lambda model: model.mla is None)
GROUPED = _switch("group_query_attention", _is_grouped)
KV_HEADS = _number("num_query_groups", "kv_heads", _is_grouped)
WINDOW = Said("window_size", write=_window)
WINDOW_SKIP = Said("window_attn_skip_freq", write=_skipped)

MTP = _number("mtp_num_layers", "mtp_layers", _is_whole)
EXPERTS = Said("num_experts", OF_NUMBER, "experts", write=lambda of: of.model.experts.count if of.model.experts else None)
TOPK, EXPERT_FFN = _number("moe_router_topk", "experts.topk"), _number("moe_ffn_hidden_size", "experts.ffn")
GROUPED_GEMM = _switch("moe_grouped_gemm", lambda model: model.experts is not None)
GROUPS = _number("moe_router_num_groups", "experts.groups", _is_in_groups)
TOPK_GROUPS = _number("moe_router_group_topk", "experts.topk_groups", _is_in_groups)
SHARED_FFN = _number("moe_shared_expert_intermediate_size", "experts.shared_ffn")
SHARED_GATE = _switch("moe_shared_expert_gate", lambda model: model.experts and model.experts.shared_gate)
LATENT = _number("moe_latent_size", "experts.latent")
MOE_LAYERS = Said("moe_layer_freq", write=_moe_layers)
CAPACITY = Said("moe_expert_capacity_factor", write=_capacity)
PAD_TO_CAPACITY = _switch(
    "moe_pad_expert_input_to_capacity", lambda model: model.experts and model.experts.pad_to_capacity
)  # fmt: skip

OUTPUT_GATE = _switch("attention_output_gate", lambda model: model.output_gate)
PATTERN = Said("hybrid_layer_pattern", write=_cut)
OLD_PATTERN = Said("hybrid_override_pattern")
MTP_PATTERN = Said("mtp_hybrid_override_pattern")
ATTENTION_SHARE, MLP_SHARE = Said("hybrid_attention_ratio"), Said("hybrid_mlp_ratio")
IS_HYBRID = _switch("is_hybrid_model")
SPEC = Said("spec", write=lambda of: HYBRID_STACK if of.model.pattern else None)
VARIANT = Said("experimental_attention_variant", write=_variant)
INDEXER_TOPK = _number("dsa_indexer_topk", "indexer.topk", _has_latents)
INDEXER_HEADS = _number("dsa_indexer_n_heads", "indexer.heads", _has_latents)
INDEXER_HEAD_DIM = _number("dsa_indexer_head_dim", "indexer.head_dim", _has_latents)
MAMBA_HEADS = _number("mamba_num_heads", "recurrent.heads", _is_mamba)
MAMBA_HEAD_DIM = _number("mamba_head_dim", "recurrent.head_dim", _is_mamba)
MAMBA_STATE = _number("mamba_state_dim", "recurrent.state", _is_mamba)
MAMBA_GROUPS = _number("mamba_num_groups", "recurrent.groups", _is_mamba)
LINEAR_HEADS = _number("linear_num_value_heads", "recurrent.heads", _is_linear)
LINEAR_HEAD_DIM = _number("linear_value_head_dim", "recurrent.head_dim", _is_linear)
LINEAR_GROUPS = _number("linear_num_key_heads", "recurrent.groups", _is_linear)
LINEAR_STATE = _number("linear_key_head_dim", "recurrent.state", _is_linear)
LINEAR_CONV = _number("linear_conv_kernel_dim", "recurrent.conv", _is_linear)
LINEAR_FREQUENCY = Said("linear_attention_freq", write=_attending)

ROTARY, NO_POSITION = _switch("use_rotary_position_embeddings"), _switch("no_position_embedding")
EMBEDDING_NORM = _switch("embed_layernorm")
PADDED_VOCABULARY, PAD_VOCABULARY = _number("padded_vocab_size"), _number("pad_vocab_size_to")
VOCABULARY_FILE = Said("vocab_file")
DEEPSPEED_KV_HEADS = _number("num_key_value_heads")
EXTRA_VOCABULARY, TRAIN_CAPACITY = _number("extra_vocab_size"), _number("moe_train_capacity_factor")

NUMBERS = (LAYERS, HIDDEN, HEADS, FFN, HEAD_DIM, SEQUENCE, VOCABULARY_MULTIPLE, MTP)
"""One whole number each, which is a number of the model."""
ALL: tuple[Said, ...] = arguments_in(globals(), Argument)
SAID = tuple(argument for argument in ALL if argument not in (TOKENIZER, GROUPED_GEMM))
"""All that say something of the model."""
