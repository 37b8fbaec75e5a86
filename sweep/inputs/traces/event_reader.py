"""The events of a rank read from the entries of its file: which of them count, and which of their numbers."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from sim_core import FormatError
from sweep.inputs.traces.events import Collective, Events, GpuEvents, Launches, Operators, Shaped

_GPU_CATS: Final = {
    "kernel": False,
    "Kernel": False,
    "gpu_memcpy": True,
    "gpu_memset": True,
    "Memcpy": True,
    "Memset": True,
    "mtia_ccp_events": False,
    "privateuse1_driver_kernel": False,
}
"""Categories of GPU events, with whether they copy or fill memory; the capitals are those of 2020 and 2021."""
_OPS: Final = ("cpu_op", "Operator")
_ANNOTATIONS: Final = ("user_annotation", "Operator", "cpu_op")
_LAUNCHES: Final = ("_runtime", "_driver")
_MEMORY_EVENT: Final = "[memory]"
STEP: Final = "ProfilerStep#"
COLLECTIVE_OP: Final = "record_param_comms"
_SHAPED: Final = frozenset(("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"))
_STAGE: Final = re.compile(
    r"pipeline_parallel/schedules\.py\(\d+\): (for|back)ward_step$|pipelining/stage\.py\(\d+\): \w+_one_chunk$"
)
"""Functions that run a forward or a backward of a pipeline's stage."""
_LAYER: Final = re.compile(r"nn\.Module: \w*(Layer|Block)_\d+$")
LARGEST_US: Final = 1e18


class _Reader:
    def __init__(self, name: str) -> None:
        self.events = Events(name)
        self.numbers: dict[str, int] = {}
        self.threads: dict[tuple[Any, Any], int] = {}
        self.origin: float | None = None
        self.gpu: list[tuple[float | int, ...]] = []
        self.host: list[tuple[float | int, ...]] = []
        self.ops: list[tuple[float | int, ...]] = []

    def take(self, event: Mapping[str, Any]) -> None:
        """Take one event, or pass it."""
        phase, cat = event.get("ph"), event.get("cat")
        if phase == "i" and event.get("name") == _MEMORY_EVENT:
            self._memory(event)
        if phase != "X" or not isinstance(cat, str):
            return
        memory = _GPU_CATS.get(cat)
        if memory is not None:
            self._gpu(event, memory)
        elif cat.endswith(_LAUNCHES) or cat == "Runtime":
            times = self._times(event)
            if times is not None:
                correlation = _id(_args(event), "correlation")
                self.host.append((*times, self._number(event.get("name")), self._thread(event), correlation))
        elif cat in _ANNOTATIONS:
            self._operator(event, cat)
        elif cat == "python_function":
            self._function(event)

    def _function(self, event: Mapping[str, Any]) -> None:
        name = str(event.get("name"))
        if _LAYER.match(name) and (times := self._times(event)) is not None:
            self.events.layers.append(times)
        elif "ward_" in name and _STAGE.search(name) and (times := self._times(event)) is not None:
            self.events.annotations.append((name, *times, self._thread(event)))

    def done(self) -> Events:
        """The events as columns."""
        events = self.events
        events.origin_us = self.origin or 0.0
        events.names = list(self.numbers)
        events.gpu = GpuEvents(*_columns(self.gpu, len(GpuEvents._fields)))
        events.host = Launches(*_columns(self.host, len(Launches._fields)))
        events.ops = Operators(*_columns(self.ops, len(Operators._fields)))
        return events

    def _times(self, event: Mapping[str, Any]) -> tuple[float, float] | None:
        """Start since the first event, and duration; None where they are no numbers."""
        start, duration = _us(event.get("ts")), _us(event.get("dur", 0))
        if start is None or duration is None or duration < 0:
            self.events.doubtful += 1
            return None
        if self.origin is None:
            self.origin = start
        return start - self.origin, duration

    def _number(self, name: object) -> int:
        text = name if isinstance(name, str) else ""
        return self.numbers.setdefault(text, len(self.numbers))

    def _thread(self, event: Mapping[str, Any]) -> int:
        key = (str(event.get("pid")), str(event.get("tid")))
        return self.threads.setdefault(key, len(self.threads))

    def _gpu(self, event: Mapping[str, Any], memory: bool) -> None:
        times, args = self._times(event), _args(event)
        if times is None:
            return
        stream = _whole(args.get("stream", event.get("tid")), -1)
        if (told := _collective(args)) is not None:
            self.events.collectives[len(self.gpu)] = told
        self.gpu.append(
            (*times, self._number(event.get("name")), int(memory), stream, _id(args, "correlation"), _external(args))
        )

    def _operator(self, event: Mapping[str, Any], cat: str) -> None:
        times, name = self._times(event), event.get("name")
        if times is None or not isinstance(name, str):
            return
        args = _args(event)
        if (number_of_event := _id(args, "Ev Idx")) >= 0:
            count, low, high = self.events.numbered
            least = min(low, number_of_event) if count else number_of_event
            self.events.numbered = (count + 1, least, max(high, number_of_event))
        if name.startswith(STEP):
            number = name[len(STEP) :]
            if number.isdecimal() and len(name) < 30 and (int(number), *times) not in self.events.steps[-2:]:
                self.events.steps.append((int(number), *times))
            return
        if cat not in _OPS:
            self.events.annotations.append((name, *times, self._thread(event)))
            return
        if name in _SHAPED and (shaped := _shapes(args)) is not None:
            self.events.shapes[len(self.ops)] = shaped
        elif name == COLLECTIVE_OP and (told := _collective(args)) is not None:
            self.events.op_collectives[len(self.ops)] = told
        self.ops.append((*times, self._number(name), self._thread(event), _external(args)))

    def _memory(self, event: Mapping[str, Any]) -> None:
        args = _args(event)
        if _whole(args.get("Device Type"), -1) == 0:  # of the host
            return
        self.events.memory_events += 1
        self.events.allocated_bytes = max(self.events.allocated_bytes, _whole(args.get("Total Allocated"), 0))
        self.events.reserved_bytes = max(self.events.reserved_bytes, _whole(args.get("Total Reserved"), 0))


