"""A comparison as one HTML page that needs no network: tables, and plots with the plotly library embedded."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sim_core import SpecError
from sweep.compare.report import Section, group_text
from sweep.compare.result import Comparison, Point
from sweep.show.tables import SHORT_PART

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1280px; padding: 0 1rem; color: #1d2430; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; border-top: 1px solid #d5dae2; padding-top: 1.2rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; } ul { margin: .3rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #e6e9ee; } th { color: #5a6575; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: .5rem; }
figure { margin: .6rem 0 0; } figcaption { font-size: 13px; color: #5a6575; } .plot { height: 300px; }
""".strip()
_COLOURS: Final = ("#3465a4", "#c4622d", "#2e8b57", "#8e5ba6", "#b8860b", "#1f8a9e", "#b03a5b", "#6b7a3a", "#7a5c48", "#5a6575")
_NIGHTS: Final = {"type": "category", "nticks": 8}
_UP: Final = "#c4622d"
_DOWN: Final = "#3465a4"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The page's part on one sweep: sections of text and tables, the comparison if there is one, the history of nights."""

    name: str
    sections: tuple[Section, ...]
    comparison: Comparison | None = None
    history: tuple[Point, ...] = ()


def html_page(title: str, lead: Sequence[str], entries: Sequence[Entry]) -> str:
    """The page. Raises SpecError if plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise SpecError("the HTML page needs plotly: pip install 'training-plan-sweep[html]'") from None
    figures: list[dict[str, Any]] = []
    body = "".join(_entry(entry, figures) for entry in entries)
    leads = "".join(f"<p>{html.escape(text)}</p>" for text in lead)
    data = json.dumps(figures).replace("<", "\\u003c")
    draw = "for (const [k, f] of JSON.parse(document.getElementById('figures').textContent).entries()) "
    draw += "Plotly.newPlot('plot' + k, f.data, f.layout, {responsive: true, displayModeBar: false});"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1>{leads}{body}\n"
        f'<script type="application/json" id="figures">{data}</script>\n'
        f"<script>{get_plotlyjs()}</script>\n<script>{draw}</script></body></html>\n"
    )


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
    """Logarithmic if the groups are far apart; on a narrow range a logarithmic axis would have no ticks."""
    steps = [step for point in history for step in point.best_step_s.values() if step]
    return {"type": "log", "dtick": "D2"} if steps and max(steps) > 5 * min(steps) else {}


def _rank_axis(worst: int) -> dict[str, Any]:
    """Logarithmic, with rank 1 on top."""
    ticks = [step * 10**k for k in range(len(str(worst))) for step in (1, 2, 5)]
    bottom = math.log10(max(worst, 10) * 1.3)
    return {"type": "log", "tickvals": ticks, "range": [bottom, -0.15]}


def _layout(**more: Any) -> dict[str, Any]:
    plain = {"gridcolor": "#e6e9ee", "zerolinecolor": "#c3c9d3", "automargin": True}
    axes = {name: plain | more.pop(name, {}) for name in ("xaxis", "yaxis")}
    return {
        "margin": {"l": 55, "r": 15, "t": 10, "b": 40},
        "font": {"size": 11, "color": "#1d2430"},
        "plot_bgcolor": "#ffffff",
        "legend": {"font": {"size": 10}},
        **axes,
        **more,
    }


def _lines(history: Sequence[Point], field: str, axis: dict[str, Any]) -> dict[str, Any]:
    """One line per group over the nights, with gaps for missing values."""
    names = dict.fromkeys(name for point in history for name in getattr(point, field))
    labels = [point.label for point in history]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": labels,
            "y": [getattr(point, field).get(name) for point in history],
            "line": {"color": _COLOURS[k % len(_COLOURS)], "width": 1.5},
            "marker": {"size": 5},
        }
        for k, name in enumerate(names)
    ]
    return {"data": data, "layout": _layout(xaxis=_NIGHTS, yaxis=axis, showlegend=len(names) > 1)}


def _feasible(history: Sequence[Point]) -> dict[str, Any]:
    bars = {
        "type": "bar",
        "x": [point.label for point in history],
        "y": [point.feasible for point in history],
        "marker": {"color": _COLOURS[0]},
    }
    return {"data": [bars], "layout": _layout(xaxis=_NIGHTS, yaxis={"rangemode": "tozero"})}


def _histogram(found: Comparison) -> dict[str, Any]:
    bins = found.steps.histogram
    middles = [50 * (low + high) for low, high, _ in bins]
    bars = {
        "type": "bar",
        "x": middles,
        "y": [count for *_, count in bins],
        "width": [100 * (high - low) or 1.0 for low, high, _ in bins],
        "marker": {"color": [_UP if middle > 0 else _DOWN for middle in middles]},
    }
    layout = _layout(xaxis={"ticksuffix": " %"}, yaxis={"type": "log", "dtick": 1}, bargap=0)
    return {"data": [bars], "layout": layout}


def _parts(found: Comparison) -> dict[str, Any]:
    mean = found.steps.mean
    parts = mean.parts if mean else ()
    bars = {
        "type": "bar",
        "x": [SHORT_PART[name] for name, _ in parts],
        "y": [delta for _, delta in parts],
        "marker": {"color": [_UP if delta > 0 else _DOWN for _, delta in parts]},
    }
    return {"data": [bars], "layout": _layout(xaxis={"type": "category"})}


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
