"""Screens of logs and launch files: what a run or a launch tells of framework, plan, model, step, and what is missing."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console

from sim_core import plural, short
from sweep.inputs.told import Job
from sweep.wording import plain_values, word

WORDS: Final = {
    "all_gpus": "GPUs", "micro_batch": "micro-batch", "global_batch": "global batch", "step_time_s": "steady step",
    "sequence_parallel": "sequence parallel",
}  # fmt: skip
SIZES: Final = ("tp", "pp", "vpp", "dp", "cp", "ep", "all_gpus", "micro_batch", "global_batch", "sequence")
ONE_JOB: Final = 0.04
"""Two jobs of the same plan differ by so much (two of bigscience's logs of 64 V100: 128,960 and 123,896 ms)."""


def print_log(log: Job, console: Console) -> None:
    """Print what a log tells."""
    console.print(f"{log.path}: log of {log.framework or 'a run of an unknown framework'}")
    _line("plan", plan_words(log.plan) if not log.refused else f"not known: {log.refused}", console)
    print_model(log.model, console)
    if log.parameters is not None:
        _line("parameters", short(log.parameters, ""), console)
    _line("steady step", _step(log), console)
    if log.peak_memory_gib is not None:
        _line("memory", f"{log.peak_memory_gib:.1f} GiB a GPU ({log.memory_kind})", console)
    if log.device:
        each = f", {log.gpus_per_node} a node" if log.gpus_per_node else ""
        _line("device", f"{log.device}{each}", console)
    if log.state != "ok":
        _line("state", {"oom": "out of memory", "crash": "failed before a steady step"}[log.state], console)
    print_missing(log.missing, log.notes, console)


def print_launch(launch: Job, console: Console) -> None:
    """Print what a launch file states."""
    console.print(f"{launch.path}: launch file of {launch.framework}")
    _line("plan", plan_words(launch.plan), console)
    print_model(launch.model, console)
    print_missing(launch.missing, launch.notes, console)
    if launch.kept:
        _line("kept", plural(len(launch.kept), "setting") + " without a part in plan or model", console)


def launch_values(launch: Job) -> dict[str, object]:
    """What a launch file states as plain values, for JSON; None: left to the moment of the launch."""
    values = plain_values(launch, "path framework plan model missing notes kept")
    return {"path": values.pop("path"), "kind": "launch", "framework": values.pop("framework"), "step_time_s": None, **values}


def plan_words(plan: Mapping[str, Any]) -> str:
    """A plan on one line, with what is not known left out."""
    sizes = [f"{WORDS.get(name, name)} {plan[name]}" for name in SIZES if plan.get(name) is not None]
    others = [
        f"{WORDS.get(name, name)} {word(value)}" for name, value in plan.items() if name not in SIZES and value is not None
    ]
    return ", ".join([*sizes, *others]) or "not known"


def print_model(model: Mapping[str, Any], console: Console) -> None:
    """Print the numbers of a model on one line."""
    parts = (
        f"({', '.join(f'{key} {inner}' for key, inner in value.items())})" if isinstance(value, Mapping) else word(value)
        for value in model.values()
    )
    _line("model", ", ".join(map(" ".join, zip(model, parts, strict=True))) or "not known", console)


def print_missing(missing: tuple[str, ...], notes: tuple[str, ...], console: Console) -> None:
    """Print what a file does not tell, and what to know of it."""
    if missing:
        _line("missing", ", ".join(WORDS.get(name, name) for name in missing), console)
    for note in notes:
        console.print(f"  note: {note}")


def _step(log: Job) -> str:
    if log.step_time_s is None:
        first = "" if log.first_step_s is None else f"; the first interval took {short(log.first_step_s, 's')} a step"
        return f"none{first}"
    intervals = plural(log.steps, "interval") + (f" of {log.interval} steps" if log.interval > 1 else "")
    spread = "" if log.spread is None else f", spread {log.spread:.1%}"
    doubt = max(ONE_JOB, log.spread or 0.0, log.rounding)
    return f"{short(log.step_time_s, 's')} (median of {intervals}{spread}; another job of this plan may differ by {doubt:.0%})"


def _line(what: str, text: str, console: Console) -> None:
    console.print(f"  {what:13} {text}")


def log_values(log: Job) -> dict[str, object]:
    """What a log tells as plain values, for JSON; seconds, GiB, None: not told."""
    names = (
        "framework state step_time_s steps interval first_step_s spread rounding plan refused model parameters "
        "peak_memory_gib memory_kind device gpus_per_node missing notes"
    )
    return {"path": log.path, "kind": "log", **plain_values(log, names)}
