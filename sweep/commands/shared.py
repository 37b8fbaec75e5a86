"""What several commands share: options, the folder of results, specs made ready, what is written where."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer
from rich.console import Console

from sim_core import Job, SpecError, model_names, plural, read_traces, short
from sim_core.compiling import STEP, cache_dir, is_compiled
from sim_core.limits import LARGEST
from sweep.answers.section import Section, values_of
from sweep.evaluation.one_plan import facts_of
from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.warming import warm_up
from sweep.executors.choice import Kind
from sweep.inputs.registry import SPEC_SIGN, recognised
from sweep.options import OptionError, of_option, wrong
from sweep.outputs import write_file
from sweep.results.folder import Folder, folder_at
from sweep.results.store import Store, newest
from sweep.runs.table import Row
from sweep.show.checks import check_lines
from sweep.show.sections import print_sections, say
from sweep.show.terminal import Terminated, exit_code, form_of, own_console, signals_end_at_once, sigterm_raises
from sweep.spec.spec import SweepSpec, load_spec

AnyForm = TypeVar("AnyForm", bound=StrEnum)
"""The formats of a command, the table for people first."""
RESULTS: Final = Path("results")
_ALWAYS: Final = ("warning:", "hardware ", "stack ", "sample")
"""What notes begin with that say what was taken for what a user did not state."""

Directory = Annotated[str | None, typer.Argument(help="Folder of results, a path or URI. Default: the newest under results/.")]
SpecFile = Annotated[Path, typer.Argument(help="The sweep, a YAML file.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print all columns, assumptions, notes and reasons, too.")]
FactSets = Annotated[list[str] | None, typer.Option("--set", help="A fact that the file does not state: pp=4, ep=2, layers=8.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Step = Annotated[
    int | None, typer.Option("--step", min=1, max=LARGEST["step"], help="Which of several steps in the files; else the median.")
]
MicroBatch = Annotated[
    int | None, typer.Option(min=1, max=LARGEST["micro_batch"], help="Micro-batch that the file was made with.")
]
Records = Annotated[
    list[str] | None,
    typer.Option(
        "--record", help="A value in place of the file's: embedding_layer='0.05 ms', layernorm='0 B', NAME=keep, NAME=model."
    ),
]
Out = Annotated[str | None, typer.Option(help="Folder for the results, a path or URI. Default: results/NAME-HASH.")]
Executing = Annotated[
    Kind, typer.Option(help="Processes on this machine, or Ray: the cluster in RAY_ADDRESS, else one started here.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=100_000,
        help="Worker processes; 0: none, run in this process. Default: all cores, but none to run less than 2 s of plans."
        " A cluster sets its own.",
    ),
]
SliceLimit = Annotated[float, typer.Option(min=1, help="Seconds after which a slice of plans counts as hanging.")]
SpecSets = Annotated[list[str] | None, typer.Option("--set", help="Override a key of the spec: axes.tp=[1,2].")]
Fresh = Annotated[bool, typer.Option(help="Delete what the folder holds, instead of resuming.")]


def result_at(directory: str | None, *, missing: bool = True) -> Folder:
    """The folder of a result: that given, else the newest under results/; as `existing_result`. Raises SpecError."""
    return doubted(newest(RESULTS), missing=missing) if directory is None else existing_result(directory, missing=missing)


def existing_result(directory: str, *, missing: bool = True) -> Folder:
    """The folder of a result that a user names, `doubted`. Raises SpecError for a file, and where nothing is."""
    if Path(directory).is_file():
        raise SpecError(f"{directory}: is a file, expected the folder of a result (`sweep ls` lists them)")
    if "://" not in directory and not Path(directory).exists():
        raise SpecError(f"{directory}: no such folder, expected that of a result (`sweep ls` lists them)")
    return doubted(folder_at(directory), missing=missing)


def doubted(folder: Folder, *, missing: bool = True) -> Folder:
    """The folder of a result; what is odd about it is said, `missing`: and how many plans are not there. Raises SpecError."""
    sys.stderr.write("".join(f"note: {line}\n" for line in Store(directory=folder).doubts(missing=missing)))
    return folder


def spec_at(path: Path, sets: Sequence[str] | None) -> SweepSpec:
    """The spec in a file, or what the file is instead, and what would make a spec of it. Raises SpecError."""
    refuse_result(path, "the spec of a sweep")
    of_model = path.is_dir() and (path / "config.json").is_file()
    if of_model or (not path.exists() and str(path) in model_names()):
        raise SpecError(f"{path}: is a model, not the spec of a sweep; `sweep init {path}` writes one for it")
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise SpecError(f"{path}: {found}, expected the spec of a sweep, a YAML file (`sweep init` writes one)")
    try:
        return load_spec(path, sets or [])
    except OptionError:
        raise
    except SpecError:
        row = recognised(path)
        if row is None or "init" not in row.does or SPEC_SIGN.search(path.read_text(encoding="utf-8", errors="replace")):
            raise
        article = "an" if row.name[0] in "aeio" else "a"
        raise SpecError(f"{path}: is {article} {row.name}, not a sweep; `sweep init {path}` writes one for it") from None


def refuse_result(path: Path, wanted: str) -> None:
    """Raise SpecError if the path is the folder of a result, where something else is `wanted`."""
    if path.is_dir() and Store(directory=folder_at(path)).started_s() is not None:
        raise SpecError(f"{path}: is a result, not {wanted}; `sweep rank {path}` ranks it")


def results_folder(out: str | None, default: str) -> Folder:
    """The folder of `--out`, or one under results/. Raises SpecError."""
    if out is not None and not out.strip():
        raise wrong("--out", out, "a folder or a URI")
    with of_option("--out"):
        folder = folder_at(out or RESULTS / default)
    if folder.local is not None and folder.local.is_file():
        raise wrong("--out", str(folder), "a folder; it is a file")
    return folder


def there(option: str, path: Path | None) -> Path | None:
    """The file or folder that an option names, which has to be there. Raises OptionError."""
    if path is not None and not path.exists():
        raise wrong(option, path, "a file that is there")
    return path


def check_output(output: Path | None, *, new: bool = False) -> None:
    """Raise OptionError, before anything is computed, if no file can be written there; `new`: or if there is one."""
    if output is None:
        return
    if output.is_dir():
        raise wrong("--output", output, "a file; it is a folder")
    if not output.absolute().parent.is_dir():
        raise wrong("--output", output, f"a file in a folder that is there; {output.parent} is not")
    if new and output.exists():
        raise wrong("--output", output, "a file that is not there yet; move it away, or name another with -o")


def takes(option: str, others: Mapping[str, object], expected: str) -> None:
    """Raise OptionError if beside `option` one of these others is given, which it has no use for."""
    for other, value in others.items():
        if value not in (None, False):
            raise OptionError(f"{other}: found beside {option}, which takes {expected}")


def needs(option: str, given: object, others: Mapping[str, object]) -> None:
    """Raise OptionError if one of these others is given without `option`, which alone has a use for it."""
    if not given:
        for other, value in others.items():
            if value not in (None, False):
                raise OptionError(f"{other}: found without {option}, expected both")


def form_asked(forms: type[AnyForm], asked: AnyForm | None, output: Path | None, as_json: bool) -> AnyForm:
    """The format that `--format` and `--json` name, else that of the suffix of `--output`, else the first of `forms`.

    Raises OptionError.
    """
    if as_json and asked not in (None, forms("json")):
        raise wrong("--json", f"--format {asked} beside it", "one of them")
    if as_json:
        return forms("json")
    names = [str(form) for form in forms]
    return asked if asked is not None else forms(form_of(output, names, names[0]))


def names_in(option: str, text: str | None) -> list[str]:
    """The names of an option that takes several with commas between; none if it is not given. Raises OptionError."""
    names = [] if text is None else [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise wrong(option, text, "names of columns with commas between, each once, such as tp,pp")
    return names


def groups_in(options: Sequence[str] | None) -> list[str] | None:
    """Columns of `--per`, which may be given several times; none of '', and None if it is not given. Raises OptionError."""
    return None if options is None else names_in("--per", ",".join(option for option in options if option) or None)


def record_sets(records: Sequence[str] | None) -> list[str]:
    """`--record NAME=VALUE` as assignments to `workload.records`. Raises SpecError."""
    for record in records or ():
        if "=" not in record:
            raise wrong("--record", record, "NAME=VALUE, such as embedding_layer='0.05 ms'")
    return [f"records.{record}" for record in records or ()]


def rows_of_set(rows: list[Row], name: str | None) -> list[Row]:
    """The measured runs of the set that `--set` names; all without it. Raises SpecError."""
    chosen = [row for row in rows if name is None or row.text("set") == name]
    if not chosen and name is not None:
        raise OptionError(f"--set {name}: found none, valid: {', '.join(sorted({row.text('set') for row in rows}))}")
    return chosen


def traces_at(source: str, sets: Sequence[str] | None, step: int | None) -> Job:
    """The rank traces of a job, with facts given by `--set` and `--step`. Raises SimError, OSError."""
    return read_traces(source, facts_of(source, [*(sets or []), *([f"step={step}"] if step else [])]))


def write_text(text: str, output: Path | None) -> None:
    """Write to the file `output`, or to standard output; the text ends with one line break."""
    text = text.rstrip("\n") + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        write_file(output, text)


def write_json(data: object) -> None:
    """Print JSON."""
    sys.stdout.write(json.dumps(data, indent=1) + "\n")


def tell(sections: Sequence[Section], *, as_json: bool) -> None:
    """Print sections, or their values as JSON."""
    if as_json:
        write_json(values_of(sections))
    else:
        print_sections(sections, own_console())


@contextmanager
def interruptible(console: Console, text: str) -> Iterator[None]:
    """End a command that Ctrl-C or SIGTERM stops inside the block with `text` and its exit code."""
    try:
        with sigterm_raises():
            yield
    except (KeyboardInterrupt, Terminated) as stop:
        console.print(text)
        raise typer.Exit(exit_code(stop)) from None


def prepared_spec(spec: SweepSpec, path: Path) -> Prepared:
    """Prepare the spec that was read from `path`. Raises SpecError that names the file."""
    try:
        return prepare(spec, path.parent)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None


def print_warnings(warnings: Sequence[str], console: Console) -> None:
    """Print each warning on a line of its own."""
    for warning in warnings:
        console.print(f"warning: {warning}")


def introduce(spec: SweepSpec, prepared: Prepared, console: Console, *, verbose: bool) -> None:
    """What will be simulated: the space and doubts; `verbose`: what is held and all notes, too."""
    space = prepared.sweep.space
    print_warnings(prepared.warnings, console)
    axes = " x ".join(f"{key} {len(values)}" for key, values in spec.axes.items())
    plans = plural(space.size) + (f" ({axes})" if axes else "")
    sampled = f", of which {space.count:,} are drawn" if space.sample else ""
    say(f"{spec.name}: {plans}{sampled}", console)
    if verbose:
        say(f"  held: {'; '.join(space.defaults)}", console)
    for note in prepared.notes:
        if verbose or note.startswith(_ALWAYS):
            say(f"  note: {note}", console)
    print_sections(check_lines(prepared.sweep.workload.checks), console)


def say_if_compiling(console: Console, what: str = STEP) -> None:
    """Print that the engine will be compiled, if it will be."""
    if not is_compiled(what):
        console.print(f"Compiling the engine: once per version, about half a minute; cached in {cache_dir()}")


@contextmanager
def ended_at_once(console: Console, text: str) -> Iterator[None]:
    """What `interruptible` does, for a block that compiles or loads the engine."""
    with signals_end_at_once(lambda: console.print(text)):
        yield


def make_ready(prepared: Prepared, console: Console, stopped: str, what: str = STEP) -> None:
    """Compile or load the engine for STEP or BOUNDS; `stopped` is said if a signal ends that."""
    with ended_at_once(console, stopped):
        say_if_compiling(console, what)
        seconds = warm_up(prepared.sweep, what)
    console.print(f"Engine ready in {short(seconds, 's')}.")
