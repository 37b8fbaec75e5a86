"""Records the figures of all measured runs: docs/data/, what docs/validation.md and docs/leaderboard.md show of it, plots.

    python -m docs.made.validation_page [--check]

The words of the pages are in them; this replaces what is between their markers. Recorded are
figures, error bars and highest MFUs, by which later ones and results are judged. `--check` writes nothing: exit code 5 where
figures or error bars are worse than recorded.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.belief import record_all
from benchmarks.error_bars import bars_table, evidence_of, out_of_bounds
from benchmarks.leaderboard import leaderboard, leaderboard_table
from docs.made import tables
from docs.made.ablations import ABLATIONS, ablation_table, errors_without
from docs.made.recorded_figures import worse
from sweep.runs.simulation import Run, run_rows
from sweep.runs.table import published_rows
from sweep.validation.figures import RECORDED, as_objects, by_quality, by_release, figures, figures_of
from sweep.validation.report import as_markdown, as_qualities, as_releases

DOCS: Final = Path(__file__).parent.parent
COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
WIDTH, HEIGHT, LEFT, TOP = 560, 380, 60, 20
EXIT_WORSE: Final = 5
NAMES: Final = {"micro_batch": "mbs", "all_gpus": "gpus"}
"""Of plots."""
BEYOND: Final = 60.0
"""Percent at which residuals are cut off."""
LEAST_RUNS: Final = 10
"""Simulated runs of a set on a device that the page shows; docs/data/validation.csv has all."""
SHOWN: Final = ("set", "hardware", "simulated", "MAPE %", "bias %", "worst %")


def plot(points: Sequence[tuple[float, float, str]], x_title: str, y_title: str, ticks: Sequence[float], *, log_y: bool) -> str:
    """A scatter plot as SVG: x on a logarithmic axis, y too, or from -BEYOND to BEYOND."""
    names = sorted({name for *_, name in points})
    low, high = math.log10(min(ticks)), math.log10(max(ticks))

    def across(value: float) -> float:
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - 10)

    def up(value: float) -> float:
        share = (math.log10(value) - low) / (high - low) if log_y else (value + BEYOND) / (2 * BEYOND)
        return TOP + (1 - share) * (HEIGHT - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 190} {HEIGHT + 45}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - 10}" height="{HEIGHT - TOP}" fill="none" stroke="#888"/>',
    ]
    parts += [f'<text x="{across(tick):.1f}" y="{HEIGHT + 15}" text-anchor="middle">{tick:g}</text>' for tick in ticks]
    beside = ticks if log_y else (-50.0, -25.0, 0.0, 25.0, 50.0)
    parts += [f'<text x="{LEFT - 5}" y="{up(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>' for tick in beside]
    ends = (ticks[0], ticks[-1]) if log_y else (0.0, 0.0)
    line = f'x1="{across(ticks[0]):.1f}" y1="{up(ends[0]):.1f}" x2="{across(ticks[-1]):.1f}" y2="{up(ends[1]):.1f}"'
    parts.append(f'<line {line} stroke="#888"/>')
    for x, y, name in points:
        colour = COLOURS[names.index(name) % len(COLOURS)]
        shown = y if log_y else max(-BEYOND, min(BEYOND, y))
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(shown):.1f}" r="2.5" fill="{colour}" fill-opacity="0.6"/>')
    for k, name in enumerate(names):
        parts.append(f'<circle cx="{WIDTH + 8}" cy="{TOP + 8 + 16 * k}" r="4" fill="{COLOURS[k % len(COLOURS)]}"/>')
        parts.append(f'<text x="{WIDTH + 18}" y="{TOP + 12 + 16 * k}">{name}</text>')
    parts.append(f'<text x="{(WIDTH + LEFT) / 2}" y="{HEIGHT + 35}" text-anchor="middle">{x_title}</text>')
    parts.append(f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{y_title}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def residuals(runs: Sequence[Run], key: str) -> str:
    """Errors over a column of the plan; runs with the same value lie side by side."""
    seen: Counter[int] = Counter()
    points = []
    for run in runs:
        value = run.row.size(key)
        seen[value] += 1
        points.append((value * (1 + 0.03 * (seen[value] % 9 - 4)), run.error, run.row.text("set")))
    ticks = [2.0**k for k in range(math.floor(math.log2(min(seen))) - 1, math.ceil(math.log2(max(seen))) + 2)]
    return plot(points, NAMES.get(key, key), "error %", ticks, log_y=False)


def between(text: str, name: str, made: str) -> str:
    """The page with `made` between the marker `name` and the end that follows it."""
    before, found, rest = text.partition(f"<!-- {name} -->\n")
    if not found:
        raise ValueError(f"no marker {name} in the page")
    return before + found + made + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def shown() -> list[tuple[str, str, list[list[str]]]]:
    """What pages show of docs/data/: the page, its marker, the rows; figures of the sets with many runs, and of all."""
    heading, *rows = tables.read("validation")
    at = [heading.index(name) for name in SHOWN]
    many = [row for row in rows if int(row[heading.index("simulated")]) >= LEAST_RUNS]
    return [
        ("validation.md", "figures", [[row[k] for k in at] for row in [heading, *many]]),
        ("validation.md", "error bars", tables.read("error_bars")),
        ("leaderboard.md", "leaderboard", [row[1:] for row in tables.read("leaderboard") if row[0] in ("runs of", "all")]),
    ]


def main() -> int:
    """Record the figures, or compare them with those that are recorded."""
    rows = published_rows()
    runs = run_rows(rows)
    by_set, bars = figures(runs), evidence_of(runs)
    if sys.argv[1:] == ["--check"]:
        lines = worse(by_set) + out_of_bounds(bars)
        print("\n".join(f"worse than recorded: {line}" for line in lines) or "no worse than recorded")
        return EXIT_WORSE if lines else 0
    RECORDED.write_text(json.dumps(as_objects(by_set), indent=1) + "\n", encoding="utf-8")
    record_all(rows, runs)
    timed = [run for run in runs if run.scored]
    folder = DOCS / "validation"
    folder.mkdir(exist_ok=True)
    pairs = [(run.measured_s, run.step_s, run.row.text("set")) for run in timed]
    low = math.floor(math.log10(min(min(x, y) for x, y, _ in pairs)))
    high = math.ceil(math.log10(max(x for x, *_ in pairs)))
    times = plot(pairs, "measured s", "predicted s", [10.0**k for k in range(low, high + 1)], log_y=True)
    (folder / "times.svg").write_text(times, encoding="utf-8")
    for key in ("tp", "pp", "micro_batch", "all_gpus"):
        (folder / f"{NAMES.get(key, key)}.svg").write_text(residuals(timed, key), encoding="utf-8")
    base, without = errors_without([run.row for run in timed])
    made = {
        ("validation", "not_simulated"): as_markdown(by_set, figures_of("all", "", runs)),
        ("qualities",): as_qualities(by_quality(runs)),
        ("releases",): as_releases(by_release(runs)),
        ("error_bars", "widening", "left_out"): bars_table(bars),
        ("ablations",): ablation_table(base, without),
        ("leaderboard",): leaderboard_table(leaderboard(runs)),
    }
    for names, text in made.items():
        for name, table in zip(names, tables.tables_of(text), strict=False):
            tables.write(name, table)
    for page, marker, table in shown():
        text = (DOCS / page).read_text(encoding="utf-8")
        (DOCS / page).write_text(between(text, marker, tables.as_markdown(table)), encoding="utf-8")
    print(f"docs/data: {len(timed)} runs, {len(ABLATIONS)} ablations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
