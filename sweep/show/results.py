"""Screens of results: counts by reason, and one plan."""

from collections.abc import Iterator, Mapping, Set

from sim_core import EXPLANATIONS, MEMORY, PARTS, short
from sweep.columns import measures_of
from sweep.search.candidates import BEATEN, WORSE
from sweep.wording import Values, cell

_COUNTED = {
    "where": "the condition given to `rank` is false",
    BEATEN: "its bound proves that it is worse than the best; not simulated",
    WORSE: "simulated, and worse than the best",
}


def reason_lines(counts: Mapping[str, int], title: str, **more: str) -> Iterator[str]:
    """Counts by reason, most frequent first, each with its meaning and what `more` says of it."""
    yield f"{title}:"
    width = max(len(f"{n:,}") for n in counts.values())
    for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        meaning = (EXPLANATIONS.get(reason) or _COUNTED.get(reason, "")) + more.get(reason, "")
        yield f"  {n:>{width},}  {reason or 'ok'}{f'  ({meaning})' if meaning else ''}"


def simai_lines(parts: Mapping[str, float]) -> Iterator[str]:
    """What SimAI-Analytical prints for a plan, in microseconds; `parts` are in nanoseconds."""
    compute = sum(parts[name] for name in ("compute_forward", "compute_backward", "recompute", "step_compute"))
    exposed = sum(parts[name] for name in ("tp_exposed", "ep_exposed", "dp_exposed"))
    total = compute + exposed + parts["bubble"] + parts["pipeline"]
    lines = {f"{name.upper()} communication": parts[name] for name in ("dp", "dp_ep", "tp", "ep")}
    lines |= {"PP communication": parts["pipeline"], "exposed communication": exposed, "bubble": parts["bubble"]}
    yield "SimAI-Analytical's cost model, us and share of the total:"
    for name, nanoseconds in (lines | {"compute": compute, "total": total}).items():
        yield f"  {name:22} {nanoseconds / 1000:>14.0f}  {nanoseconds / total if total else 0:>6.1%}"


_PLAN = ("tp", "pp", "vpp", "ep", "dp", "all_gpus", "micro_batch", "ga", "schedule", "checkpointing", "hardware")


def plan_lines(row: Values, named: Set[str], *, parts: bool) -> Iterator[str]:
    """One row: the plan with its usual fields and those `named`, its status and, with `parts`, the parts of its step."""
    peak, step_s = row["peak_memory_bytes"], row["step_time_s"]
    plan = [f"{name} {cell(name, row[name])}" for name in row if name in _PLAN or name in named]
    yield f"plan: {', '.join(plan)}"
    if row["status"] != "ok":
        yield f"{row['status']}: {row['reason']} ({EXPLANATIONS[row['reason']]})"
        if row["reason"] == "memory_exceeds_device":
            yield f"needs {short(peak or row['state_bytes'], 'B')}, the device has {short(row['device_memory_bytes'], 'B')}"
    elif parts:
        yield f"step time {short(step_s, 's')}, the mean over the stages of"
        for name in PARTS:
            hidden = f"of {short(row[total], 's')}" if (total := name.replace("exposed", "total")) != name else ""
            yield f"  {name.removesuffix('_s'):18} {short(row[name], 's'):>12} {row[name] / step_s:>7.1%} {hidden}"
    if peak is not None:
        terms = [name for name in MEMORY if name != "peak_memory_bytes" and (row[name] or name != "host_bytes")]
        told = ", ".join(f"{name.removesuffix('_bytes')} {short(row[name], 'B')}" for name in terms)
        yield f"memory of the fullest stage {short(peak, 'B')} of {short(row['device_memory_bytes'], 'B')}: {told}"
    if row["goodput"] is not None:
        part, _, rate = (cell(name, row[name]) for name in measures_of("goodput"))
        every = f"{row['checkpoint_interval_s'] / 60:,.1f} min"
        yield f"goodput {part} with failures and a checkpoint every {every} of work: {rate} tokens/s"
    if row["training_days"] is not None:
        units = {"training_days": "days", "gpu_hours": "GPU-hours", "usd": "USD", "energy_mwh": "MWh"}
        costs = [f"{cell(name, row[name])} {unit}" for name, unit in units.items() if row[name] is not None]
        yield f"the budget's tokens take {', '.join(costs)}"
