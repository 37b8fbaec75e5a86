"""Stage durations of a pipeline from what users have: Megatron-LM's timers in a log, a profiler's annotations."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sim_core import Floats, SpecError, StageDurations
from sweep.inputs.log import read_log
from sweep.inputs.logs.timers import ALL, LEAST_MOST, ONE, Timers, read_timers
from sweep.inputs.registry import LOG, is_trace, recognised
from sweep.inputs.told import Job
from sweep.inputs.traces.stages import stages_of_profiles

COMPUTE = ("forward-compute", "backward-compute")
FLAGS = "--timing-log-level 2 --timing-log-option all"


def read_stages(paths: Sequence[str], step_name: str | None = None) -> StageDurations:
    """Stage durations from a log, or from profiler traces of all stages. Raises FormatError, SpecError, OSError."""
    kind = None if is_trace(paths[0]) else recognised(paths[0])
    if kind is None:
        return stages_of_profiles(paths, step_name)
    if kind.kind != LOG or len(paths) > 1:
        raise SpecError(f"{paths[0]}: found {kind.name}; expected one log of Megatron-LM, or profiler traces of all stages")
    return stages_of_log(read_log(paths[0]))


def stages_of_log(log: Job) -> StageDurations:
    """Stage durations from the timers of a Megatron-LM log, whose plan and step are known. Raises SpecError, OSError."""
    timers, plan = read_timers(Path(log.path)), log.plan
    if timers is None or not all(name in timers.seconds and timers.seconds[name].max() > 0 for name in COMPUTE):
        raise SpecError(f"{log.path}: no timers of forward-compute and backward-compute in it; expected {FLAGS}")
    if log.refused:
        raise SpecError(f"{log.path}: the plan is not known: {log.refused}")
    names = ("all_gpus", "tp", "pp", "vpp", "dp", "cp", "micro_batch", "global_batch")
    if missing := [name for name in names if not isinstance(plan[name], int)]:
        raise SpecError(f"{log.path}: the log does not tell {', '.join(missing)}")
    gpus, tp, pp, vpp, dp, cp, micro_batch, batch = (plan[name] for name in names)
    if pp < 2 or log.step_time_s is None:
        raise SpecError(f"{log.path}: found {'pp 1' if pp < 2 else 'no steady step'}; expected a pipeline with steady steps")
    micro_batches, left = divmod(batch, micro_batch * dp)
    if left or not micro_batches:
        raise SpecError(
            f"{log.path}: global batch: found {batch}, expected a multiple of {micro_batch * dp} (micro-batch x dp)"
        )
    times, notes = _by_stage(log.path, timers, pp, vpp, gpus, micro_batches)
    forward_s, backward_s = (_chunks(blocks, vpp) for blocks in times / micro_batches)
    # what follows the pipeline: the step without `forward-backward`, else the last rank's own reductions and optimizer
    own = [timers.seconds.get(name) for name in ("backward-params-all-reduce", "optimizer")]
    after = sum(float(each.max()) for each in own if each is not None)
    if (pipeline := timers.seconds.get("forward-backward")) is not None:
        after = max(log.step_time_s - float(pipeline.max()), 0.0)
    layers = log.model.get("layers")
    if (inside := tp * cp) > 1:
        notes.append(f"what {inside} ranks of a stage tell one another is in its durations (tp {tp}, cp {cp})")
    return StageDurations(
        path=log.path,
        micro_batches=micro_batches,
        forward_s=forward_s,
        backward_s=backward_s,
        step_s=log.step_time_s,
        spread=log.spread or 0.0,
        steps=log.steps,
        after_s=after,
        layers=layers if isinstance(layers, int) and layers % (pp * vpp) == 0 else None,
        micro_batch=micro_batch,
        notes=(*notes, "timers of level 2 wait for the GPU at each start and stop: the step without them may be shorter"),
    )


def _by_stage(path: str, timers: Timers, pp: int, vpp: int, gpus: int, micro_batches: int) -> tuple[Floats, list[str]]:
    """Seconds of all forwards and of all backwards of a step by stage, [2, pp], and what was assumed. Raises SpecError."""
    both = [timers.seconds[name] for name in COMPUTE]
    if timers.form == ALL:
        if any(len(each) != gpus or not each.all() for each in both):
            raise SpecError(f"{path}: timers of {min(map(len, both))} ranks, expected {gpus}")
        return np.array([np.median(each.reshape(pp, -1), axis=1) for each in both]), []
    if timers.form == LEAST_MOST:
        times = np.array([[each[0]] * (pp - 1) + [each[1]] for each in both])
        return times, [
            "timers as least and most over ranks: the last stage is taken as the longest, the others as the shortest"
        ]
    received = timers.seconds.get("forward-recv")
    if timers.form != ONE or received is None or vpp > 1:
        raise SpecError(f"{path}: timers of {'one rank' if timers.form == ONE else 'the slowest rank alone'} do not tell the "
                        f"stages; expected {FLAGS}")  # fmt: skip
    last = np.array([float(each[0]) for each in both])
    share = min(float(received[0]) / (pp - 1) / (last[0] / micro_batches), 1.0)
    times = np.repeat(last[:, None] * share, pp, axis=1)
    times[:, -1] = last
    return times, [f"timers of the last rank alone: by its wait for the first micro-batch a forward of the stages before "
                   f"takes {share:.0%} of its own; their backwards are taken as the same share"]  # fmt: skip


def _chunks(blocks: Floats, vpp: int) -> Floats:
    """Seconds by stage and chunk; what the last stage has beyond the middle of the others is the head, in its last chunk."""
    head = max(float(blocks[-1] - np.median(blocks[:-1])), 0.0)
    equal = blocks.copy()
    equal[-1] -= head
    chunks = np.repeat(equal[:, None] / vpp, vpp, axis=1)
    chunks[-1, -1] += head
    return chunks
