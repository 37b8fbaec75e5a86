"""Compare two results: the best plan per group, changes of step times and their causes, plans that changed status."""

from collections.abc import Sequence
from typing import Any

from sim_core import PARTS
from sim_core.masking import masked
from sweep.compare.changes import input_changes
from sweep.compare.pairs import SIDES, Pairs, known_column, listed, paired
from sweep.compare.result import MOVES, Champion, Comparison, Group, Moved, Shift, Steps, Values
from sweep.ranking.query import columns_of
from sweep.ranking.selection import Order, check_ordered, grouped_by, ordering, quoted, same_group
from sweep.results.folder import Location

SAME = 1e-9
"""Step times count as the same if their relative difference is smaller than this."""
PART_ROUNDING_S = 1e-12
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def compare(
    old: Location, new: Location, *, top: int = 10, by: str | None = None, per: Sequence[str] | None = None
) -> Comparison:
    """Compare the results in two folders. `by` and `per` default to the new one's spec; `top` limits the listed plans.

    Raises SpecError if a folder has no results, or a column is missing on one side.
    """
    with paired(old, new) as pairs:
        before, after = pairs.provenances
        schema = columns_of(pairs.connection, "new_rows")
        order = [(known_column(name, pairs, "--by"), more) for name, more in ordering(by, None, after, schema)]
        check_ordered([name for name, _ in order], "objectives" if by is None else "--by", schema)
        groups_by = after["spec"].get("per", []) if per is None else per
        groups = tuple(known_column(name, pairs, "--per") for name in groups_by)
        of_each = "SELECT count(*), count(*) FILTER (status = 'ok'), count(*) FILTER (status = 'failed') FROM"
        (old_rows, old_ok, old_failed), (new_rows, new_ok, new_failed) = (
            map(int, pairs.rows(f"{of_each} {side}_rows")[0]) for side in SIDES
        )
        sides = ((old, old_rows, int(before.get("rows", 0))), (new, new_rows, int(after.get("rows", 0))))
        return Comparison(
            name=str(after.get("name")),
            old=masked(old),
            new=masked(new),
            by=order[0][0],
            descending=order[0][1],
            per=groups,
            old_rows=old_rows,
            new_rows=new_rows,
            old_feasible=old_ok,
            new_feasible=new_ok,
            old_failed=old_failed,
            new_failed=new_failed,
            incomplete=tuple(f"{masked(path)}: {n:,} of {whole:,} plans are computed" for path, n, whole in sides if n < whole),
            matched=pairs.left_out + pairs.count("old_plan IS NOT NULL AND new_plan IS NOT NULL"),
            matched_without=pairs.without,
            inputs=input_changes(before, after),
            groups=tuple(_groups(pairs, order, groups)),
            steps=_steps(pairs),
            largest=tuple(_largest(pairs, top)),
            moved={name: _moved(pairs, condition, top) for name, (condition, *_) in MOVES.items()},
        )


def _groups(pairs: Pairs, order: Order, per: Sequence[str]) -> list[Group]:
    """The best plan of each group on both sides, and how the old one ranks in the new result."""
    by, descending = quoted(order[0][0]), order[0][1]
    before, after = (_champions(pairs, side, order, per) for side in SIDES)
    plans = ", ".join(str(champion.plan) for champion in before.values()) or "NULL"
    pairs.rows(f"CREATE TEMP TABLE champions AS FROM pairs WHERE old_plan IN ({plans})")
    numbers = pairs.rows("SELECT new_plan FROM champions WHERE new_plan IS NOT NULL")
    now = pairs.dicts(
        # only rows that are not behind the old best plan of their group have a say in its rank
        f"WITH best AS (SELECT * FROM new_rows WHERE plan IN ({', '.join(str(row[0]) for row in numbers) or 'NULL'})), "
        f"ahead AS (SELECT one.* FROM new_rows one SEMI JOIN best ON one.{by} {'>=' if descending else '<='} best.{by} "
        f"AND {same_group([quoted(name) for name in per], 'one', 'best')} WHERE one.status = 'ok'), "
        f"ranked AS (SELECT plan, rank() OVER ({_window(order, per)}) AS rank, {by} AS value FROM ahead) "
        "SELECT old_plan, new_status, value, rank FROM champions LEFT JOIN ranked ON plan = new_plan"
    )
    current = {row["old_plan"]: row for row in now}
    groups = []
    for key in sorted({*before, *after}, key=lambda key: [_sortable(value) for value in key]):
        old, new = before.get(key), after.get(key)
        at = current.get(old.plan, {}) if old else {}
        groups.append(
            Group(
                group=dict(zip(per, key, strict=True)),
                old=old,
                new=new,
                old_plan_now=at.get("value"),
                old_plan_rank=at.get("rank"),
                old_plan_status=(at.get("new_status") or "vanished") if old else "",
                worse=(new.value / old.value - 1) * (-1 if descending else 1) if old and new and old.value else None,
            )
        )
    return groups


def _window(order: Order, per: Sequence[str]) -> str:
    """SQL for the ranking within each group."""
    ranking = ", ".join(f"{quoted(name)} {'DESC' if more else 'ASC'}" for name, more in order)
    return f"{f'PARTITION BY {listed(per)} ' if per else ''}ORDER BY {ranking}"


