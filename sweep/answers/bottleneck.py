"""What holds a plan back, named by rule, with what each change leaves of it; and what the bubble of a pipeline is made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim_core import PARTS, SCHEDULE_ROWS, SCHEDULES, SPAN_KINDS, Floats, Shape, blocks_of, plural, short, timeline
from sweep.answers.neighbours import of_plan
from sweep.answers.variation import STEP, PlanOfResult, Variation
from sweep.wording import Values

USEFUL = ("compute_forward_s", "compute_backward_s")
LEAST_SHARE = 0.05
"""A part below this share of the step is no bottleneck: then it is the compute itself."""
LEAST_GAIN = 0.001
MOST_CURES = 3
GROUPS_OF = {
    "tp_exposed_s": ("TP",),
    "ep_exposed_s": ("EP",),
    "cp_exposed_s": ("CP_A2A", "CP_RING"),
    "dp_exposed_s": ("DP", "DP_EP"),
}
MOST_BLOCKS = 200_000
"""Blocks of a step whose waits are taken apart, about a second; a bubble of more is told as a whole."""
WORK = (
    *("compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s"),
    *("tp_exposed_s", "ep_exposed_s", "cp_exposed_s"),
)
"""Parts of the blocks of a stage."""
_FORWARD, _WEIGHT_GRADIENT = SPAN_KINDS.index("forward"), SPAN_KINDS.index("weight gradient")


class Bottleneck(NamedTuple):
    """The part, its share of the step, the number that shows it, and the changes that make it smaller and the plan faster."""

    part: str
    share: float
    text: str
    cures: list[Variation]

    def left(self, change: Variation) -> float:
        """The part's share of the step under a change."""
        return float(change.after[self.part] / change.after[STEP])


def bottleneck(row: Values, shape: Shape, around: Sequence[Variation]) -> Bottleneck:
    """The bottleneck of a plan with a result."""
    step_s = row[STEP]
    part = max((name for name in PARTS if name not in USEFUL), key=lambda name: float(row[name]))
    share = row[part] / step_s
    cures = sorted((each for each in around if each.runs and each.gain() > LEAST_GAIN), key=lambda each: -each.gain())
    if share < LEAST_SHARE:
        useful = sum(row[name] for name in USEFUL) / step_s
        rate = "" if row["mfu"] is None else f", at {row['mfu'] / useful:.0%} of the peak while it runs"
        text = f"compute {useful:.0%} of the step{rate}; the largest other part, {words(part)}, is {share:.1%}"
        return Bottleneck("compute", useful, text, [each for each in cures if of_plan(each)][:MOST_CURES])
    text = f"{words(part)} {share:.0%} of the step{_shown(part, row, shape, around)}"
    return Bottleneck(part, share, text, [each for each in cures if each.after[part] / each.after[STEP] < share][:MOST_CURES])


def words(part: str) -> str:
    """A part of a step in words."""
    name = part.removesuffix("_s")
    if name.endswith("_exposed"):
        return f"exposed {name.removesuffix('_exposed').upper()} communication"
    named = {
        "bubble": "pipeline bubble",
        "launch": "launching kernels",
        "pp_queued": "pipeline messages that wait for each other",
    }
    return named.get(name, name.removeprefix("compute_"))


