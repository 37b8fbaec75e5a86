"""What each constraint costs: the best plans if one condition, or the memory of the devices, were no limit."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from sim_core import Ints, SpecError, plural
from sim_core.documents import Fields
from sweep.answers.section import Section
from sweep.answers.variation import Variation
from sweep.columns import MEASURES, describe_rows, names_of_hardware, other_names
from sweep.conditions import check_condition, conjuncts, locked_down, satisfied
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.moved import boundless
from sweep.evaluation.preparation import Sweep
from sweep.ranking.query import NAMED, named, results
from sweep.ranking.ranking import Ranking, rank
from sweep.ranking.selection import quoted
from sweep.reopening import Reopened
from sweep.search.ahead import Frontier
from sweep.search.candidates import search_among
from sweep.search.objective import Objective
from sweep.wording import cell, heading, values_text

MEMORY = "device memory"
WHERE, ASKED, DEVICE = "where", "--where", "memory"
"""Origins of a constraint: the spec, the command, the hardware."""
Best = dict[tuple[Any, ...], Fields]
"""The best row of each group, by the values of the group."""
COLUMNS = {
    **{"constraint": pa.string(), "origin": pa.string(), "excluded": pa.int64(), "plan_now": pa.int64()},
    **dict.fromkeys(("now", "without", "better"), pa.float64()),
}
NOTHING = 5e-5
"""A gain below this is none."""
_CHUNK = 65_536


@dataclass(frozen=True, kw_only=True)
class Relaxed(Variation):
    """The best plan of a group, and the best without one constraint, which `change` names."""

    origin: str  # WHERE, ASKED or DEVICE
    excluded: int  # plans that only this constraint keeps out
    group: Fields  # values of `per`
    by: str
    better: float  # how much better in `by`, a fraction of what it is now; 0 if it is not, or one of them is unknown


def relax(
    opened: Reopened,
    *,
    by: str | None = None,
    where: str | None = None,
    per: Sequence[str] | None = None,
    descending: bool | None = None,
) -> list[Relaxed]:
    """Each constraint of the spec and of `where`, and the devices' memory, left out one at a time; the dearest first.

    A condition of `where` is left out of the stored rows. Plans that only the spec or the memory keeps out have no result
    yet: they are simulated, those alone whose lower bound does not rule them out. Raises SpecError, also for the result of a
    search, which does not hold the plans it left out.
    """
    if "search" in opened.provenance:
        raise SpecError(f"{opened.folder}: --relax needs every plan, and a search keeps the best alone; use `sweep run`")
    ranked = partial(rank, opened.folder, by=by, per=per, top=1, descending=descending, every=True)
    ranking = ranked(where=where)
    now = _by_group(ranking.rows, ranking)
    constraints = []

    def compare(constraint: str, origin: str, excluded: int, rows: Best) -> None:
        """Add the constraint in each group that has a plan with it, or without."""
        for group in dict.fromkeys([*now, *rows]):
            best, without, better = now.get(group, {}), rows.get(group, {}), 0.0
            if best:
                value, then = best[ranking.by], without.get(ranking.by)
                if then is None or then == value or (then > value) != ranking.descending:
                    without = best  # nothing is better without it
                elif value:
                    better = abs(then / value - 1)
            constraints.append(
                Relaxed(
                    change=constraint,
                    origin=origin,
                    excluded=excluded,
                    group=dict(zip(ranking.per, group, strict=True)),
                    before=best,
                    after=without,
                    by=ranking.by,
                    better=better,
                )
            )

    for constraint, others in _one_out(conjuncts(where) if where else []):
        without = ranked(where=" AND ".join(f"({each})" for each in others) or None)
        compare(constraint, ASKED, without.ranked - ranking.ranked, _by_group(without.rows, ranking))
    sweep = opened.prepared.sweep
    for constraint, others in _one_out(sweep.where):
        plans = _stored(opened, "excluded_by_where", where)
        met = [satisfied(others, describe_rows(sweep.space, part)[0]) for part in _chunks(plans)]
        plans = plans[np.concatenate([np.zeros(0, np.bool_), *met])]
        compare(constraint, WHERE, len(plans), _best(replace(sweep, where=tuple(others)), plans, ranking, where))
    plans = _stored(opened, "memory_exceeds_device", where)
    if len(plans):
        rows = _best(boundless(sweep), plans, ranking, where)
        for row in rows.values():
            _, own = describe_rows(sweep.space, np.array([row["plan"]], np.int64))
            row["device_memory_bytes"] = float(sweep.hardware.columns.memory_bytes[own.hardware[0]])
        compare(MEMORY, DEVICE, len(plans), rows)
    return sorted(constraints, key=lambda each: -each.better)


def relaxed_rows(constraints: Sequence[Relaxed], schema: pa.Schema) -> pa.Table:
    """COLUMNS and, of the best plan without the constraint, the columns of a result."""
    told = [
        {
            "constraint": each.change,
            "origin": each.origin,
            "excluded": each.excluded,
            "plan_now": each.before.get("plan"),
            "now": each.before.get(each.by),
            "without": each.after.get(each.by),
            "better": each.better,
            **(each.after or each.group),
        }
        for each in constraints
    ]
    fields = [pa.field(name, kind) for name, kind in COLUMNS.items()]
    fields += [pa.field(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    return pa.Table.from_pylist(told, schema=pa.schema(fields))


def _one_out(conditions: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each condition, and the others."""
    for k, condition in enumerate(conditions):
        yield condition, [*conditions[:k], *conditions[k + 1 :]]


