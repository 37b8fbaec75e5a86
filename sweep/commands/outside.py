"""What `run` and `search` say of plans just outside their space."""

from pathlib import Path

from rich.console import Console

from sweep.columns import LONGER, SHORTER
from sweep.explaining.outside import best_outside
from sweep.folder import Folder
from sweep.preparation import Prepared
from sweep.ranking import rank
from sweep.reopening import Reopened
from sweep.spec import SweepSpec


def say_if_better_outside(loaded: SweepSpec, prepared: Prepared, spec: Path, folder: Folder, console: Console) -> None:
    """One line if a plan just outside the space is clearly faster than the best of it, where a step's time decides."""
    first = rank(folder, top=1, per=[])
    if not first.rows.num_rows or first.by not in (*LONGER, *SHORTER):
        return
    number = int(first.rows["plan"][0].as_py())
    whole = prepared.without_sample()
    opened = Reopened(folder=folder, spec=loaded, base=spec.parent, prepared=whole, provenance=whole.provenance, notes=())
    found = best_outside(opened, number)
    if found is not None:
        best, gain = found
        console.print(
            f"outside: {best.change} would be {gain:.1%} faster than plan {number}, all else the same, but is not in this space"
        )
