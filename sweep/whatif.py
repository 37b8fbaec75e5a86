"""What if the job or its machine were another: a plan as it is, the same plan then, and the best plan then."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from sim_core import SpecError, Workload, named
from sweep.document import first_error
from sweep.executors import InlineExecutor
from sweep.explaining.neighbours import HARDWARE, pinned
from sweep.folder import folder_at
from sweep.one_plan import row_of
from sweep.options import OptionError
from sweep.preparation import Prepared, prepare
from sweep.ranking import objectives_of, rank
from sweep.reopening import Reopened
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search
from sweep.spec import SweepSpec
from sweep.store import Store

_STEP: Final = "step_time_s"
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
    """Rows of the plan now, of the same plan under the change, and of the best plan then; None where no plan can run."""

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
    workload = opened.prepared.sweep.workload
    batch, notes = _batch(workload, before, question)
    hardware, fixed = pinned(opened, number, before)
    now = opened.spec.model_dump(mode="json") | {"sample": None, "per": [], "hardware": hardware}
    now |= _budget(opened.spec, question)
    now["axes"] = dict(now["axes"])
    _drop(now["axes"], [name for key in now["axes"] for name in key.split(",") if name.startswith(HARDWARE)])
    one = now | {"axes": {}, "fixed": fixed, "where": []}
    plan = _changed(one, question, int(before["all_gpus"]), batch)
    before = row_of(_prepared(one, opened.base))
    if question.device is not None:
        own = [name for name in hardware if name != "preset"]
        notes += [f"hardware numbers of this result are not those of {question.device}: {', '.join(own)}"] if own else []
    space = _prepared(_changed(now, question, int(before["all_gpus"]), batch), opened.base)
    after = _best(space, opened.spec)
    return WhatIf(
        before=before,
        same=row_of(_prepared(plan, opened.base)),
        after=after,
        searched=space.sweep.space.size,
        notes=tuple(notes),
    )


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
    return row_of(space, int(rows[0]["plan"])) if rows else None
