"""`Plans` built from names and values, and the check of any `Plans` before a simulation.

>>> grid = plans(workload, tp=[1, 2], pp=4, dp=8, checkpointing="block:2")   # two plans
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Ints
from sim_core.documents import Fields
from sim_core.engine.schedules import SENDS
from sim_core.errors import SpecError, nearest, shown
from sim_core.limits import product
from sim_core.planning.columns import Plans
from sim_core.planning.fields import ALTERNATIVES, DEFAULTS, FIELDS, Field, Value
from sim_core.workloads.workload import Workload


def check_plans(plans: Plans, variants: int) -> None:
    """Raise SpecError for a column of wrong length or type, or a value out of bounds; `variants`: number of hardware rows."""
    rows = len(plans.tp)
    for name, column in plans._asdict().items():
        field = FIELDS[name]
        kind, dimensions = np.float64 if field.is_real else np.int64, 2 if field.wide else 1
        if column.ndim != dimensions or column.dtype != kind or not column.flags.c_contiguous:
            found = f"{column.ndim} dimensions of {column.dtype}"
            raise SpecError(f"plans.{name}: found {found}, expected {dimensions} of {np.dtype(kind)}, contiguous")
        if len(column) != rows:
            raise SpecError(f"plans.{name}: found {len(column)} rows, expected {rows}, as plans.tp has")
        if not field.wide:
            _check_bounds(field, column, (0, variants - 1) if name == "hardware" else field.bounds)


def _check_bounds(field: Field, column: npt.NDArray[Any], bounds: tuple[float, float]) -> None:
    least, most = bounds
    if len(column) and not (column.min() >= least and column.max() <= most):
        row = int(np.argmin((column >= least) & (column <= most)))
        expected = f"{least:g} to {most:g}" if field.is_real else f"{least} to {most:,}"
        raise SpecError(f"plans.{field.name}: found {column[row]} in row {row}, expected {expected}")


def plans(workload: Workload, /, **chosen: Value | Sequence[Value | Sequence[int]]) -> Plans:
    """Every combination of the given values, the first name slowest; other names keep the value of the workload's own plan.

    A value is a number, a word (`schedule="gpipe"`, `checkpointing="block:2"`, `layer_split="balanced"` or a list of layers
    per virtual stage), a switch, or a list of these. `dp` may replace `all_gpus`, and `global_batch` may replace `ga`.
    `hardware` is a row of the HardwareTable. Raises SpecError.
    """
    known = [name for name, field in FIELDS.items() if field.is_set or name in DEFAULTS]
    for name in chosen:
        if name not in known:
            raise SpecError(f"plans: unknown name {shown(name)}, {nearest(name, known)}")
    for first, other in ALTERNATIVES:
        if first in chosen and other in chosen:
            raise SpecError(f"plans: {first} and {other} are both given, but one follows from the other")
    values: Fields = {**DEFAULTS, **workload.base._asdict(), "layers": workload.layers}
    values |= {name: value for name, value in workload.recorded_fields.items() if name in known} | chosen
    axes = {name: _values(name, value) for name, value in values.items()}
    ordered = [*(name for name in axes if name in chosen), *(name for name in axes if name not in chosen)]
    rows = list(itertools.product(*(axes[name] for name in ordered)))
    return _columns({name: [row[k] for row in rows] for k, name in enumerate(ordered)})


def _values(name: str, value: Any) -> list[Any]:
    """The values of one name. For `layer_split` a list of numbers is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | np.ndarray):
        return [value]
    if not len(value):
        raise SpecError(f"plans: {name}: found an empty list, expected at least one value")
    if name == "layer_split" and all(isinstance(item, int | np.integer) for item in value):
        return [value]
    return list(value)


def _columns(rows: dict[str, list[Any]]) -> Plans:
    coded: Fields = {}
    for name, values in rows.items():
        coded |= FIELDS[name].columns_of([_checked(FIELDS[name], value) for value in values])
    if "overlap_pp" not in coded:
        coded["overlap_pp"] = sends_in_background(coded["schedule"], coded["vpp"])
    for name in ("dp", "tp", "cp", "pp", "global_batch", "micro_batch"):  # products of these must fit into 64 bits
        if name in coded:
            _check_bounds(FIELDS[name], coded[name], FIELDS[name].bounds)
    model_parallel = coded["tp"] * coded["cp"] * coded["pp"]
    if "dp" in coded:
        coded["all_gpus"] = product(coded["dp"], model_parallel)
    if "global_batch" in coded:
        batch = np.maximum(coded["all_gpus"] // model_parallel, 1) * coded["micro_batch"]
        coded["ga"] = np.where(coded["global_batch"] % batch == 0, coded["global_batch"] // batch, 0)
    built = Plans(**{name: coded[name] for name in Plans._fields})
    check_plans(built, variants=int(built.hardware.max(initial=0)) + 1)
    return built


def sends_in_background(schedule: Ints, vpp: Ints) -> Ints:
    """`overlap_pp` of plans that do not set it, as their frameworks do: 1 for interleaving, else as the schedule says, [n]."""
    return np.where(vpp > 1, 1, SENDS[schedule])


def _checked(field: Field, value: Any) -> Any:
    """A value that its field can have, by its kind alone; a label checks itself."""
    where = f"plans: {field.name}: found"
    if field.label or (field.kind == "switch" and isinstance(value, bool | np.bool_)):
        return value
    if field.words:
        if value not in field.words:
            raise SpecError(f"{where} {shown(value)}, {nearest(str(value), field.words)}")
        return value
    if isinstance(value, bool | np.bool_ | str) or not isinstance(value, int | float | np.integer | np.floating):
        raise SpecError(f"{where} {shown(value)}, expected a number")
    if not abs(float(value)) < 2.0**62:
        raise SpecError(f"{where} {shown(value)}, expected a number below 2^62")
    if not field.is_real and value != int(value):
        raise SpecError(f"{where} {value}, expected a whole number")
    return value
