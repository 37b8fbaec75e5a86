"""What if the job or its machine were another: a plan as it is, the same plan then, and the best plan then."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sim_core import SpecError, Workload, named
from sweep.evaluation.one_plan import row_of
from sweep.evaluation.preparation import Prepared, prepare
from sweep.executors import InlineExecutor
from sweep.explaining.among import within
from sweep.explaining.neighbours import HARDWARE, pinned
from sweep.options import OptionError
from sweep.ranking.error_bars import COLUMNS
from sweep.ranking.ranking import objectives_of, rank
from sweep.reopening import Reopened
from sweep.results.folder import folder_at
from sweep.results.store import Store
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search
from sweep.spec.document import first_error
from sweep.spec.spec import SweepSpec
from sweep.spec.values import STACK_AXIS

_STEP: Final = "step_time_s"
_ENDS: Final = COLUMNS[:2]
"""The interval of a step."""
_SIZES: Final = ("all_gpus", "dp", "ga", "global_batch")
"""Fields that say how large the job is. A question keeps the tokens of a step, and the GPUs unless it is about them."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be another: GPUs, bandwidth of a NIC, device, tokens of a sequence, tokens to train on, USD a GPU-hour."""

    gpus: int | None = None
    nic: str | None = None
    device: str | None = None
    sequence: int | None = None
    tokens: str | None = None
    price: float | None = None

    @property
    def words(self) -> list[str]:
        """The changes, one each."""
        said = {
            "{:,} GPUs": self.gpus, "NIC {}": self.nic, "{}": self.device, "sequence {:,}": self.sequence,
            "{} tokens": self.tokens, "{:g} USD a GPU-hour": self.price,
        }  # fmt: skip
        return [text.format(value) for text, value in said.items() if value is not None]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """Rows of the plan now, of the same plan under the change, and of the best plan then; None where no plan can run.

    Each has `sequence` and `nic_bandwidth`, and the interval of its step where errors are known.
    """

    before: dict[str, Any]
    same: dict[str, Any]
    after: dict[str, Any] | None
    searched: int  # plans of the space that the best one is of
    notes: tuple[str, ...]


def what_if(opened: Reopened, number: int, question: Question) -> WhatIf:
    """Answer a question about plan `number` of a result. Raises SimError, OSError."""
    if not question.words:
        raise OptionError("OPTIONS: found none, expected one of --gpus, --nic, --device, --sequence, --tokens, --price")
    before = row_of(opened.prepared, number)
    if before["status"] != "ok":
        raise SpecError(f"plan {number} is {before['status']}: {before['reason']}")
    workload = opened.prepared.sweep.of_plan(number).workload
    if question.device is not None and workload.from_file and opened.spec.workload.measured_on is None:
        raise OptionError(
            f"--device {question.device}: the file does not say on which device its times were recorded, so they cannot be"
            " moved to another: run the sweep with workload.measured_on"
        )
    batch, notes = _batch(workload, before, question)
    sections = pinned(opened, number, before)
    hardware, fixed = sections["hardware"], sections.pop("fixed")
    now = opened.spec.model_dump(mode="json") | {"sample": None, "per": [], **sections}
    now |= _budget(opened.spec, question)
    now["axes"] = dict(now["axes"])
    _drop(now["axes"], [name for key in now["axes"] for name in key.split(",") if name.startswith((HARDWARE, STACK_AXIS))])
    one = now | {"axes": {}, "fixed": fixed, "where": []}
    plan = _changed(one, question, int(before["all_gpus"]), batch)
    before = _row(_prepared(one, opened.base)) | {"plan": number} | _interval(opened, before)
    if question.device is not None:
        own = [name for name in hardware if name != "preset"]
        notes += [f"hardware numbers of this result are not those of {question.device}: {', '.join(own)}"] if own else []
    then = _changed(now, question, int(before["all_gpus"]), batch)
    if workload.sequence and question.sequence and question.sequence > workload.sequence:
        notes += _longer(then["axes"], then["fixed"], question.sequence / workload.sequence)
    space = _prepared(then, opened.base)
    after = _best(space, opened.spec)
    return WhatIf(
        before=before,
        same=_without_number(_row(_prepared(plan, opened.base))),
        after=after,
        searched=space.sweep.space.size,
        notes=tuple(notes),
    )


def _row(prepared: Prepared, number: int = 0) -> dict[str, Any]:
    """The row of a plan with what a question may change besides: the tokens of a sequence, the bandwidth of a NIC."""
    row, sweep = row_of(prepared, number), prepared.sweep
    own = {"sequence": sweep.workload.sequence, "nic_bandwidth": sweep.hardware.variants[0].value("nic_bandwidth")}
    return own | row


