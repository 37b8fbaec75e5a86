"""Figures, runs and networks as Markdown tables."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from sim_core.models.features import ALIASES, FEATURES, split_features
from sweep.runs.simulation import Run
from sweep.runs.table import FAILED, OK, QUALITIES
from sweep.validation.figures import Figures

STATED = {"release": "release", "dispatcher": "dispatcher_library", "features": "features"}
"""Columns that follow those of every run, where some run states one of them, by their headings."""
NAMED = {
    "set": "set", "framework": "framework", "hw": "hw", "model": "model_name", "release": "release",
    "dispatcher": "dispatcher_library",
}  # fmt: skip
SIZES = {"gpus": "all_gpus", "tp": "tp", "pp": "pp", "vpp": "vpp", "cp": "cp", "ep": "ep", "mbs": "micro_batch"}
OF_MODEL = ("base_frozen", "hybrid_pattern", "lora_rank", "lora_targets", "lora_dropout")
"""Features that say what the model is."""


def summary(total: Figures) -> str:
    """What a stranger wants to know first."""
    lines = [f"{total.simulated} of {total.runs} sound runs are simulated, each from what its row states."]
    if total.mape is not None:
        lines.append(f"Step time: off by {total.mape:.1f} % in the mean (bias {total.bias:+.1f} %).")
    if total.groups:
        best = "" if total.spearman is None else f"order of the plans (Spearman) {total.spearman:.2f}, "
        lines.append(
            f"Of {total.groups} jobs run under several plans: {best}the plan we would pick is {total.regret:.1f} % slower than "
            f"the fastest (worst {total.regret_worst:.0f} %)."
        )
    if total.memory_mape is not None:
        lines.append(f"Memory: off by {total.memory_mape:.1f} %.")
    if total.oom_runs:
        called = round((total.oom_recall or 0) * total.oom_runs / 100)
        wrong = total.oom_called - called
        lines.append(f"Of {total.oom_runs} runs that did not fit {called} are called; {wrong} that ran are called wrongly.")
    if total.structural:
        lines.append(
            f"Of {total.structural} runs that failed by the structure of their plan {total.structural_named} are named."
        )
    return "\n".join(lines)


def as_markdown(figures: Sequence[Figures], total: Figures) -> str:
    """The figures of each set and hardware of which something was simulated, then what was not and why."""
    heading = (
        "| set | hardware | runs | simulated | MAPE % | bias % | worst % | Spearman | pairs % | regret % (worst) "
        "| memory % (bias) | out of memory: called, of | false calls | fastest quarter: MAPE % |"
    )
    lines = [heading, "|---|---|" + "--:|" * 12]
    for row in (*figures, total):
        if not row.simulated and not row.oom_runs and row is not total:
            continue
        name = row.set if row is not total else "**all**"
        right = round((row.oom_recall or 0) * row.oom_runs / 100)
        lines.append(
            f"| {name} | {row.hw or '-'} | {row.runs} | {row.simulated} | {cell(row.mape)} | {cell(row.bias, sign=True)} "
            f"| {cell(row.worst, sign=True)} | {cell(row.spearman, 2)} | {cell(row.pairs_right, 0)} "
            f"| {with_cell(cell(row.regret), cell(row.regret_worst))} "
            f"| {with_cell(cell(row.memory_mape), cell(row.memory_bias, sign=True))} "
            f"| {f'{right} of {row.oom_runs}' if row.oom_runs else '-'} "
            f"| {row.oom_called - right if row.simulated else '-'} | {cell(row.mape_fastest)} |"
        )
    return "\n".join(lines) + "\n" + _left_out(figures)


def as_qualities(classes: Sequence[Figures]) -> str:
    """How many runs of each quality there are, what that means, and how far off we are; only `ok` is scored."""
    lines = ["| quality | runs | simulated | MAPE % | bias % | what it means |", "|---|--:|--:|--:|--:|---|"]
    lines += [
        f"| {row.set} | {row.runs} | {row.simulated} | {cell(row.mape)} | {cell(row.bias, sign=True)} | {QUALITIES[row.set]} |"
        for row in classes
    ]
    return "\n".join(lines)


def as_releases(releases: Sequence[Figures]) -> str:
    """Errors by release of the framework, of models without and with experts."""
    lines = [
        f"| {row.set} | {row.runs_dense} | {cell(row.mape_dense)} | {cell(row.bias_dense, sign=True)} "
        f"| {row.runs_experts} | {cell(row.mape_experts)} | {cell(row.bias_experts, sign=True)} |"
        for row in releases
        if row.runs_dense or row.runs_experts
    ]
    if not lines:
        return "No run that is simulated states the release of its framework."
    heading = "| release | dense: runs | MAPE % | bias % | with experts: runs | MAPE % | bias % |"
    return "\n".join([heading, "|---|" + "--:|" * 6, *lines])


def as_rows(runs: Sequence[Run]) -> str:
    """Every run that counts and was simulated: measured and predicted seconds, error; release and switches if any has some."""
    shown = [run for run in runs if not run.reason and run.row.quality in (OK, FAILED)]
    stated = any(run.row.text(column) for run in shown for column in STATED.values())
    headings = "".join(f" {column} |" for column in STATED if stated)
    lines = [
        f"| run | model | plan | Gb/s of a node | measured s | predicted s | error % | memory % |{headings}",
        "|---|---|---|" + "--:|" * 5 + "---|" * len(STATED) * stated,
    ]
    for run in shown:
        plan = " ".join(f"{key} {run.row.text(name)}" for key, name in SIZES.items() if run.row.text(name))
        measured, error = FAILED if run.row.quality == FAILED else "out of memory" if run.row.out_of_memory else "-", "-"
        if run.timed:
            measured, error = f"{run.measured_s:.4g}", f"{run.error:+.1f}"
        lines.append(
            f"| {run.row.where.rpartition('/')[2]} | {run.row.text('model_name')} | {plan} | {run.network:g} | {measured} "
            f"| {run.step_s:.4g} | {error} | {cell(run.memory_error, sign=True)} |" + (_switches(run) if stated else "")
        )
    return "\n".join(lines)


def row_objects(runs: Sequence[Run]) -> list[dict[str, object]]:
    """Every run as an object, also those that do not count or were not simulated: `reason` says why. Seconds and bytes."""
    return [
        {
            "id": run.row.text("id") or None,
            "where": run.row.where,
            **{key: run.row.text(name) or None for key, name in NAMED.items()},
            "quality": run.row.quality,
            "scored": run.scored,
            "plan": {key: run.row.size(name) for key, name in SIZES.items() if run.row.text(name)},
            "measured_s": run.measured_s or None,
            "predicted_s": None if run.reason else run.step_s,
            "error": run.error if run.timed else None,
            "memory_error": run.memory_error,
            "predicted_bytes": None if run.reason or not run.memory_known else run.device_bytes,
            "did_not_fit": run.row.out_of_memory,
            "predicted_to_fit": None if run.reason or not run.memory_known else run.fits,
            "node_gbps": run.network or None,
            "reason": run.reason or None,
        }
        for run in runs
    ]


def _switches(run: Run) -> str:
    used = {*FEATURES, *ALIASES, *OF_MODEL}
    effective = ";".join(f"{key}={value}" for key, value in split_features(run.row.text("features")).items() if key in used)
    cells = (run.row.text("release"), run.row.text("dispatcher_library"), effective)
    return "".join(f" {cell.replace('|', '/') or '-'} |" for cell in cells)


def as_networks(runs: Sequence[Run]) -> str:
    """The bandwidth that was used for each text of `interconnect` on each device: as the runs state it, or the preset's."""
    used = Counter(
        (run.row.text("hw"), run.row.text("interconnect"), run.network, run.network_stated) for run in runs if not run.reason
    )
    lines = [
        f"| {device} | {text.replace('|', '/')[:100] or '-'} | {network:g} | the {'row' if stated else 'preset'} | {count} |"
        for (device, text, network, stated), count in sorted(used.items())
    ]
    return "\n".join(["| hardware | interconnect | Gb/s of a node | of | runs |", "|---|---|--:|---|--:|", *lines])


def _left_out(figures: Sequence[Figures]) -> str:
    """Runs that were not simulated, by reason, and those not counted because of their quality."""
    sets = defaultdict(set)
    not_simulated, unmet, failed, other = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for row in figures:
        for reason in row.not_simulated:
            sets[reason].add(row.set)
        not_simulated.update(row.not_simulated)
        unmet.update(row.unmet)
        failed.update(row.failed)
        other.update(row.other_quality)
    lines = []
    if not_simulated:
        lines += ["", "Not simulated:", "", "| runs | why | sets |", "|--:|---|---|"]
        lines += [f"| {count} | {why} | {', '.join(sorted(sets[why]))} |" for why, count in not_simulated.most_common()]
    for what, of, counted in (
        ("Simulated with the nearest, as we have no page, preset or number of theirs", " of", unmet),
        ("Predicted of runs that failed", "", failed),
        ("Not counted, because of their quality", "", other),
    ):
        if counted:
            lines += ["", f"{what}: {', '.join(f'{count}{of} {name}' for name, count in counted.most_common())}."]
    return "\n".join(lines)


def with_cell(value: str, other: str) -> str:
    """A cell with another figure in brackets."""
    return value if value == "-" else f"{value} ({other})"


def cell(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A figure as a cell; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
