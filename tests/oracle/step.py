"""A whole training step of one plan, from the documents: docs/moving.md, docs/results.md, docs/architecture.md.

Everything is an explicit list: layers of a stage, ranks of a group, buckets of a chunk. Seconds of a single collective and send
come from the network that is passed in.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from sim_core import Hardware, Workload
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_REDUCE,
    DP,
    DP_EP,
    EMBEDDING,
    EP,
    GATHER_PARAMETERS,
    NO_COMM,
    ONCE_ON_FIRST_STAGE,
    REDUCE_GRADIENTS,
    TP,
)
from tests.oracle.groups import Grid, Placement, placement
from tests.oracle.pipeline import BACKWARD, FORWARD, Block, Pipeline

NONE, FILE, FULL, SELECTIVE, EVERY, BLOCK = range(6)
FORWARD_PHASE, INPUT_PHASE, WEIGHT_PHASE = range(3)

RULES = ((0, 0, 0), (1, 1, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0), (0, 1, 1), (0, 1, 0), (0, 1, 0), (1, 1, 0), (0, 1, 1))
"""docs/moving.md, row by row: x micro-batch, 1/tp, 1/ep."""
COMPUTE, PARAMETERS, EXPERT_PARAMETERS, ALL_PARAMETERS, EXPERT_LOAD = 1, 4, 5, 7, 8
PART = {TP: "tp", EP: "ep", DP: "dp", DP_EP: "dp", EMBEDDING: "dp"}
GATHERED_WIDTH = 2
DDP_BUCKET = 25 * 2**20
MEGATRON_BUCKET = (40e6, 1e6)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One plan, by the names of its columns."""

    tp: int
    pp: int
    vpp: int
    ep: int
    all_gpus: int
    micro_batch: int
    ga: int
    schedule: int
    layer_split: int
    checkpointing: int
    checkpoint_layers: int
    overlap_tp: int
    overlap_ep: int
    overlap_pp: int
    overlap_grad: int
    overlap_param: int
    bucket_bytes: int
    hardware: int
    layers: int
    straggler_stage: int
    gradient_precision: int
    straggler_factor: float
    device_speed: float
    virtual_layers: tuple[int, ...] = ()

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.all_gpus // (self.tp * self.pp)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Seconds of one collective (kind, bytes, ranks on each node) and one send (bytes, between nodes) on a machine."""

    gpus_per_node: int
    collective: Callable[[int, float, Placement], float]
    send: Callable[[float, bool], float]