def _without_number(row: dict[str, Any]) -> dict[str, Any]:
    """A row of another space: its number means nothing in this result."""
    return {name: value for name, value in row.items() if name != "plan"}


def _interval(opened: Reopened, row: Mapping[str, Any]) -> dict[str, float]:
    """The interval of the step of a plan of a result, where errors are known."""
    found = within(opened, row)
    return {} if found is None else dict(zip(_ENDS, (row[_STEP] * found.low, row[_STEP] * found.high), strict=True))


def _longer(axes: dict[str, Any], fixed: dict[str, Any], times: float) -> list[str]:
    """Add to the space the context parallelism that a longer sequence asks for, and say so."""
    if any("cp" in key.split(",") and key != "cp" for key in axes):
        return []
    had = axes["cp"] if isinstance(axes.get("cp"), list) else [fixed.get("cp", 1)] if "cp" not in axes else []
    if not had:
        return []
    most, more = max(had) * times, max(had) * 2
    wider = list(had)
    while more <= most:
        wider.append(more)
        more *= 2
    if len(wider) == len(had):
        return []
    fixed.pop("cp", None)
    axes["cp"] = wider
    return [f"the sequence is {times:g} x as long: cp {', '.join(map(str, wider[len(had) :]))} searched, too"]


def _batch(workload: Workload, row: Mapping[str, Any], question: Question) -> tuple[int, list[str]]:
    """Sequences of a step with as many tokens as before, and what to say of it."""
    batch, tokens = int(row["global_batch"]), workload.sequence
    if question.sequence is None:
        return batch, []
    if not tokens or workload.from_file:
        raise OptionError("--sequence: a workload file tells the times of its own sequence only")
    then = max(round(batch * tokens / question.sequence), 1)
    return then, [f"{then:,} sequences of {question.sequence:,} tokens a step, as many tokens as {batch:,} of {tokens:,}"]


def _budget(spec: SweepSpec, question: Question) -> dict[str, Any]:
    """The budget with another number of tokens, or price."""
    given = {"tokens": question.tokens, "usd_per_gpu_hour": question.price}
    stated = {name: value for name, value in given.items() if value is not None}
    if not stated:
        return {}
    if spec.budget is None and question.tokens is None:
        raise OptionError("--price: the result has no budget; say --tokens, too")
    return {"budget": {**(spec.budget.model_dump(mode="json") if spec.budget else {}), **stated}}


def _changed(document: Mapping[str, Any], question: Question, gpus: int, batch: int) -> dict[str, Any]:
    """A spec under the change: one size of the job, the device and network that were asked for, all else as it was."""
    axes, fixed = dict(document["axes"]), dict(document["fixed"])
    _drop(axes, _SIZES)
    for name in _SIZES:
        fixed.pop(name, None)
    fixed |= {"all_gpus": gpus if question.gpus is None else question.gpus, "global_batch": batch}
    hardware = dict(document["hardware"])
    if question.device is not None:
        hardware = {"preset": question.device}
    if question.nic is not None:
        hardware["nic_bandwidth"] = question.nic
    workload = document["workload"]
    if question.sequence is not None:
        workload = {**workload, "sequence": question.sequence}
    return {**document, "axes": axes, "fixed": fixed, "hardware": hardware, "workload": workload}


def _drop(axes: dict[str, Any], names: list[str] | tuple[str, ...]) -> None:
    """Take axes away. Raises SpecError for one that is zipped with another."""
    for key in [key for key in axes if set(key.split(",")) & set(names)]:
        rest = set(key.split(",")) - set(names)
        if rest:
            raise SpecError(f"axes.{named(key)}: zipped with {', '.join(sorted(rest))}, so it cannot be set alone")
        del axes[key]


def _prepared(document: Mapping[str, Any], base: Path) -> Prepared:
    try:
        return prepare(SweepSpec.model_validate(document), base)
    except ValidationError as error:
        raise first_error(error, "what if", {}, SweepSpec) from None


def _best(space: Prepared, spec: SweepSpec) -> dict[str, Any] | None:
    """The best plan of a space, by the objective of a spec if it follows the step's time, else the fastest."""
    try:
        column, descending = objectives_of(spec)
        objective = Objective(column=column, descending=descending, per=(), best=1)
    except SpecError:
        objective = Objective(column=_STEP, descending=False, per=(), best=1)
    with tempfile.TemporaryDirectory() as folder:
        prepared = as_search(space, objective)
        run_search(prepared, objective, Store(directory=folder_at(folder)), InlineExecutor())
        rows = rank(folder, top=1, per=[]).rows.to_pylist()
    if not rows:
        return None
    ends = {name: rows[0][name] for name in _ENDS if rows[0].get(name) is not None}
    return _without_number(_row(space, int(rows[0]["plan"]))) | ends
