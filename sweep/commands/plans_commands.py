"""`sweep explain`, `sweep whatif`, `sweep export`: one plan: why it is so, what a change gives, and how to launch it."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sim_core import SIMAI, SpecError, model_document, preset_names, quantity, read_hardware
from sim_core.limits import LARGEST
from sweep.answers.against import compared
from sweep.answers.asked import explained
from sweep.answers.explanation import explain
from sweep.answers.section import Section, values_of
from sweep.answers.whatif import Question, section_of, what_if
from sweep.commands.shared import AsJson, check_output, result_at, takes, tell, there, write_notes
from sweep.evaluation.one_plan import export_notes, simai_text
from sweep.exporting.keeping import with_flags, with_keys
from sweep.exporting.launched import launched
from sweep.exporting.meant import plan_number
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.frameworks.plan import Launched
from sweep.options import OptionError, of_key, readable, wrong
from sweep.outputs import write_file
from sweep.reopening import BEST, prepared_spec, reopened
from sweep.spec.spec import load_spec

Result = Annotated[str, Argument(metavar="RESULT", help="Folder of results, a path or URI.")]
Plan = Annotated[str, Argument(help="Its number, as in `rank`; or best.")]
Spec = Annotated[Path | None, Option(help="Where the spec lies now, if its files are not found from here.")]


def explain_command(
    directory: Result,
    plan: Plan = BEST,
    against: Annotated[str | None, Option(help="Another plan of the result, side by side.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the explanation as JSON.")] = False,
    spec: Spec = None,
) -> None:
    """Explain one plan: where its step and memory go, what holds it back, what each change of one axis gives."""
    opened = reopened(result_at(directory), there("--spec", spec))
    first = explain(opened, plan_number(opened, plan))
    sections = explained(first)
    if against is not None:
        sections.append(compared(first, explain(opened, plan_number(opened, against, "--against"))))
    tell(values_of(sections), sections, as_json)


def whatif_command(
    directory: Result,
    plan: Plan = BEST,
    gpus: Annotated[int | None, Option(min=1, max=LARGEST["all_gpus"], help="GPUs of the job.")] = None,
    nic: Annotated[str | None, Option(help="Bandwidth of a NIC, per GPU and direction: '200 Gb/s'.")] = None,
    device: Annotated[str | None, Option(help="Hardware preset: B200-SXM.", autocompletion=preset_names)] = None,
    sequence: Annotated[
        int | None, Option(min=1, max=LARGEST["sequence"], help="Tokens of a sequence; a step keeps its tokens.")
    ] = None,
    tokens: Annotated[str | None, Option(help="Tokens to train on: 15T.")] = None,
    price: Annotated[float | None, Option(min=0, help="USD a GPU-hour.")] = None,
    as_json: AsJson = False,
    spec: Spec = None,
) -> None:
    """Print what a change of the job or its machine does to a plan, and which plan is best then."""
    readable("--device", read_hardware, device)
    readable("--nic", lambda text: quantity(text, "B/s"), nic)
    opened = reopened(result_at(directory), there("--spec", spec))
    question = Question(gpus=gpus, nic=nic, device=device, sequence=sequence, tokens=tokens, price=price)
    with of_key("budget.tokens", "--tokens"):
        answer = what_if(opened, plan_number(opened, plan), question)
    sections = [section_of(answer), Section(notes=opened.notes)]
    tell(values_of(sections), sections, as_json)


class ExportForm(StrEnum):
    """Formats of `export`."""

    megatron = "megatron"
    torchtitan = "torchtitan"
    simai = "simai"
    json = "json"


def export_command(
    source: Annotated[str, Argument(metavar="RESULT|SPEC", help="A folder of results, or the spec of a sweep.")],
    plan: Annotated[str, Option(help="Its number, as in the results; best: the one to launch.")],
    output: Annotated[Path | None, Option("--output", "-o", help="File to write; default: standard output.")] = None,
    form: Annotated[
        ExportForm | None, Option("--format", help="Default: simai for the sweep of a SimAI text, else megatron.")
    ] = None,
    keep: Annotated[
        Path | None, Option(help="A launch file: what it holds besides plan and model is kept (megatron, torchtitan).")
    ] = None,
    sets: Annotated[list[str] | None, Option("--set", help="Overrides that the sweep of a spec was run with.")] = None,
    spec: Annotated[Path | None, Option(help="Where the spec of a result lies now, if its files are not found.")] = None,
) -> None:
    """Write a plan as flags of Megatron-LM, a torchtitan file, a SimAI text or JSON."""
    check_output(output)
    path = Path(source)
    if path.is_file():
        if not plan.isascii() or not plan.isdecimal():
            raise wrong("--plan", plan, "the number of a plan (best needs a folder of results)")
        takes("a spec", {"--spec": spec}, "--set")
        loaded = load_spec(path, sets or [])
        prepared, base, number = prepared_spec(loaded, path), path.parent, int(plan)
    elif sets:
        raise OptionError(f"--set: {source} is a folder of results, whose spec is what it is; give the spec instead")
    else:
        opened = reopened(result_at(source), there("--spec", spec))
        write_notes(opened.notes)
        prepared, loaded, base, number = opened.prepared, opened.spec, opened.base, plan_number(opened, plan, "--plan")
    if form is None:
        form = ExportForm.simai if prepared.sweep.workload.kind == SIMAI else ExportForm.megatron
    if form is ExportForm.simai:
        text = simai_text(prepared, loaded.workload, base, number)
        write_notes(export_notes(prepared, number, text))
    else:
        text_of = {ExportForm.megatron: megatron_text, ExportForm.torchtitan: torchtitan_text, ExportForm.json: json_text}[form]
        text = text_of(launched(prepared.without_sample(), number))
    if keep is not None:
        keeping = {ExportForm.megatron: with_flags, ExportForm.torchtitan: with_keys}
        if form not in keeping:
            raise SpecError("--keep: expected --format megatron or torchtitan")
        text = keeping[form](text, keep)
    write_file(output, text)


def json_text(plan: Launched) -> str:
    """The plan, its result and its model as data."""
    names = ("fields", "layers", "stack", "sharding", "sequence", "sequence_parallel")
    data = {"sweep": plan.name, "plan": plan.number} | {name: getattr(plan, name) for name in names}
    model = None if plan.model is None else model_document(plan.model)
    return json.dumps(data | {"model": model, "result": plan.row, "spec": plan.spec}, indent=1) + "\n"
