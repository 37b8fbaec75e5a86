"""Sweeps from Python: run one, open its result, ask what the commands answer, hand it to other libraries."""

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from sim_core import PARTS, SIMAI, Fields, SpecError, Values, nearest, shown
from sweep.answers.against import compared
from sweep.answers.asked import explained
from sweep.answers.explanation import explain
from sweep.answers.section import Section, values_of
from sweep.answers.whatif import Question, section_of, what_if as asked_what
from sweep.columns import result_column
from sweep.commands.init_command import written
from sweep.commands.running_commands import sought
from sweep.evaluation.one_plan import simai_text
from sweep.evaluation.preparation import Prepared, prepare
from sweep.evaluation.slices import LIMIT_S
from sweep.execution import run_sweep
from sweep.executors import Executor
from sweep.executors.choice import Kind, opened
from sweep.exporting.launched import launched
from sweep.exporting.meant import believed, by_belief, known_of, plan_number
from sweep.exporting.megatron import megatron_text
from sweep.exporting.torchtitan import torchtitan_text
from sweep.outputs import write_file
from sweep.ranking.ranking import Ranking, rank
from sweep.reopening import BEST, Reopened, reopened
from sweep.report.content import content_of
from sweep.report.page import report_page
from sweep.results.folder import Folder, Location, folder_at
from sweep.results.store import Store
from sweep.search.search import as_search, run_search
from sweep.show.perfetto import drawn_plan
from sweep.show.sections import html_table, paragraphs, print_sections
from sweep.spec.given import plain
from sweep.spec.spec import SweepSpec, checked_spec, load_spec
from sweep.tuning.tuner import Tuner
from sweep.wording import cell, heading

if TYPE_CHECKING:
    import pandas
    import polars

_RESULTS = Path("results")
_SHOWN = 10
"""Plans that a notebook shows of a result."""
_WIDE = 160
Form = Literal["megatron", "torchtitan", "simai"]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, repr=False)
class Told:
    """An answer: printed it is the text of the command, `values` are its numbers, as the command's `--json`."""

    text: str
    values: Fields

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre>{paragraphs([self.text]).removeprefix('<p>').removesuffix('</p>')}</pre>"