def _columns(rows: list[tuple[float | int, ...]], width: int) -> list[Any]:
    """Rows as columns: the start and the duration as float64, all others as int64."""
    table = list(zip(*rows, strict=True)) or [()] * width
    return [np.array(column, np.float64 if place < 2 else np.int64) for place, column in enumerate(table)]


_ABOUT: Final = {
    "distributedInfo", "deviceProperties", "baseTimeNanoseconds", "record_shapes", "with_stack", "profile_memory",
    "schemaVersion",
}  # fmt: skip
"""Keys of a file that say how it was made."""


def read_events(name: str, entries: Iterable[tuple[str, Any]]) -> Events:
    """The events of a rank from the entries of its file (`stream.entries`). Raises FormatError for a file without any."""
    reader, number = _Reader(name), 0
    for key, value in entries:
        if key:
            if key in _ABOUT:
                reader.events.about[key] = value
            continue
        number += 1
        if isinstance(value, dict):
            reader.take(value)
    if not number:
        raise FormatError(name, 1, "events", found="none", expected="traceEvents, as PyTorch's profiler writes them")
    return reader.done()


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _us(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST_US and math.isfinite(value) else None


def _whole(value: object, default: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**62:
        return default
    return int(value)


def _id(args: Mapping[str, Any], key: str) -> int:
    """An id of an event; -1 where it has none."""
    return _whole(args.get(key), -1)


def _external(args: Mapping[str, Any]) -> int:
    return _whole(args.get("External id", args.get("external id")), -1)


def _collective(args: Mapping[str, Any]) -> Collective | None:
    name = args.get("Collective name")
    if not isinstance(name, str) or not name:
        return None
    sequence = _whole(args.get("Seq"), -1)
    return Collective(
        name[:60],
        _whole(args.get("In msg nelems"), 0),
        _whole(args.get("Out msg nelems"), 0),
        _text(args, "dtype"),
        _text(args, "Process Group Name"),
        _whole(args.get("Group size"), 0),
        _text(args, "Process Group Description"),
        None if sequence < 0 else sequence,
    )


def _text(args: Mapping[str, Any], key: str) -> str:
    value = args.get(key)
    return value[:200] if isinstance(value, str) else "" if value is None else str(value)[:200]


def _shapes(args: Mapping[str, Any]) -> Shaped | None:
    dims, types, strides = args.get("Input Dims"), args.get("Input type"), args.get("Input Strides")
    if not isinstance(dims, list):
        return None
    words = tuple(str(each)[:40] for each in types) if isinstance(types, list) else ()
    return Shaped(_sizes(dims), words, _sizes(strides) if isinstance(strides, list) else ())


def _sizes(lists: list[Any]) -> tuple[tuple[int, ...], ...]:
    """Sizes of each operand; empty for one that is no tensor or is not understood."""
    found = []
    for each in lists:
        whole = isinstance(each, list) and all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 2**40 for x in each)
        found.append(tuple(each) if whole else ())
    return tuple(found)