def _sortable(value: Any) -> tuple[bool, float, str]:
    """Sort key: numbers by size, then words."""
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, str(value)


def _champions(pairs: Pairs, side: str, order: Order, per: Sequence[str]) -> dict[tuple[Any, ...], Champion]:
    """The best plan of each group of one side."""
    (name, more), *_ = order
    groups, by = [quoted(each) for each in per], quoted(name)
    known = f"FROM {side}_rows one WHERE status = 'ok' AND {by} IS NOT NULL"
    least = f"SELECT {''.join(f'{each}, ' for each in groups)}{'max' if more else 'min'}({by}) AS best {known}"
    columns = dict.fromkeys(["plan", *per, *pairs.varying, name, "step_time_s"])
    rows = pairs.dicts(
        f"WITH least AS ({least} {grouped_by(groups)}), first AS (SELECT one.* FROM (SELECT * {known}) one SEMI JOIN least "
        f"ON one.{by} = least.best AND {same_group(groups, 'one', 'least')}) "
        f"SELECT {listed(columns)} FROM first QUALIFY row_number() OVER ({_window(order, per)}, plan) = 1"
    )
    return {
        tuple(row[each] for each in per): Champion(
            row["plan"], {each: row[each] for each in pairs.varying}, row[name], row["step_time_s"]
        )
        for row in rows
    }


def _steps(pairs: Pairs) -> Steps:
    """Changes of the step times of plans that can run on both sides."""
    plans, slower, faster = pairs.rows(
        f"SELECT count(change), count(*) FILTER (change > {SAME}), count(*) FILTER (change < -{SAME}) FROM pairs"
    )[0]
    if not plans:
        return Steps()
    values = pairs.rows(f"SELECT quantile_cont(change, {list(QUANTILES)}) FROM pairs")[0][0]
    means = ", ".join(f"avg({name}) AS {name}" for name in ("old_s", "new_s", *PARTS))
    mean = pairs.dicts(f"SELECT {means} FROM pairs WHERE change IS NOT NULL")[0]
    deltas = ", ".join(f"{part} * sign(change)" for part in PARTS)
    causes = pairs.rows(
        f"WITH moved AS (SELECT [{deltas}] AS deltas FROM pairs WHERE abs(change) > {SAME}) "
        "SELECT list_position(deltas, list_max(deltas)) AS part, count(*) FROM moved GROUP BY part ORDER BY count(*) DESC, part"
    )
    return Steps(
        plans=plans,
        slower=slower,
        faster=faster,
        same=plans - slower - faster,
        quantiles=tuple(zip(QUANTILES, values, strict=True)),
        mean=_shift(mean, {}),
        causes=tuple((PARTS[part - 1], count) for part, count in causes if part),
    )


def _shift(row: Values, values: Values) -> Shift:
    moved = {name: row[name] for name in PARTS if abs(row[name]) > PART_ROUNDING_S}
    return Shift(values, row["old_s"], row["new_s"], tuple(sorted(moved.items(), key=lambda item: -abs(item[1]))))


def _largest(pairs: Pairs, top: int) -> list[Shift]:
    """The plans whose step time changed most, by factor, in either direction."""
    columns = ["plan", *pairs.varying]
    rows = pairs.dicts(
        f"WITH widest AS (SELECT * FROM pairs WHERE abs(change) > {SAME} ORDER BY abs(ln(1 + change)) DESC, new_plan "
        f"LIMIT {int(top)}) SELECT {listed(columns, 'n.')}, {listed(['old_s', 'new_s', *PARTS], 'w.')} FROM widest w "
        "JOIN new_rows n ON n.plan = w.new_plan ORDER BY abs(ln(1 + w.change)) DESC, w.new_plan"
    )
    return [_shift(row, {name: row[name] for name in columns}) for row in rows]


def _moved(pairs: Pairs, condition: str, top: int) -> Moved:
    """The plans of `pairs` that satisfy `condition`: how many, for which reasons, and the fastest of them."""
    reasons = pairs.rows(f"SELECT why, count(*) FROM pairs WHERE {condition} GROUP BY why ORDER BY count(*) DESC, why")
    columns = map(quoted, ["plan", *pairs.varying])
    either = ", ".join(f"coalesce(n.{name}, o.{name}) AS {name}" for name in columns)
    best = []
    if reasons:
        best = pairs.dicts(
            f"WITH chosen AS (SELECT *, coalesce(new_s, old_s) AS step_time_s FROM pairs WHERE ({condition}) "
            f"AND coalesce(new_s, old_s) IS NOT NULL ORDER BY step_time_s, old_plan, new_plan LIMIT {int(top)}) "
            f"SELECT {either}, chosen.step_time_s "
            "FROM chosen LEFT JOIN old_rows o ON o.plan = chosen.old_plan LEFT JOIN new_rows n ON n.plan = chosen.new_plan "
            "ORDER BY chosen.step_time_s, old_plan, new_plan"
        )
    return Moved(sum(count for _, count in reasons), tuple((str(why), int(count)) for why, count in reasons), tuple(best))
