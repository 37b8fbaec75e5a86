"""What a result is made from: its identity, which changes with all that can change a row, and a fingerprint of the inputs.

By the fingerprint, file by file and number by number, two results can name what changed.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sim_core import (
    ASSUMED_STACK,
    HARDWARE_KEYS,
    Hardware,
    HardwareTable,
    Workload,
    input_paths,
    is_preset,
    measured_of,
    model_names,
    read_stack,
    summarize,
)
from sim_core.compiling import source_hashes
from sim_core.documents import Fields
from sim_core.places import read_input
from sweep.sources import Code
from sweep.spec.space import Space
from sweep.spec.spec import SweepSpec
from sweep.spec.stacks import stated_stack
from sweep.spec.values import STACK_AXIS

_BY_CONTENT = ("hardware", STACK_AXIS)
"""Axes whose values may be paths: their contents count, not their names."""
_TOTALS = ("forward_s", "backward_s", "step_compute_s", "parameters_per_rank", "expert_parameters_per_rank")


def content_of(workloads: Sequence[Workload]) -> str:
    """A hash of what was read: of several stacks over those of all."""
    contents = [workload.content for workload in workloads]
    return contents[0] if len(contents) == 1 else hashlib.sha256(" ".join(contents).encode()).hexdigest()


def identity_of(spec: SweepSpec, workload: Workload, content: str, table: HardwareTable, space: Space, code: Code) -> str:
    """Hash of everything that can change a row: plans, contents of workload and hardware, constraints, code.

    Not of paths, nor of who says a number; a preset, a page or a table that the sweep does not use has no part in it.
    """
    plain, variants = spec.model_dump(mode="json"), table.variants
    counted = {key: plain[key] for key in ("where", "sample", "failures")}
    counted |= {"axes": _without_paths(plain["axes"]), "content": content, "code": code}  # their order numbers the plans
    labels = {name: values for name, values in space.labels.items() if name not in _BY_CONTENT}
    counted["codes"] = sorted(space.held.items()), sorted(labels.items())
    counted["hardware"] = [(variant.name, variant.value(f"peak_flops_{workload.dtype}")) for variant in variants]  # MFU
    if workload.modelled is None:
        page = read_stack(ASSUMED_STACK)
        counted["assumed"] = page.model_dump(mode="json", exclude={"source", "sources", "told"})
    else:  # every number counts, and what was measured of a device
        counted["numbers"] = [(variant.name, bool(variant.kernels.borrowed), _numbers(variant)) for variant in variants]
        used = {variant.kernels.tables for variant in variants} - {""}
        counted["tables"] = [(digest, _numbers(owner)) for digest, owner in map(measured_of, sorted(used))]
    if workload.recorded is not None:  # its messages are held against that hardware
        counted["recorded_on"] = _numbers(table.measured_on or variants[0])
    if spec.budget:
        counted["budget"] = [plain["budget"], [spec.budget.watts(variant) for variant in variants]]
    digest = hashlib.sha256(json.dumps(counted).encode())
    for column in table.columns:
        digest.update(column.tobytes())
    return digest.hexdigest()


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


def fingerprint_of(
    spec: SweepSpec, base: Path, workload: Workload, variants: Sequence[Hardware], measured_on: Hardware | None
) -> Fields:
    """The fingerprint, as plain data under these keys; results store it, so the keys stay.

    `files`: by role, each with path (as given), sha256 and bytes (of a folder: over all its traces). `hardware` and
    `measured_on`: by name, every number in SI units that is not an axis. `workload`: totals of what was read. `model`: a hash
    per source file. Raises OSError if a file cannot be read.
    """
    axes = {name.removeprefix("hardware.") for name in spec.named}
    return {
        "files": {role: {"path": path, **contents_at(base / path)} for role, path in _files(spec, base).items()},
        "hardware": {variant.name: _numbers(variant, axes) for variant in variants},
        "measured_on": {measured_on.name: _numbers(measured_on)} if measured_on else {},
        "workload": _totals(workload),
        "model": source_hashes(),
    }


def _files(spec: SweepSpec, base: Path) -> dict[str, str]:
    """The files that a spec names, by role."""
    files = {} if spec.workload.path is None else {"workload": spec.workload.path}
    preset = (spec.workload.model or {}).get("preset")
    if isinstance(preset, str) and preset not in model_names():
        files["model" if files else "workload"] = f"{preset}/config.json" if (base / preset).is_dir() else preset
    for stated in spec.values_of(STACK_AXIS) or [spec.workload.stack]:
        if page := stated_stack(stated).page:
            files[f"stack {page}"] = page
    named = [spec.hardware.get("preset"), spec.workload.measured_on, *spec.values_of("hardware")]
    files |= {f"hardware {name}": str(name) for name in named if name is not None and not is_preset(str(name))}
    return files


def contents_at(path: Path) -> Fields:
    """`sha256` and `bytes` of a file, or of all traces of a folder. Raises OSError, SimError if it cannot be read."""
    contents = [read_input(name) for name in input_paths(str(path))]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"sha256": whole, "bytes": sum(map(len, contents))}


def _numbers(hardware: Hardware, without: Collection[str] = ()) -> dict[str, float | str]:
    """The numbers, the device whose measured kernels are used, and a hash of those that a user measured."""
    numbers: dict[str, float | str] = {key: hardware.value(key) for key in HARDWARE_KEYS if key not in without}
    numbers |= {"kernels.tables": hardware.kernels.tables}
    return numbers | ({"surface": hardware.surface.digest} if hardware.surface else {})


def _totals(workload: Workload) -> dict[str, float]:
    """Totals of a workload: layers, compute of a micro-batch and of a step, parameters, traffic of each group."""
    summary = summarize(workload)
    totals = defaultdict(float, layers=float(workload.layers))
    totals |= {name: value for name in _TOTALS if (value := getattr(summary, name)) is not None}
    for row in summary.traffic:
        totals[f"{row.group} {row.collective} {'a step' if row.per_step else 'a micro-batch'}, bytes"] += row.bytes
    return dict(totals)
