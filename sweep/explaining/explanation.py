"""A plan explained, as data: words, step and memory by part, bottleneck, neighbours, what to measure; two plans compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sim_core import EXPLANATIONS, MEMORY, PARTS, Group, Hardware, Shape, SpecError, plural, shape_of, short
from sweep.evaluation.one_plan import plans_of, row_of
from sweep.evaluation.preparation import Prepared
from sweep.explaining.among import Nearest, Within, nearest_running, within
from sweep.explaining.bottleneck import GROUPS_OF, Bottleneck, Waiting, bottleneck, waiting, words
from sweep.explaining.neighbours import Neighbour, neighbours
from sweep.reopening import Reopened

TIGHT: Final = 0.1
"""Part of a device's memory below which head-room is worth a measurement."""
NARROW: Final = {"fp8": "fp8", "mxf": "fp8", "nvf": "fp4"}
"""The peak of a device by the first letters of a precision below 16 bits."""
_SMALL: Final = 0.005
_TELLING: Final = 0.0005


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One plan explained. `shape`: of plans that can run, or lack only memory."""

    plan: int
    row: dict[str, Any]
    told: tuple[str, ...]
    reason: str
    shape: Shape | None
    bottleneck: Bottleneck | None
    waiting: Waiting | None  # what its bubble is made of, where that is known
    neighbours: tuple[Neighbour, ...]
    nearest: Nearest | None  # of a plan that cannot run
    peak: str  # which peak its MFU is of, in words; empty where there is none
    first: tuple[str, ...]  # what to measure first
    within: Within | None  # of a plan that runs, where errors are known
    notes: tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether the plan has a result."""
        return bool(self.row["status"] == "ok")


def explain(opened: Reopened, number: int) -> Explanation:
    """Explain plan `number` of a result; neighbours are simulated. Raises SimError."""
    sweep = opened.prepared.sweep.of_plan(number)
    row = row_of(opened.prepared, number)
    plans = plans_of(opened.prepared, number)
    reason = row["reason"]
    shape = _shape(opened.prepared, number)
    around = tuple(neighbours(opened, number, row)) if _has_batch(row) else ()
    runs = row["status"] == "ok"
    hardware = sweep.hardware.variants[int(plans.hardware[0])]
    return Explanation(
        plan=number,
        row=row,
        told=in_words(opened.prepared, number, row),
        reason=f"{reason}: {EXPLANATIONS[reason]}" if reason else "",
        shape=shape,
        bottleneck=bottleneck(row, shape, around) if runs and shape is not None else None,
        waiting=waiting(row, sweep.workload, sweep.hardware, plans) if runs else None,
        neighbours=around,
        nearest=None if runs else nearest_running(opened.folder, row),
        peak=_peak(row, hardware, sweep.workload.dtype) if runs and row["mfu"] is not None else "",
        first=tuple(_to_measure(row)) if runs else (),
        within=within(opened, row) if runs else None,
        notes=opened.notes,
    )


def in_words(prepared: Prepared, number: int, row: Mapping[str, Any]) -> tuple[str, ...]:
    """What plan `number`, whose row this is, is on its machine: a line each for GPUs, groups, batch, layers, schedule."""
    sweep = prepared.sweep.of_plan(number)
    hardware = sweep.hardware.variants[int(plans_of(prepared, number).hardware[0])]
    return tuple(_told(row, _shape(prepared, number), hardware, row.get("sequence") or sweep.workload.sequence))


def _shape(prepared: Prepared, number: int) -> Shape | None:
    """Layers and groups of a plan; None of an impossible one."""
    sweep = prepared.sweep.of_plan(number)
    try:
        return shape_of(sweep.workload, sweep.hardware, plans_of(prepared, number))
    except SpecError:
        return None


def _has_batch(row: Mapping[str, Any]) -> bool:
    return bool(1 <= row["global_batch"] < 2**40 and 1 <= row["all_gpus"] < 2**40)


