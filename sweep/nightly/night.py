"""One night: prepare the sweeps, run what is missing of each, compare, judge, report, notify, delete old nights."""

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sim_core import SimError, SpecError, plural
from sim_core.masking import masked
from sweep.compare.comparison import compare
from sweep.compare.report import NO_PLAN_IN_COMMON, group_text
from sweep.compare.result import Comparison
from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.warming import warm_up
from sweep.execution import Progress, run_sweep
from sweep.executors import Executor, InlineExecutor
from sweep.exits import in_words
from sweep.listing import keep_best
from sweep.nightly.judging import Baseline, baselines_of, below_the_best, make_whole, regressions
from sweep.nightly.lock import locked
from sweep.nightly.nights import HOW, Ack, Line, Night, Nights, SweepRecord, expired, in_order
from sweep.nightly.notify import OUTCOMES, body_of, deliver_all, wanted
from sweep.nightly.reports import write_reports
from sweep.nightly.spec import HEARTBEAT, PREVIOUS, NightlySpec, SweepEntry
from sweep.results.folder import Folder, folder_at
from sweep.results.store import Store
from sweep.spec.spec import load_spec

EXIT_REGRESSIONS = 1
EXIT_FAILURES = 2
_MAX_LISTED = 3

Log = Callable[[str], None]


_Before = tuple[Sequence[Night], int]
"""The finished nights, and up to which number they are accepted."""


class Outcome(NamedTuple):
    """The outcome of one call of `sweep nightly`: the exit code, the summary, and the night they are about."""

    code: int
    summary: str
    night: str
    folder: Folder
    did_nothing: bool = False


@dataclass(kw_only=True)
class Runtime:
    """What a night runs with; tests pass their own."""

    executor: Callable[[str, Folder], AbstractContextManager[Executor]]  # started, by `store.writer` and the output folder
    log: Log = lambda text: None
    progress: Callable[[Folder, str], AbstractContextManager[Callable[[Progress], None]]] = lambda folder, sweep: nullcontext(
        lambda progress: None
    )
    making_ready: Callable[[], AbstractContextManager[None]] = nullcontext
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(kw_only=True)
class _NightlySweep:
    """One sweep of tonight: prepared, or None if that failed; then its record and comparison."""

    specs: Path  # the folder of its spec
    record: SweepRecord
    prepared: Prepared | None = None
    comparison: Comparison | None = None


def root_of(spec: NightlySpec, base: Path) -> Folder:
    """The output root: a URI, or a path relative to the nightly file."""
    return folder_at(spec.root if "://" in spec.root else os.path.normpath(base / spec.root))


def run_night(spec: NightlySpec, base: Path, runtime: Runtime) -> Outcome:
    """Run a night, or report that there is nothing to do. Raises SimError, OSError if the night as a whole fails."""
    nights = Nights(root=root_of(spec, base))
    for _, notify in spec.notified():
        _ = notify.target  # an address that is not set is an error now, not after the work
    nights.root.probe()
    with locked(nights.root) as still_ours:
        nights = nights._replace(check=still_ours)
        known, line = nights.read(), nights.line()
        if lost := nights.lost(known, line):
            what = f"{nights.root}: {_some(lost)}: a regression could pass unseen"
            raise SpecError(f"{what}; restore it from a copy, or accept that: {HOW}")
        line, past = line or Line(), in_order(known, runtime.now(), runtime.log)
        _check_root(spec, nights, past)
        sweeps = [_prepared(entry, base) for entry in spec.sweeps]
        ranked = []  # how a sweep is ranked is no part of its identity, but the comparison depends on it
        for sweep in sweeps:
            asked = sweep.prepared.provenance["spec"] if sweep.prepared else {}
            own = [asked.get("objectives"), asked.get("per")]
            ranked.append([sweep.record.name, sweep.record.identity or sweep.record.error, own])
        depends = [ranked, [spec.thresholds.model_dump(), spec.baseline]]  # what the outcome depends on but for past nights
        inputs = hashlib.sha256(json.dumps(depends).encode()).hexdigest()
        latest, night = past[-1] if past else None, None
        if latest is not None and latest.finished is not None and latest.inputs == inputs and latest.code != EXIT_FAILURES:
            return _nothing_to_do(spec, nights, latest, line)
        if latest is not None and latest.finished is None:
            if latest.inputs == inputs:
                night, past = latest, past[:-1]
                runtime.log(f"Night {night.night} was interrupted: resuming it.")
            else:
                runtime.log(f"Night {latest.night} was interrupted and its inputs have changed since: it stays as it is.")
        if night is None:
            night = nights.begin(spec.name, inputs, runtime.now(), past, line.last)
            runtime.log(f"Night {night.night}: {plural(len(sweeps), 'sweep')}.")
        night.sweeps = [sweep.record for sweep in sweeps]
        nights.write(night)  # before the line: a night that ends between them is not missed
        nights.enlist(line, [*past, night])
        finished = [other for other in past if other.finished is not None]
        for sweep in sweeps:
            _run_one(sweep, spec, nights, (finished, line.accepted), runtime)
            nights.write(night)
        _conclude(night, runtime)
        write_reports(nights, night, [*past, night], [sweep.comparison for sweep in sweeps], spec.history)
        night.undelivered = wanted(spec, night.code or 0)
        nights.write(night)
        outcome = _notified(spec, nights, night)
        _delete_expired(spec, nights, [*past, night], line, runtime)
        return outcome


