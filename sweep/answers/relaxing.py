"""What each constraint costs: the best plans if one condition, or the memory of the devices, were no limit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sim_core import Bools, Ints, SpecError, plural, short
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

MEMORY: Final = "device memory"
WHERE, ASKED, DEVICE = "where", "--where", "memory"
"""Origins of a constraint: the spec, the command, the hardware."""
COLUMNS: Final = {
    **{"constraint": pa.string(), "origin": pa.string(), "excluded": pa.int64(), "plan_now": pa.int64()},
    **dict.fromkeys(("now", "without", "better"), pa.float64()),
}
NOTHING: Final = 5e-5
"""A gain below this is none."""
_CHUNK: Final = 65_536


@dataclass(frozen=True, kw_only=True)
class Relaxed(Variation):
    """The best plan of a group, and the best without one constraint, which `change` names."""

    origin: str  # WHERE, ASKED or DEVICE
    excluded: int  # plans that only this constraint keeps out
    group: dict[str, Any]  # values of `per`
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
    now = _by_group(ranking.rows.to_pylist(), ranking.per)
    constraints: list[Relaxed] = []
    for constraint, others in _one_out(conjuncts(where) if where else []):
        without = ranked(where=" AND ".join(f"({each})" for each in others) or None)
        rows = _by_group(without.rows.to_pylist(), ranking.per)
        constraints += _compared(constraint, ASKED, without.ranked - ranking.ranked, now, rows, ranking)
    sweep = opened.prepared.sweep
    for constraint, others in _one_out(sweep.where):
        plans = _stored(opened, "excluded_by_where", where)
        plans = plans[_meets(sweep, plans, others)]
        rows = _best(replace(sweep, where=tuple(others)), plans, ranking, where)
        constraints += _compared(constraint, WHERE, len(plans), now, rows, ranking)
    plans = _stored(opened, "memory_exceeds_device", where)
    if len(plans):
        rows = _best(boundless(sweep), plans, ranking, where)
        for row in rows.values():
            _, own = describe_rows(sweep.space, np.array([row["plan"]], np.int64))
            row["device_memory_bytes"] = float(sweep.hardware.columns.memory_bytes[own.hardware[0]])
        constraints += _compared(MEMORY, DEVICE, len(plans), now, rows, ranking)
    return sorted(constraints, key=lambda each: -each.better)


def relaxed_rows(constraints: Sequence[Relaxed], schema: pa.Schema) -> pa.Table:
    """COLUMNS and, of the best plan without the constraint, the columns of a result."""
    told = []
    for each in constraints:
        plan_now, now = (None, None) if each.before is None else (each.before["plan"], each.before[each.by])
        without = None if each.after is None else each.after[each.by]
        first = (each.change, each.origin, each.excluded, plan_now, now, without, each.better)
        told.append(dict(zip(COLUMNS, first, strict=True)) | (each.after or each.group))
    fields = [pa.field(name, kind) for name, kind in COLUMNS.items()]
    fields += [pa.field(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    return pa.Table.from_pylist(told, schema=pa.schema(fields))


def _one_out(conditions: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each condition, and the others."""
    for k, condition in enumerate(conditions):
        yield condition, [*conditions[:k], *conditions[k + 1 :]]


def _compared(
    constraint: str,
    origin: str,
    excluded: int,
    now: Mapping[tuple[Any, ...], dict[str, Any]],
    rows: Mapping[tuple[Any, ...], dict[str, Any]],
    ranking: Ranking,
) -> Iterator[Relaxed]:
    """The constraint in each group that has a plan with it, or without."""
    for group in dict.fromkeys([*now, *rows]):
        best, without, better = now.get(group), rows.get(group), 0.0
        if best is not None:
            value = best[ranking.by]
            if without is None or without[ranking.by] == value or (without[ranking.by] > value) != ranking.descending:
                without = best  # nothing is better without it
            elif value:
                better = abs(without[ranking.by] / value - 1)
        yield Relaxed(
            change=constraint,
            origin=origin,
            excluded=excluded,
            group=dict(zip(ranking.per, group, strict=True)),
            before=best,
            after=without,
            by=ranking.by,
            better=better,
        )


