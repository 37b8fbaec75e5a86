"""The folder of nights: what was recorded of each, which of them count, and which the retention rule deletes.

ROOT/nights/20261121T023000Z-1a2b3c4d/   night.json, report.md, report.json, report.html
ROOT/results/gpt7b-3b3888d9/             a sweep's result, named by its identity; shared by the nights that have it
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sim_core import SpecError
from sweep.compare.result import Point
from sweep.nightly.spec import Keep
from sweep.place import Place
from sweep.store import Store

RECORD: Final = "night.json"
REPORTS: Final = ("report.md", "report.json", "report.html")
STAMP: Final = "%Y%m%dT%H%M%SZ"
_NAME = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{8}\Z")


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SweepRecord(_Record):
    """What a night says of one sweep; `results` is a folder below the root's `results/`."""

    name: str
    status: Literal["pending", "done", "failed"] = "pending"
    error: str = ""
    identity: str = ""
    results: str = ""
    baseline: str | None = None  # the night that it was compared with
    rows: int = 0
    computed: int = 0  # of the rows, those that this night had to simulate
    feasible: int = 0
    failed: int = 0
    regressions: list[str] = []
    changes: list[str] = []  # inputs that changed
    best_step_s: dict[str, float | None] = {}
    champion_rank: dict[str, int | None] = {}


class Night(_Record):
    """One night. `code` and `summary` are the outcome; None while it is at work or was cut off."""

    nightly: str
    night: str
    started: datetime
    inputs: str
    finished: datetime | None = None
    code: int | None = None
    summary: str = ""
    sweeps: list[SweepRecord] = []
    undelivered: list[str] = []  # notifications that nobody has received yet

    def sweep(self, name: str) -> SweepRecord | None:
        """The record of a sweep."""
        return next((sweep for sweep in self.sweeps if sweep.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Nights:
    """The folder of nights."""

    root: Place

    def folder(self, night: str) -> Place:
        """Of one night."""
        return self.root / "nights" / night

    def results(self, name: str) -> Place:
        """Of one result."""
        return self.root / "results" / name

    def read(self) -> list[Night]:
        """All nights, the oldest first. Raises SpecError where a record is damaged, OSError."""
        names = [name for name in (self.root / "nights").folders() if _NAME.match(name)]
        return [night for name in names if (night := self._read(name)) is not None]

    def _read(self, name: str) -> Night | None:
        try:
            return Night.model_validate_json(self.folder(name).read_bytes(RECORD))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"])) or "content"
            raise SpecError(f"{self.folder(name) / RECORD}: is damaged ({where}: {fault['msg']}); delete this night") from None

    def write(self, night: Night) -> None:
        """Keep the record of a night, whole or not at all."""
        folder = self.folder(night.night)
        folder.make()
        folder.write_bytes(RECORD, night.model_dump_json(indent=1).encode())

    def begin(self, nightly: str, inputs: str, now: datetime) -> Night:
        """A new night, named by its UTC start and its inputs; a second later where the name is taken."""
        taken = set((self.root / "nights").folders())
        while (name := f"{now.astimezone(UTC).strftime(STAMP)}-{inputs[:8]}") in taken:
            now += timedelta(seconds=1)
        return Night(nightly=nightly, night=name, started=now, inputs=inputs)

    def delete(self, night: Night, kept: Collection[Night]) -> None:
        """Delete a night and those of its results that no kept night has; files of others stay, and folders with them."""
        used = {sweep.results for other in kept for sweep in other.sweeps}
        for sweep in night.sweeps:
            if sweep.results and sweep.results not in used:
                Store(directory=self.results(sweep.results)).discard()
        folder = self.folder(night.night)
        present = folder.names()
        for name in (*REPORTS, RECORD):  # the record last: a kill in between leaves it, and the next night goes on
            if name in present:
                folder.delete(name)
        folder.remove_if_empty()


def expired(nights: Sequence[Night], keep: Keep, now: datetime, protected: Collection[str]) -> list[Night]:
    """The nights that the rule deletes, of `nights` from the oldest to the newest; never one of `protected`.

    With both `nights` and `days` a night goes when it is neither among the newest nor young.
    """
    if keep.nights is None and keep.days is None:
        return []
    newest = {night.night for night in nights[-keep.nights :]} if keep.nights else set()
    young = {night.night for night in nights if keep.days and now - night.started < timedelta(days=keep.days)}
    return [night for night in nights if night.night not in newest | young | set(protected)]


def line_of_nights(nights: Sequence[Night], name: str) -> list[Point]:
    """What a page plots of one sweep: the nights in which it was done."""
    found: list[Point] = []
    for night in nights:
        sweep = night.sweep(name)
        if night.finished is not None and sweep is not None and sweep.status == "done":
            found.append(
                Point(
                    label=night.started.astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
                    feasible=sweep.feasible,
                    best_step_s=sweep.best_step_s,
                    champion_rank=sweep.champion_rank,
                )
            )
    return found
