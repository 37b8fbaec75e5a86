"""Screens of rank traces: what a job did, and how its replay compares."""

from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console

from sim_core import Job, Played, Replay, StageDurations, plural, short, statistics
from sweep.show.tables import print_table
from sweep.wording import plain_values

MOST_SHOWN = 16
FAR = 0.03
"""Error of a replay or of the recorded plan above which there is a warning."""


def print_job(path: str, job: Job, console: Console) -> None:
    """Print what the traces of a job hold."""
    totals, layout = statistics(job), job.layout
    total = layout.pp * layout.ranks_per_stage
    console.print(f"{path}: rank traces, {len(job.ranks)} of {total} ranks")
    console.print(
        f"  plan          tp {layout.tp}, pp {layout.pp}, vpp {layout.vpp}, ep {layout.ep}, dp {layout.dp}, "
        f"{plural(total, 'GPU')}, micro-batch {layout.micro_batch}, ga {layout.ga}, {totals.schedule}"
    )
    console.print(f"  layers        {layout.layers or 'unknown'}; sequence {job.sequence or 'unknown'}")
    longest = max(job.ranks, key=lambda rank: rank.span_s)
    console.print(f"  recorded step {_ms(job.span_s)} (rank {longest.rank}, stage {longest.stage})")
    rows = []
    for row in totals.operations:
        seconds = (row.mean_s, row.least_s, row.most_s, row.total_s)
        waited = f"{row.wait_s / row.total_s:.0%}" if row.total_s > 0 else "-"
        rows.append([str(row.stage), row.name, str(row.count), *map(_ms, seconds), waited])
    print_table(("stage", "operation", "number", "mean", "min", "max", "total", "waiting"), rows, console, left=(1,))
    rows = []
    for share in totals.shares:
        parts = (share.compute_s, share.communication_s, share.wait_s, share.gap_s)
        span_s = sum(parts)
        rows.append([str(share.stage), str(share.ranks), *(f"{part / span_s:.1%}" if span_s else "-" for part in parts)])
    print_table(("stage", "ranks", "compute", "communication", "waiting", "gaps"), rows, console)
    for slow in totals.stragglers:
        console.print(
            f"  straggler: rank {slow.rank} (stage {slow.stage}), {slow.name} {slow.factor:.2f} x the median of its stage"
        )
    if totals.unknown_waits:
        names = ", ".join(totals.unknown_waits)
        console.print(f"  note: waits in {names} are unknown: there are no traces of the other members")
    for note in layout.notes:
        console.print(f"  note: {note}")


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


def print_replay(path: str, replayed: Replay, console: Console) -> None:
    """Print a replay beside what was recorded."""
    how = "each rank with its own times" if replayed.of_ranks else "each stage with its mean times"
    console.print(f"{path}: replayed, {how}")
    console.print(f"  recorded step  {_ms(replayed.recorded_s)}")
    if replayed.compared_s == replayed.step_s:
        console.print(f"  replayed step  {_ms(replayed.step_s)}  ({replayed.error:+.2%})")
    else:
        console.print(f"  replayed step  {_ms(replayed.step_s)}")
        console.print(f"  recorded stages replayed  {_ms(replayed.compared_s)}  ({replayed.error:+.2%})")
    if abs(replayed.error) > FAR:
        console.print(f"  warning: the replay is more than {FAR:.0%} off the recording")
    what = "rank" if replayed.of_ranks else "stage"
    rows = []
    for row in dict.fromkeys(event.row for event in replayed.events):
        own = [event for event in replayed.events if event.row == row]
        blocks_s = [sum(_work_s(event) for event in own if event.name == name) for name in ("forward_step", "backward_step")]
        other_s = sum(map(_work_s, own)) - sum(blocks_s)
        waited_s, end_s = sum(event.wait_s for event in own), max(event.end_s for event in own)
        rows.append([str(row), *map(_ms, (*blocks_s, other_s, waited_s, end_s))])
    print_table((what, "forward", "backward", "other work", "waiting", "end"), rows, console)
    for note in replayed.notes:
        console.print(f"  note: {note}")


def _work_s(event: Played) -> float:
    return event.end_s - event.start_s - event.wait_s


def replay_values(replayed: Replay) -> dict[str, object]:
    """The replay's totals as plain values, for JSON."""
    values = plain_values(replayed, "recorded_s compared_s error of_ranks notes")
    return {"recorded_s": values.pop("recorded_s"), "replayed_s": replayed.step_s, **values}


def print_stages(path: str, values: Mapping[str, float], console: Console) -> None:
    """Print the step that a pipeline's stage durations make, without messages and with what they are fitted to."""
    recorded_s, alone_s = values["recorded_s"], values["compute_s"]
    console.print(f"{path}: stage durations, replayed by their schedule")
    console.print(f"  recorded step      {_ms(recorded_s)}")
    console.print(f"  messages for free  {_ms(alone_s)}  ({alone_s / recorded_s - 1:+.2%})")
    console.print(
        f"  messages fitted    {_ms(values['replayed_s'])}  ({values['replayed_s'] / recorded_s - 1:+.2%}), so no test"
    )
    console.print(
        "  note: the test is another schedule: `sweep run` with axes such as vpp, schedule, ga; within 5 % where measured"
    )


def print_stage_durations(path: str, recorded: StageDurations, console: Console) -> None:
    """Print stage durations that were made from a log or from traces, and where they were written."""
    console.print(f"{path}: pp {recorded.pp}, vpp {recorded.vpp}, {plural(recorded.micro_batches, 'micro-batch')}, "
                  f"layers {recorded.layers or 'unknown'}")  # fmt: skip
    console.print(f"  step {_ms(recorded.step_s)}, of which {_ms(recorded.after_s)} after the pipeline")
    for name, times in (("forward", recorded.forward_s), ("backward", recorded.backward_s)):
        each = [" + ".join(f"{chunk * 1e3:.2f}" for chunk in stage) for stage in times[:MOST_SHOWN]]
        console.print(f"  {name:<8} ms by stage: {', '.join(each)}{', ...' if len(times) > MOST_SHOWN else ''}")
    for note in recorded.notes:
        console.print(f"  note: {note}")
    other = 2 if recorded.vpp == 1 else 1
    console.print(f"  next: sweep replay {path}; sweep simulate {path} --set vpp={other}; in a spec workload: {{path: {path}}}")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 10 else short(seconds, "s")
