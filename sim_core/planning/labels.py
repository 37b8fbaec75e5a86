"""Values of plans that are texts with numbers in them: the codes of `block:2`, `8,10,10,8`, `zipf:1.0`."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Floats, Ints
from sim_core.errors import SpecError, nearest, shown
from sim_core.models.recompute import OFFLOAD_MODULES, RECOMPUTE_MODULES, mask_of, modules_mask
from sim_core.planning.columns import CHECKPOINTING, LISTED, MODULES, SPLITS


class Label(NamedTuple):
    """How a field takes texts with numbers in them."""

    codes: Callable[[Sequence[str]], tuple[npt.NDArray[Any], ...]]
    """Texts to its column, and to those of `beside`. Raises SpecError."""
    bounds: tuple[float, float]
    """Of its column."""
    forms: str
    """Its values, for the page of axes."""
    text: Callable[[object], str] = str
    """A user's value as text. Raises SpecError."""
    beside: tuple[str, ...] = ()
    """Further columns that it fills."""
    real: bool = False
    """Whether its column holds floating-point numbers."""


IMBALANCES = {"recorded": 0.0, "balanced": 1.0}
"""Codes of the words of `expert_imbalance` (planning/imbalance.py)."""
MOST_IMBALANCE = 65_536.0
"""Of a factor: no more ranks share out experts. And of an exponent, at which one expert gets everything."""


def checkpointing_codes(labels: Sequence[str]) -> tuple[Ints, Ints]:
    """Index into CHECKPOINTING and the `checkpoint_layers` of a Plans, by label. Raises SpecError."""
    kinds, spans = [], []
    for label in labels:
        if label.split("+")[0] in RECOMPUTE_MODULES:
            kinds.append(MODULES)
            spans.append(modules_mask(label))
            continue
        word, colon, span = label.partition(":")
        counted = word in ("every", "block")
        if word in CHECKPOINTING and colon and not counted:
            raise SpecError(f"checkpointing: found {shown(label)}, expected '{word}', without a number")
        if word not in CHECKPOINTING[:MODULES] or counted != bool(colon) or (counted and not (_is_count(span) and int(span))):
            forms = [f"{name}:K" if name in ("every", "block") else name for name in CHECKPOINTING[:MODULES]]
            hint = nearest(label, forms)
            if not hint.startswith("nearest"):
                hint = nearest(label, (*forms, *RECOMPUTE_MODULES))
            meaning = ", K a whole number above 0" if ":K" in hint else ""
            raise SpecError(f"checkpointing: found {shown(label)}, {hint}{meaning}")
        kinds.append(CHECKPOINTING.index(word))
        spans.append(int(span or 0))
    return np.array(kinds, int), np.array(spans, int)


def _is_count(text: str) -> bool:
    """Whether `text` is a number of layers."""
    return text.isascii() and text.isdecimal() and len(text) < 7


def split_text(value: object) -> str:
    """A split as text: a word of SPLITS, or layers per virtual stage, `8,10,10,8`. Raises SpecError."""
    words = SPLITS[:LISTED]
    entries = value.split(",") if isinstance(value, str) else value
    if isinstance(value, str) and value in words:
        return value
    if isinstance(entries, Sequence | np.ndarray) and len(entries) > 0:
        texts = [str(entry).strip() for entry in entries if not isinstance(entry, bool)]
        if len(texts) == len(entries) and all(map(_is_count, texts)):
            return ",".join(str(int(text)) for text in texts)
    hint = nearest(str(value), words)
    raise SpecError(f"layer_split: found {shown(value)}, {hint}; or the layers of each virtual stage: [8, 10, 10, 8]")


def split_codes(texts: Sequence[str]) -> tuple[Ints, Ints]:
    """Index into SPLITS, [n], and the `virtual_layers` of a Plans, [n, width], from texts of `split_text`."""
    lists = [() if text in SPLITS else tuple(map(int, text.split(","))) for text in texts]
    virtual_layers = np.full((len(texts), max(map(len, lists), default=0)), -1, int)
    for row, layers in enumerate(lists):
        virtual_layers[row, : len(layers)] = layers
    codes = [LISTED if layers else SPLITS.index(text) for text, layers in zip(texts, lists, strict=True)]
    return np.array(codes, int), virtual_layers


def imbalance_codes(labels: Sequence[str]) -> tuple[Floats]:
    """The column from `recorded`, `balanced`, `zipf:S` or a factor. Raises SpecError."""
    return (np.array([_imbalance_code(label) for label in labels], float),)


def _imbalance_code(label: str) -> float:
    if label in IMBALANCES:
        return IMBALANCES[label]
    _, colon, exponent = label.partition(":")
    zipf, number = label.startswith("zipf:"), np.nan
    with suppress(ValueError):
        number = float(exponent if colon else label)
    if (colon and not zipf) or not (1e-6 if zipf else 1.0) <= number <= MOST_IMBALANCE:
        hint = nearest(label, (*IMBALANCES, "zipf:1.0"))
        raise SpecError(f"expert_imbalance: found {shown(label)}, {hint}; or tokens of the fullest rank over the mean, from 1")
    return -number if zipf else number


def offload_codes(labels: Sequence[str]) -> tuple[Floats, Ints]:
    """The share of a layer's activations that goes to the host, and a bit for each of OFFLOAD_MODULES. Raises SpecError."""
    shares, masks = [], []
    for label in labels:
        share, mask = np.nan, 0
        if label.split("+")[0] in OFFLOAD_MODULES:
            share, mask = 0.0, mask_of(label, OFFLOAD_MODULES, "activation_offload")
        else:
            with suppress(ValueError):
                share = float(label)
        if not 0 <= share <= 1:
            raise SpecError(f"activation_offload: found {shown(label)}, {nearest(label, OFFLOAD_MODULES)}, or a share, 0 to 1")
        shares.append(share)
        masks.append(mask)
    return np.array(shares, float), np.array(masks, int)


RECOMPUTE = Label(
    codes=checkpointing_codes,
    bounds=(0, len(CHECKPOINTING) - 1),
    forms="`none`, `file`, `full`, `selective`, `every:K`, `block:K`, or modules, `layernorm+mla_up_proj+moe_act`",
    beside=("checkpoint_layers",),
)
LAYER_SPLIT = Label(
    codes=split_codes,
    bounds=(0, len(SPLITS) - 1),
    forms=f"{', '.join(f'`{word}`' for word in SPLITS[:LISTED])}, or a list of layers per virtual stage, `[[8, 10, 10, 8]]` as "
    "an axis",
    text=split_text,
    beside=("virtual_layers",),
)
IMBALANCE = Label(
    codes=imbalance_codes,
    bounds=(-MOST_IMBALANCE, MOST_IMBALANCE),
    forms="`recorded`, `balanced`, a factor (`1.5`), `zipf:S`",
    real=True,
)
OFFLOAD = Label(
    codes=offload_codes,
    bounds=(0.0, 1.0),
    forms="a share from 0 to 1, or modules, `core_attn+attn_proj+moe_act`",
    text=lambda value: f"{value:g}" if isinstance(value, float) else str(value),
    beside=("offload_modules",),
    real=True,
)
