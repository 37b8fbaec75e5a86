"""Screens of profiler traces: how each rank's GPU spent its time, its collectives, and what the files lack."""

from sim_core import Fields, plural, short
from sweep.answers.section import Screen, table
from sweep.inputs.traces.profile import Profile, Rank
from sweep.wording import plain_values

MOST_ROWS = 12
LONGEST_NAME = 60
_TOTALS = ("span", "busy", "compute", "communication", "exposed", "memory", "unclassified", "idle")
_FURTHER = ("exposed_memory", "compute_or_memset")


def profile_screen(profile: Profile) -> Screen:
    """What a profiler's file, archive or folder tells of a job."""
    ranks = profile.ranks
    devices = "".join(f", {device}" for device in sorted({rank.device for rank in ranks if rank.device}))
    yield f"{profile.path}: profiler trace, {len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}{devices}"
    plan = ", ".join(f"{key} {value}" for key, value in profile.plan.items() if value is not None)
    yield f"  plan          {plan or 'not in the file'}"
    step_s = profile.step_time_s
    yield f"  step          {'not known' if step_s is None else f'{_ms(step_s)}, from the end of one to that of the next'}"
    rows = []
    for rank in ranks:
        spent = [_ms(getattr(rank.totals, f"{each}_s")) if rank.totals else "-" for each in _TOTALS]
        rows.append(("?" if rank.rank is None else rank.rank, len(rank.steps), *spent))
    yield table(("rank", "steps", *_TOTALS), rows)
    for rank in ranks:
        if rank.unlinked:
            how = "counted: all within the one step" if rank.unlinked_counted else "not in the totals"
            yield f"  {rank.name}: {plural(rank.unlinked, 'event')} without a launch, {_ms(rank.unlinked_s)}, {how}"
        for name, number, seconds in rank.unknown:
            short_name = ascii(name)[1:-1] if len(name) <= LONGEST_NAME else ascii(name)[1 : LONGEST_NAME - 2] + "..."
            yield f"  {rank.name}: unclassified: {number:,} x {short_name}, {_ms(seconds)}"
    if ranks:
        yield from _details(ranks[0])
    if len(ranks) > 1:
        yield "  collectives of the other ranks: --json"
    yield from (f"  missing: {each}" for each in profile.missing)
    yield from (f"  note: {each}" for each in profile.notes)


def _details(rank: Rank) -> Screen:
    """Collectives and memory of a rank."""
    rows, every = [], rank.collectives
    if every:
        part = f" (the first {MOST_ROWS} of {len(every)})" if len(every) > MOST_ROWS else ""
        yield f"  {rank.name}: collectives, each with its wait for the last rank{part}"
        for row in every[:MOST_ROWS]:
            key, times = row.key, map(_ms, (row.minimum_s, row.median_s, row.total_s))
            size = "?" if key.bytes is None else short(key.bytes, "B")
            rows.append((key.kind, key.role, "?" if key.group_size is None else key.group_size, size, row.number, *times))
        yield table(("kind", "group", "ranks", "bytes", "number", "min", "median", "total"), rows, 0, 1)
    if rank.memory is not None:
        allocated, reserved = (f"{size / 2**30:.2f} GiB" for size in rank.memory[:2])
        yield f"  {rank.name}: memory: {allocated} allocated, {reserved} reserved at most ({plural(rank.memory[2], 'event')})"


def profile_values(profile: Profile) -> Fields:
    """What `profile_screen` tells as plain values, for JSON; seconds and bytes, None: not known."""
    return {
        "path": profile.path,
        "kind": "trace",
        "framework": None,
        **plain_values(profile, "step_time_s plan"),
        "model": None,
        "ranks": [_rank_values(rank) for rank in profile.ranks],
        **plain_values(profile, "missing notes warnings"),
    }


def _rank_values(rank: Rank) -> Fields:
    totals = rank.totals
    return {
        "rank": rank.rank,
        "world_size": rank.place.world,
        "device": rank.device or None,
        **{f"{name}_s": None if totals is None else getattr(totals, f"{name}_s") for name in _TOTALS + _FURTHER},
        "events": None if totals is None else totals.events,
        "step_time_s": rank.period_s,
        "steps": [{"step": step.number, **plain_values(step, "host_s gpu_span_s gpu_end_s")} for step in rank.steps],
        "without_launch": {"events": rank.unlinked, "busy_s": rank.unlinked_s, "counted": rank.unlinked_counted},
        "groups": [plain_values(group, "role size") for group in rank.place.groups],
        "plan": dict(rank.place.plan),
        "collectives": [
            {**row.key._asdict(), "count": row.number, "min_s": row.minimum_s, "median_s": row.median_s, "total_s": row.total_s}
            for row in rank.collectives
        ],
        "unclassified": [{"name": name, "count": number, "total_s": seconds} for name, number, seconds in rank.unknown],
        "memory": None
        if rank.memory is None
        else dict(zip(("allocated_bytes", "reserved_bytes", "events"), rank.memory, strict=True)),
        "missing": list(rank.missing),
    }


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"
