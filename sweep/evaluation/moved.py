"""A sweep with an input moved: compute, messages or jitter that take longer, devices whose memory is no limit."""

import dataclasses

from sim_core import Hardware, HardwareTable, Plans, Workload, hardware_table, read_stack, workload_from_model
from sweep.evaluation.preparation import Sweep

Inputs = tuple[Workload, HardwareTable, Plans]
"""What is simulated."""
_NO_LIMIT = "1e24 B"


def with_slower(name: str, times: float, workload: Workload, hardware: HardwareTable, plans: Plans) -> Inputs:
    """All three with one input taking `times` as long: compute, messages in nodes (nvlink) or between them (nic), jitter."""
    if name == "compute":
        return workload, hardware, plans._replace(device_speed=plans.device_speed / times)
    if name == "jitter":
        framework = workload.arrays.framework
        arrays = workload.arrays._replace(framework=framework._replace(jitter=framework.jitter * times))
        return dataclasses.replace(workload, arrays=arrays), hardware, plans
    variants = [slower_links(variant, name, times) for variant in hardware.variants]
    return workload, hardware_table(variants, hardware.measured_on, workload.dtype), plans


def slower_links(hardware: Hardware, name: str, times: float) -> Hardware:
    """A device whose messages in nodes (nvlink) or between them (nic) take `times` as long."""
    bandwidth, latency = (f"{name}_{number}" for number in ("bandwidth", "latency"))
    changed = {
        bandwidth: f"{hardware.value(bandwidth) / times!r} B/s",
        latency: f"{hardware.value(latency) * times!r} s",
    }
    return hardware.with_values(changed)


def with_stack(sweep: Sweep, stack: str) -> Sweep:
    """The same sweep of a model whose job another stack runs."""
    own = sweep.workload.modelled
    if own is None:
        return sweep
    usual = sweep.workload.recorded_fields
    workload = workload_from_model(own.model, read_stack(stack), sequence_parallel=own.sequence_parallel, usual=usual)
    return dataclasses.replace(sweep, workload=workload, named=(stack,))


def boundless(sweep: Sweep) -> Sweep:
    """The same sweep on devices with all the memory that a plan may want."""
    variants = [variant.with_values({"memory": _NO_LIMIT}) for variant in sweep.hardware.variants]
    return dataclasses.replace(sweep, hardware=hardware_table(variants, sweep.hardware.measured_on, sweep.workload.dtype))
