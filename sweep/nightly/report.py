"""The reports of a night, stored beside its record: Markdown, JSON, and an HTML page with the history of nights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC

from sweep.compare.page import Entry, html_page
from sweep.compare.report import BEST_PLAN, Section, markdown, sections
from sweep.compare.result import Comparison
from sweep.nightly.nights import Night, Nights, SweepRecord, history_of


def write_reports(
    nights: Nights, night: Night, known: Sequence[Night], found: Sequence[Comparison | None], history: int
) -> None:
    """Write the reports of `night`, whose sweeps have the comparisons `found`."""
    folder = nights.folder(night.night)
    parts = [_sections(sweep, comparison) for sweep, comparison in zip(night.sweeps, found, strict=True)]
    lead = [night.summary, f"Night {night.night}, started {night.started.astimezone(UTC):%Y-%m-%d %H:%M} UTC"]
    title = f"Nightly sweeps: {night.nightly}"
    text = "\n".join([f"# {title}", "", *(f"{line}\n" for line in lead), *(markdown(part) for part in parts)])
    folder.write_bytes("report.md", text.encode())
    data = night.model_dump(mode="json") | {"comparisons": [comparison and comparison.as_data() for comparison in found]}
    folder.write_bytes("report.json", json.dumps(data, indent=1).encode())
    entries = [
        Entry(
            name=sweep.name,
            sections=tuple(part),
            comparison=comparison,
            history=tuple(history_of(known, sweep.name)[-history:]),
        )
        for sweep, part, comparison in zip(night.sweeps, parts, found, strict=True)
    ]
    page = html_page(f"{title}, {night.started.astimezone(UTC):%Y-%m-%d}", lead, entries)
    folder.write_bytes("report.html", page.encode())


def _sections(sweep: SweepRecord, found: Comparison | None) -> list[Section]:
    if sweep.status == "failed":
        failure = [Section(heading=f"{sweep.name}: failed", lines=(sweep.error,))]
        return failure + (sections(found) if found is not None else [])
    verdict = tuple(f"regression: {text}" for text in sweep.regressions) or ("nothing beyond the thresholds",)
    first = sweep.error or "the first night: nothing to compare with"
    against = (f"compared with night {sweep.baseline}" if sweep.baseline else first,)
    head, *rest = sections(found) if found is not None else [Section(heading=sweep.name)]
    if not sweep.baseline:  # compared with itself: only the best plans are of interest
        return [Section(heading=sweep.name, lines=against), *(part for part in rest if part.heading == BEST_PLAN)]
    return [Section(heading=sweep.name, lines=(*verdict, *against, *head.lines)), *rest]
