"""How far a result is: in lines, and as a page that loads itself anew."""

from sim_core import plural, short
from sweep.answers.section import Section
from sweep.listing import Standing
from sweep.show.progress import clock, speed
from sweep.show.results import reason_lines
from sweep.show.sections import page
from sweep.watching import LOOK_S
from sweep.wording import cell

_LOST = {"slices_lost": "lost slice", "retries": "repeated request", "store_errors": "unstored slice"}


def standing_lines(result: Standing) -> list[str]:
    """How far a result is, the best plan, and what its run has lost."""
    left = f", about {clock(result.left_s)} (h:min:s) left" if result.left_s is not None else ""
    part = result.done / result.total if result.total else 1.0
    lines = [
        f"{result.folder}: {result.name}, {result.state}",
        f"  {result.done:,} of {result.total:,} plans ({part:.0%}){left}",
        f"  {short(result.bytes, 'B')} in {plural(result.files, 'file')}, the last written {clock(result.written_s)} ago",
    ]
    if best := best_so_far(result):
        lines.append(f"  {best}")
    if run := result.run:
        lost = ", ".join(plural(run[key], word) for key, word in _LOST.items())
        lines.append(
            f"  run on {run['host']}: {speed(run['plans_per_second'], None)}, {short(run['memory_bytes'], 'B')}, {lost}"
        )
    if result.state == "incomplete":
        lines.append("  the same command (`sweep run` or `search`) adds what is missing")
    return lines


def reasons_of(result: Standing) -> list[str]:
    """The plans that are done, by reason."""
    return list(reason_lines({"": result.ok} | result.reasons, "Plans by reason")) if result.done else []


def best_so_far(result: Standing) -> str:
    """The best plan, if there is one."""
    if result.plan is None:
        return "none of them can run" * (result.done > 0)
    return f"best{' so far' * (result.state != 'complete')}: plan {result.plan}, {result.by} {cell(result.by, result.best)}"


def live_page(result: Standing) -> str:
    """How far a result is as a page; while a run writes, a browser loads it anew."""
    again = f'<head><meta http-equiv="refresh" content="{LOOK_S:.0f}">' if result.state == "running" else "<head>"
    title, *lines = standing_lines(result)
    return page(title, [Section(result.name, [*lines, *reasons_of(result)])]).replace("<head>", again, 1)
