"""What if the job or its machine were another: a plan as it is, the same plan then, and the best plan then."""

import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from sim_core import EXPLANATIONS, Fields, SpecError, Words, Workload, named, plural
from sweep.answers.among import within
from sweep.answers.section import Section
from sweep.answers.variation import HARDWARE, STEP, PlanOfResult, Variation, pinned, plan_of, prepared
from sweep.columns import RUNS
from sweep.evaluation.one_plan import row_of
from sweep.evaluation.preparation import Prepared
from sweep.executors import InlineExecutor
from sweep.exporting.meant import PEAK, as_expected, moved
from sweep.options import OptionError
from sweep.ranking.error_bars import COLUMNS
from sweep.ranking.ranking import objectives_of, rank
from sweep.reopening import Reopened
from sweep.results.folder import folder_at
from sweep.results.store import Store
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search
from sweep.spec.spec import SweepSpec
from sweep.spec.values import STACK_AXIS
from sweep.uncertainty.evidence import LEVEL
from sweep.wording import Values, cell, heading

_ENDS = COLUMNS[:2]
"""The interval of a step."""
_SIZES = ("all_gpus", "dp", "ga", "global_batch")
"""Fields that say how large the job is. A question keeps the tokens of a step, and the GPUs unless it is about them."""


_PLAN = (
    "hardware", "nic_bandwidth", "sequence", "all_gpus", "tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch", "ga",
    "global_batch", "schedule", "layer_split", "checkpointing", "overlap_tp", "overlap_ep", "precision",
    "dispatcher", "sharding",
)  # fmt: skip
_RESULT = (
    STEP, "tokens_per_s_per_gpu", "mfu", PEAK, RUNS, "training_days", "gpu_hours", "usd", "energy_mwh",
)  # fmt: skip
_LESS = 0.9995
"""A step that is shorter by less is as long."""


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


class WhatIf(NamedTuple):
    """The plan now beside the same plan under the change, and beside the best plan then.

    Each row has `sequence` and `nic_bandwidth`, and the interval of its step where errors are known.
    """

    same: Variation
    best: Variation  # no plan can run then where it has none after
    searched: int  # plans of the space that the best one is of
    notes: Words


def what_if(opened: Reopened, number: int, question: Question) -> WhatIf:
    """Answer a question about plan `number` of a result. Raises SimError, OSError."""
    if not question.words:
        raise OptionError("OPTIONS: found none, expected one of --gpus, --nic, --device, --sequence, --tokens, --price")
    plan = plan_of(opened, number)
    before, workload = plan.row, plan.sweep.workload
    if not plan.runs:
        raise SpecError(f"plan {number} is {before['status']}: {before['reason']}")
    if question.device is not None and workload.from_file and opened.spec.workload.measured_on is None:
        raise OptionError(
            f"--device {question.device}: the file does not say on which device its times were recorded, so they cannot be"
            " moved to another: run the sweep with workload.measured_on"
        )
    notes: list[str] = []
    batch = _batch(workload, before, question, notes)
    alone = pinned(plan) | _budget(opened.spec, question)
    of_axes = alone["axes"]
    names = [name for key in of_axes for name in key.split(",")]
    axes = _without(of_axes, [name for name in names if name.startswith((HARDWARE, STACK_AXIS))])
    space = alone | {"axes": axes, "fixed": dict(opened.spec.fixed)}
    alone |= {"axes": {}, "where": []}
    own = [name for name in alone["hardware"] if name != "preset"]
    if question.device is not None and own:
        notes.append(f"hardware numbers of this result are not those of {question.device}: {', '.join(own)}")
    now = _row(prepared(alone, opened.base)) | {"plan": number}
    if plan.here is None and (found := within(plan)) is not None:  # the interval of the step
        now |= dict(zip(_ENDS, (before[STEP] * found.low, before[STEP] * found.high), strict=True))
    then = _changed(space, question, before, batch)
    if workload.sequence and question.sequence and question.sequence > workload.sequence:
        _lengthen(then["axes"], then["fixed"], question.sequence / workload.sequence, notes)
    searched = prepared(then, opened.base)
    same = _row(prepared(_changed(alone, question, before, batch), opened.base))
    del same["plan"]  # the number of another space means nothing in this result
    changed, best = ", ".join(question.words), _best(searched, opened.spec)
    at, of_best = best.pop("plan", None), before
    if plan.here is not None:
        if at is not None and then["axes"] == of_axes and (row := row_of(opened.prepared, at))["status"] == before["status"]:
            of_best = row
        now, same = (_expected(row, before, plan) for row in (now, same))
        best = best and _expected(best, of_best, plan)
        times = now[STEP] / before[STEP]
        notes.append(f"as expected here: {times:.2f} x the simulated step, as steps of this job tell of the plan now")
    return WhatIf(
        same=Variation(change=changed, before=now, after=same),
        best=Variation(change=changed, before=now, after=best),
        searched=searched.sweep.space.size,
        notes=tuple(notes),
    )


