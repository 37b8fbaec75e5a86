"""What each piece of the physics is worth: errors of the published runs with the piece switched off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sweep.runs.simulation import UNCHANGED, Change, run_rows
from sweep.runs.table import Row

FAST: Final = "1e9 GB/s"

ABLATIONS: Final[Mapping[str, Change]] = {
    "kernel tables": Change({"gemm_efficiency": 0.5, "attention_efficiency": 0.5}, {}, tables=False),
    "element-wise kernels": Change({"memory_bandwidth": FAST, "kernel_overhead": "0 s"}, {"accumulation_bytes": 0.0}),
    "gradient accumulation": Change({}, {"accumulation_bytes": 0.0}),
    "messages inside nodes": Change({"nvlink_bandwidth": FAST, "nvlink_latency": "0 s"}, {}),
    "messages between nodes": Change({"nic_bandwidth": FAST, "nic_latency": "0 s"}, {}),
    "sharing of NICs": Change({"shared_nics": False}, {}),
    "contention": Change({}, {"contention": 0.0, "dp_contention": 0.0}),
    "optimizer": Change({}, {"optimizer_bytes": 1e-6}),
    "launches": Change({}, {"host_forward": 0.0, "host_backward": 0.0, "host_micro_batch": 0.0, "host_step": 0.0}),
    "slowest of many GPUs": Change({}, {"jitter": 0.0}),
    "clock under load": Change({"sustained_scale": 1.0}, {}),
}
"""Name -> what replaces it: half of the peak for all GEMMs and attention instead of tables; elsewhere nothing takes time."""


def errors_without(rows: Sequence[Row]) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Mean absolute error of the step time by set, in percent: with everything, and by what is switched off."""
    return _errors(rows, UNCHANGED), {f"without {name}": _errors(rows, change) for name, change in ABLATIONS.items()}


def _errors(rows: Sequence[Row], change: Change) -> dict[str, float]:
    errors: dict[str, list[float]] = {}
    for run in run_rows(rows, change):
        if run.timed:
            errors.setdefault(run.row.text("set"), []).append(abs(run.error))
    return {name: sum(of_set) / len(of_set) for name, of_set in sorted(errors.items())}


def ablation_table(base: Mapping[str, float], without: Mapping[str, Mapping[str, float]]) -> str:
    """Mean absolute error by set: with everything, then without each piece."""
    lines = [
        "| " + " | ".join((name, *(f"{errors[name]:.1f}" for errors in (base, *without.values())))) + " |" for name in base
    ]
    return "\n".join(["| " + " | ".join(("set", "all", *without)) + " |", "|---|--:|" + "--:|" * len(without), *lines])
