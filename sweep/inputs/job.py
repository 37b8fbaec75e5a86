"""A job as a log or a launch file tells it: model, plan, framework, step; what a spec around it starts from."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim_core import SpecError
from sweep.frameworks.stacks import WITHOUT_PAGE
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.inputs.registry import LAUNCH, LOG, recognised

NEEDED: Final = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch")
"""Fields of a plan without which there is no job to start from."""
GPUS: Final = "GPUs"


class Job(NamedTuple):
    """A job. `plan`: fields of plans by name, None: not told; `model`: numbers for `sim_core.parse_model`."""

    path: str
    name: str
    framework: str
    stack: str
    plan: Mapping[str, Any]
    model: Mapping[str, Any]
    step_time_s: float | None
    spread: float
    device: str
    gpus_per_node: int | None
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def job_of(path: str, *, given: Mapping[str, Any] | None = None, model: Mapping[str, Any] | None = None) -> Job | None:
    """The job of a log or launch file with facts `given` by name (fields of plans, `sequence`, `vocabulary`), or with another
    `model`; None for files of other kinds.

    Raises SpecError where the plan is not known, OSError.
    """
    row = recognised(path)
    if row is None or row.kind not in (LOG, LAUNCH):
        return None
    return _of_log(path, given or {}, model) if row.kind == LOG else _of_launch(path, given or {}, model)


def _of_log(path: str, given: Mapping[str, Any], model: Mapping[str, Any] | None) -> Job:
    log = read_log(path)
    if log.refused and not {"tp", "pp"} <= set(given):
        raise SpecError(f"{path}: its plan is not known: {log.refused}; give it: --set tp=... --set pp=...")
    numbers = _model(log.model, log.plan, given, model)
    return _checked(
        Job(
            path=path, name=_name(path), framework=log.framework, stack=log.stack,
            plan=_plan(log.plan, given, experts="experts" in numbers), model=numbers, step_time_s=log.step_time_s,
            spread=max(log.spread or 0.0, log.rounding), device=log.device, gpus_per_node=log.gpus_per_node,
            missing=log.missing, notes=log.notes,
        )
    )  # fmt: skip


def _of_launch(path: str, given: Mapping[str, Any], model: Mapping[str, Any] | None) -> Job:
    launch = read_launch(path)
    numbers = _model(launch.model, launch.plan, given, model)
    return _checked(
        Job(
            path=path, name=_name(path), framework=launch.framework, stack=launch.stack,
            plan=_plan(launch.plan, given, experts="experts" in numbers), model=numbers, step_time_s=None, spread=0.0,
            device="", gpus_per_node=None, missing=launch.missing, notes=launch.notes,
        )
    )  # fmt: skip


def _plan(plan: Mapping[str, Any], given: Mapping[str, Any], *, experts: bool) -> dict[str, Any]:
    """The plan with what is given in place of what the file tells; the batch follows where the ranks do."""
    merged = {**plan, **{name: value for name, value in given.items() if name not in OF_MODEL}}
    if merged.get("vpp") is None and merged.get("pp") == 1:
        merged["vpp"] = 1
    if merged.get("ep") is None and not experts:
        merged["ep"] = 1
    ga = merged.setdefault("ga", 1)  # None: the file leaves it to the launch
    if merged.get("global_batch") is None and isinstance(merged.get("all_gpus"), int) and merged.get("micro_batch") and ga:
        width = math.prod(merged.get(name) or 1 for name in ("tp", "pp", "cp"))
        merged["global_batch"] = merged["all_gpus"] // width * merged["micro_batch"] * ga or None
    return merged


OF_MODEL: Final = ("vocabulary", "sequence")
"""What may be given that belongs to the model."""


def _model(
    own: Mapping[str, Any], plan: Mapping[str, Any], given: Mapping[str, Any], model: Mapping[str, Any] | None
) -> dict[str, Any]:
    document = dict(own if model is None else model)
    if plan.get("sequence"):
        document["sequence"] = plan["sequence"]
    return {**document, **{name: given[name] for name in OF_MODEL if name in given}} if document else {}


def _checked(job: Job) -> Job:
    """A job that a spec can start from. Raises SpecError that says what is missing and how to give it."""
    if absent := [name for name in NEEDED if job.plan.get(name) is None]:
        asked = [GPUS if name == "global_batch" and _follows(job.plan) else name for name in absent]
        raise SpecError(f"{job.path}: not told: {', '.join(asked)}; give {_sets(asked)}")
    if not {"layers", "hidden", "heads"} <= set(job.model):
        why = next((f" ({note})" for note in job.notes if note.startswith("model: ")), "")
        raise SpecError(f"{job.path}: the model is not told{why}; give --model NAME (`sweep model` lists them)")
    if absent := [name for name in OF_MODEL if not job.model.get(name)]:
        raise SpecError(f"{job.path}: not told: {', '.join(absent)}; give {_sets(absent)}")
    if not job.stack and job.framework not in WITHOUT_PAGE:
        raise SpecError(f"{job.path}: no stack simulates {job.framework or 'this framework'}")
    return job


def _follows(plan: Mapping[str, Any]) -> bool:
    """Whether the batch is known once the GPUs are."""
    return bool(plan.get("micro_batch") and plan.get("ga")) and plan.get("all_gpus") is None


def _sets(names: Sequence[str]) -> str:
    return " ".join("--gpus ..." if name == GPUS else f"--set {name}=..." for name in names)


def _name(path: str) -> str:
    """A name for the sweep: that of the file, without the endings of logs."""
    stem = Path(path).name
    for ending in (".gz", ".log", ".out", ".txt", ".sh", ".yaml", ".yml", ".toml", ".json"):
        stem = stem.removesuffix(ending)
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-._") else "-" for c in stem).strip("-._")
    return kept[:60] or "job"
