"""Recorded jobs against their own traces: replay, the sweep at the recorded plan, subsets of ranks, moves to another plan.

    python -m benchmarks.jobs FOLDER [--hardware A800-80G-SXM] [--subsets 12] [--record]

FOLDER holds `jobs.csv` (job, gpus, tp, pp, ep, layers, micro_batch, micro_batches, step_ms: the measured step) and a folder
of rank traces for each job. Errors are relative to the measured step. A move simulates the plan of another job of the same
model (equal layers, experts, sequence, batch; or another sequence and number of experts) from all files of one job; its regret
is how much longer the plan that the sweep would pick takes than the best one, both as measured. Moves are also made from the
files of single ranks, of whole expert groups and, with --subsets, of ranks at random; what they say of the error bars of traces
is printed and, with --record, kept (sweep/uncertainty/data/traces.json). Exit code 1 if a bar of docs/traces.md is missed.
"""

import argparse
import csv
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from benchmarks.error_bars import fit_moves, record
from sim_core import (
    Facts,
    Hardware,
    Job,
    SimError,
    Workload,
    hardware_table,
    plans,
    read_hardware,
    read_traces,
    replay,
    simulate,
)
from sim_core.workloads.traces.workload import workload_from_job
from sweep.uncertainty.evidence import DENSE, MOVED, RECORDED_MOVES, RESIZED

ALIKE = 1e-6
"""Percent between errors that are the same."""
BARS = {
    "replay, stages": (0.3, None),
    "sweep, all files": (1.0, 3.0),
    "sweep, rank 0": (3.0, 10.0),
    "moved, all files": (4.0, 10.0),
    "moved, single ranks": (5.0, None),
    "resized, single ranks": (15.0, None),
    "regret": (None, 2.0),
    "subset beyond the worst rank": (None, ALIKE),
}
"""Percent: mean, greatest."""
ALL_FILES = "all files"
OF_EXPERTS = ("replay, stages",)
"""Bars for jobs with experts only."""


def refused(why: object) -> float:
    print(f"  refused: {why}", file=sys.stderr)
    return np.nan


def replayed_s(job: Job, *, of_ranks: bool = False) -> float:
    """Seconds of a replay, NaN where refused."""
    try:
        return replay(job, of_ranks=of_ranks).step_s
    except SimError as error:
        return refused(error)


Moves = dict[str, dict[str, list[float]]]
"""ln(measured / simulated) by kind of move and completeness of the files, and by job."""


class Recorded(NamedTuple):
    """A job with its measured step."""

    name: str
    facts: Facts
    batch: int
    step_s: float
    job: Job

    @property
    def model(self) -> tuple[object, ...]:
        layout = self.job.layout
        return layout.layers, layout.experts, self.job.sequence, self.batch, layout.tp * layout.pp * layout.dp, self.name[:3]

    @property
    def resized(self) -> tuple[object, ...]:
        return self.job.sequence, self.job.layout.experts

    @property
    def alike(self) -> tuple[object, ...]:
        return self.model[0], self.model[3], self.model[4]

    @property
    def plan(self) -> tuple[int, int]:
        return self.job.layout.pp, self.job.layout.ep


def recorded_jobs(folder: Path) -> list[Recorded]:
    found = []
    for row in csv.DictReader((folder / "jobs.csv").open(encoding="utf-8")):
        facts = Facts(layers=int(row["layers"]))
        batch = int(row["gpus"]) // int(row["tp"]) // int(row["pp"]) * int(row["micro_batch"]) * int(row["micro_batches"])
        job = read_traces(str(folder / row["job"]), facts)
        found.append(Recorded(row["job"], facts, batch, float(row["step_ms"]) / 1e3, job))
    return found


def workload_of(job: Job) -> Workload:
    return workload_from_job(job, Facts())


