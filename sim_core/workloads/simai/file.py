"""A SimAI text as its checks see it: sections, sizes, and how often a step runs each record."""

from typing import NamedTuple

import numpy as np

from sim_core.units import NS
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.header import Header
from sim_core.workloads.simai.parameters import read_sizes
from sim_core.workloads.simai.sections import Sections, sections_of
from sim_core.workloads.simai.sizes import Sizes
from sim_core.workloads.simai.text import Record, SimaiText

Runs = list[tuple[Record, float]]
"""Records, each with its runs in a step."""


class File(NamedTuple):
    """A text and its numbers. `runs[k]`: how often the micro-batches of a step run distinct record k on a stage."""

    sections: Sections
    header: Header
    sizes: Sizes
    tokens: int | None  # of a micro-batch, as the user gives them
    runs: list[float]
    compute_s: float  # of all records in a step

    def named(self, *starts: str) -> Runs:
        """The records of the micro-batches whose names begin so."""
        pairs = zip(self.sections.text.records, self.runs, strict=True)
        return [(record, n) for record, n in pairs if n and record.name.startswith(starts)]

    def step(self, name: str) -> Record | None:
        """The once-per-step record of that name."""
        return next((record for record in self.sections.once if record.name == name), None)


def file_of(text: SimaiText, facts: Facts, warnings: list[str] | None = None) -> File:
    """A text as the checks see it; `warnings` takes doubts about its sections. Raises FormatError."""
    sections = sections_of(text, [] if warnings is None else warnings)
    tokens = facts.sequence * facts.micro_batch if facts.sequence and facts.micro_batch else None
    lines = sections.repetitions.ravel(), np.array([*sections.before, *sections.after], np.int64)
    counts, once = (np.bincount(text.order[of], minlength=len(text.records)).astype(np.float64) for of in lines)
    runs = counts * (text.header.ga / len(sections.repetitions))
    compute_ns = np.array([float(sum(r.compute_ns)) for r in text.records])
    compute_s = float((compute_ns * (runs + once)).sum()) * NS
    return File(sections, text.header, read_sizes(sections, facts), tokens, runs.tolist(), compute_s)
