"""The answer of a ranking in three sentences: what to launch, how sure that is, what to do next."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sim_core import EXPLANATIONS, SpecError, plural, read_stack, short, stack_names
from sim_core.documents import Words
from sweep.columns import LONGER, RUNS, SHORTER, higher_is_better, measures_of
from sweep.conditions import names_in
from sweep.exporting.meant import SIMULATED, as_expected, known_of, meant_by
from sweep.frameworks.stacks import may_run
from sweep.ranking.beside_running import Beside
from sweep.ranking.chances import believed_stack, guesses_before, stack_of
from sweep.ranking.ranking import Ranking, rank
from sweep.results.folder import Location
from sweep.spec.stacks import STACK
from sweep.spec.values import FIELDS
from sweep.tuning.deciding import complexity
from sweep.uncertainty.evidence import LEVEL, workload_of
from sweep.uncertainty.highest import above_measured, bits_of
from sweep.uncertainty.memory import chance_before_runs, guesses_of, likely_part
from sweep.wording import Values, cell, heading, values_text

ROOM = 0.9
"""Part of the memory above which a plan is tight: memory of measured runs is off by 6 % in the mean (docs/validation.md)."""
EVEN = 0.5
"""Chance to run below which the next plan with room is named, too."""
FEW_MEASURED = 0.5
UNEXPLAINED = 0.02
"""By how much more than simulated a plan gains before that is said."""
_SAME = 5e-4
_MOVES = {
    "one": "first one change that moves no weights",
    "nothing": "several of these together",
    "layout": "another layout gains more",
    "all": "another precision or network gains more",
}
_SIZES = ("tp", "pp", "cp", "ep", "vpp", "dp")
_ELSEWHERE = (
    *_SIZES, "all_gpus", "micro_batch", "ga", "global_batch", "checkpointing", "fidelity", "dp_shard", "hardware"
)  # fmt: skip
_RESULTS = ("mfu", "tokens_per_s_per_gpu", *measures_of("cost", "goodput"))
_IN_WORDS = {
    "mfu": "{} MFU", "tokens_per_s_per_gpu": "{} tokens/s a GPU", "training_days": "{} days", "usd": "{} USD",
    "gpu_hours": "{} GPU-hours", "energy_mwh": "{} MWh", "goodput": "goodput {}",
}  # fmt: skip


class Answer(NamedTuple):
    """The sentences; each may be empty."""

    launch: str
    sure: str
    after: str
    running: Words = ()  # the plan beside the job that runs; and what else is faster, the cheapest change first


def answer_of(
    ranking: Ranking, folder: Location, where: str | None = None, try_cost: float | None = None
) -> tuple[Answer, Ranking]:
    """The answer of a ranking of `folder` by a condition `where`, and the ranking as it is then `believed`; `try_cost`: as
    `Tuner`'s. Raises SpecError."""
    if ranking.best is None:
        return _without_plan(ranking, folder, where), ranking
    best, fastest, running, refused, here, _ = meant_by(ranking, ranking.best, folder, where, try_cost=try_cost)
    plan = best["plan"]
    if ranking.front:
        ends = [
            f"plan {row['plan']} ({values_text({name: row[name] for name in ranking.front})})"
            for row in ranking.rows.select(["plan", *ranking.front]).to_pylist()
        ]
        count = f"{plural(len(ends))} that no other beats in {' and '.join(map(heading, ranking.front))} at once"
        told = f"{count}: {' to '.join(dict.fromkeys((ends[0], ends[-1])))}"
        return Answer(told, "", f"`sweep explain {folder} {plan}` says where the step of the first goes"), here
    tied = next((group.tied for group in here.error_bars.groups if group.best == fastest["plan"]), None)
    after = f"`sweep explain {folder} {plan}` says where its step goes"
    if ranking.missing:
        after = f"the same `sweep run` again computes what is missing, {plural(ranking.missing)}"
    elif tied or _is_tight(best, ranking):
        after = f"`sweep tune {folder}` says which of these plans to measure first, and takes in what comes out"
    elif _is_modelled(ranking):
        after = f"`sweep export {folder} --plan {plan}` writes its launch flags"
    answer = Answer(
        f"{_first(ranking, best, fastest, *refused)}: {plan_words(best, ranking)}; {_result_words(best, ranking)}",
        "; ".join((*_doubts(ranking, best, fastest, tied, folder, where), *filter(None, refused[:1]))),
        after,
        () if running is None else running_words(running),
    )
    return answer, here


