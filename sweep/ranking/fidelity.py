"""Where two fidelities of one sweep disagree: ratios and ranks of plans simulated in both, and the largest differences."""

import math
from typing import NamedTuple

import pyarrow as pa

from sim_core import FIDELITIES, PARTS, SpecError
from sweep.ranking.query import NAMED, columns_of, plan_columns, results
from sweep.ranking.selection import quoted
from sweep.results.folder import Location


class Disagreement(NamedTuple):
    """For `pairs` plans simulated in both fidelities: quantiles of simai/event, rank agreement, the largest differences."""

    pairs: int
    low: float
    median: float
    high: float
    rank_correlation: float | None  # None: all plans of one fidelity tie
    best_in_common: int
    best: int
    rows: pa.Table


def compare_fidelity(directory: Location, *, top: int, where: str | None) -> Disagreement:
    """Pair the rows of a sweep over `fidelity: [event, simai]`. Raises SpecError if there is no pair."""
    with results(directory, where) as connection:
        keys = plan_columns(columns_of(connection), ("plan", "fidelity"))
        on = " AND ".join(f'e."{name}" = s."{name}"' for name in keys)
        plan = ", ".join(f'e."{name}"' for name in keys)
        parts = ", ".join(f"s.{part} - e.{part} AS {part}" for part in PARTS)
        condition = f"({where}\n)" if where else "true"
        connection.execute(
            "CREATE TEMP TABLE pairs AS WITH ok AS "
            f"(SELECT * FROM {NAMED} WHERE status = 'ok' AND coalesce({condition}, false)) "
            f"SELECT e.plan AS plan, s.plan AS simai_plan, {plan}, "
            f"e.step_time_s AS event_s, s.step_time_s AS simai_s, s.step_time_s / e.step_time_s AS ratio, {parts}, "
            "rank() OVER (ORDER BY e.step_time_s) AS event_rank, rank() OVER (ORDER BY s.step_time_s) AS simai_rank "
            f"FROM ok e JOIN ok s ON {on} WHERE e.fidelity = '{FIDELITIES[0]}' AND s.fidelity = '{FIDELITIES[1]}'"
        ).fetchall()
        best = 20
        row = connection.execute(
            "SELECT count(*), quantile_cont(ratio, 0.05), median(ratio), quantile_cont(ratio, 0.95), "
            f"corr(event_rank, simai_rank), count(*) FILTER (event_rank <= {best} AND simai_rank <= {best}) FROM pairs"
        ).fetchall()[0]
        if not row[0]:
            raise SpecError(
                f"{directory}: no plan was simulated in both fidelities (put fidelity: [event, simai] into the spec)"
            )
        distinct = connection.execute(
            f"SELECT {', '.join(f'count(DISTINCT {quoted(name)})' for name in keys)} FROM pairs"
        ).fetchall()
        varying = [name for name, values in zip(keys, distinct[0], strict=True) if values > 1]
        columns = ", ".join(map(quoted, ["plan", *varying, "event_s", "simai_s", "ratio", *PARTS]))
        rows = connection.sql(
            f"SELECT {columns} FROM pairs ORDER BY abs(ln(ratio)) DESC, plan LIMIT {int(top)}"
        ).to_arrow_table()
    correlation = None if row[4] is None or math.isnan(row[4]) else row[4]
    return Disagreement(row[0], row[1], row[2], row[3], correlation, row[5], min(best, row[0]), rows)
