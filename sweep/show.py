"""How results look on a terminal and in text: tables, shares of the step, counts by reason."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sim_core import EXPLANATIONS, HARDWARE_KEYS, PARTS, Hardware, Summary, Workload, short, summarize
from sweep.columns import SHORT_NAMES
from sweep.fidelity import Disagreement
from sweep.rank import Ranking

SHORT_PART: Final = {
    "compute_forward_s": "fwd",
    "compute_backward_s": "bwd",
    "compute_recompute_s": "recomp",
    "tp_exposed_s": "TP",
    "ep_exposed_s": "EP",
    "pp_exposed_s": "PP",
    "dp_exposed_s": "DP",
    "bubble_s": "bubble",
    "optimizer_s": "optim",
}
_SHORT_COLUMN: Final = {column: head for head, column in SHORT_NAMES.items()}
ROUNDING_S: Final = 1e-12
TABLE_WIDTH: Final = 250
MOST_PIECES: Final = 12


def ranking_table(ranking: Ranking, console: Console) -> None:
    """Print a ranking: plan columns, the result, and the parts of the step in percent; then what is not in it."""
    rows = ranking.rows
    parts = [name for name in PARTS if name in rows.column_names]
    split = len(parts) == len(PARTS) and "step_time_s" in rows.column_names
    live = [name for name in parts if not split or any(value for value in rows[name].to_pylist())]
    plain = [name for name in rows.column_names if not (split and name in parts)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in plain:
        table.add_column(_SHORT_COLUMN.get(name, name), justify="right", no_wrap=True)
    for name in live if split else []:
        table.add_column(f"{SHORT_PART[name]}%", justify="right", no_wrap=True)
    for row in rows.to_pylist():
        cells = [cell(name, row[name]) for name in plain]
        cells += [f"{100 * row[name] / row['step_time_s']:.0f}" for name in live] if split else []
        table.add_row(*cells)
    if ranking.missing:
        computed = f"{ranking.total:,} of {ranking.total + ranking.missing:,} plans are computed"
        console.print(f"Incomplete: {computed}; the same `sweep run` goes on.")
    if rows.num_rows:
        print_table(table, console)
    else:
        console.print("No plan is left to rank.")
    direction = "highest" if ranking.descending else "lowest"
    console.print(f"{ranking.ranked:,} of {ranking.total:,} plans ranked, {direction} {ranking.by} first.")
    if ranking.mixed_batches:
        console.print(
            "note: steps of different global batches are compared; --by gpu_s_per_sample or --per global_batch compares alike",
            soft_wrap=True,
        )
    for note in ranking.notes:
        console.print(f"note: {note}", soft_wrap=True)
    if ranking.held and ranking.ranked:
        console.print("All of them: " + ", ".join(f"{k} {cell(k, v)}" for k, v in ranking.held.items()), soft_wrap=True)
    left_out = ranking.reasons | ({"where": ranking.filtered} if ranking.filtered else {})
    if left_out:
        reasons(left_out, console, "Not ranked")


def print_table(table: Table, console: Console) -> None:
    """Whole, however narrow the terminal: a row that wraps can be read, a cell that is cut off cannot."""
    Console(file=console.file, width=max(console.width, TABLE_WIDTH), markup=False, highlight=False, no_color=True).print(table)


def reasons(counts: Mapping[str, int], console: Console, title: str) -> None:
    """Print counts by reason, most first, each with what it means."""
    console.print(f"{title}:")
    width = max(len(f"{n:,}") for n in counts.values())
    for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        meaning = EXPLANATIONS.get(reason, "the condition given to rank is false" if reason == "where" else "")
        console.print(f"  {n:>{width},}  {reason or 'ok'}{f'  ({meaning})' if meaning else ''}", soft_wrap=True)


def cell(name: str, value: Any) -> str:
    """One value as short text, with its unit where the column's name gives one."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if name.endswith("_s") and not name.endswith("per_s"):
            return short(value, "s") if abs(value) >= ROUNDING_S else "0"
        if name.endswith("_bytes"):
            return short(value, "B")
        if name.endswith("bandwidth"):
            return short(value, "B/s")
        if name.endswith("latency"):
            return short(value, "s")
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def rows_text(table: pa.Table, form: str) -> str:
    """Rows as csv, or json (a list of objects), all digits."""
    rows = table.to_pylist()
    if form == "json":
        return json.dumps(rows, indent=1)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.column_names)
    writer.writerows(row.values() for row in rows)
    return out.getvalue().rstrip("\n")


def tool_breakdown(parts: Mapping[str, float], console: Console) -> None:
    """Print what SimAI-Analytical prints of a plan, in microseconds."""
    compute = sum(parts[name] for name in ("compute_forward", "compute_backward", "recompute", "step_compute"))
    exposed = sum(parts[name] for name in ("tp_exposed", "ep_exposed", "dp_exposed"))
    total = compute + exposed + parts["bubble"] + parts["pipeline"]
    lines = {
        "DP communication": parts["dp"],
        "DP_EP communication": parts["dp_ep"],
        "TP communication": parts["tp"],
        "EP communication": parts["ep"],
        "PP communication": parts["pipeline"],
        "exposed communication": exposed,
        "bubble": parts["bubble"],
        "compute": compute,
        "total": total,
    }
    console.print("SimAI-Analytical's cost model, us and share of the total:")
    for name, nanoseconds in lines.items():
        console.print(f"  {name:22} {nanoseconds / 1000:>14.0f}  {nanoseconds / total if total else 0:>6.1%}")


