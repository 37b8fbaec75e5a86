"""The report as one HTML page: its sections, and the data and scripts that fill them."""

from __future__ import annotations

import html
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from sim_core import short
from sweep.columns import PERCENT, REPORTED
from sweep.show.html import document, table
from sweep.show.tables import SHORT_COLUMN, SHORT_PART, cell

LABELS: Final = {**REPORTED, "all_gpus": "GPUs", "micro_batch": "micro-batch", "global_batch": "global batch"}


def report_page(content: Mapping[str, Any]) -> str:
    """The page of `content_of` a result."""
    names = [axis["name"] for axis in content["axes"]]
    rows = content["rows"]
    shown = [name for name in dict.fromkeys((content["by"], *REPORTED)) if any(v is not None for v in rows.get(name, ()))]
    labels = {name: [_label(name), _unit(name)] for name in (*names, *rows, *content["parts"])}
    data = {key: value for key, value in content.items() if key not in ("provenance", "validation")}
    script = (files("sweep.report") / "report.js").read_text(encoding="utf-8")
    return document(f"Sweep {content['name']}", _body(content), data | {"labels": labels, "shown": shown}, [script])


def _label(name: str) -> str:
    return LABELS.get(name) or SHORT_PART.get(name) or SHORT_COLUMN.get(name, name)


def _unit(name: str) -> str:
    if name in PERCENT:
        return "%"
    for end, unit in (
        ("per_s", ""),
        ("gpu_s_per_sample", ""),
        ("_bytes", "B"),
        ("bandwidth", "B/s"),
        ("_s", "s"),
        ("latency", "s"),
    ):
        if name.endswith(end):
            return unit
    return ""


def _body(content: Mapping[str, Any]) -> str:
    total, ran = content["rows_total"], content["ran"]
    best = "highest" if content["descending"] else "lowest"
    lead = f"Ranked by {best} {_label(content['by'])}" + (f", for each {', '.join(content['per'])}" if content["per"] else "")
    missing = f" {content['rows_missing']:,} plans are not computed yet." if content["rows_missing"] else ""
    cards = [(f"{total:,}", "plans"), (f"{ran:,}", "of them run"), (f"{total - ran:,}", "cannot run"), *_best(content)]
    boxes = "".join(
        f'<div class="card"><b>{html.escape(number)}</b><span>{html.escape(text)}</span></div>' for number, text in cards
    )
    whole = len(content["rows"]["plan"])
    part = "Every plan that runs is in this page with all its numbers."
    if ran > whole:
        part = f"The best {whole:,} plans{' of each group' if content['per'] else ''} are in this page with all their numbers; "
        part += f"the other {ran - whole:,} that run are in its counts, densities, fronts and best values."
    by = _label(content["by"])
    sections = (
        (
            "Ranking",
            _RANKING,
            "Filters choose among the plans of this page, for all charts up to the breakdown; a heading sorts.",
        ),
        (
            "Trade-offs",
            f'{_controls("trade")}<div id="trade-legend"></div>{_plot("trade-offs")}',
            "Shaded: where all plans that run lie, the feasible region. Points: plans of this page that match the filters. "
            "Red: the Pareto front of all; less of both is better.",
        ),
        ("Parallel coordinates", _plot("parallel"), "The best 300 plans that match, the best in blue."),
        ("Where the step goes", _plot("breakdown"), "Parts of the best 15 that match, means over the pipeline stages."),
        (
            "Any two axes",
            _controls("heat") + _plot("heat"),
            f"The best {by} of all plans with these two values, whatever the rest; grey: none runs.",
        ),
        (
            "Sensitivity",
            '<div class="plots" id="sensitivity"></div>',
            "The best of all plans with each value of an axis; green: the best of all.",
        ),
        ("What cannot run", _reasons(content) + _controls("reason") + _plot("reasons"), ""),
        ("Within the error", "".join(f"<p>{html.escape(line)}</p>" for line in content["error"]), ""),
        ("Validation", _validation(content["validation"]), ""),
        ("Where it comes from", _provenance(content["provenance"]), ""),
    )
    head = f"<h1>{html.escape(str(content['name']))}</h1><p>{html.escape(lead)}.{missing}</p>"
    return head + f'<div class="cards">{boxes}</div><p class="soft">{part}</p>' + "".join(_section(*each) for each in sections)


_RANKING: Final = (
    '<div class="filters" id="filters"></div><div class="controls"><button type="button" id="clear">clear filters</button>'
    '<span id="shown" role="status"></span></div><div class="scroll" id="ranking"></div>'
    '<button type="button" id="more">show more</button>'
)


def _controls(name: str) -> str:
    return f'<div class="controls" id="{name}-controls"></div>'


def _plot(name: str) -> str:
    return f'<div class="plot" id="{name}"></div>'


def _section(title: str, inside: str, told: str) -> str:
    text = f'<p class="soft">{html.escape(told)}</p>' if told else ""
    return f"<section><h2>{title}</h2>{text}{inside}</section>"


def _best(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The best plan of all as cards."""
    rows = content["rows"]
    if not rows["plan"]:
        return []
    first = {name: values[0] for name, values in rows.items()}
    values = [(cell(content["by"], first[content["by"]]), f"best {_label(content['by'])}, plan {first['plan']}")]
    if content["by"] != "step_time_s":
        values.append((short(first["step_time_s"], "s"), "its step"))
    if first.get("peak_memory_bytes") is not None:
        have = first.get("device_memory_bytes")
        values.append((short(first["peak_memory_bytes"], "B"), f"its memory, of {short(have, 'B')}" if have else "its memory"))
    return values


def _reasons(content: Mapping[str, Any]) -> str:
    rows = [(f"{one['n']:,}", one["reason"], one["why"]) for one in content["reasons"]]
    return table(("plans", "reason", "meaning"), rows, right=(0,), wrapped=(2,))


def _validation(found: Mapping[str, Any]) -> str:
    if not found["of_model"]:
        told = "The compute times of this sweep are those of its workload file; errors below are of plans of models in numbers."
    elif found["same"]:
        told = f"Training runs that others measured on {', '.join(found['devices'])}, simulated: error of the step."
    else:
        told = f"No measured runs on {', '.join(found['devices']) or 'this device'} are known; those on other devices:"

    def share(value: float | None) -> str:
        return "\u2013" if value is None else f"{value:.1f} %"

    errors = ("mape", "mape_dense", "mape_experts", "worst")
    rows = [(one["set"], one["hw"], one["simulated"], *(share(one[name]) for name in errors)) for one in found["rows"]]
    head = ("set", "device", "runs", "mean error", "dense models", "with experts", "worst")
    return f"<p>{html.escape(told)}</p>{table(head, rows, right=(2, 3, 4, 5, 6))}"


def _provenance(held: Mapping[str, Any]) -> str:
    """Hashes, files, notes and the spec itself."""
    rows = [("sweep", held["sweep"]), ("simulator", f"{held['simulator']}, version {held['version']}")]
    rows += [("hardware", ", ".join(held["hardware"]))] if held["hardware"] else []
    rows += [(f"file ({file['role']})", f"{file['path']}, sha256 {file['sha256']}") for file in held["files"]]
    rows += [("FLOPs", held["stated"])] if held["stated"] else []
    rows += [("held", "; ".join(held["held"]))] if held["held"] else []
    rows += [("note", note) for note in held["notes"]] + [("doubtful record", check) for check in held["checks"]]
    spec = f"<details><summary>the spec</summary><pre>{html.escape(held['spec'])}</pre></details>"
    return table(("", ""), rows, wrapped=(1,)) + spec
