"""Timelines as files for Perfetto, as it reads them: whole nanoseconds, cut off; a slice that overlaps another is dropped."""

from __future__ import annotations

import io
import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from sim_core import timeline
from sweep.evaluation.one_plan import plans_of, prepare_plan, row_of
from sweep.evaluation.preparation import prepare
from sweep.show.perfetto import write_plan
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES

README_BEST = 1934
SLOW = ["hardware.nic_bandwidth=2 GB/s", "hardware.memory=900 GB"]
PLANS: dict[str, list[str]] = {
    "blocking sends": ["pp=4"],
    "interleaved": ["pp=4", "vpp=4", "checkpointing=full"],
    "sends longer than blocks": ["pp=4", "vpp=4", "tp=1", *SLOW],
    "a v": ["pp=4", "vpp=2", "schedule=zb-v"],
    "pairs": ["pp=4", "vpp=2", "schedule=dualpipev", "checkpointing=full"],
    "pairs both ways": ["pp=4", "schedule=dualpipe"],
    "slots": ["pp=4", "schedule=1f1b-deepspeed", "overlap_grad=false"],
}


def written(prepared: Any, number: int = 0, stages: range | None = None) -> list[dict[str, Any]]:
    """The events of the file of one plan."""
    plans, out = plans_of(prepared, number), io.StringIO()
    drawn = stages or range(int(plans.pp[0]))
    write_plan(timeline(prepared.sweep.workload, prepared.sweep.hardware, plans), {}, drawn, out)
    events: list[dict[str, Any]] = json.loads(out.getvalue())["traceEvents"]
    return events


def of_spec(name: str) -> Any:
    """A plan of PLANS."""
    sets = ["tp=2", "dp=4", "ga=8", "micro_batch=1", "checkpointing=none", *PLANS[name]]
    return prepare_plan(
        {"model": "llama3-8b", "sequence": 4096}, "H100-SXM", "event", list({s.split("=")[0]: s for s in sets}.values())
    )


def ns(us: float) -> int:
    """As Perfetto reads a number (CoerceToTs of its JSON importer)."""
    assert int(us * 1000) == round(us * 1000)
    return int(us * 1000)


def by_thread(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int, str]]]:
    """Begin, end and name of the slices of each thread, by begin, the longer first."""
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event["name"]))
    return {thread: sorted(slices, key=lambda each: (each[0], -each[1])) for thread, slices in found.items()}


def check_threads(events: list[dict[str, Any]]) -> None:
    """No slice overlaps another of its thread; nothing waits for less than a nanosecond; compute has no gap."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    for thread, slices in by_thread(events).items():
        assert all(begin < end for begin, end, _ in slices)
        for (_, end, one), (begin, _, other) in pairwise(slices):
            assert begin >= end, (names[thread], one, other)
            assert begin == end or names[thread] != "compute"


def test_no_slice_of_the_best_plan_of_the_readme_is_dropped() -> None:
    prepared = prepare(load_spec(EXAMPLES / "llama3_70b_h100.yaml"), EXAMPLES)
    events, row = written(prepared, README_BEST), row_of(prepared, README_BEST)
    check_threads(events)
    blocks = row["pp"] * row["vpp"] * row["ga"]
    for kind in ("forward", "backward"):
        assert sum(event.get("cat") == kind for event in events) == blocks
    most = max(event["args"]["bytes"] for event in events if event["ph"] == "C")
    assert most == pytest.approx(row["peak_memory_bytes"], abs=1)


@pytest.mark.parametrize("name", PLANS)
def test_slices_nest_and_arrows_go_from_block_to_block(name: str) -> None:
    """From a block to that of the same micro-batch on another stage; as many as there are messages between stages."""
    prepared = of_spec(name)
    events, row = written(prepared), row_of(prepared)
    check_threads(events)
    threads = by_thread(events)
    arrows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            arrows[event["id"]][event["ph"]] = event
    for arrow in arrows.values():
        sent, got = arrow["s"], arrow["f"]
        assert sent["pid"] != got["pid"]
        assert got["bp"] == "e", "the slice that encloses it"
        (sender,) = (one for one in threads[sent["pid"], sent["tid"]] if one[0] <= ns(sent["ts"]) < one[1])
        (receiver,) = (one for one in threads[got["pid"], got["tid"]] if one[0] == ns(got["ts"]))
        assert sender[1] <= receiver[0]
        assert sender[1] == ns(sent["ts"]) + 1
        assert sender[2].split()[1] == receiver[2].split()[1]
        assert {sender[2][0], receiver[2][0]} <= ({"F"} if sent["name"] == "send activations" else {"B", "I"})
    turns = row["vpp"] - 1 if row["schedule"] in ("zb-v", "dualpipev") else 0
    assert len(arrows) == 2 * row["ga"] * (row["pp"] * row["vpp"] - 1 - turns)


def test_messages_under_way_at_once_have_rows_of_their_own() -> None:
    events = written(of_spec("sends longer than blocks"))
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names >= {"sends", "sends 2"}
    assert sum(event.get("cat", "").startswith("send ") for event in events if event["ph"] == "X") == 2 * 8 * (4 * 4 - 1)


def test_stages_that_are_not_drawn_have_no_arrows() -> None:
    events = written(of_spec("interleaved"), stages=range(1, 3))
    assert {event["pid"] for event in events} == {1, 2}
    sent = {event["id"] for event in events if event["ph"] == "s"}
    assert sent == {event["id"] for event in events if event["ph"] == "f"} != set()
