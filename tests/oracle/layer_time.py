"""What one pass of a model's layers takes on one pipeline stage, from docs/models.md: compute, messages, what hides, the host.

Seconds of each operator and of each single collective are passed in; everything else is written out, layer by layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sim_core import Model, Stack
from sim_core.models.description import Unit
from tests.oracle.layer_messages import (
    ALL_GATHER,
    ALL_TO_ALL,
    BACKWARD,
    EP,
    EXPERT_TP,
    FORWARD,
    HEADS_FOR_TOKENS,
    HOP,
    NOTHING,
    RING,
    TP,
    WEIGHTS,
    Message,
    Rank,
    Region,
)

ROUTED, SHARED = ("experts_fc1", "experts_fc2"), ("shared_fc1", "shared_fc2")
FULL, SELECTIVE = "full", "selective"
Operators = Mapping[tuple[str, int], float]
"""Seconds by name and phase."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What a plan lets run beside something else, and what it runs again."""

    overlap_tp: bool = False
    overlap_ep: bool = False
    overlap_shared_experts: bool = False
    checkpointing: str = "none"


@dataclass(frozen=True, kw_only=True)
class Layers:
    """One pass of all units of a model on one rank. `operators` of a unit; `collective`: seconds by kind, group, bytes."""

    model: Model
    stack: Stack
    rank: Rank
    switches: Switches
    operators: Callable[[Unit], Operators]
    collective: Callable[[int, int, float], float]
    paired: bool = True
    """Whether a pass runs beside one of another micro-batch under `overlap_ep`: not the first forward and the last backward."""

    def metrics(self) -> dict[str, float]:
        """Sums over all units, by the names of results."""
        total: defaultdict[str, float] = defaultdict(float)
        for unit in self.model.units:
            for name, seconds in self.of_unit(unit).items():
                total[name] += unit.number * seconds
        return dict(total)

    def of_unit(self, unit: Unit) -> dict[str, float]:
        """One pass of one unit, forward and backward."""
        operators = self.operators(unit)
        seconds: defaultdict[str, float] = defaultdict(float)
        compute = [sum(s for (_, phase), s in operators.items() if phase == which) for which in (FORWARD, BACKWARD, WEIGHTS)]
        seconds["compute_forward_s"], seconds["compute_backward_s"] = compute[FORWARD], compute[BACKWARD] + compute[WEIGHTS]
        sent = Region(self.model, unit, self.rank, self.stack.fused_loss).messages()
        waiting, calls = [0.0, 0.0, 0.0], [0, 0]
        again = self.switches.checkpointing == FULL and unit.kind == "layer"
        for message in sent:
            total_s = self.total_s(message)
            exposed_s = total_s - self.hidden_s(message, total_s, operators)
            part = {TP: "tp", EXPERT_TP: "tp", EP: "ep", RING: "cp", HEADS_FOR_TOKENS: "cp"}[message.group]
            times = 2 if again and message.phase == FORWARD else 1
            seconds[f"{part}_total_s"] += times * total_s
            seconds[f"{part}_exposed_s"] += times * exposed_s
            waiting[message.phase] += exposed_s
            waiting[2] += exposed_s if message.phase == FORWARD else 0.0
            calls[message.phase] += 1
        if unit.kind == "layer":
            host, wait = self.host_s(unit, calls)
            ran = compute[FORWARD] + waiting[FORWARD], compute[BACKWARD] + compute[WEIGHTS] + waiting[BACKWARD]
            took = [max(own + idle, launch) for own, idle, launch in zip(ran, wait, host, strict=True)]
            seconds["launch_s"] += sum(took) - sum(ran)
            if again:
                seconds["compute_recompute_s"] += compute[FORWARD]
                own = compute[FORWARD] + waiting[2]
                seconds["launch_s"] += max(own + wait[0], host[0]) - own
            elif self.switches.checkpointing == SELECTIVE:
                core = ("attention", "attention_sums")
                seconds["compute_recompute_s"] += sum(operators.get((name, FORWARD), 0.0) for name in core)
                for message in sent:
                    if message.phase == FORWARD and message.operator in core:
                        total_s = self.total_s(message)
                        seconds["cp_total_s"] += total_s
                        seconds["cp_exposed_s"] += total_s - self.hidden_s(message, total_s, operators)
        return dict(seconds)

    def total_s(self, message: Message) -> float:
        """Seconds of a collective; a ring has one hop less than ranks."""
        hops = self.rank.cp // self.rank.a2a - 1 if message.kind == HOP else 1
        return hops * self.collective(message.kind, message.group, message.bytes)

    def hidden_s(self, message: Message, total_s: float, operators: Operators) -> float:
        """Seconds of a message that something else hides, less those by which it slows that."""
        stack, on = self.stack, self.switches

        def compute(*names: str, phases: tuple[int, ...] = (message.phase,)) -> float:
            return sum(operators.get((name, phase), 0.0) for name in names for phase in phases)

        if message.kind == HOP:  # beside each step of attention but one
            ring = self.rank.cp // self.rank.a2a
            return min(total_s, compute("attention") * (ring - 1) / ring) * (1 - stack.contention)
        if message.group == EP:
            if on.overlap_ep:
                alone = self.stack.overlap_ep_hidden is not None and not self.paired
                return 0.0 if alone else self._behind_another_s(message, total_s, operators)
            if on.overlap_shared_experts and message.kind == ALL_TO_ALL:
                beside = ("shared_fc1", "shared_activation") if message.operator == "permute" else ("shared_fc2",)
                phases = (FORWARD,) if message.phase == FORWARD else (BACKWARD, WEIGHTS)
                return min(total_s, compute(*beside, phases=phases)) * (1 - stack.contention)
            return 0.0
        if message.group not in (TP, EXPERT_TP):
            return 0.0
        hidden_s = 0.0
        if message.beside != NOTHING and stack.hides_backward_tp:
            hidden_s = min(total_s, compute(message.operator, phases=(message.beside,)))
        if stack.own_part_first and message.kind == ALL_GATHER and message.group == TP and message.beside == NOTHING:
            hidden_s = min(total_s, compute(message.operator) / self.rank.tp)
        if not on.overlap_tp:
            return hidden_s * (1 - stack.contention)
        product_s, ranks = compute(message.operator), self.rank.tp
        if message.kind == ALL_GATHER:  # nothing runs beside the last part of the product
            in_parts_s = min(total_s, product_s * (ranks - 1) / ranks)
        else:  # the last part is sent when all is computed
            parts = stack.tp_parts or ranks
            in_parts_s = min(total_s, product_s) * (parts - 1) / parts
        return max(hidden_s, in_parts_s) * (1 - stack.overlap_contention)

    def _behind_another_s(self, message: Message, total_s: float, operators: Operators) -> float:
        """Messages of experts beside another micro-batch: a dispatch beside half of the experts' work both ways, a combine
        beside attention the other way; at most a part where the host waits for counts; where a stack says nothing beside
        half of the experts' work in the same phase."""
        stack = self.stack
        of_experts = {key: s for key, s in operators.items() if key[0] in (*ROUTED, *SHARED)}
        if stack.overlap_ep_hidden is None:
            window_s = sum(s for (_, phase), s in of_experts.items() if phase == message.phase) / 2
        elif message.operator == "unpermute":
            other = BACKWARD if message.phase == FORWARD else FORWARD
            window_s = sum(s for key, s in operators.items() if key not in of_experts and key[1] == other)
        else:
            window_s = sum(of_experts.values()) / 2
        if stack.overlap_ep_hidden is not None and self._counts():  # and no more than there is to hide it behind
            return min(total_s * stack.overlap_ep_hidden, window_s)
        return min(total_s, window_s) * (1 - stack.contention)

    def _counts(self) -> bool:
        """Whether the host has to know how many tokens each expert gets."""
        experts = self.model.experts
        padded = experts is not None and experts.capacity_factor is not None and experts.pad_to_capacity
        return not padded and self.stack.graphs != "full"

    def host_s(self, unit: Unit, calls: list[int]) -> tuple[list[float], list[float]]:
        """CPU seconds to launch a forward and a backward, and what the device waits in any case (16 bits, alltoall)."""
        stack = self.stack
        if stack.graphs == "full":
            return [0.0, 0.0], [0.0, 0.0]
        share = 1.0 if self.rank.tp > 1 else stack.host_without_tp
        launch = stack.host_forward, stack.host_backward
        dense = [share * each + stack.host_collective * number for each, number in zip(launch, calls, strict=True)]
        if not unit.moe or self.model.experts is None:
            return dense, [0.0, 0.0]
        each = [self.model.experts.count / self.rank.ep * per for per in stack.host_expert]
        slower = stack.host_overlap_ep if self.switches.overlap_ep and self.rank.ep > 1 else 1.0
        alltoall = stack.host_alltoall if self._counts() else (0.0, 0.0)
        parts = zip(dense, stack.host_experts, alltoall, each, strict=True)
        return [slower * (a + b + c + d) for a, b, c, d in parts], each
