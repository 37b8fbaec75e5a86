"""Sections of sentences, tables and figures: on a terminal, as Markdown, and as one HTML page that needs no network."""

import html
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from rich.console import Console

from sweep.show.tables import print_table

_DRAW: Final = """
const figures = JSON.parse(document.getElementById("data").textContent);
figures.forEach((figure, k) => Charts.draw(document.getElementById("plot" + k), figure));
"""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading, sentences, and a table of text, its headings in the first row (empty for no table).

    On a page alone: a note below the heading, figures (title, and data for charts.js), more HTML, and sections below it.
    """

    heading: str
    lines: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    note: str = ""
    figures: tuple[tuple[str, dict[str, Any]], ...] = ()
    html: str = ""
    below: tuple["Section", ...] = ()


def print_sections(sections: Sequence[Section], console: Console) -> None:
    """Print sections; tables are not truncated, however narrow the terminal."""
    for section in sections:
        console.print(section.heading)
        for line in section.lines:
            console.print(f"  {line}")
        if section.table:
            print_table(section.table[0], section.table[1:], console, left=range(len(section.table[0])), gap=2)


def markdown(sections: Sequence[Section], level: int = 2) -> str:
    """Sections as Markdown."""
    text: list[str] = []
    for section in sections:
        text += [f"{'#' * level} {_escaped(section.heading)}", ""]
        text += [f"- {_escaped(line)}" for line in section.lines] + [""] * bool(section.lines)
        if section.table:
            head, *rows = section.table
            text += [_row(head), _row(["---"] * len(head)), *map(_row, rows), ""]
    return "\n".join(text)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(text) for text in cells) + " |"


def _escaped(text: str) -> str:
    """`text` with the special characters of Markdown and HTML escaped."""
    for mark in "\\`*_|<>[]":
        text = text.replace(mark, f"\\{mark}")
    return text


def page(
    title: str,
    sections: Sequence[Section],
    *,
    heading: str = "",
    lead: Sequence[str] = (),
    top: str = "",
    data: Any = None,
    scripts: Sequence[str] = (_DRAW,),
) -> str:
    """The page: its heading (default: the title), paragraphs, HTML `top`, then the sections.

    Scripts run in turn after charts.js, and find `data` as JSON in the element `data`; by default they draw the figures.
    """
    figures: list[dict[str, Any]] = []
    body = f"<h1>{html.escape(heading or title)}</h1>{paragraphs(lead)}{top}"
    body += "".join(f"<section>{_section(section, 2, figures)}</section>" for section in sections)
    assets = files("sweep.show") / "assets"
    style, charts = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "charts.js"))
    text = json.dumps(figures if data is None else data, separators=(",", ":")).replace("<", "\\u003c")
    run = "".join(f"<script>{script}</script>\n" for script in (charts, *scripts))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{style}</style></head>\n<body>{body}\n"
        f'<script type="application/json" id="data">{text}</script>\n{run}</body></html>\n'
    )


def _section(section: Section, level: int, figures: list[dict[str, Any]]) -> str:
    """A section; its figures are added to `figures`, whose places number them."""
    text = f"<h{level}>{html.escape(section.heading)}</h{level}>"
    text += f'<p class="soft">{html.escape(section.note)}</p>' if section.note else ""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in section.lines)
    text += f"<ul>{lines}</ul>" if lines else ""
    text += html_table(section.table[0], section.table[1:]) if section.table else ""
    plots = ""
    for title, figure in section.figures:
        caption = f"<figcaption>{html.escape(title)}</figcaption>"
        plots += f'<figure>{caption}<div class="plot" id="plot{len(figures)}"></div></figure>'
        figures.append(figure)
    text += f'<div class="plots">{plots}</div>' if plots else ""
    return text + section.html + "".join(_section(inner, level + 1, figures) for inner in section.below)


def paragraphs(lines: Sequence[str]) -> str:
    """Each line as a paragraph of HTML."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[object]], right: Collection[int] = (), wrapped: Collection[int] = ()
) -> str:
    """A table that scrolls by itself; columns `right` hold numbers, those `wrapped` long text."""
    kinds = [' class="n"' if k in right else ' class="wrap"' if k in wrapped else "" for k in range(len(head))]

    def line(tag: str, cells: Sequence[object]) -> str:
        inside = (f"<{tag}{kind}>{html.escape(str(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        return f"<tr>{''.join(inside)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table>{line("th", head)}{body}</table></div>'