def _check_root(spec: NightlySpec, nights: Nights, past: Sequence[Night]) -> None:
    other = next((night for night in past if night.nightly != spec.name), None)
    if other is not None:
        raise SpecError(
            f"root: {nights.root}: holds nights of {other.nightly!r}, not of {spec.name!r}; give each nightly file its own root"
        )
    finished = [night.night for night in past if night.finished is not None]
    if spec.baseline != PREVIOUS and spec.baseline not in finished:
        names = ", ".join(finished[-3:]) or "none"
        raise SpecError(
            f"baseline: found {spec.baseline!r}, expected {PREVIOUS} or a finished night of {nights.root} (the latest: {names})"
        )


def _prepared(entry: SweepEntry, base: Path) -> _NightlySweep:
    record, path = SweepRecord(name=entry.label), base / entry.spec
    tonight = _NightlySweep(specs=path.parent, record=record)
    try:
        tonight.prepared = prepared = prepare(load_spec(path, entry.set), path.parent)
    except (SimError, OSError) as error:
        record.error = one_line(error) if str(path) in str(error) else f"{masked(path)}: {one_line(error)}"
        return tonight
    record.identity, record.rows = prepared.sweep.identity, prepared.sweep.space.count
    record.results = f"{entry.label}-{record.identity[:8]}"
    return tonight


def one_line(error: Exception) -> str:
    """An error in one line, without secrets; one that is a defect of the program with its kind."""
    text = in_words(error) if isinstance(error, OSError) else str(error)
    kind = "" if isinstance(error, SimError | OSError) else f"{type(error).__name__}: "
    return kind + masked(" ".join(text.split())) or type(error).__name__


def _run_one(sweep: _NightlySweep, spec: NightlySpec, nights: Nights, before: _Before, runtime: Runtime) -> None:
    """Run one sweep and judge it. Any failure is recorded for this sweep and does not affect the others."""
    record = sweep.record
    record.status = "failed"
    if sweep.prepared is not None:
        try:
            for text in sweep.prepared.warnings:
                runtime.log(f"{record.name}: warning: {text}")
            record.computed = _computed(record.name, sweep.prepared, Store(directory=nights.results(record.results)), runtime)
            keep_best(nights.results(record.results))
            _judge(sweep, spec, nights, before, runtime)
            record.status = "done"
        except Exception as error:  # noqa: BLE001 (a bug that one sweep hits must not end the others)
            record.error = one_line(error)
            if not isinstance(error, SimError | OSError):
                runtime.log(traceback.format_exc())
    if record.status == "failed":
        runtime.log(f"{record.name}: failed: {record.error}")
        return
    against = f"against {record.baseline}" if record.baseline else record.error or "nothing to compare with yet"
    runtime.log(f"{record.name}: {plural(record.rows)}, {record.computed:,} of them simulated tonight; {against}")
    for text in record.regressions:
        runtime.log(f"  regression: {text}")


def _computed(name: str, prepared: Prepared, store: Store, runtime: Runtime) -> int:
    """Compute what a result lacks; returns the number of plans."""
    if store.provenance() is not None and store.is_whole(prepared.sweep.identity, prepared.sweep.space.count):
        with runtime.progress(store.folder, name) as watch:
            return run_sweep(prepared, store, InlineExecutor(), watch=watch, log=runtime.log).done
    started = runtime.executor(prepared.provenance["spec"]["store"]["writer"], store.folder)
    with started as executor, runtime.progress(store.folder, name) as watch:
        with runtime.making_ready():
            warm_up(prepared.sweep)
        return run_sweep(prepared, store, executor, watch=watch, log=runtime.log).done


