"""Seconds of recorded compute under another plan and on another device, for all fidelities."""

from __future__ import annotations

from sim_core.hardware.table import Device
from sim_core.jit import inner_kernel
from sim_core.planning.columns import FILE, SELECTIVE, Plan


@inner_kernel
def compute_factor(scale: float, device: Device, plan: Plan) -> float:
    """Factor from recorded compute time to that of the plan, for pieces of layers; `scale` is the factor of their rule."""
    return scale * device.compute_scale / plan.device_speed


@inner_kernel
def once_s(recorded_s: float, scale: float, device: Device, plan: Plan) -> float:
    """Seconds of compute that runs once per step; `scale` is the factor of its rule."""
    return recorded_s * scale * device.compute_scale / plan.device_speed


@inner_kernel
def rerun_share(plan: Plan, recorded: float, attention_core: bool) -> float:
    """How often the backward runs the forward of a piece again, in a layer with recompute; `recorded`: as in the file."""
    if plan.checkpointing == FILE:
        return recorded
    if plan.checkpointing == SELECTIVE:
        return 1.0 if attention_core else 0.0
    return 1.0


@inner_kernel
def rerun_s(plan: Plan, share: float, forward_s: float, recorded_s: float) -> float:
    """Compute of the forwards that `rerun_share` counts; `recorded_s`: that of the file's, moved to the plan."""
    return recorded_s if plan.checkpointing == FILE else share * forward_s
