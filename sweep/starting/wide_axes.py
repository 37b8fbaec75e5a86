"""Axes of a first space for a model: every value that may hold its best plan, each with why."""

import math
from typing import Any

from sim_core import Hardware, Model, Stack
from sim_core.hardware.kernels.device import load_kernels, precisions as precisions_on
from sweep.frameworks.stacks import page_of

TOKENS = 4_000_000
"""Tokens of a step, about what models of this generation train with (Llama 3: 4 to 16 M, arXiv 2407.21783)."""
_MOST_PP = 64
_MOST_EP = 64
_MOST_MICRO_BATCH = 8
_LONG = 4096
"""Sequences from which context parallelism is worth a look."""
_SPLITS = {"even": 0, "embedding_as_layer": 1, "loss_as_layer": 1, "embedding_and_loss_as_layer": 2}
"""Splits in equal runs, with the ends that count as layers."""
_FEW_CHUNKS = (2, 4)
"""Chunks of a stage that are worth a look where no number of stages divides the layers, either."""
_LARGE_HEAD = 1.5
"""Layers whose matrices a head's must exceed; one layer is what Megatron's account options count it as."""
_ROOM = 64
"""GPUs that jobs use of a larger domain of NVLink: a power of two."""
_RECIPES = {"mxfp8": "mxfp8", "fp8_block": "fp8_blockwise"}
"""Of tensor cores, the recipes that keep scales of blocks: Blackwell's, and DeepSeek's (arXiv 2412.19437, section 3.3)."""
_RING = 16
"""Chips of the longest axis of a torus along which a group lies: a pod of TPU v6e has 16 x 16."""

Lines = dict[str, tuple[Any, str]]
"""Keys of a section, each with its value and why it is so."""


def wide_axes(model: Model, device: Hardware, stack: Stack, gpus: int, sequence: int) -> Lines:
    """Axes and fixed values for a model on `gpus` devices; a list is an axis."""
    node = domain(device)
    beyond = "would need several axes of the torus" if is_torus(device) else "would leave the node"
    tp = [
        n
        for n in doubled(node)
        if gpus % n == 0 and not (model.heads % n or (model.ffn or 0) % n or (model.kv_heads % n and n % model.kv_heads))
    ]
    lines: Lines = {"tp": (tp or [1], f"divides {model.heads} heads; more than {node} {beyond}")}
    if model.compressed:
        lines["tp"] = [1], "Megatron-LM's compressed attention has no tensor parallelism (NVIDIA/Megatron-LM issue 4868)"
    cp = [n for n in doubled(min(node, 8)) if gpus % n == 0 and sequence % (2 * n) == 0]
    if sequence >= _LONG and len(cp) > 1:
        lines["cp"] = cp, "context parallelism: ranks that share a sequence"
    if model.experts:
        count = model.experts.count
        ep = [n for n in doubled(max(_MOST_EP, node)) if count % n == 0 and gpus % n == 0]
        lines["ep"] = ep, f"divides {count} experts"
        lines["dispatcher"] = ["alltoall", "flex"], "flex: DeepEP, HybridEP"
        lines["overlap_ep"] = [False, True], "all-to-alls beside the experts' GEMMs"
    lines |= _stages(model, gpus)
    lines["micro_batch"] = doubled(_MOST_MICRO_BATCH), "sequences"
    lines["checkpointing"] = _recompute(model), "what the backward computes again"
    if len(lines["tp"][0]) > 1:
        lines["overlap_tp"] = [False, True], page_of(stack.name).overlap_tp
    has = precisions_on(load_kernels(device)) if stack.fp8 and model.experts else ()
    if recipes := [recipe for kind, recipe in _RECIPES.items() if kind in has]:
        lines["precision"] = ["bf16", *recipes], "of linear layers, experts among them"
    if len(stack.schedules) > 1:
        lines["schedule"] = list(stack.schedules), f"those that {stack.name} has"
    elif stack.schedules != ("1f1b",):
        lines["schedule"] = stack.schedules[0], f"that of {stack.name}"
    batch = step_batch(model.batch_tokens or TOKENS, gpus, sequence, max(lines["tp"][0]) * max(lines["pp"][0]))
    trained = "" if model.batch_tokens is None else ", as the model was trained with"
    lines["all_gpus"] = gpus, ""
    lines["global_batch"] = batch, f"sequences of a step: {batch * sequence / 1e6:.1f} M tokens{trained}"
    page = page_of(stack.name)
    return {name: line for name, line in lines.items() if name not in page.not_varied + page.lacks}


