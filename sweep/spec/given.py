"""A spec as Python gives it: its keys as types; NumPy numbers, tuples, ranges and models as plain values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from sim_core import Model, model_document
from sim_core.documents import Values


class Spec(TypedDict, total=False):
    """The keys of a spec (docs/spec.md), so that a type checker finds a misspelt one: `spec: sweep.Spec = {...}`."""

    name: str
    model: object
    workload: object
    hardware: object
    axes: Values
    fixed: Values
    where: str | Sequence[str]
    objectives: Sequence[object]
    per: str | Sequence[str]
    sample: object
    store: object
    budget: object
    failures: object
    running: object
    fidelity: object


def plain(value: Any) -> Any:
    """A value as YAML would hold it: mappings, lists, texts and numbers. What is none of these stays, and is refused later."""
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [plain(each) for each in value]
    if isinstance(value, Model):
        return model_document(value)
    return str(value) if isinstance(value, Path) else value