class Table(Protocol):
    """What most callers need of a pyarrow.Table, which has no types of its own: the rows of a result."""

    num_rows: int
    column_names: list[str]

    def __getitem__(self, column: str) -> Any: ...

    def to_pylist(self) -> list[Fields]:
        """The rows, each by the names of its columns."""

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a frame."""


def _rows_of(ranked: Callable[Concatenate[Folder, P], Ranking]) -> Callable[Concatenate["Result", P], Table]:
    """A ranking of a folder as a method of its result, with the same parameters."""

    @wraps(ranked)
    def rows(result: "Result", /, *args: P.args, **asked: P.kwargs) -> Table:
        asked["where"] = by_belief(asked.get("where"), result.folder)  # type: ignore[arg-type]
        table: Table = believed(ranked(result.folder, *args, **asked), known_of(result.folder)).rows
        return table

    return rows


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The result of a sweep. Every reader checks the hashes of its files first: SpecError if one is damaged.

    `plan` is a number, as in the column `plan`, or `best`. `spec`: where the spec lies, if the files that it names are not
    found from the working directory.
    """

    folder: Folder
    spec: Path | None = None

    @property
    def provenance(self) -> Fields:
        """What it was made from: spec, hardware with sources, notes, hashes of all inputs."""
        return Store(directory=self.folder).provenance() or {}

    def to_arrow(self, columns: Sequence[str] = ()) -> pa.Table:
        """All rows in order of their plans: these columns (as `sweep rank` accepts them), else all."""
        with Store(directory=self.folder).verified() as paths:
            known = pq.read_schema(paths[0]).names
            chosen = [result_column(name, known) for name in columns] or None
            parts = [pq.read_table(path, columns=chosen).replace_schema_metadata(None) for path in paths]
        return pa.concat_tables(parts).unify_dictionaries()

    def to_pandas(self, columns: Sequence[str] = ()) -> "pandas.DataFrame":
        """The same as a pandas.DataFrame. Raises SpecError if pandas is not installed."""
        _library("pandas")
        return self.to_arrow(columns).to_pandas()

    def to_polars(self, columns: Sequence[str] = ()) -> "polars.DataFrame":
        """The same as a polars.DataFrame. Raises SpecError if polars is not installed."""
        frame: polars.DataFrame = _library("polars").from_arrow(self.to_arrow(columns))
        return frame

    def to_duckdb(self, columns: Sequence[str] = ()) -> duckdb.DuckDBPyRelation:
        """The same as a relation of a DuckDB in memory."""
        return duckdb.connect().from_arrow(self.to_arrow(columns))

    rank = _rows_of(rank)
    """The best plans, as `sweep rank`."""

    @property
    def best(self) -> Fields:
        """The first plan of the ranking, by column. Raises SpecError if no plan can run."""
        rows = self.rank(top=1, per=[]).to_pylist()
        if not rows:
            raise SpecError(f"{self.folder}: no plan of it can run")
        return rows[0]

    def explain(self, plan: int | str = BEST, *, against: int | str | None = None) -> Told:
        """Why a plan is as it is, what each change of it gives, and what another has over it: `sweep explain`."""
        first = explain(self._opened, self._number(plan))
        sections = explained(first)
        if against is not None:
            sections.append(compared(first, explain(self._opened, self._number(against, "against"))))
        return _told(sections)

    def what_if(
        self,
        plan: int | str = BEST,
        *,
        gpus: int | None = None,
        nic: str | None = None,
        device: str | None = None,
        sequence: int | None = None,
        tokens: str | None = None,
        price: float | None = None,
    ) -> Told:
        """A plan with another job or machine, and the best plan then: `sweep whatif`."""
        question = Question(gpus=gpus, nic=nic, device=device, sequence=sequence, tokens=tokens, price=price)
        return _told([section_of(asked_what(self._opened, self._number(plan), question))])

    def timeline(self, plan: int | str = BEST, path: Path | str = "timeline.json", *, stages: Sequence[int] = ()) -> Path:
        """Write the step of a plan, or some of its stages, for ui.perfetto.dev; returns the file."""

        def chosen(count: int) -> list[int]:
            for stage in stages:
                if not 0 <= stage < count:
                    raise SpecError(f"stages: found {shown(stage)}, expected stages from 0 to {count - 1}")
            return sorted(set(map(int, stages))) or list(range(count))

        drawn_plan(self._opened, self._number(plan), chosen, Path(path))
        return Path(path)

    def export(self, plan: int | str = BEST, form: Form | None = None) -> str:
        """A plan as flags of Megatron-LM, a torchtitan file or a SimAI text, by default what suits the workload."""
        opened, number = self._opened, self._number(plan)
        prepared = opened.prepared
        form = form or ("simai" if prepared.sweep.workload.kind == SIMAI else "megatron")
        if form == "simai":
            return simai_text(prepared, opened.spec.workload, opened.base, number)
        forms = {"megatron": megatron_text, "torchtitan": torchtitan_text}
        if form not in forms:
            raise SpecError(f"form: found {shown(form)}, {nearest(form, (*forms, 'simai'))}")
        return forms[form](launched(prepared, number))

    def report(self, path: Path | str = "report.html", *, measured: Path | str | None = None) -> Path:
        """Write the page of `sweep report`; returns the file. `measured`: a table of runs, as of `sweep tune`."""
        write_file(Path(path), report_page(content_of(self.folder, None if measured is None else Path(measured))))
        return Path(path)

    def tuner(self, *, by: str | None = None, where: str | None = None, file: Path | str | None = None) -> Tuner:
        """What `sweep tune` asks and tells. `file`: of the runs."""
        return Tuner(self.folder, by=by, where=where, file=None if file is None else Path(file), spec=self.spec)

    @cached_property
    def _opened(self) -> Reopened:
        return reopened(self.folder, self.spec)

    def _number(self, plan: int | str, option: str = "plan") -> int:
        return plan_number(self._opened, str(plan), option)

    def __repr__(self) -> str:
        return f"<sweep.Result {self.provenance.get('name', '')}: {self.folder}>"

    def _repr_html_(self) -> str:
        """The first plans, as a table."""
        ranking = rank(self.folder, top=None if self.provenance.get("spec", {}).get("per") else _SHOWN)
        names = [name for name in ranking.shown if name not in PARTS]
        rows = [[cell(name, row[name]) for name in names] for row in ranking.rows.slice(0, _SHOWN).to_pylist()]
        by = f"{'highest' if ranking.descending else 'lowest'} {heading(ranking.by)} first"
        head = f"{self.provenance.get('name', '')}: {ranking.ranked:,} of {ranking.total:,} plans run, {by}"
        return paragraphs([head]) + html_table([heading(name) for name in names], rows, right=range(len(names)))


def load(path: Location, *, spec: Path | str | None = None) -> Result:
    """The result in a folder, a path or URI; `spec`: where its spec lies now, if its files are not found.

    What commands note of it, such as plans that are missing, is a warning. Raises SpecError if there is none.
    """
    folder = folder_at(path)
    store = Store(directory=folder)
    store.made_from()
    for doubt in store.doubts():
        warnings.warn(doubt, stacklevel=2)
    return Result(folder=folder, spec=None if spec is None else Path(spec))


def init(
    source: Path | str,
    out: Path | str | None = None,
    *,
    hardware: str | None = None,
    gpus: int | None = None,
    sequence: int | None = None,
    micro_batch: int | None = None,
    stack: str | None = None,
    model: str | None = None,
    values: Values | None = None,
) -> Path:
    """Write a commented spec for a model, a workload file or a job that runs, as `sweep init`; returns its file.

    `values`: what the file does not tell, by name, as `--set`. What the command notes is a warning. Raises SimError, OSError.
    """
    path, notes, _ = written(
        str(source), None if out is None else Path(out), [f"{name}={value}" for name, value in (values or {}).items()],
        hardware=hardware, gpus=gpus, sequence=sequence, micro_batch=micro_batch, stack=stack, model=model,
    )  # fmt: skip
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return path


