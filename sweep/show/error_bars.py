"""What error bars say under a ranking: the interval of a step, how many plans tie with the best, which runs would tell."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from sweep.error_bars import ErrorBars, GroupBars
from sweep.show.tables import SHORT_COLUMN, cell
from sweep.uncertainty.evidence import LEVEL
from sweep.uncertainty.measuring import MINUTES


def print_error_bars(bars: ErrorBars, per: tuple[str, ...], console: Console) -> None:
    """Print the interval with what it rests on, and a line for each group that is told of."""
    for line in error_lines(bars, per):
        console.print(line, soft_wrap=True, highlight=False)


def error_lines(bars: ErrorBars, per: tuple[str, ...]) -> Iterator[str]:
    """The same, one line each."""
    own = f", and {bars.own} of your own" if bars.own else ""
    first = f"{bars.why}{own}"
    if bars.groups:
        best = bars.groups[0]
        first = f"the step of plan {best.best} is {best.low:.2f} to {best.high:.2f} x the simulated one ({LEVEL:.0%}; {first})"
    yield f"error bars: {first}"
    for group in bars.groups:
        if group.tied:
            values = zip(per, group.group, strict=True)
            told = "".join(f"{SHORT_COLUMN.get(name, name)} {cell(name, value)}: " for name, value in values)
            yield f"ties: {told}{ties_of(group)}"


def ties_of(group: GroupBars) -> str:
    """How many plans tie with the best of a group, and which runs would tell."""
    plans = f"{group.tied:,} plan{'s' * (group.tied != 1)} cannot be told from plan {group.best}"
    if len(group.runs) < 2:
        return plans
    runs = f"{', '.join(map(str, group.runs[:-1]))} and {group.runs[-1]}"
    return (
        f"{plans}; run plans {runs} for {MINUTES} minutes each: the pick then loses {group.loss_after:.1%} to the fastest "
        f"(expected), now {group.loss:.1%}"
    )
