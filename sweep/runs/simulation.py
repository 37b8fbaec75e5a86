"""Measured rows as plans, simulated: seconds of a step, memory, whether it fits; also without some of the physics."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sim_core import (
    MEMORY,
    MEMORY_ROWS,
    Fields,
    Floats,
    Hardware,
    HardwareTable,
    Model,
    Plans,
    SpecError,
    Stack,
    Values,
    Workload,
    hardware_table,
    plans,
    plausibility,
    shape_of,
    simulate,
    stack_names,
    workload_from_model,
)
from sweep.runs.table import COMPOSED, FAILED, FIRST_STAGE, NOT_MODELLED, OK, STATED, NotSimulated, Row
from sweep.uncertainty.highest import kind_of

PLAN_REASON = "plan: "
"""What the reason of a plan that cannot run begins with."""
READINGS = {"allocated": (1.0, 0.0), "reserved": (1.0, 2**29), "nvidia-smi": (1.11, 2**33)}
"""What a kind of memory reading shows: a factor on the bytes of tensors, and further bytes. What the allocator reserves is
fragmented as the stack says; nvidia-smi also counts the context, communicators and buffers; its numbers were chosen on the runs
of tr11's document. Other kinds are taken to show what the stack reserves."""
ALLOCATED = tuple(row.name for row in MEMORY_ROWS if row.of == "tensors")
"""Bytes of tensors: what the framework reports as allocated."""
LONGEST_REASON = 100
BOUNDLESS = "1e6 GB"
"""Memory of the device while a step is timed: whether the plan fits is judged apart."""


class Change(NamedTuple):
    """Numbers of hardware and stack to replace in every run: an ablation."""

    hardware: Fields
    stack: Fields
    tables: bool = True  # measured kernels
    base: Stack | None = None  # in place of the stack of each row's framework
    device: Hardware | None = None  # in place of the hardware of each row


UNCHANGED = Change({}, {})


class Run(NamedTuple):
    """A measured run and what was simulated; `reason` says why if it was not."""

    row: Row
    step_s: float = 0.0
    peak_bytes: float = 0.0  # of tensors
    device_bytes: float = 0.0  # of tensors, fragmentation, and what the stack reserves
    memory_known: bool = True  # not of a run that keeps single tensors of its layers, or some on the host
    fits: bool = True
    reason: str = ""
    fragmentation: float = 1.0  # of the stack's allocator
    network: float = 0.0  # Gb/s of all NICs of a node, in one direction
    network_stated: bool = False  # by the row; else it is that of the preset
    unmet: str = ""  # a framework without a page, a device without a preset, ..., and what it is simulated with
    launch_s: float = 0.0  # of the step, the device waits for the host
    measured_share: float = 1.0  # of the kernels' time, from measured tables
    ideal_s: float = 0.0  # its model FLOPs at the peak of its GPUs in bf16; 0 if unknown
    kind: str = ""  # device, class of model, bits (`sweep.uncertainty.highest`)

    @property
    def measured_s(self) -> float:
        """Seconds of its step; 0 for a run that did not fit."""
        return self.row.number("step_time_s") or 0.0

    @property
    def timed(self) -> bool:
        """Simulated, and there is a time to hold it against."""
        return not self.reason and self.measured_s > 0

    @property
    def scored(self) -> bool:
        """The same, and its publisher's figures can be trusted."""
        return self.timed and self.row.quality == OK

    @property
    def error(self) -> float:
        """Percent of the measured time; positive: predicted too slow."""
        return (self.step_s / self.measured_s - 1) * 100

    @property
    def memory_error(self) -> float | None:
        """Percent of the memory that was read off, which is that of tensors, of the allocator, or of the device."""
        measured = self.row.number("peak_memory_gib")
        if self.reason or measured is None or not self.memory_known:
            return None
        kind = self.row.text("memory_kind").removesuffix(FIRST_STAGE)
        factor, more = READINGS.get(kind, (0.0, self.device_bytes))
        allocated = self.peak_bytes * (self.fragmentation if kind == "reserved" else 1.0)
        return ((allocated * factor + more) / 2**30 / measured - 1) * 100


