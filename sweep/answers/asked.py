"""What is asked of one plan, in order: each question simulates what it needs and answers with sections.

A row of ASKED is a question. `sweep explain` prints it, its JSON has its values, and the page of a result answers it for the
best plans where `page` says so: nothing else is told of it.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sim_core import EXPLANATIONS, MEMORY, PARTS, Words, plural, short
from sweep.answers.among import ties_of
from sweep.answers.explanation import NARROW, Explanation
from sweep.answers.neighbours import harm
from sweep.answers.section import Section
from sweep.answers.variation import Variation
from sweep.columns import RUNS
from sweep.exporting.meant import PEAK
from sweep.ranking.error_bars import COLUMNS
from sweep.uncertainty.evidence import LEVEL
from sweep.wording import Values, cell, values_text

BAR = 40
MOST_STAGES = 4


def of_plan(plan: Explanation) -> Iterator[Section]:
    """What it is; why it does not run."""
    shape = plan.shape
    stages = [] if shape is None else shape.memory.T.tolist()  # bytes; NaN: unknown
    yield Section(
        f"plan {plan.plan}",
        plan.told,
        values={
            "plan": plan.plan,
            "row": plan.row,
            "told": plan.told,
            "reason": plan.reason or None,
            "groups": [{"name": g.name, "ranks": g.ranks, "nodes": g.nodes} for g in shape.groups] if shape else [],
            "layers": [list(stage) for stage in shape.layers] if shape else [],
            "stages": [
                {name: None if math.isnan(value) else value for name, value in zip(MEMORY, stage, strict=True)}
                for stage in stages
            ],
        },
    )
    if not plan.runs:
        yield Section(f"{plan.row['status']}: {plan.reason}", apart=True)


def of_step(plan: Explanation) -> Iterator[Section]:
    """Where its step goes."""
    row = plan.row
    if not plan.runs:
        return
    told = row if plan.here is None else plan.here
    rate = "" if row["mfu"] is None else f", MFU {told['mfu']:.1%} {plan.peak}"
    shares = {part: row[part] / row["step_time_s"] for part in PARTS if row[part] > 0}
    lines = [
        f"{part_name(part):14} {short(row[part], 's'):>9} {share:>6.1%}  {'#' * round(share * BAR)}"
        for part, share in shares.items()
    ]
    lines += [f"bubble: {_bubble(plan)}"] if plan.waiting else []
    step, sure = short(told["step_time_s"], "s"), ""
    if plan.here is not None:
        ends = " to ".join(short(told[name], "s") for name in COLUMNS[:2])
        sure = f" expected here ({ends} in {LEVEL:.0%} of cases), {short(row['step_time_s'], 's')} simulated"
    values = {"expected": plan.here and {name: told[name] for name in ("step_time_s", *COLUMNS[:2], PEAK, RUNS)}}
    heading = f"step {step}{sure}, {short(told['samples_per_s'], '')} samples/s{rate}"
    yield Section(heading, lines, apart=True, values=values)


def _bubble(plan: Explanation) -> str:
    """What the bubble is made of, in shares of the step."""
    of, row = plan.waiting, plan.row
    if of is None:
        return ""
    step_s = row["step_time_s"]
    heavier = f" (its blocks take {of.more:.1%} longer than the mean)" if of.more > 0 else ""
    unequal = f"{of.unequal_s / step_s:.1%} waiting for stage {of.fullest}, the fullest{heavier}"
    if of.own is None or of.schedule_s is None:
        return f"{of.rest_s / step_s:.1%} that every stage waits in schedule {row['schedule']}, {unequal}"
    turns = row["vpp"] * row["ga"]
    fills = math.isclose(of.own * turns, row["pp"] - 1)
    part = f"(pp-1)/(vpp ga) = {row['pp'] - 1}/{turns}" if fills else f"{of.own:.1%}"
    own = f"{of.schedule_s / step_s:.1%} the schedule's own, {part} of the work of the other stages"
    return f"{own}; {unequal}; {of.rest_s / step_s:.1%} other waiting"


def part_name(name: str) -> str:
    """A part of a step, short: `TP exposed`, `forward`."""
    plain = name.removesuffix("_s").removeprefix("compute_")
    return f"{plain.removesuffix('_exposed').upper()} exposed" if plain.endswith("_exposed") else plain


def of_memory(plan: Explanation) -> Iterator[Section]:
    """What its memory holds, on some of its stages."""
    row, shape = plan.row, plan.shape
    have, peak, state = row["device_memory_bytes"], row["peak_memory_bytes"], row["state_bytes"]
    if not plan.runs and row["reason"] != "memory_exceeds_device":
        return
    if peak is None:
        if state is not None:
            told = f"memory: state {short(state, 'B')} of {short(have, 'B')}; activations are unknown"
            yield Section(told, apart=True)
        return
    table = []
    if shape is not None:
        count = shape.memory.shape[1]
        stages = range(count) if count <= MOST_STAGES else (0, 1, count // 2, count - 1)
        table = [("", *(f"stage {stage}" for stage in stages))]
        for name, values in zip(MEMORY, shape.memory, strict=True):
            if values.max() > 0:
                table.append((name.removesuffix("_bytes"), *(short(float(values[stage]), "B") for stage in stages)))
    room = f"{short(have - peak, 'B')} of head-room" if have >= peak else f"{short(peak - have, 'B')} too much"
    own = plan.here
    here = "" if own is None else f"; {short(own[PEAK], 'B')} expected here, runs with a chance of {own[RUNS]:.0%}"
    told = f"memory {short(peak, 'B')} of {short(have, 'B')} on the fullest stage, {room}{here}"
    yield Section(told, apart=True, table=table, left=(0,), gap=3)


def of_bottleneck(plan: Explanation) -> Iterator[Section]:
    """What holds it back, and which changes would help."""
    of, told, heading = plan.bottleneck, None, ""
    lines = []
    if of is not None:
        told = {"part": of.part, "share": of.share, "text": of.text, "changes": [cure.change for cure in of.cures]}
        heading = f"bottleneck: {of.text}"
        for cure in of.cures:
            left = "" if of.part == "compute" else f"{of.left(cure):.0%} left, "
            lines.append(f"{cure.change}: {left}{cure.gain():+.1%} per GPU")
        lines = lines or ["no single change makes it smaller and the plan faster"]
    bubble = plan.waiting and dataclasses.asdict(plan.waiting)
    values = {"bottleneck": told, "bubble": bubble, "mfu_of": plan.peak or None}
    yield Section(heading, lines, values=values, apart=True)


def of_changes(plan: Explanation) -> Iterator[Section]:
    """What each change of one axis gives; then those that cannot run, by reason. Of a plan that cannot run, what would."""
    nearest, runs = plan.nearest, plan.runs
    near = None if nearest is None else {"plan": nearest.after["plan"], "changes": nearest.chosen}
    around = [{"axis": each.axis, "change": each.change, **each.after} for each in plan.neighbours]
    values = {"neighbours": around, "nearest": near}
    if not around:
        yield Section(values=values)
        return
    running = [each for each in plan.neighbours if each.runs and not (runs and _is_the_same(each))]
    if not runs:
        running.sort(key=lambda each: float(each.after["gpu_s_per_sample"]))
    heading = "changes of one axis, simulated" if runs else "changes of one axis that make it run"
    table: list[Words] = [("change", "step", "speed per GPU", "MFU", "memory")]
    for each in running:
        step, mfu, memory = (cell(name, each.after[name]) for name in ("step_time_s", "mfu", "peak_memory_bytes"))
        table.append((each.change, step, f"{each.gain():+.1%}" if runs else "-", mfu, memory))
    narrow = any(each.after["mfu"] is not None and str(each.after.get("precision", ""))[:3] in NARROW for each in running)
    yield Section(
        heading if running or runs else "no change of one axis makes it run",
        table=table if running else (),
        left=(0,),
        gap=3,
        below_table=(
            *filter(None, (harm(each, plan.stack) for each in plan.neighbours if runs)),
            *("MFU of plans in fp8 and fp4, too, is of the peak in 16 bits",) * narrow,
        ),
        values=values,
        apart=True,
    )
    refused: dict[str, list[str]] = {}
    for each in plan.neighbours:
        if not each.runs:
            refused.setdefault(_why(each.after), []).append(each.change)
    same = 0 if runs else len(refused.pop(_why(plan.row), ()))
    lines = [f"{', '.join(changes)}: {why}" for why, changes in refused.items()]
    lines += [f"{plural(same, 'other change')}: as the plan itself"] if same else []
    if lines:
        yield Section("" if not refused else "cannot run:" if runs else "for another reason:", lines)
    if near is not None and nearest is not None:
        changed = ", ".join(f"{name} {cell(name, value)}" for name, value in nearest.chosen.items())
        yield Section(f"nearest plan of the result that runs: {near['plan']}, with {changed}")


def _is_the_same(of: Variation) -> bool:
    """Whether a change has changed nothing: layers that divide evenly are balanced."""
    names = ("step_time_s", "all_gpus", "global_batch", "peak_memory_bytes", "hardware")
    return all(of.after[name] == of.before[name] for name in names)


def _why(row: Values) -> str:
    if row["reason"] == "memory_exceeds_device":
        return f"needs {short(row['peak_memory_bytes'] or row['state_bytes'], 'B')} of {short(row['device_memory_bytes'], 'B')}"
    return f"{row['reason']} ({EXPLANATIONS[row['reason']]})"


def of_rivals(plan: Explanation) -> Iterator[Section]:
    """Whether errors tell it from the best plan of the result."""
    of = plan.within
    if of is None:
        yield Section(values={"within": None})
        return
    group = "".join(f" of {values_text({name: value})}" for name, value in of.group.items())
    beside = f"{abs(of.behind):.1%} {'behind' if of.behind >= 0 else 'expected ahead of'}"
    told = f"it is {beside} plan {of.best}, the best{group} by {of.by}: "
    told += "too little to tell them apart" if of.tie else "more than the errors of the two differ"
    if plan.plan == of.best:
        told = f"it is the best plan{group} by {of.by}" + ("" if of.bars.tied else ", and no other ties with it")
    usual = f"its step is {of.low:.2f} to {of.high:.2f} x the simulated one ({LEVEL:.0%}; {of.why})"
    lines = [usual, told] if plan.here is None else [told]
    if of.tied:
        more = f" and {of.bars.tied - len(of.tied):,} more" if of.bars.tied > len(of.tied) else ""
        lines += [ties_of(of.bars), f"those that tie with plan {of.best}: {', '.join(map(str, of.tied))}{more}"]
    yield Section("within the error", lines, values={"within": dataclasses.asdict(of)}, apart=True)


def of_measuring(plan: Explanation) -> Iterator[Section]:
    """What of its prediction to measure first, and what to know of the result."""
    if plan.first:
        yield Section("to measure first", plan.first, apart=True)
    notes = list(plan.opened.notes)
    yield Section(notes=notes, values={"measure_first": plan.first, "notes": notes})


class Asked(NamedTuple):
    """A question about one plan. `page`: the page of a result answers it for the best plans, too."""

    answer: Callable[[Explanation], Iterator[Section]]
    page: bool = False


ASKED = (
    Asked(of_plan, page=True),
    Asked(of_step),
    Asked(of_memory),
    Asked(of_bottleneck),
    Asked(of_changes),
    Asked(of_rivals),
    Asked(of_measuring),
)


def explained(plan: Explanation) -> list[Section]:
    """The answers to all that is asked of a plan. Raises SimError."""
    return [section for asked in ASKED for section in asked.answer(plan)]


def on_page(plan: Explanation) -> list[Section]:
    """The answers that the page of a result has of a plan. Raises SimError."""
    return [section for asked in ASKED if asked.page for section in asked.answer(plan)]
