"""Screens of logs and launch files: what a run or a launch tells of framework, plan, model, step, and what is missing."""

from sim_core import Fields, plural, short
from sweep.answers.section import Screen, table
from sweep.inputs.told import Job
from sweep.wording import plain_values, word

WORDS = {
    "all_gpus": "GPUs", "micro_batch": "micro-batch", "global_batch": "global batch",
    "sequence_parallel": "sequence parallel",
}  # fmt: skip
TOLD = ("follows, or the framework's own way", "stated")
OPEN = ("open: absent", "open: condition, variable or other file")
"""What is said of a value and of none; the second where a line names it."""
STATES = {"oom": "out of memory", "crash": "failed before a steady step"}
ONE_JOB = 0.04
"""Two jobs of the same plan differ by so much (two of bigscience's logs of 64 V100: 128,960 and 123,896 ms)."""


def log_lines(log: Job) -> Screen:
    """What a log tells."""
    peak, node = log.peak_memory_gib, log.gpus_per_node
    facts = {
        "plan": log.refused and f"not known: {log.refused}",
        "parameters": "" if log.parameters is None else short(log.parameters, ""),
        "steady step": _step(log),
        "memory": "" if peak is None else f"{peak:.1f} GiB a GPU ({log.memory_kind})",
        "device": log.device + (f", {node} a node" if node and log.device else ""),
        "state": STATES.get(log.state, ""),
    }
    yield from told_screen(log)
    yield from (f"  {what:13} {text}" for what, text in facts.items() if text)


def told_screen(job: Job) -> Screen:
    """What a job states, line by line; what a condition, a variable or another file settles; what is absent."""
    yield f"{job.path}: {'launch file' if job.lines else 'log'} of {job.framework or 'an unknown framework'}"
    rows = []
    for name, value in {**job.plan, **job.model, **job.plan}.items():
        at = job.lines.get(name, ())
        state = OPEN[bool(at)] if value is None else TOLD[bool(at) or not job.lines]
        rows.append((WORDS.get(name, name), "" if value is None else word(value), ", ".join(map(str, sorted(at)[:3])), state))
    yield table(("field", "value", "lines", "state"), rows, 0, 1, 2, 3, gap=2)
    yield from (f"  note: {note}" for note in job.notes)


def _step(log: Job) -> str:
    if log.step_time_s is None:
        return "none" if log.first_step_s is None else f"none; the first interval took {short(log.first_step_s, 's')} a step"
    intervals = plural(log.steps, "interval") + (f" of {log.interval} steps" if log.interval > 1 else "")
    spread = "" if log.spread is None else f", spread {log.spread:.1%}"
    doubt = max(ONE_JOB, log.spread or 0.0, log.rounding)
    return f"{short(log.step_time_s, 's')} (median of {intervals}{spread}; another job of this plan may differ by {doubt:.0%})"


def log_values(log: Job) -> Fields:
    """What a log tells as plain values, for JSON; seconds, GiB, None: not told."""
    names = (
        "framework state step_time_s steps interval first_step_s spread rounding plan refused model parameters "
        "peak_memory_gib memory_kind device gpus_per_node missing notes"
    )
    return {"path": log.path, "kind": "log", **plain_values(log, names)}


def launch_values(launch: Job) -> Fields:
    """What a launch file states as plain values, for JSON; None: left to the moment of the launch."""
    told = {"path": launch.path, "kind": "launch", "framework": launch.framework, "step_time_s": None}
    return {**told, **plain_values(launch, "plan model missing notes"), "kept": [*launch.kept]}
