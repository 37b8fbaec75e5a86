"""The report as sections of one HTML page, and the data and scripts that fill them."""

import html
import json
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files

from sweep.answers.section import Section
from sweep.columns import PERCENT, REPORTED, higher_is_better
from sweep.show.sections import html_of, html_section, html_table, page, paragraphs, soft
from sweep.tuning.record import SLOW
from sweep.validation.figures import RECORDED
from sweep.wording import SHORT_PART, Values, cell, heading as short_name

LABELS = {
    **REPORTED, "all_gpus": "GPUs", "micro_batch": "micro-batch", "global_batch": "global batch", "measured_s": "measured",
}  # fmt: skip
PEAK = "peak_memory_bytes"


def report_page(content: Values) -> str:
    """The page of `content_of` a result."""
    names = [axis["name"] for axis in content["axes"]]
    rows, head = content["rows"], content["head"]
    order = dict.fromkeys((content["by"], "step_time_s", "measured_s", *REPORTED))
    shown = [name for name in order if any(value is not None for value in rows.get(name, ()))]
    labels = {name: [_label(name), _unit(name)] for name in (*names, *rows, *content["parts"])}
    labels |= {name: [name.removesuffix("_bytes"), "B"] for name in content["memory"]}
    data = {key: value for key, value in content.items() if key not in ("provenance", "head", "measured")}
    ran, whole = content["ran"], len(rows["plan"])
    by = f"{'highest' if content['descending'] else 'lowest'} {_label(content['by'])}"
    groups = f", for each {', '.join(map(_label, content['per']))}" if content["per"] else ""
    lead = f"{content['rows_total']:,} plans, {ran:,} of which run. Ranked by {by}{groups}."
    lead += f" {content['rows_missing']:,} plans are not computed yet." if content["rows_missing"] else ""
    part = "Every plan that runs is in this page with all its numbers."
    if ran > whole:
        part = f"The best {whole:,} plans{' of each group' if groups else ''} are in this page with all their numbers; "
        part += f"the other {ran - whole:,} that run are in its counts, densities, fronts and best values."
    alone = " open" * (len(head["winners"]) == 1)
    winners = "".join(_winner(each, alone) for each in head["winners"]) or paragraphs(["No plan of this sweep can run."])
    more = soft(*[f"{head['more']:,} more groups are in the ranking."] * bool(head["more"]))
    return page(
        str(head["title"]),
        _sections(content),
        heading=str(head["heading"]),
        lead=head["job"],
        top=f'<div class="winners">{winners}</div>{more}{paragraphs([lead])}{soft(part)}',
        data=data | {"labels": labels, "shown": shown, "high": [n for n in shown if higher_is_better(n)]},
        script=(files("sweep.report") / "report.js").read_text(encoding="utf-8"),
    )


def _winner(of: Values, opened: str) -> str:
    """The best plan of a group: what it is, what is expected of it, what launches it."""
    name = f"{of['name']} {of['plan']}"
    words = html_of(Section(lines=of["words"])) + "".join(html_section(each, 4, []) for each in of["answers"])
    launch = _command(of["launch"], "launch") if of["launch"] else _command(of["commands"][-1])
    return (
        f'<article class="winner"><h3>{html.escape(name)}</h3><p><b>{html.escape(of["told"])}</b></p>'
        f"{soft(*[of['ties']] * bool(of['ties']))}{words}<details{opened}><summary>launch it</summary>{launch}</details>"
        f"<details><summary>look closer</summary>{''.join(map(_command, of['commands']))}</details></article>"
    )


def _command(text: str, kind: str = "") -> str:
    """Text to be copied."""
    return f'<pre class="command {kind}">{html.escape(text)}</pre>'


def _label(name: str) -> str:
    return LABELS.get(name) or SHORT_PART.get(name) or short_name(name)


def _unit(name: str) -> str:
    if name in PERCENT:
        return "%"
    ends = {"per_s": "", "gpu_s_per_sample": "", "_bytes": "B", "bandwidth": "B/s", "_s": "s", "latency": "s"}
    return next((unit for end, unit in ends.items() if name.endswith(end)), "")


