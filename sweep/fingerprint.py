"""The fingerprint of a sweep's inputs, file by file and number by number: by it, two results can name what changed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim_core import HARDWARE_KEYS, Hardware, Workload, input_paths, is_preset, model_names, source_hashes, summarize
from sweep.spec import SweepSpec


def fingerprint_of(
    spec: SweepSpec, base: Path, workload: Workload, variants: Sequence[Hardware], measured_on: Hardware | None
) -> dict[str, Any]:
    """The fingerprint, as plain data under these keys; results store it, so the keys stay.

    `files`: by role, each with path (as given), sha256 and bytes (of a folder: over all its traces). `hardware` and
    `measured_on`: by name, every number in SI units that is not an axis. `workload`: totals of what was read. `model`: a hash
    per source file. Raises OSError if a file cannot be read.
    """
    axes = {name.strip().removeprefix("hardware.") for key in spec.axes for name in key.split(",")}
    hardware = {variant.name: _numbers(variant, axes) for variant in variants}
    return {
        "files": {what: _file(base, given) for what, given in _files(spec, base).items()},
        "hardware": hardware,
        "measured_on": {measured_on.name: _numbers(measured_on, set())} if measured_on else {},
        "workload": _totals(workload),
        "model": source_hashes(),
    }


def _files(spec: SweepSpec, base: Path) -> dict[str, str]:
    """The files that a spec names, by role."""
    given = spec.workload
    files = {} if given.path is None else {"workload": given.path}
    preset = (given.model or {}).get("preset")
    if isinstance(preset, str) and preset not in model_names():
        role = "model" if files else "workload"
        files[role] = f"{preset}/config.json" if (base / preset).is_dir() else preset
    named = [spec.hardware.get("preset"), spec.workload.measured_on]
    for key, values in spec.axes.items():
        names = key.split(",")
        if "hardware" in names:
            named += [row[names.index("hardware")] if len(names) > 1 else row for row in values]
    files |= {f"hardware {name}": str(name) for name in named if name is not None and not is_preset(str(name))}
    return files


def _file(base: Path, given: str) -> dict[str, Any]:
    contents = [Path(name).read_bytes() for name in input_paths(str(base / given))]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"path": given, "sha256": whole, "bytes": sum(map(len, contents))}


def _numbers(hardware: Hardware, without: set[str]) -> dict[str, float | str]:
    """The numbers, the device whose measured kernels are used, and a hash of those that a user measured."""
    numbers: dict[str, float | str] = {key: hardware.value(key) for key in HARDWARE_KEYS if key not in without}
    numbers |= {"kernels.tables": hardware.kernels.tables}
    return numbers | ({"surface": hardware.surface.digest} if hardware.surface else {})


def _totals(workload: Workload) -> dict[str, float]:
    """Totals of a workload: layers, compute of a micro-batch and of a step, parameters, traffic of each group."""
    found = summarize(workload)
    totals = {
        "layers": float(workload.layers),
        "forward_s": found.forward_s,
        "backward_s": found.backward_s,
        "step_compute_s": found.step_compute_s,
    }
    counts = {
        "parameters_per_rank": found.parameters_per_rank,
        "expert_parameters_per_rank": found.expert_parameters_per_rank,
    }
    totals |= {name: count for name, count in counts.items() if count is not None}
    traffic: dict[str, float] = defaultdict(float)
    for row in found.traffic:
        traffic[f"{row.group} {row.collective} {'a step' if row.per_step else 'a micro-batch'}, bytes"] += row.bytes
    return totals | dict(traffic)
