"""`sweep status`: what one result holds and how far it is."""

from dataclasses import asdict

from sim_core import plural, short
from sweep.commands.shared import AsJson, Directory, result_at, write_json
from sweep.listing import standing
from sweep.show.progress import clock
from sweep.show.results import reason_lines
from sweep.show.sections import print_sections
from sweep.show.terminal import own_console
from sweep.wording import cell


def command(directory: Directory = None, as_json: AsJson = False) -> None:
    """Say how far a result is: plans done, time left while a run writes, size, plans by reason, best plan."""
    result = standing(result_at(directory, missing=False))
    if as_json:
        write_json(asdict(result))
        return
    left = f", about {clock(result.left_s)} (h:min:s) left" if result.left_s is not None else ""
    part = result.done / result.total if result.total else 1.0
    lines = [
        f"{result.folder}: {result.name}, {result.state}",
        f"  {result.done:,} of {result.total:,} plans ({part:.0%}){left}",
        f"  {short(result.bytes, 'B')} in {plural(result.files, 'file')}, the last written {clock(result.written_s)} ago",
    ]
    if result.plan is not None:
        so_far = " so far" * (result.state != "complete")
        lines.append(f"  best{so_far}: plan {result.plan}, {result.by} {cell(result.by, result.best)}")
    elif result.done:
        lines.append("  none of them can run")
    if result.state == "incomplete":
        lines.append("  the same `sweep run` adds what is missing")
    console = own_console()
    console.print("\n".join(lines))
    if result.done:
        print_sections(reason_lines({"": result.ok} | result.reasons, "Plans by reason"), console)
