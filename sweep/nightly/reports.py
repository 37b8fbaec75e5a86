"""The reports of a night, beside its record: Markdown, JSON, and a page with the last nights of each sweep."""

import json
from collections.abc import Sequence
from datetime import UTC

from sweep.answers.section import Section
from sweep.compare.report import BEST_PLAN, paged, sections
from sweep.compare.result import Comparison
from sweep.nightly.nights import Night, Nights, SweepRecord, history_of
from sweep.show.sections import markdown, page


def write_reports(
    nights: Nights, night: Night, known: Sequence[Night], comparisons: Sequence[Comparison | None], history: int
) -> None:
    """Write the reports of `night`; `history`: how many nights the page shows, of those `known`."""
    folder = nights.folder(night.night)
    parts = [_sections(sweep, both) for sweep, both in zip(night.sweeps, comparisons, strict=True)]
    lead = [night.summary, f"Night {night.night}, started {night.started.astimezone(UTC):%Y-%m-%d %H:%M} UTC"]
    title = f"Nightly sweeps: {night.nightly}"
    text = "\n".join([f"# {title}", "", *(f"{line}\n" for line in lead), *map(markdown, parts)])
    folder.write_bytes("report.md", text.encode())
    data = night.model_dump(mode="json") | {"comparisons": [both and both.as_data() for both in comparisons]}
    folder.write_bytes("report.json", json.dumps(data, indent=1).encode())
    on_page = [paged(part, history_of(known, sweep.name)[-history:]) for sweep, part in zip(night.sweeps, parts, strict=True)]
    text = page(f"{title}, {night.started.astimezone(UTC):%Y-%m-%d}", on_page, lead=lead)
    folder.write_bytes("report.html", text.encode())


def _sections(sweep: SweepRecord, both: Comparison | None) -> list[Section]:
    compared = [] if both is None else sections(both)
    if sweep.status == "failed":
        return [Section(f"{sweep.name}: failed", (sweep.error,)), *compared]
    if not sweep.baseline:  # compared with itself: only the best plans are of interest
        first = sweep.error or "the first night: nothing to compare with"
        return [Section(sweep.name, (first,)), *(part for part in compared[1:] if part.heading == BEST_PLAN)]
    verdict = [f"regression: {text}" for text in sweep.regressions] or ["nothing beyond the thresholds"]
    lines = (*verdict, f"compared with night {sweep.baseline}", *(line for part in compared[:1] for line in part.lines))
    return [Section(sweep.name, lines), *compared[1:]]