class _Job(NamedTuple):
    """A row as what is simulated."""

    row: Row
    model: Model
    stack: Stack
    sequence_parallel: bool
    workload: Workload
    plan: Plans
    device: Hardware


Numbered = list[tuple[int, _Job]]


def _alike(numbered: Iterable[tuple[int, _Job]]) -> Iterable[Numbered]:
    """Jobs of the same model, stack and device: they are simulated together."""
    together = defaultdict(list)
    for number, job in numbered:
        described = (each.model_dump_json() for each in (job.model, job.stack, job.device))
        together[*described, str(job.sequence_parallel)].append((number, job))
    return together.values()


def run_rows(rows: Sequence[Row], change: Change = UNCHANGED) -> list[Run]:
    """Simulate each row; rows of the same model, stack and device together."""
    runs = {}
    numbered = []
    for number, row in enumerate(rows):
        try:
            numbered.append((number, _job(row, change)))
        except (NotSimulated, SpecError) as error:
            runs[number] = _not_simulated(row, error)
    for alike in _alike(numbered):
        runs |= zip((number for number, _ in alike), _simulated([job for _, job in alike], change), strict=True)
    return [runs[number] for number in range(len(rows))]


def _job(row: Row, change: Change) -> _Job:
    """What was trained, how and on what. Raises NotSimulated, SpecError."""
    if row.quality == COMPOSED:
        raise NotSimulated(f"quality {row.quality}")
    if row.quality != FAILED and not row.out_of_memory and row.number("step_time_s") is None:
        raise NotSimulated("time not stated")
    if row.text("reason") and change.device is None:
        raise NotSimulated(row.text("reason"))
    device = change.device or row.hardware
    model, stack, sequence_parallel = _trained(row, change)
    workload = workload_from_model(model, stack, sequence_parallel=sequence_parallel)
    return _Job(row, model, stack, sequence_parallel, workload, plans(workload, **row.plan), device)


def _trained(row: Row, change: Change) -> tuple[Model, Stack, bool]:
    """The model of a row, its stack, and whether sequence parallelism is on."""
    stack, stated = row.stack(change.base), row.sequence_parallel
    sequence_parallel = stack.flash_attention if stated is None else stated  # recipes with TE have it on
    return row.model, stack.model_copy(update=change.stack), sequence_parallel


def _joined(jobs: Sequence[_Job]) -> Plans:
    """Their plans one after another."""
    columns = {name: [getattr(job.plan, name) for job in jobs] for name in Plans._fields}
    layers = columns.pop("virtual_layers")
    width = max(part.shape[1] for part in layers)
    lists = [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=-1) for part in layers]
    return Plans(**{name: np.concatenate(column) for name, column in columns.items()}, virtual_layers=np.concatenate(lists))


def _not_simulated(row: Row, why: object) -> Run:
    return Run(row, reason=str(why)[:LONGEST_REASON])


def _simulated(jobs: Sequence[_Job], change: Change) -> list[Run]:
    """The runs of jobs of one model and stack on a device; each alone where one of them cannot be costed."""
    try:
        return _together(jobs, change)
    except (NotSimulated, SpecError) as error:
        if len(jobs) == 1:
            return [_not_simulated(jobs[0].row, error)]
        return [run for job in jobs for run in _simulated([job], change)]


