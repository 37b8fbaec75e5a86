"""The results below a folder, each in one line, and one of them in detail: what is done, how fast it grows, the best plan."""

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from sim_core import SpecError
from sim_core.documents import Fields
from sweep.results.folder import Folder
from sweep.results.heartbeat import FILE, heard
from sweep.results.store import BEST, MANIFEST, OLD_MANIFEST, Store

if TYPE_CHECKING:
    from sweep.ranking.ranking import Ranking

FORGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What it raises to read columns or keys that are not there, or are not what they are in results."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One result. `state`: complete, running, incomplete or damaged; `best`: of the column `by`, None if there is none.

    `who`: the user and the host that it was begun by; empty in results of older versions.
    """

    folder: str
    name: str = ""
    who: str = ""
    done: int = 0
    total: int = 0
    state: str
    age_s: float
    by: str = ""
    best: float | None = None
    plan: int | None = None


def results_below(parent: Folder, text: str = "") -> list[Listed]:
    """The results in a folder itself or up to three levels below it, as TEAM/PERSON/RESULT, the newest first.

    `text`: those that have it in their folder, sweep or who. Raises OSError.
    """
    found = (
        listed(place, time.time() - at, text=text) for at, place in sorted(_started(parent), key=lambda result: -result[0])
    )
    return [each for each in found if text in f"{each.folder} {each.name} {each.who}"]


def _started(place: Folder, levels: int = 3) -> Iterator[tuple[float, Folder]]:
    """Results at a place and below, each with when it was begun; none of a folder that this user may not read."""
    with suppress(PermissionError):
        if (at := Store(directory=place).started_s()) is not None:
            yield at, place
        elif levels:
            for name in place.subfolders():
                if name[0] != ".":
                    yield from _started(place / name, levels - 1)


class Best(BaseModel):
    """The best plan of a result with so many `plans` of this `sweep`; None: none of them can run."""

    model_config = ConfigDict(strict=True)

    sweep: str
    plans: int
    by: str
    best: float | None
    plan: int | None


def _ranked(folder: Folder) -> tuple["Ranking", Best]:
    """The first plan of a result. Raises SpecError if a file is damaged."""
    from sweep.ranking.ranking import rank  # late: what is kept needs none of it

    first = rank(folder, top=1, per=[], brief=True)
    row = first.best or {}
    best = Best(sweep=first.provenance["sweep"], plans=first.total, by=first.by, best=row.get(first.by), plan=row.get("plan"))
    return first, best


def keep_best(folder: Folder) -> "Ranking":
    """The first plan of a result, kept beside the rows where there is room. Raises SpecError if a file is damaged."""
    first, best = _ranked(folder)
    with suppress(OSError):
        folder.write_bytes(BEST, best.model_dump_json().encode())
    return first


def _kept(folder: Folder, sweep: object, done: int) -> Best | None:
    """The best plan as it is kept; None where it is not, or is of other rows."""
    with suppress(OSError, ValueError):
        best = Best.model_validate_json(folder.read_bytes(BEST))
        if (best.sweep, best.plans) == (sweep, done):
            return best
    return None


def listed(place: Folder, age_s: float, best: Best | None = None, text: str = "") -> Listed:
    """One result; `age_s`: seconds since its manifest was written; `best`: its best plan, if it is known, else as it is kept;
    that of one with `text` is found where it is not. Raises OSError if a store cannot be reached."""
    store = Store(directory=place)
    try:
        provenance = store.provenance() or {}
        total = int(provenance.get("rows", 0))
        done = total - sum(part.rows for part in store.missing(total))
        whole = done == total
        at_work = not (whole and place.local is None) and store.is_running()  # S3: it may have ended a moment ago
        state = "running" if at_work else "complete" if whole else "incomplete"
        name, who = (str(provenance.get(key, "")) for key in ("name", "who"))
        if done and text in f"{place} {name} {who}":
            best = best or _kept(place, provenance.get("sweep"), done) or _ranked(place)[1]
    except (
        SpecError,
        OSError,
        *FORGED,
    ) as error:  # a damaged file, or one that no sweep wrote: the commands that read it say which
        if isinstance(error, OSError) and place.local is None:
            raise  # the store may be away
        return Listed(folder=str(place), state="damaged", age_s=age_s)
    found = Listed(folder=str(place), name=name, who=who, done=done, total=total, state=state, age_s=age_s)
    return found if best is None else replace(found, by=best.by, best=best.best, plan=best.plan)


@dataclass(frozen=True, kw_only=True)
class Standing(Listed):
    """A result in detail. `written_s`: seconds since its last file; `left_s`: until a run that writes now is done, else None.

    `step_s`: of the best plan; `reasons`: plans done that are not `ok`, by reason; `run`: what the last run tells of itself.
    """

    files: int
    bytes: int
    written_s: float
    left_s: float | None
    ok: int
    step_s: float | None
    reasons: dict[str, int]
    simulator: str
    run: Fields


def standing(folder: Folder) -> Standing:
    """How far the result in a folder is. Raises SpecError if it holds none, or a file is damaged; OSError."""
    store, files = Store(directory=folder), folder.written()
    provenance = store.made_from()
    now, parts = time.time(), store.slices()
    begun = store.started_s() or now
    ranked, best = _ranked(folder) if parts else (None, None)
    brief = listed(folder, now - begun, best)
    told = heard(folder) if files.get(FILE, (0.0, 0))[0] >= begun else None  # not an earlier run
    own = [file for name, file in files.items() if name in (MANIFEST, OLD_MANIFEST) or name.startswith("part-")]
    return Standing(
        **vars(brief),
        files=len(parts),
        bytes=sum(size for _, size in own),
        written_s=now - max((written for written, _ in own), default=now),
        left_s=told.eta_s if told and brief.state == "running" else None,
        ok=0 if ranked is None else ranked.ranked,
        step_s=(ranked.best or {}).get("step_time_s") if ranked else None,
        reasons={} if ranked is None else ranked.reasons,
        simulator=str(provenance.get("model", "")),
        run=told.model_dump() if told else {},
    )
