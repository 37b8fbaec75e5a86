"""How a sweep is judged: the night that it is compared with, made whole again, and the regressions beyond the thresholds."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from sim_core import SimError, SpecError, plural
from sim_core.documents import Fields
from sweep.compare.report import group_text, percent
from sweep.compare.result import Comparison, Group
from sweep.evaluation.preparation import Prepared, prepare
from sweep.nightly.nights import HOW, Night, Nights, SweepRecord
from sweep.nightly.spec import PREVIOUS, NightlySpec, Thresholds
from sweep.results.store import Store
from sweep.spec.spec import stored_spec
from sweep.wording import cell, heading


class Baseline(NamedTuple):
    """A night, and the name of the result that it has of the sweep."""

    night: str
    results: str


def baselines_of(spec: NightlySpec, past: Sequence[Night], name: str, accepted: int) -> list[Baseline]:
    """What to compare the sweep `name` with, of the nights in which it was done: the fixed night; else the last without a
    regression or with one that is accepted, and the first since the last acknowledgement, which a slow drift moves away from.

    `accepted`: nights up to this number are.
    """
    done = [(night, sweep) for night in past if (sweep := night.sweep(name)) is not None and sweep.status == "done"]
    chosen = [one for one in done if one[0].night == spec.baseline]
    if spec.baseline == PREVIOUS:
        chosen = [one for one in done if not one[1].regressions or one[0].number <= accepted][-1:]
        chosen += [one for one in done if one[0].number >= accepted][:1]
    return [Baseline(night.night, sweep.results) for night, sweep in chosen]


def below_the_best(record: SweepRecord, past: Sequence[Night], limits: Thresholds, *, descending: bool) -> list[str]:
    """One line per group whose best value is worse than in the best of these nights by more than the threshold."""
    lines = []
    for group, value in record.best.items():
        earlier = [(sweep, night.night) for night in past if (sweep := night.sweep(record.name)) and sweep.by == record.by]
        known = [(old, night) for sweep, night in earlier if (old := sweep.best.get(group))]
        if value is None or not known or limits.best is None:
            continue
        old, best = (max if descending else min)(known)
        if (value / old - 1) * (-1 if descending else 1) > limits.best:
            values = f"{cell(record.by, old)} -> {cell(record.by, value)}, {percent(value / old - 1)}"
            told = f"against night {best}, the best of {plural(len(known), 'night')}"
            lines.append(f"{group}: best {heading(record.by)} {values} {told} (threshold {percent(limits.best)[1:]})")
    return lines


def make_whole(base: Baseline, nights: Nights, specs: Path, compute: Callable[[Prepared, Store], int]) -> str:
    """Compute again what is missing or damaged in the baseline, from the spec that it holds and the files in `specs`.

    Returns what was wrong, empty if nothing was. Raises SpecError if these inputs are not at hand any more: a comparison
    with the rest could hide a regression.
    """
    store = Store(directory=nights.results(base.results))
    provenance, why = _state(store)
    if not why:
        return ""
    prepared = None
    if provenance is not None:
        with suppress(SimError, ValidationError, OSError):
            prepared = prepare(stored_spec(provenance["spec"]), specs)
    if prepared is None or provenance is None or prepared.sweep.identity != provenance["sweep"]:
        raise SpecError(
            f"the baseline, night {base.night}, cannot be trusted: {why}, and its inputs are no longer at hand; set `baseline` "
            f"to another night, or delete {nights.folder(base.night)} and accept that: {HOW}"
        )
    compute(prepared, store)
    return why


def _state(store: Store) -> tuple[Fields | None, str]:
    """The provenance of a result, and what is wrong with it; empty if it is complete and undamaged."""
    try:
        provenance = store.provenance()
    except SpecError as error:
        return None, str(error).partition("; ")[0]
    if provenance is None:
        return None, f"{store.folder}: its results are gone"
    damaged, rows = store.damaged(provenance["sweep"]), int(provenance.get("rows", 0))
    missing = sum(part.rows for part in store.missing(rows, without=damaged))
    if not damaged and not missing:
        return provenance, ""
    files = f"{plural(len(damaged), 'damaged file')}, " if damaged else ""
    return provenance, f"{store.folder}: {files}{missing:,} of {rows:,} plans are missing"


def regressions(both: Comparison, limits: Thresholds) -> list[str]:
    """One line per regression, the most serious kind first."""
    lines = [line for group in both.groups if (line := _of_group(group, both, limits))]
    change = dict(both.steps.quantiles).get(0.5)
    if limits.median_step is not None and change is not None and change > limits.median_step:
        mean = both.steps.mean
        cause = f", mostly {mean.cause}" if mean and mean.cause else ""
        lines.append(f"median step time {percent(change)} (threshold {percent(limits.median_step)[1:]}){cause}")
    moved = [both.moved[name] for name in ("became_infeasible", "became_failed")]
    lost = sum(each.plans for each in moved)
    if limits.infeasible is not None and lost > limits.infeasible:
        why = ", ".join(each.text for each in moved if each.text)
        lines.append(f"{plural(lost)} can no longer run ({why}; threshold {limits.infeasible:,})")
    return lines


def _of_group(group: Group, both: Comparison, limits: Thresholds) -> str | None:
    where = f"{group_text(group.group)}: " if group.group else ""
    if group.old is None:
        return None
    if group.new is None:
        return f"{where}no plan can run any more" if limits.best is not None else None
    if limits.best is not None and group.worse is not None and group.worse > limits.best:
        values = f"{cell(both.by, group.old.value)} -> {cell(both.by, group.new.value)}"
        change = percent(group.new.value / group.old.value - 1)
        return f"{where}best {heading(both.by)} {values}, {change} (threshold {percent(limits.best)[1:]})"
    rank, limit = group.old_plan_rank, limits.champion_rank
    if limit is None or (rank is not None and rank <= limit):
        return None
    now = f"now ranks {rank:,}" if rank else f"is now {group.old_plan_status}"
    return f"{where}the best plan of the baseline {now} (threshold {limit})"
