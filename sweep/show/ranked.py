"""Screens of `sweep rank`: the ranking with its ties and what it leaves out; --stable, --relax, --compare-fidelity."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from rich.console import Console

from sim_core import PARTS, short
from sweep.beside_running import Beside
from sweep.error_bars import ErrorBars, GroupBars
from sweep.fidelity import Disagreement
from sweep.ranking import RUNS, Ranking
from sweep.relaxing import DEVICE, WHERE, Relaxed
from sweep.selection import ALIKE
from sweep.show.checks import print_plausibility
from sweep.show.results import print_reasons
from sweep.show.tables import SHORT_PART, cell, heading, plural, print_table, span, values_text
from sweep.stability import DRAWS, Stability
from sweep.uncertainty.evidence import LEVEL

MOST_COLUMNS: Final = 30
"""A ranking of more columns is printed on its side."""
MEMORY_ERROR: Final = 0.06
"""How far off the memory of measured runs is in the mean (docs/validation.md)."""
NOTHING: Final = 5e-5
"""A gain below this is none."""
LEAST: Final = 16
"""Characters of a constraint that are shown, however narrow the terminal."""
WINS: Final = "wins"
_ALWAYS: Final = ("rank", "plan")
_TIE: Final = "tie"
_SIZES: Final = ("all_gpus", "tp", "pp", "cp", "ep", "vpp", "dp", "micro_batch", "ga", "checkpointing")
_STABLE: Final = ("nic_bandwidth", *_SIZES, "overlap_tp")


def print_ranking(ranking: Ranking, console: Console) -> None:
    """Print a ranking (plan columns, result, parts of the step in percent), then what it leaves out."""
    if ranking.missing:
        computed = f"{ranking.total:,} of {ranking.total + ranking.missing:,} plans are computed"
        console.print(f"Incomplete: {computed}; the same `sweep run` computes the rest.")
    rows = ranking.rows.select(ranking.shown)
    out = _print_rows(ranking, rows, console) if rows.num_rows else []
    if not rows.num_rows:
        console.print("No plan to rank.")
    direction = "highest" if ranking.descending else "lowest"
    told = f"{ranking.ranked:,} of {ranking.total:,} plans ranked, {direction} {ranking.by} first."
    if ranking.front:
        told = f"Pareto front of {', '.join(ranking.front)}: {rows.num_rows:,} of {ranking.ranked:,} plans."
    console.print(told)
    if ranking.alike:
        more = plural(ranking.alike, "more plan")
        console.print(f"alike: {more} with the same numbers, which differ in {', '.join(ranking.differing)} (--all shows them)")
    if out:
        console.print(f"Left out at {console.width} columns: {', '.join(out)} (--columns chooses)")
    print_plausibility(ranking.plausibility, ranking.utilisation, ranking.hfu, ranking.measured, console)
    if ranking.mixed_batches:
        console.print(
            "note: steps of different global batches are compared; --by gpu_s_per_sample or --per global_batch compares fairly"
        )
    for line in error_lines(ranking.error_bars, ranking.per):
        console.print(line)
    if ranking.running is not None:
        console.print(f"running: {running_words(ranking.running)}")
    _print_tight(ranking.rows, console)
    for note in ranking.notes:
        console.print(f"note: {note}")
    if ranking.held and ranking.ranked:
        console.print("All of them: " + ", ".join(f"{name} {cell(name, value)}" for name, value in ranking.held.items()))
    _print_left_out(ranking, console)


def _print_rows(ranking: Ranking, rows: pa.Table, console: Console) -> list[str]:
    """Print the table; returns the headings of columns for which the terminal is too narrow."""
    headings, columns = _cells(rows)
    if len(headings) > MOST_COLUMNS:  # a line for each column
        lines = [[headings[name], *columns[name]] for name in headings]
        print_table(lines[0], lines[1:], console, left=(0,), gap=2)
        return []
    widths = {name: max(map(len, (headings[name], *columns[name]))) for name in headings}
    shown = _fitting(widths, _importance(ranking, rows), console.width) if console.is_terminal else list(headings)
    print_table([headings[name] for name in shown], list(zip(*(columns[name] for name in shown), strict=True)), console, gap=2)
    return [headings[name] for name in headings if name not in shown]


def _cells(rows: pa.Table) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Heading and cells of each column; with the step time, its parts come last and in percent of it."""
    parts = [name for name in PARTS if name in rows.column_names]
    in_percent = len(parts) == len(PARTS) and "step_time_s" in rows.column_names
    headings = {name: heading(name) for name in rows.column_names if not (in_percent and name in parts)}
    columns = {name: [cell(name, value) for value in rows[name].to_pylist()] for name in headings}
    if in_percent:
        steps = rows["step_time_s"].to_pylist()
        for name in parts:
            values = rows[name].to_pylist()
            if any(values):
                headings[name] = f"{SHORT_PART[name]}%"
                columns[name] = [f"{100 * value / step:.0f}" for value, step in zip(values, steps, strict=True)]
    return headings, columns


