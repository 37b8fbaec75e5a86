"""Range of plans -> Arrow batch: decode, check, simulate. The only thing that a worker runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sim_core import (
    FIDELITIES,
    FIRST_FAILURE,
    HARDWARE_KEYS,
    METRICS,
    PARTS,
    REASON,
    REASONS,
    STATUSES,
    Hardware,
    HardwareTable,
    Plans,
    SpecError,
    Workload,
    hardware_table,
    legality,
    nearest,
    quantity,
    read_hardware,
    read_workload,
    simulate,
    slice_plans,
    source_hash,
)
from sweep.space import SWITCH_COLUMNS, WORD_COLUMNS, Space, build_space, number_axes, product, ratio_columns, to_plans
from sweep.spec import SweepSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PLAN_NUMBERS: Final = ("tp", "pp", "vpp", "ep", "dp", "all_gpus", "micro_batch", "ga", "global_batch", "bucket_bytes")
RATES: Final = ("samples_per_s", "tokens_per_s", "gpu_s_per_sample")
TOTALS: Final = tuple(name for name in METRICS if name not in PARTS and name != "step_time_s")
MEASURES: Final = ("step_time_s", *RATES, *PARTS, *TOTALS, "state_bytes")
_WORD = pa.dictionary(pa.int16(), pa.string())


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a worker needs besides a range of positions; immutable and picklable."""

    workload: Workload
    hardware: HardwareTable
    hardware_names: tuple[str, ...]
    space: Space
    where: tuple[str, ...]
    identity: str

    @property
    def schema(self) -> pa.Schema:
        """Columns of the result, without provenance."""
        fields = [pa.field("plan", pa.int64(), nullable=False)]
        fields += [pa.field(name, pa.int64(), nullable=False) for name in PLAN_NUMBERS]
        fields += [pa.field(name, _WORD, nullable=False) for name in (*WORD_COLUMNS, "checkpointing")]
        fields += [pa.field(name, pa.bool_(), nullable=False) for name in SWITCH_COLUMNS]
        fields += [pa.field(name, pa.float64(), nullable=False) for name in ratio_columns(self.space)]
        fields += [pa.field("hardware", _WORD, nullable=False)]
        fields += [pa.field(column_name(name), pa.float64(), nullable=False) for name in number_axes(self.space.labels)]
        fields += [pa.field(name, _WORD, nullable=False) for name in ("fidelity", "status", "reason")]
        fields += [pa.field(name, pa.float64()) for name in MEASURES]
        return pa.schema(fields)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job with what the user should hear about it."""

    job: Job
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    provenance: dict[str, Any]

    def without_sample(self) -> Prepared:
        """The same with every plan of the space, so that positions are plan numbers."""
        space = replace(self.job.space, sample=None)
        return replace(self, job=replace(self.job, space=space))


def column_name(label: str) -> str:
    """Result column of an axis over a hardware number: SQL needs no quotes for it."""
    return label.removeprefix("hardware.")


def prepare(spec: SweepSpec, base: Path) -> Prepared:
    """Read what the spec names (relative to `base`) and build the job. Raises SimError, OSError."""
    given = spec.workload
    path = base / given.path
    try:
        workload, warnings = read_workload(
            str(path), micro_batch=given.micro_batch, sequence=given.sequence, measured_on=given.measured_on
        )
    except (OSError, ValueError) as error:
        raise SpecError(f"workload.path: {getattr(error, 'strerror', None) or error}: {path}") from None
    measured_on = read_hardware(given.measured_on, base) if given.measured_on else None
    space, variants = build_space(spec, workload, base)
    table = hardware_table(variants, measured_on)
    notes = [
        *workload.notes,
        "memory: only the model's state is checked (state_bytes); activations are not in the workload",
    ]
    if measured_on is None:
        notes.append("compute times are as in the workload on every device (workload.measured_on is not set)")
    if spec.sample and spec.sample.n > space.size:
        notes.append(f"sample.n: {spec.sample.n} is more than the space has: all {space.size} plans are taken")
    changed = {key: value for key, value in spec.hardware.items() if key in HARDWARE_KEYS}
    if changed:
        notes.append("hardware: the preset with " + ", ".join(f"{key} {value}" for key, value in changed.items()))
    if workload.sequence is None:
        notes.append("tokens_per_s is not known (set workload.sequence)")
    identity = _identity(spec, workload, variants, table, space)
    names = tuple(dict.fromkeys(variant.name for variant in variants))
    job = Job(
        workload=workload,
        hardware=table,
        hardware_names=names,
        space=space,
        where=spec.where,
        identity=identity,
    )
    _check_where(job)
    _check_ranking(spec, job)
    provenance = {
        "sweep": identity,
        "name": spec.name,
        "spec": json.loads(spec.model_dump_json()),
        "workload": workload.content,
        "model": source_hash(),
        "plans": space.size,
        "rows": space.count,
        "hardware": [variant.model_dump() for variant in variants[:64]],
        "notes": notes,
        "held": list(space.defaults),
    }
    return Prepared(job=job, warnings=warnings, notes=tuple(notes), provenance=provenance)


def _identity(spec: SweepSpec, workload: Workload, variants: list[Hardware], table: HardwareTable, space: Space) -> str:
    """Hash of all that can change a row: plans, contents of workload and hardware, constraints, model. Not names, paths."""
    digest = hashlib.sha256()
    plain = spec.model_dump(mode="json")
    chosen = {key: plain[key] for key in ("axes", "where", "sample")}
    digest.update(json.dumps(chosen).encode())
    digest.update(json.dumps([sorted(space.held.items()), sorted(space.labels.items())]).encode())
    digest.update(json.dumps([variant.name for variant in variants]).encode())
    for column in table:
        digest.update(column.tobytes())
    digest.update(f"{workload.content} {source_hash()}".encode())
    return digest.hexdigest()


def evaluate(job: Job, positions: Ints, lost: int | None = None) -> pa.RecordBatch:
    """One row for each position. `lost`: the reason code of plans that are legal but not to be simulated at all."""
    numbers = job.space.numbers(positions)
    columns = job.space.decode(numbers)
    plans = to_plans(columns, job.space)
    described = _describe(job, columns, plans, numbers)
    excluded = ~_where(job, described)
    legal = plans if not excluded.any() else slice_plans(plans, ~excluded)
    reason = np.full(len(numbers), REASON["excluded_by_where"], np.int64)
    metrics = np.full((len(METRICS), len(numbers)), np.nan)
    state_bytes = np.full(len(numbers), np.nan)
    if lost is None:
        reason[~excluded], metrics[:, ~excluded], state_bytes[~excluded] = simulate(job.workload, job.hardware, legal)
    else:
        checked, state_bytes[~excluded] = legality(job.workload, job.hardware, legal)
        reason[~excluded] = np.where(checked == 0, lost, checked)
    return _batch(job, described, plans, reason, dict(zip(METRICS, metrics, strict=True)) | {"state_bytes": state_bytes})


def _describe(job: Job, columns: Mapping[str, Ints], plans: Plans, numbers: Ints) -> dict[str, pa.Array]:
    """The columns that say which plan a row is."""
    dp = plans.all_gpus // (plans.tp * plans.pp)
    given = plans._asdict() | {
        "dp": dp,
        "global_batch": columns.get("global_batch", product(product(dp, plans.micro_batch), plans.ga)),
    }
    described = {"plan": pa.array(numbers)}
    described |= {name: pa.array(given[name]) for name in PLAN_NUMBERS}
    described |= {name: _words(given[name], words) for name, words in WORD_COLUMNS.items()}
    described["checkpointing"] = _words(columns["checkpointing"], job.space.labels["checkpointing"])
    described |= {name: pa.array(given[name] == 1) for name in SWITCH_COLUMNS}
    described |= {name: pa.array(given[name]) for name in ratio_columns(job.space)}
    described["fidelity"] = _words(plans.fidelity, FIDELITIES)
    described["hardware"] = _words(columns.get("hardware", np.zeros_like(numbers)), job.hardware_names)
    for label in number_axes(job.space.labels):
        unit = HARDWARE_KEYS[column_name(label)][1]
        values = np.array([quantity(value, unit) for value in job.space.labels[label]])
        described[column_name(label)] = pa.array(values[columns[label]])
    return described


def _words(codes: Ints, words: tuple[str, ...]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int16)), pa.array(words, pa.string()))


def _where(job: Job, described: Mapping[str, pa.Array]) -> npt.NDArray[np.bool_]:
    """Which rows satisfy all constraints; NULL counts as false. Raises SpecError where one cannot be evaluated."""
    if not job.where:
        return np.ones(len(described["plan"]), np.bool_)
    condition = " AND ".join(f"({expression})" for expression in job.where)
    with _database(described) as connection:
        try:
            found = connection.sql(f"SELECT coalesce({condition}, false) AS kept FROM plans").to_arrow_table()
        except duckdb.Error as error:
            raise SpecError(f"where: {condition}: {_one_line(error, described)}") from None
    kept: npt.NDArray[np.bool_] = found.column("kept").to_numpy().astype(np.bool_)
    return kept


@contextmanager
def _database(described: Mapping[str, pa.Array]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database that holds nothing but the plans and cannot reach anything else."""
    with duckdb.connect(config={"threads": "1"}) as connection:
        connection.register("plans", pa.table(described))
        connection.execute("SET enable_external_access = false").fetchall()
        yield connection


