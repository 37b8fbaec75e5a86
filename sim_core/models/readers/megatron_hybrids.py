"""Kinds of layers in Megatron-LM's arguments: a hybrid's pattern, state-space and linear-attention layers, the indexer of DSA.

Names and defaults as in core 0.20 (d98e8a64: core/transformer/transformer_config.py, core/models/hybrid, core/ssm).
"""

from typing import Any, Final

from sim_core.errors import nearest, shown
from sim_core.models.description import SYMBOLS
from sim_core.models.readers.megatron_values import Values

Document = dict[str, Any]

PATTERNS: Final = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
"""Of the same meaning; the second is the older one."""
RATIOS: Final = {"--hybrid-attention-ratio": "*", "--hybrid-mlp-ratio": "-"}
VARIANT: Final = "--experimental-attention-variant"
FREQUENCY: Final = "--linear-attention-freq"
SPEC: Final = "--spec"
MTP_PATTERN: Final = "--mtp-hybrid-override-pattern"
INDEXER: Final = {
    "heads": "--dsa-indexer-n-heads", "head_dim": "--dsa-indexer-head-dim", "topk": "--dsa-indexer-topk",
}  # fmt: skip
SIZES: Final = (
    "--mamba-state-dim", "--mamba-head-dim", "--mamba-num-groups", "--mamba-num-heads", "--linear-conv-kernel-dim",
    "--linear-key-head-dim", "--linear-value-head-dim", "--linear-num-key-heads", "--linear-num-value-heads",
)  # fmt: skip
FLAGS: Final = (
    *PATTERNS, *RATIOS, VARIANT, FREQUENCY, SPEC, MTP_PATTERN, *INDEXER.values(), *SIZES, "--is-hybrid-model",
    "--attention-output-gate",
)  # fmt: skip
LINEAR: Final = {"gated_delta_net": "gated_delta", "gdn": "gated_delta", "kda": "kda", "kimi_delta_attention": "kda"}
"""Variants of linear attention, and our kinds; KDA in branches of core 0.20."""
CHUNKS: Final = {"mamba2": 128, "gated_delta": 64, "kda": 64}
"""Tokens of a chunk: MambaMixer's `chunk_size`, and the kernels of flash-linear-attention."""
STACKS: Final = ("megatron.core.models.hybrid.", "megatron.core.models.mamba.")
"""Specifications of layers that are the standard ones of a hybrid."""


def pattern_of(flags: Values, layers: int | None, *, experts: bool) -> Document:
    """`pattern`, `layers` and `mtp_layers` of a hybrid; empty for other models. `layers`: as --num-layers says."""
    flag = next((name for name in PATTERNS if flags.has(name)), None)
    word = flags.word(flag) if flag else None
    if flag is None or word is None:
        if not flags.has("--is-hybrid-model") and not any(flags.share(name, 0.0) for name in RATIOS):
            return {}
        return {"pattern": spaced(flags, layers)} if layers else {}
    main, *heads = word.split("/")
    letters = main.replace("|", "")
    unknown = next((letter for letter in letters if letter not in SYMBOLS), None)
    if unknown is not None:
        known = f"expected {' '.join(SYMBOLS)} and |"
        raise flags.wrong(flag, f"found {shown(unknown)}, a kind of layer that is not modelled, {known}")
    if layers and len(letters) != layers:
        raise flags.wrong(flag, f"found {len(letters)} layers, expected {layers}, as in --num-layers")
    heads = [head for head in heads if head]
    _check_heads(flags, flag, heads, experts=experts)
    return {"layers": len(letters), "pattern": main, **({"mtp_layers": len(heads)} if heads else {})}


def _check_heads(flags: Values, flag: str, heads: list[str], *, experts: bool) -> None:
    """Layers of multi-token prediction are one of attention and one channel mixer each, as the model is described."""
    if not heads and flags.has(MTP_PATTERN):
        flag, heads = MTP_PATTERN, [flags.word(MTP_PATTERN) or ""]
    expected = "*E" if experts else "*-"
    if any(head != expected for head in heads):
        raise flags.wrong(
            flag, f"found {shown(heads[0])} for multi-token prediction, expected {expected}: others are not modelled"
        )