def _judge(sweep: _NightlySweep, spec: NightlySpec, nights: Nights, before: _Before, runtime: Runtime) -> None:
    """Compare with the baselines, made whole; without one, with itself. Raises SpecError if one cannot be trusted."""
    record, (past, accepted) = sweep.record, before
    bases = baselines_of(spec, past, record.name, accepted)
    base = bases[0] if bases else None
    new = nights.results(record.results)

    def compared(base: Baseline | None) -> Comparison:
        if base is not None:
            why = make_whole(
                base, nights, sweep.specs, lambda prepared, store: _computed(record.name, prepared, store, runtime)
            )
            if why:
                runtime.log(f"{record.name}: the baseline, night {base.night}, was computed again: {why}")
        return compare(nights.results(base.results) if base else new, new)

    sweep.comparison = both = compared(base)
    record.baseline = base.night if base else None
    record.error = ""  # also in its first nights, until it has been completed once
    if base is None and spec.baseline != PREVIOUS:
        record.error = f"not compared: night {spec.baseline} completed no sweep of this name; set `baseline` to another night"
    elif base is None and past and not any(night.sweep(record.name) for night in past):
        record.error = "not compared: no earlier night has a sweep of this name; the next night is compared with this one"
    record.feasible, record.failed = both.new_feasible, both.new_failed
    record.regressions = regressions(both, spec.thresholds)
    record.by = both.by
    record.best = {group_text(group.group): group.new.value if group.new else None for group in both.groups}
    for other in bases[1:]:
        if not record.regressions and other.results not in (record.results, bases[0].results):
            told = regressions(compared(other), spec.thresholds)
            record.regressions = [f"since night {other.night}: {text}" for text in told]
    if not record.regressions:
        recent = [night for night in past if night.number >= accepted][-spec.history :]
        record.regressions = below_the_best(record, recent, spec.thresholds, descending=both.descending)
    record.changes = [change.text for change in both.inputs if change.moves_results]
    record.changes += [f"{NO_PLAN_IN_COMMON}, so only the best plans are compared"] * (not both.matched)
    record.best_step_s = {group_text(group.group): group.new.step_time_s if group.new else None for group in both.groups}
    record.champion_rank = {group_text(group.group): group.old_plan_rank for group in both.groups if base}
    failing = both.moved["became_failed"]
    broken, reasons = failing.plans if base else both.new_failed, failing.text
    if broken:
        again = f"; delete {new} to simulate them again"
        raise SpecError(f"{plural(broken)} failed{f' ({reasons})' if reasons else ''}{again}")


def _conclude(night: Night, runtime: Runtime) -> None:
    """Set the outcome of the night: code, summary, end."""
    failures = [f"{sweep.name}: {sweep.error}" for sweep in night.sweeps if sweep.error]
    worse = [f"{sweep.name}: {text}" for sweep in night.sweeps for text in sweep.regressions]
    changes = list(dict.fromkeys(text for sweep in night.sweeps for text in sweep.changes))
    counted = {"failure": failures, "regression": worse}
    parts = [f"{plural(len(texts), word)}: {_some(texts)}" for word, texts in counted.items() if texts]
    parts = parts or ["Nothing beyond the thresholds"]
    if changes:
        parts.append(f"changed: {_some(changes)}")
    elif any(sweep.baseline for sweep in night.sweeps):
        parts.append("no input of a compared sweep changed")
    elif any(sweep.status == "done" for sweep in night.sweeps):
        parts.append("nothing to compare with yet")
    night.code = EXIT_FAILURES if failures else EXIT_REGRESSIONS if worse else 0
    night.summary = "; ".join(parts)
    night.finished = runtime.now()


def _some(texts: Sequence[str]) -> str:
    left = len(texts) - _MAX_LISTED
    return " | ".join(texts[:_MAX_LISTED]) + (f" | and {left} more" if left > 0 else "")