def plan_words(row: Values, ranking: Ranking) -> str:
    """A plan as people say it: group sizes, then whatever is not as usual, then GPUs and batch."""
    words = [f"{name} {row[name]}" for name in _SIZES if row.get(name) and (name in ("tp", "pp") or row[name] > 1)]
    words.append(f"micro-batch {row['micro_batch']}")
    if (kept := row.get("checkpointing", "file")) != "file":
        words.append("no recompute" if kept == "none" else f"recompute {kept}")
    for name, field in FIELDS.items():
        value, usual = row.get(name), row["vpp"] > 1 if name == "overlap_pp" else field.default
        if name not in _ELSEWHERE and None not in (value, usual) and value != usual:
            switch = name if value else f"no {name}"
            words.append(switch if field.kind == "switch" else f"{heading(name)} {cell(name, value)}")
    words += [f"{name} {cell(name, row[name])}" for name in ranking.varying if name not in FIELDS]
    return f"{', '.join(words)}, on {row['all_gpus']:,} x {row['hardware']}, {plural(row['global_batch'], 'sequence')} a step"


def _first(ranking: Ranking, row: Values, fastest: Values, refused: str, passed: str) -> str:
    """What the plan is: to be launched, the best if it fits, or the first by what a user asked for; why it, or the fastest, is
    refused."""
    sought = (*LONGER, *SHORTER, *measures_of("goodput"))
    if ranking.by not in sought or ranking.descending != higher_is_better(ranking.by):
        told = f"{'Highest' if ranking.descending else 'Lowest'} {heading(ranking.by)}: plan"
    elif refused:
        told = "Best, but refused: plan"
    else:
        told = "Best if it fits: plan" if _is_unlikely(row, ranking) else "Launch plan"
    why = []
    if row["plan"] != fastest["plan"]:
        ratio = row[ranking.best_by] / fastest[ranking.best_by]
        longer = 1 / ratio if higher_is_better(ranking.best_by) else ratio
        rather = f"; {passed}" if passed else _rather(row, fastest) * (longer >= 1)
        behind = f"{longer - 1:.1%} behind the fastest" if longer >= 1 else f"expected {1 - longer:.1%} ahead of the first"
        why.append(f"{behind}, plan {fastest['plan']}{rather}")
    elif ranking.per:
        why.append("the best overall" if ranking.best_by == ranking.by else "the cheapest a sequence")
    why += [f"below the best per {', '.join(map(heading, ranking.per))}"] if ranking.per else []
    return f"{told} {row['plan']}" + (f" ({'; '.join(why)})" if why else "")


def _rather(row: Values, fastest: Values) -> str:
    """What a plan has that is no likelier to run than the fastest: fewer groups or options, or a step that is expected to be as
    short over all that nobody knows."""
    if row.get(RUNS) is not None and fastest[RUNS] <= row[RUNS] - _SAME:
        return ""
    return ", and simpler" if complexity(row) < complexity(fastest) else ", but expected to be as fast"


def _result_words(row: Values, ranking: Ranking) -> str:
    """What the plan gives: step, what plans are ranked by, MFU, rate, memory, costs."""
    words = [f"{cell('step_time_s', row['step_time_s'])} a step{' expected' * (SIMULATED in row)}"]
    names = dict.fromkeys((*_RESULTS, *([] if ranking.by == "step_time_s" else [ranking.by])))
    words += [_IN_WORDS.get(name, f"{heading(name)} {{}}").format(cell(name, row[name])) for name in names if row.get(name)]
    if bits_of(str(row.get("precision", ""))) < 16:
        words = [word + " (of the peak in bf16)" * word.endswith(" MFU") for word in words]
    if row.get("peak_memory_bytes"):
        words.append(f"{short(row['peak_memory_bytes'], 'B')} of {short(row['device_memory_bytes'], 'B')} memory")
    return ", ".join(words)