_NOT_OF_ONE_PLAN = re.compile(
    r"\b(select|from|random|setseed|uuid|gen_random_uuid|now|current_\w+|today|getdate)\b", re.IGNORECASE
)


def _check_where(job: Job) -> None:
    """Try each constraint on the first plan, so that a fault is told before anything runs.

    It has to be one condition on one plan, the same whenever and on whichever slice it is evaluated: no aggregate or window
    (as a WHERE clause it may hold none), no subquery, nothing random.
    """
    columns = job.space.decode(job.space.numbers(np.zeros(1, np.int64)))
    described = _describe(job, columns, to_plans(columns, job.space), np.zeros(1, np.int64))
    with _database(described) as connection:
        for expression in job.where:
            word = _NOT_OF_ONE_PLAN.search(re.sub(r"'[^']*'", "''", expression))
            if word:
                raise SpecError(f"where: {expression!r}: found {word[0]!r}, expected a condition on one plan's columns")
            try:
                connection.sql(f"SELECT plan FROM plans WHERE ({expression})").to_arrow_table()
                found = connection.sql(f"SELECT {expression} FROM plans").to_arrow_table().schema
            except duckdb.Error as error:
                raise SpecError(f"where: {expression!r}: {_one_line(error, described)}") from None
            if len(found) != 1 or not pa.types.is_boolean(found.field(0).type):
                raise SpecError(f"where: {expression!r}: found a value of type {found.field(0).type}, expected true or false")