def _told(row: Mapping[str, Any], shape: Shape | None, hardware: Hardware, sequence: int | None) -> list[str]:
    """The plan in words, one line each."""
    gpus, node = row["all_gpus"], int(hardware.value("gpus_per_node"))
    nodes = f" in {-(-gpus // node):,} nodes of {node}" if gpus > node else ""
    sizes = [("tp", row["tp"]), ("cp", row.get("cp", 1)), ("pp", row["pp"]), ("dp", row["dp"])]
    factors = " x ".join(f"{name} {size}" for name, size in sizes if size > 1 or name in ("tp", "dp"))
    experts = f"; experts over {row['ep']} ranks (ep)" if row["ep"] > 1 else ""
    stack = f"; stack {row['stack']}" if "stack" in row else ""
    lines = [f"{gpus:,} {row['hardware']}{nodes}: {factors}{experts}{stack}"]
    if shape is not None:
        apart = [group for group in shape.groups if group.ranks > 1 and _counts(group, row)]
        inside = [f"{group.name.replace('_', ' ')} ({group.ranks} ranks)" for group in apart if group.nodes == 1]
        across = [
            f"{group.name.replace('_', ' ')} ({group.ranks} ranks on {group.nodes} nodes)" for group in apart if group.nodes > 1
        ]
        lines.append(
            "; ".join(
                [f"inside a node: {', '.join(inside)}"] * bool(inside) + [f"across nodes: {', '.join(across)}"] * bool(across)
            )
        )
    tokens = f" of {sequence:,} tokens" if sequence else ""
    lines.append(
        f"a step: {plural(row['global_batch'], 'sequence')}{tokens}; "
        f"a rank takes {plural(row['ga'], 'micro-batch')} of {row['micro_batch']}"
    )
    if shape is not None:
        lines.append(f"layers: {_layers(shape)}; layer_split {row['layer_split']}")
    hidden = [name for name in ("tp", "ep", "pp", "grad", "param") if row[f"overlap_{name}"]]
    lines.append(
        f"schedule {row['schedule']}{' (interleaved)' * (row['schedule'] == '1f1b' and row['vpp'] > 1)}, "
        f"checkpointing {row['checkpointing']}, overlapped: {', '.join(hidden) or 'nothing'}"
    )
    return [line for line in lines if line]


def _counts(group: Group, row: Mapping[str, Any]) -> bool:
    """Whether a group has its own traffic in this plan: tied weights are two stages', not a group of ranks to place."""
    return group.name != "EMBEDDING" and (group.name != "DP_EP" or row["ep"] > 1)


def _peak(row: Mapping[str, Any], hardware: Hardware, dtype: str) -> str:
    """Which peak an MFU is of; and what it is of the peak of the plan's own precision, where that is higher."""
    own = NARROW.get(str(row.get("precision", ""))[:3], "")
    peak = hardware.value(f"peak_flops_{own}") if own else 0.0
    beside = f", {row['tflops_per_gpu'] * 1e12 / peak:.1%} of that in {own}" if peak else ""
    return f"of the peak in {'fp16' if row.get('precision') == 'fp16' else dtype}{beside}"


def _layers(shape: Shape) -> str:
    """Layers by stage, equal ones together."""
    of_stage = [sum(stage) for stage in shape.layers]
    chunks = len(shape.layers[0])
    each = f" in {chunks} chunks" if chunks > 1 else ""
    if len(set(of_stage)) == 1:
        stages = len(of_stage)
        return f"{of_stage[0]} on each of {stages} stages{each}" if stages > 1 else f"{of_stage[0]} on one stage"
    return f"{', '.join(map(str, of_stage))} on {len(of_stage)} stages{each}"


