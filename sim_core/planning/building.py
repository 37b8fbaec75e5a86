"""`Plans` built from names and values, and the check of any `Plans` before a simulation.

>>> grid = plans(workload, tp=[1, 2], pp=4, dp=8, checkpointing="block:2")   # two plans
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.engine.schedules import SCHEDULES, SENDS
from sim_core.errors import SpecError, nearest, shown
from sim_core.limits import LARGEST, gpus_of
from sim_core.models.precision import PRECISION_NAMES
from sim_core.models.recompute import RECOMPUTE_MODULES, modules_mask
from sim_core.planning.columns import (
    CHECKPOINTING,
    CP_COMM_TYPES,
    DISPATCHERS,
    FIDELITIES,
    FLOATS,
    LISTED,
    MODULES,
    PRECISIONS,
    SPLITS,
    Plans,
)
from sim_core.planning.imbalance import MOST, imbalance_codes
from sim_core.terms import SHARDINGS
from sim_core.workloads.workload import Workload

Ints = npt.NDArray[np.int64]
Value = int | float | str | bool

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "schedule": SCHEDULES,
    "fidelity": FIDELITIES,
    "gradient_precision": PRECISIONS,
    "sharding": SHARDINGS,
    "cp_comm_type": CP_COMM_TYPES,
    "precision": PRECISION_NAMES,
    "dispatcher": DISPATCHERS,
}
"""Columns whose values are indices into these words."""

DEFAULTS: Final[Mapping[str, Value]] = {
    "cp": 1,
    "cp_comm_type": "p2p",
    "cp_a2a_size": 1,
    "precision": PRECISION_NAMES[0],
    "dispatcher": "alltoall",
    "schedule": "1f1b",
    "microbatch_group_size": 0,
    "layer_split": "even",
    "checkpointing": "file",
    "overlap_tp": False,
    "overlap_ep": False,
    "overlap_shared_experts": False,
    "overlap_grad": True,
    "overlap_param": True,
    "post_validation": False,
    "bucket_bytes": 0,
    "fidelity": "event",
    "gradient_precision": "recorded",
    "sharding": "stack",
    "dp_shard": 0,
    "reshard_after_forward": True,
    "prefetch_layers": 1,
    "expert_imbalance": "recorded",
    "sequence": 0,
    "experts": 0,
    "straggler_stage": 0,
    "straggler_factor": 1.0,
    "device_speed": 1.0,
    "dp_overlap_ratio": 0.0,
    "tp_overlap_ratio": 0.0,
    "ep_overlap_ratio": 0.0,
    "pp_overlap_ratio": 1.0,
}
"""Values of names that neither the user nor the workload's own plan sets; overlap_pp: see sends_in_background."""


SWITCHES: Final = (
    "overlap_tp", "overlap_ep", "overlap_shared_experts", "overlap_pp", "overlap_grad", "overlap_param", "post_validation",
    "reshard_after_forward",
)  # fmt: skip
"""Columns that are 0 or 1."""


class _Bounds(NamedTuple):
    least: float
    most: float


_SWITCH: Final = _Bounds(least=0, most=1)
_FACTOR: Final = _Bounds(least=1e-9, most=1e9)
_FROM_ZERO: Final = (
    "ga", "microbatch_group_size", "bucket_bytes", "checkpoint_layers", "straggler_stage", "dp_shard", "prefetch_layers",
    "sequence", "experts",
)  # fmt: skip
_BOUNDS: Final[Mapping[str, _Bounds]] = {
    **{name: _Bounds(least=int(name not in _FROM_ZERO), most=most) for name, most in LARGEST.items()},
    "all_gpus": _Bounds(least=1, most=2**62),  # a product of dp, tp and pp; too many have a reason code
    **dict.fromkeys(SWITCHES, _SWITCH),
    **dict.fromkeys(("dp_overlap_ratio", "tp_overlap_ratio", "ep_overlap_ratio"), _SWITCH),
    "pp_overlap_ratio": _Bounds(least=1e-9, most=1),  # the tool divides by it
    **dict.fromkeys(("straggler_factor", "device_speed"), _FACTOR),
    "expert_imbalance": _Bounds(least=-MOST, most=MOST),
    **{name: _Bounds(least=0, most=len(words) - 1) for name, words in WORDS.items()},
    "layer_split": _Bounds(least=0, most=len(SPLITS) - 1),
    "checkpointing": _Bounds(least=0, most=len(CHECKPOINTING) - 1),
}


