"""The results below a folder, each in one line: what is done, whether a run is writing, the best plan."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sim_core import SpecError
from sweep.folder import Folder
from sweep.ranking import rank
from sweep.store import Store


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One result. `state`: complete, running, incomplete or damaged; `best`: of the column `by`, None if there is none."""

    folder: str
    name: str
    done: int
    total: int
    state: str
    age_s: float
    by: str = ""
    best: float | None = None
    plan: int | None = None


def results_below(parent: Folder) -> list[Listed]:
    """The results in a folder itself or one level below it, the newest first. Raises OSError."""
    is_one = Store(directory=parent).started_s() is not None
    places = [parent] if is_one else [parent / name for name in parent.subfolders()]
    started = ((Store(directory=place).started_s(), place) for place in places)
    found = [(at, place) for at, place in started if at is not None]
    return [listed(place, time.time() - at) for at, place in sorted(found, key=lambda one: -one[0])]


def listed(place: Folder, age_s: float) -> Listed:
    """One result; `age_s`: seconds since its manifest was written. Raises OSError."""
    store = Store(directory=place)
    try:
        held = store.provenance() or {}
        total = int(held.get("rows", 0))
        done = total - sum(part.rows for part in store.missing(total))
        running = store.is_running()
        state = "running" if running else "complete" if done == total else "incomplete"
        first = rank(place, top=1, per=[]) if done else None
    except SpecError:  # a damaged file: the commands that read it say which
        return Listed(folder=str(place), name="", done=0, total=0, state="damaged", age_s=age_s)
    rows = [] if first is None else first.rows.to_pylist()
    return Listed(
        folder=str(place),
        name=str(held.get("name", "")),
        done=done,
        total=total,
        state=state,
        age_s=age_s,
        by="" if first is None else first.by,
        best=rows[0][first.by] if first is not None and rows else None,
        plan=rows[0]["plan"] if rows else None,
    )