def run(
    spec: SweepSpec | Values | Path | str,
    out: Location | None = None,
    *,
    executor: Literal["local", "ray"] | Executor = "local",
    workers: int | None = 0,
    slice_limit: float = LIMIT_S,
    fresh: bool = False,
) -> Result:
    """Run a sweep, or the part of it that is missing from `out` (default: results/NAME-HASH), and return its result.

    `spec` is the path of a YAML file, or the same as a mapping (`sweep.Spec`), whose paths are relative to the working
    directory. `workers`: 0 runs in this process, None on all cores; a script that starts processes needs
    `if __name__ == "__main__":`. `executor` "ray" runs on the cluster in RAY_ADDRESS, else on one that it starts here, whose
    CPUs `workers` may limit; or an executor of your own. `slice_limit`: seconds after which a slice counts as hanging.

    What the command prints as a warning is one here. Raises SimError, OSError; an interrupted run goes on when it is called
    again.
    """
    checked, prepared = _prepared(spec)
    with _stored(spec, checked, checked.name, prepared, out, executor, workers, slice_limit, fresh) as (result, running):
        run_sweep(prepared, Store(directory=result.folder), running, fresh=fresh)
    return result


def search(
    spec: SweepSpec | Values | Path | str,
    out: Location | None = None,
    *,
    best: int = 1,
    within: float = 0.0,
    executor: Literal["local", "ray"] | Executor = "local",
    workers: int | None = 0,
    slice_limit: float = LIMIT_S,
    fresh: bool = False,
) -> Result:
    """Find the `best` plans of a sweep, proven, and those worse by at most a part `within`, as `sweep search`: a result that
    holds these (default: results/NAME-search-HASH). All else as `run`."""
    checked, whole = _prepared(spec)
    objective = sought(checked, whole, best, within)
    prepared = as_search(whole, objective)
    name = f"{checked.name}-search"
    with _stored(spec, checked, name, prepared, out, executor, workers, slice_limit, fresh) as (result, running):
        run_search(prepared, objective, Store(directory=result.folder), running, fresh=fresh)
    return result


def _of_loaded(method: Callable[Concatenate[Result, P], T]) -> Callable[Concatenate[Location, P], T]:
    """A method of a result as a function of its folder, with the same parameters."""

    @wraps(method)
    def answer(path: Location, /, *args: P.args, **asked: P.kwargs) -> T:
        return method(load(path), *args, **asked)

    return answer


tune = _of_loaded(Result.tuner)
what_if = _of_loaded(Result.what_if)


def _prepared(spec: SweepSpec | Values | Path | str) -> tuple[SweepSpec, Prepared]:
    """A spec and what it means; its warnings are those of the caller's caller."""
    if isinstance(spec, Path | str):
        checked, base = load_spec(Path(spec)), Path(spec).parent
    else:
        checked, base = spec if isinstance(spec, SweepSpec) else checked_spec(plain(spec), "spec"), Path()
    prepared = prepare(checked, base)
    for warning in prepared.warnings:
        warnings.warn(warning, stacklevel=3)
    return checked, prepared


@contextmanager
def _stored(
    spec: object, checked: SweepSpec, name: str, prepared: Prepared, out: Location | None, executor: str | Executor,
    workers: int | None, slice_limit: float, fresh: bool,
) -> Iterator[tuple[Result, Executor]]:  # fmt: skip
    """The result, empty or in part, and an executor that fills it."""
    folder = folder_at(out or _RESULTS / f"{name}-{prepared.sweep.identity[:8]}")
    Store(directory=folder).check(prepared.provenance, fresh=fresh)
    if isinstance(executor, str) and executor not in list(Kind):
        raise SpecError(f"executor: found {shown(executor)}, {nearest(executor, list(Kind))}")
    result = Result(folder=folder, spec=Path(spec) if isinstance(spec, Path | str) else None)
    if isinstance(executor, str):
        count = workers or None if executor == Kind.ray else workers
        with opened(Kind(executor), count, slice_limit, checked.store.writer, folder) as running:
            yield result, running
    else:
        yield result, executor


def _told(sections: Sequence[Section]) -> Told:
    """Sections as a text, and their values as JSON holds them."""
    out = io.StringIO()
    console = Console(
        file=out, width=_WIDE, no_color=True, markup=False, highlight=False, soft_wrap=True, force_terminal=False,
        force_jupyter=False,  # else it would write to the cell of a notebook, not to the file
    )  # fmt: skip
    print_sections(sections, console)
    return Told(text=out.getvalue(), values=json.loads(json.dumps(values_of(sections), default=str)))


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise SpecError(f"{name} is not installed (pip install {name})") from None
