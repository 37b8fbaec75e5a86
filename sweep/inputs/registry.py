"""The files that users have: one row for each reader, with how its files are recognised and what can be done with them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sim_core import SimError, SpecError, looks_like_op_table, looks_like_stages, looks_like_trace
from sweep.inputs.launches import FORMATS
from sweep.inputs.log import OUT_OF_MEMORY, READERS
from sweep.inputs.logs.megatron import MegatronLog
from sweep.inputs.text import HEAD_BYTES, head_of, plain, raw_lines
from sweep.inputs.traces.opening import is_folder_of_profiles, is_profile
from sweep.inputs.tracked import KNOWN_BY, SIGN, folder_of

LOG, LAUNCH, TRACE_FILE, WORKLOAD, MODEL, SPEC = "log", "launch", "trace", "workload", "model", "spec"
LATEST_SIGN = 2**26
"""Bytes of a file in which a log has to show what it is: some begin with a megabyte of a shell's environment."""
PAGE = "inputs.md"
OF_TRACES = ("inspect", "inspect --stages")
OF_LOGS = ("inspect", "inspect --rows", "init")


FIRST = 8192
"""Characters in which a text of SimAI shows what it is."""
SIMAI_SIGN = re.compile(
    r"\A\s*(?-i:[A-Z][A-Z_]+)\s|hybrid_transformer|parallel_NPU|^\S+[ \t]+-?\d+[ \t]+-?\d+[ \t]+[A-Z]+[ \t]+-?\d+",
    re.IGNORECASE | re.MULTILINE,
)
OF_MODELS = ("model", "init", "simulate --model")


class Reader(NamedTuple):
    """A kind of file. `known_by`: its sign, in words; `does`: the commands that take it; `page`: where it is described."""

    name: str
    kind: str
    known_by: str
    recognise: Callable[[str], object]  # from the first characters of the file, unpacked
    does: tuple[str, ...]
    page: str = PAGE

    @property
    def with_article(self) -> str:
        """How to speak of one."""
        return f"{'an' if self.name[0] in 'aeio' else 'a'} {self.name}"


OF_WORKLOADS = ("inspect", "init", "simulate", "run")
CONFIG_SIGN = re.compile(r"\A\s*\{[^{}]*?\"(?:model_type|architectures)\"\s*:")
MODEL_SIGN = re.compile(r"^\s{0,2}layers:\s*\d", re.MULTILINE)
SPEC_SIGN = re.compile(r"^(?:axes|workload|fixed|objectives):", re.MULTILINE)

ROWS: Sequence[Reader] = (
    Reader(
        "profiler trace of PyTorch (Kineto)", TRACE_FILE, "`traceEvents`, or a list of events with `ph`",
        is_profile, OF_TRACES, "traces.md",
    ),
    Reader(
        "stage durations of a pipeline", WORKLOAD, "`stage_durations`, or Primus' `rank0:` with `fwd_start`", looks_like_stages,
        ("inspect", "replay", "simulate", "run"), "traces.md",
    ),
    Reader(
        "rank trace", WORKLOAD, "lines of `rank:0:forward_step(...)`", looks_like_trace,
        ("inspect", "replay", *OF_WORKLOADS[1:]), "traces.md",
    ),
    Reader("operator table", WORKLOAD, "its heading, or rows of its form", looks_like_op_table, OF_WORKLOADS, "formats.md"),
    *(
        Reader(
            f"{reader.FRAMEWORK} log", LOG, reader.KNOWN_BY, re.compile("|".join(reader.SIGNS)).search,
            (*OF_LOGS, "inspect --stages") if reader is MegatronLog else OF_LOGS,
        )
        for reader in READERS
    ),
    *(Reader(name, LAUNCH, known_by, recognise, ("inspect", "init")) for name, known_by, recognise, _ in FORMATS),
    Reader("log of a run that was out of memory", LOG, "`CUDA out of memory`", OUT_OF_MEMORY.search, OF_LOGS),
    Reader("config.json of Hugging Face", MODEL, "`model_type` or `architectures`", CONFIG_SIGN.search, OF_MODELS, "models.md"),
    Reader("spec of a sweep", SPEC, "`axes:`, `workload:`", SPEC_SIGN.search, ("run", "search"), "spec.md"),
    Reader("model in numbers", MODEL, "`layers: 32`", MODEL_SIGN.search, OF_MODELS, "models.md"),
    Reader("SimAI text", WORKLOAD, "its first line, `HYBRID_TRANSFORMER...`",
           lambda text: SIMAI_SIGN.search(text[:FIRST]), OF_WORKLOADS, "formats.md"),
    Reader("run of W&B or MLflow", LOG, KNOWN_BY, SIGN.search, OF_LOGS),
)  # fmt: skip
"""Rows in the order in which they are tried; the last is also that of folders of runs."""


def recognised(path: str | Path) -> Reader | None:
    """The reader of a file, by its content; None for one that no row knows. Raises SpecError for broken gzip, OSError."""
    place = Path(path)
    if folder_of(place):
        return ROWS[-1]
    if not place.is_file():
        return None
    raw = head_of(place)
    head = raw.decode("utf-8", "replace")
    for row in ROWS:  # a log may begin with the flags of its launch
        if (row.kind != LAUNCH or len(raw) < HEAD_BYTES) and row.recognise(head):
            return row
    may_be_log = "\x00" not in head and not head.lstrip().startswith(("{", "["))  # text, and not a document
    return _late_log(place, len(head)) if may_be_log else None


def is_trace(path: str) -> bool:
    """Whether a file, or what is in a folder, is a profiler trace. Raises SpecError for broken gzip, OSError."""
    row = recognised(path)
    return row.kind == TRACE_FILE if row is not None else is_folder_of_profiles(path)


def _late_log(path: Path, passed: int) -> Reader | None:
    """The reader of a log whose sign comes late."""
    keys = {key for reader in READERS for key in reader.KEYS if len(key) > 3}
    seen = 0
    for raw in raw_lines(path):
        seen += len(raw)
        if seen > LATEST_SIGN:
            return None
        if seen > passed and any(key in raw for key in keys):
            line = plain(raw)
            if row := next((row for row in ROWS if row.kind == LOG and row.recognise(line)), None):
                return row
    return None


def cannot(path: str | Path, row: Reader, wanted: str) -> SpecError:
    """What to say of a file that is not what was `wanted`: what it is, and which commands take it."""
    return SpecError(f"{path}: is {row.with_article}, not {wanted}; commands that take it: {', '.join(row.does)}")


def unknown(path: str | Path) -> SpecError:
    """What to say of a file that no row knows."""
    head = head_of(Path(path))
    if not head.strip() or b"\0" in head:
        what = "holds no text" if head.strip() else "the file is empty"
        return SpecError(f"{path}: {what}; expected one that docs/{PAGE} lists")
    return SpecError(f"{path}: not recognised; known: {'; '.join(row.name for row in ROWS)} (docs/{PAGE})")


def explained(path: str | Path, error: SimError) -> SimError:
    """The error of a reader of workloads, or a better one: that the file is of another kind, or of none that is known."""
    try:
        row = recognised(path)
    except (OSError, SimError):
        return error
    if row is None:
        return unknown(path) if Path(path).is_file() else error
    return error if row.kind in (WORKLOAD, MODEL) else cannot(path, row, "a workload")