@dataclass(frozen=True)
class Pass:
    """One piece of one layer, in seconds: compute, what is not hidden, and what belongs to which part."""

    forward: float
    backward: float
    again: float
    compute_forward: float
    compute_backward: float
    compute_again: float
    parts: dict[str, float]
    again_parts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Oracle:
    """One plan of one workload on one machine. `held[stage][chunk]`: numbers of the layers that it holds."""

    workload: Workload
    plan: Plan
    hardware: Hardware
    measured_on: Hardware | None
    network: Network
    held: list[list[range]]

    @cached_property
    def grid(self) -> Grid:
        """The ranks of the plan."""
        plan = self.plan
        return Grid(plan.tp, plan.pp, plan.ep, plan.dp, self.workload.arrays.shares.whole_experts)

    # moving and costs

    def moved(self, rule: int) -> float:
        """Factor of a rule that is not shared out by layers."""
        base, plan = self.workload.base, self.plan
        by_micro_batch, by_tp, by_ep = RULES[rule]
        factor = plan.micro_batch / base.micro_batch if by_micro_batch else 1.0
        load = self.workload.arrays.expert_load
        if rule == EXPERT_LOAD and len(load):
            factor *= float(load[min(plan.ep, len(load) - 1)])
        return factor / (plan.tp / base.tp if by_tp else 1) / (plan.ep / base.ep if by_ep else 1)

    def of_stage(self, rule: int, layers: int, end: bool) -> float:
        """Factor from the recorded rank to a stage of `layers` layers, which may be the first or the last.

        The recorded rank held 1/pp of the layers, and what the ends hold besides.
        """
        shares, ratio = self.workload.arrays.shares, self.plan.tp / self.workload.base.tp
        in_layers = layers * self.workload.base.pp / self.workload.layers
        if rule not in (PARAMETERS, EXPERT_PARAMETERS, ALL_PARAMETERS):
            return self.moved(rule)
        experts = self.moved(EXPERT_PARAMETERS) * in_layers * (ratio if shares.whole_experts else 1)
        if rule == EXPERT_PARAMETERS:
            return experts
        here = there = 1.0
        if shares.vocabulary:
            here, there = (math.ceil(shares.vocabulary / (128 * tp)) * tp for tp in (self.plan.tp, self.workload.base.tp))
        dense = (1 - shares.ends - shares.whole) * in_layers / ratio
        if end:
            dense += shares.ends * (here / self.plan.tp) / (there / self.workload.base.tp) + shares.whole
        return dense if rule == PARAMETERS else shares.experts * experts + (1 - shares.experts) * dense

    @cached_property
    def slower(self) -> float:
        """Compute time here over the recorded one."""
        peak = f"peak_flops_{self.workload.dtype}"
        scale = self.measured_on.value(peak) / self.hardware.value(peak) if self.measured_on else 1.0
        return scale / self.plan.device_speed

    @cached_property
    def placements(self) -> dict[int, set[Placement]]:
        """Where the groups of each kind sit, all of them."""
        grid, node = self.grid, self.network.gpus_per_node
        return {kind: {placement(ranks, node) for ranks in grid.groups(kind)} for kind in PART}

    def seconds(self, kind: int, group: int, size: float) -> float:
        """Seconds of a collective, until the slowest of the groups ends."""
        return max(self.network.collective(kind, size, where) for where in self.placements[group])

    # blocks

    @cached_property
    def passes(self) -> list[list[Pass]]:
        """The pieces of each unit."""
        units = self.workload.arrays.unit_layers.shape[0]
        of_unit: list[list[Pass]] = [[] for _ in range(units)]
        for k, unit in enumerate(self.workload.arrays.pieces.unit):
            of_unit[unit].append(self._piece(k))
        return of_unit

    def _piece(self, k: int) -> Pass:
        pieces, plan = self.workload.arrays.pieces, self.plan
        rules = self.workload.arrays.compute_rule
        rule = int(rules[k]) if len(rules) else COMPUTE
        forward, of_input, of_weights = (float(s) * self.slower * self.moved(rule) for s in pieces.compute_s[k])
        beside = (forward, of_weights, 0.0)
        again = 1.0
        if plan.checkpointing == FILE:
            again = float(pieces.rerun[k])
        elif plan.checkpointing == SELECTIVE:
            again = 1.0 if pieces.attention_core[k] else 0.0
        compute_again = again * forward
        if plan.checkpointing == FILE:
            compute_again = float(pieces.rerun_s[k]) * self.slower * self.moved(COMPUTE)
        parts: dict[str, float] = defaultdict(float)
        again_parts: dict[str, float] = defaultdict(float)
        stalled = [0.0, 0.0, 0.0]
        for phase in (FORWARD_PHASE, INPUT_PHASE, WEIGHT_PHASE):
            kind, group = int(pieces.comm_kind[k, phase]), int(pieces.comm_group[k, phase])
            if kind == NO_COMM:
                continue
            size = float(pieces.comm_bytes[k, phase]) * self.moved(int(pieces.comm_rule[k, phase]))
            total = self.seconds(kind, group, size)
            hides = {TP: plan.overlap_tp, EP: plan.overlap_ep}.get(group, 0)
            stalled[phase] = max(total - beside[phase], 0.0) if hides else total
            for sums, times in ((parts, 1.0), (again_parts, again if phase == FORWARD_PHASE else 0.0)):
                sums[PART[group] + "_total_s"] += times * total
                sums[PART[group] + "_exposed_s"] += times * stalled[phase]
        return Pass(
            forward=forward + stalled[FORWARD_PHASE],
            backward=of_input + of_weights + stalled[INPUT_PHASE] + stalled[WEIGHT_PHASE],
            again=compute_again + again * stalled[FORWARD_PHASE],
            compute_forward=forward,
            compute_backward=of_input + of_weights,
            compute_again=compute_again,
            parts=parts,
            again_parts=again_parts,
        )

    def unit_of(self, layer: int) -> int:
        """The unit of a layer; beyond the recorded ones all are alike."""
        arrays = self.workload.arrays
        if layer >= self.workload.layers:
            return int(arrays.layer_unit)
        until = arrays.unit_layers
        return next(u for u in range(until.shape[0]) if until[u, layer + 1] > until[u, layer])

    def units(self, stage: int, chunk: int) -> list[tuple[int, bool]]:
        """What a virtual stage runs forward, in order: units, and whether the backward runs them again."""
        plan, arrays = self.plan, self.workload.arrays
        again = {NONE: 0, BLOCK: plan.checkpoint_layers}.get(plan.checkpointing, plan.layers)
        found = [(self.unit_of(layer), k < again) for k, layer in enumerate(self.held[stage][chunk])]
        if arrays.first_unit >= 0 and (stage, chunk) == (0, 0):
            found.insert(0, (arrays.first_unit, plan.checkpointing == FILE))
        if arrays.last_unit >= 0 and (stage, chunk) == (plan.pp - 1, plan.vpp - 1):
            found.append((arrays.last_unit, plan.checkpointing == FILE))
        return found

    def slow(self, stage: int) -> float:
        """How much longer this stage's compute takes."""
        return self.plan.straggler_factor if stage == self.plan.straggler_stage else 1.0

    def durations(self, out: dict[str, float]) -> list[list[list[float]]]:
        """[way][stage][chunk] of a block; adds a micro-batch's parts of all stages to `out`."""
        plan = self.plan
        found = [[[0.0] * plan.vpp for _ in range(plan.pp)] for _ in (FORWARD, BACKWARD)]
        for stage in range(plan.pp):
            more = self.slow(stage) - 1
            for chunk in range(plan.vpp):
                for unit, again in self.units(stage, chunk):
                    for piece in self.passes[unit]:
                        found[FORWARD][stage][chunk] += piece.forward + more * piece.compute_forward
                        found[BACKWARD][stage][chunk] += piece.backward + more * piece.compute_backward
                        out["compute_forward_s"] += (1 + more) * piece.compute_forward
                        out["compute_backward_s"] += (1 + more) * piece.compute_backward
                        sums = [piece.parts]
                        if again:
                            found[BACKWARD][stage][chunk] += piece.again + more * piece.compute_again
                            out["compute_recompute_s"] += (1 + more) * piece.compute_again
                            sums.append(piece.again_parts)
                        for parts in sums:
                            for name, value in parts.items():
                                out[name] += value
        return found

    def sends(self) -> list[list[float]]:
        """[way][stage], seconds of a message into a stage: that of the slowest pair of ranks."""
        plan, node, arrays = self.plan, self.network.gpus_per_node, self.workload.arrays
        into = [[0.0] * plan.pp for _ in (FORWARD, BACKWARD)]
        if plan.pp > 1:
            size = arrays.p2p_bytes * self.moved(arrays.p2p_rule)
            for stage in range(plan.pp):
                pairs = {sender // node != receiver // node for sender, receiver in self.grid.sends(stage)}
                cost = max(self.network.send(size, between) for between in pairs)
                into[FORWARD][(stage + 1) % plan.pp] = cost
                into[BACKWARD][stage] = cost
        return into

    # gradients and parameters

    @cached_property
    def gradient_width(self) -> float:
        """Bytes of an element on the wire."""
        return (self.workload.arrays.gradient_width, 4.0, 2.0)[self.plan.gradient_precision]

    def buckets(self, role: int, stage: int, chunk: int) -> list[list[float]]:
        """Seconds of the buckets of each message of a role, for a chunk: equal buckets, none above the limit."""
        step, layers = self.workload.arrays.step, len(self.held[stage][chunk])
        end = (stage, chunk) in ((0, 0), (self.plan.pp - 1, self.plan.vpp - 1))
        limit = float(self.plan.bucket_bytes)
        if limit == 0:
            limit = self.gradient_width * max(MEGATRON_BUCKET[0], MEGATRON_BUCKET[1] * self.plan.dp)
        if role == GATHER_PARAMETERS:
            limit *= GATHERED_WIDTH / self.gradient_width
        found = []
        for k in range(len(step.role)):
            if step.role[k] == role:
                size = float(step.comm_bytes[k]) * self.of_stage(int(step.comm_rule[k]), layers, end)
                if role == REDUCE_GRADIENTS:
                    size *= self.gradient_width / self.workload.arrays.gradient_width
                count = max(math.ceil(size / limit), 1)
                found.append([self.seconds(int(step.comm_kind[k]), int(step.comm_group[k]), size / count)] * count)
        return found

    def gathers(self, forward: list[list[float]], out: dict[str, float]) -> tuple[list[list[tuple[float, float]]], list[float]]:
        """Gates of the first forwards, and each stage's seconds after the optimizer.

        A chunk's forward runs in as many parts as its kind of parameters with the most buckets has; the buckets of both kinds
        arrive in step, from the first of each to the last.
        """
        gates, after = [], []
        for stage in range(self.plan.pp):
            begun, row = 0.0, []
            for chunk in range(self.plan.vpp):
                kinds = [kind for kind in self.buckets(GATHER_PARAMETERS, stage, chunk) if kind[0] > 0]
                whole, gate = sum(map(sum, kinds)), (0.0, 0.0)
                if self.plan.overlap_param and kinds:
                    first, parts = sum(kind[0] for kind in kinds), max(map(len, kinds))
                    arrivals = [begun + first + (whole - first) * k / max(parts - 1, 1) for k in range(parts)]
                    done = 0.0
                    for arrival in arrivals:
                        done = max(done, arrival) + forward[stage][chunk] / parts
                    gate = (arrivals[0], done)
                row.append(gate)
                begun += whole
            gates.append(row)
            after.append(0.0 if self.plan.overlap_param else begun)
            out["dp_total_s"] += begun
            out["dp_exposed_s"] += after[-1]
        return gates, after

    def chunk_gradients(self, stage: int, chunk: int, begin: float, duration: float) -> list[tuple[float, float]]:
        """(ready, seconds) of each bucket of a chunk whose last backward begins at `begin`."""
        if self.workload.arrays.layered_gradients:
            return self._as_they_get_ready(stage, chunk, begin, duration)
        return [
            (begin + duration * (k + 1) / len(kind), cost)
            for kind in self.buckets(REDUCE_GRADIENTS, stage, chunk)
            for k, cost in enumerate(kind)
        ]

    def _as_they_get_ready(self, stage: int, chunk: int, begin: float, duration: float) -> list[tuple[float, float]]:
        """A bucket is sent once it holds the limit; recompute and a straggler stretch the backward evenly."""
        arrays = self.workload.arrays
        limit = self.plan.bucket_bytes or DDP_BUCKET
        scale = self.moved(PARAMETERS) * self.gradient_width / arrays.gradient_width
        of_unit = [[k for k, unit in enumerate(arrays.pieces.unit) if unit == u] for u in range(len(self.passes))]
        backward = [
            (piece.backward, float(arrays.pieces.gradient_bytes[k]) * scale)
            for unit, _ in reversed(self.units(stage, chunk))
            for k, piece in reversed(list(zip(of_unit[unit], self.passes[unit], strict=True)))
        ]
        plain = sum(seconds for seconds, _ in backward)
        found: list[tuple[float, float]] = []
        now, filled = begin, 0.0
        for seconds, size in backward:
            now += seconds * duration / plain if plain else 0.0
            filled += size
            if filled >= limit:
                found.append((now, self.seconds(ALL_REDUCE, DP, filled)))
                filled = 0.0
        return [*found, (now, self.seconds(ALL_REDUCE, DP, filled))] if filled else found

    def reductions(
        self, lines: Pipeline, ends: list[float], block_end: dict[Block, float], out: dict[str, float]
    ) -> list[float]:
        """When each stage's gradients are reduced: one stream a stage, beside the backward or after it."""
        found = []
        for stage in range(self.plan.pp):
            stream = 0.0 if self.plan.overlap_grad else ends[stage]
            for chunk in reversed(range(self.plan.vpp)):
                duration = lines.duration[BACKWARD][stage][chunk]
                begin = block_end[Block(stage, BACKWARD, chunk, self.plan.ga - 1)] - duration
                for ready, cost in sorted(self.chunk_gradients(stage, chunk, begin, duration)):
                    stream = (max(stream, ready) if self.plan.overlap_grad else stream) + cost
                    out["dp_total_s"] += cost
            found.append(max(stream, ends[stage]))
            out["dp_exposed_s"] += found[-1] - ends[stage]
        return found

    def once_a_step(self, stage: int, out: dict[str, float]) -> float:
        """Seconds of a stage after the gradients."""
        step = self.workload.arrays.step
        layers = sum(map(len, self.held[stage]))
        sum_s = 0.0
        for k in range(len(step.role)):
            if step.role[k] != AFTER_GRADIENTS and (step.role[k] != ONCE_ON_FIRST_STAGE or stage > 0):
                continue
            end = stage in (0, self.plan.pp - 1)
            factor = self.of_stage(int(step.compute_rule[k]), layers, end)
            compute = float(step.compute_s[k]) * self.slower * factor * self.slow(stage)
            kind, group = int(step.comm_kind[k]), int(step.comm_group[k])
            size = float(step.comm_bytes[k]) * self.of_stage(int(step.comm_rule[k]), layers, end)
            takes_part = kind != NO_COMM and (group != EMBEDDING or end)
            seconds = self.seconds(kind, group, size) if takes_part else 0.0
            out["optimizer_s"] += compute
            out[PART[group] + "_total_s"] += seconds
            out[PART[group] + "_exposed_s"] += seconds
            sum_s += compute + seconds
        return sum_s

    # the step

    def metrics(self) -> dict[str, float]:
        """The columns of a result: means over the stages, in seconds."""
        plan = self.plan
        once: dict[str, float] = defaultdict(float)
        each: dict[str, float] = defaultdict(float)
        duration = self.durations(each)
        gates, after = self.gathers(duration[FORWARD], once)
        lines = Pipeline(
            schedule=plan.schedule,
            pp=plan.pp,
            vpp=plan.vpp,
            ga=plan.ga,
            duration=duration,
            into=self.sends(),
            gate=gates,
            background=bool(plan.overlap_pp),
        )
        stages, block_end = lines.run()
        reduced = self.reductions(lines, [stage.end for stage in stages], block_end, once)
        last = [after[stage] + self.once_a_step(stage, once) for stage in range(plan.pp)]
        for stage, spent in enumerate(stages):
            once["pp_total_s"] += spent.in_messages
            once["pp_exposed_s"] += spent.held_up_by_messages
            once["dp_exposed_s"] += spent.gated
            once["bubble_s"] += spent.idle + max(reduced) - reduced[stage] + max(last) - last[stage]
        names: tuple[str, ...] = ("compute_forward_s", "compute_backward_s", "compute_recompute_s", "bubble_s", "optimizer_s")
        names += tuple(f"{part}_{what}_s" for part in ("tp", "ep", "cp", "dp", "pp") for what in ("total", "exposed"))
        found = {name: (plan.ga * each[name] + once[name]) / plan.pp for name in names}
        return {**found, "step_time_s": max(reduced) + max(last)}

    def state_bytes(self) -> list[float]:
        """Bytes of weights, gradients and optimizer on a rank of each stage; NaN where the gradients are not known."""
        work, arrays = self.workload, self.workload.arrays
        step = arrays.step
        told = work.gradients_known[0] and (work.gradients_known[1] or not work.has_experts)
        if not told or not (arrays.layered_gradients or REDUCE_GRADIENTS in step.role):
            return [math.nan]
        sharded = GATHER_PARAMETERS in step.role
        replicated, shared_out = work.state_width
        return [
            sum(
                count * (replicated + shared_out / (copies if sharded else 1))
                for count, copies in self._parameters(sum(map(len, chunks)), stage in (0, self.plan.pp - 1))
            )
            for stage, chunks in enumerate(self.held)
        ]

    def _parameters(self, layers: int, end: bool) -> list[tuple[float, float]]:
        """(parameters on a rank that holds that many layers, ranks that hold the same ones), dense and of experts.

        Gradients that stand with the pieces before and after the layers count on every stage. A message with both kinds of
        parameters repeats those of experts, which have their own.
        """
        plan, arrays, step = self.plan, self.workload.arrays, self.workload.arrays.step
        found = []
        around = plan.dp * (plan.tp if arrays.shares.whole_experts else 1)
        for rule, copies in ((PARAMETERS, float(plan.dp)), (EXPERT_PARAMETERS, around / plan.ep)):
            size = sum(
                float(step.comm_bytes[k]) * self.of_stage(rule, layers, end)
                for k in range(len(step.role))
                if step.role[k] == REDUCE_GRADIENTS and step.comm_rule[k] == rule
            )
            if rule == PARAMETERS:
                size += sum(
                    float(step.comm_bytes[k]) * (1 - arrays.shares.experts) * self.of_stage(rule, layers, end)
                    for k in range(len(step.role))
                    if step.role[k] == REDUCE_GRADIENTS and step.comm_rule[k] == ALL_PARAMETERS
                )
            if rule == PARAMETERS:
                units = [self.unit_of(layer) for layer in range(self.workload.layers)]
                ends = [unit for unit in (arrays.first_unit, arrays.last_unit) if unit >= 0]
                for unit, waiting in zip(arrays.pieces.unit, arrays.pieces.gradient_bytes, strict=True):
                    times = units.count(unit) * layers / self.workload.layers + ends.count(unit)
                    size += float(waiting) * times * self.moved(rule)
            found.append((size / arrays.gradient_width, copies))
        return found
