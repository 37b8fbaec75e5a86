"""The files that can be read: one row for each reader, with how its files are recognised and what can be done with them."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from sim_core import SpecError
from sweep.inputs.log import OUT_OF_MEMORY, READERS
from sweep.inputs.logs.found import LogReader
from sweep.inputs.logs.megatron import MegatronLog
from sweep.inputs.logs.nanotron import NanotronLog
from sweep.inputs.text import head_of, plain, raw_lines
from sweep.inputs.traces.opening import is_folder_of_profiles, is_profile

LOG, LAUNCH, TRACE_FILE = "log", "launch", "trace"
LATEST_SIGN: Final = 2**26
"""Bytes of a file in which a log has to show what it is: some begin with a megabyte of a shell's environment."""
PAGE: Final = "inputs.md"
OF_TRACES: Final = ("sweep inspect", "sweep calibrate kernels", "sweep calibrate nccl", "sweep calibrate stack")
OF_LOGS: Final = ("sweep inspect", "sweep inspect --rows", "sweep init")


class Reader(NamedTuple):
    """A kind of file. `known_by`: its sign, in words; `does`: the commands that take it; `page`: where it is described."""

    name: str
    kind: str
    known_by: str
    recognise: Callable[[str], bool]  # from the first characters of the file, unpacked
    does: tuple[str, ...]
    page: str = PAGE


def _signs(*readers: type[LogReader]) -> Callable[[str], bool]:
    pattern = re.compile("|".join(sign for reader in readers for sign in reader.SIGNS))
    return lambda text: pattern.search(text) is not None


def _out_of_memory(text: str) -> bool:
    return OUT_OF_MEMORY.search(text) is not None


ROWS: Final[Sequence[Reader]] = (
    Reader(
        "profiler trace of PyTorch (Kineto)", TRACE_FILE, "`traceEvents`, or a list of events with `ph`",
        is_profile, OF_TRACES, "traces.md",
    ),
    Reader("log of nanotron", LOG, "`elapsed_time_per_iteration_ms:`", _signs(NanotronLog), OF_LOGS),
    Reader(
        "log of Megatron-LM, Megatron-DeepSpeed, Megatron-Bridge or GPT-NeoX", LOG,
        "`elapsed time per iteration (ms):`, a dump between `arguments` lines, or `using world size:`",
        _signs(MegatronLog), OF_LOGS,
    ),
    Reader("log of a run that was out of memory", LOG, "`CUDA out of memory`", _out_of_memory, OF_LOGS),
)  # fmt: skip
"""Rows in the order in which they are tried."""


def recognised(path: str | Path) -> Reader | None:
    """The reader of a file, by its content; None for one that no row knows. Raises SpecError for broken gzip, OSError."""
    place = Path(path)
    if not place.is_file():
        return None
    head = head_of(place).decode("utf-8", "replace")
    for row in ROWS:
        if row.recognise(head):
            return row
    return _late_log(place, len(head)) if _may_be_log(head) else None


def is_trace(path: str) -> bool:
    """Whether a file, or what is in a folder, is a profiler trace. Raises SpecError for broken gzip, OSError."""
    row = recognised(path)
    return row.kind == TRACE_FILE if row is not None else is_folder_of_profiles(path)


def _may_be_log(head: str) -> bool:
    """Whether a file may be a log that has not shown its sign yet: text, and not a document."""
    return "\x00" not in head and not head.lstrip().startswith(("{", "["))


def _late_log(path: Path, passed: int) -> Reader | None:
    """The reader of a log whose sign comes late."""
    keys = {key for reader in READERS for key in reader.KEYS if len(key) > 2}
    seen = 0
    for raw in raw_lines(path):
        seen += len(raw)
        if seen > LATEST_SIGN:
            return None
        if seen > passed and any(key in raw for key in keys):
            line = plain(raw)
            row = next((row for row in ROWS if row.kind == LOG and row.recognise(line)), None)
            if row is not None:
                return row
    return None


def known_formats() -> str:
    """All formats in words, for a message."""
    return "; ".join(row.name for row in ROWS)


def cannot(path: str | Path, row: Reader, command: str) -> SpecError:
    """What to say of a file that `command` does not take: what it is, and which commands do."""
    return SpecError(f"{path}: is a {row.name}, which `{command}` does not take; what does: {', '.join(row.does)}")
