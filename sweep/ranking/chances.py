"""The chance that plans run, by their memory and stack, before any run: of rows, and as a column of conditions."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from sweep.spec.stacks import STACK, stack_name
from sweep.spec.values import STACK_AXIS
from sweep.uncertainty.memory import UNNAMED, chance_before_runs, chance_in_sql

FROM: Final = frozenset({"peak_memory_bytes", "device_memory_bytes"})
"""The columns that it follows from."""


def believed_stack(provenance: Mapping[str, Any]) -> str:
    """The same as far as a user named one; UNNAMED if not."""
    return stack_of(provenance) if (provenance.get("spec", {}).get("workload") or {}).get("stack") else UNNAMED


def stack_of(provenance: Mapping[str, Any]) -> str:
    """The name of the stack of a result's spec."""
    return stack_name((provenance.get("spec", {}).get("workload") or {}).get("stack") or STACK)


def runs_probability(rows: pa.Table, provenance: dict[str, Any]) -> pa.Array:
    """Chance that each plan runs, by its memory and the stack, before any run; null where its memory is unknown."""
    if not {"peak_memory_bytes", "device_memory_bytes"} <= set(rows.column_names):
        return pa.nulls(len(rows), pa.float64())
    part = rows["peak_memory_bytes"].to_numpy().astype(np.float64) / rows["device_memory_bytes"].to_numpy()
    one = [believed_stack(provenance)] * len(rows)
    stacks = np.array(rows[STACK_AXIS].to_pylist() if STACK_AXIS in rows.column_names else one)
    chance = np.full(len(rows), np.nan)
    for stack in np.unique(stacks).tolist():
        chance[stacks == stack] = chance_before_runs(part[stacks == stack], stack)
    return pa.array(chance, mask=np.isnan(chance))


def runs_in_sql(provenance: Mapping[str, Any], columns: Collection[str]) -> str | None:
    """The same in SQL; None where the memory is unknown."""
    if not FROM.issubset(columns):
        return None
    part = "(peak_memory_bytes / device_memory_bytes)"
    if STACK_AXIS not in columns:
        return chance_in_sql(part, believed_stack(provenance))
    stated: list[Any] = []
    for key, values in (provenance.get("spec", {}).get("axes") or {}).items():
        if STACK_AXIS in (names := key.split(",")):  # alone, or beside other fields
            stated += [value[names.index(STACK_AXIS)] if len(names) > 1 else value for value in values]
    stacks = {name.replace("'", "''"): chance_in_sql(part, name) for name in map(stack_name, stated)}
    cases = "".join(f" WHEN '{name}' THEN {chance}" for name, chance in stacks.items())
    return f"CASE {STACK_AXIS}{cases} ELSE NULL END" if cases else None
