"""Megatron-LM's arguments of a model: each with its name, the number of the model that it is, and how a model is written in it.

As in core 0.20 (d98e8a64: training/arguments.py, core/transformer/transformer_config.py, core/models/hybrid).
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from sim_core.models.description import Experts, Model, Recurrent
from sim_core.models.readers.argument import OF_NUMBER, OF_SWITCH, Argument, Written, arguments_in, flags_of

NULL_TOKENIZER: Final = "NullTokenizer"
NULL_TOKENIZER_ADDS: Final = 1
"""Megatron's NullTokenizer adds a token for the end of a document."""
LINEAR_VARIANTS: Final = {"gated_delta": "gated_delta_net"}
HYBRID_STACK: Final = ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")


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
    runs: list[tuple[bool, int]] = []
    for here in inside:
        runs = [*runs[:-1], (here, runs[-1][1] + 1)] if runs and runs[-1][0] == here else [*runs, (here, 1)]
    return "(" + "+".join(f"[{int(here)}]*{count}" for here, count in runs) + ")"


def _number(name: str, field: str, write: Callable[[Model], int | None] | None = None) -> Argument[Described]:
    """An argument of one whole number."""
    return Argument(name, OF_NUMBER, field, write=None if write is None else lambda of: write(of.model))


def _switch(name: str, write: Callable[[Model], bool] | None = None) -> Argument[Described]:
    return Argument(name, OF_SWITCH, write=None if write is None else lambda of: write(of.model))


def _of_experts(name: str, field: str, write: Callable[[Experts], Written]) -> Argument[Described]:
    """An argument that only models with experts have."""
    kind = OF_NUMBER if field else OF_SWITCH
    return Argument(name, kind, field, write=lambda of: write(of.model.experts) if of.model.experts else None)


def _of_mixer(name: str, mamba: bool, write: Callable[[Recurrent], int]) -> Argument[Described]:
    """A size of recurrent layers: of state-space layers, or of linear attention."""

    def written(of: Described) -> int | None:
        mixer = of.model.recurrent
        there = mixer is not None and (mixer.kind == "mamba2" if mamba else mixer.kind in LINEAR_VARIANTS)
        return write(mixer) if mixer is not None and there else None

    return Argument(name, OF_NUMBER, write=written)


def _of_indexer(name: str, size: str) -> Argument[Described]:
    return Argument(
        name, OF_NUMBER, size, write=lambda of: getattr(of.model.indexer, size) if of.model.indexer and of.model.mla else None
    )


def _of_mla(name: str, size: str) -> Argument[Described]:
    return Argument(name, OF_NUMBER, size, write=lambda of: getattr(of.model.mla, size) if of.model.mla else None)


def _is_grouped(model: Model) -> bool:
    return model.mla is None and model.kv_heads != model.heads


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
    model = of.model
    if model.recurrent is None or model.recurrent.kind not in LINEAR_VARIANTS:
        return None
    attends = model.full_attention
    return pattern([layer not in attends for layer in range(model.layers)]) if isinstance(attends, tuple) else attends


def _variant(of: Described) -> str | None:
    model = of.model
    if model.recurrent is not None and model.recurrent.kind in LINEAR_VARIANTS:
        return None if model.pattern else LINEAR_VARIANTS[model.recurrent.kind]
    return "dsa" if model.indexer and model.mla else None


def _moe_layers(of: Described) -> str | None:
    model = of.model
    if model.experts is None or not model.experts.dense_layers:
        return None
    return pattern([model.layer_units[unit].moe for unit in model.unit_of_layer])


def _window(of: Described) -> str | None:
    window = of.model.window
    return f"{window.tokens - 1},0" if window and not window.chunked else None  # a token sees itself and so many before it