def _importance(ranking: Ranking, rows: pa.Table) -> list[str]:
    """The columns, the most telling first: what is ranked, the plan, the result, the largest parts."""
    first = [*_ALWAYS, *ranking.per, ranking.by, _TIE, *ranking.front, *(name for name in _SIZES if name in ranking.varying)]
    results = ["step_time_s", "mfu", *(name for name in ranking.varying if name not in first), ALIKE, "samples_per_s"]
    sums = {name: sum(value or 0 for value in rows[name].to_pylist()) for name in PARTS if name in rows.column_names}
    named = [*first, *results, *sorted(sums, key=lambda name: -sums[name]), *rows.column_names]
    return [name for name in dict.fromkeys(named) if name in rows.column_names]


def _fitting(widths: dict[str, int], importance: Sequence[str], width: int) -> list[str]:
    """The columns that fit into a line, in the order of the table."""
    left = width - 1
    kept = set()
    for name in importance:
        if name in widths and (widths[name] + 2 <= left or name in _ALWAYS):
            kept.add(name)
            left -= widths[name] + 2
    return [name for name in widths if name in kept]


def _print_tight(rows: pa.Table, console: Console) -> None:
    """Say how likely the best plans are to run, and what to do where they leave less of the device than memory is off by."""
    names = ["rank", "plan", "peak_memory_bytes", "device_memory_bytes", RUNS]
    if not set(names) <= set(rows.column_names):
        return
    best = [row for row in rows.select(names).to_pylist() if row["rank"] == 1 and row[RUNS] is not None]
    parts = [row["peak_memory_bytes"] / row["device_memory_bytes"] for row in best]
    if not best:
        return
    tight = [row for row, part in zip(best, parts, strict=True) if part > 1 - MEMORY_ERROR]
    said, least = tight or best, min(row[RUNS] for row in best)
    single = len(said) == 1
    numbers = f"plans {', '.join(str(row['plan']) for row in tight)}" if tight else "the best plans"
    plans = f"plan {said[0]['plan']} needs" if single else f"{numbers} need up to"
    chance = f"{'it' if single else 'the fullest'} runs with a chance of {least:.0%} before any run"
    needs = f"{plans} {max(parts):.0%} of the device's memory"
    if not tight:
        console.print(f"memory: {needs}; {chance}")
        return
    console.print(
        f"tight: {needs}; memory of measured runs is off by {MEMORY_ERROR:.0%} in the mean, and {chance}:"
        f" try {'it' if single else 'them'} first, or leave room with"
        f' --where "peak_memory_bytes < {1 - MEMORY_ERROR:g} * device_memory_bytes"'
    )


def _print_left_out(ranking: Ranking, console: Console) -> None:
    left_out: dict[str, int] = ranking.reasons | ({"where": ranking.filtered} if ranking.filtered else {})
    more: dict[str, str] = {}
    if ranking.memory:
        need, have = (span(*(short(end, "B") for end in ranking.memory[k : k + 2])) for k in (0, 2))
        more["memory_exceeds_device"] = f"; need {need}, have {have}"
    if left_out:
        print_reasons(left_out, console, "Not ranked", more)


def error_lines(bars: ErrorBars, per: tuple[str, ...]) -> Iterator[str]:
    """What error bars say: the interval of a step with what it rests on, then a line for each group that has ties."""
    own = f", and {bars.own} of your own" if bars.own else ""
    first = f"{bars.why}{own}"
    if bars.groups:
        best = bars.groups[0]
        first = f"the step of plan {best.best} is {best.low:.2f} to {best.high:.2f} x the simulated one ({LEVEL:.0%}; {first})"
    yield f"error bars: {first}"
    for group in bars.groups:
        if group.tied:
            told = "".join(f"{values_text({name: value})}: " for name, value in zip(per, group.group, strict=True))
            yield f"ties: {told}{ties_of(group)}"


def running_words(job: Beside) -> str:
    """How much faster the best plan is than the job that runs, and how sure that is."""
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
    return f"{told}; {expected} ({sure}{doubt})"


def _change(ratio: float) -> str:
    """A ratio of steps as what it saves."""
    return f"{1 - ratio:.1%} less" if ratio <= 1 else f"{ratio - 1:.1%} more"


def ties_of(group: GroupBars) -> str:
    """How many plans tie with the best of a group, and what would tell."""
    return f"{plural(group.tied)} cannot be told from plan {group.best}; `sweep tune` says which to run"


def stable_rows(groups: Sequence[Stability], top: int) -> pa.Table:
    """The `top` plans of each group with the most wins: all columns of a ranking, and the part of the draws that they win."""
    tables = []
    for group in groups:
        order = np.argsort(-group.wins, kind="stable")[:top]
        tables.append(group.rows.take(order).append_column(WINS, pa.array(group.wins[order])))
    return pa.concat_tables(tables, promote_options="default") if tables else pa.table({WINS: pa.array([], pa.float64())})


