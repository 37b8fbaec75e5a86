"""From a spec to a sweep: read the files it names, check whatever can be checked before the run, compute the identity.

The provenance beside it holds a fingerprint of the inputs, file by file and number by number: by it, two results can name
what changed.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sim_core import (
    HARDWARE_KEYS,
    Hardware,
    HardwareTable,
    Ints,
    SpecError,
    Workload,
    hardware_table,
    input_paths,
    is_preset,
    memory_basis,
    model_names,
    one_line,
    plausibility,
    read_hardware,
    short,
    start_of,
    summarize,
)
from sim_core.compiling import source_hash, source_hashes
from sweep.columns import describe_rows, measures_of, result_column, result_schema
from sweep.conditions import check_constraints
from sweep.sources import row_code
from sweep.spec.budget import Budget
from sweep.spec.failures import Failures, checkpoint_bytes
from sweep.spec.space import Space, build_space
from sweep.spec.spec import FIELDS, STACK_AXIS, SweepSpec
from sweep.spec.stragglers import Stragglers
from sweep.spec.workloads import by_stack, page_of, unmet, workload_of


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Everything a worker needs besides a range of positions. Immutable and picklable."""

    workload: Workload  # of an axis over stacks that of its first
    hardware: HardwareTable
    space: Space
    where: tuple[str, ...]
    identity: str
    flops_per_token: float | None = None  # of the model, None if unknown
    peak_flops: tuple[float, ...] = ()  # of each hardware variant, in the precision of the computation
    budget: Budget | None = None
    failures: Failures | None = None
    checkpoint_bytes: float | None = None  # of the whole model, None if unknown
    stragglers: Stragglers | None = None
    others: tuple[Workload, ...] = ()  # the same model with the further stacks of an axis

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """That of each stack of an axis; one without such an axis."""
        return (self.workload, *self.others)

    def of_stack(self, code: int) -> "Sweep":
        """The same sweep whose plans all have one stack of the axis: only for those that have it."""
        return replace(self, workload=self.workloads[code], others=())

    def stacks_of(self, numbers: Ints) -> Ints:
        """The stack of each plan, by its place in `workloads`."""
        return self.space.decode(numbers)[STACK_AXIS] if self.others else np.zeros(len(numbers), np.int64)

    def of_plan(self, number: int) -> "Sweep":
        """The same sweep with the workload of one plan."""
        return self.of_stack(int(self.stacks_of(np.array([number], np.int64))[0]))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sweep with its warnings, notes and provenance for the user."""

    sweep: Sweep
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    provenance: dict[str, Any]

    def without_sample(self) -> "Prepared":
        """The same sweep over every plan of the space, so that positions are plan numbers."""
        space = replace(self.sweep.space, sample=None)
        return replace(self, sweep=replace(self.sweep, space=space))


def prepare(spec: SweepSpec, base: Path) -> Prepared:
    """Read the files that the spec names, relative to `base`, and build the sweep. Raises SimError, OSError."""
    stacks = stack_values(spec)
    read = [workload_of(section, base, _device(spec)) for section in by_stack(spec.workload, stacks)]
    workloads, warnings = [workload for workload, _ in read], dict.fromkeys(line for _, lines in read for line in lines)
    workload = workloads[0]
    without_page = [name for stated in stacks or [spec.workload.stack] if (name := unmet(stated))]
    measured_on = read_hardware(spec.workload.measured_on, base) if spec.workload.measured_on else None
    space, variants = build_space(spec, workload, base)
    table = hardware_table(variants, measured_on, workload.dtype)
    saved = checkpoint_bytes(workload) if spec.failures and not {"layers", "experts"} & space.named else None
    start, near = _start(workload, table)
    notes = [one_line(note) for note in (*_notes(spec, workloads, space, variants, measured_on, saved), *near)]
    notes += [
        f"stack {name}: it has no page, so intervals are wide (`sweep calibrate stack` makes one)" for name in without_page
    ]
    facts = _plausibility(workload, variants, space)
    content = _content(workloads)
    identity = _identity(spec, workload, content, variants, table, space)
    sweep = Sweep(
        workload=workload,
        hardware=table,
        space=space,
        where=spec.where,
        identity=identity,
        flops_per_token=facts["flops_per_token"],
        peak_flops=tuple(variant.value(f"peak_flops_{workload.dtype}") for variant in variants),
        budget=spec.budget,
        failures=spec.failures,
        checkpoint_bytes=saved,
        stragglers=spec.stragglers,
        others=tuple(workloads[1:]),
    )
    check_constraints(sweep.where, describe_rows(space, np.zeros(1, np.int64))[0])
    _check_ranking(spec, sweep)
    provenance = {
        "sweep": identity,
        "version": version("training-plan-sweep"),
        "name": spec.name,
        "spec": json.loads(spec.model_dump_json()),
        "workload": content,
        "model": source_hash(),
        "code": row_code(),
        "inputs": fingerprint_of(spec, base, workload, variants, measured_on),
        "plans": space.size,
        "rows": space.count,
        "hardware": [variant.model_dump() for variant in variants[:64]],
        "notes": notes,
        "start": start,
        "unmet": without_page,
        "held": list(space.defaults),
        "checks": [check.brief() for check in workload.checks if not check.kept],
        "plausibility": facts,
    }
    return Prepared(sweep=sweep, warnings=tuple(map(one_line, warnings)), notes=tuple(notes), provenance=provenance)


def _device(spec: SweepSpec) -> str:
    """The name of the hardware, of the first where there are several; empty where it has none."""
    axis = spec.axes.get("hardware") or [""]
    return str(spec.hardware.get("preset", axis[0] if isinstance(axis, list | tuple) else axis))


def _notes(
    spec: SweepSpec,
    workloads: Sequence[Workload],
    space: Space,
    variants: list[Hardware],
    measured_on: Hardware | None,
    saved: float | None,
) -> list[str]:
    """What a user should know of a sweep: what is assumed, taken as default, or unknown; `saved`: bytes of a checkpoint."""
    workload = workloads[0]
    notes = list(dict.fromkeys(note for each in workloads for note in (*each.notes, f"memory: {memory_basis(each)}")))
    if measured_on is None and not workload.modelled:
        notes.append("compute times are as in the workload on every device (workload.measured_on is not set)")
    if measured_on is None and workload.recorded is not None:
        notes.append(f"messages are taken as recorded on {variants[0].name}, the first hardware (set workload.measured_on)")
    if spec.sample and spec.sample.n > space.size:
        notes.append(f"sample.n: {spec.sample.n} is more than the space holds; all {space.size} plans are taken")
    changed = {key: value for key, value in spec.hardware.items() if key in HARDWARE_KEYS}
    if changed:
        notes.append("hardware: the preset with " + ", ".join(f"{key} {value}" for key, value in changed.items()))
    notes += _not_given(variants)
    notes += _borrowed(variants) if workload.modelled else []
    notes += _of_racks(spec, variants)
    notes += dict.fromkeys(_of_moves(workload, space))
    if workload.sequence is None:
        notes.append("tokens_per_s is unknown (set workload.sequence)")
    if workload.records:
        notes.append("records: " + ", ".join(f"{name} {value}" for name, value in workload.records.items()))
    if spec.budget:
        notes.append(spec.budget.note(variants))
    if spec.failures:
        notes.append(spec.failures.note(saved))
    if spec.stragglers:
        notes.append(spec.stragglers.note())
    return notes


SMALL_NODE: Final = 16
"""GPUs of the largest server; a larger domain of NVLink is a rack."""


def _of_racks(spec: SweepSpec, variants: list[Hardware]) -> list[str]:
    """Racks of NVLink whose GPUs groups of a power of two do not fill, so that some lie across two (docs/network.md)."""
    stated = spec.axes.get("all_gpus", [spec.fixed.get("all_gpus")])
    notes = []
    for variant in {variant.name: variant for variant in variants}.values():
        node, is_torus = int(variant.value("gpus_per_node")), variant.value("link_axes") > 1
        larger = any(size is None or size > node for size in stated)
        if larger and not is_torus and node & (node - 1) and node > SMALL_NODE:
            filled = 2 ** (node.bit_length() - 1)
            own = f"{{preset: {variant.name}, gpus_per_node: {filled}, nics_per_node: {filled}}}"
            notes.append(
                f"hardware {variant.name}: {node} GPUs are a node, so groups of a power of two may lie across two racks; "
                f"jobs that use {filled} of each say hardware: {own}"
            )
    return notes


FAR = 0.03
"""Error at the recorded plan above which there is a warning."""


def _start(workload: Workload, table: HardwareTable) -> tuple[dict[str, Any] | None, list[str]]:
    """How near the simulated step at the recorded plan is to the recorded one, as data and as a note."""
    start = start_of(workload, table)
    if start is None:
        return None, []
    data: dict[str, Any] = {"files": workload.files, "recorded_s": start.recorded_s}
    if start.reason:
        return data | {"reason": start.reason}, [f"recorded plan: {start.reason}, not compared"]
    data |= {name: getattr(start, name) for name in ("simulated_s", "compared_s", "error")}
    own = "" if start.compared_s == start.simulated_s else f"; of it the stages with a trace {short(start.compared_s, 's')}"
    both = f"simulated {short(start.simulated_s, 's')}{own}, recorded {short(start.recorded_s, 's')} ({start.error:+.1%})"
    warning = "warning: " if abs(start.error) > FAR else ""
    return data, [f"{warning}recorded plan: {both}"]


def _plausibility(workload: Workload, variants: list[Hardware], space: Space) -> dict[str, Any]:
    """What makes results plausible or not, as plain data: work of a token, peak of each hardware, doubts."""
    held_against = plausibility(workload)
    peak = f"peak_flops_{workload.dtype}"
    missing = list(held_against.missing)
    if "layers" in space.named:
        missing.append("the model of each number of layers (layers is set)")
    return {
        "flops_per_token": None if missing else held_against.flops_per_token,
        "peak_flops": {variant.name: variant.value(peak) for variant in variants},
        "approximate": held_against.approximate,
        "dtype": workload.dtype,
        "narrow": _narrow(workload.dtype, variants, space),
        "stated": held_against.stated,
        "missing": missing,
        "doubts": list(held_against.doubts),
    }


def _narrow(dtype: str, variants: list[Hardware], space: Space) -> float:
    """How much faster the narrowest precision of the plans may be than `dtype`, by the peaks; 0 without such plans."""
    if "precision" not in space.named:
        return 0.0
    named = {FIELDS["precision"].words[code] for code in space.codes("precision").tolist()}
    bits = "fp4" if "nvfp4" in named else "fp8" if named - {"bf16", "fp16"} else dtype
    return max(variant.value(f"peak_flops_{bits}") / variant.value(f"peak_flops_{dtype}") for variant in variants)


def _of_moves(workload: Workload, space: Space) -> Iterator[str]:
    """What is assumed of plans that differ from the recorded one, by the fields that the spec sets."""
    own = {**workload.base._asdict(), "sequence": workload.sequence, "experts": workload.experts}
    for name, text in () if workload.modelled else workload.moving_notes:
        if set(space.codes(name).tolist()) - {own[name], 0}:
            yield text


def _not_given(variants: list[Hardware]) -> list[str]:
    """A note for each hardware file of an earlier version, which does not have all numbers."""
    notes = []
    for variant in {variant.name: variant for variant in variants}.values():
        taken = [f"{key} {short(value, HARDWARE_KEYS[key][1])}" for key, value in variant.not_given().items()]
        if taken:
            notes.append(f"hardware {variant.name}: not given, taken as {', '.join(taken)}")
    return notes


def _borrowed(variants: list[Hardware]) -> list[str]:
    """A note for each device that takes the measured kernels of another one."""
    known = {variant.name: variant.kernels for variant in variants if variant.kernels.tables and variant.kernels.borrowed}
    return [f"kernels of {name}: borrowed of {one.tables} ({one.borrowed}); none is measured" for name, one in known.items()]


def _content(workloads: Sequence[Workload]) -> str:
    """A hash of what was read: of several stacks over those of all."""
    contents = [workload.content for workload in workloads]
    return contents[0] if len(contents) == 1 else hashlib.sha256(" ".join(contents).encode()).hexdigest()


def _identity(
    spec: SweepSpec, workload: Workload, content: str, variants: list[Hardware], table: HardwareTable, space: Space
) -> str:
    """Hash of everything that can change a row: plans, contents of workload and hardware, constraints, code; not paths."""
    digest = hashlib.sha256()
    plain = spec.model_dump(mode="json")
    chosen = {"axes": _without_paths(plain["axes"]), **{key: plain[key] for key in ("where", "sample")}}
    digest.update(json.dumps(chosen).encode())
    labels = {name: values for name, values in space.labels.items() if name not in _BY_CONTENT}
    digest.update(json.dumps([sorted(space.held.items()), sorted(labels.items())]).encode())
    digest.update(json.dumps([variant.name for variant in variants]).encode())
    digest.update(json.dumps([variant.value(f"peak_flops_{workload.dtype}") for variant in variants]).encode())  # MFU
    if workload.modelled is not None:  # every number counts, and the tables
        digest.update(json.dumps([variant.model_dump(mode="json") for variant in variants]).encode())
    for column in table.columns:
        digest.update(column.tobytes())
    if workload.recorded is not None:  # its messages are held against that hardware
        digest.update((table.measured_on or variants[0]).model_dump_json().encode())
    if spec.budget:
        digest.update(f"{spec.budget.model_dump_json()} {[spec.budget.watts(variant) for variant in variants]}".encode())
    if spec.failures:
        digest.update(spec.failures.model_dump_json().encode())
    if spec.stragglers:
        digest.update(f"stragglers {spec.stragglers.model_dump_json()}".encode())
    digest.update(f"{content} {json.dumps(row_code())}".encode())
    return digest.hexdigest()


_BY_CONTENT: Final = ("hardware", STACK_AXIS)
"""Axes whose values may be paths: their contents count, not their names."""


def _without_paths(axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The axes with numbers in place of the names and paths of hardware and stacks, whose contents count in this order."""
    without = dict(axes)
    for key, values in axes.items():
        names = key.split(",")
        for name in set(names) & set(_BY_CONTENT):
            rows = [list(row) for row in without[key]] if len(names) > 1 else [[value] for value in values]
            at = names.index(name)
            order = list(dict.fromkeys(repr(row[at]) for row in rows))
            without[key] = [[*row[:at], order.index(repr(row[at])), *row[at + 1 :]] for row in rows]
    return without