def _shown(part: str, row: Values, shape: Shape, around: Sequence[Variation]) -> str:
    """The number that shows a part, in words."""
    if part == "bubble_s":
        pp, vpp, ga = row["pp"], row["vpp"], row["ga"]
        if pp == 1:
            return ": waiting for the slowest rank"
        alone = f"; even stages alone would wait {(pp - 1) / (vpp * ga):.0%} of their work" if row["schedule"] == "1f1b" else ""
        chunks = f" of {vpp} chunks" if vpp > 1 else ""
        return f": {plural(ga, 'micro-batch')} on {pp} stages{chunks}{alone}"
    if part == "compute_recompute_s":
        without = [each for each in around if each.axis == "checkpointing" and each.after["checkpointing"] == "none"][:1]
        need = [short(each.after["peak_memory_bytes"] or 0.0, "B") for each in without if not each.runs]
        return f": checkpointing {row['checkpointing']}{''.join(f'; without it the plan needs {each}' for each in need)}"
    if part == "launch_s":
        return ": the host takes longer to launch a layer's kernels than the device to run them"
    if part == "pp_queued_s":
        return ": the NICs take longer for a message than a stage for a block; fewer chunks (vpp) send less"
    if part == "optimizer_s":
        return ": once a step; more micro-batches or GPUs that share it make it smaller"
    if part not in (*GROUPS_OF, "pp_exposed_s"):
        return ""
    total = row[part.replace("exposed", "total")] / row[STEP]
    hides = f" (of {total:.0%} with what compute hides)"
    switch = f"overlap_{'grad' if part.startswith('dp') else part[:2]}"
    overlap = f"; {switch} {'on' if row[switch] else 'off'}" if switch in row else ""
    if part == "pp_exposed_s":
        return hides + overlap
    groups = [group for group in shape.groups if group.name in GROUPS_OF[part] and group.ranks > 1]
    places = (f"{each.ranks} ranks {'in a node' if each.nodes == 1 else f'on {each.nodes} nodes'}" for each in groups)
    return f"{hides}: groups of {' and '.join(places)}{overlap}"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The bubble in seconds, means over the stages: `schedule_s` + `unequal_s` + `rest_s` is `bubble_s` of the row.

    `unequal_s`: what the stages wait more than the one that waits least, `fullest`, whose blocks take `more` of the mean
    longer. `schedule_s`: that one fills and drains through the others, `own` of their mean work by the closed form of the
    schedule; None where none holds, `rest_s` then holds it. `rest_s`: what it waits beyond that: chunks of a stage are unequal,
    and messages arrive late.
    """

    own: float | None
    schedule_s: float | None
    unequal_s: float
    rest_s: float
    fullest: int
    more: float


def waiting(plan: PlanOfResult) -> Waiting | None:
    """The bubble of a plan with a result taken apart; None without a pipeline, and where its blocks are not simulated."""
    row, plans = plan.row, plan.plans
    if row["pp"] == 1 or row["fidelity"] != "event" or row["bubble_s"] <= 0 or blocks_of(plans) > MOST_BLOCKS:
        return None
    step = timeline(plan.sweep.workload, plan.sweep.hardware, plans)
    of_stage, of_kind = np.zeros((step.stages, len(PARTS))), np.zeros((len(SPAN_KINDS), len(PARTS)))
    np.add.at(of_stage, step.spans.stage, step.spans.parts)
    np.add.at(of_kind, step.spans.kind, step.spans.parts)
    work = [PARTS.index(name) for name in WORK]
    own = own_part(row, of_kind[:, work].sum(axis=1))
    bubble_s, work_s = of_stage[:, PARTS.index("bubble_s")], of_stage[:, work].sum(axis=1)
    fullest = int(np.argmin(bubble_s))
    least_s, mean_s = float(bubble_s[fullest]), float(work_s.mean())
    others_s = (float(work_s.sum()) - float(work_s[fullest])) / (len(work_s) - 1)
    schedule_s = None if own is None else min(own * others_s, least_s)
    return Waiting(
        own=own,
        schedule_s=schedule_s,
        unequal_s=float(bubble_s.mean()) - least_s,
        rest_s=least_s - (schedule_s or 0.0),
        fullest=fullest,
        more=float(work_s[fullest]) / mean_s - 1,
    )


def own_part(row: Values, work_s: Floats) -> float | None:
    """The bubble of even stages as a part of the work of one, by the closed form of the ledger; None where none holds.

    `work_s`: seconds of all blocks by kind, [SPAN_KINDS].
    """
    schedule = SCHEDULE_ROWS[SCHEDULES.index(row["schedule"])]
    total_s = float(work_s.sum())
    forward, weights = float(work_s[_FORWARD]) / total_s, float(work_s[_WEIGHT_GRADIENT]) / total_s
    of_one = {"forward_s": forward, "input_s": 1 - forward - weights, "weight_s": weights}  # of all that one micro-batch is
    bubble = schedule.bubble_s(row["pp"], row["ga"], row["vpp"], **of_one)
    return None if bubble is None else bubble / int(row["ga"])