def check_plans(plans: Plans, variants: int) -> None:
    """Raise SpecError for a column of wrong length or type, or a value out of bounds; `variants`: number of hardware rows."""
    rows = len(plans.tp)
    bounds = {**_BOUNDS, "hardware": _Bounds(least=0, most=variants - 1)}
    for name, column in plans._asdict().items():
        kind = np.float64 if name in FLOATS else np.int64
        dimensions = 2 if name == "virtual_layers" else 1
        if column.ndim != dimensions or column.dtype != kind or not column.flags.c_contiguous:
            found = f"{column.ndim} dimensions of {column.dtype}"
            raise SpecError(f"plans.{name}: found {found}, expected {dimensions} of {np.dtype(kind)}, contiguous")
        if len(column) != rows:
            raise SpecError(f"plans.{name}: found {len(column)} rows, expected {rows}, as plans.tp has")
        if name == "virtual_layers" or not rows:
            continue
        _check_bounds(name, column, bounds[name])


def _check_bounds(name: str, column: npt.NDArray[Any], bounds: _Bounds) -> None:
    outside = ~((column >= bounds.least) & (column <= bounds.most))
    if outside.any():
        row = int(np.argmax(outside))
        expected = f"{bounds.least:g} to {bounds.most:g}" if name in FLOATS else f"{bounds.least} to {bounds.most:,}"
        raise SpecError(f"plans.{name}: found {column[row]} in row {row}, expected {expected}")


def plans(workload: Workload, /, **given: Value | Sequence[Value | Sequence[int]]) -> Plans:
    """Every combination of the given values, the first name slowest; other names keep the value of the workload's own plan.

    A value is a number, a word (`schedule="gpipe"`, `checkpointing="block:2"`, `layer_split="balanced"` or a list of layers
    per virtual stage), a switch, or a list of these. `dp` may replace `all_gpus`, and `global_batch` may replace `ga`.
    `hardware` is a row of the HardwareTable. Raises SpecError.
    """
    known = [name for name in Plans._fields if name not in ("virtual_layers", "checkpoint_layers")]
    for name in given:
        if name not in (*known, "dp", "global_batch"):
            raise SpecError(f"plans: unknown name {shown(name)}, {nearest(name, (*known, 'dp', 'global_batch'))}")
    for one, other in (("dp", "all_gpus"), ("global_batch", "ga")):
        if one in given and other in given:
            raise SpecError(f"plans: {one} and {other} are both given, but one follows from the other")
    values: dict[str, Any] = {**DEFAULTS, "hardware": 0, **workload.base._asdict(), "layers": workload.layers}
    values |= {name: value for name, value in workload.recorded_fields.items() if name in known} | given
    axes = {name: _values(name, value) for name, value in values.items()}
    ordered = [*(name for name in axes if name in given), *(name for name in axes if name not in given)]
    rows = list(itertools.product(*(axes[name] for name in ordered)))
    return _columns({name: [row[k] for row in rows] for k, name in enumerate(ordered)})