def step_s(workload: Workload, device: Hardware, like: Job, *, loaded: bool = False, resized: bool = False) -> float:
    """The step of a workload at the plan of the job `like`; `loaded` as its experts were, `resized` to its sequence and
    experts. Seconds, NaN where refused."""
    at = like.layout
    names = ("tp", "pp", "vpp", "ep", "ga", "micro_batch")
    plan = {name: getattr(at, name) for name in names} | {"all_gpus": at.tp * at.pp * at.dp}
    if resized:
        plan |= {"sequence": like.sequence, "experts": at.experts or 0}
    if loaded and workload.has_experts:
        plan["expert_imbalance"] = workload_of(like).arrays.recorded_load
    extra = {"overlap_pp": int(at.vpp > 1), **{key: int(value) for key, value in workload.recorded_fields.items()}}
    table = hardware_table([device.with_values({"memory": "10 TB"})], device)
    columns = plans(workload, **plan, **extra)
    found = simulate(workload, table, columns)
    if found.reason[0]:
        return refused(found.named()["reason"][0])
    return float(found.named()["step_time_s"][0])


def of_ranks(recorded: Recorded, ranks: list[int], facts: Facts) -> Job:
    """The job with the files of some ranks only."""
    with TemporaryDirectory() as folder:
        for rank in recorded.job.ranks:
            if rank.rank in ranks:
                (Path(folder) / Path(rank.path).name).symlink_to(Path(rank.path).absolute())
        return read_traces(folder, facts)