def _sections(content: Values) -> list[Section]:
    reasons = [(f"{each['n']:,}", each["reason"], each["why"]) for each in content["reasons"]]
    counts = html_table(("plans", "reason", "meaning"), reasons, right=(0,), wrapped=(2,))
    trade = f'{_box("controls", "trade-controls")}<div id="trade-legend"></div>{_box("plot", "trade-offs")}'
    parts = [
        (
            "Ranking",
            "Filters choose among the plans of this page, for all charts up to the breakdown. A heading sorts the plans "
            "that are shown, # is their rank; a click on a plan opens its step, its memory and the command that explains it.",
            _RANKING,
        ),
        *_measured(content["measured"]),
        (
            "Trade-offs",
            "Shaded: where all plans that run lie, the feasible region. Points: plans of this page that match the "
            "filters. Red: the Pareto front of all; less of both is better.",
            trade,
        ),
        ("Parallel coordinates", "The best 300 plans that match, the best in blue.", _box("plot", "parallel")),
        (
            "Where the step goes",
            "Parts of the best 15 that match, means over the pipeline stages.",
            _box("plot", "breakdown"),
        ),
        (
            "Any two axes",
            f"The best {_label(content['by'])} of all plans with these two values, whatever the rest; grey: none runs.",
            _box("controls", "heat-controls") + _box("plot", "heat"),
        ),
        (
            "Sensitivity",
            "The best of all plans with each value of an axis; green: the best of all.",
            _box("plots", "sensitivity"),
        ),
        ("What cannot run", "", counts + _box("controls", "reason-controls") + _box("plot", "reasons")),
        ("Within the error", "", paragraphs(content["error"])),
        ("Validation", "", _validation(content["provenance"])),
        ("Where it comes from", "", _provenance(content["provenance"])),
    ]
    return [Section(heading, note=note, html=text) for heading, note, text in parts]


_RANKING = (
    '<div class="filters" id="filters"></div><div class="controls"><button type="button" id="clear">clear filters</button>'
    '<button type="button" id="unsort" hidden>in order of rank</button>'
    '<span id="shown" role="status"></span></div><div class="scroll" id="ranking"></div>'
    '<button type="button" id="more">show more</button>'
)


def _box(kind: str, name: str) -> str:
    """What the script fills."""
    return f'<div class="{kind}" id="{name}"></div>'


def _measured(runs: Sequence[Values]) -> list[tuple[str, str, str]]:
    """Plans that were run, both numbers side by side; none if none was."""
    simulated = ("simulated", "measured / simulated", "measured memory", "simulated", "as simulated")
    rows = []
    for run in runs:
        step, simulated_s = run["measured_s"], run["step_time_s"]
        ratio = f"{step / simulated_s:.3f}" if step and simulated_s else "\u2013"
        least = "at least " if run["state"] == SLOW and step else ""
        memory = (cell(PEAK, run[name]) for name in ("measured_bytes", PEAK))
        told = run["reason"] or ("runs" if simulated_s else "not among the rows")
        times = (f"{least}{cell('step_time_s', step)}", cell("step_time_s", simulated_s))
        rows.append((run["plan"], run["state"], *times, ratio, *memory, told))
    note = "Plans that were run, with what the simulation says of them; the ranking stays that of the simulation."
    table = html_table(("plan", "state", "measured step", *simulated), rows, right=(0, *range(2, 7)))
    return [("Measured", note, table)] * bool(rows)


def _validation(provenance: Values) -> str:
    """Recorded errors of measured runs on a device of this kind, else of all; of files nothing is recorded."""
    devices = sorted({str(device.get("name", "")).split("-")[0] for device in provenance.get("hardware", ())})
    known = [figures for figures in json.loads(RECORDED.read_text(encoding="utf-8")) if figures["simulated"]]
    same = [figures for figures in known if str(figures["hw"]).split("-")[0].split(" ")[0] in devices]
    if (provenance.get("spec", {}).get("workload") or {}).get("model") is None:
        told = "The compute times of this sweep are those of its workload file; errors below are of plans of models in numbers."
    elif same:
        told = f"Training runs that others measured on {', '.join(devices)}, simulated: error of the step."
    else:
        told = f"No measured runs on {', '.join(devices) or 'this device'} are known; those on other devices:"
    rows = []
    for each in same or known:
        errors = (each[name] for name in ("mape", "mape_dense", "mape_experts", "worst"))
        shares = ("\u2013" if error is None else f"{error:.1f} %" for error in errors)
        rows.append((each["set"], each["hw"], each["simulated"], *shares))
    head = ("set", "device", "runs", "mean error", "dense models", "with experts", "worst")
    return paragraphs([told]) + html_table(head, rows, right=range(2, 7))


def _provenance(origin: Values) -> str:
    """Where the numbers come from: hashes, hardware, files, notes and the spec itself."""
    devices = dict.fromkeys(device.get("name", "") for device in origin.get("hardware", ()))
    held, stated = origin.get("held", ()), origin.get("plausibility", {}).get("stated", "")
    simulator = f"{origin.get('model', '')}, version {version('training-plan-sweep')}"
    rows = [("sweep", origin.get("sweep", "")), ("simulator", simulator)]
    rows += [("hardware", ", ".join(devices))] if devices else []
    for role, file in origin.get("inputs", {}).get("files", {}).items():
        rows.append((f"file ({role})", f"{file['path']}, sha256 {file['sha256']}"))
    rows += [("FLOPs", stated)] if stated else []
    rows += [("held", "; ".join(held))] if held else []
    rows += [("note", note) for note in origin.get("notes", ())]
    rows += [("doubtful record", check) for check in origin.get("checks", ())]
    spec = html.escape(json.dumps(origin.get("spec", {}), indent=1))
    return html_table(("", ""), rows, wrapped=(1,)) + f"<details><summary>the spec</summary><pre>{spec}</pre></details>"