def _to_measure(row: Mapping[str, Any]) -> list[str]:
    """What of the prediction rests least on measurements of this device, most seconds first."""
    step_s, doubts = row["step_time_s"], []
    share = row["measured_share"]
    compute_s = row["compute_forward_s"] + row["compute_backward_s"]
    if share is not None and (1 - share) * compute_s > _SMALL * step_s:
        text = f"kernels: {1 - share:.0%} of forward and backward, {(1 - share) * compute_s / step_s:.1%} of the step, are not"
        doubts.append(((1 - share) * compute_s, f"{text} by kernels measured on this device"))
    if row["launch_s"] > _SMALL * step_s:
        text = (
            f"launches: {row['launch_s'] / step_s:.1%} of the step rests on the stack's host time of a layer; a profile of one"
        )
        doubts.append((row["launch_s"], text))
    for part in (*GROUPS_OF, "pp_exposed_s"):
        if row[part] > _SMALL * step_s:
            name = "pipeline sends" if part.startswith("pp") else f"{part[:2].upper()} collectives"
            text = f"{name}: {row[part] / step_s:.1%} of the step is exposed; nccl-tests on your network (`sweep calibrate`)"
            doubts.append((row[part], text))
    peak, have = row["peak_memory_bytes"], row["device_memory_bytes"]
    if peak is not None and (have - peak) / have < TIGHT:
        text = f"memory: {short(have - peak, 'B')} of head-room; torch.cuda.max_memory_allocated after two steps"
        doubts.append((step_s, text))
    return [text for _, text in sorted(doubts, key=lambda each: -each[0])]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Two plans side by side: fields that differ, seconds by part (second - first), and why one wins, in words."""

    fields: dict[str, tuple[Any, Any]]
    parts: dict[str, float]
    memory: dict[str, float]
    verdict: str


def difference(first: Explanation, second: Explanation) -> Difference:
    """What tells two plans apart."""
    names = list(first.row)
    plan = [name for name in names[: names.index("status")] if name != "plan"]
    fields = {name: (first.row[name], second.row[name]) for name in plan if first.row[name] != second.row[name]}
    memory = {
        name: second.row[name] - first.row[name]
        for name in MEMORY
        if first.row[name] is not None and second.row[name] is not None
    }
    if not (first.runs and second.runs):
        return Difference(fields=fields, parts={}, memory=memory, verdict=_which_runs(first, second))
    parts = {name: second.row[name] - first.row[name] for name in ("step_time_s", *PARTS)}
    return Difference(fields=fields, parts=parts, memory=memory, verdict=_verdict(first, second))


def _which_runs(first: Explanation, second: Explanation) -> str:
    if not first.runs and not second.runs:
        return "neither of the two can run"
    runs, fails = (first, second) if first.runs else (second, first)
    return f"plan {runs.plan} runs, plan {fails.plan} does not: {fails.reason}"


def _verdict(first: Explanation, second: Explanation) -> str:
    """Which plan costs fewer GPU-seconds a sample, and by which parts."""
    cost = {each.plan: each.row["gpu_s_per_sample"] for each in (first, second)}
    if cost[first.plan] == cost[second.plan]:
        return "both cost the same"
    best, worse = (first, second) if cost[first.plan] < cost[second.plan] else (second, first)
    less = {
        name: worse.row[name] * worse.row["all_gpus"] / worse.row["global_batch"]
        - best.row[name] * best.row["all_gpus"] / best.row["global_batch"]
        for name in PARTS
    }
    of = cost[worse.plan]
    wins = sorted((name for name in PARTS if less[name] > 0), key=lambda name: -less[name])[:3]
    losses = sorted((name for name in PARTS if less[name] < 0), key=lambda name: less[name])[:2]
    told = ", ".join(f"{words(name)} {-less[name] / of:+.1%}" for name in (*wins, *losses) if abs(less[name]) > _TELLING * of)
    return f"plan {best.plan} takes {1 - cost[best.plan] / of:.1%} fewer GPU-seconds a sample: {told}"
