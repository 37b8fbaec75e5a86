"""The folder of nights: the record of each, their history, and which of them the retention rule deletes.

ROOT/nights/line.json                    which nights there are, so that a lost one is missed, and what was acknowledged
ROOT/nights/20261121T023000Z-1a2b3c4d/   night.json, report.md, report.json, report.html
ROOT/results/gpt7b-3b3888d9/             a sweep's result, named by its identity and shared by all nights that have it
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sim_core import SpecError
from sweep.compare.result import Point
from sweep.nightly.spec import Keep
from sweep.results.folder import Folder
from sweep.results.sealing import sealed_text, unsealed
from sweep.results.store import Store

RECORD = "night.json"
LINE = "line.json"
HOW = "sweep nightly ack FILE --who NAME --why TEXT"
REPORTS = ("report.md", "report.json", "report.html")
STAMP = "%Y%m%dT%H%M%SZ"
_CLOCKS_DIFFER = timedelta(minutes=10)
_NAME = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{8}\Z")
_RESULT = re.compile(r".+-[0-9a-f]{8}\Z")


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SweepRecord(_Record):
    """The record of one sweep in a night; `results` is the name of a folder below the root's `results/`."""

    name: str
    status: Literal["pending", "done", "failed"] = "pending"
    error: str = ""
    identity: str = ""
    results: str = ""
    baseline: str | None = None  # the night it was compared with
    rows: int = 0
    computed: int = 0  # number of rows that this night had to simulate
    feasible: int = 0
    failed: int = 0
    regressions: list[str] = []
    changes: list[str] = []  # inputs that changed
    best_step_s: dict[str, float | None] = {}
    best: dict[str, float | None] = {}  # value of the best plan by the objective `by`, by group
    by: str = ""
    champion_rank: dict[str, int | None] = {}


class Night(_Record):
    """One night. `code` and `summary` are the outcome; `code` is None while it runs or if it was interrupted."""

    nightly: str
    night: str
    number: int = 0  # of its place in the line of nights, from 1, whatever the clock said; 0: of an earlier version
    pinned: bool = False  # it was a fixed baseline once
    started: datetime
    inputs: str
    finished: datetime | None = None
    code: int | None = None
    summary: str = ""
    sweeps: list[SweepRecord] = []
    undelivered: list[str] = []  # notifications that are not delivered yet
    listed: bool = False  # beside a list of all nights, which earlier versions lack

    def sweep(self, name: str) -> SweepRecord | None:
        """The record of the sweep `name`; None if the night has no such sweep."""
        return next((sweep for sweep in self.sweeps if sweep.name == name), None)


class Ack(_Record):
    """What somebody acknowledged."""

    who: str
    why: str
    when: datetime
    what: str


class Line(_Record):
    """The line of nights: those that should be there, and what was acknowledged."""

    nights: list[str] = []
    results: list[str] = []  # that were there when it was written
    last: int = 0  # the highest number that a night has had
    accepted: int = 0  # nights up to this number are, whatever their regressions were
    acks: list[Ack] = []


_ADDED = ("number", "pinned", "undelivered", "listed", "best", "by")
"""Fields that records of earlier versions lack."""


def _opened(data: bytes, name: str) -> Night:
    """The night `name` in a record. Raises ValueError if it is damaged: what a version wrote may not be missing or unknown."""
    record, sealed = unsealed(data)
    night = Night.model_validate(record)
    entries = [(Night, record)]
    for kind, entry in entries + [(SweepRecord, sweep) for sweep in record.get("sweeps", ())]:
        if lacking := kind.model_fields.keys() - entry.keys() - set(_ADDED):
            raise ValueError(f"{', '.join(sorted(lacking))}: missing")
        if not sealed and (unknown := entry.keys() - kind.model_fields.keys()):
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown")
    if night.night != name:
        raise ValueError(f"it is that of night {night.night}")
    return night


Kind = TypeVar("Kind")


def _read(folder: Folder, name: str, opened: Callable[[bytes], Kind]) -> Kind | None:
    """What a sealed file holds; None if it does not exist. Raises SpecError if it is damaged."""
    try:
        return opened(folder.read_bytes(name))
    except FileNotFoundError:
        return None
    except ValueError as error:
        fault = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            fault = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
        what = "file" if name == LINE else "night"
        advice = f"restore it from a copy, or delete this {what} and accept that: {HOW}"
        raise SpecError(f"{folder / name}: is damaged ({fault}); {advice}") from None


