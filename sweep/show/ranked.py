"""Screens of `sweep rank`: the ranking with its ties and what it leaves out."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from sim_core import FOLLOWING, PARTS, plural, short
from sim_core.documents import Words
from sweep.answers.among import ties_of
from sweep.columns import EXPECTED, EXPECTED_MEMORY, SECTIONS, measures_of
from sweep.exporting.meant import PEAK
from sweep.ranking.error_bars import ErrorBars
from sweep.ranking.ranking import Ranking
from sweep.ranking.selection import ALIKE
from sweep.results.folder import Location
from sweep.search.candidates import BEATEN, WORSE
from sweep.show.answer import answer_of
from sweep.show.checks import plausibility_lines
from sweep.show.results import reason_lines
from sweep.show.sections import print_sections, print_table, say
from sweep.spec.stacks import stack_name
from sweep.uncertainty.evidence import LEVEL
from sweep.wording import SHORT_PART, cell, heading, span, values_text

MOST_COLUMNS = 30
"""A ranking of more columns is printed on its side."""
MOST_BRIEF = 10
"""Columns of the table that is printed unless more are asked for."""
MOST_AXES = 4
"""Axes that such a table shows before other results."""
MORE_AXES = 2
"""Further axes that tell its rows apart, for which it is wider."""
MOST_REASONS = 3
_ALWAYS = ("rank", "plan")
STEP = "step_time_s"
_TIE = "tie"
_SIZES = ("all_gpus", "tp", "pp", "cp", "ep", "vpp", "dp", "micro_batch", "ga", "checkpointing")
_RESULTS = ("mfu", "tokens_per_s_per_gpu", "peak_memory_bytes", *measures_of(*SECTIONS.values()))
_IN_WORDS = {BEATEN: "proven worse", WORSE: "simulated and worse", "where": "kept out by --where"}
_ASSUMED = ("schedule", "layer_split", "precision", "dispatcher", "sharding", "overlap_grad", "overlap_param", "stack")
"""Fields that matter to the answer though all plans have the same value."""
_USUAL_MEMORY = "memory: peak_memory_bytes holds"


def print_ranking(
    ranking: Ranking,
    console: Console,
    *,
    folder: Location,
    where: str | None = None,
    verbose: bool = False,
    try_cost: float | None = None,
) -> None:
    """Print what to launch, how sure that is and what to do next; a table of the rows; what changes the decision.

    `verbose`: all columns, and all that is known of the ranking. `where`: the condition that it was asked with. `try_cost`: as
    `Tuner`'s.
    """
    answer, ranking = answer_of(ranking, folder, where, try_cost)
    for told, sentence in zip(("", "How sure: ", "Next: "), answer[:3], strict=True):
        if sentence:
            say(f"{told}{sentence}.", console)
    brief = not (verbose or ranking.chosen)
    names = _brief(ranking) if brief else list(ranking.shown)
    for name, here in {STEP: EXPECTED, PEAK: EXPECTED_MEMORY}.items():
        if name in names and here in ranking.rows.column_names:
            names.insert(names.index(name) + 1, here)
    if ranking.rows.num_rows > brief:
        out = _print_rows(ranking, names, console, in_percent=brief)
        out += [heading(name) for name in ranking.varying if brief and _differs(ranking, name) and name not in names]
        if out:
            say(f"Left out: {', '.join(dict.fromkeys(out))} ({'-v' if brief else '--columns chooses'})", console)
        if EXPECTED in names:
            say("As runs tell: expected_*, tie. As simulated: the order and all else.", console)
    for line in _notes(ranking, answer.running, verbose=verbose):
        say(line, console)
    left_out = ranking.reasons | ({"where": ranking.filtered} if ranking.filtered else {})
    if left_out and (verbose or not ranking.ranked):
        more = {}
        if ranking.memory:
            need, have = (span(*(short(end, "B") for end in ranking.memory[k : k + 2])) for k in (0, 2))
            more["memory_exceeds_device"] = f"; need {need}, have {have}"
        print_sections(reason_lines(left_out, "Not ranked", **more), console)
    elif left_out:
        counts = sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
        reasons = [f"{count:,} {_IN_WORDS.get(reason, reason)}" for reason, count in counts[:MOST_REASONS]]
        reasons += [f"{sum(count for _, count in counts[MOST_REASONS:]):,} for other reasons"] * (len(counts) > MOST_REASONS)
        say(f"Not ranked: {', '.join(reasons)} (-v says why)", console)


def _notes(ranking: Ranking, running: Words, *, verbose: bool) -> Iterator[str]:
    """What changes the decision, the job that is `running` in words; `verbose`: all that is known of the ranking."""
    if ranking.missing:
        yield f"Incomplete: {ranking.total:,} of {ranking.total + ranking.missing:,} plans are computed."
    if verbose:
        order = f"{'highest' if ranking.descending else 'lowest'} {ranking.by} first"
        yield f"{ranking.ranked:,} of {ranking.total:,} plans ranked, {order}."
    if ranking.alike:
        more = plural(ranking.alike, "more plan")
        differing = f", which differ in {', '.join(ranking.differing)}" * bool(ranking.differing)
        yield f"alike: {more} with the same numbers{differing} (--all shows them)"
    yield from plausibility_lines(ranking.provenance.get("plausibility", {}), ranking.utilisation, verbose=verbose)
    if ranking.by == STEP and "global_batch" in ranking.varying and "global_batch" not in ranking.per:
        fairly = "--by gpu_s_per_sample or --per global_batch compares fairly"
        yield f"note: steps of different global batches are compared; {fairly}"
    if verbose:
        yield from error_lines(ranking.error_bars, ranking.per)
    yield from (f"running: {line}" for line in running)
    yield from (f"note: {note}" for note in ranking.notes if verbose or not note.startswith(_USUAL_MEMORY))
    spec = ranking.provenance.get("spec", {})
    # axes, zipped ones by themselves: what a user lets vary is not assumed, though one value is left
    axes = {name.strip() for key in spec.get("axes") or () for name in key.split(",")}
    held = {name: value for name, value in ranking.held.items() if verbose or (name in _ASSUMED and name not in axes)}
    if held and ranking.ranked:
        workload, words = spec.get("workload") or {}, []
        if workload.get("model") and "stack" not in {*axes, *ranking.varying, *ranking.held}:
            words.append(f"stack {stack_name(workload.get('stack'))}")
        if workload.get("model") and workload.get("sequence"):
            words.append(f"sequence {workload['sequence']:,}")
        words += [f"{name} {cell(name, value)}" for name, value in held.items()]
        yield f"{'All of them' if verbose else 'Assumed'}: {', '.join(words)}"


def _differs(ranking: Ranking, name: str) -> bool:
    """Whether the rows differ in a column, which no other columns tell."""
    return name in ranking.rows.column_names and name not in FOLLOWING and len(ranking.rows[name].unique()) > 1


def _differing(ranking: Ranking) -> list[str]:
    """Columns of plans in which the rows differ, besides those that group them."""
    named = dict.fromkeys(_SIZES + ranking.varying)
    return [name for name in named if name not in ranking.per and _differs(ranking, name)]


def _apart(ranking: Ranking) -> list[str]:
    """As few of these columns as tell the rows apart, the most telling first."""
    left, found, known = _differing(ranking), list[str](), 0
    while left:
        kinds = {name: ranking.rows.group_by([*ranking.per, *found, name]).aggregate([]).num_rows for name in left}
        best = max(left, key=kinds.__getitem__)
        if kinds[best] == known:
            break
        known = kinds[best]
        found.append(best)
        left.remove(best)
    return found


def _brief(ranking: Ranking) -> list[str]:
    """The columns that tell the rows apart, at most MOST_BRIEF: plan, what it is, what it gives, where its step goes."""
    rows = ranking.rows
    differing = _differing(ranking)
    results = [
        name
        for name in _RESULTS
        if name in rows.column_names and name not in ranking.varying and rows[name].null_count < len(rows)
    ]
    first = ["rank" if _differs(ranking, "rank") else "", "plan", *ranking.per, ranking.by, STEP, *ranking.front]
    first += [_TIE] if _differs(ranking, _TIE) else []
    # of the parts of the step those that are not compute, the largest first
    waits = [name for name, seconds in _sums(ranking).items() if seconds and not name.startswith("compute")]
    given, memory = first + results + waits, [name for name in results if name == "peak_memory_bytes"]
    telling = first + _apart(ranking) + differing[: MOST_AXES + MORE_AXES] + memory + results + differing + given
    chosen = list(dict.fromkeys(name for name in telling if name))[: MOST_BRIEF + len(differing[MOST_AXES:][:MORE_AXES])]
    return list(dict.fromkeys(name for name in ("rank", "plan", *ranking.per, *differing, *given) if name in chosen))


def _sums(ranking: Ranking) -> dict[str, float]:
    """Seconds of each part of the step in all rows, the largest first."""
    rows = ranking.rows
    sums = {name: sum(value or 0 for value in rows[name].to_pylist()) for name in PARTS if name in rows.column_names}
    return {name: sums[name] for name in sorted(sums, key=lambda name: -sums[name])}


def _print_rows(ranking: Ranking, names: Sequence[str], console: Console, *, in_percent: bool) -> list[str]:
    """Print columns of a ranking; returns the headings of those for which the terminal is too narrow.

    The parts of the step come last and in percent of it, where it is shown with all of them.
    """
    rows, parts = ranking.rows, [name for name in PARTS if name in names]
    in_percent = in_percent or (len(parts) == len(PARTS) and STEP in names)
    columns = {
        name: [heading(name), *(cell(name, value) for value in rows[name].to_pylist())]
        for name in names
        if not (in_percent and name in parts)
    }
    if in_percent:
        steps = rows[STEP].to_pylist()
        for name in parts:
            values = rows[name].to_pylist()
            if any(values):
                shares = (f"{100 * value / step:.0f}" for value, step in zip(values, steps, strict=True))
                columns[name] = [f"{SHORT_PART[name]}%", *shares]
    if len(columns) > MOST_COLUMNS:  # a line for each column
        lines = list(columns.values())
        print_table(lines[0], lines[1:], console, left=(0,), gap=2)
        return []
    shown = _fitting(ranking, columns, console.width) if console.is_terminal else columns
    head, *cells = zip(*(columns[name] for name in shown), strict=True)
    print_table(head, cells, console, gap=2)
    return [columns[name][0] for name in columns if name not in shown]


def _fitting(ranking: Ranking, columns: dict[str, list[str]], width: int) -> list[str]:
    """The columns that fit into a line, in the order of the table: of what is ranked, the plan, the result and the largest
    parts the most telling first."""
    first = [*_ALWAYS, *ranking.per, ranking.by, _TIE, *ranking.front, *_apart(ranking)]
    first += [name for name in _SIZES if name in ranking.varying]
    results = [STEP, EXPECTED, "mfu", *ranking.varying, ALIKE, "samples_per_s"]
    left, kept = width - 1, set()
    for name in dict.fromkeys((*first, *results, *_sums(ranking), *ranking.rows.column_names)):
        if name in columns and ((needs := max(map(len, columns[name])) + 2) <= left or name in _ALWAYS):
            kept.add(name)
            left -= needs
    return [name for name in columns if name in kept]


def error_lines(bars: ErrorBars, per: Words) -> Iterator[str]:
    """What error bars say: the interval of a step with what it rests on, then a line for each group that has ties."""
    first = bars.why
    if bars.groups:
        best = bars.groups[0]
        first = f"the step of plan {best.best} is {best.low:.2f} to {best.high:.2f} x the simulated one ({LEVEL:.0%}; {first})"
    yield f"error bars: {first}"
    for group in bars.groups:
        if group.tied:
            told = "".join(f"{values_text({name: value})}: " for name, value in zip(per, group.group, strict=True))
            yield f"ties: {told}{ties_of(group)}"
