"""Sections of sentences, tables and figures: on a terminal, as Markdown, and as one HTML page; rows as CSV and JSON."""

import csv
import html
import io
import json
import textwrap
from collections.abc import Collection, Iterable, Sequence
from importlib.resources import files
from typing import Any

import pyarrow as pa
from rich.console import Console

from sim_core import Fields, one_line
from sweep.answers.section import Section

_DRAW = """
const figures = JSON.parse(document.getElementById("data").textContent);
figures.forEach((figure, k) => Charts.draw(document.getElementById("plot" + k), figure));
"""
LEAST = 16
"""Characters of a cell that are shown, however narrow the terminal."""


def print_sections(sections: Iterable[Section | str], console: Console) -> None:
    """Print sections, and lines by themselves; tables are not truncated, however narrow the terminal, but for a column that
    says it may be cut."""
    for section in sections:
        if isinstance(section, str):
            console.print(section)
            continue
        if section.heading:
            console.file.write("\n" * section.apart)
            console.print(section.heading)
        for line in (*section.sentences, *(f"  {line}" for line in section.lines)):
            console.print(line)
        if section.table:
            head, *rows = section.table if section.cut is None else _cut(section, section.cut, console)
            print_table(head, rows, console, left=range(len(head)) if section.left is None else section.left, gap=section.gap)
        for line in (*section.below_table, *(f"note: {note}" for note in section.notes)):
            console.print(line)


def _cut(section: Section, column: int, console: Console) -> list[list[str]]:
    """The table with the cells of one column cut to what the terminal has room for."""
    rows = [list(row) for row in section.table]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    most = max(console.width - sum(width + section.gap for k, width in enumerate(widths) if k != column) - 2, LEAST)
    for row in rows[1:] if console.is_terminal else ():
        row[column] = row[column] if len(row[column]) <= most else f"{row[column][: most - 1]}\u2026"
    return rows


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, *, left: Collection[int] = (), gap: int
) -> None:
    """Print rows of text, right-aligned but for the columns `left`, `gap` spaces apart; rows may be wider than the terminal.

    Much faster than rich's tables, which take a millisecond a row and cut off what does not fit.
    """
    headings, *rows = ([*map(one_line, cells)] for cells in (headings, *rows))
    widths = [max(map(len, cells)) for cells in zip(headings, *rows, strict=True)]
    line = " " + (gap * " ").join(f"{{:{'<' if at in left else '>'}{width}}}" for at, width in enumerate(widths))
    rule = " " + "─" * (sum(widths) + gap * (len(widths) - 1))
    lines = [line.format(*headings), rule, *(line.format(*cells) for cells in rows)]
    console.file.write("\n" + "\n".join(text.rstrip() for text in lines) + "\n\n")


def say(text: str, console: Console) -> None:
    """Print a sentence; a terminal breaks it between words, so that none is cut."""
    if console.is_terminal:
        lines = textwrap.wrap(text, max(console.width - 1, 20), break_long_words=False, break_on_hyphens=False)
    for line in lines if console.is_terminal else [text]:
        console.print(line)


def rows_text(table: pa.Table, form: str) -> str:
    """Rows as CSV or JSON (a list of objects), at full precision."""
    rows = table.to_pylist()
    if form == "json":
        return json.dumps(rows, indent=1)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(row.values() for row in rows)
    return out.getvalue().rstrip("\n")


def markdown(sections: Sequence[Section]) -> str:
    """Sections as Markdown."""
    text = []
    for section in sections:
        text += [f"## {_escaped(section.heading)}", ""]
        text += [f"- {_escaped(line)}" for line in section.lines] + [""] * bool(section.lines)
        if section.table:
            head, *rows = (f"| {' | '.join(map(_escaped, cells))} |" for cells in section.table)
            text += [head, f"| {' | '.join(['---'] * len(section.table[0]))} |", *rows, ""]
    return "\n".join(text)


def _escaped(text: str) -> str:
    """`text` with the special characters of Markdown and HTML escaped."""
    return one_line(text).translate({ord(mark): f"\\{mark}" for mark in "\\`*_|<>[]"})


def page(
    title: str,
    sections: Sequence[Section],
    *,
    heading: str = "",
    lead: Sequence[str] = (),
    top: str = "",
    data: Any = None,
    script: str = _DRAW,
) -> str:
    """The page: its heading (default: the title), paragraphs, HTML `top`, then the sections.

    The script runs after charts.js, and finds `data` as JSON in the element `data`; by default it draws the figures.
    """
    figures: list[Fields] = []
    body = f"<h1>{html.escape(heading or title)}</h1>{paragraphs(lead)}{top}"
    body += "".join(f"<section>{html_section(section, 2, figures)}</section>" for section in sections)
    assets = files("sweep.show") / "assets"
    style, charts = ((assets / name).read_text(encoding="utf-8") for name in ("page.css", "charts.js"))
    text = json.dumps(figures if data is None else data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f"<style>{style}</style></head>\n<body>{body}\n"
        f'<script type="application/json" id="data">{text}</script>\n<script>{charts}</script>\n<script>{script}</script>\n'
        "</body></html>\n"
    )


def html_section(section: Section, level: int, figures: list[Fields]) -> str:
    """A section under a heading of some level; its figures are added to `figures`, whose places number them."""
    text = f"<h{level}>{html.escape(section.heading)}</h{level}>{soft(*[section.note] * bool(section.note))}"
    text += html_of(section)
    plots = ""
    for title, figure in section.figures:
        caption = f"<figcaption>{html.escape(title)}</figcaption>"
        plots += f'<figure>{caption}<div class="plot" id="plot{len(figures)}"></div></figure>'
        figures.append(figure)
    text += f'<div class="plots">{plots}</div>' if plots else ""
    return text + section.html + "".join(html_section(inner, level + 1, figures) for inner in section.below)


def html_of(section: Section) -> str:
    """What is below the heading of a section: sentences, lines, table, notes."""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in section.lines)
    text = paragraphs(section.sentences) + (f"<ul>{lines}</ul>" if lines else "")
    if section.table:
        head, *rows = section.table
        words = range(len(head)) if section.left is None else section.left
        text += html_table(head, rows, right={*range(len(head))} - {*words})
    return text + paragraphs(section.below_table) + soft(*section.notes)


def paragraphs(lines: Iterable[str], kind: str = "") -> str:
    """Each line as a paragraph of HTML."""
    return "".join(f"<p{kind}>{html.escape(line)}</p>" for line in lines)


def soft(*lines: str) -> str:
    """Each line as a paragraph in grey."""
    return paragraphs(lines, ' class="soft"')


def html_table(
    head: Sequence[str], rows: Iterable[Sequence[object]], right: Collection[int] = (), wrapped: Collection[int] = ()
) -> str:
    """A table that scrolls by itself; columns `right` hold numbers, those `wrapped` long text."""
    kinds = [' class="n"' if k in right else ' class="wrap"' if k in wrapped else "" for k in range(len(head))]
    body = ""
    for tag, cells in (("th", head), *(("td", row) for row in rows)):
        inside = (f"<{tag}{kind}>{html.escape(str(cell))}</{tag}>" for kind, cell in zip(kinds, cells, strict=True))
        body += f"<tr>{''.join(inside)}</tr>"
    return f'<div class="scroll"><table>{body}</table></div>'