def _expected(row: Values, own: Values, plan: PlanOfResult) -> Fields:
    """A row whose step and memory are as many times the simulated ones as those of a plan of the result, its `own`, are here;
    with its interval and chance where nothing of its step and memory is another."""
    here = as_expected(own, plan.tuner)
    told = (*_ENDS, RUNS) if all(row[name] == own[name] for name in (STEP, PEAK)) else ()
    larger = here[PEAK] / own[PEAK] if own[PEAK] else 1.0
    return moved(row, here[STEP] / own[STEP], larger) | {name: here[name] for name in told}


def _row(of: Prepared, number: int = 0) -> Fields:
    """The row of a plan with what a question may change besides: the tokens of a sequence, the bandwidth of a NIC."""
    sweep = of.sweep
    own = {"sequence": sweep.workload.sequence, "nic_bandwidth": sweep.hardware.variants[0].value("nic_bandwidth")}
    return own | row_of(of, number)


def _lengthen(axes: Fields, fixed: Fields, times: float, notes: list[str]) -> None:
    """Add to the space the context parallelism that a longer sequence asks for, and say so."""
    if any("cp" in key.split(",") and key != "cp" for key in axes):
        return
    had = axes["cp"] if isinstance(axes.get("cp"), list) else [fixed.get("cp", 1)] if "cp" not in axes else []
    more = [max(had) * 2**k for k in range(1, int(times).bit_length())] if had else []
    if more:
        fixed.pop("cp", None)
        axes["cp"] = had + more
        notes.append(f"the sequence is {times:g} x as long: cp {', '.join(map(str, more))} searched, too")


def _batch(workload: Workload, row: Values, question: Question, notes: list[str]) -> int:
    """Sequences of a step with as many tokens as before; what to say of it is added to the notes."""
    batch, tokens = int(row["global_batch"]), workload.sequence
    if question.sequence is None:
        return batch
    if not tokens or workload.from_file:
        raise OptionError("--sequence: a workload file tells the times of its own sequence only")
    then = max(round(batch * tokens / question.sequence), 1)
    told = f"{then:,} sequences of {question.sequence:,} tokens a step, as many tokens as {batch:,} of {tokens:,}"
    notes.append(told)
    return then


def _budget(spec: SweepSpec, question: Question) -> Fields:
    """The budget with another number of tokens, or price."""
    asked = {"tokens": question.tokens, "usd_per_gpu_hour": question.price}
    stated = {name: value for name, value in asked.items() if value is not None}
    if not stated:
        return {}
    if spec.budget is None and question.tokens is None:
        raise OptionError("--price: the result has no budget; say --tokens, too")
    return {"budget": {**(spec.budget.model_dump(mode="json") if spec.budget else {}), **stated}}


