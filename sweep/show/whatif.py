"""The screen of a what-if: the plan now, the same plan then, the best plan then."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import Console

from sim_core import EXPLANATIONS, plural
from sweep.explaining.whatif import Question, WhatIf
from sweep.show.tables import cell, heading, print_table
from sweep.uncertainty.evidence import LEVEL

_PLAN: Final = (
    "hardware", "nic_bandwidth", "sequence", "all_gpus", "tp", "cp", "pp", "vpp", "ep", "dp", "micro_batch", "ga",
    "global_batch", "schedule", "layer_split", "checkpointing", "overlap_tp", "overlap_ep", "precision",
    "dispatcher", "sharding",
)  # fmt: skip
_RESULT: Final = (
    "step_time_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes", "training_days", "gpu_hours", "usd", "energy_mwh",
)  # fmt: skip
_LESS: Final = 0.9995
"""A step that is shorter by less is as long."""


def print_what_if(answer: WhatIf, question: Question, console: Console) -> None:
    """Print what changes beside what is; columns of plans that are all the same are left out."""
    plans = {"now": answer.before, "the same plan": answer.same}
    if answer.after is not None:
        plans["the best then"] = answer.after
    console.print(f"what if: {', '.join(question.words)}")
    for line in _answers(answer):
        console.print(line)
    lines = [_line(name, plans) for name in _PLAN if len({str(row.get(name)) for row in plans.values()}) > 1]
    results = [_line(name, plans) for name in _RESULT if any(row.get(name) is not None for row in plans.values())]
    results[1:1] = (
        [[f"its interval, {LEVEL:.0%}", *map(_interval, plans.values())]] if any(map(_interval, plans.values())) else []
    )
    print_table(["", *plans], [*lines, *results], console, left=(0,))
    for note in answer.notes:
        console.print(f"note: {note}")


def _answers(answer: WhatIf) -> Iterator[str]:
    """The answer in sentences: what becomes of the plan, and whether another is better then."""
    same, after = answer.same, answer.after
    if same["status"] == "ok":
        yield f"the same plan: {_against(same, answer.before)} now"
    else:
        yield f"the same plan cannot run: {same['reason']} ({EXPLANATIONS.get(same['reason'], same['reason'])})"
    searched = f"of the {plural(answer.searched)} of its space then"
    if after is None:
        yield f"{searched}, none can run"
    elif same["status"] != "ok":
        yield f"the best {searched}: {_against(after, answer.before)} now"
    elif float(after["step_time_s"]) < _LESS * float(same["step_time_s"]):
        yield f"the best {searched}: {_against(after, same)} the same plan then"
    else:
        yield f"{searched}, none is faster than the same plan"


def _interval(row: Mapping[str, Any]) -> str:
    ends = [row.get(name) for name in ("step_time_low_s", "step_time_high_s")]
    return " to ".join(cell("step_time_s", end) for end in ends if end is not None)


def _line(name: str, plans: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [heading(name), *(cell(name, row.get(name)) for row in plans.values())]


def _against(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """How much faster or slower a step is than another."""
    gain = float(other["step_time_s"]) / float(row["step_time_s"])
    if abs(gain - 1) < 1 - _LESS:
        return "a step as long as"
    return f"steps {gain:.3g} x as fast as" if gain > 1 else f"steps take {1 / gain:.3g} x as long as"
