"""One night: prepare the sweeps, run what is missing of each, compare, judge, report, clear up, tell."""

from __future__ import annotations

import hashlib
import json
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sim_core import SimError, SpecError
from sweep.compare.comparison import compare
from sweep.compare.report import group_text
from sweep.compare.result import Comparison
from sweep.evaluate import warm_up
from sweep.executors import Executor
from sweep.executors.inline import InlineExecutor
from sweep.job import Prepared, prepare
from sweep.nightly.lock import locked
from sweep.nightly.nights import Night, Nights, SweepRecord, expired
from sweep.nightly.notify import OUTCOMES, deliver, wanted
from sweep.nightly.report import write_reports
from sweep.nightly.spec import NightlySpec, SweepEntry
from sweep.nightly.verdict import regressions
from sweep.place import Place, place
from sweep.run import Progress, run_sweep
from sweep.spec import load_spec
from sweep.store import Store

EXIT_REGRESSIONS: Final = 1
EXIT_FAILURES: Final = 2
PREVIOUS: Final = "previous"
_MAX_TOLD: Final = 3

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a start of `sweep nightly` came to: the exit code, the last line, and the night that it is of."""

    code: int
    summary: str
    night: str
    folder: Place
    did_nothing: bool = False


@dataclass(kw_only=True)
class Means:
    """What a night is run with; tests put their own in."""

    executor: Callable[[str, Place], AbstractContextManager[Executor]]  # for `store.writer` and a place, started
    tell: Tell = lambda text: None
    shown: Callable[[], AbstractContextManager[Callable[[Progress], None]]] = lambda: nullcontext(lambda progress: None)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(kw_only=True)
class _Sweep:
    """One sweep of tonight: its spec as prepared, or why it could not be; then its record and comparison."""

    entry: SweepEntry
    prepared: Prepared | None
    record: SweepRecord
    comparison: Comparison | None = field(default=None)


def root_of(spec: NightlySpec, base: Path) -> Place:
    """The output root: a URI, or a path relative to the nightly file."""
    return place(spec.root if "://" in spec.root else os.path.normpath(base / spec.root))


def run_night(spec: NightlySpec, base: Path, means: Means) -> Outcome:
    """Run a night, or say that there is nothing to do. Raises SimError, OSError where it cannot even begin or end."""
    nights = Nights(root=root_of(spec, base))
    for notify in spec.notify:
        _ = notify.target  # an address that is not set is told before the work, not after it
    with locked(nights.root) as still_ours:
        past = nights.read()
        _check_root(spec, nights, past)
        sweeps = [_prepared(entry, base) for entry in spec.sweeps]
        inputs = _inputs(spec, sweeps)
        latest = past[-1] if past else None
        if latest is not None and latest.finished is not None and latest.inputs == inputs and latest.code != EXIT_FAILURES:
            return _nothing_to_do(spec, nights, latest)
        if latest is not None and latest.finished is None and latest.inputs == inputs:
            night, past = latest, past[:-1]
            means.tell(f"Night {night.night} was cut off: going on with it.")
        else:
            if latest is not None and latest.finished is None:
                means.tell(f"Night {latest.night} was cut off and its inputs have changed since: it is left as it is.")
            night = nights.begin(spec.name, inputs, means.now())
            means.tell(f"Night {night.night}: {len(sweeps)} sweep{'s' * (len(sweeps) != 1)}.")
        night.sweeps = [sweep.record for sweep in sweeps]
        nights.write(night)
        for sweep in sweeps:
            _run_one(sweep, spec, nights, [other for other in past if other.finished is not None], means)
            still_ours()
            nights.write(night)
        _conclude(night, means)
        for text in write_reports(nights, night, [*past, night], [sweep.comparison for sweep in sweeps], spec.history):
            means.tell(text)
        night.undelivered = [label for label, notify in spec.notified() if wanted(notify, night.code or 0)]
        nights.write(night)
        outcome = _told(spec, nights, night)
        _clear_up(spec, nights, [*past, night], means)
        return outcome


def _check_root(spec: NightlySpec, nights: Nights, past: Sequence[Night]) -> None:
    other = next((night for night in past if night.nightly != spec.name), None)
    if other is not None:
        raise SpecError(f"root: {nights.root}: holds nights of {other.nightly!r}, not of {spec.name!r}; give each its own")
    finished = [night.night for night in past if night.finished is not None]
    if spec.baseline != PREVIOUS and spec.baseline not in finished:
        names = ", ".join(finished[-3:]) or "none"
        raise SpecError(
            f"baseline: found {spec.baseline!r}, expected {PREVIOUS} or a finished night of {nights.root} (the last: {names})"
        )


def _prepared(entry: SweepEntry, base: Path) -> _Sweep:
    record = SweepRecord(name=entry.label)
    path = base / entry.spec
    try:
        prepared = prepare(load_spec(path, entry.set), path.parent)
    except (SimError, OSError) as error:
        record.error = _one_line(error) if str(path) in str(error) else f"{path}: {_one_line(error)}"
        return _Sweep(entry=entry, prepared=None, record=record)
    record.identity = prepared.job.identity
    record.results = f"{entry.label}-{record.identity[:8]}"
    record.rows = prepared.job.space.count
    return _Sweep(entry=entry, prepared=prepared, record=record)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _inputs(spec: NightlySpec, sweeps: Sequence[_Sweep]) -> str:
    """Hash of all that tonight's outcome depends on but for the past nights."""
    found = [[sweep.record.name, sweep.record.identity or sweep.record.error, _ranking(sweep)] for sweep in sweeps]
    judged = [spec.thresholds.model_dump(), spec.baseline]
    return hashlib.sha256(json.dumps([found, judged]).encode()).hexdigest()