def acknowledge(spec: NightlySpec, base: Path, who: str, why: str, now: datetime) -> str:
    """Record that somebody accepts what is lost or, if nothing is, the regressions of the last night; returns what it was.

    Raises SpecError if there is nothing to acknowledge, OSError.
    """
    nights = Nights(root=root_of(spec, base))
    with locked(nights.root) as still_ours:
        nights, known, line = nights._replace(check=still_ours), nights.read(), nights.line()
        what, line = _some(nights.lost(known, line)), line or Line()
        if not what:
            latest = next((night for night in reversed(known) if night.finished is not None), None)
            if latest is None or not latest.code or latest.number <= line.accepted:
                raise SpecError(f"{nights.root}: nothing to acknowledge")
            what, line.accepted = f"night {latest.night}: {latest.summary}", latest.number
        line.acks.append(Ack(who=who, why=why, when=now, what=what))
        nights.enlist(line, known)
    return what


def status_of(spec: NightlySpec, base: Path) -> list[str]:
    """The last nights and what was acknowledged, one line each, and what is lost. Raises SpecError, OSError."""
    nights = Nights(root=root_of(spec, base))
    known, line = nights.read(), nights.line()
    told = [f"{night.night}: {night.summary or 'not finished'}" for night in known[-spec.history :]]
    acks = [f"{ack.when:%Y-%m-%d %H:%M} acknowledged by {ack.who} ({ack.why}): {ack.what}" for ack in (line or Line()).acks]
    return [*told, *acks, *nights.lost(known, line)]


def _nothing_to_do(spec: NightlySpec, nights: Nights, latest: Night, line: Line) -> Outcome:
    """The inputs are those of the latest night: its outcome stays, until a regression is acknowledged."""
    if latest.undelivered:
        return _notified(spec, nights, latest)
    code = 0 if latest.number <= line.accepted and spec.baseline == PREVIOUS else latest.code or 0
    summary = f"Nothing to do: the inputs are those of night {latest.night}, which ended with: {latest.summary}"
    if latest.code and line.acks:
        summary += f"; last acknowledged by {line.acks[-1].who}: {line.acks[-1].why}"
    told = {"text": summary, "code": code, "outcome": OUTCOMES[code], "did_nothing": True}
    problems = deliver_all(spec, wanted(spec, code), body_of(latest, nights.folder(latest.night)) | told)
    return _outcome(nights, latest, code, summary, problems.values(), did_nothing=True)


def _notified(spec: NightlySpec, nights: Nights, night: Night) -> Outcome:
    """Send the notifications of a night that are not delivered yet."""
    problems = deliver_all(spec, {*night.undelivered, HEARTBEAT}, body_of(night, nights.folder(night.night)))
    if night.undelivered:
        night.undelivered = list(problems)
        nights.write(night)
    return _outcome(nights, night, night.code or 0, night.summary, problems.values())


def _outcome(
    nights: Nights, night: Night, code: int, summary: str, problems: Collection[str], *, did_nothing: bool = False
) -> Outcome:
    """The outcome of a call: a failure if a notification was not delivered, for these `problems`."""
    if problems:
        code, summary = EXIT_FAILURES, f"{summary}; not notified: {'; '.join(problems)}"
    return Outcome(code=code, summary=summary, night=night.night, folder=nights.folder(night.night), did_nothing=did_nothing)


def _delete_expired(spec: NightlySpec, nights: Nights, known: Sequence[Night], line: Line, runtime: Runtime) -> None:
    """Delete nights by the retention rule, but never tonight or a baseline: of tonight, of the next night, pinned once."""
    for night in known:
        if night.night == spec.baseline and not night.pinned:
            night.pinned = True
            nights.write(night)
    protected = {known[-1].night, *(night.night for night in known if night.pinned)}
    finished = [night for night in known if night.finished is not None]
    last_done = {sweep.name: night.night for night in finished for sweep in night.sweeps if sweep.status == "done"}
    protected |= {*last_done.values(), *(sweep.baseline for sweep in known[-1].sweeps if sweep.baseline)}
    protected |= {base.night for name in last_done for base in baselines_of(spec, finished, name, line.accepted)}
    now = min([runtime.now(), *(night.started for night in known[-2:-1])])  # so that one wrong clock deletes nothing
    gone = expired(known, spec.keep, now, protected)
    kept = [night for night in known if night not in gone]
    if gone:
        nights.enlist(line, kept)  # first: what remains of a deletion is no loss
    for night in gone:
        nights.delete(night, kept)
        runtime.log(f"Night {night.night} deleted, by the rule `keep`.")
