"""A recorded and a replayed step side by side as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

Source of the format: "Trace Event Format", Google, 2016 (complete events `X`, metadata events `M`; microseconds).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sim_core import Played, Replay

RECORDED, REPLAYED = 1, 2
WAIT: Final = "wait"
LEAST_WAIT_S: Final = 1e-6
_US: Final = 1e6


def chrome_trace(measured: Sequence[Played], replayed: Replay) -> str:
    """The text of a trace: two processes, one thread per rank (per stage, if means were replayed); waits are slices."""
    what = "rank" if replayed.of_ranks else "stage"
    events = [*_process(RECORDED, "recorded", "rank", measured), *_process(REPLAYED, "replayed", what, replayed.events)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events}, separators=(",", ":"))


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
