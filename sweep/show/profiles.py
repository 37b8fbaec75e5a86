"""Screens of profiler traces: how each rank's GPU spent its time, its collectives and GEMMs, and what the files lack."""

from typing import Final

from rich.console import Console

from sim_core import plural, short
from sweep.inputs.traces.collectives import Row
from sweep.inputs.traces.gemms import Gemm, Gemms
from sweep.inputs.traces.profile import Profile, Rank
from sweep.show.tables import print_table
from sweep.wording import plain_values

MOST_ROWS: Final = 12
LONGEST_NAME: Final = 60
_TOTALS: Final = ("span", "busy", "compute", "communication", "exposed", "memory", "unclassified", "idle")
_FURTHER: Final = ("exposed_memory", "compute_or_memset")


def print_profile(profile: Profile, console: Console) -> None:
    """Print what a profiler's file, archive or folder tells of a job."""
    number, devices = len(profile.ranks), sorted({rank.device for rank in profile.ranks if rank.device})
    console.print(f"{profile.path}: profiler trace, {number} {'rank' if number == 1 else 'ranks'}" + _after(devices))
    plan = ", ".join(f"{key} {value}" for key, value in profile.plan.items() if value is not None)
    console.print(f"  plan          {plan or 'not in the file'}")
    step = (
        "not known" if profile.step_time_s is None else f"{_ms(profile.step_time_s)}, from the end of one to that of the next"
    )
    console.print(f"  step          {step}")
    print_table(("rank", "steps", *_TOTALS), [_totals(rank) for rank in profile.ranks], console)
    for rank in profile.ranks:
        _doubts(rank, console)
    if profile.ranks:
        _details(profile.ranks[0], console)
    if number > 1:
        console.print("  collectives and GEMMs of the other ranks: --json")
    for each in profile.missing:
        console.print(f"  missing: {each}")
    for each in profile.notes:
        console.print(f"  note: {each}")


def _doubts(rank: Rank, console: Console) -> None:
    if rank.unlinked:
        how = "counted: all within the one step" if rank.unlinked_counted else "not in the totals"
        console.print(f"  {rank.name}: {plural(rank.unlinked, 'event')} without a launch, {_ms(rank.unlinked_s)}, {how}")
    for name, number, seconds in rank.unknown:
        console.print(f"  {rank.name}: unclassified: {number:,} x {_short(name)}, {_ms(seconds)}")


def _details(rank: Rank, console: Console) -> None:
    if rank.collectives:
        rows = [_collective(row) for row in rank.collectives[:MOST_ROWS]]
        console.print(f"  {rank.name}: collectives, each with its wait for the last rank{_of(rank.collectives)}")
        print_table(("kind", "group", "ranks", "bytes", "number", "min", "median", "total"), rows, console, left=(0, 1))
    if rank.gemms is not None:
        read, unread = rank.gemms.read_share, rank.gemms.unread_share
        console.print(f"  {rank.name}: GEMMs by shape{_of(rank.gemms.rows)}: {read:.1%} of the time of kernels that compute")
        if unread:
            console.print(f"  {rank.name}: GEMMs by name without a shape, not read: {unread:.1%} of it")
        print_table(
            ("operator", "batch", "m", "n", "k", "", "number", "median", "rate"), _gemms(rank.gemms), console, left=(0, 5)
        )
    if rank.memory is not None:
        allocated, reserved, events = rank.memory
        console.print(
            f"  {rank.name}: memory: {_gib(allocated)} allocated, {_gib(reserved)} reserved at most ({plural(events, 'event')})"
        )


def profile_values(profile: Profile) -> dict[str, object]:
    """What `print_profile` prints as plain values, for JSON; seconds and bytes, None: not known."""
    return {
        "path": profile.path,
        "kind": "trace",
        "framework": None,
        **plain_values(profile, "step_time_s plan"),
        "model": None,
        "ranks": [_rank_values(rank) for rank in profile.ranks],
        **plain_values(profile, "missing notes warnings"),
    }


def _rank_values(rank: Rank) -> dict[str, object]:
    totals = rank.totals
    return {
        "rank": rank.rank,
        "world_size": rank.place.world,
        "device": rank.device or None,
        **{f"{name}_s": None if totals is None else getattr(totals, f"{name}_s") for name in (*_TOTALS, *_FURTHER)},
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
        "gemms": None if rank.gemms is None else [_gemm_values(gemm) for gemm in rank.gemms.rows],
        "gemm_share": None if rank.gemms is None else rank.gemms.read_share,
        "gemm_share_without_shape": None if rank.gemms is None else rank.gemms.unread_share,
        "unclassified": [{"name": name, "count": number, "total_s": seconds} for name, number, seconds in rank.unknown],
        "memory": None
        if rank.memory is None
        else dict(zip(("allocated_bytes", "reserved_bytes", "events"), rank.memory, strict=True)),
        "missing": list(rank.missing),
    }


def _gemm_values(gemm: Gemm) -> dict[str, object]:
    times = plain_values(gemm, "total_s memset_s with_memsets_median_s")
    return {**gemm.shape._asdict(), "count": gemm.number, "median_s": gemm.median_s, "min_s": gemm.minimum_s, **times}


def _totals(rank: Rank) -> list[str]:
    name = "?" if rank.rank is None else str(rank.rank)
    if rank.totals is None:
        return [name, str(len(rank.steps)), *["-"] * len(_TOTALS)]
    return [name, str(len(rank.steps)), *(_ms(getattr(rank.totals, f"{each}_s")) for each in _TOTALS)]


def _collective(row: Row) -> list[str]:
    key = row.key
    size = "?" if key.bytes is None else short(key.bytes, "B")
    ranks = "?" if key.group_size is None else str(key.group_size)
    return [key.kind, key.role, ranks, size, str(row.number), *map(_ms, (row.minimum_s, row.median_s, row.total_s))]


def _gemms(gemms: Gemms) -> list[list[str]]:
    rows = []
    for gemm in gemms.rows[:MOST_ROWS]:
        shape = gemm.shape
        sizes = [str(size) for size in (shape.batch, shape.m, shape.n, shape.k)]
        rate = short(shape.flops / gemm.median_s, "FLOP/s") if gemm.median_s else "-"
        rows.append([shape.operator, *sizes, shape.dtype, str(gemm.number), short(gemm.median_s, "s"), rate])
    return rows


def _of(rows: tuple[object, ...]) -> str:
    return f" (the first {MOST_ROWS} of {len(rows)})" if len(rows) > MOST_ROWS else ""


def _after(words: list[str]) -> str:
    return f", {', '.join(words)}" if words else ""


def _short(name: str) -> str:
    return ascii(name)[1:-1] if len(name) <= LONGEST_NAME else ascii(name)[1 : LONGEST_NAME - 2] + "..."


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
