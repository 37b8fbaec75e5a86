"""One plan of a result and what is known of it, each fact when it is first asked for."""

from functools import cached_property

from sim_core import EXPLANATIONS, Shape, SpecError, plural, shape_of, short
from sweep.answers.among import Within, nearest_running, within
from sweep.answers.bottleneck import GROUPS_OF, Bottleneck, Waiting, bottleneck, waiting
from sweep.answers.neighbours import neighbours
from sweep.answers.variation import PlanOfResult, Variation
from sweep.evaluation.one_plan import row_of
from sweep.reopening import Reopened

TIGHT = 0.1
"""Part of a device's memory below which head-room is worth a measurement."""
NARROW = {"fp8": "fp8", "mxf": "fp8", "nvf": "fp4"}
"""The peak of a device by the first letters of a precision below 16 bits."""
_SMALL = 0.005


class Explanation(PlanOfResult):
    """A plan of a result, explained. What is simulated for a fact raises SimError."""

    @property
    def reason(self) -> str:
        """Why it cannot run; empty if it can."""
        reason = self.row["reason"]
        return f"{reason}: {EXPLANATIONS[reason]}" if reason else ""

    @cached_property
    def shape(self) -> Shape | None:
        """Layers and groups of a plan that can run, or lacks only memory; None of another."""
        try:
            return shape_of(self.sweep.workload, self.sweep.hardware, self.plans)
        except SpecError:
            return None

    @cached_property
    def neighbours(self) -> list[Variation]:
        """The plan under each change of one axis; none of a plan without a batch that a machine could take."""
        return neighbours(self) if all(1 <= self.row[name] < 2**40 for name in ("global_batch", "all_gpus")) else []

    @cached_property
    def bottleneck(self) -> Bottleneck | None:
        """What holds it back, if it runs."""
        return bottleneck(self.row, self.shape, self.neighbours) if self.runs and self.shape is not None else None

    @cached_property
    def waiting(self) -> Waiting | None:
        """What its bubble is made of, where that is known."""
        return waiting(self) if self.runs else None

    @cached_property
    def nearest(self) -> Variation | None:
        """Of a plan that cannot run, the plan of the result nearest to it that can."""
        return None if self.runs else nearest_running(self)

    @cached_property
    def within(self) -> Within | None:
        """Where it stands among the plans of the result, if it runs and errors are known."""
        return within(self) if self.runs else None

    @cached_property
    def told(self) -> list[str]:
        """What it is on its machine: a line each for GPUs, groups, batch, layers, schedule."""
        row, shape = self.row, self.shape
        gpus, node = row["all_gpus"], int(self.hardware.value("gpus_per_node"))
        nodes = f" in {-(-gpus // node):,} nodes of {node}" if gpus > node else ""
        sizes = {"tp": row["tp"], "cp": row.get("cp", 1), "pp": row["pp"], "dp": row["dp"]}
        factors = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name in ("tp", "dp"))
        experts = f"; experts over {row['ep']} ranks (ep)" if row["ep"] > 1 else ""
        stack = f"; stack {row['stack']}" if "stack" in row else ""
        sequence = row.get("sequence") or self.sweep.workload.sequence
        tokens = f" of {sequence:,} tokens" if sequence else ""
        micro_batches = f"a rank takes {plural(row['ga'], 'micro-batch')} of {row['micro_batch']}"
        interleaved = " (interleaved)" * (row["schedule"] == "1f1b" and row["vpp"] > 1)
        hidden = [name for name in ("tp", "ep", "pp", "grad", "param") if row[f"overlap_{name}"]]
        lines = [
            f"{gpus:,} {row['hardware']}{nodes}: {factors}{experts}{stack}",
            "" if shape is None else _groups_text(shape, experts=row["ep"] > 1),
            f"a step: {plural(row['global_batch'], 'sequence')}{tokens}; {micro_batches}",
            "" if shape is None else f"layers: {_layers_text(shape)}; layer_split {row['layer_split']}",
            f"schedule {row['schedule']}{interleaved}, checkpointing {row['checkpointing']}, "
            f"overlapped: {', '.join(hidden) or 'nothing'}",
        ]
        return [line for line in lines if line]

    @property
    def peak(self) -> str:
        """Which peak its MFU is of, and what it is of that of its own precision, where it is higher; empty without an MFU."""
        if not self.runs or self.row["mfu"] is None:
            return ""
        own, row = NARROW.get(str(self.row.get("precision", ""))[:3], ""), self.row
        peak = self.hardware.value(f"peak_flops_{own}") if own else 0.0
        beside = f", {row['tflops_per_gpu'] * 1e12 / peak:.1%} of that in {own}" if peak else ""
        return f"of the peak in {'fp16' if row.get('precision') == 'fp16' else self.sweep.workload.dtype}{beside}"

    @property
    def first(self) -> list[str]:
        """What of the prediction rests least on measurements of this device, most seconds first."""
        if not self.runs:
            return []
        row, doubts = self.row, []
        step_s, share, launch_s = row["step_time_s"], row["measured_share"], row["launch_s"]
        if share is not None:
            rest_s = (1 - share) * (row["compute_forward_s"] + row["compute_backward_s"])
            text = f"kernels: {1 - share:.0%} of forward and backward, {rest_s / step_s:.1%} of the step, are not"
            doubts.append((rest_s, f"{text} by kernels measured on this device"))
        text = f"launches: {launch_s / step_s:.1%} of the step rests on the stack's host times; a profile of a layer"
        doubts.append((launch_s, text))
        for part in (*GROUPS_OF, "pp_exposed_s"):
            name = "pipeline sends" if part.startswith("pp") else f"{part[:2].upper()} collectives"
            text = f"{name}: {row[part] / step_s:.1%} of the step is exposed; nccl-tests on your network (`sweep calibrate`)"
            doubts.append((row[part], text))
        peak, have = row["peak_memory_bytes"], row["device_memory_bytes"]
        if peak is not None and (have - peak) / have < TIGHT:
            text = f"memory: {short(have - peak, 'B')} of head-room; torch.cuda.max_memory_allocated after two steps"
            doubts.append((step_s, text))
        return [text for seconds, text in sorted(doubts, key=lambda each: -each[0]) if seconds > _SMALL * step_s]


