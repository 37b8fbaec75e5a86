"""Sweeps from Python: run one, open its result, hand it to Arrow, pandas, polars or DuckDB."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from sim_core import SpecError
from sweep.columns import result_column
from sweep.document import bare_size, first_error
from sweep.execution import run_sweep
from sweep.executors.choice import Kind, opened
from sweep.folder import Folder, Location, folder_at
from sweep.preparation import prepare
from sweep.ranking import rank
from sweep.slices import LIMIT_S
from sweep.spec import SweepSpec, load_spec
from sweep.store import Store
from sweep.tuning.tuner import Tuner

_RESULTS: Final = Path("results")


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a sweep. Every reader checks the hashes of its files first: SpecError if one is damaged."""

    folder: Folder

    @property
    def provenance(self) -> dict[str, Any]:
        """What it was made from: spec, hardware with sources, notes, hashes of all inputs."""
        return Store(directory=self.folder).provenance() or {}

    def to_arrow(self, columns: Sequence[str] = ()) -> pa.Table:
        """All rows in order of their plans: these columns (as `sweep rank` accepts them), else all."""
        with Store(directory=self.folder).verified() as paths:
            known = pq.read_schema(paths[0]).names
            chosen = [result_column(name, known) for name in columns] or None
            parts = [pq.read_table(path, columns=chosen).replace_schema_metadata(None) for path in paths]
        return pa.concat_tables(parts).unify_dictionaries()

    def to_pandas(self, columns: Sequence[str] = ()) -> Any:
        """The same as a pandas.DataFrame. Raises SpecError if pandas is not installed."""
        _library("pandas")
        return self.to_arrow(columns).to_pandas()

    def to_polars(self, columns: Sequence[str] = ()) -> Any:
        """The same as a polars.DataFrame. Raises SpecError if polars is not installed."""
        return _library("polars").from_arrow(self.to_arrow(columns))

    def to_duckdb(self, columns: Sequence[str] = ()) -> duckdb.DuckDBPyRelation:
        """The same as a relation of a DuckDB in memory."""
        return duckdb.connect().from_arrow(self.to_arrow(columns))

    def rank(self, **options: Any) -> pa.Table:
        """The best plans, as `sweep rank`: by, top, where, per, columns, descending, pareto, every."""
        return rank(self.folder, **options).rows

    def tuner(self, **options: Any) -> Tuner:
        """What `sweep tune` asks and tells: by, where, file, prior."""
        return Tuner(self.folder, **options)


def load(path: Location) -> Result:
    """The result in a folder, a path or URI. Raises SpecError if there is none."""
    folder = folder_at(path)
    Store(directory=folder).made_from()
    return Result(folder=folder)


def run(
    spec: SweepSpec | Mapping[str, Any] | Path | str,
    out: Location | None = None,
    *,
    workers: int | None = 0,
    fresh: bool = False,
) -> Result:
    """Run a sweep, or the part of it that is missing from `out` (default: results/NAME-HASH), and return its result.

    `spec` is the path of a YAML file, or the same as a mapping, whose paths are relative to the working directory. `workers`:
    0 runs in this process, None on all cores; a script that starts processes needs `if __name__ == "__main__":`. What the
    command prints as a warning is one here. Raises SimError, OSError; an interrupted run goes on when it is called again.
    """
    base = Path(spec).parent if isinstance(spec, Path | str) else Path()
    checked = load_spec(Path(spec)) if isinstance(spec, Path | str) else _checked(spec)
    prepared = prepare(checked, base)
    for warning in prepared.warnings:
        warnings.warn(warning, stacklevel=2)
    folder = folder_at(out or _RESULTS / f"{checked.name}-{prepared.sweep.identity[:8]}")
    store = Store(directory=folder)
    store.check(prepared.provenance, fresh=fresh)
    with opened(Kind.local, workers, LIMIT_S, "auto", folder) as executor:
        run_sweep(prepared, store, executor, fresh=fresh)
    return Result(folder=folder)


def _checked(source: SweepSpec | Mapping[str, Any]) -> SweepSpec:
    """A mapping as a spec. Raises SpecError."""
    if isinstance(source, SweepSpec):
        return source
    try:
        spec = SweepSpec.model_validate(dict(source))
    except ValidationError as error:
        raise first_error(error, "spec", {}, SweepSpec) from None
    problem = bare_size(source)
    if problem:
        raise SpecError(f"spec: {problem}")
    return spec


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise SpecError(f"{name} is not installed (pip install {name})") from None
