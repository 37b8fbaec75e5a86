"""Two plans of a result side by side: fields, seconds and bytes in which they differ, and why one wins."""

from typing import Any

from sim_core import MEMORY, PARTS, short
from sweep.answers.asked import explained, part_name
from sweep.answers.bottleneck import words
from sweep.answers.explanation import Explanation
from sweep.answers.section import Section, values_of
from sweep.answers.variation import COST, STEP, Variation
from sweep.wording import cell

_TELLING = 0.0005


def difference(first: Explanation, second: Explanation) -> dict[str, Any]:
    """What tells two plans apart: fields with both values, seconds by part and bytes (second - first), a verdict in words."""
    of = Variation(before=first.row, after=second.row)
    parts = of.apart((STEP, *PARTS)) if first.runs and second.runs else {}
    return {"fields": of.fields, "parts": parts, "memory": of.apart(MEMORY), "verdict": _verdict(first, second)}


def _verdict(first: Explanation, second: Explanation) -> str:
    """Which plan runs, or costs fewer GPU-seconds a sample, and by which parts."""
    if not (first.runs or second.runs):
        return "neither of the two can run"
    if not (first.runs and second.runs):
        runs, fails = (first, second) if first.runs else (second, first)
        return f"plan {runs.plan} runs, plan {fails.plan} does not: {fails.reason}"
    best, worse = sorted((first, second), key=lambda each: float(each.row[COST]))
    cost, of = best.row[COST], worse.row[COST]
    if cost == of:
        return "both cost the same"
    a, b = (
        {name: each.row[name] * each.row["all_gpus"] / each.row["global_batch"] for name in PARTS} for each in (best, worse)
    )
    less = {name: b[name] - a[name] for name in PARTS}
    wins = sorted((name for name in PARTS if less[name] > 0), key=lambda name: -less[name])[:3]
    losses = sorted((name for name in PARTS if less[name] < 0), key=lambda name: less[name])[:2]
    told = ", ".join(f"{words(name)} {-less[name] / of:+.1%}" for name in wins + losses if abs(less[name]) > _TELLING * of)
    return f"plan {best.plan} takes {1 - cost / of:.1%} fewer GPU-seconds a sample: {told}"


def compared(first: Explanation, second: Explanation) -> Section:
    """Two plans side by side, and why one wins."""
    apart = difference(first, second)
    rows = [(name, *(cell(name, value) for value in values), "") for name, values in apart["fields"].items()]
    for name, delta in (apart["parts"] | apart["memory"]).items():
        unit = "B" if name.endswith("_bytes") else "s"
        label = "step" if name == STEP else part_name(name) if unit == "s" else name.removesuffix("_bytes")
        values = (first.row[name], second.row[name])
        signed = f"{'-' if delta < 0 else '+'}{short(abs(delta), unit)}" if delta else "0"
        rows += [(label, *(short(value, unit) for value in values), signed)] if any(values) else []
    return Section(
        f"plan {first.plan} against plan {second.plan}",
        table=(("", f"plan {first.plan}", f"plan {second.plan}", "difference"), *rows),
        left=(0,),
        gap=3,
        below_table=(apart["verdict"],),
        values={"against": values_of(explained(second)) | {"difference": apart}},
        apart=True,
    )
