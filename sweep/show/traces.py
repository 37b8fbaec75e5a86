"""Screens of rank traces: what a job did, and how its replay compares."""

from __future__ import annotations

from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim_core import Job, Played, Replay, short, statistics
from sweep.show.tables import print_table

FAR = 0.03
"""Error of a replay or of the recorded plan above which there is a warning."""


def print_job(path: str, job: Job, console: Console) -> None:
    """Print what the traces of a job hold."""
    found, layout = statistics(job), job.layout
    total = layout.pp * layout.ranks_per_stage
    console.print(f"{path}: rank traces, {len(job.ranks)} of {total} ranks")
    console.print(
        f"  plan          tp {layout.tp}, pp {layout.pp}, vpp {layout.vpp}, ep {layout.ep}, dp {layout.dp}, {total} GPUs, "
        f"micro-batch {layout.micro_batch}, ga {layout.ga}, {found.schedule}",
        soft_wrap=True,
    )
    console.print(f"  layers        {layout.layers or 'unknown'}; sequence {job.sequence or 'unknown'}")
    longest = max(job.ranks, key=lambda rank: rank.span_s)
    console.print(f"  recorded step {_ms(job.span_s)} (rank {longest.rank}, stage {longest.stage})")
    table = _table("stage", "operation", "number", "mean", "min", "max", "total", "waiting")
    for row in found.operations:
        seconds = (row.mean_s, row.least_s, row.most_s, row.total_s)
        waited = f"{row.wait_s / row.total_s:.0%}" if row.total_s > 0 else "-"
        table.add_row(str(row.stage), row.name, str(row.count), *map(_ms, seconds), waited)
    print_table(table, console)
    table = _table("stage", "ranks", "compute", "communication", "waiting", "gaps")
    for share in found.shares:
        parts = (share.compute_s, share.communication_s, share.wait_s, share.gap_s)
        span_s = sum(parts)
        table.add_row(str(share.stage), str(share.ranks), *(f"{part / span_s:.1%}" if span_s else "-" for part in parts))
    print_table(table, console)
    for slow in found.stragglers:
        console.print(
            f"  straggler: rank {slow.rank} (stage {slow.stage}), {slow.name} {slow.factor:.2f} x the median of its stage"
        )
    if found.unknown_waits:
        names = ", ".join(found.unknown_waits)
        console.print(f"  note: waits in {names} are unknown: there are no traces of the other members", soft_wrap=True)
    for note in layout.notes:
        console.print(f"  note: {note}", soft_wrap=True)


def job_values(path: str, job: Job) -> dict[str, object]:
    """What the traces of a job hold as plain values, for JSON; seconds, None: unknown."""
    layout = job.layout
    return {
        "file": path,
        "kind": "trace",
        "plan": {name: getattr(layout, name) for name in ("tp", "pp", "vpp", "ep", "dp", "micro_batch", "ga")},
        "ranks": len(job.ranks),
        "layers": layout.layers,
        "sequence": job.sequence,
        "recorded_s": job.span_s,
        **asdict(statistics(job)),
        "notes": list(layout.notes),
        "warnings": list(job.warnings),
    }


def print_replay(path: str, found: Replay, console: Console) -> None:
    """Print a replay beside what was recorded."""
    how = "each rank with its own times" if found.of_ranks else "each stage with its mean times"
    console.print(f"{path}: replayed, {how}", soft_wrap=True)
    console.print(f"  recorded step  {_ms(found.recorded_s)}")
    if found.compared_s == found.step_s:
        console.print(f"  replayed step  {_ms(found.step_s)}  ({found.error:+.2%})")
    else:
        console.print(f"  replayed step  {_ms(found.step_s)}")
        console.print(f"  recorded stages replayed  {_ms(found.compared_s)}  ({found.error:+.2%})")
    if abs(found.error) > FAR:
        console.print(f"  warning: the replay is more than {FAR:.0%} off the recording", soft_wrap=True)
    what = "rank" if found.of_ranks else "stage"
    table = _table(what, "forward", "backward", "other work", "waiting", "end")
    for row in dict.fromkeys(event.row for event in found.events):
        own = [event for event in found.events if event.row == row]
        blocks_s = [sum(_work_s(e) for e in own if e.name == name) for name in ("forward_step", "backward_step")]
        other_s = sum(map(_work_s, own)) - sum(blocks_s)
        cells = (*blocks_s, other_s, sum(e.wait_s for e in own), max(e.end_s for e in own))
        table.add_row(str(row), *map(_ms, cells))
    print_table(table, console)
    for note in found.notes:
        console.print(f"  note: {note}", soft_wrap=True)


def _work_s(event: Played) -> float:
    return event.end_s - event.start_s - event.wait_s


def replay_values(found: Replay) -> dict[str, object]:
    """The replay's totals as plain values, for JSON."""
    return {
        "recorded_s": found.recorded_s,
        "replayed_s": found.step_s,
        "compared_s": found.compared_s,
        "error": found.error,
        "of_ranks": found.of_ranks,
        "notes": list(found.notes),
    }


def _table(*titles: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, justify="left" if title == "operation" else "right", no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 10 else short(seconds, "s")
