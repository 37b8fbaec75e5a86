"""Loops that look for the best plan of a job, replayed on grids of measured plans: `sweep tune` beside others.

    python benchmarks/tuning.py [GRID.csv...] [--set ultrascale] [--stack megatron-core] [--least 4] [--beside]

A GRID is a table of runs, as `sweep validate` reads it; without one the published runs that ship are replayed. A job is what is
alike but for its plan; its plans are the rows of quality `ok` and the `failed` ones, and it is replayed if four of them
(`--least`) ran.
Each loop proposes plans that the simulation says fit, one after the other, and is told what the grid says of them: seconds,
peak memory, or a failure. Regret is how much slower the best plan measured so far is than the best of the grid, at most 300 %;
a loop without a measured plan has all of it. GPU-hours: 2 minutes of start and 20 steps a run, 2 minutes of one that fails.
`--stack` simulates all rows as that stack, `--stack ""` as a spec that names none, as for a framework that nobody knows;
without it each row as its own. `--small 5` tells the page of five small runs of the set
first. Optuna's TPE takes part where it is installed.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from sim_core import Bools, Floats, Ints, SimError, hardware_yaml, model_document, read_stack, stack_yaml
from sim_core.documents import parse_yaml
from sweep.calibration.report import page_of_fit
from sweep.calibration.stack_launch import runs_at_hand
from sweep.calibration.steps import fit_stack
from sweep.evaluation.preparation import prepare
from sweep.runs.table import FAILED, OK, NotSimulated, Row, published_rows, read_table
from sweep.spec.spec import SweepSpec
from sweep.spec.stacks import STACK
from sweep.tuning.candidates import TOO_FULL, candidates_of, rows_of, stacks_of
from sweep.tuning.deciding import REPEATS, UNTOLD, Belief, Candidates, Known, believe, decide, doubted, score, stops
from sweep.uncertainty.belief import UNNAMED
from sweep.uncertainty.evidence import NORMAL_90
from sweep.uncertainty.process import noise_of, steady
from sweep.validation.figures import OF_JOB

AFTER = (1, 2, 3, 5, 10)
MOST = 3.0
"""Regret is counted up to this."""
ENOUGH = 0.02
START_S, STEPS = 120.0, 20
SEEDS = 10
"""Repetitions of what draws at random."""
BOOTSTRAP = 2000

Loop = Callable[["Job", int], Iterator[int]]
"""Rows of a job's candidates, one after the other, from a seed."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The plans of a job that the simulation says may fit, [n], and what the grid says of them."""

    gpus: int
    rows: pa.Table  # of the candidates
    candidates: Candidates
    fits: Bools  # as simulated
    seconds: Floats  # NaN where it failed
    peak: Floats  # ln(measured / simulated memory), NaN where unknown
    full: Bools  # the grid says out of memory
    best: float  # of all plans of the grid that ran
    scatter: float = 0.0  # standard deviation of ln(seconds) from run to run
    slow_first: float = 1.0  # factor on the first run
    seed: int = 0  # of the scatter

    def known(self, picked: Sequence[int]) -> Known:
        """What the grid says of these runs, with their scatter."""
        rows = np.array([*dict.fromkeys(picked)], np.int64)
        drawn = self.scatter * np.random.default_rng([len(self.seconds), self.gpus, self.seed]).standard_normal(len(picked))
        drawn[:1] += np.log(self.slow_first)
        times = [self.seconds[row] * np.exp(drawn[np.equal(picked, row)]) for row in rows]
        seconds = np.array([np.median(each if np.isnan(each).any() else steady(each.tolist())) for each in times])
        failed = np.isnan(self.seconds[rows])
        full = failed & self.full[rows]
        ran = [each for each in times if not np.isnan(each).any()]
        alone = np.sqrt([len(each) for each in times])
        return Known(
            rows=rows, seconds=seconds, peak=self.peak[rows], out_of_memory=full, crashed=failed & ~full,
            slow=np.zeros(len(rows), np.bool_), noise=noise_of(ran) / alone, doubt=noise_of(ran, UNTOLD) / alone,
        )  # fmt: skip


def jobs_of(given: argparse.Namespace) -> Iterator[Job]:
    """The jobs of some grids, or of the published runs, as the command's options ask."""
    together: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in chain.from_iterable(map(read_table, given.grids)) if given.grids else published_rows():
        if given.set in (None, row.text("set")) and row.quality in (OK, FAILED):
            together[tuple(row.text(key) for key in OF_JOB)].append(row)
    for rows in together.values():
        try:
            if (job := _job(rows, given.stack, given.least, given.page)) is not None:
                yield job
        except (NotSimulated, SimError, ValidationError) as error:
            name = f"{rows[0].text('model_name')} on {rows[0].size('all_gpus')} ({rows[0].text('set')})"
            sys.stderr.write(f"{name}: not replayed: {' '.join(str(error).split())[:200]}\n")


