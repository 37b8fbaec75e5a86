"""The `budget:` section of a spec: what a number of tokens costs in days, GPU-hours, money and energy."""

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from sim_core import Floats, Hardware, SpecError, count, short
from sweep.spec.workloads import Section

DAY_S = 86_400.0
HOUR_S = 3600.0
WATT_SECONDS_PER_MWH = 1e6 * HOUR_S


def _tokens(value: object) -> float:
    try:
        return count(value)
    except SpecError as error:
        raise ValueError(str(error)) from None


class Budget(Section):
    """Tokens to train on, and what an hour of a GPU costs.

    `watts_per_gpu` is what a GPU draws, with its part of the server if you count that; without it, its maximum by the preset,
    as in the model cards of Llama 3. `pue` (power usage effectiveness) is the energy of the site over that of its computers.
    """

    tokens: Annotated[float, BeforeValidator(_tokens)]
    usd_per_gpu_hour: Annotated[float, Field(ge=0, le=1e6)] | None = None
    watts_per_gpu: Annotated[float, Field(gt=0, le=1e6)] | None = None
    pue: Annotated[float, Field(ge=1, le=10)] = 1.0

    def watts(self, variant: Hardware) -> float:
        """What a GPU draws on a hardware; NaN if unknown."""
        return self.watts_per_gpu or variant.value("power") or np.nan

    def unknown(self, column: str, variants: list[Hardware]) -> str:
        """What the spec has to say for a column of costs to be known; '' if nothing."""
        if column == "usd" and self.usd_per_gpu_hour is None:
            return "budget.usd_per_gpu_hour"
        if column == "energy_mwh" and not all(self.watts(variant) > 0 for variant in variants):
            return "budget.watts_per_gpu, or hardware.power"
        return ""

    def note(self, variants: list[Hardware]) -> str:
        """What is counted, in one line."""
        parts = [f"{short(self.tokens, '').strip()} tokens"]
        if self.usd_per_gpu_hour is not None:
            parts.append(f"{self.usd_per_gpu_hour:g} USD a GPU-hour")
        watts = sorted({self.watts(variant) for variant in variants if self.watts(variant) > 0})
        if watts:
            span = f"{watts[0]:g} W" if len(watts) == 1 else f"{watts[0]:g} to {watts[-1]:g} W"
            drawn = "watts_per_gpu" if self.watts_per_gpu else "its maximum, servers and network are not counted"
            parts.append(f"{span} a GPU ({drawn}), PUE {self.pue:g}")
        return "budget: " + ", ".join(parts)


def costs(budget: Budget, watts: Floats, all_gpus: npt.NDArray[Any], tokens_per_s: Floats) -> dict[str, Floats]:
    """Columns of costs of some plans, [n]; NaN where unknown. `watts`: of a GPU of each plan."""
    with np.errstate(divide="ignore"):  # GPUs that fail before they have done anything never end
        seconds = budget.tokens / tokens_per_s
    gpu_hours = seconds * all_gpus / HOUR_S
    price = np.nan if budget.usd_per_gpu_hour is None else budget.usd_per_gpu_hour
    return {
        "training_days": seconds / DAY_S,
        "gpu_hours": gpu_hours,
        "usd": gpu_hours * price,
        "energy_mwh": gpu_hours * HOUR_S * watts * budget.pue / WATT_SECONDS_PER_MWH,
    }
