"""Kinds of layers in Megatron-LM's arguments: a hybrid's pattern, state-space and linear-attention layers, the indexer of DSA.

Names and defaults as in core 0.20 (d98e8a64: core/transformer/transformer_config.py, core/models/hybrid, core/ssm).
"""

from typing import Any

from sim_core.errors import nearest, shown
from sim_core.models.description import SYMBOLS
from sim_core.models.readers import megatron_arguments as of
from sim_core.models.readers.megatron_values import Values

Document = dict[str, Any]
PATTERNS = (of.PATTERN, of.OLD_PATTERN)
"""Of the same meaning."""
SHARES = {of.ATTENTION_SHARE: "*", of.MLP_SHARE: "-"}
INDEXER = (of.INDEXER_HEADS, of.INDEXER_HEAD_DIM, of.INDEXER_TOPK)
LINEAR = {"gated_delta_net": "gated_delta", "gdn": "gated_delta", "kda": "kda", "kimi_delta_attention": "kda"}
"""Variants of linear attention, and our kinds; KDA in branches of core 0.20."""
CHUNKS = {"mamba2": 128, "gated_delta": 64, "kda": 64}
"""Tokens of a chunk: MambaMixer's `chunk_size`, and the kernels of flash-linear-attention."""
_OF_LINEAR = {
    of.LINEAR_HEADS: 32, of.LINEAR_HEAD_DIM: 128, of.LINEAR_STATE: 128, of.LINEAR_GROUPS: 16, of.LINEAR_CONV: 4,
}  # fmt: skip
STACKS = ("megatron.core.models.hybrid.", "megatron.core.models.mamba.")
"""Specifications of layers that are the standard ones of a hybrid."""


def pattern_of(flags: Values, layers: int | None) -> Document:
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
    heads = stated = [head for head in heads if head]
    if not stated and flags.has(of.MTP_PATTERN):
        flag, stated = of.MTP_PATTERN.flag, [flags.word(of.MTP_PATTERN) or ""]
    expected = "*E" if flags.number(of.EXPERTS, 0) > 1 else "*-"  # one of attention and one channel mixer, as described
    if any(head != expected for head in stated):
        what = f"found {shown(stated[0])} for multi-token prediction, expected {expected}: others are not modelled"
        raise flags.wrong(flag, what)
    return {"layers": len(letters), "pattern": main, **({"mtp_layers": len(heads)} if heads else {})}


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
        sizes = {size.field: flags.optional(size) for size in INDEXER}
        if missing := next((size.flag for size in INDEXER if sizes[size.field] is None), None):
            raise flags.wrong(of.VARIANT.flag, f"{missing}: missing")
        found["indexer"] = sizes
    if "M" in letters:
        mamba = flags.numbers({of.MAMBA_HEAD_DIM: 64, of.MAMBA_GROUPS: 8, of.MAMBA_STATE: 128})
        heads = flags.optional(of.MAMBA_HEADS) or 2 * document.get("hidden", 0) // max(mamba["head_dim"], 1)
        found["recurrent"] = {"kind": "mamba2", "heads": heads, "chunk": CHUNKS["mamba2"], **mamba}
    elif "G" in letters or variant in LINEAR:
        kind = LINEAR.get(variant or "", "gated_delta")
        found["recurrent"] = {"kind": kind, "chunk": CHUNKS[kind], **flags.numbers(_OF_LINEAR)}
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
    every = (n for n in range(1, layers + 1) if linear == [(layer + 1) % n != 0 for layer in range(layers)])
    return next(every, [layer for layer, here in enumerate(linear) if not here])


def is_standard(flags: Values) -> bool:
    """Whether layers are built by Megatron-LM's own specification of a hybrid."""
    return all(place.values and place.values[0].lstrip("['").startswith(STACKS) for place in flags.flags[of.SPEC.flag])
