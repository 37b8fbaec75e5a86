"""The chance that plans run, by their memory and what may run them, before any run: of rows, and as a column of conditions."""

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from sim_core.documents import Fields, Values
from sweep.ranking.worlds import Worlds
from sweep.spec.stacks import STACK, stack_name
from sweep.spec.values import STACK_AXIS
from sweep.uncertainty.belief import UNNAMED
from sweep.uncertainty.evidence import workload_of
from sweep.uncertainty.memory import Guesses, chance_before_runs, chance_in_sql, guesses_in, guesses_of

FROM = frozenset({"peak_memory_bytes", "device_memory_bytes"})
"""The columns that it follows from."""


def believed_stack(provenance: Values) -> str:
    """The same as far as a user named one; UNNAMED if not."""
    return stack_of(provenance) if workload_of(provenance).get("stack") else UNNAMED


def stack_of(provenance: Values) -> str:
    """The name of the stack of a result's spec."""
    return stack_name(workload_of(provenance).get("stack") or STACK)


def guesses_before(provenance: Values) -> Guesses:
    """What the memory of the plans of a result may be in truth, by its stack and device."""
    device = next((each["name"] for each in provenance.get("hardware", ())), "")
    return guesses_of(believed_stack(provenance), device)


def runs_probability(rows: pa.Table, provenance: Fields, worlds: Worlds | None = None) -> pa.Array:
    """Chance that each plan runs before any run; null where its memory is unknown. `worlds`: of the rows, simulated."""
    if not set(rows.column_names) >= FROM:
        return pa.nulls(len(rows), pa.float64())
    part = rows["peak_memory_bytes"].to_numpy().astype(float) / rows["device_memory_bytes"].to_numpy()
    if worlds is not None:
        chance = chance_before_runs(part, guesses_in(worlds.worlds, worlds.memory))
    elif STACK_AXIS in rows.column_names:
        stacks, chance = np.array(rows[STACK_AXIS].to_pylist()), np.full(len(rows), np.nan)
        for stack in np.unique(stacks).tolist():
            chance[stacks == stack] = chance_before_runs(part[stacks == stack], guesses_of(stack))
    else:
        chance = chance_before_runs(part, guesses_before(provenance))
    return pa.array(chance, mask=np.isnan(chance))


def runs_in_sql(provenance: Values, columns: Collection[str]) -> str | None:
    """The same in SQL, of what is not named by how pages usually differ; None where the memory is unknown."""
    if not FROM.issubset(columns):
        return None
    part = "(peak_memory_bytes / device_memory_bytes)"
    if STACK_AXIS not in columns:
        return chance_in_sql(part, guesses_before(provenance))
    stated = []
    for key, values in (provenance.get("spec", {}).get("axes") or {}).items():
        if STACK_AXIS in (names := key.split(",")):  # alone, or beside other fields
            stated += [value[names.index(STACK_AXIS)] if len(names) > 1 else value for value in values]
    stacks = {name.replace("'", "''"): chance_in_sql(part, guesses_of(name)) for name in map(stack_name, stated)}
    cases = "".join(f" WHEN '{name}' THEN {chance}" for name, chance in stacks.items())
    return f"CASE {STACK_AXIS}{cases} ELSE NULL END" if cases else None
