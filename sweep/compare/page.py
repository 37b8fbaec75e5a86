"""A comparison as one HTML page that needs no network: tables and charts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sweep.compare.report import Section, group_text
from sweep.compare.result import Comparison, Point
from sweep.show.html import document
from sweep.show.tables import SHORT_PART

_UP: Final = "#c4622d"
_DOWN: Final = "#3465a4"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The page's part on one sweep: sections of text and tables, the comparison if there is one, the history of nights."""

    name: str
    sections: tuple[Section, ...]
    comparison: Comparison | None = None
    history: tuple[Point, ...] = ()


_DRAW: Final = """
const figures = JSON.parse(document.getElementById("data").textContent);
figures.forEach((figure, k) => Charts.draw(document.getElementById("plot" + k), figure));
"""


def html_page(title: str, lead: Sequence[str], entries: Sequence[Entry]) -> str:
    """The page."""
    figures: list[dict[str, Any]] = []
    body = "".join(_entry(entry, figures) for entry in entries)
    leads = "".join(f"<p>{html.escape(text)}</p>" for text in lead)
    return document(title, f"<h1>{html.escape(title)}</h1>{leads}{body}", figures, [_DRAW])


def _entry(entry: Entry, figures: list[dict[str, Any]]) -> str:
    own = _figures(entry)
    first = len(figures)
    figures += [figure for _, figure in own]
    plots = "".join(
        f'<figure><figcaption>{html.escape(title)}</figcaption><div class="plot" id="plot{first + k}"></div></figure>'
        for k, (title, _) in enumerate(own)
    )
    head, *rest = entry.sections
    return (
        f"<h2>{html.escape(head.heading)}</h2>{_content(head)}"
        + (f'<div class="plots">{plots}</div>' if plots else "")
        + "".join(f"<h3>{html.escape(part.heading)}</h3>{_content(part)}" for part in rest)
    )


def _content(part: Section) -> str:
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in part.lines)
    text = f"<ul>{lines}</ul>" if lines else ""
    if not part.table:
        return text
    head, *rows = part.table
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f'{text}<div class="scroll"><table><tr>{cells}</tr>{body}</table></div>'


def _figures(entry: Entry) -> list[tuple[str, dict[str, Any]]]:
    """Titles and figures."""
    found, history = entry.comparison, entry.history
    figures: list[tuple[str, dict[str, Any]]] = []
    if history:
        ranks = [rank for point in history for rank in point.champion_rank.values() if rank]
        rank_axis = _rank_axis(max(ranks, default=1))
        figures += [
            ("Step time of the best plan, s", _lines(history, "best_step_s", _step_axis(history))),
            (
                "New rank of the best plan of the night before",
                _lines(history, "champion_rank", rank_axis),
            ),
            ("Plans that can run", _feasible(history)),
        ]
    if found is not None and found.steps.histogram and found.steps.same < found.steps.plans:
        figures.append(("Plans by change of their step time", _histogram(found)))
    if found is not None and found.steps.mean is not None and found.steps.mean.parts:
        figures.append(("Parts of the mean step, new - old, s", _parts(found)))
    return figures


def _step_axis(history: Sequence[Point]) -> dict[str, Any]:
    """Logarithmic if the groups are far apart."""
    steps = [step for point in history for step in point.best_step_s.values() if step]
    if not steps:
        return {"domain": [0, 1], "unit": "s"}
    low, high = min(steps), max(steps)
    if high > 5 * low:
        return {"domain": [low / 1.2, high * 1.2], "log": True, "unit": "s"}
    margin = 0.1 * (high - low)
    return {"domain": [low - margin, high + margin], "unit": "s"}


def _rank_axis(worst: int) -> dict[str, Any]:
    """Logarithmic, with rank 1 on top."""
    ticks = [step * 10**k for k in range(len(str(worst))) for step in (1, 2, 5) if step * 10**k <= max(worst, 10)]
    return {"domain": [max(worst, 10) * 1.3, 0.7], "log": True, "ticks": ticks}


def _lines(history: Sequence[Point], field: str, axis: dict[str, Any]) -> dict[str, Any]:
    """One line per group over the nights, with gaps for missing values."""
    names = dict.fromkeys(name for point in history for name in getattr(point, field))
    series = [{"name": name, "values": [getattr(point, field).get(name) for point in history]} for name in names]
    return {"kind": "lines", "x": {"names": [point.label for point in history]}, "y": axis, "series": series}


def _feasible(history: Sequence[Point]) -> dict[str, Any]:
    values = [point.feasible for point in history]
    axis = {"domain": [0, max([*values, 1]) * 1.05]}
    return {"kind": "bars", "x": {"names": [point.label for point in history]}, "y": axis, "values": values}


def _histogram(found: Comparison) -> dict[str, Any]:
    """Plans by the middle of their bin, in per cent."""
    middles = [50 * (low + high) for low, high, _ in found.steps.histogram]
    values = [count for *_, count in found.steps.histogram]
    return {
        "kind": "bars",
        "x": {"names": [f"{middle:+.3g} %" for middle in middles]},
        "y": {"domain": [0.7, max(values) * 1.5], "log": True},
        "values": values,
        "colours": [_UP if middle > 0 else _DOWN for middle in middles],
    }


def _parts(found: Comparison) -> dict[str, Any]:
    mean = found.steps.mean
    parts = mean.parts if mean else ()
    values = [delta for _, delta in parts]
    return {
        "kind": "bars",
        "x": {"names": [SHORT_PART[name] for name, _ in parts]},
        "y": {"domain": [min([*values, 0.0]) * 1.05, max([*values, 0.0]) * 1.05], "unit": "s"},
        "values": values,
        "colours": [_UP if delta > 0 else _DOWN for delta in values],
    }


def two_points(found: Comparison) -> tuple[Point, ...]:
    """The history if there are only the two results: old and new."""

    def point(label: str, feasible: int, new: bool) -> Point:
        champions = {group_text(group.group): group.new if new else group.old for group in found.groups}
        return Point(
            label=label,
            feasible=feasible,
            best_step_s={name: champion.step_time_s if champion else None for name, champion in champions.items()},
            champion_rank={group_text(group.group): group.old_plan_rank if new else None for group in found.groups},
        )

    return point("old", found.old_feasible, False), point("new", found.new_feasible, True)
