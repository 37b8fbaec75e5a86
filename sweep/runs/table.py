"""A measured run as one record: what was trained, how, on what, and what came out; tables of them (CSV), read and written.

`model`, `stack` and `hardware` hold what the keys of a spec hold: a name, or a mapping such as {preset: nemo, jitter: 0.01}. A
plan has a column for each of its fields that a run states. `benchmarks/import_runs.py` makes such tables of free text.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path

from sim_core import (
    PLAN_FIELDS,
    STACK_FACTS,
    FormatError,
    Hardware,
    Model,
    SpecError,
    Stack,
    parse_model,
    read_hardware,
    read_model,
    read_stack,
    shown,
)
from sim_core.documents import Fields, Values, parse_yaml
from sweep.frameworks.stacks import assumed
from sweep.options import OptionError
from sweep.runs.cells import cell_of, misfit, number_in, value_in
from sweep.spec.document import cells_by_column, read_csv

DATA = Path(__file__).parent / "data"
PUBLISHED = (DATA / "measured.csv", DATA / "ultrascale.csv", DATA / "fresh.csv")
"""The tables that ship with the product; every row with its source and licence."""
LABELS = (
    "id", "set", "source", "licence", "quality", "framework", "hw", "interconnect", "model_name", "release",
    "dispatcher_library", "features", "notes", "assumed",
)  # fmt: skip
"""What a run is called and where it comes from, as its publisher writes it: no number follows from it but `quality`. `assumed`:
what is taken for what we have not or the run does not state, such as the nearest device."""
CELLS = ("model", "stack", "hardware", "sequence_parallel")
SIZES = ("all_gpus", "tp", "cp", "pp", "vpp", "ep", "micro_batch", "global_batch", "ga")
FIELDS = tuple(name for name, field in PLAN_FIELDS.items() if field.is_set)
OUTCOME = ("state", "step_time_s", "peak_memory_gib", "memory_kind", "reason")
COLUMNS = (*LABELS, *CELLS, *SIZES, *(name for name in FIELDS if name not in SIZES), *OUTCOME)
REQUIRED = ("set", "model", "stack", "hardware", "all_gpus", "micro_batch", "step_time_s")
NUMBERS = ("step_time_s", "peak_memory_gib")
LARGEST_NUMBER = 1e15
OK = "ok"
FAILED = "failed"
COMPOSED = "composed"
QUALITIES = {
    OK: "scored",
    FAILED: "did not finish: asked is whether its plan can run and fits",
    COMPOSED: "put together from profiles of single layers, not measured",
    "inconsistent": "cannot be right as published",
    "erratic": "goes up and down in everything, or a known regression",
    "dtype_suspect": "the precision it is labelled with is not the one it was timed in",
    "sleep": "waited for polled messages, which a later version of its framework does not",
    "sixty_four_nodes": "slower than at half the size, for a cause that nobody has found",
    "sibling": "1.6 times as slow as runs of the same plan",
}  # fmt: skip
"""How far the figures of a run can be trusted, and what that means."""
OUT_OF_MEMORY = "oom"
REFUSED = "refused"
STATES = {OK: "ran", OUT_OF_MEMORY: "did not fit", REFUSED: "its plan cannot run", "crash": "failed for another cause"}
FIRST_STAGE = ", first stage"
"""What a `memory_kind` ends with that was read on a rank of the first stage; else it is that of the fullest."""
NOT_MODELLED = "not modelled"
KINDS = ("allocated", "reserved", "nvidia-smi", "device", NOT_MODELLED)
"""What a memory reading shows: tensors, what the allocator reserves, what the driver shows, all that is in use; or the
run keeps single tensors of a layer, or some on the host, which no whole module tells."""
WORDS = {
    "sequence_parallel": ("true", "false"), "quality": tuple(QUALITIES), "state": tuple(STATES), "memory_kind": KINDS,
}  # fmt: skip
"""Columns that hold one of some words."""
CLOSE = 0.8
"""How alike a heading must be to a column that is missing to be taken for a slip of the pen."""
FREE_TEXT = {"iter_ms", "gpus", "dtype", "interconnect", "recompute"}
"""Columns of tables of others, in free text, of which no table of runs has two."""
STATED = "stated by the run"
"""The source of a network that is a run's own."""


