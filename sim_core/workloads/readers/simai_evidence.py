"""A SimAI text as its checks see it: records with their runs in a step, and bounds on the time that work takes."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sim_core.units import NS, short
from sim_core.workloads.check import Check
from sim_core.workloads.readers.simai_facts import Given
from sim_core.workloads.readers.simai_model import Sizes, sizes_of
from sim_core.workloads.readers.simai_sections import Sections, sections_of
from sim_core.workloads.readers.simai_text import Record, SimaiText
from sim_core.workloads.workload import Floats

MEMORY_BANDWIDTH: Final = 1.555e12
"""Bytes/s, for the time that memory traffic takes: A100-40GB (NVIDIA A100 data sheet); newer devices are faster."""
NVLINK_BANDWIDTH: Final = 300e9
"""Bytes/s and direction, for the time of an all-reduce on TP: A100 (the same data sheet)."""
LOOKUP_PASSES: Final = 5
"""Activations that an embedding moves: reads words and positions, writes the sum, transposes it (a read and a write)."""
KERNEL_S: Final = 5e-6
"""What the shortest kernel takes with its launch."""
ADAM_BYTES: Final = 30
"""Bytes that Adam moves per parameter: fp32 gradient in; fp32 weight and two moments in and out; bf16 weight out."""


class File(NamedTuple):
    """A text and its numbers. `runs[k]`: how often the micro-batches of a step run distinct record k on a stage."""

    text: SimaiText
    sections: Sections
    sizes: Sizes
    tokens: int | None  # of a micro-batch, as the user gives them
    runs: Floats
    compute_s: float  # of all records in a step

    def named(self, *starts: str) -> list[tuple[Record, float]]:
        """The records of the micro-batches whose names begin so, each with its runs in a step."""
        pairs = zip(self.text.records, self.runs, strict=True)
        return [(record, float(n)) for record, n in pairs if n and record.name.startswith(starts)]

    def step(self, name: str) -> Record | None:
        """The once-per-step record of that name."""
        places = (*self.sections.before, *self.sections.after)
        return next((r for k in places if (r := self.text.records[self.text.order[k]]).name == name), None)

    def lookup_s(self) -> float:
        """An embedding lookup: its memory traffic, or its launches; 0 if the activation's size is unknown."""
        pass_s = self.sizes.activation / MEMORY_BANDWIDTH
        return LOOKUP_PASSES * max(pass_s, KERNEL_S) if pass_s else 0.0

    def all_reduce_s(self, size: float) -> float | None:
        """An all-reduce on TP: 2 (n - 1) / n bytes; None without a group."""
        tp = self.text.header.tp
        return 2 * (tp - 1) / tp * size / NVLINK_BANDWIDTH if tp > 1 else None

    def check(
        self, name: str, record: str, *, found: str, expected: str, why: str, effect_s: float | None, choice: str = ""
    ) -> Check:
        """A check with its share of the step's compute."""
        share = effect_s / self.compute_s if effect_s is not None and self.compute_s else None
        return Check(
            name=name, record=record, found=found, expected=expected, why=why, effect_s=effect_s, share=share, choice=choice
        )


def file_of(text: SimaiText, given: Given) -> File:
    """A text as the checks see it."""
    sections = sections_of(text, [])
    sizes = sizes_of(text, sections, given)
    tokens = given.sequence * given.micro_batch if given.sequence and given.micro_batch else None
    counts = np.bincount(text.order[sections.repetitions].ravel(), minlength=len(text.records)).astype(np.float64)
    runs = counts * (text.header.ga / len(sections.repetitions))
    places = np.array([*sections.before, *sections.after], np.int64)
    once = np.bincount(text.order[places], minlength=len(text.records))
    compute_ns = np.array([float(sum(r.compute_ns)) for r in text.records])
    return File(text, sections, sizes, tokens, runs, float((compute_ns * (runs + once)).sum()) * NS)


def runs_of(records: list[tuple[Record, float]]) -> float:
    """Runs of records in a step."""
    return sum(n for _, n in records)


def mean_s(records: list[tuple[Record, float]], phase: int) -> float:
    """Mean seconds of a phase over the runs."""
    return sum(r.compute_ns[phase] * n for r, n in records) / runs_of(records) * NS if records else 0.0


def time(seconds: float) -> str:
    """A time of three digits, as `workload.records` takes it."""
    return short(float(f"{seconds:.3g}"), "s")
