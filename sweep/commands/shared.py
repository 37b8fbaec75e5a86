"""What several commands share: options, the folder of results, what is written where."""

import json
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

from rich.console import Console
from typer import Argument, Option

from sim_core import SpecError, one_line
from sim_core.documents import Values
from sweep.answers.section import Section
from sweep.log import log_lines
from sweep.options import OptionError, wrong
from sweep.outputs import write_file
from sweep.results.folder import Folder, folder_at
from sweep.results.store import Store, newest
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console

AnyForm = TypeVar("AnyForm", bound=StrEnum)
"""The formats of a command, the table for people first."""
RESULTS = Path("results")
YAML = (".yaml", ".yml")

Directory = Annotated[str | None, Argument(help="Folder of results, a path or URI. Default: the newest under results/.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print all columns, assumptions, notes and reasons, too.")]
FactSets = Annotated[list[str] | None, Option("--set", help="A fact that the file does not state: pp=4, ep=2, layers=8.")]
Tokens = Annotated[int | None, Option(min=1, max=2**31 - 1, help="Tokens of a sequence.")]
MetricsFile = Annotated[
    Path | None, Option("--metrics", help="File for Prometheus, rewritten every 5 s; node_exporter reads *.prom.")
]
LogJson = Annotated[
    bool,
    Option("--log-json", callback=log_lines, help="Log to standard error, a JSON object a line: run, slice, node, seconds."),
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
TryCost = Annotated[
    float | None, Option(min=0, max=10, help="What a failed launch costs, as a part of the run: 0.1 is a day of ten.")
]


def result_at(directory: str | None, *, missing: bool = True) -> Folder:
    """The folder of a result, `doubted`: that given, else the newest under results/. Raises SpecError, also for a file."""
    if directory is None:
        return doubted(newest(RESULTS), missing=missing)
    if Path(directory).is_file():
        raise SpecError(f"{directory}: is a file, expected the folder of a result (`sweep ls` lists them)")
    if "://" not in directory and not Path(directory).exists():
        raise SpecError(f"{directory}: no such folder, expected that of a result (`sweep ls` lists them)")
    return doubted(folder_at(directory), missing=missing)


def doubted(folder: Folder, *, missing: bool = True) -> Folder:
    """The folder of a result; what is odd about it is said, `missing`: and how many plans are not there. Raises SpecError."""
    write_notes(Store(directory=folder).doubts(missing=missing))
    return folder


def refuse_result(path: Path, wanted: str) -> None:
    """Raise SpecError if the path is the folder of a result, where something else is `wanted`."""
    if path.is_dir() and Store(directory=folder_at(path)).started_s() is not None:
        raise SpecError(f"{path}: is a result, not {wanted}; `sweep rank {path}` ranks it")


def there(option: str, path: Path | None) -> Path | None:
    """The file or folder that an option names, which has to be there. Raises OptionError."""
    if path is not None and not path.exists():
        raise wrong(option, path, "a file that is there")
    return path


def check_output(output: Path | None, *suffixes: str, new: bool = False, option: str = "--output") -> None:
    """Raise OptionError, before anything is computed, if no file can be written there, or its name ends as that of another
    kind; `new`: or if there is one."""
    if output is None:
        return
    if suffixes and output.suffix not in ("", *suffixes):
        raise wrong("--output", output, f"a file {suffixes[0]}")
    if output.is_dir():
        raise wrong(option, output, "a file; it is a folder")
    if not output.absolute().parent.is_dir():
        raise wrong(option, output, f"a file in a folder that is there; {output.parent} is not")
    if new and output.exists():
        raise wrong("--output", output, "a file that is not there yet; move it away, or name another with -o")


def takes(option: str, others: Values, expected: str) -> None:
    """Raise OptionError if beside `option` one of these others is given, which it has no use for."""
    _refuse(others, f"beside {option}, which takes {expected}")


def needs(option: str, given: object, others: Values) -> None:
    """Raise OptionError if one of these others is given without `option`, which alone has a use for it."""
    if not given:
        _refuse(others, f"without {option}, expected both")


def _refuse(options: Values, why: str) -> None:
    for option, value in options.items():
        if value not in (None, False):
            raise OptionError(f"{option}: found {why}")


def form_asked(forms: type[AnyForm], asked: AnyForm | None, output: Path | None, as_json: bool) -> AnyForm:
    """The format that `--format` and `--json` name, else that of the suffix of `--output`, else the first of `forms`.

    Raises OptionError.
    """
    if as_json and asked not in (None, forms("json")):
        raise wrong("--json", f"--format {asked} beside it", "one of them")
    if as_json or asked:
        return asked or forms("json")
    (table, *others), suffix = forms, output.suffix.removeprefix(".") if output else ""
    if suffix in ("", "txt"):
        return table
    if suffix not in (table, *others):
        known = ", ".join(f".{form}" for form in others)
        raise OptionError(f"--output {output}: found .{suffix}, expected .txt, {known}, or --format")
    return forms(suffix)


def names_in(option: str, text: str | None) -> list[str]:
    """The names of an option that takes several with commas between; none if it is not given. Raises OptionError."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names) or {*" ;"} & {*"".join(names)}:
        raise wrong(option, text, "names of columns with commas between, each once, such as tp,pp")
    return names


def groups_in(options: Sequence[str] | None) -> list[str] | None:
    """Columns of `--per`, which may be given several times; none of '', and None if it is not given. Raises OptionError."""
    return None if options is None else names_in("--per", ",".join(option for option in options if option) or None)


def write_text(text: str, output: Path | None) -> None:
    """Write to the file `output`, or to standard output; the text ends with one line break."""
    write_file(output, text.rstrip("\n") + "\n")


def write_json(data: object) -> None:
    """Print JSON."""
    sys.stdout.write(json.dumps(data, indent=1) + "\n")


def tell(values: object, sections: Iterable[Section | str], as_json: bool) -> None:
    """Print sections, or what they tell as values."""
    if as_json:
        write_json(values)
    else:
        print_sections(sections, own_console())


def write_notes(notes: Iterable[str]) -> None:
    """Write each note on a line of standard error."""
    sys.stderr.write("".join(f"note: {one_line(note)}\n" for note in notes))


def print_warnings(warnings: Sequence[str], console: Console) -> None:
    """Print each warning on a line of its own."""
    for warning in warnings:
        console.print(one_line(f"warning: {warning}"))
