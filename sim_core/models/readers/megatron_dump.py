"""The arguments that Megatron-LM prints at the start of a run, as the flags that mean them."""

from sim_core.models.readers import megatron_arguments as of
from sim_core.models.readers.argument import OFF, Dump, flag_of
from sim_core.models.readers.megatron_flags import DEEPSPEED_EXPERTS, Flags, Given

NEGATED = {"add_bias_linear": of.NO_BIAS.flag, "add_position_embedding": of.NO_POSITION.flag}
"""Names in a dump whose flags mean the opposite."""
OF_MLA = (of.Q_RANK, of.KV_RANK, of.NOPE_DIM, of.ROPE_DIM, of.OLD_NOPE_DIM, of.OLD_ROPE_DIM, of.V_DIM)
"""Those that have a value also where multi-latent attention is off."""
CHANGING = (
    "decoder_num_layers", "heterogeneous_layers_config_path", "heterogeneous_layers_config_encoded_json",
    "mtp_use_repeated_layer", "qk_l2_norm",
)  # fmt: skip
"""Names of what is not modelled that are None or False unless a run asks for them."""


def flags_of_dump(values: Dump) -> Flags:
    """The flags of a model for `read_megatron`, from names and values as Megatron-LM prints them; those that say nothing about
    the model are left out."""
    told = [argument.name for argument in of.SAID if of.MLA.on(values) or argument not in OF_MLA]
    flags = {
        flag_of(name): [Given(() if value == "True" else (value,), 0)]
        for name in (*told, of.TOKENIZER.name, *CHANGING)
        if (value := values.get(name, "None")) not in OFF
    }
    for name, flag in NEGATED.items():
        if values.get(name) == "False":
            flags[flag] = [Given((), 0)]
    experts = of.EXPERTS.word(values)
    if experts.startswith("["):  # of Megatron-DeepSpeed: a list, [1] for none
        flags.pop(of.EXPERTS.flag, None)
        if experts != "[1]":
            flags[DEEPSPEED_EXPERTS] = [Given((), 0)]
    if of.WINDOW.flag in flags:
        flags[of.WINDOW.flag] = [Given((of.WINDOW.word(values).strip("()[] ").replace(" ", ""),), 0)]
    return flags
