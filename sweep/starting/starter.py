"""A first spec for a model or a workload file: axes whose values the model's numbers allow, each with a comment."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import yaml

from sim_core import (
    Facts,
    Hardware,
    Model,
    Workload,
    is_page,
    model_names,
    plural,
    read_hardware,
    read_model,
    read_stack,
    read_workload,
)
from sweep.frameworks.stacks import stack_on
from sweep.options import wrong
from sweep.spec.stacks import STACK
from sweep.starting.wide_axes import TOKENS, Lines, domain, doubled, is_torus, step_batch, wide_axes

_MOST_PP = 32
_MOST_VPP = 10
_MODEL_SUFFIXES = (".json", ".yaml", ".yml", ".sh", ".slurm")
COMMENT_AT = 44
UNTOLD = "is simulated; say what runs (`sweep stack` lists all), and its own evidence counts"
_ALL = 500_000
"""Plans that are simulated in seconds (docs/performance.md)."""
_WHY = {
    "run": "simulates and keeps them all",
    "search": "finds the best, proven (`--best 20`); `run` would simulate them all",
}


def starter_name(source: str) -> str:
    """A name for the sweep of a model or file: letters, digits, dots and dashes. Raises SpecError."""
    path = Path(source)
    stem = path.name if source in model_names() or path.is_dir() else path.stem.partition(".simai")[0]
    if path.name == "config.json" or (path / "config.json").is_file():
        stem = read_model(source).name
    return re.sub(r"[^A-Za-z0-9.-]", "-", stem).strip("-.") or "sweep"


def starter(
    source: str,
    hardware: str,
    gpus: int,
    base: Path,
    *,
    sequence: int | None = None,
    micro_batch: int | None = None,
    global_batch: int | None = None,
    stack: str | None = None,
) -> str:
    """The text of a spec for a model (name or file) or a workload file, to be written into the folder `base`.

    Raises SimError, OSError.
    """
    device = read_hardware(hardware)
    is_model = source in model_names() or Path(source).suffix in _MODEL_SUFFIXES or (Path(source) / "config.json").is_file()
    objective = shown_line("- maximize", "mfu", f"{SAME}: also the fastest")
    if is_model:
        if micro_batch is not None:
            raise wrong("--micro-batch", micro_batch, f"none: {source} is a model, which no micro-batch has made")
        model = read_model(source, {} if sequence is None else {"sequence": sequence})
        top, lines = _of_model(source, model, device, gpus, base, stack)
    else:
        if not Path(source).exists():
            read_model(source)  # says which name is nearest
        if stack is not None:
            raise wrong("--stack", stack, f"none: the times of {source} are of the framework that it was recorded with")
        facts = Facts(sequence=sequence, micro_batch=micro_batch)
        top, lines = _of_file(source, read_workload(source, facts)[0], facts, device, gpus, base)
        objective = shown_line("- minimize", "step_time", SAME)
    if global_batch is not None:
        lines["global_batch"] = global_batch, "sequences of a step, as given"
    return spec_text(starter_name(source), gpus, device, _hardware(hardware, device, gpus, base), top, lines, objective)


SAME = "all plans have the same GPUs and batch"
ONE_RACK = "of each rack, so that no group straddles two"


def spec_text(
    name: str,
    gpus: int,
    device: Hardware,
    hardware: str,
    top: Sequence[str],
    lines: Lines,
    objective: str,
    more: Sequence[str] = (),
) -> str:
    """The text of a spec: what is trained, on what, axes and fixed values with a comment each, what is looked for.

    `top`, `hardware`, `more` and `objective` are lines of it.
    """
    plans = math.prod(len(value) for value, _ in lines.values() if isinstance(value, list))
    return "\n".join(
        [
            f"# Which plan trains {name} best on {gpus:,} x {device.name}? Written by `sweep init`; change what you like.",
            f"# {plural(plans)}: `sweep {suited(plans)} FILE` {_WHY[suited(plans)]}.",
            yaml.safe_dump({"name": name}).strip(),  # in quotes where it reads as a number
            *top,
            "",
            hardware,
            *more,
            "",
            "axes:" + " " * (COMMENT_AT - 5) + "# every combination is a plan; those that cannot run are counted by reason",
            *(shown_line(key, value, why) for key, (value, why) in lines.items() if isinstance(value, list)),
            "",
            "fixed:",
            *(shown_line(key, value, why) for key, (value, why) in lines.items() if not isinstance(value, list)),
            "",
            "objectives:",
            objective,
            "",
        ]
    )


def suited(plans: int) -> str:
    """The command that suits a space: all plans where they take seconds, else only the best, proven."""
    return "run" if plans <= _ALL else "search"


def _of_model(source: str, model: Model, device: Hardware, gpus: int, base: Path, given: str | None) -> tuple[list[str], Lines]:
    """The model with its sequence and stack, that which is `given` or the best; axes and fixed values."""
    sequence = model.sequence or min(model.positions or 4096, 4096)
    why = "tokens; as the model was trained" if model.sequence else "tokens; the model does not state it"
    stack, reason = (given, "as given") if given else stack_on(device.name, is_torus=is_torus(device))
    named = shown_line("stack", place_of(stack, base) if is_page(stack) else stack or STACK, reason or UNTOLD)
    top = [
        shown_line("model", place_of(source, base), f"`sweep model {source}` shows its numbers", 0),
        "workload:",
        shown_line("sequence", sequence, why),
        named if stack else f"  # {named.strip()}",
    ]
    return top, wide_axes(model, device, read_stack(stack or STACK), gpus, sequence)


def _of_file(source: str, workload: Workload, facts: Facts, device: Hardware, gpus: int, base: Path) -> tuple[list[str], Lines]:
    """The file with what is known of it; axes and fixed values around its own plan."""
    own, node = workload.base, domain(device) if is_torus(device) else int(device.value("gpus_per_node"))
    said = {
        "path": (place_of(source, base), "`sweep inspect` shows what it holds"),
        "micro_batch": (facts.micro_batch, "that the file was made with"),
        "sequence": (facts.sequence, "tokens"),
    }
    top = ["workload:", *(shown_line(key, value, why) for key, (value, why) in said.items() if value)]
    tp = [n for n in sorted({*doubled(node), own.tp}) if gpus % n == 0] or [1]
    lines: Lines = {"tp": (tp, f"the file has {own.tp}")}
    if own.ep > 1:
        lines["ep"] = sorted({1, own.ep}), f"the file has {own.ep}"
    lines |= _stages(workload.layers, gpus)
    lines["micro_batch"] = sorted({own.micro_batch, 2 * own.micro_batch}), f"the file has {own.micro_batch}"
    lines["checkpointing"] = ["none", "full"], "what the backward computes again"
    lines["all_gpus"] = gpus, ""
    batch = step_batch(TOKENS, gpus, workload.sequence or 4096, max(tp) * max(lines["pp"][0]))
    lines["global_batch"] = batch, "sequences of a step"
    return top, lines


def _stages(layers: int, gpus: int) -> Lines:
    """Axes of the pipeline, and how layers lie on it: evenly where the layers have enough divisors."""
    even = [n for n in range(1, min(_MOST_PP, layers) + 1) if layers % n == 0 and gpus % n == 0]
    if len(even) >= 3:
        fits = {v: sum(layers % (n * v) == 0 for n in even[1:]) for v in range(2, _MOST_VPP + 1)}
        often = sorted((v for v, times in fits.items() if times), key=lambda v: -fits[v])[:3]
        return {
            "pp": (even, f"divides {layers} layers"),
            "vpp": (sorted([1, *often]), "interleaving; pp x vpp divides the layers"),
            "layer_split": ("even", "Megatron-LM's default"),
        }
    return {
        "pp": ([n for n in doubled(min(_MOST_PP, layers)) if gpus % n == 0] or [1], "stages"),
        "vpp": ([1, 2, 4], "interleaving"),
        "layer_split": ("balanced", f"{layers} layers: some stages hold one more"),
    }


def _hardware(name: str, device: Hardware, gpus: int, base: Path) -> str:
    """The device; of a rack whose GPUs are no power of two, the part that groups fill; of TPUs, a slice of the job's chips."""
    place, node = place_of(name, base), int(device.value("gpus_per_node"))
    own, why = domain(device), ONE_RACK
    if is_torus(device):
        own, why = min(gpus, node), "a slice is a node: its chips meet over the torus"
    elif own == node:
        return shown_line("hardware", place, "`sweep hardware` lists the presets", 0)
    nics = max(1, round(own * device.value("nics_per_node") / node))
    return shown_line("hardware", {"preset": place, "gpus_per_node": own, "nics_per_node": nics}, why, 0)


def place_of(source: str, base: Path) -> str:
    """A path as it is named from the folder of the spec, that of a folder with a / at its end; names stay."""
    path = Path(source)
    if not path.exists() or source in model_names():
        return source
    try:
        return str(path.absolute().relative_to(base.absolute())) + "/" * path.is_dir()
    except ValueError:
        return str(path.absolute())


def shown_line(key: str, value: object, why: str, indent: int = 2) -> str:
    """A key with its value as YAML, and a comment that says why."""
    text = f"{' ' * indent}{key}: {on_one_line(value)}"
    return f"{text:{COMMENT_AT - 2}}  # {why}" if why else text


def on_one_line(value: object) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("\n...\n").rstrip("\n")
