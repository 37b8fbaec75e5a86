"""The screen of a what-if: the plan now, the same plan then, the best plan then."""

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console

from sweep.show.tables import cell, heading, print_table
from sweep.whatif import Question, WhatIf

_PLAN: Final = (
    "hardware", "nic_bandwidth", "all_gpus", "tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch", "ga", "global_batch",
    "schedule", "layer_split", "checkpointing", "overlap_tp", "overlap_ep", "precision", "dispatcher", "sharding",
)  # fmt: skip
_RESULT: Final = (
    "step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes", "training_days", "gpu_hours", "usd", "energy_mwh",
)  # fmt: skip


def print_what_if(answer: WhatIf, question: Question, console: Console) -> None:
    """Print what changes beside what is; columns of plans that are all the same are left out."""
    plans = {"now": answer.before, "the same plan": answer.same}
    if answer.after is not None:
        plans["the best then"] = answer.after
    console.print(f"what if: {', '.join(question.words)}")
    lines = [_line(name, plans) for name in _PLAN if len({str(row.get(name)) for row in plans.values()}) > 1]
    results = [_line(name, plans) for name in _RESULT if any(row.get(name) is not None for row in plans.values())]
    print_table(["", *plans], [*lines, *results], console, left=(0,))
    if answer.same["status"] != "ok":
        console.print(f"the same plan is {answer.same['status']}: {answer.same['reason']}")
    else:
        console.print(f"the same plan then: {_against(answer.same, answer.before)} now")
    if answer.after is None:
        console.print(f"no plan of the {answer.searched:,} can run then")
    elif answer.same["status"] == "ok":
        console.print(f"the best of {answer.searched:,} plans then: {_against(answer.after, answer.same)} the same plan then")
    for note in answer.notes:
        console.print(f"note: {note}")


def _line(name: str, plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [heading(name), *(cell(name, row.get(name)) for row in plans.values())]


def _against(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How much faster or slower a step is than another."""
    gain = float(other["step_time_s"]) / float(row["step_time_s"])
    return "a step as long as" if abs(gain - 1) < 5e-4 else f"steps {gain:.3g} x as fast as"
