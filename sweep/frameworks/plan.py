"""One plan of a sweep with all that a launch needs: its fields by name, its layers by stage, the model it trains."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from sim_core import PLAN_DEFAULTS, Fields, Model

Value = int | float | str | bool
Plan = dict[str, Value | None]
"""Fields of a plan by name; None: not told."""


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A plan that can run.

    `fields`: every field of the plan by name. `layers[stage][chunk]`: layers of each virtual stage. `model`: None where a file
    holds no model. `sharding`: what the ranks of a group share, with the stack's own choice filled in.
    """

    name: str
    number: int
    fields: Fields
    row: Fields
    layers: tuple[tuple[int, ...], ...]
    model: Model | None
    sequence: int | None
    stack: str
    sequence_parallel: bool
    sharding: str
    experts_with_tp: bool
    reduces_in_bf16: bool
    gpus_per_node: int
    spec: Fields

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def besides(self, told: Mapping[str, object], named: Set[str]) -> list[str]:
        """What of `told` is so, then fields with another value than the default that a format does not name, and those of the
        hardware: no choice of a plan is dropped in silence."""
        return (
            [what for what, there in told.items() if there]
            + [
                f"{name} {value}"
                for name, value in self.fields.items()
                if name not in named and name in PLAN_DEFAULTS and value != PLAN_DEFAULTS[name]
            ]
            + [f"{key} {value}" for key, value in self.fields.items() if key.startswith("hardware.")]
        )
