"""Positions -> Arrow batch: decode, check, simulate. This is all that a worker runs."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from sim_core import (
    FIRST_FAILURE,
    MEMORY,
    METRICS,
    REASON,
    REASONS,
    STATUSES,
    Bools,
    Floats,
    Ints,
    Plans,
    Results,
    bounds,
    coarse_bounds,
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
from sweep.spec.space import permuted
from sweep.spec.stragglers import with_stragglers

WARM_UP_PLANS: Final = 64
PROBE_PLANS: Final = 20_000
FILLED_BY_SECTIONS: Final = tuple(measures_of(kind) for kind in SECTIONS.values())
"""Measures that a section of the spec fills, all of them or none, which are null without it."""


def evaluate(sweep: Sweep, positions: Ints, lost: int | None = None) -> pa.RecordBatch:
    """One row per position. With `lost`, a reason code, legal plans are not simulated but failed for that reason."""
    parts = _by_stack(sweep, positions)
    return _in_order([_evaluated(part, positions[rows], lost) for part, rows in parts], parts)


def _evaluated(sweep: Sweep, positions: Ints, lost: int | None) -> pa.RecordBatch:
    described, plans = describe_rows(sweep.space, positions)
    kept = satisfied(sweep.where, described)
    legal = plans if kept.all() else slice_plans(plans, kept)
    if lost is None:
        results = simulate(sweep.workload, sweep.hardware, legal)
    else:
        checked, memory = legality(sweep.workload, sweep.hardware, legal)
        none = np.full((len(METRICS) + 2, len(legal.tp)), np.nan)
        results = Results(np.where(checked == 0, lost, checked), none[2:], memory, *none[:2])
    if legal is not plans:
        results = _among(results, kept)
    reason, recomputed = results.reason, results.recomputed_flops
    measured = (*results.metrics, *results.memory, results.measured_share)
    values = dict(zip((*METRICS, *MEMORY, "measured_share"), measured, strict=True))
    if sweep.stragglers and lost is None:
        values |= with_stragglers(sweep.stragglers, sweep.workload, sweep.hardware, plans, values["step_time_s"])
    return _batch(sweep, described, plans, reason, values, recomputed)


def _among(results: Results, kept: Bools) -> Results:
    """The results of the rows that are `kept`, among all rows: the others are excluded."""
    reason = np.full(len(kept), REASON["excluded_by_where"], np.int64)
    reason[kept] = results.reason

    def spread_out(column: Floats) -> Floats:
        among = np.full((*column.shape[:-1], len(kept)), np.nan)
        among[..., kept] = column
        return among

    others = (results.metrics, results.memory, results.measured_share, results.recomputed_flops)
    return Results(reason, *map(spread_out, others))


def bounded(sweep: Sweep, positions: Ints, *, coarse: bool = False) -> pa.RecordBatch:
    """The same rows without a simulation: of legal plans `step_time_s` is a lower bound, and what follows from it the best that
    it can be. Other results are null. `coarse`: see `sim_core.coarse_bounds`."""
    parts = _by_stack(sweep, positions)
    return _in_order([_bounded(part, positions[rows], coarse=coarse) for part, rows in parts], parts)


def _bounded(sweep: Sweep, positions: Ints, *, coarse: bool) -> pa.RecordBatch:
    described, plans = describe_rows(sweep.space, positions)
    kept = satisfied(sweep.where, described)
    lower = (coarse_bounds if coarse else bounds)(
        sweep.workload, sweep.hardware, plans if kept.all() else slice_plans(plans, kept)
    )
    reason = np.full(len(positions), REASON["excluded_by_where"], np.int64)
    values = {name: np.full(len(positions), np.nan) for name in (*METRICS, *MEMORY, "measured_share")}
    reason[kept], values["step_time_s"][kept] = lower.reason, lower.step_time_s
    for name, of_kept in zip(MEMORY, lower.memory, strict=True):
        values[name][kept] = of_kept
    return _batch(sweep, described, plans, reason, values, np.full(len(positions), np.nan))


def bounded_over(sweep: Sweep, positions: Ints, ga: Ints, *, rough: bool) -> tuple[pa.RecordBatch, Ints, Floats]:
    """Coarse bounds of each plan with each number of micro-batches in `ga`: reasons and seconds, [n, m] each.

    `rough`: see `sim_core.coarse_bounds_over`. And the rows of the plans as if each step took a second, with no reason: from
    these follows what a bound means for a column.
    """
    parts = _by_stack(sweep, positions)
    batches, reasons, steps = zip(*(_bounded_over(part, positions[rows], ga, rough=rough) for part, rows in parts), strict=True)
    order = np.argsort(np.concatenate([rows for _, rows in parts]))
    return _in_order(batches, parts), np.concatenate(reasons)[order], np.concatenate(steps)[order]


def _bounded_over(sweep: Sweep, positions: Ints, ga: Ints, *, rough: bool) -> tuple[pa.RecordBatch, Ints, Floats]:
    described, plans = describe_rows(sweep.space, positions)
    kept = satisfied(sweep.where, described)
    reason = np.full((len(positions), len(ga)), REASON["excluded_by_where"], np.int64)
    step_s = np.full(reason.shape, np.nan)
    reason[kept], step_s[kept] = coarse_bounds_over(
        sweep.workload, sweep.hardware, plans if kept.all() else slice_plans(plans, kept), ga, rough=rough
    )
    unknown = np.full(len(positions), np.nan)
    values = dict.fromkeys((*METRICS, *MEMORY, "measured_share"), unknown) | {"step_time_s": np.ones(len(positions))}
    return _batch(sweep, described, plans, np.zeros(len(positions), np.int64), values, unknown), reason, step_s


_Parts = list[tuple[Sweep, Ints]]


def _by_stack(sweep: Sweep, positions: Ints) -> _Parts:
    """The sweep of each stack of an axis, with the rows of the positions that have it; in one part without such an axis."""
    if not sweep.others or not len(positions):
        return [(sweep, np.arange(len(positions)))]
    stacks = sweep.stacks_of(sweep.space.numbers(positions))
    return [(sweep.of_stack(stack), np.flatnonzero(stacks == stack)) for stack in np.unique(stacks).tolist()]


def _in_order(batches: Sequence[pa.RecordBatch], parts: _Parts) -> pa.RecordBatch:
    """The rows of all parts in the order of the positions."""
    if len(batches) == 1:
        return batches[0]
    order = np.argsort(np.concatenate([rows for _, rows in parts]))
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined.take(pa.array(order))


def _batch(
    sweep: Sweep, described: dict[str, pa.Array], plans: Plans, reason: Ints, values: dict[str, Floats], recomputed: Floats
) -> pa.RecordBatch:
    """The result's columns in the order of the schema; unknown values are null. `recomputed`: FLOPs per token, [n]."""
    status = np.where(reason == 0, 0, np.where(reason >= FIRST_FAILURE, 2, 1))
    samples = described["global_batch"].to_numpy().astype(np.float64)
    values[DEVICE_MEMORY] = sweep.hardware.columns.memory_bytes[plans.hardware]
    values["samples_per_s"] = samples / values["step_time_s"]
    tokens = np.where(plans.sequence > 0, plans.sequence, sweep.workload.sequence or np.nan)
    values["tokens_per_s"] = values["samples_per_s"] * tokens
    values["gpu_s_per_sample"] = plans.all_gpus * values["step_time_s"] / samples
    values["tokens_per_s_per_gpu"] = values["tokens_per_s"] / plans.all_gpus
    flops = values["tokens_per_s_per_gpu"] * (sweep.flops_per_token or np.nan)
    values["tflops_per_gpu"] = flops / 1e12
    values["mfu"] = flops / np.array(sweep.peak_flops)[plans.hardware]
    values["hfu"] = values["mfu"] * (1 + recomputed / (sweep.flops_per_token or np.nan))
    unknown, trained = np.full(len(samples), np.nan), values["tokens_per_s"]
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
    arrays = dict(described)
    arrays["status"] = words(status, STATUSES)
    arrays["reason"] = words(reason, REASONS)
    arrays |= {name: pa.array(column, mask=np.isnan(column)) for name, column in values.items()}
    schema = result_schema(sweep.space)
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def spread(count: int, chosen: int, before: int = 0) -> Ints:
    """Up to `chosen` of `count` positions, drawn from all of them, the same ones at every call: those after `before` others."""
    return np.sort(permuted(np.arange(before, min(before + chosen, count)), count, seed=0))
