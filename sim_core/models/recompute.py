"""Recompute by module: which operators of a layer run again in the backward, and their FLOPs."""

import numpy as np

from sim_core.arrays import Floats
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.description import ATTENTION, COMPRESSED, LAYER, NONE, Model, Unit
from sim_core.models.rows import Operators
from sim_core.models.weights import core_flops, weights_of
from sim_core.terms import FORWARD

_SHARED = ("shared_fc1", "shared_activation", "shared_fc2")
_ROUTED = ("router", "routing", "permute", "experts_fc1", "experts_activation", "experts_fc2", "unpermute", "shared_add")
_OPERATORS = {
    "core_attn": ("attention", "attention_sums"),
    "layernorm": ("attention_norm", "mlp_norm"),
    "mla_up_proj": ("q_up", "q", "kv_up", "qk_norm", "rotary"),
    "moe_act": ("experts_activation",),
    "mlp": ("fc1", "activation", "fc2"),
    "moe": _ROUTED + _SHARED,
    "shared_experts": _SHARED,
    "mhc": ("attention_streams", "mlp_streams"),
    "mlp_act": ("activation",),
}
RECOMPUTE_MODULES = tuple(_OPERATORS)
"""Modules of a layer by Megatron-LM's names (core 0.20, transformer_config.py), and the activation of a dense MLP (`mlp_act`,
kwai/Megatron-Kwai). Bit k of a mask is the k-th. `moe` holds `moe_act` and `shared_experts`, `mlp` holds `mlp_act`."""
CORE_ATTN, LAYERNORM, MLA_UP_PROJ, MOE_ACT, MLP, MOE, SHARED_EXPERTS, MHC, MLP_ACT = (
    1 << k for k in range(len(RECOMPUTE_MODULES))
)
OFFLOAD_MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
"""Modules whose input goes to the host, by Megatron-LM's names (core 0.19, --offload-modules)."""
OFFLOAD_CORE, OFFLOAD_PROJECTION, OFFLOAD_EXPERTS = 1 << 2, 1 << 3, 3 << 5
ALL = -1
"""In place of a mask: the whole layer."""


def modules_mask(label: str) -> int:
    """The mask of `layernorm+moe_act`. Raises SpecError."""
    mask = mask_of(label, RECOMPUTE_MODULES, "checkpointing")
    mask &= ~(MOE_ACT | SHARED_EXPERTS) if mask & MOE else mask
    return mask & ~MLP_ACT if mask & MLP else mask


def mask_of(label: str, modules: tuple[str, ...], of: str) -> int:
    """A bit for each of `modules` that `label` names, joined by +. Raises SpecError, which begins with `of`."""
    mask = 0
    for name in label.split("+"):
        if name not in modules:
            raise SpecError(f"{of}: found {shown(name)} in {shown(label)}, {nearest(name, modules)}")
        bit = 1 << modules.index(name)
        if mask & bit:
            raise SpecError(f"{of}: found {shown(name)} twice in {shown(label)}, expected each module once")
        mask |= bit
    return mask


def operators_of(mask: int) -> frozenset[str]:
    """Names of the operators that run again; messages of these operators do, too."""
    return frozenset(name for k, module in enumerate(RECOMPUTE_MODULES) if mask >> k & 1 for name in _OPERATORS[module])


def norms_apart(model: Model, unit: Unit, fused: bool) -> tuple[bool, bool]:
    """Whether the norm before the attention of a layer, and that before its MLP, are kernels of their own.

    `fused`: Transformer Engine makes a norm part of the linear layer that reads it. With latents two layers read one, before
    experts the router and the dispatch (Megatron-LM, core/models/gpt/gpt_layer_specs.py: input_layernorm, pre_mlp_layernorm);
    `layernorm` runs no other again (core/transformer/transformer_layer.py: IdentityOp).
    """
    if not fused:
        return unit.mixer != NONE, unit.channel != NONE
    return (unit.mixer == ATTENTION and model.mla is not None) or unit.mixer == COMPRESSED, unit.moe


def share_again(operators: Operators, mask: int, apart: tuple[bool, bool]) -> Floats:
    """Part of each operator that runs again, [n, operators]: 1, 0, or of the casts as many as their GEMMs have inputs.

    `apart`: which norms of the layer can run again alone (norms_apart).
    """
    forward = operators.phase == FORWARD
    if mask == ALL:
        return np.broadcast_to(forward.astype(float), operators.m.shape)
    names = operators_of(mask).difference(name for name, own in zip(_OPERATORS["layernorm"], apart, strict=True) if not own)
    chosen = np.array([name in names for name in operators.names]) & forward
    chosen |= operators.core & bool(mask & CORE_ATTN)
    share = np.zeros(operators.m.shape)
    share[:, chosen] = 1.0
    inputs = operators.m * operators.k * operators.batch * (operators.linear & forward)
    casts = np.array([name == "casts" for name in operators.names]) & forward
    if casts.any():
        whole = inputs.sum(axis=1)
        share[:, casts] = ((inputs * chosen).sum(axis=1) / np.where(whole > 0, whole, 1.0))[:, None]
    return share


def module_flops(model: Model, unit: Unit) -> Floats:
    """Forward FLOPs of each module of a layer per token, [modules]; counted as in `model_flops_per_token`."""
    flops = np.zeros(len(RECOMPUTE_MODULES))
    if unit.kind != LAYER:
        return flops
    each = 2.0 * model.hidden * (3 if model.gated else 2)  # of a hidden neuron of an MLP
    flops[0] = core_flops(model, unit)
    if model.mla and unit.attends:
        up = model.head_dim * (model.mla.q_rank or model.hidden)
        up += model.mla.kv_rank * (model.mla.nope_head_dim + model.mla.v_head_dim)
        flops[2] = 2.0 * model.heads * up
    elif model.compressed and unit.mixer == COMPRESSED:
        flops[2] = 2.0 * model.compressed.q_rank * model.heads * model.head_dim
    flops[7] = sum(2.0 * each.elements for each in weights_of(model, unit) if each.part == "streams" and each.matrices)
    experts = model.experts
    if experts and unit.moe:
        flops[6] = each * experts.shared_ffn
        narrow = (experts.latent or model.hidden) / model.hidden
        flops[5] = each * narrow * experts.topk * experts.ffn + 2.0 * model.hidden * experts.count + flops[6]
    elif unit.channel != NONE:
        flops[4] = each * (model.ffn or 0)
    return flops
