"""The recorded figures of the published runs, and which of new ones are worse."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sim_core.documents import Fields, Values
from sweep.validation.figures import RECORDED, Figures, as_objects

MARGINS: Final = {
    "mape": 0.5, "regret": 0.5, "regret_worst": 1.0, "memory_mape": 0.5, "spearman": -0.05, "pairs_right": -2.0,
    "oom_recall": 0.0, "oom_precision": -5.0,
}  # fmt: skip
"""What a figure may change by for the worse; negative: it may fall. All in the figure's own unit, most in points of percent."""


def worse(rows: Sequence[Figures]) -> list[str]:
    """A line for each figure that is worse than the recorded one by more than its margin.

    Where more runs are simulated than when it was recorded, the figures are of other runs and are not compared.
    """
    now = {(row["set"], row["hw"]): row for row in as_objects(rows)}
    lines = []
    for old in _recorded():
        new = now.get((old["set"], old["hw"]))
        count = 0 if new is None else new["simulated"]
        found: Iterable[str] = ()
        if new is None or count < old["simulated"]:
            found = (f"simulated {count}, recorded {old['simulated']}",)
        elif count == old["simulated"]:
            found = _worse(old, new)
        lines += [f"{old['set']}, {old['hw'] or 'no device'}: {what}" for what in found]
    return lines


def _recorded() -> list[Fields]:
    recorded: list[Fields] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return recorded


def _worse(old: Values, new: Values) -> Iterator[str]:
    """Figures of the same runs that are worse than they were by more than their margin."""
    for key, margin in MARGINS.items():
        if old[key] is None or (key == "oom_precision" and not new["oom_called"]):  # no run is called, so none wrongly
            continue
        falls = margin < 0 or key == "oom_recall"
        if new[key] is None or (old[key] - new[key]) * (1 if falls else -1) > abs(margin) + 1e-9:
            value = "nothing" if new[key] is None else f"{new[key]:g}"
            yield f"{key} {value}, recorded {old[key]:g}, margin {abs(margin):g}"