class NotSimulated(Exception):
    """The run lacks something, or asks for something that the simulator does not have; the message says what."""


class Row:
    """A measured run: checked texts by column; an empty text is "not stated"."""

    def __init__(self, where: str, values: Mapping[str, str]) -> None:
        self.where = where
        """path:line"""
        self.values = values

    def text(self, key: str) -> str:
        """The text of a column; empty if the table has no such column."""
        return self.values.get(key, "")

    def size(self, key: str) -> int:
        """A size of its plan; 1 where it states none."""
        return int(self.text(key) or 1)

    def number(self, key: str) -> float | None:
        """A number above 0, or None."""
        return float(text) if (text := self.text(key)) else None

    @property
    def quality(self) -> str:
        """How far its publisher's figures can be trusted; without the column: ok."""
        return self.text("quality") or OK

    @property
    def out_of_memory(self) -> bool:
        """It did not run because a GPU's memory was too small."""
        return self.text("state") == OUT_OF_MEMORY

    @cached_property
    def plan(self) -> Fields:
        """The fields of its plan that it states, by the names of `sim_core.plans`, and sizes of 1."""
        own = {name: value_in(name, self.text(name)) for name in FIELDS if self.text(name)}
        return {"tp": 1, "cp": 1, "pp": 1, "vpp": 1, "ep": 1, **own}

    @property
    def model(self) -> Model:
        """What it trains. Raises NotSimulated, SpecError."""
        if not self.text("model"):
            raise NotSimulated(self.text("reason") or "not stated: model")
        return _model(self.text("model"))

    @property
    def has_experts(self) -> bool:
        """Whether it trains a model with experts; one that cannot be read counts as dense."""
        return bool(self.text("model")) and self.model.experts is not None

    def stack(self, base: Stack | None = None) -> Stack:
        """The page that it names, or `base`, with the facts that it states. Raises NotSimulated, SpecError."""
        if not self.text("stack"):
            raise NotSimulated("not stated: stack")
        page, facts = _stack(self.text("stack"))
        return (base or page).model_copy(update=dict(facts))

    @property
    def hardware(self) -> Hardware:
        """What it ran on. Raises NotSimulated, SpecError."""
        if not self.text("hardware"):
            raise NotSimulated(self.text("reason") or "not stated: hardware")
        return _hardware(self.text("hardware"))

    @property
    def sequence_parallel(self) -> bool | None:
        """Whether its norms are divided by tp, too; None where it does not say."""
        return self.text("sequence_parallel") == "true" if self.text("sequence_parallel") else None


@cache
def _mapping(text: str, key: str) -> Values:
    """A name, or a mapping in YAML, as a mapping. Raises SpecError."""
    value = parse_yaml(text, key)[0] if text.startswith("{") else {"preset": text}
    return value if isinstance(value, Mapping) else {"preset": text}


@cache
def _model(text: str) -> Model:
    given = dict(_mapping(text, "model"))
    preset = given.pop("preset", None)
    return parse_model(given, "model") if preset is None else read_model(str(preset), given)


@cache
def _stack(text: str) -> tuple[Stack, Values]:
    """The page of a stack, by its own name or that of a framework that it stands for, and facts in SI."""
    given = dict(_mapping(text, "stack"))
    name, framework = str(given.pop("preset", "")), given.pop("framework", None)
    page = read_stack(name)
    if framework:
        page = page.model_copy(update={"name": assumed(str(framework), name)})
    for fact in given:
        if fact not in STACK_FACTS:
            raise SpecError(f"stack: {shown(fact)}: unknown fact")
    return page, {fact: STACK_FACTS[fact].read(value) for fact, value in given.items()}


