"""Megatron-LM's timers in a log: what a step's forwards and backwards take on one rank, over ranks, or on every rank."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sim_core import Floats
from sweep.inputs.text import plain, raw_lines

WANTED = (
    "forward-backward", "forward-compute", "backward-compute", "forward-recv", "optimizer", "backward-params-all-reduce",
)  # fmt: skip
_HEADING = re.compile(r"(\(min, max\) |max |\b)times? across ranks \(ms\):")
_ONE_RANK = "time (ms) |"
_OF_RANK = re.compile(r"([a-z][\w/-]*): (\d{1,12}(?:\.\d{1,9})?)(?=\s|$)")
_OVER_RANKS = re.compile(r"([a-z][\w/-]*) \.*: (?:\((\d{1,12}\.\d{1,9}), )?(\d{1,12}\.\d{1,9})\)?\s*$")
_TIMER = re.compile(r"(?:^|\s)([a-z][\w/-]*):\s*$")
_RANK = re.compile(r"\brank\s+(\d{1,7}): (\d{1,12}\.\d{1,9})\s*$")
ONE, LEAST_MOST, MOST, ALL = "one rank", "min and max", "max", "all ranks"
_FORMS = {"(min, max) ": LEAST_MOST, "max ": MOST, "": ALL}


class Timers(NamedTuple):
    """Seconds of a step by timer: of one rank, [least, most] over ranks, [most], or of each rank (0: not printed)."""

    form: str
    seconds: Mapping[str, Floats]


class _Lines:
    """Timers line by line; each printing of one is a list of values."""

    def __init__(self) -> None:
        self.form, self.name = "", ""
        self.printed: dict[str, list[list[float]]] = {}

    def take(self, line: str) -> None:
        if heading := _HEADING.search(line):
            self.form, self.name = _FORMS[heading[1]], ""
        elif _ONE_RANK in line:
            for name, value in _OF_RANK.findall(line):
                self._add(ONE, name, [float(value)])
        elif self.form == ALL and (rank := _RANK.search(line)):
            if self.name and int(rank[1]) < 2**20:
                values = self.printed[self.name][-1]
                values += [0.0] * (int(rank[1]) + 1 - len(values))
                values[int(rank[1])] = float(rank[2])
        elif self.form == ALL and (timer := _TIMER.search(line)):
            self.name = timer[1] if timer[1] in WANTED else ""
            if self.name:
                self.printed.setdefault(self.name, []).append([])
        elif self.form in (LEAST_MOST, MOST) and (over := _OVER_RANKS.search(line)):
            self._add(self.form, over[1], [float(value) for value in over.groups()[1:] if value])

    def _add(self, form: str, name: str, values: list[float]) -> None:
        if name in WANTED:
            self.form = form
            self.printed.setdefault(name, []).append(values)


def read_timers(path: Path) -> Timers | None:
    """The steady timers of a log: the middle of all that were printed but the first; None where none was. Raises as readers of
    text do."""
    lines = _Lines()
    for raw in raw_lines(path):
        if b" (ms)" in raw or (lines.form and (b": " in raw or raw.rstrip().endswith(b":"))):
            lines.take(plain(raw))
    seconds = {}
    for name, printed in lines.printed.items():
        steady = printed[1:] or printed
        most = max(map(len, steady))
        seconds[name] = np.median([values + [0.0] * (most - len(values)) for values in steady], axis=0) * 1e-3
    return Timers(lines.form, seconds) if seconds else None
