"""How far one result is: what its folder holds, how fast it grows while a run writes, what came of its plans so far."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sweep.folder import Folder
from sweep.listing import Listed, listed
from sweep.ranking import rank
from sweep.store import MANIFEST, OLD_MANIFEST, Store


@dataclass(frozen=True, kw_only=True)
class Standing(Listed):
    """A result in detail. `written_s`: seconds since its last file; `left_s`: until a run that writes now is done, else None.

    `reasons`: plans done that are not `ok`, by reason.
    """

    files: int
    bytes: int
    written_s: float
    left_s: float | None
    ok: int
    reasons: dict[str, int]
    simulator: str


def standing(folder: Folder) -> Standing:
    """How far the result in a folder is. Raises SpecError if it holds none, or a file is damaged; OSError."""
    store, files = Store(directory=folder), folder.written()
    provenance = store.made_from()
    now, parts = time.time(), store.slices()
    begun = store.started_s() or now
    brief = listed(folder, now - begun)
    of_this_run = sum(part.rows for part in parts if files.get(part.file_name, (0.0, 0))[0] >= begun)
    growing = brief.state == "running" and of_this_run > 0
    own = [files[name] for name in files if name in (MANIFEST, OLD_MANIFEST) or name.startswith("part-")]
    ranked = rank(folder, top=1, per=[]) if parts else None
    return Standing(
        **vars(brief),
        files=len(parts),
        bytes=sum(size for _, size in own),
        written_s=now - max((written for written, _ in own), default=now),
        left_s=(brief.total - brief.done) * (now - begun) / of_this_run if growing else None,
        ok=0 if ranked is None else ranked.ranked,
        reasons={} if ranked is None else ranked.reasons,
        simulator=str(provenance.get("model", "")),
    )
