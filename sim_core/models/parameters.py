"""Parameters of a model, as published: by unit and part, total, active per token."""

from __future__ import annotations

from typing import NamedTuple

from sim_core.models.description import MTP, Model
from sim_core.models.weights import PARTS, weights_of


class UnitParameters(NamedTuple):
    """Parameters of one unit. `by_part` has the keys of PARTS that are not 0; `active` are those that one token meets."""

    name: str
    number: int
    parameters: int
    active: int
    by_part: dict[str, int]


class Parameters(NamedTuple):
    """Parameters of a model without padding; `total` and `active` leave out multi-token prediction, as publishers do."""

    units: tuple[UnitParameters, ...]
    total: int
    active: int
    mtp: int  # of the layers of multi-token prediction; embedding and head are shared
    by_part: dict[str, int]  # of the total


def parameters(model: Model) -> Parameters:
    """Count the parameters of a model. Tied weights count once; a router's correction bias is no parameter."""
    units = []
    for unit in model.units:
        parts: dict[str, int] = {}
        for weights in weights_of(model, unit):
            parts[weights.part] = parts.get(weights.part, 0) + weights.elements
        whole = sum(parts.values())
        routed = parts.get("routed_experts", 0)
        experts = model.experts
        active = whole - routed + (routed // experts.count * experts.topk if experts else 0)
        units.append(UnitParameters(unit.name, unit.number, whole, active, parts))
    inside = [unit for unit in units if unit.name != MTP]
    by_part = {part: sum(unit.number * unit.by_part.get(part, 0) for unit in inside) for part in PARTS}
    return Parameters(
        units=tuple(units),
        total=sum(unit.number * unit.parameters for unit in inside),
        active=sum(unit.number * unit.active for unit in inside),
        mtp=sum(unit.number * unit.parameters for unit in units if unit.name == MTP),
        by_part={part: count for part, count in by_part.items() if count},
    )