def _check_ranking(spec: SweepSpec, sweep: Sweep) -> None:
    """Raise SpecError if `objectives` or `per` name a column that the result will not have."""
    schema = result_schema(sweep.space)
    for key, names in (("objectives", [objective.column for objective in spec.objectives]), ("per", spec.per)):
        for name in names:
            try:
                column = result_column(name, schema.names)
            except SpecError as error:
                raise SpecError(f"{key}: {error}") from None
            if key == "objectives" and pa.types.is_dictionary(schema.field(column).type):
                raise SpecError(f"{key}: found {column}, which holds words, expected a column of numbers, such as step_time_s")
            if lacking := _lacking(column, sweep):
                raise SpecError(f"{key}: {column} needs {lacking}")


def _lacking(column: str, sweep: Sweep) -> str:
    """What a spec has to state before a column has values; empty if nothing is missing."""
    if column in ("tokens_per_s", *measures_of("cost", "goodput")) and sweep.workload.sequence is None:
        return "workload.sequence, the tokens per sample"
    if column in measures_of("goodput") and sweep.failures is None:
        return "failures (failures: {} takes Llama 3's rate)"
    if column in measures_of("goodput") and sweep.checkpoint_bytes is None:
        return "the parameters of the model"
    if column in measures_of("tail") and sweep.stragglers is None:
        return "stragglers, such as stragglers: {slow_share: 0.005, slowness: 1.1}"
    if column not in measures_of("cost"):
        return ""
    if sweep.budget is None:
        return "a budget, such as budget: {tokens: 1T, usd_per_gpu_hour: 2.5}"
    return sweep.budget.unknown(column, list(sweep.hardware.variants))


