"""Recorded jobs against their own traces: replay, the sweep at the recorded plan, subsets of ranks, moves to another plan.

    python -m benchmarks.jobs FOLDER [--hardware A800-80G-SXM] [--subsets 12] [--record]

FOLDER holds `jobs.csv` (job, gpus, tp, pp, ep, layers, micro_batch, micro_batches, step_ms: the measured step) and a folder
of rank traces for each job. Errors are relative to the measured step. A move simulates the plan of another job of the same
model (equal layers, experts, sequence, batch; or another sequence and number of experts) from all files of one job; its regret
is how much longer the plan that the sweep would pick takes than the best one, both as measured. Moves are also made from the
files of single ranks, of whole expert groups and, with --subsets, of ranks at random; what they say of the error bars of traces
is printed and, with --record, kept (sweep/uncertainty/data/traces.json). Exit code 1 if a bar of docs/traces.md is missed.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

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
    "moves": (4.0, 10.0),
    "moved, single ranks": (5.0, None),
    "resized, single ranks": (15.0, None),
    "regret": (None, 2.0),
    "subset beyond the worst rank": (None, ALIKE),
}
"""Percent: mean, greatest."""
OF_EXPERTS = ("replay, stages",)
"""Bars for jobs with experts only."""


Moves = dict[str, dict[str, list[float]]]
"""ln(measured / simulated) by kind of move and completeness of the files, and by job."""


@dataclass(frozen=True)
class Recorded:
    """A job with its measured step."""

    name: str
    folder: Path
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
        path = folder / row["job"]
        found.append(Recorded(row["job"], path, facts, batch, float(row["step_ms"]) / 1e3, read_traces(str(path), facts)))
    return found


def workload_of(job: Job) -> Workload:
    return workload_from_job(job, Facts())


def simulated_s(job: Job, device: Hardware, like: Job | None = None, *, loaded: bool = False, resized: bool = False) -> float:
    """The step of a job's traces, at its own plan or at that of the job `like`; `loaded` as its experts were, `resized` to its
    sequence and experts."""
    return step_s(workload_of(job), device, like or job, loaded=loaded, resized=resized)


def step_s(workload: Workload, device: Hardware, like: Job, *, loaded: bool = False, resized: bool = False) -> float:
    """The step of a workload at the plan of the job `like`."""
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
        raise SimError(found.named()["reason"][0])
    return float(found.named()["step_time_s"][0])


def of_ranks(recorded: Recorded, ranks: list[int], facts: Facts) -> Job:
    """The job with the files of some ranks only."""
    with TemporaryDirectory() as folder:
        for rank in recorded.job.ranks:
            if rank.rank in ranks:
                (Path(folder) / Path(rank.path).name).symlink_to(Path(rank.path).absolute())
        return read_traces(folder, facts)


def tried(made: object) -> float:
    """Seconds, NaN where refused."""
    try:
        return float(made())  # type: ignore[operator]
    except SimError as error:
        print(f"  refused: {error}", file=sys.stderr)
        return np.nan


def own_plan(job: Recorded, device: Hardware, subsets: int, errors: dict[str, list[float]]) -> None:
    one = of_ranks(job, [0], job.facts)
    columns = {
        "replay, stages": tried(lambda: replay(job.job).step_s),
        "replay, ranks": tried(lambda: replay(job.job, of_ranks=True).step_s),
        "replay, rank 0": tried(lambda: replay(one).step_s),
        "sweep, all files": tried(lambda: simulated_s(job.job, device)),
        "sweep, rank 0": tried(lambda: simulated_s(one, device)),
    }
    percent = {name: 100 * (found / job.step_s - 1) for name, found in columns.items()}
    for name, off in percent.items():
        errors[name].append(off)
    world = len(job.job.ranks)
    chance = random.Random(job.name)
    half = list(range(world // 2))
    several = [
        half,
        [r + world // 2 for r in half],
        *(sorted(chance.sample(range(world), k % (world - 2) + 2)) for k in range(subsets)),
    ]
    alone, some = (
        [abs(100 * (tried(lambda: simulated_s(of_ranks(job, ranks, job.facts), device)) / job.step_s - 1)) for ranks in each]  # noqa: B023
        for each in ([[r] for r in range(world)] if subsets else [], several if subsets else [])
    )
    line = "".join(f"{off:10.2f}" for off in percent.values())
    if subsets:
        worst, worst_some = np.nanmax(alone), np.nanmax(some)
        errors["subset beyond the worst rank"].append(max(worst_some - worst, 0.0))
        line += (
            f"   one rank {worst:6.2f}, {len(some)} subsets {worst_some:6.2f} {'' if worst_some <= worst + ALIKE else 'WORSE'}"
        )
    print(f"{job.name:24}{line}", flush=True)


def moves(jobs: list[Recorded], device: Hardware, errors: dict[str, list[float]]) -> None:
    models: dict[tuple[object, ...], list[Recorded]] = defaultdict(list)
    for job in jobs:
        models[job.model].append(job)
    for group in models.values():
        if len({job.plan for job in group}) < 2:
            continue
        for source in group:
            answers = {}
            for target in group:
                found_s = tried(lambda: simulated_s(source.job, device, target.job))  # noqa: B023
                answers[target.name] = found_s
                if target.plan != source.plan:
                    off = 100 * (found_s / target.step_s - 1)
                    errors["moves"].append(off)
                    loaded_s = tried(lambda: simulated_s(source.job, device, target.job, loaded=True))  # noqa: B023
                    errors["moves, load known"].append(100 * (loaded_s / target.step_s - 1))
                    stays = 100 * (source.step_s / target.step_s - 1)
                    errors["moves, naive"].append(stays)
                    print(f"{source.name} {source.plan} -> {target.plan}  {off:7.2f}   as it was {stays:7.2f}", flush=True)
            measured = {job.name: job.step_s for job in group}
            picked = min(answers, key=lambda name: answers[name])
            regret = 100 * (measured[picked] / min(measured.values()) - 1)
            errors["regret"].append(regret)
            print(f"{source.name} {source.plan} picks {picked}: regret {regret:.2f}")


def resizings(jobs: list[Recorded], device: Hardware, errors: dict[str, list[float]]) -> None:
    """Moves to another sequence or number of experts, among jobs with experts that are otherwise alike."""
    some = [job for job in jobs if job.job.has_experts]
    for source, target in itertools.permutations(some, 2):
        if source.resized == target.resized or source.alike != target.alike:
            continue
        for name, loaded in (("sequence and experts", False), ("sequence and experts, load known", True)):
            found_s = tried(lambda: simulated_s(source.job, device, target.job, loaded=loaded, resized=True))  # noqa: B023
            errors[name].append(100 * (found_s / target.step_s - 1))
        errors["sequence and experts, naive"].append(100 * (source.step_s / target.step_s - 1))
        print(f"{source.name} {source.resized} -> {target.name} {target.resized}  {errors[name][-1]:7.2f}", flush=True)


def some_ranks(job: Recorded, subsets: int) -> Iterator[tuple[str, list[int]]]:
    """Files of a job, by what they are: all, one whole expert group (of each stage, of one), single, at random."""
    layout = job.job.layout
    a_stage = layout.tp * layout.dp
    world = a_stage * layout.pp
    yield "all files", list(range(world))
    for first in range(0, layout.dp if layout.ep > 1 else 0, layout.ep):
        group = range(first * layout.tp, (first + layout.ep) * layout.tp)
        stages = [[stage * a_stage + rank for rank in group] for stage in range(layout.pp)]
        if layout.ep < layout.dp:
            yield "whole group of each stage", [rank for stage in stages for rank in stage]
        yield from (("whole group of one stage", stage) for stage in stages)
    yield from (("single ranks", [rank]) for rank in range(world))
    chance = random.Random(job.name)
    for number in range(subsets):
        yield "random ranks", sorted(chance.sample(range(world), number % (world - 2) + 2))


def partial_moves(jobs: list[Recorded], device: Hardware, errors: dict[str, list[float]], subsets: int) -> Moves:
    """Moves of jobs with experts from some files, and dense jobs at their own plan; their errors by what the files are."""
    found: Moves = defaultdict(lambda: defaultdict(list))
    for source in jobs:
        targets = [(kind, job) for job in jobs if (kind := _kind(source, job))]
        for what, ranks in some_ranks(source, subsets):
            workload = workload_of(replace(source.job, ranks=tuple(r for r in source.job.ranks if r.rank in ranks)))
            for kind, target in targets:
                ratio = step_s(workload, device, target.job, resized=kind == RESIZED) / target.step_s
                errors[f"{kind}, {what}"].append(100 * (ratio - 1))
                found[f"{kind}, {workload.files}"][source.name].append(-float(np.log(ratio)))
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
    moves(jobs, device, errors)
    resizings(jobs, device, errors)
    bars = {kind: fit_moves(of_jobs) for kind, of_jobs in partial_moves(jobs, device, errors, given.subsets).items()}
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