class Nights(NamedTuple):
    """The folder of nights. `check` raises SpecError if another run may write here: called before and after each write."""

    root: Folder
    check: Callable[[], None] = lambda: None

    def folder(self, night: str) -> Folder:
        """The folder of one night."""
        return self.root / "nights" / night

    def results(self, name: str) -> Folder:
        """The folder of one result."""
        return self.root / "results" / name

    def read(self) -> list[Night]:
        """All nights, oldest first, by their number. Raises SpecError if a record is damaged, OSError."""
        nights = []
        for name in filter(_NAME.match, (self.root / "nights").subfolders()):
            night = _read(self.folder(name), RECORD, lambda data, name=name: _opened(data, name))  # type: ignore[misc]
            nights += [night] if night else []
        return sorted(nights, key=lambda night: night.number)

    def line(self) -> Line | None:
        """The line of nights; None if there is no list of them. Raises SpecError if it is damaged."""
        return _read(self.root / "nights", LINE, lambda data: Line.model_validate(unsealed(data)[0]))

    def lost(self, nights: Sequence[Night], line: Line | None) -> list[str]:
        """What is missing beside these nights, in words; without a list of nights, as in earlier versions, folders tell."""
        known = {night.night for night in nights}
        should = line.nights if line else filter(_NAME.match, (self.root / "nights").subfolders())
        lost = [f"nights/{name}/{RECORD} is missing" for name in should if name not in known]
        lost += [f"nights/{LINE} is missing"] * (line is None and any(night.listed for night in nights))
        used = {sweep.results for night in nights for sweep in night.sweeps} | set(line.results if line else ())
        for name in filter(_RESULT.match, (self.root / "results").subfolders()):
            if name not in used and Store(directory=self.results(name)).slices():
                lost.append(f"no night has results/{name}")
        return lost

    def write(self, night: Night) -> None:
        """Write the record of a night, sealed, atomically."""
        self._put(self.folder(night.night), RECORD, night)

    def enlist(self, line: Line, nights: Sequence[Night]) -> None:
        """Write the line, with the names of all its nights and of all results."""
        line.results = (self.root / "results").subfolders()
        line.nights, line.last = [night.night for night in nights], max([line.last, *(night.number for night in nights)])
        self._put(self.root / "nights", LINE, line)

    def _put(self, folder: Folder, name: str, content: BaseModel) -> None:
        """Write a file, and make sure that the store has it: one that lost it would hide a night."""
        self.check()
        folder.make()
        data = sealed_text(content.model_dump(mode="json"))
        folder.write_bytes(name, data)
        if folder.local is None and folder.read_bytes(name) != data:
            raise OSError(f"{folder / name}: the store has other bytes than those that it took")
        self.check()

    def begin(self, nightly: str, inputs: str, now: datetime, past: Sequence[Night], last: int = 0) -> Night:
        """The night after those of `past`, named by its start in UTC and its inputs; if taken, by the next free second."""
        number = 1 + max([last, *(night.number for night in past)])
        taken = set((self.root / "nights").subfolders())
        while (name := f"{now.astimezone(UTC).strftime(STAMP)}-{inputs[:8]}") in taken:
            now += timedelta(seconds=1)
        return Night(nightly=nightly, night=name, number=number, started=now, inputs=inputs, listed=True)

    def delete(self, night: Night, kept: Collection[Night]) -> None:
        """Delete a night, and its results unless a kept night has them. Files of others stay, and so do their folders."""
        used = {sweep.results for other in kept for sweep in other.sweeps}
        for sweep in night.sweeps:
            if sweep.results and sweep.results not in used:
                Store(directory=self.results(sweep.results)).discard()
        folder = self.folder(night.night)
        present = folder.names()
        for name in (*REPORTS, RECORD):  # the record last, so that after a kill the next night finishes the deletion
            if name in present:
                folder.delete(name)
        folder.remove_if_empty()


def in_order(nights: Sequence[Night], now: datetime, log: Callable[[str], None]) -> list[Night]:
    """The nights, oldest first. One without a number that is dated after `now` had a wrong clock: it goes to the front."""
    ahead = [night for night in nights if night.started > now + _CLOCKS_DIFFER]
    for night in ahead:
        log(f"warning: night {night.night} is dated after now: a clock was or is wrong; nights count by their number")
    aside = [night for night in ahead if not night.number]
    return [*aside, *(night for night in nights if night not in aside)]


def expired(nights: Sequence[Night], keep: Keep, now: datetime, protected: Collection[str]) -> list[Night]:
    """The nights to delete, of `nights` from the oldest to the newest; never one of `protected`.

    With both `nights` and `days`, a night is deleted if neither rule keeps it.
    """
    if keep.nights is None and keep.days is None:
        return []
    older, days = nights[: -keep.nights] if keep.nights else nights, timedelta(days=keep.days or 0)
    young = {night.night for night in nights if timedelta(0) <= now - night.started < days}
    return [night for night in older if night.night not in young | set(protected)]


def history_of(nights: Sequence[Night], name: str) -> list[Point]:
    """The history of one sweep for the plots: the nights in which it was done, each with a label of its own."""
    done = []
    for night in nights:
        if night.finished is not None and (sweep := night.sweep(name)) is not None and sweep.status == "done":
            # to the minute; to the second, then its name, where that would name two nights
            texts = [night.started.astimezone(UTC).strftime(f"%Y-%m-%d %H:%M{seconds}") for seconds in ("", ":%S")]
            done.append(([*texts, night.night], sweep))
    forms = [Counter(form) for form in zip(*(texts for texts, _ in done), strict=True)]
    return [
        Point(
            label=next(text for text, form in zip(texts, forms, strict=True) if form[text] == 1),
            feasible=sweep.feasible,
            best_step_s=sweep.best_step_s,
            champion_rank=sweep.champion_rank,
        )
        for texts, sweep in done
    ]
