"""A step as a Chrome trace, which ui.perfetto.dev and chrome://tracing open: a replay beside its recording, or one plan.

Source of the format: "Trace Event Format", Google, 2016 (complete events `X`, metadata events `M`, counters `C`, flows `s` and
`f`; microseconds). Perfetto keeps whole nanoseconds, and drops a slice that overlaps another of its thread and is not in it.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np

from sim_core import (
    PARTS,
    SPAN_KINDS,
    STREAMS,
    Floats,
    Ints,
    Played,
    Replay,
    Spans,
    SpecError,
    Timeline,
    blocks_of,
    short,
    timeline,
)
from sweep.evaluation.one_plan import plans_of
from sweep.outputs import naming
from sweep.reopening import Reopened

MOST_BLOCKS: Final = 1_000_000
"""Blocks of a step that are drawn; a file of these has about 700 MB."""
_BLOCK_BYTES: Final = 700

RECORDED, REPLAYED = 1, 2
WAIT: Final = "wait"
LEAST_WAIT_S: Final = 1e-6
_NS: Final = 1e9
_IN_US: Final = 1000
_SHORT: Final = {"forward": "F", "backward": "B", "input gradient": "I", "weight gradient": "W"}
_COLOUR: Final = {
    "forward": "thread_state_running",
    "backward": "rail_animation",
    "input": "rail_animation",
    "weight": "rail_load",
    "wait": "grey",
    "slower": "terrible",
    "optimizer": "rail_idle",
    "collective": "bad",
}
"""Colours of chrome://tracing; Perfetto chooses its own by name."""


