"""Blocks of plans: the coarse bound of one plan, which stands for its block, holds for all plans of the block."""

import math
import re
from dataclasses import dataclass

import numpy as np

from sim_core import BALANCED_COST, FASTER, FIDELITIES, HARDWARE_KEYS, Floats, Ints, ignored_columns, quantity
from sweep.columns import column_name, other_names, result_schema
from sweep.evaluation.preparation import Sweep
from sweep.search.objective import Objective
from sweep.spec.space import Axis, Space

GOOD = {"overlap_grad": 1, "overlap_param": 1, "gradient_precision": 1}
"""Ignored columns whose higher values tend to be faster, so that the plan that stands for a block is a good one."""
MICRO_BATCHES = {"ga", "global_batch"}
"""Columns that the number of micro-batches changes, besides those that follow from a step."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """All plans of a space in the order in which they are searched: block after block.

    A block is a value of each axis in `outer`; its plans have all values of those in `inner`. Axes are (size, stride).
    """

    outer: tuple[tuple[int, int], ...]
    inner: tuple[tuple[int, int], ...]
    micro_batches: tuple[int, ...] = ()  # ga of blocks side by side that differ in it alone, a family; none: no families
    best: int  # what the inner values of the plan that stands for a block add to its number
    pays: bool  # whether bounding blocks first can be cheaper than bounding plans

    @property
    def width(self) -> int:
        """Plans of a block."""
        return math.prod(size for size, _ in self.inner)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return math.prod(size for size, _ in self.outer)

    @property
    def family(self) -> int:
        """Number of blocks in a family."""
        return max(len(self.micro_batches), 1)

    def numbers(self, places: Ints) -> Ints:
        """Plan numbers at places in the order of the search."""
        return _numbers(places // self.width, self.outer) + _numbers(places % self.width, self.inner)

    def block_of(self, plans: Ints) -> Ints:
        """The block of each plan."""
        block = np.zeros_like(plans)
        for size, stride in self.outer:
            block = block * size + plans // stride % size
        return block

    def standing_for(self, blocks: Ints) -> Ints:
        """Numbers of the plans that stand for blocks."""
        return _numbers(blocks, self.outer) + self.best


def blocks_of(sweep: Sweep, objective: Objective) -> Blocks:
    """The blocks of a sweep's space; each plan is a block of its own where its bound depends on every column."""
    space = sweep.space
    if space.sample is not None:  # the plans of a block are not all in it
        return Blocks(outer=((space.count, 1),), inner=(), best=0, pays=False)
    asked = _asked_for(sweep, objective)
    ignored = _ignored(sweep) - asked
    by_cost = (space.codes("layer_split") == BALANCED_COST).any()  # faster messages move layers
    faster = FASTER.keys() - asked if ignored and not by_cost else set()
    families = ignored and objective.follows_step and not asked & MICRO_BATCHES
    apart: tuple[int, ...] = ()
    outer: list[tuple[int, int]] = []
    inner: list[tuple[int, int]] = []
    best = 0
    for axis in sorted(space.axes, key=lambda axis: bool(axis.codes.keys() & MICRO_BATCHES)):  # the last ones are side by side
        row = _best_row(axis, space, ignored, faster)
        (outer if row is None else inner).append((axis.size, axis.stride))
        best += (row or 0) * axis.stride
        if families and axis.codes.keys() == {"ga"}:
            apart = tuple(axis.codes["ga"].tolist())
    pays = bool(inner or apart)
    return Blocks(outer=tuple(outer), inner=tuple(inner), micro_batches=apart, best=best, pays=pays)


def _ignored(sweep: Sweep) -> frozenset[str]:
    """Columns that the coarse bound does not depend on; none where some plans have the fidelity simai."""
    fidelity, schedule, sharding = map(sweep.space.codes, ("fidelity", "schedule", "sharding"))
    if (fidelity == FIDELITIES.index("simai")).any():
        return frozenset()
    return frozenset.intersection(*(ignored_columns(workload, schedule, sharding) for workload in sweep.workloads))


def _asked_for(sweep: Sweep, objective: Objective) -> set[str]:
    """Columns by which plans of a block differ for the user: in the objective, the groups, or perhaps in a constraint."""
    columns = result_schema(sweep.space).names
    text = set(re.findall(r"\w+", " ".join(sweep.where).lower()))
    names = {**{name: name for name in columns}, **other_names(columns)}
    return {name for word, name in names.items() if word.lower() in text} | {objective.column, *objective.per}


def _best_row(axis: Axis, space: Space, ignored: frozenset[str], faster: set[str]) -> int | None:
    """The row of an axis whose values stand for all of them; None if there is none."""
    score = np.zeros(axis.size)
    best = np.ones(axis.size, bool)
    for name, codes in axis.codes.items():
        column = column_name(name)
        if column in ignored:
            score += GOOD.get(column, 0) * codes
        elif column in faster:
            values = FASTER[column] * _values(name, codes, space)
            best &= values == values.max()
        else:
            return None
    rows = np.flatnonzero(best)
    return int(rows[np.argmax(score[rows])]) if len(rows) else None


def _values(name: str, codes: Ints, space: Space) -> Floats:
    """The values of an axis as numbers."""
    if name not in space.labels:
        return codes.astype(float)
    unit = HARDWARE_KEYS[column_name(name)][1]
    return np.array([quantity(value, unit) for value in space.labels[name]])[codes]


def _numbers(index: Ints, axes: tuple[tuple[int, int], ...]) -> Ints:
    numbers = np.zeros_like(index)
    for size, stride in reversed(axes):
        numbers += index % size * stride
        index = index // size
    return numbers
