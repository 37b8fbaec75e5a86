"""A step as a Chrome trace, which ui.perfetto.dev and chrome://tracing open: a replay beside its recording, or one plan.

Source of the format: "Trace Event Format", Google, 2016 (complete events `X`, metadata events `M`, counters `C`, flows `s` and
`f`; microseconds). Perfetto keeps whole nanoseconds, and drops a slice that overlaps another of its thread and is not in it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from sim_core import (
    PARTS,
    SPAN_KINDS,
    STREAMS,
    Fields,
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
from sweep.wording import Values

MOST_BLOCKS = 1_000_000
"""Blocks of a step that are drawn; a file of these has about 700 MB."""
_BLOCK_BYTES = 700

RECORDED, REPLAYED = 1, 2
WAIT = "wait"
LEAST_WAIT_S = 1e-6
_NS = 1e9
_IN_US = 1000
_SHORT = {"forward": "F", "backward": "B", "input gradient": "I", "weight gradient": "W"}
_PARTS = tuple(name.removesuffix("_s").removeprefix("compute_") for name in PARTS)
_COLOUR = {
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


class Drawn(NamedTuple):
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
    step = timeline(sweep.workload, sweep.hardware, plans)
    result, totals = step.result(), step.totals()
    with naming(output), output.open("w", encoding="utf-8") as out:
        written = write_plan(step, {"plan": number, "result": str(opened.folder), **result}, drawn, out)
    return Drawn(tuple(drawn), float(result["step_time_s"]), written, max(abs(totals[name] - result[name]) for name in PARTS))


def write_plan(timeline: Timeline, facts: Values, stages: Sequence[int], out: TextIO) -> int:
    """Write the timeline of a plan, stage by stage; returns the number of its spans. `facts` are kept beside the events.

    A process is a stage, its threads are the streams that it uses. Blocks have their seconds by part as arguments.
    """
    spans, written = timeline.spans, 0
    begin, end = _ns(spans.start_s), _ns(spans.end_s)
    thread = np.zeros(len(begin), int)
    out.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[')
    for stage in stages:
        rows = np.flatnonzero(spans.stage == stage)
        begin[rows], end[rows], lane = _lanes(spans.stream[rows], begin[rows], end[rows])
        drawn = begin[rows] < end[rows]
        rows, lane = rows[drawn], lane[drawn]
        threads, thread[rows] = np.unique(np.stack((spans.stream[rows], lane)), axis=1, return_inverse=True)
        names = [STREAMS[stream] + (f" {copy + 1}" if copy else "") for stream, copy in threads.T.tolist()]
        events = [*_named(stage, f"stage {stage}", dict(enumerate(names)))]
        events += [_span(spans, row, int(thread[row]), (int(begin[row]), int(end[row]))) for row in rows.tolist()]
        held = timeline.held
        at = np.flatnonzero(held.stage == stage)
        for row in at[np.diff(held.bytes[at], prepend=-1.0) != 0].tolist():  # the bytes on a rank, whenever they change
            counter = {"ph": "C", "pid": stage, "name": "memory", "ts": _us(int(_ns(held.at_s[row])))}
            events.append(counter | {"args": {"bytes": round(float(held.bytes[row]))}})
        out.write(("," if written else "") + ",".join(json.dumps(event, separators=(",", ":")) for event in events))
        written += len(rows)
    for number, pair in enumerate(timeline.sends.tolist()):
        if all(spans.stage[row] in stages for row in pair):
            # an arrow from the end of a block, its last nanosecond, to the beginning of the one that it sends to
            name = "send activations" if SPAN_KINDS[spans.kind[pair[0]]] == "forward" else "send gradients"
            ends = ({"ph": "s"}, int(end[pair[0]]) - 1), ({"ph": "f", "bp": "e"}, int(begin[pair[1]]))
            for row, (kind, ns) in zip(pair, ends, strict=True):
                place = {"pid": int(spans.stage[row]), "tid": int(thread[row]), "ts": _us(ns)}
                out.write("," + json.dumps({**kind, "id": number, "name": name, "cat": "send", **place}, separators=(",", ":")))
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


def _span(spans: Spans, row: int, thread: int, ns: tuple[int, int]) -> Fields:
    """One span: a block by its micro-batch, with the parts of its seconds."""
    kind, chunk, micro_batch = SPAN_KINDS[spans.kind[row]], int(spans.chunk[row]), int(spans.micro_batch[row])
    args: Fields = {name: value for name, value in (("chunk", chunk), ("micro_batch", micro_batch)) if value >= 0}
    args |= {
        f"{name}_ms": round(value * 1e3, 6) for name, value in zip(_PARTS, spans.parts[row].tolist(), strict=True) if value
    }
    if spans.shared_s[row] > 0:
        args["shared_nics_ms"] = round(float(spans.shared_s[row]) * 1e3, 6)
    name = kind if micro_batch < 0 else f"{_SHORT.get(kind, kind)} {micro_batch}"
    return _slice(int(spans.stage[row]), thread, name, ns, args) | {"cat": kind, "cname": _COLOUR.get(kind.split()[0], "grey")}


def _process(number: int, name: str, what: str, played: Sequence[Played]) -> Iterator[Fields]:
    rows = dict.fromkeys((event.row, event.stage) for event in played)
    yield from _named(number, name, {row: f"{what} {row}" + f" (stage {stage})" * (what == "rank") for row, stage in rows})
    for event in played:
        begin, waited, end = _ns(np.array([event.start_s, event.start_s + event.wait_s, event.end_s])).tolist()
        yield _slice(number, event.row, event.name, (begin, end), {"wait_ms": event.wait_s * 1e3})
        if event.wait_s > LEAST_WAIT_S:
            yield _slice(number, event.row, WAIT, (begin, waited), {"for": event.name})


def _named(process: int, name: str, threads: Mapping[int, str]) -> Iterator[Fields]:
    """Name and place of a process, and the names of its threads."""
    told = [(0, "process_name", {"name": name}), (0, "process_sort_index", {"sort_index": process})]
    for thread, kind, args in (*told, *((number, "thread_name", {"name": text}) for number, text in threads.items())):
        yield {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": args}


def _ns(seconds: Floats) -> Ints:
    """Whole nanoseconds: both ends of a slice are rounded, not its length, so that the next one begins where it ends."""
    return np.rint(seconds * _NS).astype(int)


def _us(ns: int) -> float:
    """The microseconds of which Perfetto, which cuts off what is left behind its nanoseconds, makes `ns` again."""
    us = ns / _IN_US
    return us if int(us * _IN_US) == ns else math.nextafter(us, math.inf)


def _slice(process: int, thread: int, name: str, ns: tuple[int, int], args: Fields) -> Fields:
    place = {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": "wait" if name == WAIT else "step"}
    return place | {"ts": _us(ns[0]), "dur": _us(ns[1] - ns[0]), "args": args}