def spaced(flags: Values, layers: int) -> str:
    """The pattern of shares of attention and of MLPs, each spread evenly over the state-space layers."""
    letters = ["M"] * layers
    for flag, letter in RATIOS.items():
        share = flags.share(flag, 0.0)
        count = round(layers * share) if 0 <= share <= 1 else -1
        free = letters.count("M") - count
        if count < 0 or free < 0:
            raise flags.wrong(flag, f"found {share:g}, expected a share of {layers} layers that leaves the other kinds theirs")
        gap = free / (count + 1 if letter == "*" else max(count, 1))  # attention stands between, an MLP after
        left = gap
        for k in [k for k, held in enumerate(letters) if held == "M" and count]:
            if left < 0.5:
                letters[k] = letter
                left += gap
            else:
                left -= 1
    return "".join(letters)


def kinds_of(flags: Values, document: Document) -> Document:
    """Sizes of recurrent layers, which layers attend, the gate of attention and the indexer of a model."""
    found: Document = {"output_gate": True} if flags.has("--attention-output-gate") else {}
    variant, letters = flags.word(VARIANT), {*document.get("pattern", "")}
    if "M" in letters and ("G" in letters or variant in LINEAR):
        flag = next(name for name in (*PATTERNS, VARIANT) if flags.has(name))
        raise flags.wrong(flag, "state-space and linear-attention layers in one model: not modelled")
    if variant is not None and variant not in (*LINEAR, "dsa"):
        raise flags.wrong(VARIANT, f"found {shown(variant)}, a kind that is not modelled, {nearest(variant, [*LINEAR, 'dsa'])}")
    if variant == "dsa":
        found["indexer"] = _indexer(flags)
    if "M" in letters:
        found["recurrent"] = _mamba(flags, document)
    elif "G" in letters or variant in LINEAR:
        found["recurrent"] = _linear(flags, LINEAR.get(variant or "", "gated_delta"))
    if variant in LINEAR and not letters:
        found["full_attention"] = _attending(flags, document.get("layers", 0))
    elif FREQUENCY in flags.flags and variant not in LINEAR:
        raise flags.wrong(FREQUENCY, f"found without {VARIANT} {' or '.join(LINEAR)}")
    return found


def _attending(flags: Values, layers: int) -> int | list[int]:
    """Each n-th layer attends, or those with a 0 in a list."""
    if not flags.has(FREQUENCY):
        raise flags.wrong(VARIANT, f"{FREQUENCY}: missing, expected which layers attend")
    linear = flags.pattern(FREQUENCY, layers, lambda layer, n: (layer + 1) % n != 0)
    for n in range(1, layers + 1):
        if linear == [(layer + 1) % n != 0 for layer in range(layers)]:
            return n
    return [layer for layer, here in enumerate(linear) if not here]


def _indexer(flags: Values) -> Document:
    sizes = {key: flags.optional(flag) for key, flag in INDEXER.items()}
    missing = next((INDEXER[key] for key, size in sizes.items() if size is None), None)
    if missing:
        raise flags.wrong(VARIANT, f"{missing}: missing")
    return dict(sizes)


def _mamba(flags: Values, document: Document) -> Document:
    head_dim = flags.number("--mamba-head-dim", 64)
    heads = flags.optional("--mamba-num-heads") or 2 * document.get("hidden", 0) // max(head_dim, 1)
    groups, state = flags.number("--mamba-num-groups", 8), flags.number("--mamba-state-dim", 128)
    return {"kind": "mamba2", "heads": heads, "head_dim": head_dim, "state": state, "groups": groups, "chunk": CHUNKS["mamba2"]}


def _linear(flags: Values, kind: str) -> Document:
    return {
        "kind": kind,
        "heads": flags.number("--linear-num-value-heads", 32),
        "head_dim": flags.number("--linear-value-head-dim", 128),
        "state": flags.number("--linear-key-head-dim", 128),
        "groups": flags.number("--linear-num-key-heads", 16),
        "conv": flags.number("--linear-conv-kernel-dim", 4),
        "chunk": CHUNKS[kind],
    }


def is_standard(flags: Values) -> bool:
    """Whether layers are built by Megatron-LM's own specification of a hybrid."""
    return all(place.values and place.values[0].lstrip("['").startswith(STACKS) for place in flags.flags[SPEC])
