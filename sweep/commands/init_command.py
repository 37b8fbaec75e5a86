"""`sweep init`: a commented spec to start from."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError
from typer import Argument, Option

from sim_core import (
    Model,
    SimError,
    SpecError,
    model_names,
    nearest,
    plural,
    preset_names,
    read_hardware,
    read_model,
    read_stack,
    short,
    stack_names,
)
from sim_core.documents import Fields, parse_yaml
from sim_core.limits import LARGEST, whole_number
from sweep.commands.shared import YAML, check_output, refuse_result
from sweep.evaluation.one_plan import checked_plan
from sweep.evaluation.preparation import Prepared
from sweep.frameworks.stacks import nearest_stack
from sweep.inputs.job import OF_MODEL, job_of, told_job
from sweep.inputs.launch.keys import numbers_of
from sweep.inputs.registry import explained
from sweep.inputs.told import Job
from sweep.options import readable
from sweep.reopening import prepared_spec
from sweep.runs.devices import FORMS, nearest_to, presets_of, stand_in
from sweep.runs.table import NotSimulated
from sweep.show.logs import told_screen
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console
from sweep.spec.document import SCHEMAS, told
from sweep.spec.spec import Running, SweepSpec, load_spec
from sweep.spec.values import ALIASES, FIELDS, check_value
from sweep.starting.job_starter import DEFAULTS, device_of, job_starter
from sweep.starting.starter import shown_line, starter, starter_name, suited

HARDWARE = "H100-SXM"
GPUS = 64
MEASURED = ("step_time_s", "peak_memory_gib")
"""What may be said of the job of a launch file."""
TAKEN = ("sequence", "micro_batch", "global_batch")
"""What may be said of a model or a workload file."""
UNTOLD = {"overlap_tp": "tp", "precision": "", "schedule": "pp"}
"""What a log may not tell of a plan and what is therefore taken, with the groups without which it matters nothing."""
PRECISIONS = FIELDS["precision"].words
_MISSING = re.compile(r"model: (\w+: missing;|not in this file;)")


def init_command(
    workload: Annotated[
        str,
        Argument(
            metavar="MODEL|FILE",
            help="A model by name (`sweep model`) or config.json; a launch file; a log of a run; a workload file.",
            autocompletion=model_names,
        ),
    ],
    hardware: Annotated[
        str | None,
        Option(help=f"Preset or YAML file. Default: the log's device, else {HARDWARE}.", autocompletion=preset_names),
    ] = None,
    gpus: Annotated[
        int | None, Option(min=1, max=LARGEST["all_gpus"], help=f"GPUs of the job. Default: the file's, else {GPUS}.")
    ] = None,
    sequence: Annotated[
        int | None, Option(min=1, max=LARGEST["sequence"], help="Tokens of a sequence. Default: the model's.")
    ] = None,
    micro_batch: Annotated[
        int | None, Option(min=1, max=LARGEST["micro_batch"], help="Micro-batch that a file was made with.")
    ] = None,
    stack: Annotated[
        str | None,
        Option(
            help="Software stack, a name or YAML page (`sweep stack`). Default: the job's, else the best.",
            autocompletion=stack_names,
        ),
    ] = None,
    model: Annotated[
        str | None, Option(help="The model of a log or launch file that does not tell it.", autocompletion=model_names)
    ] = None,
    sets: Annotated[
        list[str] | None,
        Option(
            "--set", help="What the file does not tell: global_batch=256, vocabulary=...; of the job that runs step_time_s=..."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="File to write. Default: NAME.yaml here, NAME-sweep.yaml beside a model of that name."),
    ] = None,
    only_told: Annotated[
        bool,
        Option("--dry-run", help="Print what a log or launch file states, on which lines, and leaves open; write nothing."),
    ] = False,
) -> None:
    """Write a commented spec for a model, a workload file or a job that runs, ready to run and to change."""
    if only_told:
        return print_sections(told_screen(told_job(workload)), own_console())
    path, notes, size = written(
        workload,
        output,
        sets,
        hardware=hardware,
        gpus=gpus,
        sequence=sequence,
        micro_batch=micro_batch,
        stack=stack,
        model=model,
    )
    console = own_console(quiet=not size)
    for note in notes:
        console.print(f"note: {note}")
    best = " --best 20" if suited(size) == "search" else ""
    console.print(f"{path}: {plural(size)}. Next: sweep {suited(size)} {path}{best}")


def written(
    workload: str,
    output: Path | None = None,
    sets: Sequence[str] | None = None,
    *,
    hardware: str | None = None,
    gpus: int | None = None,
    sequence: int | None = None,
    micro_batch: int | None = None,
    stack: str | None = None,
    model: str | None = None,
) -> tuple[Path, list[str], int]:
    """Write the spec; its file, what there is to note of it, and how many plans it has. Of `-`, standard output, 0.

    Raises SimError, OSError.
    """
    refuse_result(Path(workload), "a model or a job")
    given = {name: value for name, value in (("sequence", sequence), ("micro_batch", micro_batch)) if value is not None}
    given = dict(map(_given, sets or ())) | given
    measured: Fields = {name: given.pop(name) for name in MEASURED if name in given and Path(workload).exists()}
    job = None
    if Path(workload).exists():
        numbers = None if model is None else numbers_of(read_model(model))
        job = job_of(workload, given=given | ({"all_gpus": gpus} if gpus else {}), model=numbers)
    if job is None:
        _only_batch(workload, given | measured, model)
    name = starter_name(workload) if job is None else job.name
    path = output or Path(f"{name}.yaml")
    if output is None and path.exists() and Path(workload).exists() and path.samefile(workload):
        path = Path(f"{name}-sweep.yaml")
    check_output(path, *YAML, new=True)
    device = hardware or ("" if job is None else job.device)
    near = "" if Path(device).suffix in (".yaml", ".yml") else stand_in(device)
    if hardware and hardware not in preset_names() and (near or set(FORMS) & set(hardware.upper().split("-"))):
        with suppress(NotSimulated):  # a device as logs and tables name it, V100-SXM-32GB
            hardware = presets_of(hardware)[-1]
    readable("--hardware", read_hardware, hardware)
    readable("--stack", read_stack, stack)
    size_of_job = gpus or (job.plan.get("all_gpus") if job else None)
    taken = [f"--hardware {HARDWARE}"] * (not (hardware or (job and job.device))) + [f"--gpus {GPUS}"] * (not size_of_job)
    taken += [f"{near}, the nearest device"] * bool(near)
    if job is None:
        text = _of_model_or_file(workload, hardware or HARDWARE, size_of_job or GPUS, path.parent, given | {"stack": stack})
    else:
        job, more = _whole(replace(job, **measured, memory_kind=job.memory_kind or "as given"), stack, given)
        taken += more
        text = job_starter(job, hardware or device_of(job) or HARDWARE, size_of_job or GPUS, path.parent)
    if near:
        text = _with_numbers(text, device)
    if taken:
        text = text.replace("\n", f"\n# Taken, as not given: {', '.join(taken)}.\n", 1)
    text = f"# yaml-language-server: $schema={(SCHEMAS / 'spec.json').as_uri()}\n{text}"
    if str(path) == "-":
        sys.stdout.write(text)
        return path, [], 0
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    try:
        spec = load_spec(path)
        prepared = prepared_spec(spec, path)
    except BaseException:
        path.unlink()
        raise
    notes = [f"not given, so taken: {', '.join(taken)}"] if taken else []
    notes += _said(job, given, spec, prepared) if job else prepared.warnings
    return path, notes, prepared.sweep.space.size


def _said(job: Job, given: Fields, spec: SweepSpec, prepared: Prepared) -> Iterator[str]:
    """What is said of a job whose spec is whole: what was missing has been given. Whether its own plan can run."""
    for note in job.notes:
        if not _MISSING.match(note) and not ("checkpointing" in given and note.startswith("recompute:")):
            yield note
    fields = {**spec.fixed, **(spec.running.plan if spec.running else {})}
    why, memory = checked_plan(prepared, fields) if "all_gpus" in fields else ("", "")
    if why:
        yield f"the job's own plan, as it was read, cannot run here: {why}"
    if memory:
        told = f"; measured {short(job.peak_memory_gib * 2**30, 'B')} ({job.memory_kind})" if job.peak_memory_gib else ""
        yield f"memory of the job's own plan, simulated: {memory}{told}"


def _only_batch(source: str, given: Fields, model: str | None) -> None:
    """Raise SpecError if more is said of a model or a workload file than starter() takes."""
    if model is not None:
        raise SpecError(f"{source}: --model is for logs and launch files")
    name = next((name for name in given if name not in TAKEN), None)
    if name is None:
        return
    hint = "change it in the spec that this writes"
    if name in Model.model_fields:
        change = f"sweep model {source} --set {name}={given[name]} --yaml > mine.yaml"
        hint = f"`{change}` writes a changed model to start from" if source in model_names() else "change it in the file"
    raise SpecError(f"--set {name}: only a log or a launch file takes it; {hint}")


def _of_model_or_file(source: str, hardware: str, gpus: int, base: Path, given: Fields) -> str:
    """The spec of a model or a workload file. Raises SimError; of a file of another kind or a device it says what that is."""
    named = [name for name in preset_names() if f"{name}-".lower().startswith(f"{source}-".lower())]
    if named and not Path(source).exists():
        which = f" ({', '.join(named)})" if len(named) > 1 else ""
        raise SpecError(f"{source}: is a device{which}, not a model: `sweep init MODEL --hardware {named[-1]}`")
    try:
        return starter(source, hardware, gpus, base, **given)
    except SimError as error:
        raise explained(source, error) from None


def _given(assignment: str) -> tuple[str, Any]:
    """A fact by name: a field of a plan, or of OF_MODEL. Raises SpecError."""
    name, equals, text = assignment.partition("=")
    name = ALIASES.get(name.strip(), name.strip())
    if not equals or not name:
        raise SpecError(f"--set {assignment}: expected NAME=VALUE, such as global_batch=256")
    if name not in (known := (*FIELDS, *OF_MODEL, *MEASURED)):
        if name in Model.model_fields:
            change = f"`sweep model MODEL --set {assignment} --yaml > mine.yaml` writes a changed model to start from"
            raise SpecError(f"--set {assignment}: is a number of the model; {change}")
        raise SpecError(f"--set {assignment}: unknown name, {nearest(name, known)}")
    try:
        value, _ = parse_yaml(text, "--set")
    except SpecError:
        raise SpecError(f"--set {assignment}: the value is not valid YAML") from None
    if name in MEASURED:
        try:
            return name, getattr(Running.model_validate({"plan": {"tp": 1}, name: value}), name)
        except ValidationError as error:
            raise SpecError(f"--set {name}: {told(error.errors()[0], ())}") from None
    if name in OF_MODEL:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST["sequence"]:
            raise SpecError(f"--set {assignment}: expected {whole_number(1, LARGEST['sequence'])}")
        return name, value
    try:
        return name, check_value(name, value, "--set " + name)
    except ValueError as error:
        raise SpecError(str(error)) from None


def _whole(job: Job, stack: str | None, given: Fields) -> tuple[Job, list[str]]:
    """The job with a stack, and what is taken as its file does not tell it."""
    taken = []
    if job.plan.get("precision") not in (None, *PRECISIONS):  # fp32, of a file that states none
        job = replace(job, plan={**job.plan, "precision": None})
    stack = stack or job.stack
    if not stack:
        stack = nearest_stack(str(job.plan.get("sharding") or ""))
        taken.append(f"--stack {stack} (the nearest: {job.framework} has no page)")
    if not job.plan.get("sequence") and "sequence" not in given:
        taken.append(f"--sequence {job.model['sequence']} (the model's)")
    for name, size in UNTOLD.items():
        matters = job.plan.get(size, 2) != 1 and (name != "schedule" or len(read_stack(stack).schedules) > 1)
        if name in job.plan and job.plan[name] is None and matters:
            taken.append(f"--set {name}={str(DEFAULTS[name]).lower()}")
    return replace(job, stack=stack), taken


def _with_numbers(text: str, device: str) -> str:
    """A spec whose hardware has the numbers of the data sheet of a device without a preset."""
    line = re.search(r"^hardware:.*$", text, re.MULTILINE)
    near = nearest_to(device)
    if line is None or near is None:
        return text
    stated = parse_yaml(line[0], "hardware")[0]["hardware"]
    own = stated if isinstance(stated, dict) else {"preset": stated}
    return text.replace(
        line[0], shown_line("hardware", {**own, **near[1]}, "the nearest, with the numbers of its data sheet", 0), 1
    )
