"""The chance that plans run, by their memory and stack, before any run: of rows, and as a column of conditions."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sweep.spec.stacks import STACK, stack_name
from sweep.spec.values import STACK_AXIS
from sweep.uncertainty.memory import chance_before_runs, chance_in_sql

FROM: Final = frozenset({"peak_memory_bytes", "device_memory_bytes"})
"""The columns that it follows from."""


def stack_of(provenance: Mapping[str, Any]) -> str:
    """The name of the stack of a result's spec."""
    return stack_name((provenance.get("spec", {}).get("workload") or {}).get("stack") or STACK)


def runs_probability(rows: pa.Table, provenance: dict[str, Any]) -> pa.Array:
    """Chance that each plan runs, by its memory and the stack, before any run; null where its memory is unknown."""
    if not {"peak_memory_bytes", "device_memory_bytes"} <= set(rows.column_names):
        return pa.nulls(len(rows), pa.float64())
    part = rows["peak_memory_bytes"].to_numpy().astype(np.float64) / rows["device_memory_bytes"].to_numpy()
    stacks = np.array(rows[STACK_AXIS].to_pylist() if STACK_AXIS in rows.column_names else [stack_of(provenance)] * len(rows))
    chance = np.full(len(rows), np.nan)
    for stack in np.unique(stacks).tolist():
        chance[stacks == stack] = chance_before_runs(part[stacks == stack], stack)
    return pa.array(chance, mask=np.isnan(chance))


def runs_in_sql(provenance: Mapping[str, Any], columns: Collection[str]) -> str | None:
    """The same in SQL; None where the memory is unknown, or stacks are an axis."""
    if not FROM.issubset(columns) or STACK_AXIS in columns:
        return None
    return chance_in_sql("(peak_memory_bytes / device_memory_bytes)", stack_of(provenance))