def _changed(document: Values, question: Question, row: Values, batch: int) -> Fields:
    """A spec under the change: one size of the job, the device and network that were asked for, all else as it was."""
    kept = {name: value for name, value in document["fixed"].items() if name not in _SIZES}
    hardware = dict(document["hardware"]) if question.device is None else {"preset": question.device}
    if question.nic is not None:
        hardware["nic_bandwidth"] = question.nic
    workload = document["workload"] | ({} if question.sequence is None else {"sequence": question.sequence})
    gpus = int(row["all_gpus"]) if question.gpus is None else question.gpus
    axes, fixed = _without(document["axes"], _SIZES), kept | {"all_gpus": gpus, "global_batch": batch}
    return {**document, "axes": axes, "fixed": fixed, "hardware": hardware, "workload": workload}


def _without(axes: Values, names: Collection[str]) -> Fields:
    """The other axes. Raises SpecError for one that is zipped with another."""
    others = {key: set(key.split(",")) - set(names) for key in axes}
    for key, rest in others.items():
        if rest and rest != set(key.split(",")):
            raise SpecError(f"axes.{named(key)}: zipped with {', '.join(sorted(rest))}, so it cannot be set alone")
    return {key: axes[key] for key, rest in others.items() if rest}


def _best(space: Prepared, spec: SweepSpec) -> Fields:
    """The best plan of a space, by the objective of a spec if that follows the step's time, else the fastest; empty: none."""
    try:
        column, descending = objectives_of(spec)
        objective = Objective(column=column, descending=descending, per=(), best=1)
    except SpecError:
        objective = Objective(column=STEP, descending=False, per=(), best=1)
    with tempfile.TemporaryDirectory() as folder:
        search = as_search(space, objective)
        run_search(search, objective, Store(directory=folder_at(folder)), InlineExecutor())
        found = rank(folder, top=1, per=[]).best
    if found is None:
        return {}
    return _row(space, int(found["plan"])) | {name: found[name] for name in _ENDS if found.get(name) is not None}


def section_of(answer: WhatIf) -> Section:
    """What changes beside what is; columns of plans that are all the same are left out."""
    before, same, after = answer.same.before, answer.same.after, answer.best.after
    plans = {"now": before, "the same plan": same} | ({"the best then": after} if after else {})
    lines = {name: [cell(name, row.get(name)) for row in plans.values()] for name in _PLAN + _RESULT}
    ends = [" to ".join(cell(STEP, row[name]) for name in _ENDS if row.get(name) is not None) for row in plans.values()]
    differing = [name for name in _PLAN if len({str(row.get(name)) for row in plans.values()}) > 1]
    results = [name for name in _RESULT if any(row.get(name) is not None for row in plans.values())]
    rows = [(heading(name), *lines[name]) for name in differing + results]
    if any(ends):
        rows.insert(len(differing) + 1, (f"its interval, {LEVEL:.0%}", *ends))
    return Section(
        f"what if: {answer.same.change}",
        sentences=list(_in_words(answer)),
        table=[("", *plans), *rows],
        left=(0,),
        gap=3,
        notes=answer.notes,
        values={"before": before, "same_plan": same, "after": after or None, "notes": list(answer.notes)},
    )


def _in_words(answer: WhatIf) -> Iterator[str]:
    """The answer in sentences: what becomes of the plan, and whether another is better then."""
    same, searched = answer.same.after, f"of the {plural(answer.searched)} of its space then"
    if answer.same.runs:
        yield f"the same plan: {_against(answer.same)} now"
    else:
        yield f"the same plan cannot run: {same['reason']} ({EXPLANATIONS.get(same['reason'], same['reason'])})"
    both = Variation(before=same, after=answer.best.after)
    if not answer.best.runs:
        yield f"{searched}, none can run"
    elif not answer.same.runs:
        yield f"the best {searched}: {_against(answer.best)} now"
    elif both.after[STEP] < _LESS * same[STEP]:
        yield f"the best {searched}: {_against(both)} the same plan then"
    else:
        yield f"{searched}, none is faster than the same plan"


def _against(of: Variation) -> str:
    """How much faster or slower a step is than before."""
    times = of.times(STEP)
    if abs(times - 1) < 1 - _LESS:
        return "a step as long as"
    return f"steps {times:.3g} x as fast as" if times > 1 else f"steps take {1 / times:.3g} x as long as"
