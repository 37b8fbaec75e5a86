"""A first spec for a model or a workload file: axes whose values the model's numbers allow, each with a comment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from sim_core import Facts, Hardware, Model, Workload, model_names, read_hardware, read_model, read_workload

TOKENS: Final = 4_000_000
"""Tokens of a step, about what models of this generation train with (Llama 3: 4 to 16 M, arXiv 2407.21783)."""
_MOST_PP: Final = 32
_MOST_VPP: Final = 10
_MOST_EP: Final = 64
_LONG: Final = 8192
"""Sequences from which context parallelism is worth a look."""
_MODEL_SUFFIXES: Final = (".json", ".yaml", ".yml", ".sh", ".slurm")
_COMMENT_AT: Final = 44


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A key with its value as YAML, and why it is so."""

    key: str
    value: object
    why: str = ""


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
    name = starter_name(source)
    return "\n".join(
        [
            f"# Which plan trains {name} best on {gpus:,} x {device.name}? Written by `sweep init`; change what you like.",
            "# `sweep run FILE --dry-run` says what a run would do.",
            f"name: {name}",
            *top,
            "",
            f"{_shown(_Line(key='hardware', value=_place(hardware, base), why='`sweep hardware` lists the presets'))}",
            "",
            "axes:" + " " * (_COMMENT_AT - 5) + "# every combination is a plan; those that cannot run are counted by reason",
            *(_shown(line, 2) for line in lines if isinstance(line.value, list)),
            "",
            "fixed:",
            *(_shown(line, 2) for line in lines if not isinstance(line.value, list)),
            "",
            "objectives:",
            _shown(_objective(is_model), 2),
            "",
        ]
    )


def _objective(mfu_known: bool) -> _Line:
    if mfu_known:
        return _Line(key="- maximize", value="mfu", why="all plans have the same GPUs and batch: also the fastest")
    return _Line(key="- minimize", value="step_time", why="all plans have the same GPUs and batch")


def _of_model(source: str, model: Model, device: Hardware, gpus: int, base: Path) -> tuple[list[str], list[_Line]]:
    sequence = model.sequence or min(model.positions or 4096, 4096)
    top = [_shown(_Line(key="model", value=_place(source, base), why=f"`sweep model {source}` shows its numbers"))]
    why = "tokens; as the model was trained" if model.sequence else "tokens; the model does not state it"
    top += ["workload:", _shown(_Line(key="sequence", value=sequence, why=why), 2)]
    top += [_shown(_Line(key="stack", value="megatron-core", why="the framework whose behaviour is simulated"), 2)]
    node = int(device.value("gpus_per_node"))
    fits = [n for n in _doubled(node) if not (model.heads % n or (model.kv_heads % n and n % model.kv_heads))]
    tp = [n for n in fits if gpus % n == 0 and (model.ffn is None or model.ffn % n == 0)] or [1]
    lines = [_Line(key="tp", value=tp, why=f"divides {model.heads} heads; more than {node} would leave the node")]
    if sequence >= _LONG:
        cp = [n for n in (1, 2, 4) if gpus % n == 0 and sequence % (2 * n) == 0]
        lines.append(_Line(key="cp", value=cp, why="context parallelism: ranks that share a sequence"))
    if model.experts:
        ep = [n for n in _doubled(_MOST_EP) if model.experts.count % n == 0 and gpus % n == 0]
        lines.append(_Line(key="ep", value=ep, why=f"divides {model.experts.count} experts"))
        lines.append(_Line(key="overlap_ep", value=[False, True], why="all-to-alls beside the experts' GEMMs"))
    lines += _stages(model.layers, gpus)
    lines += [
        _Line(key="micro_batch", value=[1, 2, 4], why="sequences"),
        _Line(key="checkpointing", value=["none", "selective", "full"], why="what the backward computes again"),
    ]
    if len(tp) > 1:
        lines.append(_Line(key="overlap_tp", value=[False, True], why="--tp-comm-overlap of Megatron-LM"))
    batch = _batch(gpus, sequence, max(tp) * max(_values(lines, "pp")))
    lines += [
        _Line(key="all_gpus", value=gpus),
        _Line(key="global_batch", value=batch, why=f"sequences of a step: {batch * sequence / 1e6:.1f} M tokens"),
    ]
    return top, lines