def _by_group(rows: Sequence[dict[str, Any]], per: Sequence[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The first row of each group."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        first.setdefault(tuple(row[name] for name in per), row)
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
    described, _ = describe_rows(opened.prepared.sweep.space, np.zeros(1, np.int64))
    names = list(described)
    try:
        check_condition(where, names, MEASURES, [*other_names(names), *names_of_hardware(names)])
    except SpecError:
        return False
    return True


def _meets(sweep: Sweep, plans: Ints, conditions: Sequence[str]) -> Bools:
    """Which plans meet all of these conditions of the spec, [n]."""
    met = [satisfied(conditions, describe_rows(sweep.space, part)[0]) for part in _chunks(plans)]
    return np.concatenate(met) if met else np.zeros(0, np.bool_)


def _best(sweep: Sweep, plans: Ints, ranking: Ranking, where: str | None) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The best of some plans of a sweep in each group, simulated."""
    tables = list(_simulated(sweep, plans, ranking, where))
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
        rows = connection.sql(f"SELECT * FROM results WHERE plan IN ({numbers}) ORDER BY plan").to_arrow_table().to_pylist()
    return _by_group(rows, ranking.per)


def _simulated(sweep: Sweep, plans: Ints, ranking: Ranking, where: str | None) -> Iterator[pa.RecordBatch]:
    """Rows that hold the best of these plans: all of them if `where` may drop some, or the objective has no bound."""
    frontier = None
    if not where:
        with suppress(SpecError):
            frontier = Frontier(objective=Objective(column=ranking.by, descending=ranking.descending, per=ranking.per, best=1))
    for part in _chunks(plans):
        yield evaluate(sweep, part) if frontier is None else search_among(sweep, part, frontier).rows


def _chunks(plans: Ints) -> list[Ints]:
    return [plans[begin : begin + _CHUNK] for begin in range(0, len(plans), _CHUNK)]


def sections_of(constraints: Sequence[Relaxed], notes: tuple[str, ...]) -> Iterator[Section]:
    """Each group: the best plan now, then the constraints, the dearest first."""
    for group in dict.fromkeys(tuple(each.group.items()) for each in constraints):
        yield _of_group([each for each in constraints if tuple(each.group.items()) == group])
    none = "No constraint: the spec has no `where`, --where is not given, and every plan fits into its device."
    yield Section(heading="" if constraints else none, notes=notes)


def _of_group(constraints: Sequence[Relaxed]) -> Section:
    """The constraints of one group."""
    by, now = constraints[0].by, constraints[0].before
    told = "".join(f"{values_text({name: value})}: " for name, value in constraints[0].group.items())
    best = "no plan can run now" if now is None else f"best now is plan {now['plan']}, {by} {cell(by, now[by])}"
    rows, below = [("constraint", "costs", heading(by), "plan")], []
    for each in constraints:
        name, without = each.change if each.origin in (WHERE, DEVICE) else f"{each.origin} {each.change}", each.after
        costs = f"{each.better:.1%}" if each.better > NOTHING else "nothing"
        if without is None:
            rows.append((name, "no plan", "", ""))
        else:
            rows.append((name, "all" if now is None else costs, cell(by, without[by]), str(without["plan"])))
        if each.better > NOTHING or (now is None and without is not None):
            below.append(f"{name}: {_in_words(each)}")
    return Section(heading=f"{told}{best}", table=tuple(rows), left=(0,), cut=0, below_table=tuple(below))


def _in_words(of: Relaxed) -> str:
    """The plan that wins without the constraint: what is other in it, and the memory that it needs."""
    row = of.rows[1]
    text = f"plan {row.get('plan')} has {values_text(of.chosen) or 'the same values'}"
    need, have = row.get("peak_memory_bytes"), row.get("device_memory_bytes")
    if of.origin == DEVICE and need is not None and have is not None:
        text += f"; needs {short(need, 'B')}, has {short(have, 'B')}"
    return f"{text}; it alone keeps {plural(of.excluded)} out"
