"""Columns of a result: the ledger of measures, one row each; the schema, other names of columns, and what defines a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from sim_core import (
    FOLLOWING,
    HARDWARE_KEYS,
    MEMORY_ROWS,
    METRIC_ROWS,
    METRICS,
    PARTS,
    Ints,
    PlanField,
    Plans,
    SpecError,
    Words,
    quantity,
)
from sim_core.limits import product
from sweep.spec.other_names import meant
from sweep.spec.space import Space, has_simai, number_axes, to_plans
from sweep.spec.values import FIELDS, STACK_AXIS

DEVICE_MEMORY = "device_memory_bytes"
Of = Literal["step", "part", "total", "memory", "rate", "utilisation", "cost", "goodput"]
Better = Literal["high", "low", "neither"]
Moves = Literal["proportional", "inverse", "neither"]


@dataclass(frozen=True)
class Column:
    """A measure of a plan. Ranking, ties and searches follow from its row, so what they read has no default.

    Raises ValueError for a row that contradicts itself.
    """

    name: str
    of: Of  # what is in proportion to time, but not of a step, is of a sample, a token or a second
    unit: str  # "%": a fraction that is shown in percent
    better: Better
    with_time: Moves  # how it moves with the seconds of a step, or of a sample
    _: KW_ONLY
    bounded: bool = True  # by a bound of the step: nothing else that it needs is known only by a simulation
    heading: str = ""  # in tables; accepted wherever a column is named
    label: str = ""  # in a report, which lacks columns without a label unless plans are ranked by them
    doc: str

    def __post_init__(self) -> None:
        for field, words in (("better", get_args(Better)), ("with_time", get_args(Moves))):
            if getattr(self, field) not in words:
                raise ValueError(f"column {self.name}: {field}: found {getattr(self, field)!r}, expected one of {words}")
        if (self.with_time, self.better) not in _CONSISTENT:
            raise ValueError(f"column {self.name}: {self.with_time} with time, but {self.better} is better")


_CONSISTENT = {("proportional", "low"), ("inverse", "high"), *(("neither", better) for better in get_args(Better))}
_THROUGHPUT = "throughput of the job; tokens need the sequence"
_PER_GPU = "the same FLOPs, and tokens, a second on each GPU"
_COST = "for the tokens of the [`budget`](costs.md)"
_FAILURES = "with [`failures`](costs.md): "
_MFU = (
    "model FLOPs utilisation: [FLOPs that the model asks for](models.md) (of a file 6 x active parameters x tokens) over the "
    "peak of all GPUs in bf16, also in FP8 and FP4; recompute does not count"
)
_HFU = (
    "hardware FLOPs utilisation: as `mfu`, with what recompute runs again counted once more (PaLM, arXiv 2204.02311, appendix "
    "B; with `full` arXiv 2104.04473, eq. 3). `selective` counts 4 B s² h a layer, what runs, where arXiv 2205.05198 has 12"
)
_MEASURED = "part of forward and backward compute by [kernels measured](kernels.md) on that very device, near that size"
_DEVICE = "what the device has, as CUDA reports it (79.1 GiB of an H100 of 80 GB)"
_SIMULATED = {row.name: row for row in METRIC_ROWS}
_STEP = _SIMULATED["step_time_s"]

ROWS = (  # name, of, unit, better, with_time
    Column(_STEP.name, "step", "s", "low", "proportional", heading=_STEP.heading, label="step time", doc=_STEP.doc),
    Column("samples_per_s", "rate", "1/s", "high", "inverse", heading="samples/s", label="samples/s", doc=_THROUGHPUT),
    Column("tokens_per_s", "rate", "1/s", "high", "inverse", heading="tokens/s", doc=_THROUGHPUT),
    Column(
        "gpu_s_per_sample", "rate", "s", "low", "proportional", heading="gpu-s/sample", label="GPU-s/sample",
        doc="GPU-seconds per sequence: compares plans of any size and batch",
    ),
    *(
        Column(name, "part", "s", "low", "neither", heading=_SIMULATED[name].heading, doc=_SIMULATED[name].doc)
        for name in PARTS
    ),
    *(
        Column(row.name, "total", "s", "low", "neither", doc=row.doc)
        for row in map(_SIMULATED.__getitem__, METRICS) if row.of == "total"
    ),
    *(
        Column(
            row.name, "memory", "bytes", "low", "neither", doc=row.doc,
            heading="peak_memory" * (row.of == "sum"), label="peak memory" * (row.of == "sum"),
        )
        for row in MEMORY_ROWS
    ),
    Column(DEVICE_MEMORY, "memory", "bytes", "neither", "neither", doc=_DEVICE),
    Column("mfu", "utilisation", "%", "high", "inverse", label="MFU", doc=_MFU),
    # what recompute runs again is known only when it is simulated
    Column("hfu", "utilisation", "%", "high", "inverse", bounded=False, doc=_HFU),
    Column("tflops_per_gpu", "utilisation", "TFLOP/s", "high", "inverse", doc=_PER_GPU),
    Column("tokens_per_s_per_gpu", "utilisation", "1/s", "high", "inverse", heading="tok/s/GPU", doc=_PER_GPU),
    Column("measured_share", "utilisation", "", "high", "neither", doc=_MEASURED),
    Column("training_days", "cost", "days", "low", "proportional", doc=_COST),
    Column("gpu_hours", "cost", "h", "low", "proportional", label="GPU-hours", doc=_COST),
    Column("usd", "cost", "USD", "low", "proportional", label="USD", doc=_COST),
    Column("energy_mwh", "cost", "MWh", "low", "proportional", doc=_COST),
    Column("goodput", "goodput", "%", "high", "neither", doc=f"{_FAILURES}part of the time that is work which counts"),
    Column("checkpoint_interval_s", "goodput", "s", "neither", "neither", doc=f"{_FAILURES}work between checkpoints"),
    Column("effective_tokens_per_s", "goodput", "1/s", "high", "inverse", doc=f"{_FAILURES}`tokens_per_s` x goodput"),
)  # fmt: skip
"""All measures, in the order of a result."""
COLUMNS = {row.name: row for row in ROWS}
MEASURES = tuple(COLUMNS)
LONGER = tuple(row.name for row in ROWS if row.with_time == "proportional")
SHORTER = tuple(row.name for row in ROWS if row.with_time == "inverse")
"""Columns in proportion to the time of a step of a plan, or to its inverse."""
SECTIONS: Mapping[str, Of] = {"budget": "cost", "failures": "goodput"}
"""Sections of a spec, and the measures that they fill."""
PERCENT = tuple(row.name for row in ROWS if row.unit == "%")
REPORTED = {row.name: row.label for row in ROWS if row.label}
"""Measures of a report, with their labels."""
SHORT_NAMES = {
    **{field.heading: name for name, field in FIELDS.items() if field.heading},
    **{row.heading: row.name for row in ROWS if row.heading and row.of != "part"},
}
"""Headings of the ranked table -> columns. Both are accepted wherever a column is named."""
SHORT_PARTS = {row.heading: row.name for row in ROWS if row.of == "part"}
"""The same of the parts of a step; with % in the table. SQL does not tell TP from tp, so conditions take the columns."""
RUNS = "runs_probability"
EXPECTED, EXPECTED_MEMORY = "expected_s", "expected_bytes"
"""Step and memory as expected on this cluster, once a step of the job is known: `Tuner.columns` makes them."""
NOT_STORED = {RUNS: "it follows from the memory and the stack; `sweep rank --where 'runs_probability > 0.5'` chooses by it"}
"""Columns that rankings show and no row holds: what to ask for in their place."""
NUMBERS = ("step_time_s", *PARTS, "peak_memory_bytes")
SIZES = ("all_gpus", "global_batch")
"""What tells two rows of a ranking apart: numbers of the result, and sizes of the job."""
UNITS = ("_s", "_bytes")
"""Endings that may be left out where a column is named."""
NO_CHOICE = ("rank", "plan", *FOLLOWING, "fidelity", "status", "reason")
"""Columns before the measures that are no choice of a plan."""
_WORD = pa.dictionary(pa.int32(), pa.string())
_KIND = {
    "number": pa.int64(), "switch": pa.bool_(), "ratio": pa.float64(), "factor": pa.float64(), "word": _WORD, "label": _WORD,
}  # fmt: skip
"""Types of the columns of plan fields, by kind."""


def measures_of(*kinds: Of) -> Words:
    """The measures of these kinds, in the order of a result."""
    return tuple(row.name for row in ROWS if row.of in kinds)


def higher_is_better(name: str) -> bool:
    """Whether the best plans have the highest values of a column; columns of plans begin with the lowest."""
    return name in COLUMNS and COLUMNS[name].better == "high"


def result_column(name: str, columns: Sequence[str]) -> str:
    """The result column that `name` means; a table heading or a name without its unit is accepted. Raises SpecError."""
    bare = name.strip().removeprefix("hardware.").removesuffix("%")
    short = SHORT_NAMES.get(bare, SHORT_PARTS.get(bare, bare))
    for candidate in (short, *(short + unit for unit in UNITS)):
        if candidate in columns:
            return candidate
    if short in NOT_STORED:
        raise SpecError(f"no row holds {short}: {NOT_STORED[short]}")
    raise SpecError(f"unknown column {name!r}, {meant(short, columns)}")


def other_names(columns: Sequence[str]) -> dict[str, str]:
    """Further names of these columns in a condition: headings that SQL can read, and names without their unit."""
    known = {name.lower() for name in columns}
    names = {short: name for short, name in SHORT_NAMES.items() if name in columns and short.isidentifier()}
    for unit in UNITS:
        names |= {name.removesuffix(unit): name for name in columns if name.endswith(unit) and not name.endswith("per_s")}
    return {short: name for short, name in names.items() if short.lower() not in known}


def names_of_hardware(columns: Sequence[str]) -> list[str]:
    """Columns of hardware numbers as a spec names them: `hardware.nic_bandwidth`."""
    return [f"hardware.{name}" for name in columns if name in HARDWARE_KEYS]


def result_schema(space: Space) -> pa.Schema:
    """Columns of the result, without provenance."""
    types = {"plan": pa.int64()} | {field.name: _KIND[field.kind] for field in plan_columns(space)}
    types |= ({STACK_AXIS: _WORD} if space.stack_names else {}) | {"hardware": _WORD}
    types |= {column_name(name): pa.float64() for name in number_axes(space.labels)}
    types |= dict.fromkeys(("fidelity", "status", "reason"), _WORD)
    defining = [pa.field(name, kind, nullable=False) for name, kind in types.items()]
    return pa.schema([*defining, *(pa.field(name, pa.float64()) for name in MEASURES)])


def plan_columns(space: Space) -> list[PlanField]:
    """Fields of plans with a column each before that of the hardware, in their order; that of the fidelity comes after it."""
    simai = has_simai(space)
    return [
        field for name, field in FIELDS.items()
        if name != "fidelity" and (not field.unusual or name in space.named) and (simai or not field.only_simai)
    ]  # fmt: skip


def column_name(label: str) -> str:
    """Result column of an axis over a hardware number, named so that SQL needs no quotes."""
    return label.removeprefix("hardware.")


def describe(space: Space, columns: Mapping[str, Ints], plans: Plans, numbers: Ints) -> dict[str, pa.Array]:
    """The columns that define the plan of each row: all columns of the schema before the status."""
    dp = plans.all_gpus // (plans.tp * plans.cp * plans.pp)
    values = plans._asdict() | {
        "dp": dp,
        "dp_shard": np.where(plans.dp_shard > 0, plans.dp_shard, dp * plans.cp),
        "global_batch": columns.get("global_batch", product(product(dp, plans.micro_batch), plans.ga)),
    }
    described = {"plan": pa.array(numbers)}
    for field in (*plan_columns(space), FIELDS["fidelity"]):
        name = field.name
        if field.label:
            described[name] = words(columns[name], space.labels[name])
        elif field.words:
            described[name] = words(values[name], field.words)
        else:
            described[name] = pa.array(values[name] == 1 if field.kind == "switch" else values[name])
    if space.stack_names:
        described[STACK_AXIS] = words(columns[STACK_AXIS], space.stack_names)
    described["hardware"] = words(columns.get("hardware", np.zeros_like(numbers)), space.hardware_names)
    for label in number_axes(space.labels):
        name = column_name(label)
        si = np.array([quantity(value, HARDWARE_KEYS[name][1]) for value in space.labels[label]])
        described[name] = pa.array(si[columns[label]])
    return described


def describe_rows(space: Space, positions: Ints) -> tuple[dict[str, pa.Array], Plans]:
    """The plans at `positions`, as result columns and as columns for the simulator."""
    numbers = space.numbers(positions)
    columns = space.decode(numbers)
    plans = to_plans(columns, space)
    return describe(space, columns, plans, numbers), plans


def words(codes: Ints, names: Words) -> pa.DictionaryArray:
    """A column of words from their codes."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names, pa.string()))
