"""A step as a Chrome trace, which ui.perfetto.dev and chrome://tracing open: a replay beside its recording, or one plan.

Source of the format: "Trace Event Format", Google, 2016 (complete events `X`, metadata events `M`; microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

import numpy as np

from sim_core import PARTS, SPAN_KINDS, STREAMS, Played, Replay, Spans, Timeline

RECORDED, REPLAYED = 1, 2
WAIT: Final = "wait"
LEAST_WAIT_S: Final = 1e-6
_US: Final = 1e6
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


def write_plan(timeline: Timeline, facts: Mapping[str, Any], stages: Sequence[int], out: TextIO) -> int:
    """Write the timeline of a plan, stage by stage; returns the number of its spans. `facts` are kept beside the events.

    A process is a stage, its threads are the streams that it uses. Blocks have their seconds by part as arguments.
    """
    spans, written = timeline.spans, 0
    names = [name.removesuffix("_s").removeprefix("compute_") for name in PARTS]
    out.write(f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[')
    for at, stage in enumerate(stages):
        rows = np.flatnonzero(spans.stage == stage)
        events = [_named(stage, 0, "process_name", f"stage {stage}")]
        events.append({"ph": "M", "pid": stage, "tid": 0, "name": "process_sort_index", "args": {"sort_index": stage}})
        events += [_named(stage, stream, "thread_name", STREAMS[stream]) for stream in np.unique(spans.stream[rows]).tolist()]
        events += [_span(spans, int(row), names) for row in rows]
        out.write(("," if at else "") + ",".join(json.dumps(event, separators=(",", ":")) for event in events))
        written += len(rows)
    out.write("]}\n")
    return written


def _span(spans: Spans, row: int, parts: Sequence[str]) -> dict[str, Any]:
    """One span: a block by its micro-batch, with the parts of its seconds."""
    kind, chunk, micro_batch = SPAN_KINDS[spans.kind[row]], int(spans.chunk[row]), int(spans.micro_batch[row])
    args: dict[str, Any] = {name: value for name, value in (("chunk", chunk), ("micro_batch", micro_batch)) if value >= 0}
    own = spans.parts[row]
    args |= {f"{parts[part]}_ms": round(float(own[part]) * 1e3, 6) for part in np.flatnonzero(own).tolist()}
    if spans.shared_s[row] > 0:
        args["shared_nics_ms"] = round(float(spans.shared_s[row]) * 1e3, 6)
    name = kind if micro_batch < 0 else f"{_SHORT.get(kind, kind)} {micro_batch}"
    event = _slice(
        int(spans.stage[row]), int(spans.stream[row]), name, float(spans.start_s[row]), float(spans.end_s[row]), args
    )
    return event | {"cat": kind, "cname": _COLOUR.get(kind.split()[0], "grey")}


def _process(number: int, name: str, what: str, played: Sequence[Played]) -> Iterable[dict[str, Any]]:
    yield _named(number, 0, "process_name", name)
    yield {"ph": "M", "pid": number, "tid": 0, "name": "process_sort_index", "args": {"sort_index": number}}
    for row, stage in dict.fromkeys((event.row, event.stage) for event in played):
        label = f"{what} {row}" + (f" (stage {stage})" if what == "rank" else "")
        yield _named(number, row, "thread_name", label)
    for event in played:
        yield _slice(number, event.row, event.name, event.start_s, event.end_s, {"wait_ms": event.wait_s * 1e3})
        if event.wait_s > LEAST_WAIT_S:
            yield _slice(number, event.row, WAIT, event.start_s, event.start_s + event.wait_s, {"for": event.name})


def _named(process: int, thread: int, kind: str, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": {"name": name}}


def _slice(process: int, thread: int, name: str, start_s: float, end_s: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": round(start_s * _US, 3), "dur": round((end_s - start_s) * _US, 3)}
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "cat": "wait" if name == WAIT else "step",
        **times,
        "args": args,
    }
