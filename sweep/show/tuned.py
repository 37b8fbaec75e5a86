"""Screen of `sweep tune`: what was measured, the next plans and why, what they cost, whether to stop."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from rich.console import Console

from sim_core import plural, short
from sweep.show.tables import print_table
from sweep.tuning.deciding import LEAST_RUNS, Regret
from sweep.tuning.record import SKIP, SLOW, Entry
from sweep.tuning.tuner import DEAR, START_S, STEPS, Proposal, Tuner, plan_values
from sweep.wording import cell, heading, values_text


def print_tuned(
    tuner: Tuner, proposals: Sequence[Proposal], limit: float, flags_of: Callable[[int], str], console: Console,
    *, spent: bool = False,
) -> None:  # fmt: skip
    """Print the state of a loop. `spent`: it has made all runs that it may."""
    runs, belief = tuner.runs, tuner.belief
    candidates = tuner.candidates.rivals or len(tuner.candidates.plans)
    skipped = sum(run.state == SKIP for run in runs.values())
    told = f"{plural(len(runs) - skipped, 'run')}" + (f", {skipped} skipped" if skipped else "")
    console.print(f"{tuner.file}: {told}; {plural(candidates)} to choose from")
    for note in tuner.notes:
        console.print(f"note: {note}")
    best = tuner.best
    if best is not None and best.step_time_s is not None and belief.regret is not None:
        row = tuner.row(best.plan)
        console.print(f"best: plan {best.plan}, {short(best.step_time_s, 's')}{_values(tuner, row)}")
        console.print(f"expected regret: {regret_text(tuner, belief.regret)}")
    for place, proposal in enumerate(proposals):
        _print_proposal(tuner, proposal, place, None if best is None else best.step_time_s, flags_of, console)
    console.print(_stop_text(tuner, len(runs) - skipped, limit, left=bool(proposals), spent=spent))


def added_text(entry: Entry) -> str:
    """What was written down of a run."""
    words = [f"plan {entry.plan}, {entry.state}"]
    if entry.step_time_s is not None:
        words.append(f"{'at least ' * (entry.state == SLOW)}{short(entry.step_time_s, 's')} a step")
    if entry.peak_memory_gib is not None:
        words.append(f"peak {entry.peak_memory_gib:.4g} GiB")
    return ", ".join(words)


def print_standing(tuner: Tuner, standing: pa.Table, console: Console) -> None:
    """Print plans in the order of what is expected after the runs, measured beside simulated."""
    names = standing.column_names
    rows = [["-" if row[name] is None else cell(name, row[name]) for name in names] for row in standing.to_pylist()]
    print_table([heading(name) for name in names], rows, console, gap=2)
    for note in tuner.notes:
        console.print(f"note: {note}")
    regret, best = tuner.belief.regret, tuner.best
    if regret is not None and best is not None:
        console.print(f"best measured: plan {best.plan}; expected regret: {regret_text(tuner, regret)}")
    for proposal in tuner.ask():
        console.print(f"next: plan {proposal.plan} (sweep tune says why)")


def regret_text(tuner: Tuner, regret: Regret) -> str:
    """The regret as a range; what it rests on before LEAST_RUNS."""
    text = f"{regret.mean:.1%} ({regret.p10:.1%} to {regret.p90:.1%} in four of five cases)"
    told = sum(run.state != SKIP for run in tuner.runs.values())
    if told < LEAST_RUNS:
        text = f"not known before {LEAST_RUNS} runs ({told} so far); {text} as far as they tell"
    return f"{text}: how much slower the best measured plan is than the fastest that runs"


def tuned_json(tuner: Tuner, proposals: Sequence[Proposal], limit: float) -> dict[str, Any]:
    """The same for scripts."""
    best, regret = tuner.best, tuner.belief.regret
    return {
        "next": [
            {
                **plan_values(proposal.row),
                "expected_step_time_s": proposal.expected_s,
                "runs_probability": proposal.runs_probability,
                "gpu_minutes": proposal.gpu_minutes,
            }
            for proposal in proposals
        ],
        "best": None if best is None else {"plan": best.plan, "step_time_s": best.step_time_s},
        "expected_regret": None if regret is None else {"mean": regret.mean, "p10": regret.p10, "p90": regret.p90},
        "stop": tuner.stops(limit),
    }


def _values(tuner: Tuner, row: Mapping[str, Any]) -> str:
    """What tells a plan from the others, after a colon; nothing of the only one."""
    return f": {values_text({name: row[name] for name in names})}" if (names := tuner.varying) else ""


def _print_proposal(
    tuner: Tuner, proposal: Proposal, place: int, best_s: float | None, flags_of: Callable[[int], str], console: Console
) -> None:
    console.print(f"next: plan {proposal.plan}{_values(tuner, proposal.row)}")
    console.print(f"  why: {_why(proposal, place)}")
    look = f"{short(proposal.gpu_minutes * 60 / int(proposal.row['all_gpus']), 's')} on {proposal.row['all_gpus']} GPUs"
    cost = f"{proposal.gpu_minutes:,.0f} GPU-minutes ({look}: {START_S:.0f} s of start, {STEPS} steps)"
    if best_s is not None:
        slow = short(DEAR * best_s, "s")
        cost += f"; stop it if its first steps take more than {slow}: --failed slow --step '{slow}'"
    console.print(f"  cost: {cost}")
    console.print(f"  flags: {flags_of(proposal.plan)}")


def _why(proposal: Proposal, place: int) -> str:
    simulated = short(proposal.simulated_s, "s")
    expected = f"{short(proposal.expected_s, 's')} expected, give or take {proposal.sd:.0%} (simulated {simulated})"
    part = (proposal.row["peak_memory_bytes"] or 0.0) / proposal.row["device_memory_bytes"]
    runs = f"runs with a chance of {proposal.runs_probability:.0%} (needs {part:.0%} of the memory, as simulated)"
    if proposal.gain is None:
        gain = "the fastest that is likely to run, as far as the simulation knows"
    elif proposal.gain > 0:
        gain = f"{proposal.gain:.1%} faster than the best measured, if it comes as expected"
    else:
        gain = (
            f"{-proposal.gain:.1%} slower than the best measured, if it comes as expected: it is to rule out that it is faster"
        )
    batch = (
        "; chosen as if those before it came as expected, so it is worth less than one asked for after them" if place else ""
    )
    return f"{gain}; {expected}; {runs}{batch}"


def _stop_text(tuner: Tuner, runs: int, limit: float, *, left: bool, spent: bool) -> str:
    if spent:
        return "stop: yes, the budget is spent"
    if not left:
        return "stop: no plan is left"
    if tuner.stops(limit):
        return f"stop: yes, the expected regret is at most {limit:.0%}"
    regret = tuner.belief.regret
    if regret is not None and regret.mean <= limit:
        return f"stop: no, {runs} of at least {LEAST_RUNS} runs tell how far off the simulation is"
    return f"stop: no, {'no step is measured yet' if regret is None else f'the expected regret is above {limit:.0%}'}"
