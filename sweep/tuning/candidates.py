"""Candidates of a job: the plans of a result that may be the best, as points, with what the simulation says of each."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from sim_core import Ints, is_page, read_stack
from sweep.columns import LONGER
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.moved import boundless
from sweep.evaluation.preparation import Prepared, Sweep
from sweep.ranking.chances import guesses_before
from sweep.ranking.worlds import simulated_in
from sweep.spec.stacks import STACK
from sweep.tuning.deciding import Candidates, launch_cost
from sweep.tuning.draws import log_steps
from sweep.uncertainty.belief import World, beside_page, world_of, worlds_of
from sweep.uncertainty.evidence import DENSE, EXPERTS, RECORDED, RECORDED_UNKNOWN, recorded
from sweep.uncertainty.judging import NO_CHOICE, all_distances, coordinates, features
from sweep.uncertainty.memory import chance_before_runs, guesses_by_plan, guesses_in
from sweep.uncertainty.process import Axes

MOST = 500
"""Plans that are simulated under draws: the first of the ranking, and those that are a little too full."""
TOO_FULL = 1.15
"""Plans that need up to this part of the device's memory, as simulated, are candidates: the simulation may be wrong."""

HOPELESS = 50.0
"""ln of a factor as large as any."""


def stacks_of(sweep: Sweep, *, ran: bool, page: str = "") -> tuple[World, ...]:
    """What may run the plans of a sweep: the named stack, until one `ran`, which may contradict it; then others, too; a `page`
    that small runs told."""
    (named, *more), workload = sweep.named, sweep.workload
    if more or workload.modelled is None or workload.from_file:
        return (world_of(STACK),)  # an axis, whose plans have the error of their own; or a recording, of itself
    worlds = (world_of(named),) if named and not ran else worlds_of(named, sweep.hardware.variants[0].name)
    return beside_page(page, read_stack(page).name, worlds) if page else worlds


def candidates_of(
    sweep: Sweep, plans: Ints, by: str = "step_time_s", worlds: Sequence[World] = ()
) -> tuple[Candidates, pa.Table]:
    """Some plans of a sweep as candidates, in their order, and their rows.

    `by`: a column in proportion to time, or its inverse. `worlds`: what may run them (default: before a run).
    """
    rows = rows_of(sweep, plans)
    points = coordinates(rows, varying(rows))
    axes = Axes(
        features(points), all_distances(points)
    )  # a column for each value of a choice, two of which are a doubling apart
    return _made(sweep, rows, axes, by, worlds or stacks_of(sweep, ran=False)), rows


def failing(prepared: Prepared) -> tuple[float, ...]:
    """What launches of a model that may fail cost, at each percent of the memory, as a search takes it (`Objective.dear`)."""
    if prepared.sweep.workload.modelled is None or prepared.sweep.workload.from_file or prepared.sweep.others:
        return ()
    cost = launch_cost(np.zeros(101), chance_before_runs(np.arange(101) / 100, guesses_before(prepared.provenance)))
    return tuple(np.maximum.accumulate(np.minimum(cost - cost[0], HOPELESS)).tolist())


def rows_of(sweep: Sweep, plans: Ints) -> pa.Table:
    """The rows of some plans, simulated."""
    return pa.Table.from_batches([evaluate(sweep, plans)])


def varying(rows: pa.Table) -> list[str]:
    """Columns that tell plans apart: those that define a plan, follow from no other, and differ."""
    names = rows.column_names
    return [name for name in names[: names.index("status")] if name not in NO_CHOICE and len(rows[name].unique()) > 1]


def _made(sweep: Sweep, rows: pa.Table, axes: Axes, by: str, worlds: Sequence[World]) -> Candidates:
    plans = rows["plan"].to_numpy()
    several, known = len(sweep.named) > 1, sweep.workload.modelled
    beside = simulated_in(worlds, sweep, plans)
    steps = log_steps(sweep, plans)
    nominal, moved = steps[0], np.where(np.isnan(steps[1:]), steps[0], steps[1:])
    mean = moved.mean(0)
    cost = rows[by].to_numpy().astype(float)
    if len(full := np.flatnonzero(np.isnan(cost))):
        cost[full] = rows_of(boundless(sweep), plans[full])[by].to_numpy()
    memory = rows["peak_memory_bytes"].to_numpy().astype(float)
    evidence = RECORDED if worlds[0].stack and is_page(worlds[0].stack) else RECORDED_UNKNOWN  # small runs told the page
    return Candidates(
        plans=plans,
        simulated=np.exp(nominal),
        mean=mean,
        draws=moved - mean,
        memory=memory,
        part=memory / rows["device_memory_bytes"].to_numpy(),
        axes=axes,
        memory_error=guesses_by_plan([sweep.named[code] for code in sweep.stacks_of(plans).tolist()])
        if several
        else guesses_in(worlds, beside.memory),
        moved=np.nan_to_num(beside.moved(len(plans))),
        offset=(np.log(cost) if by in LONGER else -np.log(cost)) - nominal,
        size=1.0 if known is None else recorded(evidence).differences[EXPERTS if known.model.experts else DENSE].size,
    )