def fingerprint_of(
    spec: SweepSpec, base: Path, workload: Workload, variants: Sequence[Hardware], measured_on: Hardware | None
) -> dict[str, Any]:
    """The fingerprint, as plain data under these keys; results store it, so the keys stay.

    `files`: by role, each with path (as given), sha256 and bytes (of a folder: over all its traces). `hardware` and
    `measured_on`: by name, every number in SI units that is not an axis. `workload`: totals of what was read. `model`: a hash
    per source file. Raises OSError if a file cannot be read.
    """
    axes = {name.strip().removeprefix("hardware.") for key in spec.axes for name in key.split(",")}
    return {
        "files": {role: {"path": path, **contents_at(base / path)} for role, path in _files(spec, base).items()},
        "hardware": {variant.name: _numbers(variant, axes) for variant in variants},
        "measured_on": {measured_on.name: _numbers(measured_on, set())} if measured_on else {},
        "workload": _totals(workload),
        "model": source_hashes(),
    }


def _files(spec: SweepSpec, base: Path) -> dict[str, str]:
    """The files that a spec names, by role."""
    files = {} if spec.workload.path is None else {"workload": spec.workload.path}
    preset = (spec.workload.model or {}).get("preset")
    if isinstance(preset, str) and preset not in model_names():
        role = "model" if files else "workload"
        files[role] = f"{preset}/config.json" if (base / preset).is_dir() else preset
    for stated in stack_values(spec) or [spec.workload.stack]:
        if page := page_of(stated):
            files[f"stack {page}"] = page
    named = [spec.hardware.get("preset"), spec.workload.measured_on]
    for key, values in spec.axes.items():
        names = key.split(",")
        if "hardware" in names:
            named += [row[names.index("hardware")] if len(names) > 1 else row for row in values]
    files |= {f"hardware {name}": str(name) for name in named if name is not None and not is_preset(str(name))}
    return files


