"""The folder of nights: the record of each, their history, and which of them the retention rule deletes.

ROOT/nights/20261121T023000Z-1a2b3c4d/   night.json, report.md, report.json, report.html
ROOT/results/gpt7b-3b3888d9/             a sweep's result, named by its identity and shared by all nights that have it
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from sim_core import SpecError
from sweep.compare.result import Point
from sweep.nightly.spec import Keep
from sweep.results.folder import Folder
from sweep.results.sealing import sealed_text, unsealed
from sweep.results.store import Store

RECORD = "night.json"
REPORTS = ("report.md", "report.json", "report.html")
STAMP = "%Y%m%dT%H%M%SZ"
_CLOCKS_DIFFER = timedelta(minutes=10)
_NAME = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{8}\Z")


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

    def sweep(self, name: str) -> SweepRecord | None:
        """The record of the sweep `name`; None if the night has no such sweep."""
        return next((sweep for sweep in self.sweeps if sweep.name == name), None)


_ADDED = ("number", "pinned", "undelivered")
"""Fields that records of earlier versions lack."""


def _opened(data: bytes) -> Night:
    """The night in a record. Raises ValueError if it is damaged: nothing that a version wrote may be missing or unknown."""
    record, sealed = unsealed(data)
    night = Night.model_validate(record)
    entries = [(Night, record)]
    for kind, entry in entries + [(SweepRecord, sweep) for sweep in record.get("sweeps", ())]:
        if lacking := kind.model_fields.keys() - entry.keys() - set(_ADDED):
            raise ValueError(f"{', '.join(sorted(lacking))}: missing")
        if not sealed and (unknown := entry.keys() - kind.model_fields.keys()):
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown")
    return night


class Nights(NamedTuple):
    """The folder of nights."""

    root: Folder

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
            try:
                night = _opened(self.folder(name).read_bytes(RECORD))
                if night.night != name:
                    raise ValueError(f"it is that of night {night.night}")
                nights.append(night)
            except FileNotFoundError:
                continue
            except ValueError as error:
                fault = str(error)
                if isinstance(error, ValidationError):
                    first = error.errors()[0]
                    fault = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
                raise SpecError(f"{self.folder(name) / RECORD}: is damaged ({fault}); delete this night") from None
        return sorted(nights, key=lambda night: night.number)

    def write(self, night: Night) -> None:
        """Write the record of a night, sealed, atomically."""
        folder = self.folder(night.night)
        folder.make()
        folder.write_bytes(RECORD, sealed_text(night.model_dump(mode="json")))

    def begin(self, nightly: str, inputs: str, now: datetime, past: Sequence[Night]) -> Night:
        """The night after those of `past`, named by its start in UTC and its inputs; if taken, by the next free second."""
        number = 1 + max((night.number for night in past), default=0)
        taken = set((self.root / "nights").subfolders())
        while (name := f"{now.astimezone(UTC).strftime(STAMP)}-{inputs[:8]}") in taken:
            now += timedelta(seconds=1)
        return Night(nightly=nightly, night=name, number=number, started=now, inputs=inputs)

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