def _ranking(sweep: _Sweep) -> object:
    """How a sweep is ranked is no part of its identity, but it is of its comparison."""
    spec = sweep.prepared.provenance["spec"] if sweep.prepared else {}
    return [spec.get("objectives"), spec.get("per")]


def _run_one(sweep: _Sweep, spec: NightlySpec, nights: Nights, past: Sequence[Night], means: Means) -> None:
    """Run one sweep and judge it; whatever goes wrong with it is its own affair, told in its record."""
    record = sweep.record
    if sweep.prepared is None:
        record.status = "failed"
        means.tell(f"{record.name}: failed: {record.error}")
        return
    try:
        _simulate(sweep.prepared, record, nights, means)
        _judge(sweep, spec, nights, past, means)
    except (SimError, OSError) as error:
        record.status, record.error = "failed", _one_line(error)
    except Exception as error:  # noqa: BLE001 (a defect of ours in one sweep must not cost the others their night)
        means.tell(traceback.format_exc())
        record.status, record.error = "failed", f"{type(error).__name__}: {_one_line(error)}"
    else:
        record.status = "done"
    if record.status == "failed":
        means.tell(f"{record.name}: failed: {record.error}")
    else:
        had = any(old.name == record.name and old.status == "done" for night in past for old in night.sweeps)
        alone = "nothing to compare with: the results of former nights are gone" if had else "nothing to compare with yet"
        against = f"against {record.baseline}" if record.baseline else alone
        means.tell(f"{record.name}: {record.rows:,} plans, {record.computed:,} of them simulated tonight; {against}")
        for text in record.regressions:
            means.tell(f"  regression: {text}")


def _simulate(prepared: Prepared, record: SweepRecord, nights: Nights, means: Means) -> None:
    for text in prepared.warnings:
        means.tell(f"{record.name}: warning: {text}")
    store = Store(directory=nights.results(record.results))
    complete = store.provenance() is not None and not store.missing(prepared.job.space.count)
    started: AbstractContextManager[Executor] = nullcontext(InlineExecutor())
    if not complete:
        started = means.executor(prepared.provenance["spec"]["store"]["writer"], store.place)
    with started as executor, means.shown() as watch:
        if not complete:
            warm_up(prepared.job)
        progress = run_sweep(prepared, store, executor, watch=watch, tell=means.tell)
    record.computed = progress.done


def _judge(sweep: _Sweep, spec: NightlySpec, nights: Nights, past: Sequence[Night], means: Means) -> None:
    """Compare with the baseline; the first night, which has none, or one whose baseline cannot be read, with itself."""
    record = sweep.record
    base = _baseline(spec, nights, past, record.name)
    new = nights.results(record.results)
    try:
        found = compare(nights.results(base[1]) if base else new, new)
    except SimError as error:
        if base is None:
            raise
        means.tell(f"{record.name}: warning: night {base[0]} cannot be compared with: {_one_line(error)}")
        base, found = None, compare(new, new)
    sweep.comparison = found
    record.baseline = base[0] if base else None
    record.feasible, record.failed = found.new_feasible, found.new_failed
    record.regressions = regressions(found, spec.thresholds)
    record.changes = [change.text for change in found.inputs if change.moves_results]
    record.best_step_s = {group_text(group.group): group.new.step_time_s if group.new else None for group in found.groups}
    record.champion_rank = {group_text(group.group): group.old_plan_rank for group in found.groups if base}
    broken = found.became_failed.plans if base else found.new_failed
    if broken:
        reasons = ", ".join(f"{why} {count:,}" for why, count in found.became_failed.reasons)
        again = f"; delete {new} to simulate them again"
        raise SpecError(f"{broken:,} plan{'s' * (broken != 1)} failed{f' ({reasons})' if reasons else ''}{again}")