@cache
def _hardware(text: str) -> Hardware:
    given = dict(_mapping(text, "hardware"))
    preset = read_hardware(str(given.pop("preset", "")))
    if "nic_bandwidth" in given:
        given["nic_bandwidth"] = {"value": given["nic_bandwidth"], "source": STATED}
    return preset.with_values(given)


def read_table(path: Path) -> list[Row]:
    """The runs of a table. Raises FormatError (`path:line: column: found X, expected Y`)."""
    name, lines = str(path), read_csv(path)
    _, columns = next(lines, (1, []))
    if len(FREE_TEXT & set(columns)) > 1 and "all_gpus" not in columns:
        hint = f"a table of runs: python benchmarks/import_runs.py {name} -o RUNS.csv makes one of it"
        raise FormatError(name, 1, "heading", found="columns in free text (iter_ms, gpus, dtype, ...)", expected=hint)
    check_columns(name, columns, COLUMNS, REQUIRED)
    rows = []
    for number, cells in lines:
        row = Row(f"{name}:{number}", cells_by_column(path, number, columns, cells))
        _check(name, number, row)
        rows.append(row)
    if not rows:
        raise FormatError(name, 1, "no runs", expected="a row a run below the heading")
    return rows


def published_rows() -> list[Row]:
    """The runs that ship with the product, of all tables."""
    return [row for table in PUBLISHED for row in read_table(table)]


def runs_text(rows: Iterable[Mapping[str, object]]) -> str:
    """Runs as the text of a table: the columns that some of them state. Mappings are written as a spec has them."""
    cells = [{name: cell_of(value) for name, value in row.items()} for row in rows]
    columns = [name for name in COLUMNS if name in REQUIRED or any(row.get(name) for row in cells)]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(cells)
    return out.getvalue()


def check_columns(name: str, columns: Sequence[str], known: Sequence[str], required: Sequence[str]) -> None:
    """Raises FormatError for columns that are missing, misspelt or there twice; others that we do not know have no effect."""
    if not columns:
        raise FormatError(name, 1, "empty file", expected=f"a heading with at least {', '.join(required)}")
    twice = [column for column in columns if columns.count(column) > 1]
    if twice:
        raise FormatError(name, 1, f"column {shown(twice[0])}", found="it twice", expected="each name once")
    missing = [column for column in known if column not in columns]
    for column in columns:
        if column not in known and (close := get_close_matches(column[:100], missing, n=1, cutoff=CLOSE)):
            raise FormatError(name, 1, "column", found=shown(column), expected=close[0])
    for column in required:
        if column not in columns:
            heading = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
            raise FormatError(name, 1, f"column {column}", found=shown(heading, 100), expected="it in the heading")


def _check(name: str, line: int, row: Row) -> None:
    """Each cell is what its column takes, and a run has a set and a size."""

    def wrong(column: str, expected: str) -> FormatError:
        return FormatError(name, line, column, found=shown(row.text(column)), expected=expected)

    for column in FIELDS:
        if (text := row.text(column)) and (expected := misfit(column, text)):
            raise wrong(column, expected)
    for column in NUMBERS:
        if (text := row.text(column)) and not 0 < number_in(text) <= LARGEST_NUMBER:
            raise wrong(column, f"a number above 0 and up to {LARGEST_NUMBER:g}")
    for column, words in WORDS.items():
        if (text := row.text(column)) and text.removesuffix(FIRST_STAGE) not in words:
            raise wrong(column, "one of " + ", ".join(words))
    for column, what in (("set", "a name"), ("all_gpus", "a number")):
        if not row.text(column) and not row.text("reason"):
            raise wrong(column, what)
    for column in CELLS[:3]:
        try:
            _mapping(row.text(column), column)
        except SpecError as error:
            raise wrong(column, f"a name or a mapping ({error})") from None


def rows_of_set(rows: list[Row], name: str | None) -> list[Row]:
    """The measured runs of the set that `--set` names; all without it. Raises SpecError."""
    chosen = [row for row in rows if name is None or row.text("set") == name]
    if not chosen and name is not None:
        raise OptionError(f"--set {name}: found none, valid: {', '.join(sorted({row.text('set') for row in rows}))}")
    return chosen
