"""Measured rows as plans, simulated: seconds of a step, memory, and whether it fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core import (
    Hardware,
    SpecError,
    Stack,
    Workload,
    hardware_table,
    plans,
    simulate,
    workload_from_model,
)
from sweep.validation.devices import candidates, network_of, preset_of
from sweep.validation.models import model_of
from sweep.validation.needs import check_needs
from sweep.validation.reasons import NotSimulated
from sweep.validation.stacks import checkpointing_of, dispatcher_of, layer_split, overlaps, overlaps_tp, sharding_of, stack_of
from sweep.validation.table import Row

PRECISIONS: Final = (
    ("fp16", "fp16"), ("amp_fp16", "fp16"), ("bf16", "bf16"), ("amp_bf16", "bf16"), ("fp8-cs", "fp8_tensorwise"),
    ("fp8-mx", "mxfp8"), ("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("fp8 (alt granularity: 32x32 blockwise", "fp8_blockwise"),
    ("fp8 rowwise", "fp8_tensorwise"), ("fp8", "fp8_delayed"), ("amp_fp8", "fp8_delayed"),
)  # fmt: skip
"""What a `dtype` begins with and the precision. FP8 without a recipe: one scale per tensor, Transformer Engine's default."""
READINGS: Final = (("alloc", (1.0, 0.0)), ("reserved", (1.05, 2**29)), ("nvidia-smi", (1.11, 2**33)))
"""Words of a `mem_kind`, and what is read: factor on the bytes of tensors, bytes besides. That of nvidia-smi holds context,
communicators and buffers; it was chosen on the runs of tr11's document. Of other kinds: what the stack reserves."""
ALLOCATED: Final = ("state_bytes", "activation_bytes", "logits_bytes", "communication_bytes")
"""Bytes of tensors: what the framework reports as allocated."""
LONGEST_REASON: Final = 100
BOUNDLESS: Final = "1e6 GB"
"""Memory of the device while a step is timed: whether the plan fits is judged apart."""


class Change(NamedTuple):
    """Numbers of hardware and stack to replace in every run: an ablation."""

    hardware: dict[str, object]
    stack: dict[str, object]
    tables: bool = True  # measured kernels


UNCHANGED: Final = Change({}, {})


class Run(NamedTuple):
    """A measured run and what was simulated; `reason` says why if it was not."""

    row: Row
    step_s: float = 0.0
    peak_bytes: float = 0.0  # of tensors
    device_bytes: float = 0.0  # of tensors, fragmentation, and what the stack reserves
    fits: bool = True
    reason: str = ""
    network: float = 0.0  # Gb/s of all NICs of a node, in one direction
    network_stated: bool = False  # by the row; else it is that of the preset

    @property
    def measured_s(self) -> float:
        """Seconds of its step; 0 for a run that did not fit."""
        return (self.row.number("iter_ms") or 0.0) / 1e3

    @property
    def timed(self) -> bool:
        """Simulated, and there is a time to hold it against."""
        return not self.reason and self.measured_s > 0

    @property
    def error(self) -> float:
        """Percent of the measured time; positive: predicted too slow."""
        return (self.step_s / self.measured_s - 1) * 100

    @property
    def memory_error(self) -> float | None:
        """Percent of the memory that was read, by what was read: tensors, the allocator's reserve, or the device."""
        measured = self.row.number("mem_gib")
        if self.reason or measured is None:
            return None
        kind = self.row.text("mem_kind").lower()
        reading = next((reading for word, reading in READINGS if word in kind), None)
        read = self.device_bytes if reading is None else self.peak_bytes * reading[0] + reading[1]
        return (read / 2**30 / measured - 1) * 100


def run_rows(rows: Sequence[Row], change: Change = UNCHANGED) -> list[Run]:
    """Simulate each row on its own."""
    return [_run(row, change) for row in rows]


def _run(row: Row, change: Change) -> Run:
    if row.quality != "ok":
        return Run(row, reason=f"quality {row.quality}")
    if not row.out_of_memory and row.number("iter_ms") is None:
        return Run(row, reason="time not stated")
    try:
        return _simulated(row, change)
    except (NotSimulated, SpecError) as error:
        return Run(row, reason=str(error)[:LONGEST_REASON])


