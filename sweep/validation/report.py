"""Figures as Markdown tables and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from sweep.validation.figures import Figures
from sweep.validation.simulation import Run

MOST_REASONS: Final = 4


def as_json(found: Sequence[Figures]) -> str:
    """A list of objects; numbers with three decimals, null where there is nothing to say."""
    rows = [
        {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(one).items()} for one in found
    ]
    return json.dumps(rows, indent=1)


def as_markdown(found: Sequence[Figures], total: Figures) -> str:
    """The figures of each set and hardware, then what was not simulated and why."""
    heading = (
        "| set | hardware | runs | simulated | MAPE % | bias % | worst % | Spearman | pairs % | regret % (worst) "
        "| memory % (bias) | out of memory: called, of | false calls |"
    )
    lines = [heading, "|---|---|" + "--:|" * 11]
    for one in (*found, total):
        name = one.set if one is not total else "**all**"
        lines.append(
            f"| {name} | {one.hw or '-'} | {one.runs} | {one.simulated} | {_n(one.mape)} | {_n(one.bias, sign=True)} "
            f"| {_n(one.worst, sign=True)} | {_n(one.spearman, 2)} | {_n(one.pairs_right, 0)} "
            f"| {_with(_n(one.regret), _n(one.regret_worst))} | {_with(_n(one.memory_mape), _n(one.memory_bias, sign=True))} "
            f"| {_called(one)} | {one.oom_called - _right(one) if one.simulated else '-'} |"
        )
    return "\n".join(lines) + "\n" + _left_out(found)


def as_rows(runs: Sequence[Run]) -> str:
    """Every run that was simulated: measured and predicted seconds, error."""
    heading = "| run | model | plan | Gb/s of a node | measured s | predicted s | error % | memory % |"
    lines = [heading, "|---|---|---|" + "--:|" * 5]
    for run in runs:
        if not run.reason:
            plan = " ".join(
                f"{key} {run.row.text(key)}" for key in ("gpus", "tp", "pp", "vpp", "cp", "ep", "mbs") if run.row.text(key)
            )
            time = (
                (f"{run.measured_s:.4g}", f"{run.error:+.1f}")
                if run.timed
                else ("out of memory" if run.row.out_of_memory else "-", "-")
            )
            lines.append(
                f"| {run.row.where.rpartition('/')[2]} | {run.row.text('model')} | {plan} | {run.network:g} | {time[0]} "
                f"| {run.step_s:.4g} | {time[1]} | {_n(run.memory_error, sign=True)} |"
            )
    return "\n".join(lines)


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
        lines.append(f"| {name} | {error:.1f} | " + " | ".join(f"{found[name]:.1f}" for found in without.values()) + " |")
    return "\n".join(lines)


def _left_out(found: Sequence[Figures]) -> str:
    reasons: Counter[str] = Counter()
    where: dict[str, set[str]] = {}
    for one in found:
        for reason, count in one.not_simulated.items():
            reasons[reason] += count
            where.setdefault(reason, set()).add(one.set)
    lines = []
    if reasons:
        lines += ["", "Not simulated:", "", "| runs | why | sets |", "|--:|---|---|"]
        lines += [f"| {count} | {reason} | {', '.join(sorted(where[reason]))} |" for reason, count in reasons.most_common()]
    other = sum((Counter(one.other_quality) for one in found), Counter[str]())
    if other:
        named = ", ".join(f"{count} {quality}" for quality, count in other.most_common())
        lines += ["", f"Not counted, because of their quality: {named}."]
    return "\n".join(lines)


def _right(one: Figures) -> int:
    return round((one.oom_recall or 0) * one.oom_runs / 100)


def _called(one: Figures) -> str:
    return f"{_right(one)} of {one.oom_runs}" if one.oom_runs else "-"


def _with(value: str, other: str) -> str:
    return value if value == "-" else f"{value} ({other})"


def _n(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
