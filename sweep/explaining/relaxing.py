"""What each constraint costs: the best plans if one condition, or the memory of the devices, were no limit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sim_core import Bools, HardwareTable, Ints, SpecError, hardware_table
from sweep.columns import MEASURES, NO_CHOICE, describe_rows, names_of_hardware, other_names
from sweep.conditions import check_condition, conjuncts, locked_down, satisfied
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Sweep
from sweep.ranking.query import NAMED, named, results
from sweep.ranking.ranking import Ranking, rank
from sweep.ranking.selection import quoted
from sweep.reopening import Reopened
from sweep.search.ahead import Frontier
from sweep.search.candidates import search_among
from sweep.search.objective import Objective

MEMORY: Final = "device memory"
WHERE, ASKED, DEVICE = "where", "--where", "memory"
"""Origins of a constraint: the spec, the command, the hardware."""
COLUMNS: Final = ("constraint", "origin", "excluded", "plan_now", "now", "without", "better")
_CHUNK: Final = 65_536
_NO_LIMIT: Final = "1e24 B"


@dataclass(frozen=True, kw_only=True)
class Relaxed:
    """One constraint in one group: the best plan now, and the best without the constraint."""

    constraint: str
    origin: str  # WHERE, ASKED or DEVICE
    excluded: int  # plans that only this constraint keeps out
    group: dict[str, Any]  # values of `per`
    now: dict[str, Any] | None  # the row of the best plan, None if none can run
    without: dict[str, Any] | None  # the same without the constraint
    by: str
    better: float  # how much better in `by`, a fraction of what it is now; 0 if it is not, or one of them is unknown

    @property
    def changes(self) -> dict[str, Any]:
        """Plan columns in which the best without it differs from the best now."""
        if self.without is None:
            return {}
        planned = takewhile(lambda name: name != "step_time_s", self.without)
        chosen = {name: self.without[name] for name in planned if name not in NO_CHOICE}
        return {name: value for name, value in chosen.items() if self.now is None or self.now.get(name) != value}


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
        rows = _best(replace(sweep, hardware=_without_limit(sweep.hardware, sweep)), plans, ranking, where)
        for row in rows.values():
            row["device_memory_bytes"] = _memory_of(sweep, row)
        constraints += _compared(MEMORY, DEVICE, len(plans), now, rows, ranking)
    return sorted(constraints, key=lambda each: -each.better)


def relaxed_rows(constraints: Sequence[Relaxed], schema: pa.Schema) -> pa.Table:
    """COLUMNS and, of the best plan without the constraint, the columns of a result."""
    told = []
    for each in constraints:
        plan_now, now = (None, None) if each.now is None else (each.now["plan"], each.now[each.by])
        without = None if each.without is None else each.without[each.by]
        first = (each.constraint, each.origin, each.excluded, plan_now, now, without, each.better)
        told.append(dict(zip(COLUMNS, first, strict=True)) | (each.without or each.group))
    kinds = (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.float64(), pa.float64(), pa.float64())
    fields = [pa.field(name, kind) for name, kind in zip(COLUMNS, kinds, strict=True)]
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
            constraint=constraint,
            origin=origin,
            excluded=excluded,
            group=dict(zip(ranking.per, group, strict=True)),
            now=best,
            without=without,
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


def _without_limit(hardware: HardwareTable, sweep: Sweep) -> HardwareTable:
    """The same devices with all the memory that a plan may want."""
    variants = [variant.with_values({"memory": _NO_LIMIT}) for variant in hardware.variants]
    return hardware_table(variants, hardware.measured_on, sweep.workload.dtype)


def _memory_of(sweep: Sweep, row: Mapping[str, Any]) -> float:
    """Memory of the device of a plan, bytes."""
    _, plans = describe_rows(sweep.space, np.array([row["plan"]], np.int64))
    return float(sweep.hardware.columns.memory_bytes[plans.hardware[0]])