def explain(opened: Reopened, number: int) -> Explanation:
    """Plan `number` of a result, to be explained. Raises SimError."""
    return Explanation(opened=opened, plan=number, row=row_of(opened.prepared, number))


def _groups_text(shape: Shape, *, experts: bool) -> str:
    """The groups that have their own traffic in a plan, inside a node and across: tied weights are two stages', no group."""
    apart = [each for each in shape.groups if each.ranks > 1 and each.name != "EMBEDDING"]
    apart = [each for each in apart if experts or each.name != "DP_EP"]
    inside = [f"{each.name.replace('_', ' ')} ({each.ranks} ranks)" for each in apart if each.nodes == 1]
    across = [f"{each.name.replace('_', ' ')} ({each.ranks} ranks on {each.nodes} nodes)" for each in apart if each.nodes > 1]
    places = {"inside a node": inside, "across nodes": across}
    return "; ".join(f"{place}: {', '.join(groups)}" for place, groups in places.items() if groups)


def _layers_text(shape: Shape) -> str:
    """Layers by stage, equal ones together."""
    of_stage, chunks = [sum(stage) for stage in shape.layers], len(shape.layers[0])
    stages, each = len(of_stage), f" in {chunks} chunks" if chunks > 1 else ""
    if len(set(of_stage)) > 1:
        return f"{', '.join(map(str, of_stage))} on {stages} stages{each}"
    return f"{of_stage[0]} on each of {stages} stages{each}" if stages > 1 else f"{of_stage[0]} on one stage"
