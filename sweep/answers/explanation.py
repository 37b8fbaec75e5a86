"""One plan of a result and what is known of it, each fact when it is first asked for; and two plans compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from sim_core import EXPLANATIONS, MEMORY, PARTS, Hardware, Plans, Shape, SpecError, shape_of
from sweep.answers.among import Within, nearest_running, within
from sweep.answers.bottleneck import Bottleneck, Waiting, bottleneck, waiting, words
from sweep.answers.lines import peak_of, plan_lines, to_measure
from sweep.answers.neighbours import neighbours
from sweep.answers.variation import COST, STEP, Variation
from sweep.evaluation.one_plan import plans_of, row_of
from sweep.evaluation.preparation import Sweep
from sweep.reopening import Reopened

_TELLING: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Plan number `plan` of a result. What is simulated for a fact raises SimError."""

    opened: Reopened
    plan: int
    row: Mapping[str, Any]  # its result

    @cached_property
    def sweep(self) -> Sweep:
        """The sweep, with the workload of this plan."""
        return self.opened.prepared.sweep.of_plan(self.plan)

    @cached_property
    def plans(self) -> Plans:
        """The plan as columns of length 1."""
        return plans_of(self.opened.prepared, self.plan)

    @property
    def hardware(self) -> Hardware:
        """The device that it runs on."""
        return self.sweep.hardware.variants[int(self.plans.hardware[0])]

    @property
    def runs(self) -> bool:
        """Whether the plan has a result."""
        return bool(self.row["status"] == "ok")

    @property
    def reason(self) -> str:
        """Why it cannot run; empty if it can."""
        reason = self.row["reason"]
        return f"{reason}: {EXPLANATIONS[reason]}" if reason else ""

    @cached_property
    def told(self) -> tuple[str, ...]:
        """What it is on its machine, in words."""
        sequence = self.row.get("sequence") or self.sweep.workload.sequence
        return tuple(plan_lines(self.row, self.shape, self.hardware, sequence))

    @cached_property
    def shape(self) -> Shape | None:
        """Layers and groups of a plan that can run, or lacks only memory; None of another."""
        try:
            return shape_of(self.sweep.workload, self.sweep.hardware, self.plans)
        except SpecError:
            return None

    @cached_property
    def neighbours(self) -> tuple[Variation, ...]:
        """The plan under each change of one axis; none of a plan without a batch that a machine could take."""
        if not all(1 <= self.row[name] < 2**40 for name in ("global_batch", "all_gpus")):
            return ()
        return tuple(neighbours(self.opened, self.plan, self.row))

    @cached_property
    def bottleneck(self) -> Bottleneck | None:
        """What holds it back, if it runs."""
        return bottleneck(self.row, self.shape, self.neighbours) if self.runs and self.shape is not None else None

    @cached_property
    def waiting(self) -> Waiting | None:
        """What its bubble is made of, where that is known."""
        return waiting(self.row, self.sweep.workload, self.sweep.hardware, self.plans) if self.runs else None

    @cached_property
    def nearest(self) -> Variation | None:
        """Of a plan that cannot run, the plan of the result nearest to it that can."""
        return None if self.runs else nearest_running(self.opened.folder, self.row)

    @property
    def peak(self) -> str:
        """Which peak its MFU is of, in words; empty where there is none."""
        known = self.runs and self.row["mfu"] is not None
        return peak_of(self.row, self.hardware, self.sweep.workload.dtype) if known else ""

    @property
    def first(self) -> tuple[str, ...]:
        """What to measure first."""
        return tuple(to_measure(self.row)) if self.runs else ()

    @cached_property
    def within(self) -> Within | None:
        """Where it stands among the plans of the result, if it runs and errors are known."""
        return within(self.opened, self.row) if self.runs else None


def explain(opened: Reopened, number: int) -> Explanation:
    """Plan `number` of a result, to be explained. Raises SimError."""
    return Explanation(opened=opened, plan=number, row=row_of(opened.prepared, number))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two plans side by side: fields that differ, seconds by part (second - first), and why one wins, in words."""

    fields: dict[str, tuple[Any, Any]]
    parts: dict[str, float]
    memory: dict[str, float]
    verdict: str


def difference(first: Explanation, second: Explanation) -> Difference:
    """What tells two plans apart."""
    of = Variation(before=dict(first.row), after=dict(second.row))
    parts = of.apart((STEP, *PARTS)) if first.runs and second.runs else {}
    return Difference(fields=of.fields, parts=parts, memory=of.apart(MEMORY), verdict=_verdict(first, second))


def _verdict(first: Explanation, second: Explanation) -> str:
    """Which plan runs, or costs fewer GPU-seconds a sample, and by which parts."""
    if not (first.runs or second.runs):
        return "neither of the two can run"
    if not (first.runs and second.runs):
        runs, fails = (first, second) if first.runs else (second, first)
        return f"plan {runs.plan} runs, plan {fails.plan} does not: {fails.reason}"
    best, worse = sorted((first, second), key=lambda each: float(each.row[COST]))
    cost, of = best.row[COST], worse.row[COST]
    if cost == of:
        return "both cost the same"
    less = {
        name: worse.row[name] * worse.row["all_gpus"] / worse.row["global_batch"]
        - best.row[name] * best.row["all_gpus"] / best.row["global_batch"]
        for name in PARTS
    }
    wins = sorted((name for name in PARTS if less[name] > 0), key=lambda name: -less[name])[:3]
    losses = sorted((name for name in PARTS if less[name] < 0), key=lambda name: less[name])[:2]
    told = ", ".join(f"{words(name)} {-less[name] / of:+.1%}" for name in (*wins, *losses) if abs(less[name]) > _TELLING * of)
    return f"plan {best.plan} takes {1 - cost / of:.1%} fewer GPU-seconds a sample: {told}"
