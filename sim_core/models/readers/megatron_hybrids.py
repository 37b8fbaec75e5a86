"""Kinds of layers in Megatron-LM's arguments: a hybrid's pattern, state-space and linear-attention layers, the indexer of DSA.

Names and defaults as in core 0.20 (d98e8a64: core/transformer/transformer_config.py, core/models/hybrid, core/ssm).
"""

from typing import Any, Final

from sim_core.errors import nearest, shown
from sim_core.models.description import SYMBOLS
from sim_core.models.readers import megatron_arguments as of
from sim_core.models.readers.megatron_values import Values

Document = dict[str, Any]
PATTERNS: Final = (of.PATTERN, of.OLD_PATTERN)
"""Of the same meaning."""
SHARES: Final = {of.ATTENTION_SHARE: "*", of.MLP_SHARE: "-"}
INDEXER: Final = (of.INDEXER_HEADS, of.INDEXER_HEAD_DIM, of.INDEXER_TOPK)
LINEAR: Final = {"gated_delta_net": "gated_delta", "gdn": "gated_delta", "kda": "kda", "kimi_delta_attention": "kda"}
"""Variants of linear attention, and our kinds; KDA in branches of core 0.20."""
CHUNKS: Final = {"mamba2": 128, "gated_delta": 64, "kda": 64}
"""Tokens of a chunk: MambaMixer's `chunk_size`, and the kernels of flash-linear-attention."""
STACKS: Final = ("megatron.core.models.hybrid.", "megatron.core.models.mamba.")
"""Specifications of layers that are the standard ones of a hybrid."""


def pattern_of(flags: Values, layers: int | None, *, experts: bool) -> Document:
    """`pattern`, `layers` and `mtp_layers` of a hybrid; empty for other models. `layers`: as --num-layers says."""
    given = next(filter(flags.has, PATTERNS), None)
    word = flags.word(given) if given else None
    if given is None or word is None:
        if not flags.has(of.IS_HYBRID) and not any(flags.share(share, 0.0) for share in SHARES):
            return {}
        return {"pattern": spaced(flags, layers)} if layers else {}
    main, *heads = word.split("/")
    letters, flag = main.replace("|", ""), given.flag
    unknown = next((letter for letter in letters if letter not in SYMBOLS), None)
    if unknown is not None:
        known = f"expected {' '.join(SYMBOLS)} and |"
        raise flags.wrong(flag, f"found {shown(unknown)}, a kind of layer that is not modelled, {known}")
    if layers and len(letters) != layers:
        raise flags.wrong(flag, f"found {len(letters)} layers, expected {layers}, as in {of.LAYERS.flag}")
    heads = [head for head in heads if head]
    _check_heads(flags, flag, heads, experts=experts)
    return {"layers": len(letters), "pattern": main, **({"mtp_layers": len(heads)} if heads else {})}


def _check_heads(flags: Values, flag: str, heads: list[str], *, experts: bool) -> None:
    """Layers of multi-token prediction are one of attention and one channel mixer each, as the model is described."""
    if not heads and flags.has(of.MTP_PATTERN):
        flag, heads = of.MTP_PATTERN.flag, [flags.word(of.MTP_PATTERN) or ""]
    expected = "*E" if experts else "*-"
    if any(head != expected for head in heads):
        raise flags.wrong(
            flag, f"found {shown(heads[0])} for multi-token prediction, expected {expected}: others are not modelled"
        )


def spaced(flags: Values, layers: int) -> str:
    """The pattern of shares of attention and of MLPs, each spread evenly over the state-space layers."""
    letters = ["M"] * layers
    for argument, letter in SHARES.items():
        share = flags.share(argument, 0.0)
        count = round(layers * share) if 0 <= share <= 1 else -1
        free = letters.count("M") - count
        if count < 0 or free < 0:
            what = f"found {share:g}, expected a share of {layers} layers that leaves the other kinds theirs"
            raise flags.wrong(argument.flag, what)
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
    found: Document = {"output_gate": True} if flags.has(of.OUTPUT_GATE) else {}
    variant, letters = flags.word(of.VARIANT), {*document.get("pattern", "")}
    if "M" in letters and ("G" in letters or variant in LINEAR):
        given = next(filter(flags.has, (*PATTERNS, of.VARIANT)))
        raise flags.wrong(given.flag, "state-space and linear-attention layers in one model: not modelled")
    if variant is not None and variant not in (*LINEAR, "dsa"):
        what = f"found {shown(variant)}, a kind that is not modelled, {nearest(variant, [*LINEAR, 'dsa'])}"
        raise flags.wrong(of.VARIANT.flag, what)
    if variant == "dsa":
        found["indexer"] = _indexer(flags)
    if "M" in letters:
        found["recurrent"] = _mamba(flags, document)
    elif "G" in letters or variant in LINEAR:
        found["recurrent"] = _linear(flags, LINEAR.get(variant or "", "gated_delta"))
    if variant in LINEAR and not letters:
        found["full_attention"] = _attending(flags, document.get("layers", 0))
    elif flags.has(of.LINEAR_FREQUENCY) and variant not in LINEAR:
        raise flags.wrong(of.LINEAR_FREQUENCY.flag, f"found without {of.VARIANT.flag} {' or '.join(LINEAR)}")
    return found


def _attending(flags: Values, layers: int) -> int | list[int]:
    """Each n-th layer attends, or those with a 0 in a list."""
    if not flags.has(of.LINEAR_FREQUENCY):
        raise flags.wrong(of.VARIANT.flag, f"{of.LINEAR_FREQUENCY.flag}: missing, expected which layers attend")
    linear = flags.pattern(of.LINEAR_FREQUENCY, layers, lambda layer, n: (layer + 1) % n != 0)
    for n in range(1, layers + 1):
        if linear == [(layer + 1) % n != 0 for layer in range(layers)]:
            return n
    return [layer for layer, here in enumerate(linear) if not here]


def _indexer(flags: Values) -> Document:
    sizes = {size.field: flags.optional(size) for size in INDEXER}
    missing = next((size.flag for size in INDEXER if sizes[size.field] is None), None)
    if missing:
        raise flags.wrong(of.VARIANT.flag, f"{missing}: missing")
    return dict(sizes)


def _mamba(flags: Values, document: Document) -> Document:
    head_dim = flags.number(of.MAMBA_HEAD_DIM, 64)
    heads = flags.optional(of.MAMBA_HEADS) or 2 * document.get("hidden", 0) // max(head_dim, 1)
    groups, state = flags.number(of.MAMBA_GROUPS, 8), flags.number(of.MAMBA_STATE, 128)
    return {"kind": "mamba2", "heads": heads, "head_dim": head_dim, "state": state, "groups": groups, "chunk": CHUNKS["mamba2"]}


def _linear(flags: Values, kind: str) -> Document:
    return {
        "kind": kind,
        "heads": flags.number(of.LINEAR_HEADS, 32),
        "head_dim": flags.number(of.LINEAR_HEAD_DIM, 128),
        "state": flags.number(of.LINEAR_STATE, 128),
        "groups": flags.number(of.LINEAR_GROUPS, 16),
        "conv": flags.number(of.LINEAR_CONV, 4),
        "chunk": CHUNKS[kind],
    }


def is_standard(flags: Values) -> bool:
    """Whether layers are built by Megatron-LM's own specification of a hybrid."""
    return all(place.values and place.values[0].lstrip("['").startswith(STACKS) for place in flags.flags[of.SPEC.flag])
