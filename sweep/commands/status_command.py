"""`sweep status`: what one result holds and how far it is."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from sim_core import short
from sweep.commands.shared import RESULTS, AsJson
from sweep.folder import folder_at
from sweep.listing import standing
from sweep.show.progress import clock
from sweep.show.results import print_reasons
from sweep.show.tables import cell
from sweep.show.terminal import own_console
from sweep.store import newest


def command(
    directory: Annotated[
        str | None, typer.Argument(help="Folder of results, a path or URI. Default: the newest under results/.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how far a result is: plans done, time left while a run writes, size, plans by reason, best plan."""
    folder = folder_at(directory) if directory is not None else newest(RESULTS)
    found = standing(folder)
    if as_json:
        sys.stdout.write(json.dumps(asdict(found), indent=1) + "\n")
        return
    console = own_console()
    left = f", about {clock(found.left_s)} (h:min:s) left" if found.left_s is not None else ""
    part = found.done / found.total if found.total else 1.0
    lines = [
        f"{found.folder}: {found.name}, {found.state}",
        f"  {found.done:,} of {found.total:,} plans ({part:.0%}){left}",
        f"  {short(found.bytes, 'B')} in {found.files:,} files, the last written {clock(found.written_s)} ago",
    ]
    if found.plan is not None:
        lines.append(
            f"  best{' so far' * (found.state != 'complete')}: plan {found.plan}, {found.by} {cell(found.by, found.best)}"
        )
    elif found.done:
        lines.append("  none of them can run")
    if found.state == "incomplete":
        lines.append("  the same `sweep run` adds what is missing")
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
    if found.done:
        print_reasons({"": found.ok} | found.reasons, console, "Plans by reason")
