"""The events of a rank read from the entries of its file: which of them count, and which of their numbers."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from sim_core import FormatError, Values
from sweep.frameworks.names import by_word
from sweep.inputs.traces.events import Collective, Events, GpuEvents, Launches, Operators

_GPU_CATS = by_word(
    {False: "kernel Kernel mtia_ccp_events privateuse1_driver_kernel", True: "gpu_memcpy gpu_memset Memcpy Memset"}
)
"""Categories of GPU events, with whether they copy or fill memory; the capitals are those of 2020 and 2021."""
_OPS = ("cpu_op", "Operator")
_ANNOTATIONS = ("user_annotation", "Operator", "cpu_op")
_LAUNCHES = ("_runtime", "_driver")
_MEMORY_EVENT = "[memory]"
STEP = "ProfilerStep#"
COLLECTIVE_OP = "record_param_comms"
_STAGE = re.compile(r"pipeline_parallel/schedules\.py\(\d+\): (for|back)ward_step$|pipelining/stage\.py\(\d+\): \w+_one_chunk$")
"""Functions that run a forward or a backward of a pipeline's stage."""
LARGEST_US = 1e18


Row = tuple[float | int, ...]


class _Reader(Events):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.numbers: dict[str, int] = {}
        self.threads: dict[tuple[str, str], int] = {}
        self.origin: float | None = None
        self.gpu_rows: list[Row] = []
        self.host_rows: list[Row] = []
        self.op_rows: list[Row] = []

    def take(self, event: Values) -> None:
        """Take one event, or pass it."""
        phase, cat, name, args = event.get("ph"), event.get("cat"), event.get("name"), event.get("args")
        args = args if isinstance(args, dict) else {}
        if phase == "i" and name == _MEMORY_EVENT and _whole(args.get("Device Type")) != 0:  # 0: of the host
            self.memory_events += 1
            self.allocated_bytes = max(self.allocated_bytes, _whole(args.get("Total Allocated"), 0))
            self.reserved_bytes = max(self.reserved_bytes, _whole(args.get("Total Reserved"), 0))
        if phase != "X" or not isinstance(cat, str):
            return
        if cat in _GPU_CATS:
            self._gpu(event, args, int(_GPU_CATS[cat]))
        elif cat.endswith(_LAUNCHES) or cat == "Runtime":
            if (times := self._times(event)) is not None:
                self.host_rows.append((*times, self._number(name), self._thread(event), _whole(args.get("correlation"))))
        elif cat in _ANNOTATIONS:
            self._operator(event, args, cat)
        elif cat == "python_function":
            text = str(name)
            if "ward_" in text and _STAGE.search(text) and (times := self._times(event)) is not None:
                self.annotations.append((text, *times, self._thread(event)))

    def done(self) -> Events:
        """The events as columns."""
        self.names = list(self.numbers)
        self.gpu = GpuEvents(*_columns(self.gpu_rows, len(GpuEvents._fields)))
        self.host = Launches(*_columns(self.host_rows, len(Launches._fields)))
        self.ops = Operators(*_columns(self.op_rows, len(Operators._fields)))
        return self

    def _times(self, event: Values) -> tuple[float, float] | None:
        """Start since the first event, and duration; None where they are no numbers."""
        start, duration = _us(event.get("ts")), _us(event.get("dur", 0))
        if start is None or duration is None or duration < 0:
            self.doubtful += 1
            return None
        if self.origin is None:
            self.origin = start
        return start - self.origin, duration

    def _number(self, name: object) -> int:
        return self.numbers.setdefault(name if isinstance(name, str) else "", len(self.numbers))

    def _thread(self, event: Values) -> int:
        return self.threads.setdefault((str(event.get("pid")), str(event.get("tid"))), len(self.threads))

    def _gpu(self, event: Values, args: Values, memory: int) -> None:
        if (times := self._times(event)) is None:
            return
        if (told := _collective(args)) is not None:
            self.collectives[len(self.gpu_rows)] = told
        stream, correlation = _whole(args.get("stream", event.get("tid"))), _whole(args.get("correlation"))
        self.gpu_rows.append((*times, self._number(event.get("name")), memory, stream, correlation, _external(args)))

    def _operator(self, event: Values, args: Values, cat: str) -> None:
        times, name = self._times(event), event.get("name")
        if times is None or not isinstance(name, str):
            return
        if (number_of_event := _whole(args.get("Ev Idx"))) >= 0:
            count, low, high = self.numbered
            self.numbered = (count + 1, min(low, number_of_event) if count else number_of_event, max(high, number_of_event))
        if name.startswith(STEP):
            number = name[len(STEP) :]
            if number.isdecimal() and len(name) < 30 and (int(number), *times) not in self.steps[-2:]:
                self.steps.append((int(number), *times))
        elif cat not in _OPS:
            self.annotations.append((name, *times, self._thread(event)))
        else:
            if name == COLLECTIVE_OP and (told := _collective(args)) is not None:
                self.op_collectives[len(self.op_rows)] = told
            self.op_rows.append((*times, self._number(name), self._thread(event), _external(args)))


def _columns(rows: list[Row], width: int) -> list[Any]:
    """Rows as columns, which take their place: the start and the duration as float64, all others as int64."""
    table = list(zip(*rows, strict=True)) or [()] * width
    rows.clear()
    return [np.array(column, float if place < 2 else int) for place, column in enumerate(table)]


_ABOUT = {"distributedInfo", "deviceProperties"}
"""Keys of a file that say how it was made."""


def read_events(name: str, entries: Iterable[tuple[str, Any]]) -> Events:
    """The events of a rank from the entries of its file (`stream.entries`). Raises FormatError for a file without any."""
    reader, number = _Reader(name), 0
    for key, value in entries:
        if key:
            if key in _ABOUT:
                reader.about[key] = value
            continue
        number += 1
        if isinstance(value, dict):
            reader.take(value)
    if not number:
        raise FormatError(name, 1, "events", "none", "traceEvents, as PyTorch's profiler writes them")
    return reader.done()


def _us(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return float(value) if type(value) in (int, float) and abs(value) < LARGEST_US else None


def _whole(value: Any, default: int = -1) -> int:
    """A whole number such as an id; `default` where there is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    if type(value) not in (int, float) or not abs(value) < 2**62:
        return default
    return int(value)


def _external(args: Values) -> int:
    return _whole(args.get("External id", args.get("external id")))


def _collective(args: Values) -> Collective | None:
    name = args.get("Collective name")
    if not isinstance(name, str) or not name:
        return None
    sent, got, size = (_whole(args.get(key), 0) for key in ("In msg nelems", "Out msg nelems", "Group size"))
    dtype, description = (
        "" if (text := args.get(key)) is None else str(text)[:200] for key in ("dtype", "Process Group Description")
    )
    return Collective(name[:60], sent, got, dtype, size, description)
