"""A sweep with an input moved: messages that take longer, another stack, devices whose memory is no limit."""

import dataclasses

from sim_core import Hardware, hardware_table, read_stack, workload_from_model
from sweep.evaluation.preparation import Sweep

_NO_LIMIT = "1e24 B"


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
