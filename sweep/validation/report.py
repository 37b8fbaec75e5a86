"""Figures, runs, networks and ablations as Markdown tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from sweep.validation.features import effective
from sweep.validation.figures import Figures
from sweep.validation.simulation import Run

STATED: Final = ("release", "dispatcher", "features")
"""Columns that follow those of every run, where some run states one of them."""


def as_markdown(figures: Sequence[Figures], total: Figures) -> str:
    """The figures of each set and hardware, then what was not simulated and why."""
    heading = (
        "| set | hardware | runs | simulated | MAPE % | bias % | worst % | Spearman | pairs % | regret % (worst) "
        "| memory % (bias) | out of memory: called, of | false calls |"
    )
    lines = [heading, "|---|---|" + "--:|" * 11]
    for row in (*figures, total):
        name = row.set if row is not total else "**all**"
        right = round((row.oom_recall or 0) * row.oom_runs / 100)
        lines.append(
            f"| {name} | {row.hw or '-'} | {row.runs} | {row.simulated} | {_n(row.mape)} | {_n(row.bias, sign=True)} "
            f"| {_n(row.worst, sign=True)} | {_n(row.spearman, 2)} | {_n(row.pairs_right, 0)} "
            f"| {_with(_n(row.regret), _n(row.regret_worst))} | {_with(_n(row.memory_mape), _n(row.memory_bias, sign=True))} "
            f"| {f'{right} of {row.oom_runs}' if row.oom_runs else '-'} "
            f"| {row.oom_called - right if row.simulated else '-'} |"
        )
    return "\n".join(lines) + "\n" + _left_out(figures)


def as_rows(runs: Sequence[Run]) -> str:
    """Every run that was simulated: measured and predicted seconds, error; release and switches where a run states some."""
    shown = [run for run in runs if not run.reason]
    stated = any(run.row.text(column) for run in shown for column in STATED)
    heading = "| run | model | plan | Gb/s of a node | measured s | predicted s | error % | memory % |"
    lines = [heading, "|---|---|---|" + "--:|" * 5]
    if stated:
        lines = [lines[0] + "".join(f" {column} |" for column in STATED), lines[1] + "---|" * len(STATED)]
    for run in shown:
        keys = ("gpus", "tp", "pp", "vpp", "cp", "ep", "mbs")
        plan = " ".join(f"{key} {run.row.text(key)}" for key in keys if run.row.text(key))
        measured, error = "out of memory" if run.row.out_of_memory else "-", "-"
        if run.timed:
            measured, error = f"{run.measured_s:.4g}", f"{run.error:+.1f}"
        lines.append(
            f"| {run.row.where.rpartition('/')[2]} | {run.row.text('model')} | {plan} | {run.network:g} | {measured} "
            f"| {run.step_s:.4g} | {error} | {_n(run.memory_error, sign=True)} |" + (_switches(run) if stated else "")
        )
    return "\n".join(lines)


def _switches(run: Run) -> str:
    cells = (run.row.text("release"), run.row.text("dispatcher"), effective(run.row))
    return "".join(f" {cell.replace('|', '/') or '-'} |" for cell in cells)


def as_networks(runs: Sequence[Run]) -> str:
    """The bandwidth that was used for each text of `interconnect` on each device: as the runs state it, or the preset's."""
    used = Counter(
        (run.row.text("hw"), run.row.text("interconnect"), run.network, run.network_stated) for run in runs if not run.reason
    )
    lines = ["| hardware | interconnect | Gb/s of a node | of | runs |", "|---|---|--:|---|--:|"]
    for (device, cell, network, stated), count in sorted(used.items()):
        text = cell.replace("|", "/")[:100] or "-"
        lines.append(f"| {device} | {text} | {network:g} | {'the row' if stated else 'the preset'} | {count} |")
    return "\n".join(lines)


def ablation_table(base: Mapping[str, float], without: Mapping[str, Mapping[str, float]]) -> str:
    """Mean absolute error by set: with everything, then without each piece."""
    lines = ["| set | all | " + " | ".join(without) + " |", "|---|--:|" + "--:|" * len(without)]
    for name, error in base.items():
        lines.append(f"| {name} | {error:.1f} | " + " | ".join(f"{errors[name]:.1f}" for errors in without.values()) + " |")
    return "\n".join(lines)


def _left_out(figures: Sequence[Figures]) -> str:
    """Runs that were not simulated, by reason, and those not counted because of their quality."""
    reasons: Counter[str] = Counter()
    where: dict[str, set[str]] = {}
    for row in figures:
        for reason, count in row.not_simulated.items():
            reasons[reason] += count
            where.setdefault(reason, set()).add(row.set)
    lines = []
    if reasons:
        lines += ["", "Not simulated:", "", "| runs | why | sets |", "|--:|---|---|"]
        lines += [f"| {count} | {reason} | {', '.join(sorted(where[reason]))} |" for reason, count in reasons.most_common()]
    failed = sum((Counter(row.failed) for row in figures), Counter[str]())
    if failed:
        lines += ["", f"Predicted of runs that failed: {', '.join(f'{count} {what}' for what, count in failed.most_common())}."]
    other = sum((Counter(row.other_quality) for row in figures), Counter[str]())
    if other:
        named = ", ".join(f"{count} {quality}" for quality, count in other.most_common())
        lines += ["", f"Not counted, because of their quality: {named}."]
    return "\n".join(lines)


def _with(value: str, other: str) -> str:
    return value if value == "-" else f"{value} ({other})"


def _n(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
