"""Readers: one kind of input each; a user's file becomes a `Workload`, nothing is decided about plans."""

from __future__ import annotations

from sim_core.readers.simai import workload_from_simai
from sim_core.readers.simai_text import read_simai_text
from sim_core.workload import Workload


def read_workload(
    path: str, *, micro_batch: int | None = None, sequence: int | None = None, measured_on: str | None = None
) -> tuple[Workload, tuple[str, ...]]:
    """The workload in the file at `path`, and warnings about it.

    `micro_batch` (sequences) and `sequence` (tokens) are facts that a SimAI text does not hold; `measured_on` names the
    hardware preset its compute times were measured on. Raises FormatError, OSError.
    """
    text = read_simai_text(path)
    return workload_from_simai(text, micro_batch=micro_batch, sequence=sequence, measured_on=measured_on)
