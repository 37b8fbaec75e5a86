"""Screens of rank traces: what a job did, and how its replay compares."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from sim_core import Fields, Job, Played, Replay, StageDurations, plural, short, statistics
from sweep.answers.section import Screen, table
from sweep.wording import plain_values

MOST_SHOWN = 16
FAR = 0.03
"""Error of a replay or of the recorded plan above which there is a warning."""


def job_screen(path: str, job: Job) -> Screen:
    """What the traces of a job hold."""
    totals, layout = statistics(job), job.layout
    total = layout.pp * layout.ranks_per_stage
    yield f"{path}: rank traces, {len(job.ranks)} of {total} ranks"
    yield (
        f"  plan          tp {layout.tp}, pp {layout.pp}, vpp {layout.vpp}, ep {layout.ep}, dp {layout.dp}, "
        f"{plural(total, 'GPU')}, micro-batch {layout.micro_batch}, ga {layout.ga}, {totals.schedule}"
    )
    yield f"  layers        {layout.layers or 'unknown'}; sequence {job.sequence or 'unknown'}"
    longest = max(job.ranks, key=lambda rank: rank.span_s)
    yield f"  recorded step {_ms(job.span_s)} (rank {longest.rank}, stage {longest.stage})"
    rows = []
    for row in totals.operations:
        seconds = map(_ms, (row.mean_s, row.least_s, row.most_s, row.total_s))
        rows.append((row.stage, row.name, row.count, *seconds, f"{row.wait_s / row.total_s:.0%}" if row.total_s > 0 else "-"))
    yield table(("stage", "operation", "number", "mean", "min", "max", "total", "waiting"), rows, 1)
    shares = []
    for share in totals.shares:
        parts = (share.compute_s, share.communication_s, share.wait_s, share.gap_s)
        shares.append((share.stage, share.ranks, *(f"{part / sum(parts):.1%}" if sum(parts) else "-" for part in parts)))
    yield table(("stage", "ranks", "compute", "communication", "waiting", "gaps"), shares)
    for slow in totals.stragglers:
        yield f"  straggler: rank {slow.rank} (stage {slow.stage}), {slow.name} {slow.factor:.2f} x the median of its stage"
    if names := ", ".join(totals.unknown_waits):
        yield f"  note: waits in {names} are unknown: there are no traces of the other members"
    yield from (f"  note: {note}" for note in layout.notes)


def job_values(path: str, job: Job) -> Fields:
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


def replay_screen(path: str, replayed: Replay) -> Screen:
    """A replay beside what was recorded."""
    what, how = ("rank", "its own times") if replayed.of_ranks else ("stage", "its mean times")
    yield f"{path}: replayed, each {what} with {how}"
    yield f"  recorded step  {_ms(replayed.recorded_s)}"
    whole = replayed.compared_s == replayed.step_s
    yield f"  replayed step  {_ms(replayed.step_s)}{f'  ({replayed.error:+.2%})' if whole else ''}"
    if not whole:
        yield f"  recorded stages replayed  {_ms(replayed.compared_s)}  ({replayed.error:+.2%})"
    if abs(replayed.error) > FAR:
        yield f"  warning: the replay is more than {FAR:.0%} off the recording"
    rows = []
    for row in dict.fromkeys(event.row for event in replayed.events):
        own = [event for event in replayed.events if event.row == row]
        blocks_s = [sum(_work_s(event) for event in own if event.name == name) for name in ("forward_step", "backward_step")]
        other_s = sum(map(_work_s, own)) - sum(blocks_s)
        waited_s, end_s = sum(event.wait_s for event in own), max(event.end_s for event in own)
        rows.append((row, *map(_ms, (*blocks_s, other_s, waited_s, end_s))))
    yield table((what, "forward", "backward", "other work", "waiting", "end"), rows)
    yield from (f"  note: {note}" for note in replayed.notes)


def _work_s(event: Played) -> float:
    return event.end_s - event.start_s - event.wait_s


def replay_values(replayed: Replay) -> Fields:
    """The replay's totals as plain values, for JSON."""
    values = plain_values(replayed, "recorded_s compared_s error of_ranks notes")
    return {"recorded_s": values.pop("recorded_s"), "replayed_s": replayed.step_s, **values}


def stages_lines(path: str, values: Mapping[str, float]) -> Iterator[str]:
    """The step that a pipeline's stage durations make, without messages and with what they are fitted to."""
    recorded_s, alone_s, fitted_s = values["recorded_s"], values["compute_s"], values["replayed_s"]
    yield f"{path}: stage durations, replayed by their schedule"
    yield f"  recorded step      {_ms(recorded_s)}"
    yield f"  messages for free  {_ms(alone_s)}  ({alone_s / recorded_s - 1:+.2%})"
    yield f"  messages fitted    {_ms(fitted_s)}  ({fitted_s / recorded_s - 1:+.2%}), so no test"
    yield "  note: the test is another schedule: `sweep run` with axes such as vpp, schedule, ga; within 5 % where measured"


def durations_lines(path: str, recorded: StageDurations) -> Iterator[str]:
    """Stage durations that were made from a log or from traces, and where they were written."""
    micro_batches, layers = plural(recorded.micro_batches, "micro-batch"), recorded.layers or "unknown"
    yield f"{path}: pp {recorded.pp}, vpp {recorded.vpp}, {micro_batches}, layers {layers}"
    yield f"  step {_ms(recorded.step_s)}, of which {_ms(recorded.after_s)} after the pipeline"
    for name, times in (("forward", recorded.forward_s), ("backward", recorded.backward_s)):
        each = [" + ".join(f"{chunk * 1e3:.2f}" for chunk in stage) for stage in times[:MOST_SHOWN]]
        yield f"  {name:<8} ms by stage: {', '.join(each)}{', ...' if len(times) > MOST_SHOWN else ''}"
    yield from (f"  note: {note}" for note in recorded.notes)
    other = 2 if recorded.vpp == 1 else 1
    yield f"  next: sweep replay {path}; sweep simulate {path} --set vpp={other}; in a spec workload: {{path: {path}}}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 10 else short(seconds, "s")
