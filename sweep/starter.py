"""A first spec for a model or a workload file: axes whose values the model's numbers allow, each with a comment."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from sim_core import (
    Facts,
    Hardware,
    Model,
    Workload,
    model_names,
    parse_model,
    read_hardware,
    read_model,
    read_workload,
)
from sweep.inputs.job import Job

TOKENS: Final = 4_000_000
"""Tokens of a step, about what models of this generation train with (Llama 3: 4 to 16 M, arXiv 2407.21783)."""
_MOST_PP: Final = 32
_MOST_VPP: Final = 10
_MOST_EP: Final = 64
_LONG: Final = 8192
"""Sequences from which context parallelism is worth a look."""
_MODEL_SUFFIXES: Final = (".json", ".yaml", ".yml", ".sh", ".slurm")
_COMMENT_AT: Final = 44


Lines = dict[str, tuple[Any, str]]
"""Keys of a section, each with its value and why it is so."""


def starter_name(source: str) -> str:
    """A name for the sweep of a model or file: letters, digits, dots and dashes. Raises SpecError."""
    path = Path(source)
    if path.name == "config.json" or (path / "config.json").is_file():
        stem = read_model(source).name
    elif source in model_names() or path.is_dir():
        stem = path.name
    else:
        stem = path.stem.partition(".simai")[0]
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "-" for c in stem).strip("-.") or "sweep"


def starter(
    source: str, hardware: str, gpus: int, base: Path, *, sequence: int | None = None, micro_batch: int | None = None
) -> str:
    """The text of a spec for a model (name or file) or a workload file, to be written into the folder `base`.

    Raises SimError, OSError.
    """
    device = read_hardware(hardware)
    is_model = source in model_names() or Path(source).suffix in _MODEL_SUFFIXES or (Path(source) / "config.json").is_file()
    if is_model:
        model = read_model(source, {} if sequence is None else {"sequence": sequence})
        top, lines = _of_model(source, model, device, gpus, base)
    else:
        if not Path(source).exists():
            read_model(source)  # says which name is nearest
        facts = Facts(sequence=sequence, micro_batch=micro_batch)
        workload, _ = read_workload(source, facts)
        top, lines = _of_file(source, workload, facts, device, gpus, base)
    objective = _shown("- maximize", "mfu", f"{SAME}: also the fastest", 2)
    if not is_model:
        objective = _shown("- minimize", "step_time", SAME, 2)
    place = _shown("hardware", _place(hardware, base), "`sweep hardware` lists the presets")
    return _spec(starter_name(source), gpus, device, place, top, lines, objective)


def _spec(
    name: str,
    gpus: int,
    device: Hardware,
    hardware: str,
    top: list[str],
    lines: Lines,
    objective: str,
    more: Sequence[str] = (),
) -> str:
    """The text of a spec: what is trained, on what, the axes and fixed values with a comment each, what is looked for."""
    return "\n".join(
        [
            f"# Which plan trains {name} best on {gpus:,} x {device.name}? Written by `sweep init`; change what you like.",
            "# `sweep run FILE --dry-run` says what a run would do.",
            f"name: {name}",
            *top,
            "",
            hardware,
            *more,
            "",
            "axes:" + " " * (_COMMENT_AT - 5) + "# every combination is a plan; those that cannot run are counted by reason",
            *(_shown(key, value, why, 2) for key, (value, why) in lines.items() if isinstance(value, list)),
            "",
            "fixed:",
            *(_shown(key, value, why, 2) for key, (value, why) in lines.items() if not isinstance(value, list)),
            "",
            "objectives:",
            objective,
            "",
        ]
    )


def job_starter(job: Job, hardware: str, gpus: int, base: Path) -> str:
    """The text of a spec around a job: its model, its plan among the axes of what could be changed, its step.

    Raises SpecError for a job whose model or plan is not known.
    """
    device, place = _machine(job, hardware, base)
    model = parse_model({"name": job.name, "source": "the job"} | dict(job.model), job.path)
    lines = _axes_of_model(model, model.sequence or 0, device, gpus)
    plan = {name: value for name, value in job.plan.items() if value is not None and name not in OF_THE_JOB}
    for name in NOT_IN.get(job.stack, ()):
        lines.pop(name, None)
    for name, value in plan.items():
        values, why = lines.get(name, (value, "as the job has it"))
        if isinstance(values, list) and name not in ONE_LIST:
            lines[name] = _among(values, value), f"{why}; the job has {_flow(value)}"
        else:
            lines[name] = value, "as the job has it"
    if "vpp" in lines and max(lines["pp"][0] if isinstance(lines["pp"][0], list) else [lines["pp"][0]]) == 1:
        lines["vpp"] = 1, "without a pipeline"
    batch = job.plan.get("global_batch")
    lines["global_batch"] = batch, "sequences of a step, as the job has them"
    top = [
        "workload:",
        *(f"  {line}" for line in yaml.safe_dump({"model": dict(job.model)}, sort_keys=False).rstrip("\n").split("\n")),
        _shown("stack", job.stack, "the framework whose behaviour is simulated", 2),
    ]
    if job.plan.get("sequence_parallel") is not None:
        top.append(_shown("sequence_parallel", bool(job.plan["sequence_parallel"]), "as the job has it", 2))
    own = {name: value for name, value in plan.items() if name not in ONE_LIST}
    more = ["", "running:" + " " * (_COMMENT_AT - 8) + "# the job: the answer says what the best plan gains beside it"]
    more.append(_shown("plan", own, "", 2))
    if job.step_time_s is not None:
        more.append(_shown("step_time_s", float(f"{job.step_time_s:.6g}"), "measured: the median of steady steps", 2))
        more.append(_shown("spread", float(f"{job.spread:.3g}"), "of its steps: (90th - 10th percentile) / median", 2))
    objective = _shown("- minimize", "step_time", SAME, 2)
    return _spec(job.name, gpus, device, place, top, lines, objective, more)


def _machine(job: Job, hardware: str, base: Path) -> tuple[Hardware, str]:
    """The hardware of a job, with the GPUs of a node where its log tells them, and its line in a spec."""
    device, place = read_hardware(hardware), _place(hardware, base)
    node, nics = int(device.value("gpus_per_node")), device.value("nics_per_node")
    if job.gpus_per_node in (None, node) or node > RACK:
        return device, _shown("hardware", place, "`sweep hardware` lists the presets")
    own = {"gpus_per_node": job.gpus_per_node, "nics_per_node": max(1, round(nics * (job.gpus_per_node or 1) / node))}
    why = f"its log has {job.gpus_per_node} GPUs a node; NICs in proportion"
    return device.with_values(own), _shown("hardware", {"preset": place, **own}, why)


RACK: Final = 64
"""A node of more GPUs is a rack, whose logs count the GPUs of a tray."""
SAME: Final = "all plans have the same GPUs and batch"
OF_THE_JOB: Final = ("all_gpus", "dp", "global_batch", "sequence", "sequence_parallel")
"""What a plan of a job holds besides the fields that a sweep varies or keeps."""
ONE_LIST: Final = ("layer_split",)
NOT_IN: Final = {
    "megatron-2022": ("overlap_tp", "overlap_ep"),
    "megatron-deepspeed": ("overlap_tp", "overlap_ep", "vpp"),
    "nanotron": ("vpp", "overlap_ep"),
}
"""Axes that a framework does not have (its launch options)."""


def _among(values: list[Any], value: object) -> list[Any]:
    """The values of an axis with that of the job."""
    if value in values:
        return values
    return sorted([*values, value]) if all(isinstance(each, int) for each in (*values, value)) else [*values, value]


def _of_model(source: str, model: Model, device: Hardware, gpus: int, base: Path) -> tuple[list[str], Lines]:
    """The model with its sequence and stack; axes and fixed values."""
    sequence = model.sequence or min(model.positions or 4096, 4096)
    why = "tokens; as the model was trained" if model.sequence else "tokens; the model does not state it"
    top = [
        _shown("model", _place(source, base), f"`sweep model {source}` shows its numbers"),
        "workload:",
        _shown("sequence", sequence, why, 2),
        _shown("stack", "megatron-core", "the framework whose behaviour is simulated", 2),
    ]
    return top, _axes_of_model(model, sequence, device, gpus)


def _axes_of_model(model: Model, sequence: int, device: Hardware, gpus: int) -> Lines:
    """Axes whose values the model's numbers allow, and fixed values."""
    node = int(device.value("gpus_per_node"))
    fits = [n for n in _doubled(node) if not (model.heads % n or (model.kv_heads % n and n % model.kv_heads))]
    tp = [n for n in fits if gpus % n == 0 and (model.ffn is None or model.ffn % n == 0)] or [1]
    lines: Lines = {"tp": (tp, f"divides {model.heads} heads; more than {node} would leave the node")}
    if sequence >= _LONG:
        cp = [n for n in (1, 2, 4) if gpus % n == 0 and sequence % (2 * n) == 0]
        lines["cp"] = cp, "context parallelism: ranks that share a sequence"
    if model.experts:
        ep = [n for n in _doubled(_MOST_EP) if model.experts.count % n == 0 and gpus % n == 0]
        lines["ep"] = ep, f"divides {model.experts.count} experts"
        lines["overlap_ep"] = [False, True], "all-to-alls beside the experts' GEMMs"
    lines |= _stages(model.layers, gpus)
    lines["micro_batch"] = [1, 2, 4], "sequences"
    lines["checkpointing"] = ["none", "selective", "full"], "what the backward computes again"
    if len(tp) > 1:
        lines["overlap_tp"] = [False, True], "--tp-comm-overlap of Megatron-LM"
    batch = _batch(gpus, sequence, max(tp) * max(lines["pp"][0]))
    lines["all_gpus"] = gpus, ""
    lines["global_batch"] = batch, f"sequences of a step: {batch * sequence / 1e6:.1f} M tokens"
    return lines