def own_plan(job: Recorded, device: Hardware, subsets: int, errors: dict[str, list[float]]) -> None:
    one = of_ranks(job, [0], job.facts)
    columns = {
        "replay, stages": replayed_s(job.job),
        "replay, ranks": replayed_s(job.job, of_ranks=True),
        "replay, rank 0": replayed_s(one),
        "sweep, all files": step_s(workload_of(job.job), device, job.job),
        "sweep, rank 0": step_s(workload_of(one), device, one),
    }
    percent = {name: 100 * (found / job.step_s - 1) for name, found in columns.items()}
    for name, off in percent.items():
        errors[name].append(off)
    world = len(job.job.ranks)
    half = list(range(world // 2))
    several = [half, [r + world // 2 for r in half], *drawn(job, world, subsets)]
    line = "".join(f"{off:10.2f}" for off in percent.values())
    if subsets:
        alone, some = (
            [
                abs(100 * (step_s(workload_of(part), device, part) / job.step_s - 1))
                for part in (of_ranks(job, ranks, job.facts) for ranks in each)
            ]
            for each in ([[r] for r in range(world)], several)
        )
        worst, worst_some = np.nanmax(alone), np.nanmax(some)
        errors["subset beyond the worst rank"].append(max(worst_some - worst, 0.0))
        line += (
            f"   one rank {worst:6.2f}, {len(some)} subsets {worst_some:6.2f} {'' if worst_some <= worst + ALIKE else 'WORSE'}"
        )
    print(f"{job.name:24}{line}", flush=True)


def some_ranks(job: Recorded, subsets: int) -> Iterator[tuple[str, list[int]]]:
    """Files of a job, by what they are: all, one whole expert group (of each stage, of one), single, at random."""
    layout = job.job.layout
    a_stage = layout.tp * layout.dp
    world = a_stage * layout.pp
    yield ALL_FILES, list(range(world))
    for first in range(0, layout.dp if layout.ep > 1 else 0, layout.ep):
        group = range(first * layout.tp, (first + layout.ep) * layout.tp)
        stages = [[stage * a_stage + rank for rank in group] for stage in range(layout.pp)]
        if layout.ep < layout.dp:
            yield "whole group of each stage", [rank for stage in stages for rank in stage]
        yield from (("whole group of one stage", stage) for stage in stages)
    yield from (("single ranks", [rank]) for rank in range(world))
    yield from (("random ranks", ranks) for ranks in drawn(job, world, subsets))


def drawn(job: Recorded, world: int, subsets: int) -> list[list[int]]:
    """Random subsets of a job's ranks, the same each time."""
    chance = random.Random(job.name)
    return [sorted(chance.sample(range(world), number % (world - 2) + 2)) for number in range(subsets)]


def moves(jobs: list[Recorded], device: Hardware, errors: dict[str, list[float]], subsets: int) -> Moves:
    """Moves of jobs with experts, and dense jobs at their own plan, from all files and from some; errors by what these are."""
    found: Moves = defaultdict(lambda: defaultdict(list))
    for source in jobs:
        targets = [(kind, job) for job in jobs if (kind := _kind(source, job))]
        for what, ranks in some_ranks(source, subsets):
            workload = workload_of(source.job._replace(ranks=tuple(r for r in source.job.ranks if r.rank in ranks)))
            for kind, target in targets:
                ratio = step_s(workload, device, target.job, resized=kind == RESIZED) / target.step_s
                errors[f"{kind}, {what}"].append(100 * (ratio - 1))
                found[f"{kind}, {workload.files}"][source.name].append(-float(np.log(ratio)))
                if what == ALL_FILES and kind != DENSE:
                    known_s = step_s(workload, device, target.job, loaded=True, resized=kind == RESIZED)
                    errors[f"{kind}, load known"].append(100 * (known_s / target.step_s - 1))
                    errors[f"{kind}, naive"].append(100 * (source.step_s / target.step_s - 1))
                    told = f"{100 * (ratio - 1):7.2f}   as it was {errors[f'{kind}, naive'][-1]:7.2f}"
                    print(f"{source.name} {source.plan} -> {target.name} {target.plan}  {kind} {told}", flush=True)
        picks(source, [job for job in jobs if job.model == source.model], device, errors)
    return found


def picks(source: Recorded, group: list[Recorded], device: Hardware, errors: dict[str, list[float]]) -> None:
    """The regret of the plan that the sweep of one job would pick of those that jobs of its model ran with."""
    if len({job.plan for job in group}) > 1:
        workload = workload_of(source.job)
        picked = min(group, key=lambda job: step_s(workload, device, job.job))
        errors["regret"].append(100 * (picked.step_s / min(job.step_s for job in group) - 1))
        print(f"{source.name} {source.plan} picks {picked.name}: regret {errors['regret'][-1]:.2f}", flush=True)


def _kind(source: Recorded, target: Recorded) -> str:
    """What a step of one job says of that of another; "": nothing."""
    if not source.job.has_experts:
        return DENSE if source is target else ""
    if target.model == source.model:
        return MOVED if target.plan != source.plan else ""
    return RESIZED if target.resized != source.resized and target.alike == source.alike else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hardware", default="A800-80G-SXM")
    parser.add_argument("--subsets", type=int, default=0, help="random subsets of ranks of each job; 0: none")
    parser.add_argument("--record", action="store_true", help="keep the error bars of traces")
    given = parser.parse_args()
    device = read_hardware(given.hardware)
    jobs = recorded_jobs(given.folder)
    errors: dict[str, list[float]] = defaultdict(list)
    print(f"{'percent of the step':24}" + "".join(f"{n:>10}" for n in ("stages", "ranks", "rank 0", "sweep", "sweep 0")))
    for job in jobs:
        own_plan(job, device, given.subsets, errors)
    bars = {kind: fit_moves(of_jobs) for kind, of_jobs in moves(jobs, device, errors, given.subsets).items()}
    for kind, bar in bars.items():
        print(f"error bar, {kind}: {bar}")
    if given.record:
        record(RECORDED_MOVES, {name: asdict(bars[name]) for name in sorted(bars)})
    missed = False
    for name, found in errors.items():
        sizes = np.abs(found)
        if name in OF_EXPERTS:
            sizes = np.array([size for size, job in zip(sizes, jobs, strict=True) if job.job.has_experts])
        mean, most = BARS.get(name, (None, None))
        late = (mean is not None and not fmean(sizes) <= mean) or (most is not None and not max(sizes) <= most)
        missed |= late
        print(f"{name:28} mean {np.mean(sizes):6.2f}  greatest {np.max(sizes):6.2f} {'MISSED' if late else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
