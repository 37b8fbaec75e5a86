"""The program of a replay, collected operation by operation, and its run by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sim_core.engine.ranks import RankProgram, RankTimes, run_ranks
from sim_core.errors import SpecError

Reference = tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class Played:
    """One replayed operation, seconds from the start of the step; `row` names the rank or stage."""

    row: int
    stage: int
    name: str
    start_s: float
    end_s: float
    wait_s: float


@dataclass(kw_only=True)
class Builder:
    """Collects operations rank by rank; any key may name a communication."""

    first: list[int] = field(default_factory=lambda: [0])
    gap_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    first_part: list[int] = field(default_factory=lambda: [0])
    part: list[int] = field(default_factory=list)
    cost_s: list[float] = field(default_factory=list)
    number: dict[Reference, int] = field(default_factory=dict)
    told: list[tuple[int, int, str]] = field(default_factory=list)  # row, stage, name

    def add(self, row: int, stage: int, name: str, gap_s: float, work_s: float, parts: Mapping[Reference, float]) -> None:
        """One operation; `parts` are its communications, with their cost."""
        self.told.append((row, stage, name))
        self.gap_s.append(gap_s)
        self.work_s.append(work_s)
        for key, cost_s in parts.items():
            number = self.number.setdefault(key, len(self.cost_s))
            if number == len(self.cost_s):
                self.cost_s.append(cost_s)
            self.part.append(number)
        self.first_part.append(len(self.part))

    def end_of_rank(self) -> None:
        self.first.append(len(self.told))

    def run(self) -> tuple[Played, ...]:
        """Run the program. Raises SpecError if the ranks wait for each other in a cycle."""
        members = np.bincount(np.array(self.part, np.int64), minlength=len(self.cost_s)).astype(np.int64)
        program = RankProgram(
            first=np.array(self.first, np.int64),
            gap_s=np.array(self.gap_s, np.float64),
            work_s=np.array(self.work_s, np.float64),
            first_part=np.array(self.first_part, np.int64),
            part=np.array(self.part, np.int64),
            members=members,
            cost_s=np.array(self.cost_s, np.float64),
        )
        n = len(self.told)
        times = RankTimes(start_s=np.zeros(n), end_s=np.zeros(n), wait_s=np.zeros(n))
        stuck = run_ranks(program, times)
        if stuck >= 0:
            row, stage, name = self.told[stuck]
            raise SpecError(f"the recorded operations wait for each other in a cycle: {name} of rank {row} (stage {stage})")
        columns = zip(self.told, times.start_s.tolist(), times.end_s.tolist(), times.wait_s.tolist(), strict=True)
        return tuple(
            Played(row=row, stage=stage, name=name, start_s=start_s, end_s=end_s, wait_s=wait_s)
            for (row, stage, name), start_s, end_s, wait_s in columns
        )
