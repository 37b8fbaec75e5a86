"""Figures recorded for the committed table, and by how much new ones may be worse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sweep.validation.figures import Figures
from sweep.validation.report import as_json

RECORDED: Final = Path(__file__).parent / "data" / "recorded.json"
MARGINS: Final = {
    "mape": 0.5, "regret": 0.5, "regret_worst": 1.0, "memory_mape": 0.5, "spearman": -0.05, "pairs_right": -2.0,
    "oom_recall": 0.0, "oom_precision": -5.0,
}  # fmt: skip
"""What a figure may change by for the worse; negative: it may fall. All in the figure's own unit, most in points of percent."""


def record(found: Sequence[Figures]) -> None:
    """Write the figures down as those to be held."""
    RECORDED.write_text(as_json(found) + "\n", encoding="utf-8")


def worse(found: Sequence[Figures]) -> list[str]:
    """A line for each figure that is worse than the recorded one by more than its margin.

    Where more runs are simulated than when it was recorded, the figures are of other runs and are not compared.
    """
    recorded: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))
    now = {(one["set"], one["hw"]): one for one in json.loads(as_json(found))}
    lines = []
    for old in recorded:
        new = now.get((old["set"], old["hw"]))
        if new is None or new["simulated"] < old["simulated"]:
            count = 0 if new is None else new["simulated"]
            lines.append(f"{old['set']}, {old['hw'] or 'no device'}: simulated {count}, recorded {old['simulated']}")
        elif new["simulated"] == old["simulated"]:
            lines += _worse(old, new)
    return lines


def more_simulated(found: Sequence[Figures]) -> bool:
    """Whether runs are simulated that were not when the figures were recorded."""
    recorded = sum(int(one["simulated"]) for one in json.loads(RECORDED.read_text(encoding="utf-8")))
    return sum(one.simulated for one in found) > recorded


def _worse(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lines = []
    for key, margin in MARGINS.items():
        if old[key] is None:
            continue
        if key == "oom_precision" and not new["oom_called"]:
            continue  # no run is called, so none wrongly
        falls = margin < 0 or key == "oom_recall"
        change = None if new[key] is None else (old[key] - new[key] if falls else new[key] - old[key])
        if change is None or change > abs(margin) + 1e-9:
            value = "nothing" if new[key] is None else f"{new[key]:g}"
            lines.append(
                f"{old['set']}, {old['hw'] or 'no device'}: {key} {value}, recorded {old[key]:g}, margin {abs(margin):g}"
            )
    return lines
