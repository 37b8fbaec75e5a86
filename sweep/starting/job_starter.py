"""A first spec around a job that runs: its model and plan, axes of what could be changed, its step to be compared with."""

from pathlib import Path

import yaml

from sim_core import STACK_FACTS, Fields, Hardware, SpecError, Stack, parse_model, plural, read_hardware, read_stack
from sweep.frameworks.stacks import WITHOUT_PAGE
from sweep.inputs.told import Job
from sweep.runs.devices import presets_of
from sweep.runs.table import NotSimulated
from sweep.starting.starter import COMMENT_AT, SAME, on_one_line, place_of, shown_line, spec_text
from sweep.starting.wide_axes import is_torus, wide_axes

OF_THE_JOB = ("all_gpus", "dp", "ga", "global_batch", "sequence", "sequence_parallel")
"""What a plan of a job holds besides the fields that a sweep varies or keeps."""
DEFAULTS = {
    "cp": 1, "ep": 1, "vpp": 1, "overlap_tp": False, "overlap_ep": False, "dispatcher": "alltoall", "precision": "bf16",
    "schedule": "1f1b",
}  # fmt: skip
"""What a job has of an axis that its file says nothing of: what the framework does unless it is asked to."""
ONE_LIST = "layer_split"
BY_COST = "balanced_cost"
AS_STACK = "stack"
SWITCHES = ("overlap_grad", "overlap_param")
"""What a job can switch on as it stands."""
HELD = ("schedule", "precision")
"""What stays as the job has it: another precision is another training, and a framework has its schedules."""
RECOMPUTE = ["none", "selective", "full"]
RACK = 64
"""A node of more GPUs is a rack, whose logs count the GPUs of a tray."""


def device_of(job: Job) -> str:
    """The preset of the device that a log names; '' for a launch file without. Raises SpecError where none is."""
    if not job.device and job.step_time_s is not None:
        raise SpecError(f"{job.path}: the log names no device; give --hardware (`sweep hardware` lists the presets)")
    try:
        return presets_of(job.device)[-1] if job.device else ""
    except NotSimulated as error:
        raise SpecError(f"{job.path}: {error}; give --hardware") from None


def job_starter(job: Job, hardware: str, gpus: int, base: Path) -> str:
    """The text of a spec around a job, to be written into the folder `base`. Raises SpecError."""
    device, place = _machine(job, hardware, base)
    model, stack = parse_model({"name": job.name, "source": "the job"} | dict(job.model), job.path), read_stack(job.stack)
    lines = wide_axes(model, device, stack, gpus, model.sequence or 0)
    lines["checkpointing"] = RECOMPUTE, "what the backward computes again"
    for name in WITHOUT_PAGE.get(job.framework, ()):
        lines.pop(name, None)
    # the fields of the job's plan, those of axes that its file does not name among them
    plan = {name: own for name, own in job.plan.items() if own is not None and name not in OF_THE_JOB}
    if size := plan.get("bucket_bytes"):
        plan["bucket_bytes"] = f"{size} B"
    plan |= {name: DEFAULTS[name] for name in lines if name in DEFAULTS and name not in plan}
    if ONE_LIST in lines:
        by_cost = [BY_COST] * (BY_COST in lines[ONE_LIST][0])
        why = "as many layers on each stage, or at most one apart" + ", or by cost" * len(by_cost)
        lines[ONE_LIST] = ["even", "balanced", *by_cost], why
        plan.setdefault(ONE_LIST, "balanced" if model.layers % (plan["pp"] * plan["vpp"]) else "even")
    if "pp" in lines and _as_stack(plan, stack):
        plan["sharding"] = AS_STACK
        lines["sharding"] = AS_STACK, f"as {stack.name} does: {stack.sharding}; where pp > 1 {stack.sharding_in_pipeline}"
    for name, value in plan.items():
        switch = name in SWITCHES and value is False
        values, why = lines.get(name, ([False, True], "moves no weights") if switch else (value, ""))
        if isinstance(values, list) and name not in HELD:
            if value not in values:
                numbers = all(isinstance(each, int) for each in (*values, value))
                values = sorted([*values, value]) if numbers else [*values, value]
            told = "the last, a number of layers for each virtual stage" if isinstance(value, list) else on_one_line(value)
            lines[name] = values, f"{why}; the job has {told}"
        else:
            lines[name] = value, why if name == "sharding" and why else "as the job has it"
    lines["global_batch"] = job.plan.get("global_batch"), "sequences of a step, as the job has them"
    facts = {fact: STACK_FACTS[fact].plain(value) for fact, value in job.facts.items() if value != getattr(stack, fact)}
    top = [
        "workload:",
        *(f"  {line}" for line in yaml.safe_dump({"model": dict(job.model)}, sort_keys=False).rstrip("\n").split("\n")),
        shown_line(
            "stack", {"preset": job.stack, **facts} if facts else job.stack, "the framework whose behaviour is simulated"
        ),
    ]
    shared = job.plan.get("sequence_parallel")
    if shared or (shared is not None and plan.get("tp") != 1):
        top.append(shown_line("sequence_parallel", bool(shared), "as the job has it"))
    objective = shown_line("- minimize", "step_time", SAME)
    return spec_text(job.name, gpus, device, place, top, lines, objective, _running(job, plan))


def _as_stack(plan: Fields, stack: Stack) -> bool:
    """Whether a job shards as its framework does by itself, which is another way where pp > 1."""
    own = stack.sharding_in_pipeline if plan["pp"] > 1 else stack.sharding
    is_own = plan.get("sharding") == own and "reshard_after_forward" not in plan
    return is_own and stack.sharding_in_pipeline not in (None, stack.sharding)


def _running(job: Job, plan: Fields) -> list[str]:
    """The lines of the section of the job that runs."""
    own = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in plan.items()}
    lines = ["", "running:" + " " * (COMMENT_AT - 8) + "# the job: the answer says what the best plan gains beside it"]
    lines.append(shown_line("plan", own, ""))
    if job.peak_memory_gib:
        lines.append(shown_line("peak_memory_gib", float(f"{job.peak_memory_gib:.5g}"), f"measured: {job.memory_kind}"))
    if job.step_time_s is not None:
        how, spread = "the median of steady steps" if job.steps else "as given", max(job.spread or 0.0, job.rounding)
        lines += [
            shown_line("step_time_s", float(f"{job.step_time_s:.6g}"), f"measured: {how}"),
            shown_line("spread", float(f"{spread:.3g}"), "of its steps: (90th - 10th percentile) / median"),
        ]
    return lines


def _machine(job: Job, hardware: str, base: Path) -> tuple[Hardware, str]:
    """The hardware of a job, with the GPUs of a node where its log tells them, and its line in a spec."""
    device, place = read_hardware(hardware), place_of(hardware, base)
    node, nics = int(device.value("gpus_per_node")), device.value("nics_per_node")
    if job.gpus_per_node in (None, node) or (node > RACK and not is_torus(device)):
        return device, shown_line("hardware", place, "`sweep hardware` lists the presets", 0)
    own = {"gpus_per_node": job.gpus_per_node, "nics_per_node": max(1, round(nics * (job.gpus_per_node or 1) / node))}
    why = f"its log has {plural(job.gpus_per_node, 'GPU')} a node; NICs in proportion"
    return device.with_values(own), shown_line("hardware", {"preset": place, **own}, why, 0)