def _by_group(rows: pa.Table, ranking: Ranking) -> Best:
    """The first row of each group."""
    first: Best = {}
    for row in rows.to_pylist():
        first.setdefault(tuple(row[name] for name in ranking.per), row)
    return first


def _stored(opened: Reopened, reason: str, where: str | None) -> Ints:
    """Plans that are not simulated for this reason; of these, those that meet `where` if their columns tell."""
    with results(opened.folder, where) as connection:
        known = f" AND coalesce(({where}\n), false)" if where and _of_plan(where, opened) else ""
        query = f"SELECT plan FROM {NAMED} WHERE reason = '{reason}'{known} ORDER BY plan"
        plans: Ints = connection.sql(query).to_arrow_table()["plan"].to_numpy()
    return plans


def _of_plan(where: str, opened: Reopened) -> bool:
    """Whether a condition asks for columns of the plan alone, which are known without a simulation."""
    names = list(describe_rows(opened.prepared.sweep.space, np.zeros(1, np.int64))[0])
    try:
        check_condition(where, names, MEASURES, [*other_names(names), *names_of_hardware(names)])
    except SpecError:
        return False
    return True


def _best(sweep: Sweep, plans: Ints, ranking: Ranking, where: str | None) -> Best:
    """The best of some plans of a sweep in each group, simulated.

    All of them are if `where` may drop some, or the objective has no bound; else those that may be the best.
    """
    frontier = None
    if not where:
        with suppress(SpecError):
            frontier = Frontier(objective=Objective(column=ranking.by, descending=ranking.descending, per=ranking.per, best=1))
    tables = [
        evaluate(sweep, part) if frontier is None else search_among(sweep, part, frontier).rows for part in _chunks(plans)
    ]
    if not tables:
        return {}
    with locked_down() as connection:
        connection.register("results", pa.Table.from_batches(tables).unify_dictionaries())
        named(connection)
        over = f"PARTITION BY {', '.join(map(quoted, ranking.per))} " if ranking.per else ""
        order = f"ORDER BY {quoted(ranking.by)} {'DESC' if ranking.descending else 'ASC'}, plan"
        best = connection.sql(
            f"SELECT plan FROM {NAMED} WHERE status = 'ok' AND {quoted(ranking.by)} IS NOT NULL "
            f"AND coalesce(({where or 'true'}\n), false) QUALIFY row_number() OVER ({over}{order}) = 1"
        ).fetchall()
        numbers = ", ".join(str(plan) for (plan,) in best) or "NULL"
        rows = connection.sql(f"SELECT * FROM results WHERE plan IN ({numbers}) ORDER BY plan").to_arrow_table()
    return _by_group(rows, ranking)


def _chunks(plans: Ints) -> list[Ints]:
    """Plans in parts that are simulated at once."""
    return [plans[begin : begin + _CHUNK] for begin in range(0, len(plans), _CHUNK)]


def sections_of(constraints: Sequence[Relaxed], notes: tuple[str, ...]) -> Iterator[Section]:
    """Each group: the best plan now, then the constraints, the dearest first."""
    for group in dict.fromkeys(tuple(each.group.items()) for each in constraints):
        yield _of_group([each for each in constraints if tuple(each.group.items()) == group])
    none = "No constraint: the spec has no `where`, --where is not given, and every plan fits into its device."
    yield Section("" if constraints else none, notes=notes)


def _of_group(constraints: Sequence[Relaxed]) -> Section:
    """The constraints of one group."""
    by, now = constraints[0].by, constraints[0].before
    told = "".join(f"{values_text({name: value})}: " for name, value in constraints[0].group.items())
    best = f"best now is plan {now['plan']}, {by} {cell(by, now[by])}" if now else "no plan can run now"
    rows, below = [("constraint", "costs", heading(by), "plan")], []
    for each in constraints:
        name, row = each.change if each.origin in (WHERE, DEVICE) else f"{each.origin} {each.change}", each.after
        costs = f"{each.better:.1%}" if each.better > NOTHING else "nothing"
        rows.append((name, costs if now else "all", cell(by, row[by]), str(row["plan"])) if row else (name, "no plan", "", ""))
        if each.better > NOTHING or (row and not now):
            known = each.origin == DEVICE and row.get("peak_memory_bytes") is not None
            memory = [cell(column, row[column]) for column in ("peak_memory_bytes", "device_memory_bytes") if known]
            needs = f"; needs {memory[0]}, has {memory[1]}" if memory else ""
            wins = f"plan {row.get('plan')} has {values_text(each.chosen) or 'the same values'}{needs}"
            below.append(f"{name}: {wins}; it alone keeps {plural(each.excluded)} out")
    return Section(f"{told}{best}", table=rows, left=(0,), cut=0, below_table=below)