def page_of_small(rows: Sequence[Row], stack: str | None, count: int) -> str:
    """A file with the page that so many small runs tell, as `sweep tune --small` does; empty: none asked for."""
    if not count:
        return ""
    fit = fit_stack(
        runs_at_hand([row for row in rows if row.quality == OK], None, count, 2)[0], read_stack(stack or STACK), None, ""
    )
    Path(file := f"{mkdtemp()}/small.yaml").write_text(stack_yaml(page_of_fit(fit, f"{fit.base.name} (small runs)", "")))
    return file


def _job(rows: Sequence[Row], stack: str | None, least: int, page: str) -> Job | None:
    """The job of some rows; None if fewer than `least` different plans ran. Raises NotSimulated, SimError."""
    measured: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    names: list[str] = []
    for row in rows if sum(row.number("step_time_s") is not None for row in rows) >= least else ():
        if row.text("reason"):
            raise NotSimulated(row.text("reason"))
        names = names or list(row.plan)
        if list(row.plan) != names:
            raise NotSimulated(f"{row.where}: states other fields of its plan than the runs before it")
        measured[tuple(tuple(value) if isinstance(value, list) else value for value in row.plan.values())].append(row)
    varying = [name for at, name in enumerate(names) if len({values[at] for values in measured}) > 1]
    held = {name: next(iter(measured))[at] for at, name in enumerate(names) if name not in varying}
    if not varying or sum(any(row.number("step_time_s") for row in same) for same in measured.values()) < least:
        return None
    listed = [[value for name, value in zip(names, values, strict=True) if name in varying] for values in measured]
    page = rows[0].stack().name.partition(" ")[0]
    spec = SweepSpec.model_validate(
        {
            "name": "replay",
            "workload": {"model": model_document(rows[0].model), "stack": None if stack == UNNAMED else stack or page},
            "hardware": parse_yaml(hardware_yaml(rows[0].hardware), "hardware")[0],
            "axes": {",".join(varying): listed} if len(varying) > 1 else {varying[0]: [value for (value,) in listed]},
            "fixed": held,
        }
    )
    sweep = prepare(spec, Path()).sweep
    table = rows_of(sweep, np.arange(sweep.space.size))
    part = table["peak_memory_bytes"].to_numpy() / table["device_memory_bytes"].to_numpy()
    reason = np.array(table["reason"].to_pylist())
    kept = np.flatnonzero((reason == "") | ((reason == "memory_exceeds_device") & (part <= TOO_FULL)))
    runs = list(measured.values())
    seconds = np.array([_mean(same, "step_time_s") for same in runs])
    peak = np.array([_mean(same, "peak_memory_gib") * 2**30 for same in runs])
    if len(kept) < least or np.isnan(seconds[kept]).all():
        return None
    candidates, chosen = candidates_of(sweep, kept, worlds=stacks_of(sweep, ran=True, page=page))
    return Job(
        gpus=rows[0].size("all_gpus"), rows=chosen, candidates=candidates, fits=reason[kept] == "", seconds=seconds[kept],
        peak=np.log(peak[kept] / candidates.memory), best=float(np.nanmin(seconds)),
        full=np.array([any(row.out_of_memory for row in runs[at]) for at in kept]),
    )  # fmt: skip


def _mean(rows: Sequence[Row], column: str) -> float:
    values = [value for row in rows if (value := row.number(column)) is not None]
    return float(np.mean(values)) if values else np.nan


def tuned(job: Job, seed: int) -> Iterator[int]:
    """`sweep tune`, one plan at a time."""
    nothing = believe(job.candidates, job.known([]))
    picked = [decide(job.rows, score(nothing)[: job.rows.num_rows])]
    yield picked[0]
    while True:
        belief = believe(job.candidates, job.known(picked))
        least = score(belief)
        least[picked] = np.inf
        again = belief.hope if belief.hope is not None and picked.count(belief.hope) < 2 else None
        if again is None and belief.best is not None and picked.count(belief.best) < REPEATS and unsure(job, picked, belief):
            again = belief.best
        picked.append(int(least.argmin()) if again is None else again)
        yield picked[-1]


def unsure(job: Job, picked: Sequence[int], belief: Belief) -> bool:
    """Whether `sweep tune` doubts that it may stop."""
    return stops(belief, len(picked), ENOUGH) and doubted(job.candidates, job.known(picked), (), ENOUGH)


