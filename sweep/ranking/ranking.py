"""Rank the results of a sweep: the best plans by a column, over all plans or within groups, or those on a Pareto front.

DuckDB runs the queries.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sim_core import PARTS, REASON, Fields, Ints, Values, Words
from sweep.columns import MEASURES, NUMBERS, RUNS, SECTIONS, SIZES, higher_is_better, measures_of, result_column
from sweep.options import OptionError, of_option
from sweep.ranking.beside_running import Beside, beside_running
from sweep.ranking.chances import runs_probability
from sweep.ranking.error_bars import COLUMNS as BARS, ErrorBars, error_bars
from sweep.ranking.facts import NEEDED_MEMORY, Told, asked, told
from sweep.ranking.query import Rows, columns_in, parts, plan_columns
from sweep.ranking.reach import Gathered
from sweep.ranking.selection import (
    ALIKE,
    CHOSEN,
    DIFFERING,
    FRONT,
    Order,
    Question,
    check_ordered,
    check_type,
    chosen_rows,
    find_fronts,
    ordering,
    quoted,
    select,
)
from sweep.ranking.worlds import worlds_beside
from sweep.results.folder import Location
from sweep.results.store import Store
from sweep.spec.spec import SweepSpec
from sweep.uncertainty.evidence import basis_of

TOP, GROUP_TOP = 20, 1
UTILISATION = ("tflops_per_gpu", "mfu", "hfu", "measured_share")
"""Columns that tell how well the hardware is used."""
ALL = "all"
_PER_SAMPLE = "gpu_s_per_sample"
_OF_THE_JOB = ("step_time_s", "samples_per_s", "tokens_per_s")
_SIZED = ("all_gpus", "global_batch", "dp")
IDENTITY = ("plan", "fidelity", "status", "reason")


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The ranked rows, and what the ranking leaves out."""

    rows: pa.Table  # every column of a result, or those asked for; the same for all results with the same columns
    shown: Words  # the columns of `rows` that say most of these plans, or those asked for
    chosen: bool  # whether columns were asked for
    best: Fields | None  # every column of the first row, of groups that of the best by `best_by`
    best_by: str
    per: Words
    front: Words  # columns of the Pareto front that the rows are; empty: a ranking
    by: str
    descending: bool
    ranked: int
    total: int
    missing: int  # rows that are not computed yet
    notes: Words  # of the run, those that concern the ranking
    filtered: int  # ok, but `where` is false
    reasons: dict[str, int]  # not ranked, by reason
    memory: tuple[float, ...] | None  # least and most that the plans need which do not fit, and have
    varying: Words  # plan columns with more than one value among the ranked
    held: Fields  # plan columns with one value
    utilisation: list[Fields]  # of the rows: UTILISATION
    alike: int  # plans that the rows stand for besides their own
    differing: Words  # columns in which those differ
    error_bars: ErrorBars
    running: Beside | None  # the job that runs, where the spec names one
    searched: bool  # a search: plans that were proven worse have no row
    provenance: Fields


