"""Pages of ours: one HTML file that needs no network, with its style, data and scripts inside."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any


def document(title: str, body: str, data: Any, scripts: Sequence[str]) -> str:
    """The page. `data` is what scripts find as JSON in the element `data`; `scripts` are run in turn, after the charts."""
    assets = files("sweep.show") / "assets"
    style, charts = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "charts.js"))
    held = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    run = "".join(f"<script>{text}</script>\n" for text in (charts, *scripts))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{style}</style></head>\n<body>{body}\n"
        f'<script type="application/json" id="data">{held}</script>\n{run}</body></html>\n'
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[int] = (), wrapped: Sequence[int] = ()) -> str:
    """A table that scrolls by itself; columns `right` hold numbers, those `wrapped` long text."""

    def kind(column: int) -> str:
        return ' class="n"' if column in right else ' class="wrap"' if column in wrapped else ""

    top = "".join(f"<th{kind(k)}>{html.escape(name)}</th>" for k, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{kind(k)}>{html.escape(str(cell))}</td>" for k, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{top}</tr>{body}</table></div>'