def by_rule(job: Job, seed: int) -> Ints:
    """The least tp * pp, then the largest micro-batch: a rule of thumb."""
    tp, pp, micro_batch = (job.rows[name].to_numpy() for name in ("tp", "pp", "micro_batch"))
    return np.lexsort((job.candidates.simulated, -micro_batch, tp * pp))


def ordered(order: Callable[[Job, int], Ints]) -> Loop:
    """The plans that fit, in an order."""
    return lambda job, seed: (int(row) for row in order(job, seed) if job.fits[row])


def by_tpe(job: Job, seed: int) -> Iterator[int]:
    """Optuna's TPE with five random starts over the plans that fit; a failed run is ten times the slowest."""
    optuna = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=5))
    features = job.candidates.axes.linear
    columns = [np.unique(column).tolist() for column in features.T]
    left = set(np.flatnonzero(job.fits).tolist())
    slowest = 10 * float(np.nanmax(job.seconds))
    while left:
        trial = study.ask()
        wanted = np.array([trial.suggest_categorical(str(k), values) for k, values in enumerate(columns)])
        row = min(left, key=lambda at: (float(np.abs(features[at] - wanted).sum()), at))
        left.remove(row)
        yield row
        study.tell(trial, slowest if np.isnan(job.seconds[row]) else float(job.seconds[row]))


LOOPS: dict[str, tuple[Loop, int, str]] = {
    "sweep tune": (tuned, 1, ""),
    "simulated order": (ordered(lambda job, _: np.argsort(job.candidates.simulated, kind="stable")), 1, ""),
    "rule of thumb": (ordered(by_rule), 1, ""),
    "random": (ordered(lambda job, seed: np.random.default_rng(seed).permutation(len(job.seconds))), SEEDS, ""),
    "TPE (Optuna)": (by_tpe, SEEDS, "optuna"),
}
"""Name -> the loop, how often it runs, and the package that it needs."""


RUNS = max(AFTER)


def replay(job: Job, loop: Loop, seed: int) -> list[float]:
    """A loop of RUNS runs, or as many as there are plans: its regret after each number of runs AFTER, runs until ENOUGH
    (RUNS + 1 where it is not reached), GPU-hours and failures of five."""
    picked = list(islice(loop(job, seed), RUNS))
    seconds = job.seconds[picked]
    best = np.fmin.accumulate(np.where(np.isnan(seconds), np.inf, seconds))
    best = best if len(best) else np.array([np.inf])  # no plan fits, as simulated
    regret = np.minimum(best / job.best - 1, MOST)
    taken = np.where(np.isnan(seconds), START_S, START_S + STEPS * seconds)
    reached = np.flatnonzero(regret <= ENOUGH)
    return [
        *(regret[min(k, len(regret)) - 1] for k in AFTER), reached[0] + 1 if len(reached) else RUNS + 1,
        taken[:5].sum() * job.gpus / 3600, np.isnan(seconds[:5]).mean() if len(picked) else 0.0,
    ]  # fmt: skip


def stop_of(job: Job) -> tuple[int, float, float, bool] | None:
    """Where `sweep tune` advises to stop: after how many runs, what it expects, the regret there of the plan that it calls the
    best, and whether that is within what is said of nine in ten. None: not within 16 runs."""
    picked: list[int] = []
    for row in islice(tuned(job, 0), min(16, len(job.seconds))):
        picked.append(row)
        belief = believe(job.candidates, job.known(picked))
        if belief.regret is not None and stops(belief, len(picked), ENOUGH) and not unsure(job, picked, belief):
            real = float(job.seconds[belief.best]) / job.best - 1
            return len(picked), belief.regret.mean, real, real <= max(belief.regret.p90, ENOUGH)
    return None


def loop_lines(jobs: Sequence[Job]) -> Iterator[str]:
    """A row for each loop, as Markdown."""
    heads = " | ".join(f"{k} runs" if k > 1 else "1 run" for k in AFTER)
    yield f"| loop | {heads} | 3 runs, 90 % | 5 runs, 90 % | <= 2 % after 5 | to 2 %, median | failed | GPU-hours of 5 |"
    yield f"|---|{'--:|' * (len(AFTER) + 6)}"
    for name, (loop, seeds, package) in LOOPS.items():
        if package and find_spec(package) is None:
            sys.stderr.write(f"{name}: left out, {package} is not installed\n")
            continue
        told = np.array([[replay(job, loop, seed) for seed in range(seeds)] for job in jobs])
        *regrets, until, gpu_hours, failed = np.moveaxis(told, 2, 0)  # [jobs, seeds] each
        cells = [f"{100 * regret.mean():.1f} / {100 * regret.max():.0f}" for regret in regrets]
        of_jobs = 100 * np.mean(regrets, axis=2)
        yield (
            f"| {name} | {' | '.join(cells)} | {_bootstrap(of_jobs[2])} | {_bootstrap(of_jobs[3])} "
            f"| {np.mean(regrets[3] <= ENOUGH):.0%} | {np.median(until):g} | {failed.mean():.0%} | {gpu_hours.mean():.1f} |"
        )


