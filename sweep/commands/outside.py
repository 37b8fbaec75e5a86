"""What `run` and `search` say of plans just outside their space."""

from pathlib import Path

from rich.console import Console

from sweep.answers.neighbours import best_outside
from sweep.answers.variation import STEP
from sweep.columns import LONGER, SHORTER
from sweep.evaluation.preparation import Prepared
from sweep.ranking.ranking import Ranking
from sweep.reopening import Reopened
from sweep.results.folder import Folder
from sweep.show.sections import say
from sweep.spec.spec import SweepSpec


def say_if_better_outside(
    ranking: Ranking, loaded: SweepSpec, prepared: Prepared, spec: Path, folder: Folder, console: Console
) -> None:
    """One line if a plan just outside the space is clearly faster than the best of it, where a step's time decides."""
    if ranking.best is None or ranking.by not in (*LONGER, *SHORTER):
        return
    number = int(ranking.best["plan"])
    whole = prepared.without_sample()
    opened = Reopened(folder=folder, spec=loaded, base=spec.parent, prepared=whole, provenance=whole.provenance, notes=())
    best = best_outside(opened, number)
    if best is not None:
        say(
            f"outside: {best.change} would be {best.gain(STEP):.1%} faster than plan {number}, but is not in this space",
            console,
        )
