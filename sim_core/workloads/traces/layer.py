"""What a layer of a job takes, and what its first and last stage do besides their layers."""

from __future__ import annotations

from collections import Counter
from statistics import fmean
from typing import Final

from sim_core.units import short
from sim_core.workloads.traces.job import Job, Operation
from sim_core.workloads.traces.stage import BLOCKS, Phases, Stages, block_s

LIGHTER: Final = 0.02
"""Part of a block by which an end stage may be faster than the inner ones without a note."""

UNEVEN: Final = 1.5
"""Times between the calls of the first layer and those of the last that differ by more are not those of equal layers."""


def split(job: Job, stages: Stages, inside_s: Phases, a_block: float, notes: list[str]) -> tuple[Phases, Phases, Phases]:
    """Compute of an inner stage's block, and the extra compute per micro-batch of the first and the last stage.

    Idle gaps count as compute. `inside_s` is the seconds of collectives, whose cost is computed separately. Without an inner
    stage, the time from layer to layer inside the blocks says what is a layer's; else what the ends have in common is.
    """
    ga, vpp = job.layout.ga, job.layout.vpp
    blocks = ga * vpp
    own: list[Phases] = []
    gaps: list[float] = []
    for stage in stages.stages:
        gaps.append(sum(step.gap_s for step in stage.steps if step.parts) / (2 * blocks))
        forward_s, backward_s = block_s(stage)
        own.append((max(forward_s - inside_s[0] + gaps[-1], 0.0), max(backward_s - inside_s[1] + gaps[-1], 0.0)))
    last = len(own) - 1
    inner = [s for s in range(1, last) if not stages.stages[s].inferred]
    if inner:
        layer_s = fmean(own[s][0] for s in inner), fmean(own[s][1] for s in inner)
    else:
        layer_s = min(own[0][0], own[last][0]), min(own[0][1], own[last][1])
        paces = [_pace_s(job, name, a_block) for name in BLOCKS]
        if last > 0 and None not in paces:
            paced = [max(pace * a_block - s + min(gaps), 0.0) for pace, s in zip(paces, inside_s, strict=True)]  # type: ignore[operator]
            layer_s = min(layer_s[0], paced[0]), min(layer_s[1], paced[1])
    ends = []
    for s in (0, last):
        extra = (max(own[s][0] - layer_s[0], 0.0) * vpp, max(own[s][1] - layer_s[1], 0.0) * vpp)
        lighter_s = (sum(layer_s) - sum(own[s])) * vpp
        if last > 0 and not sum(extra) and lighter_s > LIGHTER * sum(layer_s) * vpp:
            notes.append(
                f"stage {s} is {short(lighter_s, 's')} per micro-batch faster than the inner stages: taken as equal to them"
            )
        ends.append(extra if last > 0 else (0.0, 0.0))
    return layer_s, ends[0], ends[1]


def _pace_s(job: Job, name: str, a_block: float) -> float | None:
    """Seconds from layer to layer inside the blocks of this name: from the end of a call to that of the same call of the last
    layer. None where no kind of call is made equally often by each of several layers."""
    layers = round(a_block)
    if layers < 2 or layers != a_block:
        return None
    paces = [pace for rank in job.ranks for operation in rank.named(name) if (pace := _pace_of(operation, layers)) is not None]
    return fmean(paces) if paces else None


def _pace_of(operation: Operation, layers: int) -> float | None:
    """Every layer makes the same calls, at least two: each of them says how far it is from the first layer to the last."""
    counts = Counter((call.group, call.name) for call in operation.calls if call.group in ("exp", "tp"))
    regular = [kind for kind, count in counts.most_common() if count % layers == 0 and count // layers > 1]
    if not regular:
        return None
    ends = [call.begin_s + call.duration_s for call in operation.calls if (call.group, call.name) == regular[0]]
    of_layer = len(ends) // layers
    spans = [last - first for first, last in zip(ends[:of_layer], ends[-of_layer:], strict=True)]
    return spans[0] / (layers - 1) if max(spans) <= UNEVEN * min(spans) else None
