"""The report as sections of one HTML page, and the data and scripts that fill them."""

import html
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from sim_core import short
from sweep.columns import PERCENT, REPORTED
from sweep.show.sections import Section, html_table, page, paragraphs
from sweep.show.tables import SHORT_PART, cell
from sweep.show.tables import heading as short_name

LABELS: Final = {**REPORTED, "all_gpus": "GPUs", "micro_batch": "micro-batch", "global_batch": "global batch"}


def report_page(content: Mapping[str, Any]) -> str:
    """The page of `content_of` a result."""
    names = [axis["name"] for axis in content["axes"]]
    rows = content["rows"]
    shown = [name for name in dict.fromkeys((content["by"], *REPORTED)) if any(v is not None for v in rows.get(name, ()))]
    labels = {name: [_label(name), _unit(name)] for name in (*names, *rows, *content["parts"])}
    data = {key: value for key, value in content.items() if key not in ("provenance", "validation")}
    script = (files("sweep.report") / "report.js").read_text(encoding="utf-8")
    total, ran, whole = content["rows_total"], content["ran"], len(rows["plan"])
    by = f"{'highest' if content['descending'] else 'lowest'} {_label(content['by'])}"
    lead = f"Ranked by {by}" + (f", for each {', '.join(content['per'])}." if content["per"] else ".")
    lead += f" {content['rows_missing']:,} plans are not computed yet." if content["rows_missing"] else ""
    cards = [(f"{total:,}", "plans"), (f"{ran:,}", "of them run"), (f"{total - ran:,}", "cannot run"), *_best(content)]
    boxes = "".join(
        f'<div class="card"><b>{html.escape(number)}</b><span>{html.escape(text)}</span></div>' for number, text in cards
    )
    part = "Every plan that runs is in this page with all its numbers."
    if ran > whole:
        part = f"The best {whole:,} plans{' of each group' if content['per'] else ''} are in this page with all their numbers; "
        part += f"the other {ran - whole:,} that run are in its counts, densities, fronts and best values."
    return page(
        f"Sweep {content['name']}",
        _sections(content),
        heading=str(content["name"]),
        lead=[lead],
        top=f'<div class="cards">{boxes}</div><p class="soft">{part}</p>',
        data=data | {"labels": labels, "shown": shown},
        scripts=[script],
    )


def _label(name: str) -> str:
    return LABELS.get(name) or SHORT_PART.get(name) or short_name(name)


def _unit(name: str) -> str:
    if name in PERCENT:
        return "%"
    ends = {"per_s": "", "gpu_s_per_sample": "", "_bytes": "B", "bandwidth": "B/s", "_s": "s", "latency": "s"}
    return next((unit for end, unit in ends.items() if name.endswith(end)), "")


def _sections(content: Mapping[str, Any]) -> list[Section]:
    reasons = [(f"{each['n']:,}", each["reason"], each["why"]) for each in content["reasons"]]
    counts = html_table(("plans", "reason", "meaning"), reasons, right=(0,), wrapped=(2,))
    return [
        Section(
            heading="Ranking",
            note="Filters choose among the plans of this page, for all charts up to the breakdown; a heading sorts.",
            html=_RANKING,
        ),
        Section(
            heading="Trade-offs",
            note="Shaded: where all plans that run lie, the feasible region. Points: plans of this page that match the "
            "filters. Red: the Pareto front of all; less of both is better.",
            html=f'{_controls("trade")}<div id="trade-legend"></div>{_plot("trade-offs")}',
        ),
        Section(
            heading="Parallel coordinates", note="The best 300 plans that match, the best in blue.", html=_plot("parallel")
        ),
        Section(
            heading="Where the step goes",
            note="Parts of the best 15 that match, means over the pipeline stages.",
            html=_plot("breakdown"),
        ),
        Section(
            heading="Any two axes",
            note=f"The best {_label(content['by'])} of all plans with these two values, whatever the rest; grey: none runs.",
            html=_controls("heat") + _plot("heat"),
        ),
        Section(
            heading="Sensitivity",
            note="The best of all plans with each value of an axis; green: the best of all.",
            html='<div class="plots" id="sensitivity"></div>',
        ),
        Section(heading="What cannot run", html=counts + _controls("reason") + _plot("reasons")),
        Section(heading="Within the error", html=paragraphs(content["error"])),
        Section(heading="Validation", html=_validation(content["validation"])),
        Section(heading="Where it comes from", html=_provenance(content["provenance"])),
    ]


_RANKING: Final = (
    '<div class="filters" id="filters"></div><div class="controls"><button type="button" id="clear">clear filters</button>'
    '<span id="shown" role="status"></span></div><div class="scroll" id="ranking"></div>'
    '<button type="button" id="more">show more</button>'
)


def _controls(name: str) -> str:
    return f'<div class="controls" id="{name}-controls"></div>'


def _plot(name: str) -> str:
    return f'<div class="plot" id="{name}"></div>'


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


def _validation(known: Mapping[str, Any]) -> str:
    if not known["of_model"]:
        told = "The compute times of this sweep are those of its workload file; errors below are of plans of models in numbers."
    elif known["same"]:
        told = f"Training runs that others measured on {', '.join(known['devices'])}, simulated: error of the step."
    else:
        told = f"No measured runs on {', '.join(known['devices']) or 'this device'} are known; those on other devices:"

    def share(value: float | None) -> str:
        return "\u2013" if value is None else f"{value:.1f} %"

    errors = ("mape", "mape_dense", "mape_experts", "worst")
    rows = [(each["set"], each["hw"], each["simulated"], *(share(each[name]) for name in errors)) for each in known["rows"]]
    head = ("set", "device", "runs", "mean error", "dense models", "with experts", "worst")
    return paragraphs([told]) + html_table(head, rows, right=range(2, 7))


def _provenance(origin: Mapping[str, Any]) -> str:
    """Hashes, files, notes and the spec itself."""
    rows = [("sweep", origin["sweep"]), ("simulator", f"{origin['simulator']}, version {origin['version']}")]
    rows += [("hardware", ", ".join(origin["hardware"]))] if origin["hardware"] else []
    rows += [(f"file ({file['role']})", f"{file['path']}, sha256 {file['sha256']}") for file in origin["files"]]
    rows += [("FLOPs", origin["stated"])] if origin["stated"] else []
    rows += [("held", "; ".join(origin["held"]))] if origin["held"] else []
    rows += [("note", note) for note in origin["notes"]] + [("doubtful record", check) for check in origin["checks"]]
    spec = f"<details><summary>the spec</summary><pre>{html.escape(origin['spec'])}</pre></details>"
    return html_table(("", ""), rows, wrapped=(1,)) + spec
