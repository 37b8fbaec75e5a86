"""`sweep export`: a plan as launch flags, a configuration file, a SimAI text or plain data."""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sim_core import SIMAI, SpecError, model_document
from sweep.commands.shared import check_output, existing_result, prepared_spec, takes, there
from sweep.evaluation.one_plan import export_notes, simai_text
from sweep.evaluation.preparation import Prepared
from sweep.exporting.keeping import with_flags, with_keys
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.frameworks.plan import Launched
from sweep.options import OptionError, wrong
from sweep.outputs import write_file
from sweep.reopening import plan_number, reopened
from sweep.spec.spec import SweepSpec, load_spec


class ExportForm(StrEnum):
    """Formats of `export`."""

    megatron = "megatron"
    torchtitan = "torchtitan"
    simai = "simai"
    json = "json"


def command(
    source: Annotated[str, typer.Argument(metavar="RESULT|SPEC", help="A folder of results, or the spec of a sweep.")],
    plan: Annotated[str, typer.Option(help="Its number, as in the results; best: the first of the ranking of a result.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: standard output.")] = None,
    form: Annotated[
        ExportForm | None, typer.Option("--format", help="Default: simai for the sweep of a SimAI text, else megatron.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="A launch file: what it holds besides plan and model is kept (megatron, torchtitan).")
    ] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", help="Overrides that the sweep of a spec was run with.")] = None,
    spec: Annotated[Path | None, typer.Option(help="Where the spec of a result lies now, if its files are not found.")] = None,
) -> None:
    """Write a plan as flags of Megatron-LM, a torchtitan file, a SimAI text or JSON."""
    check_output(output)
    prepared, loaded, base, number = _opened(source, plan, sets or [], spec)
    if form is None:
        form = ExportForm.simai if prepared.sweep.workload.kind == SIMAI else ExportForm.megatron
    if form is ExportForm.simai:
        workload = loaded.workload
        path = None if workload.path is None else base / workload.path
        text = simai_text(prepared, path, number, ffn=workload.ffn, heads=workload.heads)
        for note in export_notes(prepared, number, text):
            sys.stderr.write(f"note: {note}\n")
    else:
        text_of = {ExportForm.megatron: megatron_text, ExportForm.torchtitan: torchtitan_text, ExportForm.json: json_text}[form]
        text = text_of(launched(prepared.without_sample(), number))
    if keep is not None:
        text = _keeping(text, form, keep)
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text)


def _keeping(text: str, form: ExportForm, keep: Path) -> str:
    """An exported text with what a launch file holds besides. Raises SpecError."""
    if form is ExportForm.megatron:
        return with_flags(text, keep)
    if form is ExportForm.torchtitan:
        return with_keys(text, keep)
    raise SpecError("--keep: expected --format megatron or torchtitan")


def _opened(source: str, plan: str, sets: list[str], spec: Path | None) -> tuple[Prepared, SweepSpec, Path, int]:
    """The sweep, its spec, the folder that its paths are relative to, and the number of the plan."""
    path = Path(source)
    if path.is_file():
        if not plan.isascii() or not plan.isdecimal():
            raise wrong("--plan", plan, "the number of a plan (best needs a folder of results)")
        takes("a spec", {"--spec": spec}, "--set")
        loaded = load_spec(path, sets)
        return prepared_spec(loaded, path), loaded, path.parent, int(plan)
    if sets:
        raise OptionError(f"--set: {source} is a folder of results, whose spec is what it is; give the spec instead")
    opened = reopened(existing_result(source), there("--spec", spec))
    for note in opened.notes:
        sys.stderr.write(f"note: {note}\n")
    return opened.prepared, opened.spec, opened.base, plan_number(opened, plan, "--plan")


def json_text(plan: Launched) -> str:
    """The plan, its result and its model as data."""
    names = ("fields", "layers", "stack", "sharding", "sequence", "sequence_parallel")
    data = {"sweep": plan.name, "plan": plan.number} | {name: getattr(plan, name) for name in names}
    model = None if plan.model is None else model_document(plan.model)
    return json.dumps(data | {"model": model, "result": plan.row, "spec": plan.spec}, indent=1) + "\n"
