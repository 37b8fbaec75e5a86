"""A launch file of any known format as one job: model and plan that it starts."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import yaml

from sim_core import SpecError, megatron_arguments
from sim_core.documents import Lines, Values, parse_json, parse_yaml, shipped_document
from sweep.frameworks import (
    deepspeed as of_deepspeed,
    maxtext as of_maxtext,
    primus as of_primus,
    torchtitan as of_torchtitan,
)
from sweep.frameworks.megatron_sizes import TP
from sweep.frameworks.names import SAID_AS, TABLES
from sweep.frameworks.nemo import megatron_name
from sweep.inputs.launch import chain, deepspeed, exported, maxtext, megatron, nemo, plain, primus, torchtitan
from sweep.inputs.launch.keys import not_simulated
from sweep.inputs.text import head_of
from sweep.inputs.told import Job

PLAIN = [shipped_document(TABLES / f"{name}.yaml") for name in ("gpt-neox", "nemo-automodel", "llm-foundry", "nanotron")]
"""Frameworks whose files are read by a table."""
MOST_BYTES = 2**20
"""Of a launch file; the largest that we know have 20 KB."""
SAID = re.compile(r"(?:(?<=--)|(?<![\w$.-])(?=\w+[\"']?\s*[:=]))([a-z][\w-]*)")
SWITCH = re.compile(
    r"\b((?:CUDA|HSA|LIBTPU|NCCL|NVSHMEM|NVTE|PYTORCH|RCCL|TORCH|UCX|XLA|xla)_\w+)[\"']?\s*[=:]\s*[\"']?([^\s\"',}]*)"
)
"""Variables of the environment, and flags in them, that change what runs."""
NEEDED = ("all_gpus", "tp", "pp", "micro_batch", "global_batch", "sequence")
"""What a launch has to state for its plan to be simulated."""
NOTHING = "found no model and no plan of a framework that is known"


def read_launch(path: str | Path) -> Job:
    """Read a launch file, by its content. Raises SpecError with the line of a fault, OSError."""
    raw = head_of(Path(path), MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise SpecError(f"{path}: found more than {MOST_BYTES:,} bytes, expected a launch file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None
    row = next((row for row in FORMATS if row.recognise(text)), None)
    if row is None:
        raise SpecError(f"{path}: {NOTHING}")
    job = row.read(str(path), text)
    absent = [name for name in NEEDED if job.plan.get(name) is None]
    job.path, job.lines = str(path), lines_of(text)
    job.notes += not_simulated(job.framework, {**job.kept, **dict(SWITCH.findall(megatron.COMMENT.sub("", text)))})
    job.missing = (*absent, *(["model"] if not job.model else [] if "vocabulary" in job.model else ["vocabulary"]))
    return job


def lines_of(text: str) -> dict[str, set[int]]:
    """The lines that name a field or a number of the model, by the words of all frameworks; none of comments."""
    lines: dict[str, set[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        for word in SAID.findall(megatron.COMMENT.sub("", line)):
            name = megatron_name(word.replace("-", "_"))
            lines.setdefault(SAID_AS.get(name, name), set()).add(number)
    return lines


def _toml(path: str, text: str) -> Job:
    try:
        document = tomllib.loads(text)
    except (RecursionError, ValueError) as error:
        why = str(error) if isinstance(error, tomllib.TOMLDecodeError) else str(error).partition(";")[0]
        raise SpecError(f"{path}: not valid TOML: {why}") from None
    return torchtitan.read_toml(path, document)


def _document(path: str, text: str) -> tuple[Values, Lines]:
    is_json = text.lstrip().startswith("{") and not re.search(PLAIN[0]["sign"], text)  # whose braces hold words of Python
    document, lines = parse_json(text, path) if is_json else parse_yaml(text, path, last_counts=True)
    if not isinstance(document, Mapping):
        raise SpecError(f"{path}: found no keys, expected those of a launch file")
    return document, lines


def _of_document(read: Callable[[str, Values], Job]) -> Callable[[str, str], Job]:
    return lambda path, text: read(path, _document(path, text)[0])


def _is_document(text: str) -> bool:
    """Whether a text may be YAML or JSON: not a script."""
    return not text.lstrip().startswith(("#!", "--")) and "--" not in text.partition(":")[0]


class Format(NamedTuple):
    """A format of launch files; `known_by`: its sign, in words."""

    name: str
    known_by: str
    recognise: Callable[[str], object]
    read: Callable[[str, str], Job]


def _laid_over(path: str, text: str) -> Job:
    """A YAML with those that it names below it, read as what both are together."""
    document, absent = chain.laid_over(_document(path, text)[0], Path(path), [])
    whole = yaml.safe_dump(document | ({chain.ABSENT: absent} if absent else {}), sort_keys=False)
    missing = [f"{', '.join(absent)}: not beside this file; what it says is left open"] * bool(absent)
    if (job := job_in(path, whole)) is None:
        raise SpecError(f"{path}: {NOTHING}{''.join(f' ({why})' for why in missing)}")
    job.notes = (*missing, *job.notes)
    return job


def job_in(path: str, text: str) -> Job | None:
    """The job in a text that names no others below it; None where no format is known. Raises SpecError."""
    return next((row.read(path, text) for row in FORMATS[1:] if row.recognise(text)), None)


FORMATS: Sequence[Format] = (
    Format(
        "YAML over others", "`defaults:` or `extends:`",
        lambda text: chain.SIGN.search(text) and _is_document(text), _laid_over,
    ),
    Format(
        "exported plan", "`sweep export --format json`", exported.SIGN.search,
        _of_document(exported.read_json),
    ),
    Format(
        "torchtitan TOML", f"its degrees of parallelism, such as `{of_torchtitan.TP.name} =`",
        lambda text: torchtitan.SIGN.search(text) and "=" in text and "--" not in text.split("\n")[0], _toml,
    ),
    Format(
        "Primus YAML", f"`{of_primus.TRAINERS[0]}:`", of_primus.SIGN.search,
        lambda path, text: primus.read_yaml(path, _document(path, of_primus.DEFAULTED.sub(r"\1", text))[0]),
    ),
    *(
        Format(f"{rows['name']} YAML", rows["known_by"], re.compile(rows["sign"]).search,
               _of_document(partial(plain.read_yaml, rows)))
        for rows in PLAIN
    ),
    Format(
        "MaxText", f"`{of_maxtext.BATCH}`, as a key or in a command", maxtext.SIGN.search,
        lambda path, text: maxtext.read_yaml(path, _document(path, text)[0])
        if _is_document(text) and f"{of_maxtext.BATCH}:" in text
        else maxtext.read_script(path, text),
    ),
    Format(
        "DeepSpeed JSON",
        f"`{of_deepspeed.BATCH.name}`, `{of_deepspeed.MICRO_BATCH.name}` or `{of_deepspeed.ZERO_SECTION.name}`",
        lambda text: text.lstrip().startswith("{") and deepspeed.SIGN.search(text),
        lambda path, text: deepspeed.read_config_of(_document(path, text)[0]),
    ),
    Format(
        "arguments of the Hugging Face Trainer", f"`{of_deepspeed.TRAINER_MICRO_BATCH.name}`, as a key or a flag",
        deepspeed.TRAINER_SIGN.search,
        lambda path, text: deepspeed.read_config_of(_document(path, text)[0])
        if _is_document(text) and "--per" not in text
        else deepspeed.read_trainer_script(text),
    ),
    Format(
        "Megatron-LM YAML", f"`MODEL_ARGS:`, or `{megatron_arguments.LAYERS.name}: 32` and the like",
        lambda text: megatron.DOCUMENT_SIGN.search(text) and _is_document(text),
        lambda path, text: megatron.read_yaml(path, *_document(path, text)),
    ),
    Format(
        "NeMo or Megatron-Bridge YAML", f"`{TP.name}:` inside a section",
        lambda text: nemo.SIGN.search(text) and _is_document(text), _of_document(nemo.read_yaml),
    ),
    Format(
        "Megatron-LM script", f"flags such as `{megatron_arguments.LAYERS.flag}` or `{TP.flag}`",
        megatron.SIGN.search, megatron.read_script,
    ),
)  # fmt: skip
"""Formats in the order in which they are tried."""
