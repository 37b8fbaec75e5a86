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
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
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
    "replay, stages": (0.3, np.inf),
    "sweep, all files": (1.0, 3.0),
    "sweep, rank 0": (3.0, 10.0),
    "moved, all files": (4.0, 10.0),
    "moved, single ranks": (5.0, np.inf),
    "resized, single ranks": (15.0, np.inf),
    "regret": (np.inf, 2.0),
    "subset beyond the worst rank": (np.inf, ALIKE),
}
"""Percent: mean, greatest."""
ALL_FILES = "all files"


class Recorded(NamedTuple):
    """A job with its measured step."""

    name: str
    facts: Facts
    batch: int
    step_s: float
    job: Job

    @property
    def alike(self) -> tuple[object, ...]:
        layout = self.job.layout
        return layout.layers, self.batch, layout.tp * layout.pp * layout.dp

    @property
    def resized(self) -> tuple[object, ...]:
        return self.job.sequence, self.job.layout.experts

    @property
    def model(self) -> tuple[object, ...]:
        return *self.alike, *self.resized, self.name[:3]

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


def refused(why: object) -> float:
    print(f"  refused: {why}", file=sys.stderr)
    return np.nan


def replayed_s(job: Job, *, of_ranks: bool = False) -> float:
    """Seconds of a replay, NaN where refused."""
    try:
        return replay(job, of_ranks=of_ranks).step_s
    except SimError as error:
        return refused(error)


def workload_of(job: Job) -> Workload:
    return workload_from_job(job, Facts())


def step_s(workload: Workload, device: Hardware, like: Job, *, loaded: bool = False, resized: bool = False) -> float:
    """The step of a workload at the plan of the job `like`; `loaded` as its experts were, `resized` to its sequence and
    experts. Seconds, NaN where refused."""
    at = like.layout
    plan = {name: getattr(at, name) for name in ("tp", "pp", "vpp", "ep", "ga", "micro_batch")}
    plan |= {"all_gpus": at.tp * at.pp * at.dp, "overlap_pp": int(at.vpp > 1)}
    if resized:
        plan |= {"sequence": like.sequence, "experts": at.experts or 0}
    if loaded and workload.has_experts:
        plan["expert_imbalance"] = workload_of(like).arrays.recorded_load
    plan |= {key: int(value) for key, value in workload.recorded_fields.items()}
    table = hardware_table([device.with_values({"memory": "10 TB"})], device)
    found = simulate(workload, table, plans(workload, **plan)).named()
    return refused(found["reason"][0]) if found["reason"][0] else float(found["step_time_s"][0])


def of_ranks(recorded: Recorded, ranks: Sequence[int]) -> Job:
    """The job with the files of some ranks only."""
    with TemporaryDirectory() as folder:
        for rank in recorded.job.ranks:
            if rank.rank in ranks:
                (Path(folder) / Path(rank.path).name).symlink_to(Path(rank.path).absolute())
        return read_traces(folder, recorded.facts)


def own_plan(job: Recorded, device: Hardware, subsets: int, errors: dict[str, list[float]]) -> None:
    def swept_s(part: Job) -> float:
        return step_s(workload_of(part), device, part)

    def off(seconds: float) -> float:
        return 100 * (seconds / job.step_s - 1)

    one, world = of_ranks(job, [0]), len(job.job.ranks)
    seconds = {
        "replay, stages": replayed_s(job.job), "replay, ranks": replayed_s(job.job, of_ranks=True),
        "replay, rank 0": replayed_s(one), "sweep, all files": swept_s(job.job), "sweep, rank 0": swept_s(one),
    }  # fmt: skip
    for name, found in seconds.items():
        errors[name].append(off(found))
    line = "".join(f"{off(found):10.2f}" for found in seconds.values())
    if subsets:
        halves = range(world // 2), range(world // 2, world // 2 * 2)
        alone, some = [[rank] for rank in range(world)], [*halves, *drawn(job, world, subsets)]
        worst, worst_some = (np.nanmax([abs(off(swept_s(of_ranks(job, ranks)))) for ranks in each]) for each in (alone, some))
        errors["subset beyond the worst rank"].append(max(worst_some - worst, 0.0))
        worse = "" if worst_some <= worst + ALIKE else "WORSE"
        line += f"   one rank {worst:6.2f}, {len(some)} subsets {worst_some:6.2f} {worse}"
    print(f"{job.name:24}{line}", flush=True)


def some_ranks(job: Recorded, subsets: int) -> Iterator[tuple[str, list[int]]]:
    """Files of a job, by what they are: all, one whole expert group (of each stage, of one), single, at random."""
    layout, world = job.job.layout, len(job.job.ranks)
    a_stage = layout.tp * layout.dp
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


def moves(
    jobs: list[Recorded], device: Hardware, errors: dict[str, list[float]], subsets: int
) -> dict[str, dict[str, list[float]]]:
    """Moves of jobs with experts, and dense jobs at their own plan, from all files and from some; errors by what these are.

    Returns ln(measured / simulated) by kind of move and completeness of the files, and by job."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
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
        group = [job for job in jobs if job.model == source.model]
        if len({job.plan for job in group}) > 1:  # of those that jobs of its model ran with, it would pick one
            whole = workload_of(source.job)
            picked = min(group, key=lambda job: step_s(whole, device, job.job))
            errors["regret"].append(100 * (picked.step_s / min(job.step_s for job in group) - 1))
            print(f"{source.name} {source.plan} picks {picked.name}: regret {errors['regret'][-1]:.2f}", flush=True)
    return found


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
        if name == "replay, stages":  # its bar is for jobs with experts
            sizes = sizes[[job.job.has_experts for job in jobs]]
        told = np.mean(sizes), np.max(sizes)
        late = any(not each <= bar for each, bar in zip(told, BARS.get(name, ()), strict=False))
        missed |= late
        print(f"{name:28} mean {told[0]:6.2f}  greatest {told[1]:6.2f} {'MISSED' if late else ''}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
