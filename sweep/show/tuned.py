"""Screen of `sweep tune`: what was measured, the next plans and why, what they cost, whether to stop."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from sim_core import Fields, plural, short
from sweep.answers.section import Screen, table
from sweep.tuning.deciding import LEAST_RUNS, Regret
from sweep.tuning.record import SKIP, SLOW, Entry
from sweep.tuning.tuner import START_S, STEPS, Proposal, Tuner, plan_values
from sweep.wording import Values, cell, heading, plain_values, values_text


def tuned_lines(
    tuner: Tuner, proposals: Sequence[Proposal], limit: float, flags_of: Callable[[int], str], *, spent: bool
) -> Iterator[str]:
    """The state of a loop. `spent`: it has made all runs that it may."""
    runs, regret, best = tuner.runs, tuner.belief.regret, tuner.best
    skipped = sum(run.state == SKIP for run in runs.values())
    told = f"{plural(len(runs) - skipped, 'run')}" + (f", {skipped} skipped" if skipped else "")
    yield f"{tuner.file}: {told}; {plural(len(tuner.candidates.plans))} to choose from"
    yield from (f"note: {note}" for note in tuner.notes)
    if best is not None and best.step_time_s is not None and regret is not None:
        yield f"best: plan {best.plan}, {short(best.step_time_s, 's')}{_values(tuner, tuner.row(best.plan))}"
        yield f"expected regret: {_regret_text(tuner, regret)}"
    for place, proposal in enumerate(proposals):
        yield f"next: plan {proposal.plan}{_values(tuner, proposal.row)}"
        yield f"  why: {_why(proposal)}" + (
            "; chosen as if those before it came as expected, so it is worth less than one asked for after them" * (place > 0)
        )
        gpus = int(proposal.row["all_gpus"])
        look = f"{short(proposal.gpu_minutes * 60 / gpus, 's')} on {gpus} GPUs"
        cost = f"{proposal.gpu_minutes:,.0f} GPU-minutes ({look}: {START_S:.0f} s of start, {STEPS} steps)"
        if tuner.too_slow_s is not None:
            slow = short(tuner.too_slow_s, "s")
            cost += f"; stop it if its first steps take more than {slow}: --failed slow --step '{slow}'"
        yield f"  cost: {cost}"
        yield f"  flags: {flags_of(proposal.plan)}"
    if spent:
        yield "stop: yes, the budget is spent"
    elif not proposals:
        yield "stop: no plan is left"
    elif tuner.stops(limit):
        yield f"stop: yes, the expected regret is at most {limit:.0%}"
    elif regret is None:
        yield "stop: no, no step is measured yet"
    elif proposals[0].again:
        yield "stop: no, a plan that runs twice tells how much steps differ from run to run"
    elif regret.mean <= limit:
        yield f"stop: no, {len(runs) - skipped} of at least {LEAST_RUNS} runs tell how far off the simulation is"
    else:
        yield f"stop: no, the expected regret is above {limit:.0%}"


def added_text(entry: Entry) -> str:
    """What was written down of a run."""
    words = [f"plan {entry.plan}, {entry.state}"]
    if entry.step_time_s is not None:
        words.append(f"{'at least ' * (entry.state == SLOW)}{short(entry.step_time_s, 's')} a step")
    if entry.peak_memory_gib is not None:
        words.append(f"peak {entry.peak_memory_gib:.4g} GiB")
    return ", ".join(words)


def standing_screen(tuner: Tuner, standing: pa.Table) -> Screen:
    """Plans in the order of what is expected after the runs, measured beside simulated."""
    names = standing.column_names
    yield table(
        [heading(name) for name in names], [[cell(name, row[name]) for name in names] for row in standing.to_pylist()], gap=2
    )
    yield from (f"note: {note}" for note in tuner.notes)
    regret, best = tuner.belief.regret, tuner.best
    if regret is not None and best is not None:
        yield f"best measured: plan {best.plan}; expected regret: {_regret_text(tuner, regret)}"
    yield from (f"next: plan {proposal.plan} (sweep tune says why)" for proposal in tuner.ask())


def _regret_text(tuner: Tuner, regret: Regret) -> str:
    """The regret as a range; what it rests on before LEAST_RUNS."""
    text = f"{regret.mean:.1%} ({regret.p10:.1%} to {regret.p90:.1%} in four of five cases)"
    told = sum(run.state != SKIP for run in tuner.runs.values())
    if told < LEAST_RUNS:
        text = f"not known before {LEAST_RUNS} runs ({told} so far); {text} as far as they tell"
    return f"{text}: how much slower the best measured plan is than the fastest that runs"


def tuned_json(tuner: Tuner, proposals: Sequence[Proposal], limit: float) -> Fields:
    """The same for scripts."""
    best, regret = tuner.best, tuner.belief.regret
    return {
        "next": [
            {
                **plan_values(proposal.row),
                "expected_step_time_s": proposal.expected_s,
                **plain_values(proposal, "runs_probability gpu_minutes"),
                **(tuner.columns([proposal.plan]).to_pylist()[0] if tuner.is_timed else {}),
            }
            for proposal in proposals
        ],
        "best": None if best is None else plain_values(best, "plan step_time_s"),
        "expected_regret": None if regret is None else plain_values(regret, "mean p10 p90"),
        "stop": tuner.stops(limit),
    }


def _values(tuner: Tuner, row: Values) -> str:
    """What tells a plan from the others, after a colon; nothing of the only one."""
    return f": {values_text({name: row[name] for name in names})}" if (names := tuner.varying) else ""


def _why(proposal: Proposal) -> str:
    part = (proposal.row["peak_memory_bytes"] or 0.0) / proposal.row["device_memory_bytes"]
    if proposal.again:
        gain = "again: how much its step differs from run to run decides"
    elif proposal.gain is None:
        gain = "the fastest that is likely to run, as far as the simulation knows"
    elif proposal.gain > 0:
        gain = f"{proposal.gain:.1%} faster than the best measured, if it comes as expected"
    else:
        slower = f"{-proposal.gain:.1%} slower than the best measured, if it comes as expected"
        gain = f"{slower}: it is to rule out that it is faster"
    return (
        f"{gain}; {short(proposal.expected_s, 's')} expected, give or take {proposal.sd:.0%} (simulated "
        f"{short(proposal.simulated_s, 's')}); runs with a chance of {proposal.runs_probability:.0%} "
        f"(needs {part:.0%} of the memory, as simulated)"
    )