def _of_file(
    source: str, workload: Workload, facts: Facts, device: Hardware, gpus: int, base: Path
) -> tuple[list[str], list[_Line]]:
    own, node = workload.base, int(device.value("gpus_per_node"))
    top = ["workload:", _shown(_Line(key="path", value=_place(source, base), why="`sweep inspect` shows what it holds"), 2)]
    if facts.micro_batch:
        top.append(_shown(_Line(key="micro_batch", value=facts.micro_batch, why="that the file was made with"), 2))
    if facts.sequence:
        top.append(_shown(_Line(key="sequence", value=facts.sequence, why="tokens"), 2))
    tp = [n for n in sorted({*_doubled(node), own.tp}) if gpus % n == 0] or [1]
    lines = [
        _Line(key="tp", value=tp, why=f"the file has {own.tp}"),
        *_stages(workload.layers, gpus),
        _Line(key="micro_batch", value=sorted({own.micro_batch, 2 * own.micro_batch}), why=f"the file has {own.micro_batch}"),
        _Line(key="checkpointing", value=["none", "full"], why="what the backward computes again"),
        _Line(key="all_gpus", value=gpus),
    ]
    if own.ep > 1:
        lines.insert(1, _Line(key="ep", value=sorted({1, own.ep}), why=f"the file has {own.ep}"))
    batch = _batch(gpus, workload.sequence or 4096, max(tp) * max(_values(lines, "pp")))
    lines.append(_Line(key="global_batch", value=batch, why="sequences of a step"))
    return top, lines


def _stages(layers: int, gpus: int) -> list[_Line]:
    """Axes of the pipeline, and how layers lie on it: evenly where the layers have enough divisors."""
    even = [n for n in range(1, min(_MOST_PP, layers) + 1) if layers % n == 0 and gpus % n == 0]
    if len(even) >= 3:
        deepest = [v for v in range(2, _MOST_VPP + 1) if any(layers % (n * v) == 0 for n in even[1:])]
        often = sorted(deepest, key=lambda v: (-sum(layers % (n * v) == 0 for n in even[1:]), v))[:3]
        return [
            _Line(key="pp", value=even, why=f"divides {layers} layers"),
            _Line(key="vpp", value=sorted([1, *often]), why="interleaving; pp x vpp divides the layers"),
            _Line(key="layer_split", value="even", why="Megatron-LM's default"),
        ]
    stages = [n for n in _doubled(min(_MOST_PP, layers)) if gpus % n == 0] or [1]
    return [
        _Line(key="pp", value=stages, why="stages"),
        _Line(key="vpp", value=[1, 2, 4], why="interleaving"),
        _Line(key="layer_split", value="balanced", why=f"{layers} layers: some stages hold one more"),
    ]


def _batch(gpus: int, sequence: int, most_split: int) -> int:
    """Sequences of a step: about TOKENS, with the odd part of the GPUs as a divisor, and at least one for each replica."""
    odd = gpus // (gpus & -gpus)
    twos = max(round(math.log2(max(TOKENS / sequence / odd, 1))), 0)
    least = math.ceil(math.log2(max(gpus / most_split / odd, 1)))
    return int(odd * 2 ** max(twos, least))


def _doubled(most: int) -> list[int]:
    return [2**k for k in range(int(math.log2(max(most, 1))) + 1)]


def _values(lines: Sequence[_Line], key: str) -> list[int]:
    value = next(line.value for line in lines if line.key == key)
    return value if isinstance(value, list) else []


def _place(source: str, base: Path) -> str:
    """A path as it is named from the folder of the spec; names stay."""
    path = Path(source)
    if not path.exists() or source in model_names():
        return source
    try:
        return str(path.absolute().relative_to(base.absolute()))
    except ValueError:
        return str(path.absolute())


def _shown(line: _Line, indent: int = 0) -> str:
    value = yaml.safe_dump(line.value, default_flow_style=True, width=10_000).removesuffix("\n...\n").rstrip("\n")
    text = f"{' ' * indent}{line.key}: {value}"
    return f"{text:{_COMMENT_AT - 2}}  # {line.why}" if line.why else text