def _together(jobs: Sequence[_Job], change: Change) -> list[Run]:
    _, model, stack, _, workload, _, hardware = jobs[0]
    grid = _joined(jobs)
    table = hardware_table([_without(hardware, change)], None)
    measures = simulate(workload, table, grid).named()
    network, stated = network_of(hardware)
    tokens = grid.all_gpus // (grid.tp * grid.cp * grid.pp) * grid.micro_batch * grid.ga * (workload.sequence or 0)
    ideal_s = tokens / grid.all_gpus * (plausibility(workload).flops_per_token or 0.0) / hardware.value("peak_flops_bf16")
    runs = []
    for number, job in enumerate(jobs):
        row = job.row
        if measures["reason"][number]:
            runs.append(_not_simulated(row, PLAN_REASON + measures["reason"][number]))
            continue
        tensors = float(sum(measures[name][number] for name in ALLOCATED))
        if row.text("memory_kind").endswith(FIRST_STAGE) and row.size("pp") > 1:
            memory = shape_of(workload, table, job.plan).memory[:, 0]
            tensors = float(sum(memory[MEMORY.index(name)] for name in ALLOCATED))
        on_device, memory_known = float(measures["peak_memory_bytes"][number]), row.text("memory_kind") != NOT_MODELLED
        runs.append(
            Run(
                row=row,
                step_s=float(measures["step_time_s"][number]),
                peak_bytes=tensors,
                device_bytes=on_device,
                fits=on_device <= hardware.value("memory") or not memory_known,
                memory_known=memory_known,
                fragmentation=stack.fragmentation,
                network=network,
                network_stated=stated,
                unmet=(stack.name if not change.base and stack.name not in stack_names() else "") or row.text("assumed"),
                launch_s=float(measures["launch_s"][number]),
                measured_share=float(measures["measured_share"][number]),
                ideal_s=float(ideal_s[number]),
                kind=kind_of(hardware.name, experts=model.experts is not None, precision=row.plan["precision"]),
            )
        )
    return runs


def seconds_on(row: Row, variants: Sequence[Hardware]) -> Floats:
    """Seconds of the row's step on each hardware, whether or not it fits. Raises NotSimulated, SpecError."""
    model, stack, sequence_parallel = _trained(row, UNCHANGED)
    workload = workload_from_model(model, stack, sequence_parallel=sequence_parallel)
    grid = plans(workload, **row.plan | {"hardware": list(range(len(variants)))})
    measures = simulate(workload, hardware_table([_without(hardware, UNCHANGED) for hardware in variants], None), grid).named()
    for reason in measures["reason"]:
        if reason:
            raise NotSimulated(PLAN_REASON + reason)
    return np.asarray(measures["step_time_s"])


def seconds_by_stack(rows: Sequence[Row], base: Stack | None, device: Hardware | None) -> "tuple[list[Run], StepsByStack]":
    """The runs of rows, and of those that can be simulated their steps under other facts.

    `base`, `device`: in place of the stacks and hardware that the rows state.
    """
    change = UNCHANGED._replace(base=base, device=device)
    runs = run_rows(rows, change)
    return runs, StepsByStack([_job(run.row, change) for run in runs if run.timed])


class StepsByStack:
    """Steps of measured runs under other facts of their stacks: rows and devices are read once, not for each stack."""

    def __init__(self, jobs: Sequence[_Job]) -> None:
        self._count = len(jobs)
        self._groups: list[tuple[list[int], _Job, Plans, HardwareTable]] = []
        for alike in _alike(enumerate(jobs)):
            first, joined = alike[0][1], _joined([job for _, job in alike])
            table = hardware_table([_without(first.device, UNCHANGED)], None)
            self._groups.append(([number for number, _ in alike], first, joined, table))

    def stacks(self) -> list[Stack]:
        """The stack of each group of runs."""
        return [first.stack for _, first, _, _ in self._groups]

    def seconds(self, facts: Values) -> Floats:
        """Seconds of each run's step with these facts in SI in place of its stack's own."""
        steps = np.empty(self._count)
        for numbers, first, grid, table in self._groups:
            stack = first.stack.model_copy(update=dict(facts))
            changed = workload_from_model(first.model, stack, sequence_parallel=first.sequence_parallel)
            steps[numbers] = simulate(changed, table, grid).named()["step_time_s"]
        return steps


def network_of(hardware: Hardware) -> tuple[float, bool]:
    """Gb/s of all NICs of a node in one direction, and whether the run's row states it (else it is the preset's)."""
    node = hardware.value("nic_bandwidth") * hardware.value("nics_per_node") * 8 / 1e9
    return node, hardware.fabric.nic_bandwidth.source.startswith(STATED)


def _without(hardware: Hardware, change: Change) -> Hardware:
    """The hardware with the numbers of a change, and memory without bound."""
    changed = hardware.with_values({"memory": BOUNDLESS, **change.hardware})
    if change.tables:
        return changed
    return changed.model_copy(update={"kernels": changed.kernels.model_copy(update={"tables": "", "borrowed": ""})})
