"""`sweep export`: a plan of a sweep as a workload text for SimAI's own simulators."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sweep.commands.shared import prepared_spec
from sweep.one_plan import export_notes, simai_text
from sweep.spec import load_spec


class ExportForm(StrEnum):
    """Formats of `export`."""

    simai = "simai"


def command(
    spec: Annotated[Path, typer.Argument(help="The sweep that the plan belongs to.")],
    plan: Annotated[int, typer.Option(min=0, help="Its number, as in the results.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")] = None,
    form: Annotated[ExportForm, typer.Option("--format", help="Format of the text.")] = ExportForm.simai,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Overrides that the sweep was run with.")] = None,
) -> None:
    """Write a plan of a sweep as a SimAI workload text, for SimAI's own simulators."""
    loaded = load_spec(spec, sets or [])
    prepared = prepared_spec(loaded, spec)
    source = loaded.workload.path
    path = None if source is None else spec.parent / source
    text = simai_text(prepared, path, plan, loaded.workload.ffn)
    for note in export_notes(prepared, plan, text):
        sys.stderr.write(f"note: {note}\n")
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text, encoding="utf-8")