def is_torus(device: Hardware) -> bool:
    """Whether chips meet over the links of a torus, so that a node is a slice."""
    return device.value("link_axes") > 1


def domain(device: Hardware) -> int:
    """GPUs of an NVLink domain that groups of a power of two fill; of a torus, those of an axis."""
    return min(int(device.value("gpus_per_node")), _RING if is_torus(device) else _ROOM)


def _stages(model: Model, gpus: int) -> Lines:
    """Axes of the pipeline: all stages and chunks that divide the layers, with and without the ends that count as layers."""
    layers = model.layers
    most = min(_MOST_PP, layers, gpus)
    counted = sorted({layers + ends for ends in _SPLITS.values()})
    fitting = [n for n in range(1, most + 1) if gpus % n == 0 and (n & (n - 1) == 0 or any(own % n == 0 for own in counted))]
    chunks = {
        chunk
        for own in counted
        for n in fitting[1:]
        if own % n == 0
        for chunk in range(1, own // n + 1)
        if own // n % chunk == 0
    }
    lines: Lines = {"pp": (fitting, f"divides {gpus} GPUs")}
    if len(fitting) > 1:
        few = {n for n in _FEW_CHUNKS if 2 * n <= layers}
        why = f"interleaving: pp x vpp divides {layers} layers, or those with embedding and loss; balanced splits take any"
        lines["vpp"] = sorted({1, *few, *chunks}), why
        by_cost, why = _is_uneven(model), "Megatron's default, its account options, at most one layer apart"
        lines["layer_split"] = [*_SPLITS, "balanced", *["balanced_cost"] * by_cost], why + ", by cost" * by_cost
    return lines


def _is_uneven(model: Model) -> bool:
    """Whether equal numbers of layers are unequal work: layers of several kinds, or a head of far more than one layer."""
    width = model.experts.topk * model.experts.ffn + model.experts.shared_ffn if model.experts else model.ffn or 0
    matrices = (2 + model.gated) * width + 2 * model.head_dim * (model.heads + model.kv_heads)
    return sum(unit.kind == "layer" for unit in model.units) > 1 or model.vocabulary > _LARGE_HEAD * matrices


def _recompute(model: Model) -> list[str]:
    """Modes of recompute that drop something of this model, from the least to all.

    Transformer Engine makes a norm part of the linear layer after it: with plain attention that of attention, without experts
    that of the MLP (Megatron-LM, gpt_layer_specs.py: input_layernorm, pre_mlp_layernorm). Such a norm cannot run again alone.
    """
    if model.experts is None:
        return ["none", "selective", *(["layernorm"] if model.mla else []), "mlp", "full"]
    mla = ["layernorm+mla_up_proj+moe_act"] if model.mla else []
    return ["none", "selective", "moe_act", "layernorm+moe_act", *mla, "moe", "full"]


def step_batch(tokens: int, gpus: int, sequence: int, most_split: int) -> int:
    """Sequences of a step of about `tokens`: as many as that, if replicas can share them, else a near number that they can.

    `most_split`: GPUs of the largest replica. The odd part of the GPUs divides the result; each replica gets one at least.
    """
    odd, wanted = gpus // (gpus & -gpus), tokens // sequence
    least = math.ceil(gpus / most_split)
    if wanted >= least and wanted % odd == 0 and (wanted & -wanted) >= (gpus & -gpus) // 2:
        return wanted
    twos = max(round(math.log2(max(wanted / odd, 1))), 0)
    return int(odd * 2 ** max(twos, math.ceil(math.log2(max(least / odd, 1)))))


def doubled(most: int) -> list[int]:
    """Powers of two up to `most`."""
    return [2**k for k in range(int(math.log2(max(most, 1))) + 1)]
