"""A run as tables of others write it, and the same as a row of a table of runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from benchmarks.import_runs import run_of
from benchmarks.importing.table import Row as Told, read_table
from sweep.runs.cells import cell_of
from sweep.runs.table import Row, runs_text

RUN = {
    "set": "mine", "framework": "Megatron-LM", "hw": "H100-80GB-SXM", "gpus": "8", "gpus_per_node": "8", "model": "llama2-7b",
    "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32", "ffn": "11008", "vocab": "32000", "seq": "4096",
    "dtype": "bf16", "tp": "2", "pp": "1", "mbs": "1", "gbs": "32", "recompute": "none", "iter_ms": "2000", "quality": "ok",
}  # fmt: skip


def told(**changes: str) -> Told:
    """`RUN` with changes, in free text."""
    return Told("runs.csv:2", RUN | changes)


def imported(row: Told) -> Row:
    """A row in free text as a measured run."""
    return Row(row.where, {name: cell_of(value) for name, value in run_of(row).items()})


def row(**changes: str) -> Row:
    """`RUN` with changes, as a measured run."""
    return imported(told(**changes))


def table(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    """A table of runs: `RUN` with the changes of each."""
    path.write_text(runs_text(run_of(told(**changes)) for changes in rows), encoding="utf-8")
    return path


def free_table(path: Path, rows: Iterable[dict[str, str]]) -> Path:
    """The same in free text."""
    written = [RUN | changes for changes in rows]
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, list(dict.fromkeys(key for one in written for key in one)))
        out.writeheader()
        out.writerows(written)
    return path


def convert(path: Path) -> Path:
    """Make a table of runs of one in free text, in its place."""
    path.write_text(runs_text(run_of(one) for one in read_table(path)), encoding="utf-8")
    return path