def seconds_on(row: Row, variants: Sequence[Hardware]) -> npt.NDArray[np.float64]:
    """Seconds of the row's step on each hardware, whether or not it fits. Raises NotSimulated, SpecError."""
    workload, values = _job(row, UNCHANGED)
    grid = plans(workload, **values, hardware=np.arange(len(variants)))  # type: ignore[arg-type]
    found = simulate(workload, hardware_table([_without(one, UNCHANGED) for one in variants], None), grid).named()
    for reason in found["reason"]:
        if reason:
            raise NotSimulated(f"plan: {reason}")
    return np.asarray(found["step_time_s"], np.float64)


def _job(row: Row, change: Change) -> tuple[Workload, dict[str, object]]:
    """What was trained, and the plan. Raises NotSimulated."""
    check_needs(row)
    model = model_of(row)
    stack = stack_of(row, model)
    sequence_parallel = row.text("sp") == "1" or (not row.text("sp") and stack.flash_attention)  # recipes with TE have it on
    values = _plan(row)
    return workload_from_model(model, _changed(stack, change), sequence_parallel=sequence_parallel), values


def _simulated(row: Row, change: Change) -> Run:
    """On its device; where the row leaves its memory open, on the one that its plan needs. Raises NotSimulated."""
    check_needs(row)  # before a device that we do not have
    devices = candidates(row)
    run = _on(row, devices.pop(0), change)
    while devices and not run.fits and not row.out_of_memory:
        run = _on(row, devices.pop(0), change)
    if devices:
        preset_of(row.text("hw"))
    return run


def _on(row: Row, hardware: Hardware, change: Change) -> Run:
    device_bytes = hardware.value("memory")
    workload, values = _job(row, change)
    grid = plans(workload, **values)  # type: ignore[arg-type]
    found = simulate(workload, hardware_table([_without(hardware, change)], None), grid).named()
    if found["reason"][0]:
        raise NotSimulated(f"plan: {found['reason'][0]}")
    tensors, on_device = float(sum(found[name][0] for name in ALLOCATED)), float(found["peak_memory_bytes"][0])
    network, stated = network_of(hardware)
    fits = on_device <= device_bytes
    return Run(row, float(found["step_time_s"][0]), tensors, on_device, fits, network=network, network_stated=stated)


def _plan(row: Row) -> dict[str, object]:
    """The plan by the names of `sim_core.plans`. Raises NotSimulated for what the simulator does not have."""
    if not row.text("mbs") or not (row.text("gbs") or row.text("ga")):
        raise NotSimulated("micro-batch or batch not stated")
    vpp, overlapping = row.count("vpp", 1), overlaps(row)
    batch = {"global_batch": row.count("gbs")} if row.text("gbs") else {"ga": row.count("ga")}
    return {
        **batch,
        "tp": row.count("tp", 1),
        "cp": row.count("cp", 1),
        "pp": row.count("pp", 1),
        "vpp": vpp,
        "ep": row.count("ep", 1),
        "precision": _precision(row),
        "dispatcher": dispatcher_of(row),
        "all_gpus": row.count("gpus"),
        "micro_batch": row.count("mbs"),
        "checkpointing": checkpointing_of(row),
        "layer_split": layer_split(row),
        "overlap_pp": vpp > 1,
        "overlap_tp": overlaps_tp(row),
        "overlap_grad": overlapping,
        "overlap_param": overlapping,
        **sharding_of(row),
    }


def _precision(row: Row) -> str:
    dtype = row.text("dtype").lower()
    found = next((name for start, name in PRECISIONS if dtype.startswith(start)), None)
    if found is None:
        raise NotSimulated(f"precision {row.text('dtype')[:24] or 'not stated'}")
    return found


def _changed(stack: Stack, change: Change) -> Stack:
    return stack.model_copy(update=change.stack)


def _without(hardware: Hardware, change: Change) -> Hardware:
    """The hardware with the numbers of a change, and memory without bound."""
    changed = hardware.with_values({"memory": BOUNDLESS, **change.hardware})
    if change.tables:
        return changed
    return changed.model_copy(update={"kernels": changed.kernels.model_copy(update={"tables": "", "borrowed": ""})})
