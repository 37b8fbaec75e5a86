"""What the bubble of a pipeline is made of: the schedule's own by its closed form, waiting for a fuller stage, the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sim_core import PARTS, HardwareTable, Plans, Workload, blocks_of, timeline

MOST_BLOCKS: Final = 200_000
"""Blocks of a step whose waits are taken apart, about a second; a bubble of more is told as a whole."""
WORK: Final = (
    *("compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s"),
    *("tp_exposed_s", "ep_exposed_s", "cp_exposed_s"),
)
"""Parts of the blocks of a stage."""
_FORMULA: Final = ("gpipe", "1f1b", "looped-bfs")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The bubble in seconds, means over the stages: `schedule_s` + `unequal_s` + `rest_s` is `bubble_s` of the row.

    `unequal_s`: what the stages wait more than the one that waits least, `fullest`, whose blocks take `more` of the mean
    longer. `schedule_s`: that one fills and drains through the others, (p-1)/(v m) of their mean work (Narayanan et al. 2021,
    arXiv 2104.04473, section 2.2); None for schedules without this closed form, `rest_s` then holds it. `rest_s`: what it
    waits beyond that: chunks of a stage are unequal, and messages arrive late.
    """

    schedule_s: float | None
    unequal_s: float
    rest_s: float
    fullest: int
    more: float


def waiting(row: Mapping[str, Any], workload: Workload, hardware: HardwareTable, plans: Plans) -> Waiting | None:
    """The bubble of a plan with a result taken apart; None without a pipeline, and where its blocks are not simulated."""
    if row["pp"] == 1 or row["fidelity"] != "event" or row["bubble_s"] <= 0 or blocks_of(plans) > MOST_BLOCKS:
        return None
    found = timeline(workload, hardware, plans)
    of_stage = np.zeros((found.stages, len(PARTS)))
    np.add.at(of_stage, found.spans.stage, found.spans.parts)
    return apart(
        of_stage[:, PARTS.index("bubble_s")],
        of_stage[:, [PARTS.index(name) for name in WORK]].sum(axis=1),
        own=(row["pp"] - 1) / (row["vpp"] * row["ga"]) if _has_formula(row) else None,
    )


def apart(bubble_s: npt.NDArray[np.float64], work_s: npt.NDArray[np.float64], *, own: float | None) -> Waiting:
    """The bubble of stages, [stages], with their work; `own`: that of even stages, as a part of the work of one."""
    fullest = int(np.argmin(bubble_s))
    least_s, mean_s = float(bubble_s[fullest]), float(work_s.mean())
    others_s = (float(work_s.sum()) - float(work_s[fullest])) / (len(work_s) - 1)
    schedule_s = None if own is None else min(own * others_s, least_s)
    return Waiting(
        schedule_s=schedule_s,
        unequal_s=float(bubble_s.mean()) - least_s,
        rest_s=least_s - (schedule_s or 0.0),
        fullest=fullest,
        more=float(work_s[fullest]) / mean_s - 1,
    )


def _has_formula(row: Mapping[str, Any]) -> bool:
    return row["schedule"] in _FORMULA and (row["schedule"] != "looped-bfs" or row["ga"] >= row["pp"])