def _of_file(source: str, workload: Workload, facts: Facts, device: Hardware, gpus: int, base: Path) -> tuple[list[str], Lines]:
    """The file with what is known of it; axes and fixed values around its own plan."""
    own, node = workload.base, int(device.value("gpus_per_node"))
    top = ["workload:", _shown("path", _place(source, base), "`sweep inspect` shows what it holds", 2)]
    if facts.micro_batch:
        top.append(_shown("micro_batch", facts.micro_batch, "that the file was made with", 2))
    if facts.sequence:
        top.append(_shown("sequence", facts.sequence, "tokens", 2))
    tp = [n for n in sorted({*_doubled(node), own.tp}) if gpus % n == 0] or [1]
    lines: Lines = {"tp": (tp, f"the file has {own.tp}")}
    if own.ep > 1:
        lines["ep"] = sorted({1, own.ep}), f"the file has {own.ep}"
    lines |= _stages(workload.layers, gpus)
    lines["micro_batch"] = sorted({own.micro_batch, 2 * own.micro_batch}), f"the file has {own.micro_batch}"
    lines["checkpointing"] = ["none", "full"], "what the backward computes again"
    lines["all_gpus"] = gpus, ""
    lines["global_batch"] = _batch(gpus, workload.sequence or 4096, max(tp) * max(lines["pp"][0])), "sequences of a step"
    return top, lines