def plan_row(row: Mapping[str, Any], notes: Sequence[str], console: Console, *, parts: bool) -> None:
    """Print one result row: the plan, its status, and the parts of its step."""
    plan = ["tp", "pp", "vpp", "ep", "dp", "all_gpus", "micro_batch", "ga", "schedule", "checkpointing", "hardware"]
    console.print("plan: " + ", ".join(f"{name} {row[name]}" for name in plan), soft_wrap=True)
    if row["status"] != "ok":
        console.print(f"{row['status']}: {row['reason']} ({EXPLANATIONS[row['reason']]})", soft_wrap=True)
    elif parts:
        console.print(f"step time {short(row['step_time_s'], 's')}, the mean over the stages of")
        for name in PARTS:
            hidden = f"of {short(row[total], 's')}" if (total := name.replace("exposed", "total")) != name else ""
            console.print(
                f"  {name.removesuffix('_s'):18} {short(row[name], 's'):>12} {row[name] / row['step_time_s']:>7.1%} {hidden}",
            )
    for note in notes:
        console.print(f"  note: {note}", soft_wrap=True)


def disagreement(found: Disagreement, console: Console) -> None:
    """Print where the fidelities disagree."""
    correlation = "not defined, all plans tie" if found.rank_correlation is None else f"{found.rank_correlation:.3f}"
    console.print(
        f"{found.pairs:,} plans in both fidelities. simai / event: median {found.median:.3f}, 5 to 95 % {found.low:.3f} to "
        f"{found.high:.3f}. Rank correlation {correlation}; in both best {found.best}: {found.best_in_common}.",
        soft_wrap=True,
    )
    console.print("Widest apart; parts are simai - event:")
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    names = [name for name in found.rows.column_names if name not in PARTS or any(found.rows[name].to_pylist())]
    for name in names:
        table.add_column(SHORT_PART.get(name, _SHORT_COLUMN.get(name, name)), justify="right", no_wrap=True)
    for row in found.rows.to_pylist():
        table.add_row(*(cell(name, row[name]) for name in names))
    print_table(table, console)


def workload_screen(path: str, workload: Workload, console: Console) -> None:
    """Print what a workload file holds, on a screen."""
    summary, base = summarize(workload), workload.base
    dp = base.all_gpus // (base.tp * base.pp)
    console.print(f"{path}: {workload.kind} workload")
    console.print(
        f"  plan          tp {base.tp}, pp {base.pp}, vpp {base.vpp}, ep {base.ep}, dp {dp}, {base.all_gpus} GPUs, "
        f"micro-batch {base.micro_batch}, ga {base.ga}",
    )
    console.print(f"  layers        {workload.layers}, of which {summary.layers_per_stage:g} a stage")
    for what, count in (
        ("parameters", summary.parameters_per_rank),
        ("expert par.", summary.expert_parameters_per_rank),
    ):
        if count:
            console.print(
                f"  {what:13} {short(count, '')} a rank, {short(count * base.tp * base.pp, '')} in {base.tp * base.pp} ranks",
            )
    _compute(summary, base.ga, console)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("group", "collective", "when", "number", "bytes"):
        table.add_column(title, justify="right" if title in ("number", "bytes") else "left", no_wrap=True)
    for row in summary.traffic:
        table.add_row(
            row.group,
            row.collective,
            "a step" if row.per_step else "a micro-batch",
            f"{row.count:g}",
            short(row.bytes, "B"),
        )
    if summary.traffic:
        print_table(table, console)
    for note in workload.notes:
        console.print(f"  note: {note}", soft_wrap=True)


def _compute(summary: Summary, ga: int, console: Console) -> None:
    """Compute of a micro-batch and the share of each kind of record in it."""
    total_s = summary.forward_s + summary.backward_s
    console.print(
        f"  compute       {short(total_s, 's')} a micro-batch (forward {short(summary.forward_s, 's')}, backward "
        f"{short(summary.backward_s, 's')}), x {ga} + {short(summary.step_compute_s, 's')} once a step",
    )
    largest = sorted(summary.pieces, key=lambda piece: -(piece[2] + piece[3]))[:MOST_PIECES]
    for name, count, forward_s, backward_s in (piece for piece in summary.pieces if piece in largest):
        share = (forward_s + backward_s) / total_s if total_s else 0.0
        console.print(f"    {name:20} x {count:<6g} {share:6.1%} of the compute")


def hardware(one: Hardware | None, presets: Sequence[Hardware], console: Console) -> None:
    """Print the numbers of one hardware with their sources, or the presets in a table."""
    if one is not None:
        console.print(f"{one.name}")
        for key, (section, unit) in HARDWARE_KEYS.items():
            number = getattr(getattr(one, section), key)
            console.print(f"  {key:18} {short(number.value, unit):14} {number.source}", soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    columns = (
        "peak_flops_bf16",
        "memory",
        "memory_bandwidth",
        "gpus_per_node",
        "nvlink_bandwidth",
        "nics_per_node",
        "nic_bandwidth",
    )
    for title in ("preset", *columns):
        table.add_column(title, justify="left" if title == "preset" else "right", no_wrap=True)
    for preset in presets:
        table.add_row(preset.name, *(short(preset.value(key), HARDWARE_KEYS[key][1]) for key in columns))
    print_table(table, console)
    console.print("Bandwidths are per GPU or NIC and direction. `sweep hardware NAME` shows all numbers with their sources.")