def chrome_trace(measured: Sequence[Played], replayed: Replay) -> str:
    """The text of a trace: two processes, one thread per rank (per stage, if means were replayed); waits are slices."""
    what = "rank" if replayed.of_ranks else "stage"
    events = [*_process(RECORDED, "recorded", "rank", measured), *_process(REPLAYED, "replayed", what, replayed.events)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What was written of a plan. `off_s`: the most that a part of the step differs from that of the result."""

    stages: tuple[int, ...]
    step_time_s: float
    spans: int
    off_s: float


def drawn_plan(opened: Reopened, number: int, chosen: Callable[[int], Sequence[int]], output: Path) -> Drawn:
    """Write the step of a plan of a result; `chosen` tells the stages to draw, of so many. Raises SimError, OSError."""
    sweep, plans = opened.prepared.sweep.of_plan(number), plans_of(opened.prepared, number)
    count = int(plans.pp[0])
    drawn = chosen(count)
    blocks = blocks_of(plans) * len(drawn) // count
    if blocks > MOST_BLOCKS:
        size = short(blocks * _BLOCK_BYTES, "B")
        raise SpecError(f"plan {number}: {blocks:,} blocks, about {size}; --stages draws some of its {count} stages")
    spans = timeline(sweep.workload, sweep.hardware, plans)
    result, totals = spans.result(), spans.totals()
    with naming(output), output.open("w", encoding="utf-8") as out:
        written = write_plan(spans, {"plan": number, "result": str(opened.folder), **result}, drawn, out)
    off = max(abs(totals[name] - result[name]) for name in PARTS)
    return Drawn(stages=tuple(drawn), step_time_s=float(result["step_time_s"]), spans=written, off_s=off)


def write_plan(timeline: Timeline, facts: Mapping[str, Any], stages: Sequence[int], out: TextIO) -> int:
    """Write the timeline of a plan, stage by stage; returns the number of its spans. `facts` are kept beside the events.

    A process is a stage, its threads are the streams that it uses. Blocks have their seconds by part as arguments.
    """
    spans, written = timeline.spans, 0
    begin, end = _ns(spans.start_s), _ns(spans.end_s)
    names = [name.removesuffix("_s").removeprefix("compute_") for name in PARTS]
    out.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[')
    thread = np.zeros(len(begin), np.int64)
    for stage in stages:
        rows = np.flatnonzero(spans.stage == stage)
        begin[rows], end[rows], lane = _lanes(spans.stream[rows], begin[rows], end[rows])
        rows, lane = rows[begin[rows] < end[rows]], lane[begin[rows] < end[rows]]
        threads, thread[rows] = np.unique(np.stack((spans.stream[rows], lane)), axis=1, return_inverse=True)
        events = _of_process(stage, f"stage {stage}")
        for number, (stream, copy) in enumerate(threads.T.tolist()):
            events.append(_thread(stage, number, STREAMS[stream] + (f" {copy + 1}" if copy else "")))
        events += [_span(spans, int(row), int(thread[row]), (int(begin[row]), int(end[row])), names) for row in rows]
        events += _memory(timeline, stage)
        out.write(("," if written else "") + ",".join(json.dumps(event, separators=(",", ":")) for event in events))
        written += len(rows)
    for number, (sender, receiver) in enumerate(timeline.sends.tolist()):
        if spans.stage[sender] in stages and spans.stage[receiver] in stages:
            for flow in _flow(spans, number, (sender, receiver), thread, (int(end[sender]), int(begin[receiver]))):
                out.write("," + json.dumps(flow, separators=(",", ":")))
    out.write("]}\n")
    return written


def _lanes(stream: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Begin and end of spans in nanoseconds, and of each the first copy of its stream that is free.

    Messages of a stage may overlap, so they need several. Other streams do not, but for the rounding of their seconds.
    """
    free: dict[int, list[int]] = {}
    lane = np.zeros_like(begin)
    begin, end = begin.copy(), end.copy()
    for k in np.lexsort((end, begin)).tolist():
        copies = free.setdefault(int(stream[k]), [])
        at = next((at for at, until in enumerate(copies) if until <= begin[k] + 1), len(copies))
        copies += [0] * (at == len(copies))
        begin[k] = max(int(begin[k]), copies[at])
        end[k] = copies[at] = max(int(begin[k]), int(end[k]))
        lane[k] = at
    return begin, end, lane


def _memory(timeline: Timeline, stage: int) -> Iterable[dict[str, Any]]:
    """The bytes on a rank of a stage, whenever they change."""
    memory = timeline.held
    rows = np.flatnonzero(memory.stage == stage)
    changed = np.diff(memory.bytes[rows], prepend=-1.0) != 0
    for row in rows[changed].tolist():
        at = {"ts": _us(int(_ns(memory.at_s[row]))), "args": {"bytes": round(float(memory.bytes[row]))}}
        yield {"ph": "C", "pid": stage, "name": "memory", **at}


def _flow(spans: Spans, number: int, rows: tuple[int, int], thread: Ints, at: tuple[int, int]) -> Iterable[dict[str, Any]]:
    """An arrow from the end of a block, its last nanosecond, to the beginning of the one that it sends to."""
    name = "send activations" if SPAN_KINDS[spans.kind[rows[0]]] == "forward" else "send gradients"
    for row, end, ns in zip(rows, ({"ph": "s"}, {"ph": "f", "bp": "e"}), (at[0] - 1, at[1]), strict=True):
        place = {"pid": int(spans.stage[row]), "tid": int(thread[row]), "ts": _us(ns)}
        yield {**end, "id": number, "name": name, "cat": "send", **place}


def _span(spans: Spans, row: int, thread: int, ns: tuple[int, int], parts: Sequence[str]) -> dict[str, Any]:
    """One span: a block by its micro-batch, with the parts of its seconds."""
    kind, chunk, micro_batch = SPAN_KINDS[spans.kind[row]], int(spans.chunk[row]), int(spans.micro_batch[row])
    args: dict[str, Any] = {name: value for name, value in (("chunk", chunk), ("micro_batch", micro_batch)) if value >= 0}
    args |= {f"{name}_ms": round(value * 1e3, 6) for name, value in zip(parts, spans.parts[row].tolist(), strict=True) if value}
    if spans.shared_s[row] > 0:
        args["shared_nics_ms"] = round(float(spans.shared_s[row]) * 1e3, 6)
    name = kind if micro_batch < 0 else f"{_SHORT.get(kind, kind)} {micro_batch}"
    event = _slice(int(spans.stage[row]), thread, name, ns, args)
    return event | {"cat": kind, "cname": _COLOUR.get(kind.split()[0], "grey")}


def _process(number: int, name: str, what: str, played: Sequence[Played]) -> Iterable[dict[str, Any]]:
    yield from _of_process(number, name)
    for row, stage in dict.fromkeys((event.row, event.stage) for event in played):
        yield _thread(number, row, f"{what} {row}" + (f" (stage {stage})" if what == "rank" else ""))
    for event in played:
        begin, waited, end = _ns(np.array([event.start_s, event.start_s + event.wait_s, event.end_s])).tolist()
        yield _slice(number, event.row, event.name, (begin, end), {"wait_ms": event.wait_s * 1e3})
        if event.wait_s > LEAST_WAIT_S:
            yield _slice(number, event.row, WAIT, (begin, waited), {"for": event.name})


def _of_process(process: int, name: str) -> list[dict[str, Any]]:
    """Name and place of a process."""
    about = {"process_name": {"name": name}, "process_sort_index": {"sort_index": process}}
    return [{"ph": "M", "pid": process, "tid": 0, "name": kind, "args": args} for kind, args in about.items()]


def _thread(process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _ns(seconds: Floats) -> Ints:
    """Whole nanoseconds: both ends of a slice are rounded, not its length, so that the next one begins where it ends."""
    return np.rint(seconds * _NS).astype(np.int64)


def _us(ns: int) -> float:
    """The microseconds of which Perfetto, which cuts off what is left behind its nanoseconds, makes `ns` again."""
    us = ns / _IN_US
    return us if int(us * _IN_US) == ns else math.nextafter(us, math.inf)


def _slice(process: int, thread: int, name: str, ns: tuple[int, int], args: dict[str, Any]) -> dict[str, Any]:
    place = {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": "wait" if name == WAIT else "step"}
    return place | {"ts": _us(ns[0]), "dur": _us(ns[1] - ns[0]), "args": args}
