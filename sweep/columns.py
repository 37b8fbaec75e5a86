"""Columns of a result: their schema, their short names, and the values of those that define a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core import HARDWARE_KEYS, MEMORY, METRICS, PARTS, PlanField, Plans, SpecError, nearest, quantity
from sweep.budget import COSTS
from sweep.failures import GOODPUT
from sweep.space import Space, has_simai, number_axes, product, to_plans
from sweep.spec import FIELDS
from sweep.stragglers import TAIL

Ints = npt.NDArray[np.int64]

RATES: Final = ("samples_per_s", "tokens_per_s", "gpu_s_per_sample")
UTILISATION: Final = ("mfu", "hfu", "tflops_per_gpu", "tokens_per_s_per_gpu", "measured_share")
DEVICE_MEMORY: Final = "device_memory_bytes"
TOTALS: Final = tuple(name for name in METRICS if name not in PARTS and name != "step_time_s")
MEASURES: Final = ("step_time_s", *RATES, *PARTS, *TOTALS, *MEMORY, DEVICE_MEMORY, *UTILISATION, *COSTS, *GOODPUT, *TAIL)
LONGER: Final = ("step_time_s", "gpu_s_per_sample", *COSTS)
SHORTER: Final = (
    "samples_per_s", "tokens_per_s", "effective_tokens_per_s", "mfu", "hfu", "tflops_per_gpu", "tokens_per_s_per_gpu",
)  # fmt: skip
"""Columns in proportion to the time of a step of a plan, or to its inverse."""
_WORD = pa.dictionary(pa.int32(), pa.string())
_KIND: Final = {
    **{"number": pa.int64(), "switch": pa.bool_(), "ratio": pa.float64(), "factor": pa.float64()},
    **{"word": _WORD, "label": _WORD},
}
"""Types of the columns of plan fields, by kind."""


SHORT_NAMES: Final = {
    "step": "step_time_s",
    **{field.heading: name for name, field in FIELDS.items() if field.heading},
    "samples/s": "samples_per_s",
    "tokens/s": "tokens_per_s",
    "gpu-s/sample": "gpu_s_per_sample",
}
"""Headings of the ranked table -> columns. Both are accepted wherever a column is named."""
SHORT_PARTS: Final = {
    "fwd": "compute_forward_s",
    "bwd": "compute_backward_s",
    "recomp": "compute_recompute_s",
    "launch": "launch_s",
    "TP": "tp_exposed_s",
    "EP": "ep_exposed_s",
    "CP": "cp_exposed_s",
    "PP": "pp_exposed_s",
    "DP": "dp_exposed_s",
    "bubble": "bubble_s",
    "optim": "optimizer_s",
}
"""The same of the parts of a step; with % in the table. SQL does not tell TP from tp, so conditions take the columns."""
UNITS: Final = ("_s", "_bytes")
"""Endings that may be left out where a column is named."""


def result_column(name: str, columns: Sequence[str]) -> str:
    """The result column that `name` means; a table heading or a name without its unit is accepted. Raises SpecError."""
    given = name.strip().removeprefix("hardware.").removesuffix("%")
    short = SHORT_NAMES.get(given, SHORT_PARTS.get(given, given))
    for candidate in (short, *(short + unit for unit in UNITS)):
        if candidate in columns:
            return candidate
    raise SpecError(f"unknown column {name!r}, {nearest(short, columns)}")


def other_names(columns: Sequence[str]) -> dict[str, str]:
    """Further names of these columns in a condition: headings that SQL can read, and names without their unit."""
    known = {name.lower() for name in columns}
    names = {short: name for short, name in SHORT_NAMES.items() if name in columns and short.isidentifier()}
    for unit in UNITS:
        names |= {name.removesuffix(unit): name for name in columns if name.endswith(unit) and not name.endswith("per_s")}
    return {short: name for short, name in names.items() if short.lower() not in known}


def names_of_hardware(columns: Sequence[str]) -> list[str]:
    """Columns of hardware numbers as a spec names them: `hardware.nic_bandwidth`."""
    return [f"hardware.{name}" for name in columns if name in HARDWARE_KEYS]


def result_schema(space: Space) -> pa.Schema:
    """Columns of the result, without provenance."""
    fields = [pa.field("plan", pa.int64(), nullable=False)]
    fields += [pa.field(field.name, _KIND[field.kind], nullable=False) for field in plan_columns(space)]
    fields += [pa.field("hardware", _WORD, nullable=False)]
    fields += [pa.field(column_name(name), pa.float64(), nullable=False) for name in number_axes(space.labels)]
    fields += [pa.field(name, _WORD, nullable=False) for name in ("fidelity", "status", "reason")]
    fields += [pa.field(name, pa.float64()) for name in MEASURES]
    return pa.schema(fields)


def plan_columns(space: Space) -> list[PlanField]:
    """Fields of plans with a column each before that of the hardware, in their order; that of the fidelity comes after it."""
    simai = has_simai(space)
    others = [field for name, field in FIELDS.items() if name != "fidelity" and (not field.unusual or name in space.named)]
    return [field for field in others if simai or not field.only_simai]


def column_name(label: str) -> str:
    """Result column of an axis over a hardware number, named so that SQL needs no quotes."""
    return label.removeprefix("hardware.")


def describe(space: Space, columns: Mapping[str, Ints], plans: Plans, numbers: Ints) -> dict[str, pa.Array]:
    """The columns that define the plan of each row: all columns of the schema before the status."""
    dp = plans.all_gpus // (plans.tp * plans.cp * plans.pp)
    values = plans._asdict() | {
        "dp": dp,
        "dp_shard": np.where(plans.dp_shard > 0, plans.dp_shard, dp * plans.cp),
        "global_batch": columns.get("global_batch", product(product(dp, plans.micro_batch), plans.ga)),
    }
    described = {"plan": pa.array(numbers)}
    for field in (*plan_columns(space), FIELDS["fidelity"]):
        if field.codes:
            described[field.name] = words(columns[field.name], space.labels[field.name])
        elif field.words:
            described[field.name] = words(values[field.name], field.words)
        else:
            described[field.name] = pa.array(values[field.name] == 1 if field.kind == "switch" else values[field.name])
    described["hardware"] = words(columns.get("hardware", np.zeros_like(numbers)), space.hardware_names)
    for label in number_axes(space.labels):
        unit = HARDWARE_KEYS[column_name(label)][1]
        si = np.array([quantity(value, unit) for value in space.labels[label]])
        described[column_name(label)] = pa.array(si[columns[label]])
    return described


def describe_rows(space: Space, positions: Ints) -> tuple[dict[str, pa.Array], Plans]:
    """The plans at `positions`, as result columns and as columns for the simulator."""
    numbers = space.numbers(positions)
    columns = space.decode(numbers)
    plans = to_plans(columns, space)
    return describe(space, columns, plans, numbers), plans


def words(codes: Ints, names: tuple[str, ...]) -> pa.DictionaryArray:
    """A column of words from their codes."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))