def _values(name: str, value: Any) -> list[Any]:
    """The values of one name. For `layer_split` a list of numbers is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        return [value]
    if not len(value):
        raise SpecError(f"plans: {name}: found an empty list, expected at least one value")
    if name == "layer_split" and all(isinstance(item, int | np.integer) for item in value):
        return [value]
    return list(value)


def _columns(rows: dict[str, list[Any]]) -> Plans:
    count = len(rows["tp"])
    coded: dict[str, Any] = {}
    for name, values in rows.items():
        if name == "checkpointing":
            coded[name], coded["checkpoint_layers"] = checkpointing_codes([str(value) for value in values])
        elif name == "layer_split":
            coded[name], coded["virtual_layers"] = split_codes([split_text(value) for value in values])
        elif name == "expert_imbalance":
            coded[name] = imbalance_codes(values)
        elif name in WORDS:
            coded[name] = np.array([_word(name, value) for value in values], np.int64)
        else:
            whole = name not in FLOATS
            coded[name] = np.array([_number(name, value, whole) for value in values], np.int64 if whole else np.float64)
    if "overlap_pp" not in coded:
        coded["overlap_pp"] = sends_in_background(coded["schedule"], coded["vpp"])
    for name in ("dp", "tp", "cp", "pp", "global_batch", "micro_batch"):
        if name in coded:
            _check_bounds(name, coded[name], _BOUNDS[name])
    if "dp" in coded:
        coded["all_gpus"] = gpus_of(coded["dp"], coded["tp"] * coded["cp"] * coded["pp"])
    if "global_batch" in coded:
        model_parallel = coded["tp"] * coded["cp"] * coded["pp"]
        batch = np.maximum(coded["all_gpus"] // model_parallel, 1) * coded["micro_batch"]
        coded["ga"] = np.where(coded["global_batch"] % batch == 0, coded["global_batch"] // batch, 0)
    built = Plans(**{name: coded[name] for name in Plans._fields})
    check_plans(built, variants=int(built.hardware.max()) + 1 if count else 1)
    return built


def sends_in_background(schedule: Ints, vpp: Ints) -> Ints:
    """`overlap_pp` of plans that do not set it, as their frameworks do: 1 for interleaving, else as the schedule says, [n]."""
    return np.where(vpp > 1, 1, SENDS[schedule])


def _word(name: str, value: object) -> int:
    if value not in WORDS[name]:
        raise SpecError(f"plans: {name}: found {shown(value)}, {nearest(str(value), WORDS[name])}")
    return WORDS[name].index(str(value))


def _number(name: str, value: object, whole: bool) -> int | float:
    if isinstance(value, bool | np.bool_) and name in SWITCHES:
        return int(value)
    if isinstance(value, bool | np.bool_ | str) or not isinstance(value, int | float | np.integer | np.floating):
        raise SpecError(f"plans: {name}: found {shown(value)}, expected a number")
    if not abs(float(value)) < 2.0**62:
        raise SpecError(f"plans: {name}: found {shown(value)}, expected a number below 2^62")
    if whole and value != int(value):
        raise SpecError(f"plans: {name}: found {value}, expected a whole number")
    return int(value) if whole else float(value)


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
        if word not in CHECKPOINTING[:MODULES] or counted != bool(colon) or (counted and not _is_span(span)):
            forms = [f"{name}:K" if name in ("every", "block") else name for name in CHECKPOINTING[:MODULES]]
            hint = nearest(label, forms)
            if not hint.startswith("nearest"):
                hint = nearest(label, (*forms, *RECOMPUTE_MODULES))
            meaning = ", K a whole number above 0" if ":K" in hint else ""
            raise SpecError(f"checkpointing: found {shown(label)}, {hint}{meaning}")
        kinds.append(CHECKPOINTING.index(word))
        spans.append(int(span or 0))
    return np.array(kinds, np.int64), np.array(spans, np.int64)


def _is_span(text: str) -> bool:
    """Whether `text` is a number of layers above 0."""
    return text.isascii() and text.isdecimal() and len(text) < 7 and int(text) > 0


def split_text(value: object) -> str:
    """A split as text: a word of SPLITS, or layers per virtual stage, `8,10,10,8`. Raises SpecError."""
    words = SPLITS[:LISTED]
    entries = value.split(",") if isinstance(value, str) else value
    if isinstance(value, str) and value in words:
        return value
    if isinstance(entries, Sequence | np.ndarray) and len(entries) > 0:
        texts = [str(entry).strip() for entry in entries if not isinstance(entry, bool)]
        if len(texts) == len(entries) and all(text.isascii() and text.isdecimal() and len(text) < 7 for text in texts):
            return ",".join(str(int(text)) for text in texts)
    hint = nearest(str(value), words)
    raise SpecError(f"layer_split: found {shown(value)}, {hint}; or the layers of each virtual stage: [8, 10, 10, 8]")


def split_codes(texts: Sequence[str]) -> tuple[Ints, Ints]:
    """Index into SPLITS, [n], and the `virtual_layers` of a Plans, [n, width], from texts of `split_text`."""
    lists = [() if text in SPLITS else tuple(map(int, text.split(","))) for text in texts]
    virtual_layers = np.full((len(texts), max(map(len, lists), default=0)), -1, np.int64)
    for row, layers in enumerate(lists):
        virtual_layers[row, : len(layers)] = layers
    codes = [LISTED if layers else SPLITS.index(text) for text, layers in zip(texts, lists, strict=True)]
    return np.array(codes, np.int64), virtual_layers
