"""`sweep compact`: few large files from the many small ones of a result."""

from __future__ import annotations

from typing import Annotated

import typer

from sweep.commands.shared import RESULTS
from sweep.compaction import compact
from sweep.folder import folder_at
from sweep.show.terminal import own_console
from sweep.store import Store, newest


def command(
    directory: Annotated[
        str | None, typer.Argument(help="Folder of results, a path or URI. Default: the newest under results/.")
    ] = None,
) -> None:
    """Join the small files of a result into few large ones; the rows stay as they are."""
    folder = folder_at(directory) if directory is not None else newest(RESULTS)
    before, after = compact(Store(directory=folder))
    own_console().print(f"{folder}: {before:,} files before, {after:,} now", soft_wrap=True, highlight=False)