def stack_values(spec: SweepSpec) -> list[Any]:
    """The stacks of an axis over them, in the order of their codes; empty without one."""
    for key, values in spec.axes.items():
        names = key.split(",")
        if STACK_AXIS in names:
            stated = [row[names.index(STACK_AXIS)] for row in values] if len(names) > 1 else values
            return list({repr(value): value for value in stated}.values())
    return []


def contents_at(path: Path) -> dict[str, Any]:
    """`sha256` and `bytes` of a file, or of all traces of a folder. Raises OSError, SimError if it cannot be read."""
    contents = [Path(name).read_bytes() for name in input_paths(str(path))]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"sha256": whole, "bytes": sum(map(len, contents))}


def _numbers(hardware: Hardware, without: set[str]) -> dict[str, float | str]:
    """The numbers, the device whose measured kernels are used, and a hash of those that a user measured."""
    numbers: dict[str, float | str] = {key: hardware.value(key) for key in HARDWARE_KEYS if key not in without}
    numbers |= {"kernels.tables": hardware.kernels.tables}
    return numbers | ({"surface": hardware.surface.digest} if hardware.surface else {})


def _totals(workload: Workload) -> dict[str, float]:
    """Totals of a workload: layers, compute of a micro-batch and of a step, parameters, traffic of each group."""
    summary = summarize(workload)
    names = ("forward_s", "backward_s", "step_compute_s", "parameters_per_rank", "expert_parameters_per_rank")
    totals = {"layers": float(workload.layers)}
    totals |= {name: value for name in names if (value := getattr(summary, name)) is not None}
    traffic: dict[str, float] = defaultdict(float)
    for row in summary.traffic:
        traffic[f"{row.group} {row.collective} {'a step' if row.per_step else 'a micro-batch'}, bytes"] += row.bytes
    return totals | traffic
