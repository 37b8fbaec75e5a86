"""`sweep compact`: few large files from the many small ones of a result."""

from sim_core import plural
from sweep.commands.shared import Directory, result_at
from sweep.results.compaction import compact
from sweep.results.store import Store
from sweep.show.terminal import own_console


def command(directory: Directory = None) -> None:
    """Join the small files of a result into few large ones; the rows stay as they are."""
    folder = result_at(directory, missing=False)
    before, after = compact(Store(directory=folder))
    own_console().print(f"{folder}: {plural(before, 'file')} before, {after:,} now")
