"""What a sweep is compared with: the night, and its result made whole again, or the reason why it cannot be trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sim_core import SimError, SpecError
from sweep.nightly.nights import Night, Nights
from sweep.nightly.spec import PREVIOUS, NightlySpec
from sweep.preparation import Prepared, prepare
from sweep.spec import stored_spec
from sweep.store import Store


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """A night, and the name of the result that it has of the sweep."""

    night: str
    results: str


def baseline_of(spec: NightlySpec, past: Sequence[Night], name: str) -> Baseline | None:
    """What to compare the sweep `name` with: the fixed night, or the last in which it was done; None if there is none."""
    for night in reversed(past):
        sweep = night.sweep(name)
        if sweep is not None and sweep.status == "done" and spec.baseline in (PREVIOUS, night.night):
            return Baseline(night=night.night, results=sweep.results)
    return None


def make_whole(base: Baseline, nights: Nights, specs: Path, compute: Callable[[Prepared, Store], int]) -> str:
    """Compute again what is missing or damaged in the baseline, from the spec that it holds and the files in `specs`.

    Returns what was wrong, empty if nothing was. Raises SpecError if these inputs are not at hand any more: a comparison
    with the rest could hide a regression.
    """
    store = Store(directory=nights.results(base.results))
    held, why = _state(store)
    if not why:
        return ""
    prepared = _inputs(held, specs)
    if prepared is None:
        raise SpecError(
            f"the baseline, night {base.night}, cannot be trusted: {why}, and its inputs are no longer at hand; set `baseline` "
            f"to another night, or delete {nights.folder(base.night)} to compare with the night before it"
        )
    compute(prepared, store)
    return why


def _state(store: Store) -> tuple[dict[str, Any] | None, str]:
    """The provenance of a result, and what is wrong with it; empty if it is complete and undamaged."""
    try:
        held = store.provenance()
    except SpecError as error:
        return None, str(error).partition("; ")[0]
    if held is None:
        return None, f"{store.folder}: its results are gone"
    damaged = store.damaged(held["sweep"])
    missing = sum(part.rows for part in store.missing(int(held.get("rows", 0)), without=damaged))
    if not damaged and not missing:
        return held, ""
    files = f"{len(damaged)} damaged file{'s' * (len(damaged) != 1)}, " if damaged else ""
    return held, f"{store.folder}: {files}{missing:,} of {int(held.get('rows', 0)):,} plans are missing"


def _inputs(held: dict[str, Any] | None, specs: Path) -> Prepared | None:
    """The sweep of a provenance, if its inputs and the simulator are what they were; otherwise None."""
    if held is None:
        return None
    try:
        prepared = prepare(stored_spec(held["spec"]), specs)
    except (SimError, ValidationError, OSError):
        return None
    return prepared if prepared.sweep.identity == held["sweep"] else None
