"""Screens of results: counts by reason, and one plan."""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from rich.console import Console

from sim_core import EXPLANATIONS, MEMORY, PARTS, short
from sweep.columns import measures_of
from sweep.search.candidates import BEATEN, WORSE
from sweep.wording import cell

_COUNTED: Final = {
    "where": "the condition given to `rank` is false",
    BEATEN: "its bound proves that it is worse than the best; not simulated",
    WORSE: "simulated, and worse than the best",
}


def print_reasons(counts: Mapping[str, int], console: Console, title: str, more: Mapping[str, str] | None = None) -> None:
    """Print counts by reason, most frequent first, each with its meaning and what `more` says of it."""
    console.print(f"{title}:")
    width = max(len(f"{n:,}") for n in counts.values())
    for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        meaning = EXPLANATIONS.get(reason) or _COUNTED.get(reason, "")
        meaning += (more or {}).get(reason, "")
        console.print(f"  {n:>{width},}  {reason or 'ok'}{f'  ({meaning})' if meaning else ''}")


def print_simai_parts(parts: Mapping[str, float], console: Console) -> None:
    """Print what SimAI-Analytical prints for a plan, in microseconds; `parts` are in nanoseconds."""
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


_PLAN: Final = ("tp", "pp", "vpp", "ep", "dp", "all_gpus", "micro_batch", "ga", "schedule", "checkpointing", "hardware")


def print_plan(row: Mapping[str, Any], named: Set[str], notes: Sequence[str], console: Console, *, parts: bool) -> None:
    """Print one row: the plan with its usual fields and those `named`, its status and, with `parts`, the parts of its step."""
    plan = {name: row[name] for name in row if name in _PLAN or name in named}
    console.print("plan: " + ", ".join(f"{name} {cell(name, value)}" for name, value in plan.items()))
    if row["status"] != "ok":
        console.print(f"{row['status']}: {row['reason']} ({EXPLANATIONS[row['reason']]})")
        if row["reason"] == "memory_exceeds_device":
            need = short(row["peak_memory_bytes"] or row["state_bytes"], "B")
            console.print(f"needs {need}, the device has {short(row['device_memory_bytes'], 'B')}")
    elif parts:
        console.print(f"step time {short(row['step_time_s'], 's')}, the mean over the stages of")
        for name in PARTS:
            hidden = f"of {short(row[total], 's')}" if (total := name.replace("exposed", "total")) != name else ""
            console.print(
                f"  {name.removesuffix('_s'):18} {short(row[name], 's'):>12} {row[name] / row['step_time_s']:>7.1%} {hidden}"
            )
    if row["peak_memory_bytes"] is not None:
        bytes_of = {name.removesuffix("_bytes"): short(row[name], "B") for name in MEMORY[:-1]}
        peak, have = (short(row[name], "B") for name in ("peak_memory_bytes", "device_memory_bytes"))
        console.print(f"memory of the fullest stage {peak} of {have}: {', '.join(f'{a} {b}' for a, b in bytes_of.items())}")
    if row["step_time_p50_s"] is not None:
        half, most = (short(row[name], "s") for name in measures_of("tail"))
        console.print(f"with stragglers half of the steps take up to {half}, 95 % up to {most}")
    if row["goodput"] is not None:
        part, _, rate = (cell(name, row[name]) for name in measures_of("goodput"))
        every = f"{row['checkpoint_interval_s'] / 60:,.1f} min"
        console.print(f"goodput {part} with failures and a checkpoint every {every} of work: {rate} tokens/s")
    if row["training_days"] is not None:
        print_costs(row, console)
    for note in notes:
        console.print(f"  note: {note}")


def print_costs(row: Mapping[str, Any], console: Console) -> None:
    """Print what the tokens of the budget take and cost under one plan."""
    parts = [f"{cell('training_days', row['training_days'])} days", f"{cell('gpu_hours', row['gpu_hours'])} GPU-hours"]
    parts += [
        f"{cell(name, row[name])} {unit}" for name, unit in (("usd", "USD"), ("energy_mwh", "MWh")) if row[name] is not None
    ]
    console.print(f"the budget's tokens take {', '.join(parts)}")
