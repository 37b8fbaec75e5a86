"""The `failures:` section of a spec: how much of the time a plan trains if GPUs fail, and how often it should checkpoint.

Failures come at random (exponentially) and stop the whole job, which restarts from its last checkpoint. The expected time is
that of J. Daly 2006 (Future Generation Computer Systems 22, 303-312), which lets failures strike during checkpoints and
restarts, too; the interval is its higher-order optimum, whose first term, sqrt(2 x time to write x time between failures), is
that of J. Young 1974 (CACM 17, 530).
"""

from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo

from sim_core import Floats, SpecError, Workload, implied_model, parameters, quantity, short
from sweep.spec.workloads import STORED, Section

LLAMA_3 = 419 / (54 * 24 * 16384)
"""Unexpected interruptions in 54 days on 16,384 H100s, per GPU-hour (Llama 3, arXiv 2407.21783, section 3.3.4)."""
TECTONIC = 2e12 / 16384
"""Bytes a second and GPU: the 2 TB/s that its storage sustains (the same, section 3.3.1)."""
RESTART_S = 600.0
"""Detection and diagnosis take less than 10 minutes on average (MegaScale, arXiv 2402.15627)."""
HOUR_S = 3600.0


def _in_unit(unit: str) -> Any:
    """A number that is read and stored with its unit; what a result holds may be one in SI, as earlier versions stored it."""

    def convert(value: object, info: ValidationInfo) -> object:
        if value is None or (info.context is STORED and isinstance(value, float)):
            return value
        try:
            return quantity(value, unit)
        except SpecError as error:
            raise ValueError(str(error)) from None

    def stored(value: float | None) -> str | None:
        return None if value is None else f"{value!r} {unit}"

    return BeforeValidator(convert), PlainSerializer(stored, when_used="json")


_BANDWIDTH = _in_unit("B/s")
_SECONDS = _in_unit("s")


class Failures(Section):
    """How often GPUs fail, and what a failure and a checkpoint take.

    `restart` is from a failure to the reading of the checkpoint, which takes as long as writing it. A checkpoint stops the
    training while it is written: by all GPUs, up to `write_bandwidth` of the storage as a whole.
    """

    per_gpu_hour: Annotated[float, Field(gt=0, le=1)] = LLAMA_3
    write_bandwidth_per_gpu: Annotated[float, *_BANDWIDTH, Field(gt=0)] = TECTONIC
    write_bandwidth: Annotated[Annotated[float, Field(gt=0)] | None, *_BANDWIDTH] = None
    restart: Annotated[float, *_SECONDS, Field(ge=0)] = RESTART_S
    interval: Annotated[Annotated[float, Field(gt=0)] | None, *_SECONDS] = None

    def note(self, checkpoint_bytes: float | None) -> str:
        """What is counted, in one line."""
        rate = " (Llama 3's rate)" * (self.per_gpu_hour == LLAMA_3)
        storage = " (Llama 3's storage)" * (self.write_bandwidth_per_gpu == TECTONIC)
        restart = " (MegaScale's)" * (self.restart == RESTART_S)
        size = "unknown size" if checkpoint_bytes is None else short(checkpoint_bytes, "B")
        return (
            f"failures: {self.per_gpu_hour:.3g} a GPU-hour{rate}, a checkpoint of {size} written at "
            f"{short(self.write_bandwidth_per_gpu, 'B/s')} a GPU{storage}, restart in {short(self.restart, 's')}{restart}"
        )


def checkpoint_bytes(workload: Workload) -> float | None:
    """Bytes of weights and optimizer state of the whole model, without gradients; None if its parameters are unknown."""
    of_model = workload.memory_of or workload
    counts = parameters(of_model.modelled.model) if of_model.modelled else None
    total = counts.total + counts.mtp if counts else implied_model(workload).parameters
    kept, divided = of_model.state_width
    return None if total is None else total * (kept - of_model.arrays.gradient_width + divided)


def best_interval_s(write_s: Floats, between_s: Floats) -> Floats:
    """Seconds of work between checkpoints of `write_s`, with a failure every `between_s` in the mean (Daly 2006)."""
    ratio = np.sqrt(write_s / (2 * between_s))
    best = np.sqrt(2 * write_s * between_s) * (1 + ratio / 3 + ratio**2 / 9) - write_s
    return np.where(write_s < 2 * between_s, best, between_s)


def goodput(interval_s: Floats, write_s: Floats, restart_s: Floats, between_s: Floats) -> Floats:
    """Part of the time that is work which counts (Daly 2006)."""
    with np.errstate(over="ignore"):
        wall_s = between_s * np.exp(restart_s / between_s) * np.expm1((interval_s + write_s) / between_s)
    return interval_s / wall_s


def with_failures(
    failures: Failures, size: float | None, all_gpus: npt.NDArray[Any], tokens_per_s: Floats
) -> dict[str, Floats]:
    """The columns of goodput of some plans, [n], with checkpoints of `size` bytes; none if that is unknown."""
    if size is None:
        return {}
    gpus = all_gpus.astype(float)
    between_s = HOUR_S / (failures.per_gpu_hour * gpus)
    write_s = size / np.minimum(failures.write_bandwidth_per_gpu * gpus, failures.write_bandwidth or np.inf)
    interval_s = best_interval_s(write_s, between_s) if failures.interval is None else np.full(len(gpus), failures.interval)
    part = goodput(interval_s, write_s, failures.restart + write_s, between_s)
    known = np.where(np.isnan(tokens_per_s), np.nan, 1.0)
    return {"goodput": part * known, "checkpoint_interval_s": interval_s * known, "effective_tokens_per_s": part * tokens_per_s}