def _bootstrap(values: Floats) -> str:
    """90 % of the means over jobs drawn with replacement."""
    drawn = np.random.default_rng(0).integers(0, len(values), (BOOTSTRAP, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.05, 0.95))
    return f"{low:.1f} to {high:.1f}"


def stop_line(jobs: Sequence[Job]) -> str:
    """How often it advises to stop, after how many runs, and how true that is."""
    seeds = SEEDS if jobs[0].scatter else 1
    stopped = [stop for job in jobs for seed in range(seeds) if (stop := stop_of(replace(job, seed=seed))) is not None]
    if not stopped:
        return f"Stops at an expected regret of {ENOUGH:.0%}: none in {len(jobs)} jobs."
    runs, said, regret, within = np.array(stopped).T
    return (
        f"Stops at an expected regret of {ENOUGH:.0%}: in {len(stopped)} of {len(jobs) * seeds} loops, after {runs.mean():.1f} "
        f"runs; said {said.mean():.1%}, real {regret.mean():.1%}, worst {regret.max():.1%}; "
        f"{np.mean(regret <= ENOUGH):.0%} really are at most {ENOUGH:.0%}, {within.mean():.0%} within what is said."
    )


def beside_lines(jobs: Sequence[Job], each: int = 6) -> Iterator[str]:
    """What is expected of all other plans once one that ran is known, as of a job that runs; means over jobs, percent."""
    generator, told = np.random.default_rng(0), []
    for job in jobs:
        ran = np.flatnonzero(~np.isnan(job.seconds))
        for own in generator.permutation(ran)[:each].tolist():
            belief, rest = believe(job.candidates, job.known([own])), ran[ran != own]
            off, width = belief.log_s[rest] - np.log(job.seconds[rest]), NORMAL_90 * belief.sd[rest]
            simulated = job.candidates.simulated[rest] / job.seconds[rest]
            scaled = simulated * job.seconds[own] / job.candidates.simulated[own]
            errors = (np.expm1(off), simulated - 1, scaled - 1)
            told.append([*(np.abs(error).mean() for error in errors), (np.abs(off) <= width).mean(), width.mean()])
    expected, simulated_off, scaled_off, inside, half = 100 * np.mean(told, axis=0)
    yield f"expected steps are {expected:.1f} % off, simulated ones {simulated_off:.1f}, in proportion {scaled_off:.1f}"
    yield f"intervals of 90 % hold {inside:.1f} %, half of one is {half:.0f} %"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grids", nargs="*", type=Path, metavar="GRID")
    parser.add_argument("--set", help="only this set")
    parser.add_argument("--stack", help="simulate all rows as this stack; default: each as its own")
    parser.add_argument("--least", type=int, default=4, help="plans of a job that ran")
    parser.add_argument("--scatter", type=float, default=0.0, help="standard deviation of ln(seconds) from run to run")
    parser.add_argument("--slow-first", type=float, default=1.0, help="factor on the first run of a loop")
    parser.add_argument("--small", type=int, default=0, help="small runs of --set that are told first")
    parser.add_argument("--beside", action="store_true", help="what one run tells of all other plans, no loops")
    given = parser.parse_args()
    given.page = page_of_small([row for row in published_rows() if row.text("set") == given.set], given.stack, given.small)
    begun = time.process_time()
    jobs = [replace(job, scatter=given.scatter, slow_first=given.slow_first) for job in jobs_of(given)]
    if not jobs:
        sys.exit(f"no job of these grids has {given.least} plans that ran")
    made = time.process_time()
    if given.beside:
        print(*beside_lines(jobs), sep="\n")
        return
    plans = np.mean([len(job.seconds) for job in jobs])
    stack = "of each row" if given.stack is None else given.stack or "not named"
    print(f"{len(jobs)} jobs, {plans:.0f} plans a job, stack {stack}. Regret in percent: mean / worst.\n")
    print(*loop_lines(jobs), "", stop_line(jobs), sep="\n")
    sys.stderr.write(f"CPU seconds: {made - begun:.1f} to simulate, {time.process_time() - made:.1f} to replay\n")


if __name__ == "__main__":
    main()
