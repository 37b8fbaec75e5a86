"""What is wrong with a document, in our words: `found ..., expected ...`, and which name was meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sim_core import PLAN_FIELDS, nearest, shown

_EXPECTED: Final = {
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "letters, digits and _.-, up to 64, the first one a letter or digit",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a section of keys and values",
    "tuple_type": "a list",
    "list_type": "a list",
    "invalid_key": "a text as the key",
    "finite_number": "a finite number",
}
_KINDS: Final = {"int": "a whole number", "float": "a number"}
_BOUNDS: Final = {
    "greater_than": ("gt", "a number above {}"),
    "greater_than_equal": ("ge", "a number of at least {}"),
    "less_than": ("lt", "a number below {}"),
    "less_than_equal": ("le", "a number of at most {}"),
}
_SIZES: Final = tuple(name for name, field in PLAN_FIELDS.items() if field.unit)
"""Fields of plans that have a unit."""
_SEQUENCE: Final = "sequence"
_MEANT: Final = {
    **dict.fromkeys(("seq_len", "seqlen", "seq_length", "sequence_length", "context_length", _SEQUENCE), _SEQUENCE),
    **dict.fromkeys(("world_size", "gpus", "num_gpus", "n_gpus", "gpu_count"), "all_gpus"),
    **dict.fromkeys(("batch_size", "global_batch_size", "train_batch_size"), "global_batch"),
    **dict.fromkeys(("micro_batch_size", "mbs_size", "per_device_batch_size"), "micro_batch"),
    **dict.fromkeys(("gradient_accumulation", "gradient_accumulation_steps", "num_microbatches"), "ga"),
    **dict.fromkeys(("recompute", "recompute_granularity", "activation_checkpointing"), "checkpointing"),
    "tensor_model_parallel_size": "tp", "pipeline_model_parallel_size": "pp", "expert_model_parallel_size": "ep",
    "context_parallel_size": "cp", "virtual_pipeline_model_parallel_size": "vpp", "data_parallel_size": "dp",
}  # fmt: skip
"""Names that other tools use, and ours."""


def meant(name: str, valid: Iterable[str]) -> str:
    """A hint which valid name was meant: by another tool's name for it, else by its letters."""
    words, ours = list(valid), _MEANT.get(name.lower().replace("-", "_"))
    if ours == _SEQUENCE and (ours not in words or "checkpointing" in words):  # among axes
        return f"set workload.{_SEQUENCE}, the same for all plans (a trace has the axis {_SEQUENCE}, too)"
    return f"nearest valid: {ours}" if ours in words else nearest(name, words)


def bare_size(document: Mapping[str, Any]) -> str:
    """What is wrong with a size in a document of a user, a gradient bucket say: without a unit it may mean bytes or MB."""
    fixed, axes = document.get("fixed"), document.get("axes")
    places = {f"fixed.{name}": [fixed.get(name)] for name in _SIZES} if isinstance(fixed, Mapping) else {}
    for key, values in axes.items() if isinstance(axes, Mapping) else ():
        names = [name.strip() for name in str(key).split(",")]
        for k in (k for k, name in enumerate(names) if name in _SIZES):
            if isinstance(values, list):
                places[f"axes.{key}"] = values if len(names) == 1 else [row[k] for row in values if isinstance(row, list)]
            elif isinstance(values, Mapping):
                places[f"axes.{key}"] = [bound for bounds in values.values() for bound in bounds]
    for where, given in places.items():
        for value in given:
            if isinstance(value, int) and value > 0:
                return f"{where}: found {shown(value)}, expected a size with its unit, such as '100 MB' (or 0)"
    return ""


def told(fault: Mapping[str, Any], fields: Sequence[str]) -> str:
    """The value and what was expected, from an entry of `ValidationError.errors()`; `fields` of a section, where it is one."""
    return f"found {shown(fault['input'])}, expected {_expected(fault, fields)}"


def _expected(fault: Mapping[str, Any], fields: Sequence[str]) -> str:
    kind, context = str(fault["type"]), fault.get("ctx", {})
    if kind in _EXPECTED:
        return _EXPECTED[kind]
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        bound = context[name]
        return text.format(f"{bound:,}" if isinstance(bound, int) else f"{bound:g}")
    if kind.partition("_")[0] in _KINDS:  # int_type, int_parsing, int_from_float, ...
        return _KINDS[kind.partition("_")[0]]
    if kind == "literal_error":
        return str(context["expected"])
    if kind == "too_short":
        return f"at least {context['min_length']} value{'s' * (context['min_length'] != 1)}"
    if kind in ("model_type", "model_attributes_type"):
        return f"a section with keys such as {', '.join(fields[:3])}"
    return f"another value ({fault['msg']})"