def _stages(layers: int, gpus: int) -> Lines:
    """Axes of the pipeline, and how layers lie on it: evenly where the layers have enough divisors."""
    even = [n for n in range(1, min(_MOST_PP, layers) + 1) if layers % n == 0 and gpus % n == 0]
    if len(even) >= 3:
        deepest = [v for v in range(2, _MOST_VPP + 1) if any(layers % (n * v) == 0 for n in even[1:])]
        often = sorted(deepest, key=lambda v: (-sum(layers % (n * v) == 0 for n in even[1:]), v))[:3]
        return {
            "pp": (even, f"divides {layers} layers"),
            "vpp": (sorted([1, *often]), "interleaving; pp x vpp divides the layers"),
            "layer_split": ("even", "Megatron-LM's default"),
        }
    stages = [n for n in _doubled(min(_MOST_PP, layers)) if gpus % n == 0] or [1]
    return {
        "pp": (stages, "stages"),
        "vpp": ([1, 2, 4], "interleaving"),
        "layer_split": ("balanced", f"{layers} layers: some stages hold one more"),
    }


def _batch(gpus: int, sequence: int, most_split: int) -> int:
    """Sequences of a step: about TOKENS, with the odd part of the GPUs as a divisor, and at least one for each replica."""
    odd = gpus // (gpus & -gpus)
    twos = max(round(math.log2(max(TOKENS / sequence / odd, 1))), 0)
    least = math.ceil(math.log2(max(gpus / most_split / odd, 1)))
    return int(odd * 2 ** max(twos, least))


def _doubled(most: int) -> list[int]:
    return [2**k for k in range(int(math.log2(max(most, 1))) + 1)]


def _place(source: str, base: Path) -> str:
    """A path as it is named from the folder of the spec; names stay."""
    path = Path(source)
    if not path.exists() or source in model_names():
        return source
    try:
        return str(path.absolute().relative_to(base.absolute()))
    except ValueError:
        return str(path.absolute())


def _shown(key: str, value: object, why: str = "", indent: int = 0) -> str:
    """A key with its value as YAML, and a comment that says why."""
    text = f"{' ' * indent}{key}: {_flow(value)}"
    return f"{text:{_COMMENT_AT - 2}}  # {why}" if why else text


def _flow(value: object) -> str:
    """A value as YAML on one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("\n...\n").rstrip("\n")
