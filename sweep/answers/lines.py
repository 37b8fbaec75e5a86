"""A plan in words: what it is on its machine, which peak its MFU is of, what of its prediction to measure first."""

from collections.abc import Mapping
from typing import Any, Final

from sim_core import Group, Hardware, Shape, plural, short
from sweep.answers.bottleneck import GROUPS_OF

TIGHT: Final = 0.1
"""Part of a device's memory below which head-room is worth a measurement."""
NARROW: Final = {"fp8": "fp8", "mxf": "fp8", "nvf": "fp4"}
"""The peak of a device by the first letters of a precision below 16 bits."""
_SMALL: Final = 0.005


def plan_lines(row: Mapping[str, Any], shape: Shape | None, hardware: Hardware, sequence: int | None) -> list[str]:
    """What a plan is on its machine: a line each for GPUs, groups, batch, layers, schedule."""
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


def peak_of(row: Mapping[str, Any], hardware: Hardware, dtype: str) -> str:
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


def to_measure(row: Mapping[str, Any]) -> list[str]:
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