def rank(
    directory: Location | Rows,
    *,
    by: str | None = None,
    top: int | None = None,
    where: str | None = None,
    per: Sequence[str] | None = None,
    columns: Sequence[str] = (),
    descending: bool | None = None,
    pareto: Sequence[str] = (),
    every: bool = False,
    brief: bool = False,
) -> Ranking:
    """Rank the results in `directory`, or its rows where they are open. Ties go to the lower plan number.

    `by` defaults to the spec's first objective, `per` to its groups, `top` to 20 rows, or 1 per group. `columns` may be
    just `all`. `pareto`: only plans that no other beats in one of these columns without losing in another, all of them
    unless `top` says fewer. Plans with the same numbers are one row, unless `every`. `brief`: only what the rows say; nothing
    is simulated in other worlds, or held against the job that runs.

    Raises SpecError on an unknown column, a bad condition, or a folder without results.
    """
    with nullcontext(directory) if isinstance(directory, Rows) else parts(directory, where) as source:
        connection, schema, store = source.connection, source.columns, Store(directory=source.directory)
        provenance, beside = store.provenance() or {}, store.counted().get("plans", {})
        spec = provenance.get("spec", {})
        front = [(name, higher_is_better(name)) for name in _known("--pareto", pareto, schema)]
        if front and by is not None:
            raise OptionError("--pareto and --by: expected one of them; the front is in the order of its first column")
        ordered_by = front or ordering(by, descending, provenance, schema)
        check_ordered([name for name, _ in ordered_by], "--pareto" if front else "objectives" if by is None else "--by", schema)
        by, descending = ordered_by[0]
        per = _known("--per", spec.get("per", []) if per is None else per, schema)
        top = top or (None if front else GROUP_TOP if per else TOP)
        every_column = list(columns) == [ALL]
        wanted = [] if every_column else _known("--columns", columns, schema, ("rank", ALIKE, DIFFERING, RUNS, *BARS))
        facts, reach, condition = _choose(source, ordered_by, per, top, where, front=front, every=every)
        kept = [name for name in schema if name not in ("status", "reason")]
        reach.take()
        rows = chosen_rows(connection, kept, per)
        basis = basis_of(provenance)
        reach.compare(basis)
        worlds = None if brief else worlds_beside(source.directory, provenance, rows["plan"].to_numpy())
        bars = error_bars(
            connection, rows, condition=condition, by=by, per=per, varying=facts.varying, basis=basis, worlds=worlds,
        )  # fmt: skip
        running = None if front or per or brief else beside_running(connection, provenance, rows, by, basis)
    if beside:  # of a search
        bars = bars._replace(why=f"{bars.why}; ties are counted among the plans that were simulated")
    for name in BARS:
        rows = rows.append_column(name, bars.columns[name])
    rows = rows.append_column(RUNS, runs_probability(rows, provenance, worlds))
    # the best of all groups: of jobs of other sizes by what a sequence costs, not by what a step takes
    fair = by in _OF_THE_JOB and {*_SIZED} & {*per} and _PER_SAMPLE in schema
    best_by, most = (_PER_SAMPLE, False) if fair else (by, descending)
    values = rows[best_by].to_pylist()
    best = rows.slice(values.index((max if most else min)(values)), 1).to_pylist()[0] if values else None
    total = facts.total + sum(beside.values())
    reasons = facts.reasons | {reason: facts.reasons.get(reason, 0) + count for reason, count in beside.items()}
    alike, alike_but_for = sum(rows[ALIKE].to_pylist()) - len(rows), " ".join(rows[DIFFERING].to_pylist()).split()
    taken, shown = ["rank", *kept, *BARS, RUNS, ALIKE, DIFFERING], kept
    if wanted:
        taken = shown = list(dict.fromkeys(["rank", "plan", *per, *wanted, by]))
    elif not every_column:
        shown = _shown(rows, [*per, *facts.varying, *(name for name, _ in front), by], schema, spec)
    return Ranking(
        rows=rows.select(taken),
        chosen=bool(columns),
        best=best,
        best_by=best_by,
        shown=tuple(dict.fromkeys(["rank", *([ALIKE] if alike and not wanted else []), *shown])),
        per=tuple(per),
        front=tuple(name for name, _ in front),
        by=by,
        descending=descending,
        ranked=facts.ranked,
        total=total,
        missing=max(int(provenance.get("rows", total)) - total, 0),
        notes=_notes(provenance),
        filtered=total - facts.ranked - sum(reasons.values()),
        reasons=reasons,
        memory=facts.memory,
        varying=tuple(facts.varying),
        held=facts.held,
        utilisation=rows.select([name for name in UTILISATION if name in rows.column_names]).to_pylist(),
        alike=alike,
        error_bars=bars,
        running=running,
        searched="search" in provenance,
        provenance=provenance,
        differing=tuple(name for name in facts.varying if name in alike_but_for),
    )