def _doubts(
    ranking: Ranking, row: Values, fastest: Values, tied: int | None, folder: Location, where: str | None
) -> Iterator[str]:
    """How sure the answer is, from the interval to what may keep it from running."""
    low, high, first = row.get("step_time_low_s"), row.get("step_time_high_s"), ranking.best or {}
    bars, job, simulated_s = ranking.error_bars, ranking.running, row.get(SIMULATED)
    if low and high:
        why = f"steps of this job tell; {short(simulated_s, 's')} simulated" if simulated_s else bars.why
        yield f"the measured step is between {short(low, 's')} and {short(high, 's')} in {LEVEL:.0%} of cases ({why})"
    else:
        yield bars.why
    if job is not None and job.measured_s and job.simulated_s and (usual := first.get("step_time_high_s")):
        times = job.measured_s / job.simulated_s
        if not first["step_time_low_s"] <= times * first["step_time_s"] <= usual:
            yield f"but the job that runs takes {times:.2f} x its simulated step, outside of what is usual: find what it lacks"
    beside = "it" if row["plan"] == fastest["plan"] else "the fastest"
    if tied:
        yield f"{plural(tied, 'other plan')} cannot be told from {beside}"
    elif ranking.searched:
        yield "plans that tie with it were proven slower, not simulated (--within 0.03 does)"
    elif tied is not None:
        yield (
            f"no other plan comes near enough to tie with {beside}" if ranking.ranked > 1 else "it is the only one that can run"
        )
    if above := above_measured(row, ranking.provenance):
        yield f"its MFU is above {above}, so expect less"
    name, _, own = str(row.get("stack") or stack_of(ranking.provenance)).partition(" ")  # `own`: facts of a user's own
    if _is_modelled(ranking) and name in stack_names() and "schedules" not in own:
        has = read_stack(name).schedules
        if row.get("schedule", has[0]) not in has:
            yield f"{name} has no schedule {row['schedule']} ({', '.join(has)}): it is simulated as if it had"
    share = row.get("measured_share")
    if share is not None and share < FEW_MEASURED:
        yield f"{share:.0%} of its compute is by kernels measured on this device, the rest by near ones and peaks"
    yield from _fits(ranking, row, fastest, folder, where)


def _fits(ranking: Ranking, row: Values, fastest: Values, folder: Location, where: str | None) -> Iterator[str]:
    """What the plan needs of the memory, and how likely it runs; beside the fastest or, if it is that itself, one with room."""
    runs = row.get(RUNS)
    if runs is None:
        if row.get("peak_memory_bytes") is None:
            yield "whether its activations fit into memory is not known"
        elif _is_tight(row, ranking):
            yield f"{_needs(row)}; {_next_with_room(ranking, row, folder, where)}"
        return
    yield _needs(row)
    unnamed = not (row.get("stack") or believed_stack(ranking.provenance))
    if _is_modelled(ranking) and unnamed and may_run(STACK, str(row["hardware"])):
        own = chance_before_runs(np.array([_part(row)]), guesses_of(STACK))[0]
        if own > runs and SIMULATED not in row:  # else runs of one's own tell more
            yield f"no stack is named: if {STACK} runs it is {own:.0%} (workload: {{stack: {STACK}}})"
    if row["plan"] != fastest["plan"]:
        differs = _differing(fastest, row, ranking)
        yield f"the fastest, plan {fastest['plan']} ({differs}), needs {_part(fastest):.0%} and runs with {fastest[RUNS]:.0%}"
    elif _is_tight(row, ranking):
        yield _next_with_room(ranking, row, folder, where)


def _is_tight(row: Values, ranking: Ranking) -> bool:
    """Whether a plan needs nearly all of the memory, or is more likely to fail than to run."""
    return _part(row) > ROOM or _is_unlikely(row, ranking)


def _is_unlikely(row: Values, ranking: Ranking) -> bool:
    return _is_modelled(ranking) and row.get(RUNS) is not None and row[RUNS] < EVEN


def _is_modelled(ranking: Ranking) -> bool:
    """Whether the workload is a model in numbers, so that its memory is that of a framework."""
    return bool(workload_of(ranking.provenance).get("model"))


def _next_with_room(ranking: Ranking, row: Values, folder: Location, where: str | None) -> str:
    """The next plan that has room: that runs more likely than not where this one has room itself."""
    part = ROOM if _part(row) > ROOM else likely_part(guesses_before(ranking.provenance), EVEN)
    larger = row["peak_memory_bytes"] / (ranking.best or row)["peak_memory_bytes"]  # than simulated, as runs tell
    room = f"peak_memory_bytes * {larger} <= {part} * device_memory_bytes"
    condition = f"({where}) AND {room}" if where else room
    other = rank(folder, by=ranking.by, descending=ranking.descending, where=condition, per=[], top=1).best
    among = " of those simulated" if ranking.searched else ""
    if other is None:
        return f"no plan{among} needs {part:.0%} or less"
    other = as_expected(other, known_of(folder))
    slower = other["step_time_s"] / row["step_time_s"] - 1
    behind = f"{slower:.1%} slower" if slower > _SAME else "as fast"
    chance = "" if other.get(RUNS) is None else f" and a chance of {other[RUNS]:.0%}"
    told = f"the next{among} with room is plan {other['plan']} ({_differing(other, row, ranking)}), {behind}"
    return f"{told}, with {_part(other):.0%} of the memory{chance}"


def _differing(other: Values, row: Values, ranking: Ranking) -> str:
    """In what a plan differs from another."""
    own = [name for name in ranking.varying if name in FIELDS and not FIELDS[name].follows and other[name] != row[name]]
    return values_text({name: other[name] for name in own})


