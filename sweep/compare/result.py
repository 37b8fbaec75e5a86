"""What a comparison finds, as plain immutable data: what every form of the report is made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sweep.compare.changes import Change

Values = dict[str, Any]
"""Plan columns and their values."""


@dataclass(frozen=True, kw_only=True)
class Champion:
    """The best plan of one group in one result. `value` is of the column ranked by."""

    plan: int
    values: Values
    value: float
    step_time_s: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """The best plan of one group, then and now; None where no plan of it can run.

    `old_plan_now` is the value that the old best plan has now, `old_plan_rank` its rank now: None where it cannot run or is
    no longer there, and `old_plan_status` says which.
    """

    group: Values
    old: Champion | None
    new: Champion | None
    old_plan_now: float | None = None
    old_plan_rank: int | None = None
    old_plan_status: str = ""
    worse: float | None = None  # of the best value, relative, above 0 is worse; None where one side has none


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The step time of one plan, or of many on average, then and now, and the parts that moved it, widest first."""

    values: Values
    old_s: float
    new_s: float
    parts: tuple[tuple[str, float], ...]  # breakdown column and new - old in seconds, those above rounding

    @property
    def change(self) -> float:
        """Relative, above 0 is slower."""
        return self.new_s / self.old_s - 1

    @property
    def cause(self) -> str | None:
        """The breakdown column that moved most in the direction of the whole."""
        direction = self.new_s - self.old_s
        return next((name for name, delta in self.parts if delta * direction > 0), None)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step times of the plans that can run on both sides; changes are relative, quantiles of all such plans."""

    plans: int
    slower: int
    faster: int
    same: int
    quantiles: tuple[tuple[float, float], ...]  # (0..1, change)
    histogram: tuple[tuple[float, float, int], ...]  # from, to, plans
    mean: Shift | None
    causes: tuple[tuple[str, int], ...]  # breakdown column, plans whose step it moved most


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Plans that went from one status to another, by the reason why they cannot run now, or could not then (or `ok`).

    `best` are the fastest of them, where either side has a step time.
    """

    plans: int
    reasons: tuple[tuple[str, int], ...]
    best: tuple[Values, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two results of a sweep. Rows of `largest` and `best` are limited, numbers never."""

    name: str
    old: str
    new: str
    by: str
    descending: bool
    per: tuple[str, ...]
    old_rows: int
    new_rows: int
    old_feasible: int
    new_feasible: int
    old_failed: int
    new_failed: int
    incomplete: tuple[str, ...]  # in words, which side is not whole
    matched: int
    matched_without: tuple[str, ...]  # columns that differ for every plan and were left out of the match
    inputs: tuple[Change, ...]
    groups: tuple[Group, ...]
    steps: Steps
    largest: tuple[Shift, ...]
    became_infeasible: Moved
    became_failed: Moved
    became_feasible: Moved
    new_plans: Moved
    vanished_plans: Moved

    def as_data(self) -> dict[str, Any]:
        """For JSON, with the texts that are made of other fields."""
        data = asdict(self)
        for change, row in zip(self.inputs, data["inputs"], strict=True):
            row["text"] = change.text
        for shift, row in zip(self.largest, data["largest"], strict=True):
            row |= {"change": shift.change, "cause": shift.cause}
        return data


@dataclass(frozen=True, kw_only=True)
class Point:
    """One result on the line of nights; values by group in words, None where no plan can run."""

    label: str
    feasible: int
    best_step_s: dict[str, float | None]
    champion_rank: dict[str, int | None]