def first_plans(source: Rows, directory: Location, by: str | None, where: str | None, top: int) -> tuple[str, Ints]:
    """The column that `rank` ranks by, and the numbers of its first plans, in order. Raises SpecError as `rank` does."""
    ordered_by = ordering(by, None, Store(directory=directory).provenance() or {}, source.columns)
    check_ordered([name for name, _ in ordered_by], "objectives" if by is None else "--by", source.columns)
    _choose(source, ordered_by, [], top, where)
    plans = source.connection.execute(f"SELECT plan FROM {CHOSEN} ORDER BY rank").fetchall()
    return ordered_by[0][0], np.array([plan for (plan,) in plans], int)


def _choose(
    source: Rows, order: Order, per: Sequence[str], top: int | None, where: str | None,
    *, front: Order = (), every: bool = False,
) -> tuple[Told, Gathered, str]:  # fmt: skip
    """Fill the table CHOSEN; what is known of all rows, those at hand, and the condition that the chosen ones meet."""
    connection, schema, (by, descending) = source.connection, source.columns, order[0]
    condition = f"status = 'ok' AND {quoted(by)} IS NOT NULL"
    of_plans = plan_columns(schema, IDENTITY)
    facts = told(source.indexes(), by, of_plans) if not (where or front) else None
    needed = {*(facts.varying if facts else of_plans), *per, *(name for name, _ in order), *IDENTITY, *NUMBERS, *SIZES}
    if facts is None:  # the rows themselves have to tell
        needed |= {*NEEDED_MEMORY} | (columns_in(where, schema) if where else set())
    reach = Gathered(source, by, descending, per, needed, condition, every=facts is None)
    if where:
        check_type(connection, where)
        condition += f" AND coalesce(({where}\n), false)"
    facts = facts or asked(connection, schema, by, of_plans, where or "true", condition)
    if front:
        find_fronts(connection, condition, front, per)
        condition = f"plan IN (SELECT plan FROM {FRONT})"
    question = Question(
        condition=condition,
        order=order,
        per=per,
        top=top,
        plan_columns=facts.varying,
        every=every,
        have=reach.bound,
    )
    select(connection, question, list(schema))
    return facts, reach, condition


def _shown(rows: pa.Table, telling: Sequence[str], schema: Mapping[str, str], spec: Values) -> list[str]:
    """The columns that say most of the chosen rows: those that are `telling`, and results."""
    more = [name for section, kind in SECTIONS.items() if spec.get(section) for name in measures_of(kind)]
    ties = rows["tie"].null_count == 0 and any(place > 1 for place in rows["rank"].to_pylist())  # the best ties with itself
    results = [name for name in ("step_time_s", "samples_per_s", *more, "mfu", *PARTS) if name in schema]
    optional = ("mfu", *measures_of(*SECTIONS.values()))
    shown = dict.fromkeys(["plan", *["tie"] * ties, *telling, *results])
    return [name for name in shown if name not in optional or rows[name].null_count < len(rows)]


def _known(option: str, names: Sequence[str], schema: Mapping[str, str], further: Sequence[str] = ()) -> list[str]:
    """The columns that an option means by any of their names, `further` ones besides those stored. Raises OptionError."""
    with of_option(option):
        return [name.strip() if name.strip() in further else result_column(name, list(schema)) for name in names]


def _notes(provenance: Fields) -> Words:
    """Notes of the run that concern the ranking."""
    concerning = ("memory:", "budget:", "failures:")
    notes = [note for note in provenance.get("notes", ()) if note.startswith(concerning)]
    if checks := len(provenance.get("checks", ())):
        notes.append(f"{checks} doubtful record{'s' * (checks != 1)} of the workload file (`sweep inspect` of it says which)")
    return tuple(notes)


def failed(reasons: Mapping[str, int]) -> int:
    """How many of the plans that are not ranked, by reason, have failed."""
    return sum(count for reason, count in reasons.items() if REASON.get(reason, 0) >= REASON["result_not_finite"])


def objectives_of(spec: SweepSpec) -> tuple[str, bool]:
    """The column that a spec asks for, and whether more of it is better."""
    return ordering(None, None, {"spec": spec.model_dump(mode="json")}, dict.fromkeys(MEASURES, ""))[0]
