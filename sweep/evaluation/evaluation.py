"""Positions -> Arrow batch: decode, check, simulate. This is all that a worker runs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core import (
    FIRST_FAILURE,
    MEMORY,
    METRICS,
    REASON,
    REASONS,
    STATUSES,
    Bools,
    Bounds,
    Floats,
    HardwareTable,
    Ints,
    Plans,
    Workload,
    bounds,
    check_rules,
    coarse_bounds_over,
    legality,
    simulate,
    slice_plans,
)
from sweep.columns import DEVICE_MEMORY, MEASURES, SECTIONS, describe_rows, measures_of, result_schema, words
from sweep.conditions import satisfied
from sweep.evaluation.preparation import Sweep
from sweep.spec.budget import costs
from sweep.spec.failures import with_failures
from sweep.spec.space import permuted, to_plans

WARM_UP_PLANS = 64
PROBE_PLANS = 20_000
CHECKED = 32_768
FILLED_BY_SECTIONS = tuple(measures_of(kind) for kind in SECTIONS.values())
"""Measures that a section of the spec fills, all of them or none, which are null without it."""
SIMULATED = (*METRICS, *MEMORY, "measured_share")
"""Measures that the simulator gives; all others follow from them."""
RECOMPUTED = "recomputed_flops"
"""Beside them: FLOPs per token that recompute runs again."""
EXCLUDED = REASON["excluded_by_where"]


class _Part(NamedTuple):
    """Plans of one stack: as columns of a result and as the simulator takes them, and which of them `where` keeps."""

    sweep: Sweep
    rows: Ints  # among all positions
    described: dict[str, pa.Array]
    plans: Plans
    kept: Bools

    @property
    def given(self) -> tuple[Workload, HardwareTable, Plans]:
        """What the simulator takes: of the plans those that are kept."""
        return self.sweep.workload, self.sweep.hardware, self.plans if self.kept.all() else slice_plans(self.plans, self.kept)

    def among(self, column: npt.NDArray[Any], missing: float = np.nan) -> npt.NDArray[Any]:
        """A column of the kept plans, [kept, ...], among all plans, [n, ...]."""
        if self.kept.all():
            return column
        whole = np.full((len(self.kept), *column.shape[1:]), missing)
        whole[self.kept] = column
        return whole


def evaluate(sweep: Sweep, positions: Ints, lost: int | None = None) -> pa.RecordBatch:
    """One row per position. With `lost`, a reason code, legal plans are not simulated but failed for that reason."""

    def rows(part: _Part) -> pa.RecordBatch:
        if lost is not None:
            reason, memory = legality(*part.given)
            return _batch(part, np.where(reason == 0, lost, reason), dict(zip(MEMORY, memory, strict=True)))
        results = simulate(*part.given)
        measured = (*results.metrics, *results.memory, results.measured_share, results.recomputed_flops)
        values = dict(zip((*SIMULATED, RECOMPUTED), measured, strict=True))
        return _batch(part, results.reason, values)

    return _rows(sweep, positions, rows)


def bounded(sweep: Sweep, positions: Ints, by: Callable[..., Bounds] = bounds) -> pa.RecordBatch:
    """The same rows without a simulation: of legal plans `step_time_s` is a lower bound, and what follows from it the best that
    it can be. Other results are null. `by`: one of those of `sim_core`."""

    def rows(part: _Part) -> pa.RecordBatch:
        lower = by(*part.given)
        known = dict(zip(("step_time_s", *MEMORY), (lower.step_time_s, *lower.memory), strict=False))
        return _batch(part, lower.reason, known)

    return _rows(sweep, positions, rows)


def checked(sweep: Sweep, positions: Ints) -> Ints:
    """The code of the reason of each plan that breaks a rule, whatever its memory; 0 of the others. Some may be missed: with
    `where`, which comes first, and with an axis of stacks all."""
    space, reason = sweep.space, np.zeros(len(positions), int)
    for begin in range(0, 0 if sweep.where or sweep.others else len(positions), CHECKED):
        numbers = space.numbers(positions[begin : begin + CHECKED])
        for axis in space.axes:
            if axis.codes.keys() == {"overlap_tp"}:  # no rule reads it
                numbers = numbers - numbers // axis.stride % axis.size * axis.stride
        distinct, of = np.unique(numbers, return_inverse=True)
        reason[begin : begin + CHECKED] = check_rules(sweep.workload, to_plans(space.decode(distinct), space))[of]
    return reason


def bounded_over(sweep: Sweep, positions: Ints, ga: Ints, *, rough: bool) -> tuple[pa.RecordBatch, Ints, Floats]:
    """Coarse bounds of each plan with each number of micro-batches in `ga`: reasons and seconds, [n, m] each.

    `rough`: see `sim_core.coarse_bounds_over`. And the rows of the plans as if each step took a second, with no reason: from
    these follows what a bound means for a column.
    """
    reason, step_s = np.zeros((len(positions), len(ga)), int), np.zeros((len(positions), len(ga)))

    def rows(part: _Part) -> pa.RecordBatch:
        reasons, bound_s = coarse_bounds_over(*part.given, ga, rough=rough)
        reason[part.rows], step_s[part.rows] = part.among(reasons, EXCLUDED), part.among(bound_s)
        every = part._replace(kept=np.ones_like(part.kept))
        return _batch(every, np.zeros_like(part.rows), {"step_time_s": np.ones(len(part.rows))})

    return _rows(sweep, positions, rows), reason, step_s


def _rows(sweep: Sweep, positions: Ints, rows: Callable[[_Part], pa.RecordBatch]) -> pa.RecordBatch:
    """The `rows` of plans in the order of their positions; plans with each stack of an axis are a part."""
    stacks = sweep.stacks_of(sweep.space.numbers(positions)) if sweep.others else np.zeros(len(positions), int)
    batches, places = [], []
    for stack in np.unique(stacks).tolist() or [0]:
        own = np.flatnonzero(stacks == stack)
        described, plans = describe_rows(sweep.space, positions[own])
        batches.append(rows(_Part(sweep.of_stack(stack), own, described, plans, satisfied(sweep.where, described))))
        places.append(own)
    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined.take(pa.array(np.argsort(np.concatenate(places))))


def _batch(part: _Part, reasons: Ints, known: Mapping[str, Floats]) -> pa.RecordBatch:
    """The result's columns in the order of the schema, by what is `known` of the kept plans; unknown values are null."""
    sweep, plans, described = part.sweep, part.plans, part.described
    reason, unknown = part.among(reasons, EXCLUDED), np.full(len(part.kept), np.nan)
    values = dict.fromkeys((*SIMULATED, RECOMPUTED), unknown) | {name: part.among(column) for name, column in known.items()}
    status = np.where(reason == 0, 0, np.where(reason >= FIRST_FAILURE, 2, 1))
    samples = described["global_batch"].to_numpy().astype(float)
    values[DEVICE_MEMORY] = sweep.hardware.columns.memory_bytes[plans.hardware]
    values["samples_per_s"] = samples / values["step_time_s"]
    tokens = np.where(plans.sequence > 0, plans.sequence, sweep.workload.sequence or np.nan)
    values["tokens_per_s"] = values["samples_per_s"] * tokens
    values["gpu_s_per_sample"] = plans.all_gpus * values["step_time_s"] / samples
    values["tokens_per_s_per_gpu"] = values["tokens_per_s"] / plans.all_gpus
    flops = values["tokens_per_s_per_gpu"] * (sweep.flops_per_token or np.nan)
    values["tflops_per_gpu"] = flops / 1e12
    values["mfu"] = flops / np.array(sweep.peak_flops)[plans.hardware]
    values["hfu"] = values["mfu"] * (1 + values.pop(RECOMPUTED) / (sweep.flops_per_token or np.nan))
    trained = values["tokens_per_s"]
    if sweep.failures:
        values |= with_failures(sweep.failures, sweep.checkpoint_bytes, plans.all_gpus, trained)
        trained = values.get("effective_tokens_per_s", unknown)
    if sweep.budget:
        watts = np.array([sweep.budget.watts(variant) for variant in sweep.hardware.variants])[plans.hardware]
        values |= costs(sweep.budget, watts, plans.all_gpus, trained)
    for names in FILLED_BY_SECTIONS:
        if not values.keys() & set(names):
            values |= dict.fromkeys(names, unknown)
    if without := [name for name in MEASURES if name not in values]:
        raise ValueError(f"column {without[0]}: sweep/columns.py has a row for it, but nothing gives its value")
    arrays = described | {"status": words(status, STATUSES), "reason": words(reason, REASONS)}
    missing = pa.nulls(len(unknown), pa.float64())
    arrays |= {name: missing if each is unknown else pa.array(each, mask=np.isnan(each)) for name, each in values.items()}
    schema = result_schema(sweep.space)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def spread(count: int, chosen: int, before: int = 0) -> Ints:
    """Up to `chosen` of `count` positions, drawn from all of them, the same ones at every call: those after `before` others."""
    return np.sort(permuted(np.arange(before, min(before + chosen, count)), count, seed=0))
