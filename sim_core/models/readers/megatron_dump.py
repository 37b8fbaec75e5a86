"""The arguments that Megatron-LM prints at the start of a run, as the flags that mean them."""

from collections.abc import Mapping
from typing import Final

from sim_core.models.readers.megatron import NUMBERS, OTHERS
from sim_core.models.readers.megatron_flags import Flags, Given

NEGATED: Final = {"add_bias_linear": "--disable-bias-linear", "add_position_embedding": "--no-position-embedding"}
"""Names in a dump whose flags mean the opposite."""
OF_MLA: Final = frozenset(
    {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}
)
"""Names that have a value also where multi-latent attention is off."""
CHANGING: Final = (
    "decoder_num_layers", "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json",
    "mtp_use_repeated_layer", "qk_l2_norm",
)  # fmt: skip
"""Names of what is not modelled that are None or False unless a run asks for them."""
OFF: Final = ("None", "False", "")


def flags_of_dump(values: Mapping[str, str]) -> Flags:
    """The flags of a model for `read_megatron`, from names and values as Megatron-LM prints them; those that say nothing about
    the model are left out."""
    flags: Flags = {}
    mla = values.get("multi_latent_attention") == "True"
    for flag in (*NUMBERS, *OTHERS, "--tokenizer-type", *(f"--{name.replace('_', '-')}" for name in CHANGING)):
        name = flag[2:].replace("-", "_")
        value = values.get(name, "None")
        if value not in OFF and (mla or name not in OF_MLA):
            flags[flag] = [Given(() if value == "True" else (value,), 0)]
    for name, flag in NEGATED.items():
        if values.get(name) == "False":
            flags[flag] = [Given((), 0)]
    if values.get("num_experts", "").startswith("["):  # of Megatron-DeepSpeed: a list, [1] for none
        flags.pop("--num-experts", None)
        if values["num_experts"] != "[1]":
            flags["--mlp-type"] = [Given((), 0)]  # experts of DeepSpeed
    if "--window-size" in flags:
        flags["--window-size"] = [Given((values["window_size"].strip("()[] ").replace(" ", ""),), 0)]
    return flags
