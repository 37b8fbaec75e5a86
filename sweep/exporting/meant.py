"""The plan that is launched, and the one that a user means: by its number, or `best`; and rows as expected on this cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pyarrow as pa

from sim_core import HARDWARE_KEYS, Fields, SimError, SpecError
from sweep.columns import EXPECTED, EXPECTED_MEMORY, LONGER, RUNS, SHORTER, higher_is_better
from sweep.evaluation.preparation import Prepared
from sweep.exporting.launched import launched
from sweep.exporting.megatron import flags_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.frameworks import torchtitan
from sweep.frameworks.stacks import page_of
from sweep.options import wrong
from sweep.ranking.beside_running import Beside, Win, ratio_of
from sweep.ranking.error_bars import COLUMNS
from sweep.ranking.ranking import Ranking, rank
from sweep.ranking.selection import equals
from sweep.reopening import BEST, Reopened, reopened
from sweep.results.folder import Location
from sweep.results.store import Store
from sweep.spec.values import FIELDS
from sweep.tuning.record import NAME, SMALL
from sweep.tuning.tuner import Tuner
from sweep.uncertainty.evidence import workload_of
from sweep.wording import Values, values_text

STEP, PEAK = "step_time_s", "peak_memory_bytes"
SIMULATED = "simulated_s"
"""Of a row as expected: the step that was simulated."""


SWITCHED = {"micro_batch", "checkpointing", "bucket_bytes", "dispatcher"} | {
    name for name, field in FIELDS.items() if field.kind == "switch"
}
"""Fields that a job changes without moving its weights."""
MOVES: dict[str, tuple[str, ...] | None] = {"one": None, "nothing": None, "layout": ("precision", *HARDWARE_KEYS), "all": ()}
"""What a job changes, the cheapest first, and what it then keeps: one of SWITCHED, several, its layout, all."""
WORTH = 0.005
"""By how much more a dearer change must be expected to gain to be told of."""
EVEN = 0.5
"""The chance to run below which nothing is told of."""
WINS = 4
"""Of single changes so many are told of, of the others the best."""
HELD = 100
"""Of the plans that meet a condition so many are held against what runs tell, besides the first of all."""


class Meant(NamedTuple):
    """Of a ranking: the row of the plan to launch, which may be the best, and the best: with their chances to run, and as
    expected here once a step is known. `running`: the job that runs beside the plan to launch. `refused`: why its framework
    does not launch the one and the other; empty where it does. `ranking`: the same, `believed`, by a `tuner`."""

    launch: Fields
    best: Fields
    running: Beside | None
    refused: tuple[str, str]
    ranking: Ranking
    tuner: Tuner | None


def refusal(prepared: Prepared) -> Callable[[int], str]:
    """Why the framework of a plan, by number, refuses to launch it, if it is one whose arguments are written; else ""."""

    @cache
    def refused(plan: int) -> str:
        try:
            found = launched(prepared, plan)
        except SimError:
            return ""  # its memory is too small, as simulated
        name = found.stack.partition(" ")[0]
        writes = torchtitan_text if name == torchtitan.PAGE else flags_text if page_of(name).of_megatron else None
        try:
            if writes is not None:
                writes(found)
        except SpecError as error:
            return str(error).partition(": ")[2]
        return ""

    return refused


def tuner_of(folder: Location, opened: Reopened | None, **options: Any) -> Tuner | None:
    """What is known of the plans of a result, read alone, with `options` of `Tuner`; None without the files of its sweep."""
    with suppress(SimError):
        opened = opened or reopened(folder)
        return Tuner(opened.folder, opened=opened, read_only=True, refusal=refusal(opened.prepared), **options)
    return None


def known_of(folder: Location, opened: Reopened | None = None) -> Tuner | None:
    """What runs tell of the plans of a result; None without a run, or the files of its sweep."""
    with suppress(SimError):
        store = Store(directory=folder)
        spec = (store.provenance() or {}).get("spec") or {}
        local = store.folder.local
        if opened or spec.get("running") or (local and any((local / name).exists() for name in (NAME, SMALL))):
            return tuner_of(folder, opened, by=STEP)
    return None


def deciding(
    ranking: Ranking, folder: Location, where: str | None = None, opened: Reopened | None = None, try_cost: float | None = None
) -> Tuner | None:
    """What is known of the plans of a ranking, by which one is to launch. With `where` errors are linear around the plans that
    meet it, so that steps and intervals are some percent off those beside all plans (`known_of`).

    None where plans are not ranked by their time, of recorded jobs, and where files of its sweep are not at hand.
    """
    timed = ranking.best_by in LONGER + SHORTER and ranking.descending == higher_is_better(ranking.by)
    if ranking.front or not timed or not workload_of(ranking.provenance).get("model"):
        return None
    return tuner_of(folder, opened, by=ranking.best_by, where=where, try_cost=try_cost)


def believed(ranking: Ranking, tuner: Tuner | None, per: Sequence[str] = ()) -> Ranking:
    """A ranking with what runs tell of its rows in place of the published ones: chances to run and, once a step of the job is
    known, intervals, ties, expected step and memory. Its order and all other columns stay as simulated. `per`: groups that its
    rows are one of.
    """
    if tuner is None or not tuner.knows or not ranking.best:
        return ranking
    bars, rows, per = ranking.error_bars, ranking.rows, per or ranking.per
    plans, own = rows["plan"].to_pylist(), dict(zip(rows.column_names, rows.columns, strict=True))
    known = tuner.columns(plans)
    if not tuner.is_timed:
        known = known.select([RUNS])
    elif bars.groups:
        firsts = [plan for plan, place in zip(plans, rows["rank"].to_pylist(), strict=True) if place == 1]
        ties = set().union(*(tuner.ties(plan, per) for plan in firsts))
        known = known.append_column(COLUMNS[2], pa.array([plan in ties for plan in plans]))
        why = "steps of this job tell" if tuner.runs else "small runs of its stack tell"
        bars = bars._replace(why=why, groups=tuple(tuner.bars(group, per) for group in bars.groups))
    rows = pa.table(own | {name: known[name] for name in known.column_names if name in own or not ranking.chosen})
    best = next(row for row in rows.to_pylist() if row["plan"] == ranking.best["plan"])
    return replace(ranking, rows=rows, error_bars=bars, best=ranking.best | best)


def meant_by(
    ranking: Ranking,
    best: Fields,
    folder: Location,
    where: str | None = None,
    opened: Reopened | None = None,
    try_cost: float | None = None,
) -> Meant:
    """The plan to launch and the `best` row of a ranking, by what is known now. Raises SpecError for runs that cannot be,
    FormatError for a damaged table of them."""
    if (tuner := deciding(ranking, folder, where, opened, try_cost)) is None:
        tuner = known_of(folder, opened)
        best = as_expected(best, tuner)
        return Meant(best, best, ranking.running, ("", ""), believed(ranking, tuner), tuner)
    plan, here, row = tuner.launch.plan, believed(ranking, tuner), best
    if plan != best["plan"]:
        condition = f"plan = {plan}" + (f" AND ({where}\n)" if where else "")
        row = rank(folder, by=ranking.by, descending=ranking.descending, where=condition, per=[], top=1).best or best
    fastest, launch = (as_expected(each, tuner) for each in (best, row))
    job = ranking.running
    if job is not None and job.simulated_s and job.measured_s and tuner.is_timed:
        low, high = (launch[name] / job.measured_s for name in COLUMNS[:2])
        simulated = launch[SIMULATED] / job.simulated_s
        job = job._replace(best=launch["plan"], ratio=(low, launch[STEP] / job.measured_s, high), simulated=simulated)
        job = job._replace(wins=tuple(_wins(ranking, job, tuner, where)))
    refused = tuner.refusal(launch["plan"]), tuner.refusal(best["plan"])
    return Meant(launch, fastest, job, refused, here, tuner)


def _wins(ranking: Ranking, job: Beside, tuner: Tuner, where: str | None) -> Iterator[Win]:
    """What is faster than the job that runs, the cheapest to change first: of dearer changes what no cheaper one gives.

    By how much is simulated: why the job is slower or faster than that no change of it tells.
    """

    def rows_of(condition: str, also: str | None = where) -> pa.Table:
        condition = f"({also}\n) AND {condition}" if also else condition
        return rank(tuner.opened.folder, by=ranking.by, descending=ranking.descending, where=condition, per=[], top=WINS).rows

    own = [name for name in ranking.varying if name in HARDWARE_KEYS or (name in FIELDS and not FIELDS[name].follows)]
    of_job = rows_of(f"plan = {job.plan}", None)
    mine, tables = of_job.to_pylist()[0], {}
    same = {name: equals(name, mine[name]) for name in own}
    for moves, keeps in MOVES.items():
        kept = [name for name in own if (name in keeps if keeps is not None else name not in SWITCHED)]
        terms = [same[name] for name in kept] or ["plan >= 0"]
        if moves == "one" and (free := [name for name in own if name in SWITCHED]):
            others = [[same[other] for other in free if other != name] or ["plan >= 0"] for name in free]
            terms.append(f"({' OR '.join(' AND '.join(each) for each in others)})")
        tables[moves] = rows_of(" AND ".join(terms))
    every = pa.concat_tables([of_job, *tables.values()])
    plans = every["plan"].to_pylist()
    chances, best = dict(zip(plans, tuner.columns(plans)[RUNS].to_pylist(), strict=True)), 1.0
    for moves, some in tables.items():
        wins = []
        for row in some.to_pylist():  # the fastest first
            plan, changes = row["plan"], values_text({name: row[name] for name in own if row[name] != mine[name]})
            ratio = ratio_of(every, mine["plan"], plan, ranking.by, own, job.differences)
            if ratio is not None and ratio[1] < (1 - WORTH) * best and chances[plan] >= EVEN and not tuner.refusal(plan):
                wins.append(Win(moves, plan, changes, ratio, chances[plan]))
        wins = wins[: WINS if moves == "one" else 1]
        yield from wins
        best = min([best, *(win.ratio[1] for win in wins)])


def as_expected(row: Values, tuner: Tuner | None) -> Fields:
    """A row with what runs tell of it: the chance that it runs; once a step of the job is known, with interval, step and memory
    as expected here."""
    if tuner is None or not tuner.knows:
        return {**row}
    (told,) = tuner.columns([row["plan"]]).to_pylist()
    if not tuner.is_timed:
        return {**row, RUNS: told[RUNS]}
    return {**moved(row, told[EXPECTED] / row[STEP], 1.0), **told, PEAK: told[EXPECTED_MEMORY]}


def moved(row: Values, longer: float, larger: float) -> Fields:
    """A row whose step takes so many times as long, with all that goes with it, and whose memory is so many times as large."""
    times = {**dict.fromkeys(LONGER + COLUMNS[:2], longer), **dict.fromkeys(SHORTER, 1 / longer), PEAK: larger}
    here = {name: row[name] * factor for name, factor in times.items() if row.get(name) is not None}
    return {**row, **here, SIMULATED: row.get(STEP)}


def by_belief(where: str | None, folder: Location) -> str | None:
    """A condition on the chance to run with what runs tell of it, as `Tuner.meeting`. Raises SpecError."""
    if where is None or RUNS not in where.lower() or (tuner := known_of(folder)) is None or not tuner.knows:
        return where
    tuner.hold(rank(folder, where=where, per=[], top=HELD).rows["plan"].to_pylist())
    return tuner.meeting(where)


def plan_number(opened: Reopened, text: str, option: str = "PLAN") -> int:
    """The number of a plan: as `rank` prints it, or of `best`, the one to launch. Raises SpecError, for `option`."""
    size = opened.prepared.sweep.space.size
    if text == BEST:
        ranking = rank(opened.folder, top=1)
        if ranking.best is None:
            raise SpecError(f"{opened.folder}: no plan of it can run; give the number of one")
        tuner = deciding(ranking, opened.folder, opened=opened)
        return int(ranking.best["plan"]) if tuner is None else tuner.launch.plan
    if not text.isascii() or not text.isdecimal() or int(text) >= size:
        raise wrong(option, text, f"a number from 0 to {size - 1:,} (column plan of `sweep rank`), or best")
    return int(text)