LAYERS = _number("num_layers", "layers", lambda model: None if model.pattern else model.layers)
HIDDEN = _number("hidden_size", "hidden", lambda model: model.hidden)
HEADS = _number("num_attention_heads", "heads", lambda model: model.heads)
FFN = _number("ffn_hidden_size", "ffn", lambda model: model.ffn or (model.experts.ffn if model.experts else 0))
SEQUENCE = Argument[Described]("seq_length", OF_NUMBER, "sequence", leaves_open=True, write=lambda of: of.sequence)
POSITIONS = Argument[Described]("max_position_embeddings", OF_NUMBER, write=lambda of: of.model.positions or of.sequence)
NORM = Argument[Described]("normalization", write=lambda of: "RMSNorm" if of.model.norm == "rmsnorm" else "LayerNorm")
HIDDEN_DROPOUT = Argument[Described]("hidden_dropout", write=lambda of: f"{of.model.hidden_dropout:g}")
ATTENTION_DROPOUT = Argument[Described]("attention_dropout", write=lambda of: f"{of.model.attention_dropout:g}")
TOKENIZER = Argument[Described]("tokenizer_type", write=lambda of: NULL_TOKENIZER)
VOCABULARY = _number("vocab_size", "", lambda model: model.vocabulary - NULL_TOKENIZER_ADDS)
VOCABULARY_MULTIPLE = _number("make_vocab_size_divisible_by", "vocabulary_multiple", lambda model: model.vocabulary_multiple)
POSITION = Argument[Described](
    "position_embedding_type",
    write=lambda of: {"rotary": "rope", "learned": "learned_absolute"}.get(of.model.position, "none"),
)
SWIGLU = _switch("swiglu", lambda model: model.gated and model.activation == "silu")
GEGLU = _switch("geglu")
QUICK_GEGLU = _switch("quick_geglu", lambda model: model.gated and model.activation == "gelu")
SQUARED_RELU = _switch("squared_relu", lambda model: not model.gated and model.activation == "squared_relu")
NO_BIAS = _switch("disable_bias_linear", lambda model: not (model.qkv_bias and model.projection_bias and model.mlp_bias))
QKV_BIAS = _switch("add_qkv_bias", lambda model: model.qkv_bias and not model.projection_bias)
QK_NORM = _switch("qk_layernorm", lambda model: model.qk_norm)
UNTIED = _switch("untie_embeddings_and_output_weights", lambda model: not model.tied)
SOFTMAX = Argument[Described]("softmax_type", write=lambda of: "learnable" if of.model.attention_sinks else None)

MLA = _switch("multi_latent_attention", lambda model: model.mla is not None)
Q_RANK, KV_RANK = _of_mla("q_lora_rank", "q_rank"), _of_mla("kv_lora_rank", "kv_rank")
NOPE_DIM, ROPE_DIM = _of_mla("qk_head_dim", "nope_head_dim"), _of_mla("qk_pos_emb_head_dim", "rope_head_dim")
V_DIM = _of_mla("v_head_dim", "v_head_dim")
OLD_NOPE_DIM, OLD_ROPE_DIM = _number("qk_nope_head_dim", ""), _number("qk_rope_head_dim", "")
HEAD_DIM = _number("kv_channels", "head_dim", lambda model: None if model.mla else model.head_dim)
GROUPED = _switch("group_query_attention", _is_grouped)
KV_HEADS = _number("num_query_groups", "kv_heads", lambda model: model.kv_heads if _is_grouped(model) else None)
WINDOW = Argument[Described]("window_size", write=_window)
WINDOW_SKIP = Argument[Described]("window_attn_skip_freq", write=_skipped)