def _baseline(spec: NightlySpec, nights: Nights, past: Sequence[Night], name: str) -> tuple[str, str] | None:
    """The night to compare a sweep with, and its result's folder: the named one, or the last in which it was done."""
    for night in reversed(past):
        sweep = night.sweep(name)
        if sweep is None or sweep.status != "done" or spec.baseline not in (PREVIOUS, night.night):
            continue
        if Store(directory=nights.results(sweep.results)).provenance() is not None:
            return night.night, sweep.results
    return None


def _conclude(night: Night, means: Means) -> None:
    """The outcome in a code and in words."""
    failures = [f"{sweep.name}: {sweep.error}" for sweep in night.sweeps if sweep.status == "failed"]
    worse = [f"{sweep.name}: {text}" for sweep in night.sweeps for text in sweep.regressions]
    changes = list(dict.fromkeys(text for sweep in night.sweeps for text in sweep.changes))
    parts = []
    for word, told in (("failure", failures), ("regression", worse)):
        if told:
            parts.append(f"{len(told)} {word}{'s' * (len(told) != 1)}: {_some(told)}")
    if not parts:
        parts.append("Nothing beyond the thresholds")
    compared = [sweep for sweep in night.sweeps if sweep.baseline]
    unchanged = "no input of a compared sweep changed" if compared else "nothing to compare with yet"
    parts.append(f"changed: {_some(changes)}" if changes else unchanged)
    night.code = EXIT_FAILURES if failures else EXIT_REGRESSIONS if worse else 0
    night.summary = "; ".join(parts)
    night.finished = means.now()


def _some(texts: Sequence[str]) -> str:
    left = len(texts) - _MAX_TOLD
    return " | ".join(texts[:_MAX_TOLD]) + (f" | and {left} more" if left > 0 else "")


def _nothing_to_do(spec: NightlySpec, nights: Nights, latest: Night) -> Outcome:
    """The inputs are those of the latest night: against itself nothing changed; against a fixed baseline it stands."""
    if latest.undelivered:
        return _told(spec, nights, latest)
    code = (latest.code or 0) if spec.baseline != PREVIOUS else 0
    summary = f"Nothing to do: the inputs are those of night {latest.night}, which ended with: {latest.summary}"
    outcome = Outcome(code=code, summary=summary, night=latest.night, folder=nights.folder(latest.night), did_nothing=True)
    body = _body(latest, outcome.folder) | {"text": summary, "code": code, "outcome": OUTCOMES[code], "did_nothing": True}
    failed = [
        f"{label}: {problem}"
        for label, notify in spec.notified()
        if wanted(notify, code) and (problem := deliver(notify, body))
    ]
    if failed:
        return replace(outcome, code=EXIT_FAILURES, summary=f"{summary}; nobody was told: {'; '.join(failed)}")
    return outcome


def _told(spec: NightlySpec, nights: Nights, night: Night) -> Outcome:
    """Tell those who have not heard of a night yet; that somebody could not be told is a failure."""
    body = _body(night, nights.folder(night.night))
    problems, left = [], []
    for label, notify in spec.notified():
        if label in night.undelivered:
            problem = deliver(notify, body)
            if problem:
                problems.append(f"{label}: {problem}")
                left.append(label)
    if night.undelivered:
        night.undelivered = left
        nights.write(night)
    code, summary = night.code or 0, night.summary
    if problems:
        code, summary = EXIT_FAILURES, f"{summary}; nobody was told: {'; '.join(problems)}"
    return Outcome(code=code, summary=summary, night=night.night, folder=nights.folder(night.night))


def _body(night: Night, folder: Place) -> dict[str, Any]:
    """What a webhook or command gets. `text` alone is enough for a chat."""
    code = night.code or 0
    return {
        "text": f"{night.nightly}, {night.night}: {night.summary}",
        "nightly": night.nightly,
        "night": night.night,
        "code": code,
        "outcome": OUTCOMES[code],
        "did_nothing": False,
        "report": f"{folder}/report.html",
        "sweeps": [
            sweep.model_dump(include={"name", "status", "error", "regressions", "changes", "baseline", "rows", "computed"})
            for sweep in night.sweeps
        ],
    }


def _clear_up(spec: NightlySpec, nights: Nights, known: Sequence[Night], means: Means) -> None:
    """Delete what the retention rule says: never tonight, nor what tonight was or the next night will be compared with."""
    protected = {known[-1].night, spec.baseline}
    finished = [night for night in known if night.finished is not None]
    for name in {sweep.name for night in finished for sweep in night.sweeps}:
        done = [night for night in finished if (sweep := night.sweep(name)) is not None and sweep.status == "done"]
        protected |= {night.night for night in done[-1:]}
    protected |= {sweep.baseline for sweep in known[-1].sweeps if sweep.baseline}
    gone = expired(known, spec.keep, means.now(), protected)
    kept = [night for night in known if night not in gone]
    for night in gone:
        nights.delete(night, kept)
        means.tell(f"Night {night.night} deleted, as `keep` says.")