def _needs(row: Values) -> str:
    """The part of the memory that a plan needs, and how likely it runs with that."""
    runs = "" if row.get(RUNS) is None else f" and runs with a chance of {row[RUNS]:.0%}"
    return f"it needs {_part(row):.0%} of the memory{runs}"


def _part(row: Values) -> float:
    """The part of the device's memory that a plan needs; 0 where that is unknown."""
    return float((row.get("peak_memory_bytes") or 0.0) / (row.get("device_memory_bytes") or 1.0))


def _without_plan(ranking: Ranking, folder: Location, where: str | None) -> Answer:
    """That no plan is ranked, why, and what to do."""
    if ranking.filtered:
        told = ", ".join(_ranges(folder, where)) if where else ""
        loosen = f"loosen the condition; of plans that run {told}" if told else "loosen the condition"
        return Answer(f"The condition is false for all {plural(ranking.filtered)} that can run", "", loosen)
    if not ranking.reasons:
        return Answer("No plan is computed yet", "", "the same `sweep run` again")
    reason, count = max(ranking.reasons.items(), key=lambda item: item[1])
    told = f"No plan can run: {reason} keeps {count:,} of {plural(ranking.total)} out ({EXPLANATIONS.get(reason, reason)})"
    after = "change the axes that it names; `sweep run SPEC --dry-run` counts again without running"
    if reason == "memory_exceeds_device" and ranking.memory is not None:
        times = ranking.memory[0] / ranking.memory[3]
        more = "give it more GPUs, a larger tp or pp, or recompute (--set fixed.all_gpus=..., axes.checkpointing=[full])"
        after = f"{more}; the plan that needs least needs {times:.2g} times the memory of the device"
    elif reason == "excluded_by_where" and not ranking.searched:
        after = "loosen a condition of `where`: `sweep run SPEC --set where=[...]`"
    return Answer(told, "", after)


def _ranges(folder: Location, where: str) -> Iterator[str]:
    """From where to where each number goes that a condition names, as a condition takes it: 0.545, not 54.5%."""
    for name in sorted(names_in(where)):
        try:
            ends = [rank(folder, by=name, descending=down, per=[], top=1) for down in (False, True)]
        except SpecError:  # a column of words
            continue
        low, high = ((end.best or {}).get(end.by) for end in ends)
        if low is not None and high is not None:
            yield f"{name} is {low:.4g}" if low == high else f"{name} is between {low:.4g} and {high:.4g}"


def running_words(job: Beside) -> Words:
    """How much faster a plan is than the job that runs, and how sure that is; then a line for each kind of change."""
    lines = [_beside_words(job)]
    for moves, told in _MOVES.items():
        wins = [f"plan {win.plan} ({win.changes}) {_gain(win.ratio, win.runs)}" for win in job.wins if win.moves == moves]
        lines += [f"{told}: {'; '.join(wins)}"] * bool(wins)
    return tuple(lines)


def _gain(ratio: tuple[float, float, float], runs: float) -> str:
    """What a change saves, and its risk."""
    low, middle, high = map(_change, ratio)
    return f"{middle} ({LEVEL:.0%}: {high} to {low}; runs with {runs:.0%})"


def _beside_words(job: Beside) -> str:
    measured = "" if job.measured_s is None else f"measured {short(job.measured_s, 's')} a step"
    if job.plan is None:
        return f"the plan of the job that runs ({measured or 'no step'}) is not among these rows"
    simulated = "" if job.simulated_s is None else f"simulated {short(job.simulated_s, 's')}"
    told = f"the job that runs is plan {job.plan} ({', '.join(word for word in (measured, simulated) if word) or 'no step'})"
    if job.reason:
        return f"{told}, which cannot run here: {job.reason}; so nothing is said of what the best plan gains"
    if job.plan == job.best:
        return f"{told}: no plan here is expected to be faster"
    if job.ratio is None or job.step_s is None:
        return f"{told}; no measured runs tell how sure a difference is"
    low, middle, high = job.ratio
    expected = f"plan {job.best} is expected to take {short(job.step_s * middle, 's')}, {_change(middle)}"
    sure = f"{LEVEL:.0%}: {_change(high)} to {_change(low)}"
    doubt = "; it may be no faster" if high >= 1 else ""
    rest = ""
    if job.simulated and middle < job.simulated - UNEXPLAINED:
        rest = f", {_change(job.simulated)} as simulated: the rest is what slows the job, and may stay"
    return f"{told}; {expected} ({sure}{doubt}){rest}"


def _change(ratio: float) -> str:
    """A ratio of steps as what it saves."""
    return f"{1 - ratio:.1%} less" if ratio <= 1 else f"{ratio - 1:.1%} more"
