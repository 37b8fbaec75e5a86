"""Forwards and backwards of a pipeline's stages in profiler traces: by annotations, or by the functions that run them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sim_core import Fields, SpecError, StageDurations, Values, durations_of
from sweep.inputs.traces.events import Events
from sweep.inputs.traces.kinds import Kind
from sweep.inputs.traces.profile import recordings

_NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:PP:)?\d{1,5}(?P<phase>[FB])\d{1,6}",  # torch.distributed.pipelining
        r"(?P<phase>Forward|Backward) \d{1,6}",  # its schedules of one stage a rank
        r"\S*pipeline_parallel/schedules\.py\(\d+\): (?P<phase>forward|backward)_step",  # Megatron-Core, with_stack
        r"\S*pipelining/stage\.py\(\d+\): (?P<phase>forward|backward)_one_chunk",
        r"(?P<phase>forward|fwd|backward|bwd)(?:[ _-]?step)?"
        r"(?:[ _:,-]*(?:stage|mb|micro[ _-]?batch|chunk|vpp)?[ _:=-]*\d{1,6})*",
    )
)
"""Names of a forward or a backward of one micro-batch on one stage; the first row of which a file has both counts."""
_HALVES = re.compile(r"(?:PP:)?\d{1,5}[IW]\d{1,6}")
HOW = 'record_function("forward mb 0"), "backward mb 0" and so on around each'


class _Block(NamedTuple):
    """One forward or backward on the GPU, in microseconds."""

    step: int
    phase: str
    start_us: float
    end_us: float


class _Stage(NamedTuple):
    """What a rank tells of its stage."""

    pipeline: tuple[int, ...]  # ranks of its pipeline; empty where the file does not tell
    blocks: list[_Block]
    period_s: float | None


def stages_of_profiles(paths: Sequence[str], step_name: str | None = None) -> StageDurations:
    """Stage durations from the traces of all stages. Raises FormatError, SpecError, OSError."""
    found: dict[int, _Stage] = {}
    for path in paths:
        for rank, events in recordings(path, step_name=step_name):
            number = len(found) if rank.rank is None else rank.rank
            named = _named(events)
            blocks = _on_device(events, named) if len(events.gpu.us) else [
                _Block(_step_of(events, start), phase, start, start + duration) for phase, start, duration in named
            ]  # fmt: skip
            if number in found:
                raise SpecError(f"{path}: found rank {number} twice")
            of_pp = next((group.ranks for group in rank.place.groups if group.role == "pp"), ())
            found[number] = _Stage(of_pp, blocks, rank.period_s)
    pipeline, notes = _pipeline(paths[0], found)
    steps = sorted(set.intersection(*({block.step for block in stage.blocks} for stage in pipeline)))
    ranks = {number: {step: _times(stage.blocks, step) for step in steps} for number, stage in enumerate(pipeline)}
    recorded = durations_of(paths[0], ranks, steps)
    after = max(max([stage.period_s for stage in pipeline if stage.period_s is not None], default=0.0) - recorded.step_s, 0.0)
    if not after:
        notes.append("what follows the pipeline in a step is not known: one step, or none marked")
    return recorded._replace(after_s=after, step_s=recorded.step_s + after, notes=tuple(notes))


def _pipeline(path: str, found: Mapping[int, _Stage]) -> tuple[list[_Stage], list[str]]:
    """The stages of one pipeline in order: the first that is complete; of files that name no groups, all ranks."""
    stated = sorted({stage.pipeline for stage in found.values() if stage.pipeline})
    whole = [ranks for ranks in stated if set(ranks) <= set(found)]
    if stated and not whole:
        lacking = sorted(set(stated[0]) - set(found))
        raise SpecError(f"{path}: found no trace of rank {', '.join(map(str, lacking[:8]))}: the stages of one pipeline are "
                        f"ranks {', '.join(map(str, stated[0][:16]))}")  # fmt: skip
    if stated:
        return [found[rank] for rank in whole[0]], [f"one pipeline of {len(whole)} in the files"] if len(whole) > 1 else []
    if len(found) < 2:
        raise SpecError(f"{path}: found one rank and no group of a pipeline; expected the traces of all its stages")
    return [found[rank] for rank in sorted(found)], ["no group of a pipeline in the files: each rank is taken as a stage"]


def _named(events: Events) -> list[tuple[str, float, float]]:
    """Forwards and backwards on the host: phase, start, duration. Raises SpecError where a file has none."""
    for pattern in _NAMES:
        matches = ((pattern.fullmatch(name), start, duration) for name, start, duration, _ in events.annotations)
        named = sorted((start, match["phase"][0].lower(), duration) for match, start, duration in matches if match)
        if {phase for _, phase, _ in named} == {"f", "b"}:
            return [(phase, start, duration) for start, phase, duration in named]
    if any(_HALVES.fullmatch(name) for name, *_ in events.annotations):
        raise SpecError(f"{events.name}: its backwards are halved (zero bubble); expected whole ones")
    raise SpecError(f"{events.name}: no forwards and backwards are named in it; expected {HOW}")


def _step_of(events: Events, start: float) -> int:
    """The step that the host was in; 0 outside of all."""
    return next((number for number, begin, duration in events.steps if begin <= start <= begin + duration), 0)


def _on_device(events: Events, named: Iterable[tuple[str, float, float]]) -> list[_Block]:
    """Each block by what was launched in it, from the first start to the last end; messages are no part of it."""
    taken = np.flatnonzero(events.linked & (events.kind != Kind.COMMUNICATION))
    launched = events.host.us[events.launch[taken]]
    order = np.argsort(launched, kind="stable")
    rows = taken[order]
    launched, begin = launched[order], events.gpu.us[rows]
    end = begin + events.gpu.dur_us[rows]
    blocks = []
    for phase, start, duration in named:
        low, high = np.searchsorted(launched, (start, start + duration))
        if low < high:
            at = float(begin[low:high].min()), float(end[low:high].max())
            blocks.append(_Block(_step_of(events, start), phase, *at))
    return blocks


def _times(blocks: Sequence[_Block], step: int) -> Values:
    """A step as Primus dumps it, in milliseconds."""
    every = [block for block in blocks if block.step == step]
    begin, end = min(block.start_us for block in every), max(block.end_us for block in every)
    times: Fields = {"total": (end - begin) * 1e-3}
    for phase, name in (("f", "fwd"), ("b", "bwd")):
        of_phase = sorted((block.start_us, block.end_us) for block in every if block.phase == phase)
        times[f"{name}_start"] = [(start - begin) * 1e-3 for start, _ in of_phase]
        times[f"{name}_end"] = [(last - begin) * 1e-3 for _, last in of_phase]
    return times
