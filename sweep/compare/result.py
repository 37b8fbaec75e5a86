"""What a comparison finds, as plain immutable data from which every form of the report is made."""

from dataclasses import asdict, dataclass

from sim_core.documents import Fields, Words
from sweep.compare.changes import Change

MOVES = {
    "became_infeasible": ("old_status = 'ok' AND new_status = 'infeasible'", "Became infeasible", "by new reason"),
    "became_failed": ("old_status <> 'failed' AND new_status = 'failed'", "Now failing", "by new reason"),
    "became_feasible": ("old_status <> 'ok' AND new_status = 'ok'", "Became feasible", "by old reason"),
    "new_plans": ("old_plan IS NULL", "New plans", "by status or reason"),
    "vanished_plans": ("new_plan IS NULL", "Vanished plans", "by old status or reason"),
}
"""How plans may have moved: the condition on a pair, the heading of its section, and what its reasons are."""
Values = Fields
"""Plan columns and their values."""


@dataclass(frozen=True)
class Champion:
    """The best plan of one group in one result. `value` is that of the column ranked by."""

    plan: int
    values: Values
    value: float
    step_time_s: float


@dataclass(frozen=True, kw_only=True)
class Group:
    """The best plan of one group in the old and the new result; None if no plan of the group can run.

    `old_plan_now` and `old_plan_rank` are the value and the rank of the old best plan in the new result; None if it cannot
    run or is not there, and `old_plan_status` says which.
    """

    group: Values
    old: Champion | None
    new: Champion | None
    old_plan_now: float | None = None
    old_plan_rank: int | None = None
    old_plan_status: str = ""
    worse: float | None = None  # relative change of the best value, above 0 is worse; None if one side has none


@dataclass(frozen=True)
class Shift:
    """The old and new step time of one plan, or the mean of many, and the parts that changed, largest first."""

    values: Values
    old_s: float
    new_s: float
    parts: tuple[tuple[str, float], ...]  # breakdown column and new - old in seconds, those above rounding

    @property
    def change(self) -> float:
        """Relative change of the step time, above 0 is slower."""
        return self.new_s / self.old_s - 1

    @property
    def cause(self) -> str | None:
        """The breakdown column that changed most in the same direction as the step time."""
        direction = self.new_s - self.old_s
        return next((name for name, delta in self.parts if delta * direction > 0), None)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Step times of the plans that can run on both sides. Changes are relative, quantiles are over all these plans."""

    plans: int = 0
    slower: int = 0
    faster: int = 0
    same: int = 0
    quantiles: tuple[tuple[float, float], ...] = ()  # (0..1, change)
    mean: Shift | None = None
    causes: tuple[tuple[str, int], ...] = ()  # breakdown column, number of plans whose step it changed most


@dataclass(frozen=True)
class Moved:
    """Plans that changed status, by the reason why they cannot run now, else why they could not before (or `ok`).

    `best` are the fastest of them, of those with a step time on either side.
    """

    plans: int
    reasons: tuple[tuple[str, int], ...]
    best: tuple[Values, ...]

    @property
    def text(self) -> str:
        """The reasons on one line."""
        return ", ".join(f"{why} {count:,}" for why, count in self.reasons)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of two results. Only the rows of `largest` and `best` are limited in number."""

    name: str
    old: str
    new: str
    by: str
    descending: bool
    per: Words
    old_rows: int
    new_rows: int
    old_feasible: int
    new_feasible: int
    old_failed: int
    new_failed: int
    incomplete: Words  # in words, which side is incomplete
    matched: int
    matched_without: Words  # columns that differ for every plan, so that plans were matched without them
    inputs: tuple[Change, ...]
    groups: tuple[Group, ...]
    steps: Steps
    largest: tuple[Shift, ...]
    moved: dict[str, Moved]  # those of MOVES

    def as_data(self) -> Fields:
        """As data for JSON, including texts derived from other fields."""
        data = asdict(self)
        data |= data.pop("moved")
        for change, row in zip(self.inputs, data["inputs"], strict=True):
            row["text"] = change.text
        for shift, row in zip(self.largest, data["largest"], strict=True):
            row |= {"change": shift.change, "cause": shift.cause}
        return data


@dataclass(frozen=True, kw_only=True)
class Point:
    """One result in the history of nights; values by the name of a group, None if no plan of it can run."""

    label: str
    feasible: int
    best_step_s: dict[str, float | None]
    champion_rank: dict[str, int | None]
