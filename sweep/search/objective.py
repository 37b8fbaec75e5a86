"""What a search looks for: the best plans of each group, by a column that can only get worse when the step takes longer."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sim_core import Floats, Ints, SpecError
from sim_core.documents import Words
from sweep.columns import COLUMNS, LONGER, MEASURES, NUMBERS, SHORTER, SIZES, measures_of

RISES = tuple(name for name in LONGER if COLUMNS[name].bounded)
FALLS = tuple(name for name in SHORTER if COLUMNS[name].bounded)
"""Columns that can only rise, or fall, when the step takes longer."""
KNOWN = measures_of("memory")
"""Columns that are known without a simulation, as are those of the plan itself."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The `best` plans of each value of `per` by `column`, and all whose value is `within` a part of the best.

    Plans with the same numbers count as one, as they are one row of a ranking; all of them are in the answer. `dear`: ln of the
    factor on a plan's cost by what a launch that fails costs, at each percent of the device's memory, rising from 0; where it
    is known, the best plans by that are in the answer, too.
    """

    column: str
    descending: bool
    per: Words
    best: int
    within: float = 0.0
    dear: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises SpecError for a column that the bound of a step does not bound."""
        if not (self.column not in MEASURES or self.column in KNOWN) and not self.follows_step:
            direction = "highest" if self.descending else "lowest"
            raise SpecError(
                f"search: the {direction} {self.column} cannot be bounded without simulating every plan (`sweep run`); "
                f"a search takes the lowest of {', '.join(RISES)}, the highest of {', '.join(FALLS)}"
            )

    @property
    def follows_step(self) -> bool:
        """Whether the column is in proportion to a step or its inverse."""
        return self.column in (FALLS if self.descending else RISES)

    def cost(self, rows: pa.RecordBatch) -> Floats:
        """What the search minimises, [rows], in the order of the column; NaN where the column is null."""
        values: Floats = rows.column(self.column).to_numpy(zero_copy_only=False).astype(float)
        return -values if self.descending else values

    def launch_cost(self, rows: pa.RecordBatch) -> Floats:
        """The same with what failed launches cost, [rows]: nowhere below `cost`, so that a bound of that bounds this, too."""
        need, have = (rows.column(name).to_numpy(zero_copy_only=False) for name in ("peak_memory_bytes", "device_memory_bytes"))
        dearer = np.exp(np.interp(np.nan_to_num(100 * need / have), np.arange(len(self.dear)), self.dear))
        cost = self.cost(rows)
        return np.asarray(cost / dearer if self.descending else cost * dearer, float)

    def cost_over(self, rows: pa.RecordBatch, ga: Ints, step_s: Floats) -> Floats:
        """The same of rows whose step takes a second, with other micro-batches, [m], and seconds, [rows, m]."""
        a_second = self.cost(rows)[:, None]
        of_step = self.column in COLUMNS and COLUMNS[self.column].of == "step"
        steps = 1.0 if of_step else ga / rows.column("ga").to_numpy()[:, None]  # of a sample or a token, or of a second
        cost: Floats = a_second * steps / step_s if self.descending else a_second / steps * step_s
        return cost

    def limit(self, best: float, worst_kept: float) -> float:
        """The cost up to which a plan belongs to the answer: that of the last of the best, or `within` of the first."""
        return max(worst_kept, best + self.within * abs(best))


def group_keys(rows: pa.RecordBatch, per: Words) -> tuple[list[bytes], Ints]:
    """The distinct groups among rows, each as bytes that any batch of the sweep gives it; and the group of each row."""
    if not per:
        return [b""], np.zeros(rows.num_rows, int)
    columns = [_codes(rows.column(name)) for name in per]
    group = np.zeros(rows.num_rows, int)
    for codes in columns:
        _, digit = np.unique(codes, return_inverse=True)
        _, group = np.unique(group * (int(digit.max(initial=0)) + 1) + digit, return_inverse=True)
    _, first = np.unique(group, return_index=True)
    return [np.array([codes[row] for codes in columns]).tobytes() for row in first], group


def same_numbers(rows: pa.RecordBatch) -> Ints:
    """A number for each row that is equal, [rows], where a ranking takes rows for the same: their hash."""
    names = [name for name in (*SIZES, *NUMBERS) if name in rows.schema.names]
    values = np.stack([rows.column(name).to_numpy(zero_copy_only=False).astype(np.float32) + 0 for name in names], axis=1)
    odd = 2 * np.random.default_rng(len(names)).integers(2**62, size=len(names), dtype=np.uint64) + np.uint64(1)
    hashed: Ints = (values.view(np.uint32) * odd).sum(axis=1, dtype=np.uint64).view(int)
    return hashed


def apart(rows: pa.RecordBatch, per: Words) -> int:
    """How many of some rows there are if, within a group, those with the same numbers count as one."""
    _, group = group_keys(rows, per)
    return len(np.unique(np.stack([group, same_numbers(rows)]), axis=1).T)


def _codes(column: pa.Array) -> Ints:
    """Integers that tell the values of a column apart, the same in every batch."""
    if pa.types.is_dictionary(column.type):
        column = column.indices
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, float).view(int)
    codes: Ints = values.astype(int)
    return codes
