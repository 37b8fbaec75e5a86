"""The `where` of a spec: SQL conditions on one plan, which DuckDB evaluates on a whole slice at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core import SpecError
from sweep.columns import MEASURES, names_of_hardware, other_names
from sweep.conditions import check_condition, locked_down

_FROM: Final = "FROM plans AS hardware"
"""With this name of the table, `hardware.nic_bandwidth` is its column, too."""


def satisfied(where: Sequence[str], described: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_]:
    """Which rows satisfy all constraints; NULL counts as false. Raises SpecError if one cannot be evaluated."""
    if not where:
        return np.ones(len(described["plan"]), np.bool_)
    condition = " AND ".join(f"({expression}\n)" for expression in where)
    with locked_down() as connection:
        connection.register("plans", _named(described))
        try:
            found = connection.sql(f"SELECT coalesce({condition}, false) AS satisfied {_FROM}").to_arrow_table()
        except duckdb.Error as error:
            raise SpecError(f"where: {' AND '.join(f'({text})' for text in where)}: {str(error).splitlines()[0]}") from None
    rows: npt.NDArray[np.bool_] = found.column("satisfied").to_numpy().astype(np.bool_)
    return rows


def check_constraints(where: Sequence[str], described: Mapping[str, pa.Array]) -> None:
    """Try each constraint on one plan, so that an error is reported before anything runs. Raises SpecError.

    See `conditions` for what a constraint may be: its value must not depend on the slice in which it is evaluated.
    """
    names = list(described)
    with locked_down() as connection:
        connection.register("plans", _named(described))
        for expression in where:
            try:
                check_condition(expression, described, MEASURES, [*other_names(names), *names_of_hardware(names)])
                connection.sql(f"SELECT plan {_FROM} WHERE ({expression}\n)").to_arrow_table()
                found = connection.sql(f"SELECT {expression}\n {_FROM}").to_arrow_table().schema
            except SpecError as error:
                raise SpecError(f"where: {expression!r}: {error}") from None
            except duckdb.Error as error:
                raise SpecError(f"where: {expression!r}: {str(error).splitlines()[0]}") from None
            if len(found) != 1 or not pa.types.is_boolean(found.field(0).type):
                raise SpecError(f"where: {expression!r}: found a value of type {found.field(0).type}, expected true or false")


def _named(described: Mapping[str, pa.Array]) -> pa.Table:
    """The plans with all names that their columns have."""
    return pa.table(dict(described) | {short: described[name] for short, name in other_names(list(described)).items()})