def print_stability(groups: Sequence[Stability], sigmas: Mapping[str, float], top: int, console: Console) -> None:
    """Print the plans with the most wins of each group."""
    moved = ", ".join(f"{name} {sigma:g}" for name, sigma in sigmas.items())
    console.print(f"{DRAWS:,} draws, standard deviations of ln(time): {moved}")
    for group in groups:
        rows = stable_rows([group], top)
        rows = rows.filter(pa.array(np.array(rows[WINS]) > 0))
        varying = [name for name in _STABLE if name in rows.column_names and len(group.rows[name].unique()) > 1]
        if group.group:
            console.print(f"{values_text(group.group)}:")
        names = ["rank", "plan", *varying, "step_time_s"]
        cells = [[*(cell(name, row[name]) for name in names), f"{row[WINS]:.1%}"] for row in rows.to_pylist()]
        print_table([*map(heading, names), WINS], cells, console, gap=2)
        console.print(_beyond(group))


def _beyond(group: Stability) -> str:
    count = f"{len(group.rows):,} plans simulated, {int((group.wins > 0).sum()):,} win"
    if not group.beyond:
        return f"{count}; there are no more."
    gained, behind = np.expm1(group.reach), np.expm1(group.behind)
    verdict = "so the rest cannot win" if group.reach < group.behind else "so one of the rest may win: raise --candidates"
    return f"{count}. The rest are {behind:.1%} and more behind; no plan gained more than {gained:.1%} on the first: {verdict}."


def print_relaxed(constraints: Sequence[Relaxed], notes: Sequence[str], console: Console) -> None:
    """Print each group: the best plan now, then the constraints, the dearest first."""
    for group in dict.fromkeys(tuple(each.group.items()) for each in constraints):
        _print_constraints([each for each in constraints if tuple(each.group.items()) == group], console)
    if not constraints:
        console.print("No constraint: the spec has no `where`, --where is not given, and every plan fits into its device.")
    for note in notes:
        console.print(f"note: {note}")


def _print_constraints(constraints: Sequence[Relaxed], console: Console) -> None:
    """Print the constraints of one group."""
    by, group, now = constraints[0].by, constraints[0].group, constraints[0].now
    told = "".join(f"{values_text({name: value})}: " for name, value in group.items())
    best = "no plan can run now" if now is None else f"best now is plan {now['plan']}, {by} {cell(by, now[by])}"
    console.print(f"{told}{best}")
    headings = ["constraint", "costs", heading(by), "plan"]
    rows = [[_constraint(each), _cost(each), "", ""] for each in constraints]
    for each, row in zip(constraints, rows, strict=True):
        if each.without is not None:
            row[2:] = [cell(by, each.without[by]), str(each.without["plan"])]
    if console.is_terminal:
        others = sum(max(map(len, cells)) + 2 for cells in list(zip(headings, *rows, strict=True))[1:])
        most = max(console.width - others - 2, LEAST)
        for row in rows:
            row[0] = row[0] if len(row[0]) <= most else f"{row[0][: most - 1]}\u2026"
    print_table(headings, rows, console, left=(0,), gap=2)
    for each in constraints:
        if each.better > NOTHING or (each.now is None and each.without is not None):
            console.print(f"{_constraint(each)}: {_told(each)}")


def _constraint(relaxed: Relaxed) -> str:
    return relaxed.constraint if relaxed.origin in (WHERE, DEVICE) else f"{relaxed.origin} {relaxed.constraint}"


def _cost(relaxed: Relaxed) -> str:
    """What the constraint costs, in percent of what is ranked by."""
    if relaxed.without is None:
        return "no plan"
    if relaxed.now is None:
        return "all"
    return f"{relaxed.better:.1%}" if relaxed.better > NOTHING else "nothing"


def _told(relaxed: Relaxed) -> str:
    """The plan that wins without the constraint: what is other in it, and the memory that it needs."""
    row = relaxed.without or {}
    text = f"plan {row.get('plan')} has {values_text(relaxed.changes) or 'the same values'}"
    need, have = row.get("peak_memory_bytes"), row.get("device_memory_bytes")
    if relaxed.origin == DEVICE and need is not None and have is not None:
        text += f"; needs {short(need, 'B')}, has {short(have, 'B')}"
    return f"{text}; it alone keeps {plural(relaxed.excluded)} out"


def print_disagreement(both: Disagreement, console: Console) -> None:
    """Print how far the fidelities agree, and the plans they disagree on most."""
    correlation = "undefined, all plans tie" if both.rank_correlation is None else f"{both.rank_correlation:.3f}"
    console.print(
        f"{both.pairs:,} plans in both fidelities. simai / event: median {both.median:.3f}, 5 to 95 % {both.low:.3f} to "
        f"{both.high:.3f}. Rank correlation {correlation}; {both.best_in_common} plans are in the best {both.best} of both."
    )
    console.print("Largest differences; parts are simai - event:")
    names = [name for name in both.rows.column_names if name not in PARTS or any(both.rows[name].to_pylist())]
    rows = [[cell(name, row[name]) for name in names] for row in both.rows.to_pylist()]
    print_table([SHORT_PART.get(name, heading(name)) for name in names], rows, console, gap=2)
