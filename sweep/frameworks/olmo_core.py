"""Words of OLMo-core: names of its configuration, which its log prints, and ranks of its meshes."""

from sim_core.documents import Fields
from sweep.frameworks.megatron_sizes import GLOBAL_BATCH

NAME = "OLMo-core"
LACKS = ("overlap_tp", "overlap_ep", "dispatcher", "layer_split")
OF_MODEL = {"d_model": "hidden", "n_layers": "layers", "n_heads": "heads", "n_kv_heads": "kv_heads", "hidden_size": "ffn",
            "vocab_size": "vocabulary"}  # fmt: skip
PARTS: Fields = {"gated": True, "activation": "silu", "norm": "rmsnorm", "position": "rotary", "tied": False}
"""Of its models without OTHER_PARTS (nn/transformer/config.py: llama_like, olmo2_7B)."""
OTHER_PARTS = ("num_experts", "window_size", "tie_word_embeddings", "use_head_qk_norm")
QK_NORM, SEQUENCES = "qk_norm", ("sequence_length", "max_sequence_length")
"""Sequences: of the data, else of the training module."""
TOKENS = {"micro_batch": "rank_microbatch_size", "global_batch": GLOBAL_BATCH.name}
AXES, SHARD = ("tp", "pp", "cp", "ep"), "dp_shard"
NAMES = (*OF_MODEL, *OTHER_PARTS, QK_NORM, *SEQUENCES, *TOKENS.values(), *AXES, SHARD)
SHARED = {"FSDP": "parameters", "DDP": "none"}
