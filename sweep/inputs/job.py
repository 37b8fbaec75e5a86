"""The job of a log or a launch file that a spec can start from: what is given in place of what the file tells."""

import math
from collections.abc import Sequence
from dataclasses import replace

from sim_core import Fields, SpecError, Values
from sweep.frameworks.stacks import WITHOUT_PAGE
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.inputs.registry import LAUNCH, LOG, recognised
from sweep.inputs.told import Job

NEEDED = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "global_batch")
"""Fields of a plan without which there is no job to start from."""
GPUS = "GPUs"
OF_MODEL = ("vocabulary", "sequence")
"""What may be given that belongs to the model."""


def job_of(path: str, *, given: Values | None = None, model: Values | None = None) -> Job | None:
    """The job of a log or launch file with facts `given` by name (fields of plans, `sequence`, `vocabulary`), or with another
    `model`; None for files of other kinds.

    Raises SpecError that says what is missing for a spec to start from it, and how to give it; OSError.
    """
    row, given = recognised(path), given or {}
    if row is None or row.kind not in (LOG, LAUNCH):
        return None
    job = told_job(path)
    if job.refused and not {"tp", "pp"} <= set(given):
        raise SpecError(f"{path}: its plan is not known: {job.refused}; give it: --set tp=... --set pp=...")
    numbers = dict(job.model if model is None else model)
    if numbers:
        sequence = {"sequence": job.plan["sequence"]} if job.plan.get("sequence") else {}
        numbers |= sequence | {name: given[name] for name in OF_MODEL if name in given}
    plan = _plan(job.plan, given, experts="experts" in numbers)
    if absent := [name for name in NEEDED if plan.get(name) is None]:
        follows = plan.get("micro_batch") and plan.get("ga") and plan.get("all_gpus") is None  # the batch, from the GPUs
        asked = [GPUS if name == "global_batch" and follows else name for name in absent]
        raise SpecError(f"{path}: not told: {', '.join(asked)}; give {_sets(asked)}")
    if not {"layers", "hidden", "heads"} <= set(numbers):
        why = next((f" ({note})" for note in job.notes if note.startswith("model: ")), "")
        raise SpecError(f"{path}: the model is not told{why}; give --model NAME (`sweep model` lists them)")
    if absent := [name for name in OF_MODEL if not numbers.get(name)]:
        raise SpecError(f"{path}: not told: {', '.join(absent)}; give {_sets(absent)}")
    if not job.stack and job.framework not in WITHOUT_PAGE:
        raise SpecError(f"{path}: no stack simulates {job.framework or 'this framework'}")
    return replace(job, plan=plan, model=numbers)


def told_job(path: str) -> Job:
    """The job as a log tells it, or a launch file, whole or not. Raises SpecError, OSError."""
    row = recognised(path)
    return read_log(path) if row and row.kind == LOG else read_launch(path)


def _plan(plan: Values, given: Values, *, experts: bool) -> Fields:
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


def _sets(names: Sequence[str]) -> str:
    return " ".join("--gpus ..." if name == GPUS else f"--set {name}=..." for name in names)