MTP = _number("mtp_num_layers", "mtp_layers", lambda model: None if model.pattern else model.mtp_layers or None)
EXPERTS = _of_experts("num_experts", "experts", lambda experts: experts.count)
TOPK = _of_experts("moe_router_topk", "topk", lambda experts: experts.topk)
EXPERT_FFN = _of_experts("moe_ffn_hidden_size", "ffn", lambda experts: experts.ffn)
GROUPED_GEMM = _of_experts("moe_grouped_gemm", "", lambda experts: True)
GROUPS = _of_experts("moe_router_num_groups", "groups", lambda experts: experts.groups if experts.groups > 1 else None)
TOPK_GROUPS = _of_experts(
    "moe_router_group_topk", "topk_groups", lambda experts: experts.topk_groups if experts.groups > 1 else None
)
SHARED_FFN = _of_experts("moe_shared_expert_intermediate_size", "shared_ffn", lambda experts: experts.shared_ffn or None)
SHARED_GATE = _of_experts("moe_shared_expert_gate", "", lambda experts: experts.shared_gate)
LATENT = _of_experts("moe_latent_size", "latent", lambda experts: experts.latent or None)
MOE_LAYERS = Argument[Described]("moe_layer_freq", write=_moe_layers)
CAPACITY = _of_experts(
    "moe_expert_capacity_factor", "", lambda e: None if e.capacity_factor is None else f"{e.capacity_factor:g}"
)
PAD_TO_CAPACITY = _of_experts("moe_pad_expert_input_to_capacity", "", lambda experts: bool(experts.pad_to_capacity))

OUTPUT_GATE = _switch("attention_output_gate", lambda model: model.output_gate)
PATTERN = Argument[Described]("hybrid_layer_pattern", write=_cut)
OLD_PATTERN = Argument[Described]("hybrid_override_pattern")
MTP_PATTERN = Argument[Described]("mtp_hybrid_override_pattern")
ATTENTION_SHARE = Argument[Described]("hybrid_attention_ratio")
MLP_SHARE = Argument[Described]("hybrid_mlp_ratio")
IS_HYBRID = _switch("is_hybrid_model")
SPEC = Argument[Described]("spec", write=lambda of: HYBRID_STACK if of.model.pattern else None)
VARIANT = Argument[Described]("experimental_attention_variant", write=_variant)
INDEXER_TOPK = _of_indexer("dsa_indexer_topk", "topk")
INDEXER_HEADS, INDEXER_HEAD_DIM = _of_indexer("dsa_indexer_n_heads", "heads"), _of_indexer("dsa_indexer_head_dim", "head_dim")
MAMBA_HEADS = _of_mixer("mamba_num_heads", True, lambda mixer: mixer.heads)
MAMBA_HEAD_DIM = _of_mixer("mamba_head_dim", True, lambda mixer: mixer.head_dim)
MAMBA_STATE = _of_mixer("mamba_state_dim", True, lambda mixer: mixer.state)
MAMBA_GROUPS = _of_mixer("mamba_num_groups", True, lambda mixer: mixer.groups)
LINEAR_HEADS = _of_mixer("linear_num_value_heads", False, lambda mixer: mixer.heads)
LINEAR_HEAD_DIM = _of_mixer("linear_value_head_dim", False, lambda mixer: mixer.head_dim)
LINEAR_GROUPS = _of_mixer("linear_num_key_heads", False, lambda mixer: mixer.groups)
LINEAR_STATE = _of_mixer("linear_key_head_dim", False, lambda mixer: mixer.state)
LINEAR_CONV = _of_mixer("linear_conv_kernel_dim", False, lambda mixer: mixer.conv)
LINEAR_FREQUENCY = Argument[Described]("linear_attention_freq", write=_attending)

ROTARY, NO_POSITION = _switch("use_rotary_position_embeddings"), _switch("no_position_embedding")
EMBEDDING_NORM = _switch("embed_layernorm")
PADDED_VOCABULARY, PAD_VOCABULARY = _number("padded_vocab_size", ""), _number("pad_vocab_size_to", "")
VOCABULARY_FILE = Argument[Described]("vocab_file")
DEEPSPEED_KV_HEADS = _number("num_key_value_heads", "")
EXTRA_VOCABULARY, TRAIN_CAPACITY = _number("extra_vocab_size", ""), _number("moe_train_capacity_factor", "")

NUMBERS: Final = (LAYERS, HIDDEN, HEADS, FFN, HEAD_DIM, SEQUENCE, VOCABULARY_MULTIPLE, MTP)
"""One whole number each, which is a number of the model."""
ALL: Final[tuple[Argument[Described], ...]] = arguments_in(globals(), Argument)
SAID: Final = tuple(argument for argument in ALL if argument not in (TOKENIZER, GROUPED_GEMM))
"""All that say something of the model."""