def _check_ranking(spec: SweepSpec, job: Job) -> None:
    """The columns of `objectives` and `per` must be there, and known, before anything runs."""
    for key, names in (("objectives", [objective.column for objective in spec.objectives]), ("per", spec.per)):
        for name in names:
            try:
                found = result_column(name, job.schema.names)
            except SpecError as error:
                raise SpecError(f"{key}: {error}") from None
            if found == "tokens_per_s" and job.workload.sequence is None:
                raise SpecError(f"{key}: tokens_per_s needs workload.sequence, the tokens of a sample")


SHORT_NAMES: Final = {
    "step": "step_time_s",
    "gpus": "all_gpus",
    "mbs": "micro_batch",
    "batch": "global_batch",
    "ckpt": "checkpointing",
    "samples/s": "samples_per_s",
    "tokens/s": "tokens_per_s",
    "gpu-s/sample": "gpu_s_per_sample",
}
"""Heads of the ranked table -> columns; both are understood wherever a column is named."""


def result_column(name: str, columns: Sequence[str]) -> str:
    """The result column that `name` means; a head of the table and a name without `_s` are understood. Raises SpecError."""
    short = SHORT_NAMES.get(name.strip(), name.strip().removeprefix("hardware."))
    for candidate in (short, f"{short}_s"):
        if candidate in columns:
            return candidate
    raise SpecError(f"unknown column {name!r}, {nearest(short, columns)}")


def _one_line(error: duckdb.Error, columns: Mapping[str, object]) -> str:
    """The database's message in one line, with the nearest column instead of its own candidates."""
    text = str(error).splitlines()[0]
    unknown = re.search(r'column "([^"]*)" not found', text)
    if not unknown:
        return text
    later = " (it is known after the run: sweep rank --where)" if unknown[1] in MEASURES else ""
    return f"unknown column {unknown[1]!r}{later}, {nearest(unknown[1], columns)}"


def _batch(job: Job, described: dict[str, pa.Array], plans: Plans, reason: Ints, values: dict[str, Floats]) -> pa.RecordBatch:
    """The result's columns in the order of the schema; what is not known is null."""
    status = np.where(reason == 0, 0, np.where(reason >= FIRST_FAILURE, 2, 1))
    samples = described["global_batch"].to_numpy().astype(np.float64)
    values["samples_per_s"] = samples / values["step_time_s"]
    values["tokens_per_s"] = values["samples_per_s"] * (job.workload.sequence or np.nan)
    values["gpu_s_per_sample"] = plans.all_gpus * values["step_time_s"] / samples
    arrays = dict(described)
    arrays["status"] = _words(status, STATUSES)
    arrays["reason"] = _words(reason, REASONS)
    arrays |= {name: pa.array(column, mask=np.isnan(column)) for name, column in values.items()}
    schema = job.schema
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
