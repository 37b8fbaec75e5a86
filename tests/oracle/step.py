"""A whole training step of one plan, from the documents: docs/moving.md, docs/results.md, docs/architecture.md.

Everything is an explicit list: layers of a stage, ranks of a group, buckets of a chunk. Seconds of a single collective and send
come from the network that is passed in.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from sim_core import Hardware, Workload
from sim_core.planning.imbalance import spread_load
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
    SEND_RECEIVE,
    TP,
)
from tests.oracle.groups import Grid, Place, placement, side_by_side
from tests.oracle.nics import Shared, beside_gathers, beside_gradients, bytes_out, owner, share
from tests.oracle.pipeline import BACKWARD, FORWARD, INPUT, WEIGHTS, Block, Pipeline, Stage
from tests.oracle.split import DUALPIPE, DUALPIPEV, IN_A_V, ZB_H1, SplitPipeline
from tests.oracle.streams import Busy, Nics

NONE, FILE, FULL, SELECTIVE, EVERY, BLOCK = range(6)
FORWARD_PHASE, INPUT_PHASE, WEIGHT_PHASE = range(3)

RULES = (
    *((0, 0, 0, 0, 0), (1, 1, 0, 1, 0), (1, 0, 0, 1, 0), (1, 1, 0, 1, 0), (0, 1, 0, 0, 0), (0, 1, 1, 0, 1)),
    *((0, 1, 0, 0, 0), (0, 1, 0, 0, 0), (1, 1, 0, 1, 0), (0, 1, 1, 0, 1), (0, -1, -1, 0, 1)),
)
"""docs/moving.md, row by row: x micro-batch, 1/tp (-1: x tp), 1/ep, x sequence, x experts."""
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
    microbatch_group_size: int
    layer_split: int
    checkpointing: int
    checkpoint_layers: int
    overlap_tp: int
    overlap_ep: int
    overlap_pp: int
    overlap_grad: int
    overlap_param: int
    post_validation: int
    bucket_bytes: int
    hardware: int
    layers: int
    straggler_stage: int
    gradient_precision: int
    straggler_factor: float
    device_speed: float
    expert_imbalance: float = 0.0
    sequence: int = 0
    experts: int = 0
    virtual_layers: tuple[int, ...] = ()

    @property
    def dp(self) -> int:
        """Replicas."""
        return self.all_gpus // (self.tp * self.pp)

    @property
    def splits(self) -> bool:
        """Whether weight gradients run apart."""
        return self.schedule >= ZB_H1

    @property
    def copies(self) -> int:
        """How often the job holds the model, besides its replicas."""
        return 2 if self.schedule == DUALPIPE else 1

    @property
    def chunks(self) -> int:
        """Virtual stages on a stage."""
        return self.vpp * self.copies

    def in_model(self, stage: int, chunk: int) -> int:
        """Which virtual stage of the model a chunk is."""
        if chunk % 2 and self.schedule in (DUALPIPE, *IN_A_V):
            stage = self.pp - 1 - stage
        return stage if self.schedule == DUALPIPE else chunk * self.pp + stage

    def ends(self, stage: int) -> int:
        """How many of the embedding and the loss a stage holds."""
        return sum(self.ends_of(stage, chunk) for chunk in range(self.chunks))

    def ends_of(self, stage: int, chunk: int) -> int:
        """The same of a chunk."""
        at = self.in_model(stage, chunk)
        return (at == 0) + (at == self.pp * self.vpp - 1)


@dataclass(frozen=True, kw_only=True)
class Network:
    """Seconds of one collective (kind, bytes, where) and one send (bytes, between nodes) on a machine; and bytes/s
    of each GPU while so many of its node send. `shared`: messages that are sent at the same time share NICs."""

    gpus_per_node: int
    shared: bool
    nic: Callable[[int], float]
    collective: Callable[[int, float, Place], float]
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
    weights: float
    compute_weights: float
    experts: tuple[float, float]
    busy: tuple[Busy, Busy, Busy]
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
        by_micro_batch, by_tp, by_ep, by_sequence, by_experts = RULES[rule]
        factor = plan.micro_batch / base.micro_batch if by_micro_batch else 1.0
        arrays = self.workload.arrays
        if by_sequence and plan.sequence:
            factor *= plan.sequence / arrays.sequence
        if by_experts and plan.experts:
            factor *= plan.experts / arrays.experts
        load = arrays.expert_load
        if rule == EXPERT_LOAD and len(load):
            known = plan.ep < len(load) and not plan.expert_imbalance
            factor *= float(load[plan.ep]) if known else self.fullest / arrays.recorded_load
        return factor / (plan.tp / base.tp) ** by_tp / (plan.ep / base.ep) ** by_ep

    @property
    def fullest(self) -> float:
        """Tokens of the fullest rank over the mean: as the plan says; with an exponent where each rank has one expert. What is
        drawn for more ranks than a recording tells of has a test of its own."""
        plan, arrays = self.plan, self.workload.arrays
        if not plan.expert_imbalance:
            most = len(arrays.expert_load) - 1
            return spread_load(float(arrays.recorded_load * arrays.expert_load[most]), most, plan.ep)
        if plan.expert_imbalance > 0:
            return min(plan.expert_imbalance, plan.ep)
        experts = plan.experts or self.workload.experts or 1
        if plan.ep == 1:
            return 1.0
        shares = [math.pow(k + 1, plan.expert_imbalance) for k in range(experts)]
        return plan.ep * shares[0] / sum(shares)

    def of_stage(self, rule: int, held: Sequence[int], ends: int) -> float:
        """Factor from the recorded rank to a stage that holds these layers, and so many of the model's two ends.

        The recorded rank held 1/pp of the layers, and what the ends hold besides; all layers without experts, if there are any.
        """
        shares, ratio = self.workload.arrays.shares, self.plan.tp / self.workload.base.tp
        layers, without = len(held), self.workload.arrays.dense_layers
        in_layers = layers * self.workload.base.pp / self.workload.layers
        recorded = self.workload.layers / self.workload.base.pp - without
        with_experts = sum(layer >= without for layer in held) / recorded
        if rule not in (PARAMETERS, EXPERT_PARAMETERS, ALL_PARAMETERS):
            return self.moved(rule)
        experts = self.moved(EXPERT_PARAMETERS) * (1 - shares.shared) + shares.shared / ratio
        experts *= with_experts * (ratio if shares.whole_experts else 1)
        if rule == EXPERT_PARAMETERS:
            return experts
        here = there = 1.0
        if shares.vocabulary:
            here, there = (math.ceil(shares.vocabulary / (128 * tp)) * tp for tp in (self.plan.tp, self.workload.base.tp))
        dense = ((1 - shares.ends - shares.head - shares.whole - shares.replicated) / ratio + shares.replicated) * in_layers
        if ends:
            at_ends = shares.ends + (shares.head if ends == 2 else 0)  # embedding, or head; with both, what they do not share
            dense += at_ends * (here / self.plan.tp) / (there / self.workload.base.tp) + shares.whole
        return dense if rule == PARAMETERS else shares.experts * experts + (1 - shares.experts) * dense

    @cached_property
    def slower(self) -> float:
        """Compute time here over the recorded one."""
        peak = f"peak_flops_{self.workload.dtype}"
        scale = self.measured_on.value(peak) / self.hardware.value(peak) if self.measured_on else 1.0
        return scale / self.plan.device_speed

    @cached_property
    def placements(self) -> dict[int, set[Place]]:
        """Where the groups of each kind sit, all of them."""
        grid, node = self.grid, self.network.gpus_per_node
        return {
            kind: {(placement(ranks, node), side_by_side(grid, kind, ranks, node)) for ranks in grid.groups(kind)}
            for kind in PART
        }

    def seconds(self, kind: int, group: int, size: float) -> float:
        """Seconds of a collective, until the slowest of the groups ends."""
        return max(self.network.collective(kind, size, where) for where in self.placements[group])

    def nic_seconds(self, kind: int, group: int, size: float) -> float:
        """Seconds of NICs for a collective, of the group that needs them longest."""
        if not self.network.shared:
            return 0.0
        found = []
        for where, beside in self.placements[group]:
            node = self.network.gpus_per_node
            sending = node if kind == SEND_RECEIVE else min(where[-1] * beside, node)
            found.append(bytes_out(kind, size, where) / self.network.nic(sending))
        return min(max(found), self.seconds(kind, group, size))

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
            compute_again = float(pieces.rerun_s[k]) * self.slower * self.moved(rule)
        parts: dict[str, float] = defaultdict(float)
        again_parts: dict[str, float] = defaultdict(float)
        stalled = [0.0, 0.0, 0.0]
        experts = [0.0, 0.0]
        busy = Busy(), Busy(), Busy()
        if plan.splits and plan.schedule < DUALPIPE:
            beside = (forward, 0.0, 0.0)  # the weight gradient runs at another time
        for phase in (FORWARD_PHASE, INPUT_PHASE, WEIGHT_PHASE):
            kind, group = int(pieces.comm_kind[k, phase]), int(pieces.comm_group[k, phase])
            if kind == NO_COMM:
                continue
            size = float(pieces.comm_bytes[k, phase]) * self.moved(int(pieces.comm_rule[k, phase]))
            total = self.seconds(kind, group, size)
            hides = {TP: plan.overlap_tp, EP: plan.overlap_ep}.get(group, 0)
            stalled[phase] = max(total - beside[phase], 0.0) if hides else total
            of_nics = self.nic_seconds(kind, group, size)
            sent = Busy(of_nics, of_nics * stalled[phase] / total if total else 0.0)
            busy[int(phase != FORWARD_PHASE)].add(sent)
            busy[2].add(sent, again if phase == FORWARD_PHASE else 0.0)
            if group == EP:
                experts[int(phase != FORWARD_PHASE)] += stalled[phase]
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
            weights=of_weights + stalled[WEIGHT_PHASE],
            compute_weights=of_weights,
            experts=(experts[0], experts[1]),
            busy=busy,
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
        virtual = plan.in_model(stage, chunk)
        if arrays.first_unit >= 0 and virtual == 0:
            found.insert(0, (arrays.first_unit, plan.checkpointing == FILE))
        if arrays.last_unit >= 0 and virtual == plan.pp * plan.vpp - 1:
            found.append((arrays.last_unit, plan.checkpointing == FILE))
        return found

    def slow(self, stage: int) -> float:
        """How much longer this stage's compute takes."""
        return self.plan.straggler_factor if stage == self.plan.straggler_stage else 1.0

    def durations(self, out: dict[str, float]) -> list[list[list[float]]]:
        """[way][stage][chunk] of a block; adds a micro-batch's parts of all stages to `out`."""
        plan = self.plan
        found = [[[0.0] * plan.chunks for _ in range(plan.pp)] for _ in (FORWARD, BACKWARD)]
        whole, out = out, defaultdict(float)
        for stage in range(plan.pp):
            more = self.slow(stage) - 1
            for chunk in range(plan.chunks):
                waits = self.workload.arrays.framework.micro_batch_host_s * (plan.pp > 1)
                found[FORWARD][stage][chunk] += waits
                out["launch_s"] += waits
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
        for name, value in out.items():
            whole[name] += value / plan.copies
        return found

    def gradients_of(self, stage: int, chunk: int) -> list[list[tuple[float, float]]]:
        """(seconds, of them NICs) of each bucket; those of operators as if they were equally large."""
        arrays = self.workload.arrays
        if not arrays.layered_gradients:
            return self.buckets_and_nics(REDUCE_GRADIENTS, stage, chunk)
        scale = self.moved(PARAMETERS) * self.gradient_width / arrays.gradient_width
        held = sum(
            float(arrays.pieces.gradient_bytes[k]) * scale
            for unit, _ in self.units(stage, chunk)
            for k in np.flatnonzero(arrays.pieces.unit == unit)
        )
        count = max(math.ceil(held / (self.plan.bucket_bytes or DDP_BUCKET)), 1)
        sent = self.seconds(ALL_REDUCE, DP, held / count), self.nic_seconds(ALL_REDUCE, DP, held / count)
        return [[sent] * count]

    def split(self, duration: list[list[list[float]]]) -> tuple[list[list[float]], list[list[float]]]:
        """[stage][chunk]: weight gradients of layers; and a forward beside a backward of the other chunk, where all-to-alls of
        experts hide behind the other's compute."""
        plan = self.plan
        weights = [[0.0] * plan.chunks for _ in range(plan.pp)]
        experts = [[[0.0] * plan.chunks for _ in range(plan.pp)] for _ in (FORWARD, BACKWARD)]
        for stage in range(plan.pp):
            for chunk in range(plan.chunks):
                for layer in self.held[stage][chunk]:
                    for piece in self.passes[self.unit_of(layer)]:
                        weights[stage][chunk] += piece.weights + (self.slow(stage) - 1) * piece.compute_weights
                for unit, _ in self.units(stage, chunk):
                    for piece in self.passes[unit]:
                        for way in (FORWARD, BACKWARD):
                            experts[way][stage][chunk] += piece.experts[way]
        pair = [[0.0] * plan.chunks for _ in range(plan.pp)]
        for stage in range(plan.pp if plan.schedule in (DUALPIPE, DUALPIPEV) else 0):
            for chunk in range(plan.chunks):
                one, other = duration[FORWARD][stage][chunk], duration[BACKWARD][stage][1 - chunk]
                sent = experts[FORWARD][stage][chunk] + experts[BACKWARD][stage][1 - chunk]
                pair[stage][chunk] = max(one + other - sent, sent, one, other)
        return weights, pair

    def sends(self, *, of_nics: bool = False) -> list[list[float]]:
        """[way][stage], seconds of a message into a stage, or of NICs for it: that of the slowest pair of ranks."""
        plan, node, arrays = self.plan, self.network.gpus_per_node, self.workload.arrays
        into = [[0.0] * plan.pp for _ in (FORWARD, BACKWARD)]
        if plan.pp > 1:
            size = arrays.p2p_bytes * self.moved(arrays.p2p_rule)
            for stage in range(plan.pp):
                pairs = {sender // node != receiver // node for sender, receiver in self.grid.sends(stage)}
                cost = max(self.network.send(size, between) for between in pairs)
                if of_nics:
                    cost = max(size / self.network.nic(node) if between else 0.0 for between in pairs)
                into[FORWARD][(stage + 1) % plan.pp] = cost
                into[BACKWARD][stage] = cost
        return into

    # gradients and parameters

    @cached_property
    def gradient_width(self) -> float:
        """Bytes of an element on the wire."""
        return (self.workload.arrays.gradient_width, 4.0, 2.0)[self.plan.gradient_precision]

    def buckets(self, role: int, stage: int, chunk: int) -> list[list[float]]:
        """Seconds of the buckets of each message of a role, for a chunk."""
        return [[seconds for seconds, _ in kind] for kind in self.buckets_and_nics(role, stage, chunk)]

    def buckets_and_nics(self, role: int, stage: int, chunk: int) -> list[list[tuple[float, float]]]:
        """(seconds, of them NICs) of the buckets of each message of a role: equal buckets, none above the limit."""
        step, layers = self.workload.arrays.step, self.held[stage][chunk]
        end = self.plan.ends_of(stage, chunk)
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
                kind, group = int(step.comm_kind[k]), int(step.comm_group[k])
                found.append([(self.seconds(kind, group, size / count), self.nic_seconds(kind, group, size / count))] * count)
        return found

    def gathers(
        self, lines: Pipeline | SplitPipeline, shared: Shared, ahead: list[float], out: dict[str, float]
    ) -> tuple[list[list[tuple[float, float]]], list[float]]:
        """Gates of the first forwards, and each stage's seconds after the optimizer.

        A stage begins to gather for a step when it has ended the one before, `ahead` of it.

        A chunk's forward runs in as many parts as its kind of parameters with the most buckets has; the buckets of both kinds
        arrive in step, from the first of each to the last. So none but the first and the last part can be late.
        """
        gates, after = [], []
        for stage in range(self.plan.pp):
            begun, on_nics, sent, row = (-ahead[stage] if self.plan.overlap_param else 0.0), 0.0, 0.0, []
            in_step = 0.0
            for chunk in range(self.plan.chunks):
                both = [kind for kind in self.buckets_and_nics(GATHER_PARAMETERS, stage, chunk) if kind[0][0] > 0]
                kinds = [[seconds for seconds, _ in kind] for kind in both]
                of_nics = sum(seconds for kind in both for _, seconds in kind)
                whole, gate = sum(map(sum, kinds)), (0.0, 0.0)
                if self.plan.overlap_param and kinds:
                    first, parts = sum(kind[0] for kind in kinds), max(map(len, kinds))
                    arrivals = [begun + first + (whole - first) * k / max(parts - 1, 1) for k in range(parts)]
                    done = arrivals[-1] + lines.duration[FORWARD][stage][chunk] / parts
                    gate = max(arrivals[0], 0.0), done if begun + whole > 0 else 0.0
                    on_nics += of_nics
                    in_step += of_nics * min(max(begun + whole, 0.0) / whole, 1.0)
                row.append(gate)
                begun += whole
                sent += whole
            gates.append(row)
            shared.gathered[stage] = in_step
            beside_gathers(lines, shared, stage, max(begun, 0.0), on_nics / sent if sent else 0.0)
            after.append(0.0 if self.plan.overlap_param else sent)
            out["dp_total_s"] += sent
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
        self,
        lines: Pipeline | SplitPipeline,
        shared: Shared,
        ends: list[float],
        block_end: dict[Block, float],
        out: dict[str, float],
    ) -> list[float]:
        """When each stage's gradients are reduced: one stream a stage, beside the backward or after it."""
        found = []
        for stage in range(self.plan.pp):
            stream = 0.0 if self.plan.overlap_grad else ends[stage]
            beside = {} if self.plan.splits else lines.nics[stage].last
            last = [
                self.last_gradients(lines, stage, chunk, block_end, beside.get(chunk, (0.0,))[0])
                for chunk in range(self.plan.chunks)
            ]
            carried = shared.carried(stage, self.plan.ga // self.plan.copies)
            chunks = list(reversed(range(self.plan.chunks)))
            if self.plan.copies == 2:
                chunks.sort(key=lambda chunk: sum(last[chunk]))
            for chunk in chunks:
                begin, duration = last[chunk]
                _, late, before = beside.get(chunk, (0.0, 0.0, 0.0))
                stream += before
                for ready, cost in sorted(self.chunk_gradients(stage, chunk, begin, duration)):
                    stream = (max(stream, ready) if self.plan.overlap_grad else stream) + cost
                    out["dp_total_s"] += cost
                stream += late
                out["dp_total_s"] += late + before
                if not self.workload.arrays.layered_gradients:
                    carried += sum(bucket[1] for kind in self.gradients_of(stage, chunk) for bucket in kind)
                if self.plan.copies == 2:
                    exchange = self.exchange(stage, chunk)
                    out["dp_total_s"] += exchange
                    stream += exchange
            alone = max(stream, ends[stage])
            found.append(max(alone, carried))
            out["dp_exposed_s"] += alone - ends[stage]
            for name in (f"{owner(self)}_total_s", f"{owner(self)}_exposed_s"):
                out[name] += found[-1] - alone
        return found

    def last_gradients(
        self, lines: Pipeline | SplitPipeline, stage: int, chunk: int, block_end: dict[Block, float], more: float
    ) -> tuple[float, float]:
        """(begin, seconds) of the block of a chunk that ends its gradients, without what they add to it.

        Weight gradients that take no time and come at once were computed with the input gradients.
        """
        duration = lines.duration[BACKWARD][stage][chunk]
        last = Block(stage, BACKWARD, chunk, self.plan.ga // self.plan.copies - 1)
        if isinstance(lines, SplitPipeline):
            apart = last._replace(way=WEIGHTS)
            if last not in block_end and block_end[apart] > block_end[last._replace(way=INPUT)]:
                duration = lines.weights[stage][chunk]
            return block_end[apart] - duration, duration
        return block_end[last] - more - duration, duration

    def exchange(self, stage: int, chunk: int) -> float:
        """Seconds in which a rank and its mirror, which hold the same layers, add up their parts of the reduced gradients."""
        step, plan = self.workload.arrays.step, self.plan
        end = plan.ends_of(stage, chunk)
        size = sum(
            float(step.comm_bytes[k])
            * self.of_stage(int(step.comm_rule[k]), self.held[stage][chunk], end)
            / (
                plan.dp / plan.ep * (plan.tp if self.workload.arrays.shares.whole_experts else 1)
                if step.comm_group[k] == DP_EP
                else plan.dp
            )
            for k in range(len(step.role))
            if step.role[k] == REDUCE_GRADIENTS
        )
        size *= self.gradient_width / self.workload.arrays.gradient_width
        return self.network.send(size, plan.all_gpus > self.network.gpus_per_node)

    def once_a_step(self, stage: int, out: dict[str, float]) -> float:
        """Seconds of a stage after the gradients."""
        step = self.workload.arrays.step
        layers = [layer for chunk in self.held[stage] for layer in chunk]
        sum_s = 0.0
        for k in range(len(step.role)):
            if step.role[k] != AFTER_GRADIENTS and (step.role[k] != ONCE_ON_FIRST_STAGE or stage > 0):
                continue
            end = self.plan.ends(stage)
            factor = self.of_stage(int(step.compute_rule[k]), layers, end)
            compute = float(step.compute_s[k]) * self.slower * factor * self.slow(stage)
            kind, group = int(step.comm_kind[k]), int(step.comm_group[k])
            size = float(step.comm_bytes[k]) * self.of_stage(int(step.comm_rule[k]), layers, end)
            in_one_place = self.plan.schedule in IN_A_V and self.plan.pp > 1
            takes_part = kind != NO_COMM and (group != EMBEDDING or (stage in (0, self.plan.pp - 1) and not in_one_place))
            seconds = self.seconds(kind, group, size) if takes_part else 0.0
            out["optimizer_s"] += compute
            out[PART[group] + "_total_s"] += seconds
            out[PART[group] + "_exposed_s"] += seconds
            sum_s += compute + seconds
        return sum_s

    # the step

    def pipeline(self, duration: list[list[list[float]]]) -> Pipeline | SplitPipeline:
        """The pipeline of the plan, with nothing beside its blocks yet."""
        plan = self.plan
        gate = [[(0.0, 0.0)] * plan.chunks for _ in range(plan.pp)]
        nics = [Nics.none(plan.chunks) for _ in range(plan.pp)]
        if plan.splits:
            weights, pair = self.split(duration)
            return SplitPipeline(
                schedule=plan.schedule,
                pp=plan.pp,
                chunks=plan.chunks,
                ga=plan.ga,
                duration=duration,
                weights=weights,
                pair=pair,
                into=self.sends(),
                gate=gate,
                nics=nics,
                crowded_pair=[[0.0] * plan.chunks for _ in range(plan.pp)],
            )
        return Pipeline(
            schedule=plan.schedule,
            pp=plan.pp,
            vpp=plan.vpp,
            ga=plan.ga,
            duration=duration,
            into=self.sends(),
            gate=gate,
            nics=nics,
            background=bool(plan.overlap_pp),
            group=plan.microbatch_group_size,
        )

    def metrics(self) -> dict[str, float]:
        """The columns of a result: means over the stages, in seconds.

        Where no barrier ends a step, and parameters are gathered beside the next one, a step follows one like it, in which no
        stage has waited for parameters. A stage gathers when it has ended that; steps follow each other as fast as without
        parameters, but for what a stage ends later because of them.
        """
        if not (self.plan.post_validation and self.plan.overlap_param):
            return self.step()[0]
        alone, done = self.step([math.inf] * self.plan.pp)
        return self.step([alone["step_time_s"] - own for own in done], (alone["step_time_s"], done))[0]

    def step(
        self, ahead: list[float] | None = None, before: tuple[float, list[float]] | None = None
    ) -> tuple[dict[str, float], list[float]]:
        """The columns of a result, and when each stage has ended its own part.

        `ahead`: by how much before it stages have begun to gather; None: they have waited for the last of them. `before`: of
        the step without parameters to wait for, its seconds and when each stage has ended.
        """
        plan = self.plan
        once: dict[str, float] = defaultdict(float)
        each: dict[str, float] = defaultdict(float)
        duration = self.durations(each)
        lines = self.pipeline(duration)
        shared = share(self, lines)
        work = [self.once_a_step(stage, once) for stage in range(plan.pp)]
        gates, after = self.gathers(lines, shared, ahead or [max(work) - own for own in work], once)
        beside_gradients(self, lines, shared)
        for stage, chunk in product(range(plan.pp), range(plan.chunks)):
            lines.gate[stage][chunk] = gates[stage][chunk]
        stages, block_end = lines.run()[:2]
        reduced = self.reductions(lines, shared, [stage.end for stage in stages], block_end, once)
        last = [after[stage] + work[stage] for stage in range(plan.pp)]
        for stage, spent in enumerate(stages):
            once["pp_total_s"] += spent.in_messages
            once["pp_exposed_s"] += spent.held_up_by_messages
            once["pp_queued_s"] += spent.queued
            once["dp_total_s"] += lines.nics[stage].gathers_late
            once["dp_exposed_s"] += spent.gated + lines.nics[stage].slowed
            for name in (f"{owner(self)}_total_s", f"{owner(self)}_exposed_s"):
                once[name] += lines.nics[stage].crowded
            once["bubble_s"] += spent.idle
            if not plan.post_validation:
                once["bubble_s"] += max(reduced) - reduced[stage] + max(last) - last[stage]
        if isinstance(lines, SplitPipeline):
            for row in lines.rows():
                for one, other in (item for item in row if len(item) == 2):
                    alone = duration[FORWARD][one.stage][one.chunk] + duration[BACKWARD][other.stage][other.chunk]
                    once["ep_exposed_s"] -= alone - lines.pair[one.stage][one.chunk]
                    for name in (f"{owner(self)}_total_s", f"{owner(self)}_exposed_s"):
                        once[name] += lines.crowded_pair[one.stage][one.chunk]
        step_s, done = max(reduced) + max(last), [r + a for r, a in zip(reduced, last, strict=True)]
        if plan.post_validation:
            step_s = self.without_barrier(lines, stages, block_end, done, before, once)
        names: tuple[str, ...] = ("compute_forward_s", "compute_backward_s", "compute_recompute_s", "launch_s", "bubble_s")
        names += ("optimizer_s", "pp_queued_s", "offload_s")
        names += tuple(f"{part}_{what}_s" for part in ("tp", "ep", "cp", "dp", "pp") for what in ("total", "exposed"))
        found = {name: (plan.ga * each[name] + once[name]) / plan.pp for name in names}
        return {**found, "step_time_s": step_s}, done

    def without_barrier(
        self,
        lines: Pipeline | SplitPipeline,
        stages: list[Stage],
        block_end: dict[Block, float],
        done: list[float],
        before: tuple[float, list[float]] | None,
        out: dict[str, float],
    ) -> float:
        """The longest time of a stage from its first block to its own end; a stage waits for no more than that."""
        begun, came = [], []
        for stage in range(len(stages)):
            first = Block(stage, FORWARD, int(self.plan.copies == 2 and stage >= self.plan.pp // 2), 0)
            source = lines.sender(first) if isinstance(lines, SplitPipeline) else lines.neighbour(first, -1)
            cost = lines.into[FORWARD][stage] if source else 0.0
            if source and isinstance(lines, SplitPipeline):
                cost = lines.cost(source.stage, first)
            begun.append(block_end[source] + cost if source else 0.0)
            came.append(cost)
        whole = max(own - start for own, start in zip(done, begun, strict=True))
        if before:
            whole = before[0] + max(0.0, *(own - then for own, then in zip(done, before[1], strict=True)))
        for stage, start in enumerate(begun):
            # before: waiting to begin, and at the end for all others, of a step that is the longest of all
            out["pp_exposed_s"] -= came[stage]
            out["bubble_s"] -= start - came[stage]
        out["bubble_s"] += sum(whole - (own - start) for own, start in zip(done, begun, strict=True))
        return whole

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
                count * (replicated + shared_out / (copies * self.plan.copies if sharded else 1))
                for count, copies in self._parameters([layer for chunk in chunks for layer in chunk], self.plan.ends(stage))
            )
            for stage, chunks in enumerate(self.held)
        ]

    def _parameters(self, layers: Sequence[int], end: int) -> list[tuple[float, float]]:
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
                    times = units.count(unit) * len(layers) / self.workload.layers + ends.count(unit)
                    size += float(waiting) * times * self.moved(rule)
            found.append((size / arrays.gradient_width, copies))
        return found
