"""The plan that is launched, and the one that a user means: by its number, or `best`."""

from contextlib import suppress

from sim_core import SimError, SpecError
from sim_core.documents import Fields
from sweep.columns import LONGER, RUNS, SHORTER, higher_is_better
from sweep.options import wrong
from sweep.ranking.ranking import Ranking, rank
from sweep.reopening import BEST, Reopened, reopened
from sweep.results.folder import Location
from sweep.tuning.tuner import Proposal, Tuner


def plan_to_launch(
    ranking: Ranking, folder: Location, where: str | None = None, opened: Reopened | None = None, try_cost: float | None = None
) -> tuple[Proposal, Tuner] | None:
    """The plan of a ranking to launch, by its runs so far, and what is known of the others.

    None where plans are not ranked by their time, of recorded jobs, and where files of its sweep are not at hand.
    """
    if ranking.front or ranking.best_by not in (*LONGER, *SHORTER) or ranking.descending != higher_is_better(ranking.by):
        return None
    if not (ranking.provenance.get("spec", {}).get("workload") or {}).get("model"):
        return None
    with suppress(SimError):
        opened = opened or reopened(folder)
        tuner = Tuner(folder, by=ranking.best_by, where=where, opened=opened, read_only=True, try_cost=try_cost)
        return tuner.launch, tuner
    return None


def launched_and_best(
    ranking: Ranking,
    best: Fields,
    folder: Location,
    where: str | None = None,
    opened: Reopened | None = None,
    try_cost: float | None = None,
) -> tuple[Fields, Fields]:
    """The row of the plan to launch, which may be the best, and the best: with their chances to run by what is known now."""
    if (found := plan_to_launch(ranking, folder, where, opened, try_cost)) is None:
        return best, best
    decided, tuner = found
    best = {**best, RUNS: tuner.chance(best["plan"])}
    if decided.plan == best["plan"]:
        return best, best
    condition = f"plan = {decided.plan}" + (f" AND ({where}\n)" if where else "")
    row = rank(folder, by=ranking.by, descending=ranking.descending, where=condition, per=[], top=1).best
    return ({**row, RUNS: decided.runs_probability}, best) if row else (best, best)


def plan_number(opened: Reopened, text: str, option: str = "PLAN") -> int:
    """The number of a plan: as `rank` prints it, or of `best`, the one to launch. Raises SpecError, for `option`."""
    size = opened.prepared.sweep.space.size
    if text == BEST:
        ranking = rank(opened.folder, top=1)
        if ranking.best is None:
            raise SpecError(f"{opened.folder}: no plan of it can run; give the number of one")
        decided = plan_to_launch(ranking, opened.folder, opened=opened)
        return int(ranking.best["plan"]) if decided is None else decided[0].plan
    if not text.isascii() or not text.isdecimal() or int(text) >= size:
        raise wrong(option, text, f"a number from 0 to {size - 1:,} (column plan of `sweep rank`), or best")
    return int(text)
