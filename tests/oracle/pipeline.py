"""When each block of a pipeline runs: orders of the schedules, then block after block in the order of their dependencies."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import NamedTuple

from tests.oracle.streams import Nics

FORWARD, BACKWARD, INPUT, WEIGHTS = range(4)
GPIPE, ONE_F_ONE_B, DEEPSPEED, LOOPED_BFS = range(4)


class Block(NamedTuple):
    """One micro-batch through one virtual stage, one way: forward, backward, or one part of a backward."""

    stage: int
    way: int
    chunk: int
    micro_batch: int


def order(schedule: int, stage: int, pp: int, vpp: int, ga: int, group: int = 0) -> list[Block]:
    """The blocks of a stage in the order in which it runs them.

    GPipe (Huang et al. 2019): all forwards, all backwards. 1F1B (Narayanan et al. 2021, section 2.2): warm-up forwards, one
    forward and one backward in turn, the rest; interleaved in groups of micro-batches a chunk. Looped BFS: all of a chunk.
    """
    group = ga if vpp == 1 or schedule == LOOPED_BFS else group or pp
    turns = [(chunk, k) for first in range(0, ga, group) for chunk in range(vpp) for k in range(first, min(first + group, ga))]
    forwards = [Block(stage, FORWARD, chunk, micro_batch) for chunk, micro_batch in turns]
    backwards = [Block(stage, BACKWARD, vpp - 1 - chunk, micro_batch) for chunk, micro_batch in turns]
    if schedule in (GPIPE, LOOPED_BFS):
        return forwards + backwards
    warm_up = pp - 1 - stage if vpp == 1 else 2 * (pp - 1 - stage) + (vpp - 1) * group
    warm_up = min(warm_up, len(turns))
    blocks = forwards[:warm_up]
    for k in range(len(turns) - warm_up):
        blocks += [forwards[warm_up + k], backwards[k]]
    return blocks + backwards[len(turns) - warm_up :]


@dataclass
class Stage:
    """How a stage spent its time, in seconds."""

    end: float = 0.0
    in_messages: float = 0.0
    held_up_by_messages: float = 0.0
    queued: float = 0.0
    idle: float = 0.0
    gated: float = 0.0


@dataclass(frozen=True)
class Pipeline:
    """A pipeline to run, all in seconds. `duration[way][stage][chunk]`; `into[way][stage]`, the message into a stage;
    `gate[stage][chunk]`, the earliest start and end of the first forward; `nics[stage]`, what it sends beside its blocks."""

    schedule: int
    pp: int
    vpp: int
    ga: int
    duration: list[list[list[float]]]
    into: list[list[float]]
    gate: list[list[tuple[float, float]]]
    nics: list[Nics]
    background: bool
    group: int = 0

    def neighbour(self, block: Block, step: int) -> Block | None:
        """The block that the same micro-batch runs `step` blocks later on its way."""
        virtual = block.chunk * self.pp + block.stage + (step if block.way == FORWARD else -step)
        if not 0 <= virtual < self.pp * self.vpp:
            return None
        return Block(virtual % self.pp, block.way, virtual // self.pp, block.micro_batch)

    def run(self) -> tuple[list[Stage], dict[Block, float]]:
        """The stages, and the end of each block.

        In the background a message leaves at the end of its block. Blocking, a stage posts what it sends and what it receives
        next between two blocks and goes on when both are through; a message is through `into` seconds after both ends posted.
        """
        if self.schedule == DEEPSPEED:
            return self._run_slots()
        orders = [order(self.schedule, stage, self.pp, self.vpp, self.ga, self.group) for stage in range(self.pp)]
        before = {b: (row[k - 1] if k else None) for row in orders for k, b in enumerate(row)}
        turns: list[tuple[int, Block | None, Block | None]] = [(b.stage, before[b], b) for b in before]
        turns += [(stage, row[-1], None) for stage, row in enumerate(orders)]
        waits_for = {turn: self._needs(turn, before) for turn in turns}
        turn_of = {block: (stage, last, block) for stage, last, block in turns if block}
        graph = {turn: {turn_of[block] for block in needed} for turn, needed in waits_for.items()}
        stages = [Stage() for _ in range(self.pp)]
        end: dict[Block, float] = {}
        for turn in TopologicalSorter(graph).static_order():
            self._take(turn, before, end, stages[turn[0]])
        return stages, end

    def _run_slots(self) -> tuple[list[Stage], dict[Block, float]]:
        """DeepSpeed: in slot 2j+i stage i runs forward j, in slot 2j+2p-1-i backward j. Before, neighbours meet of which one
        runs forward and the next one backward: first the gradient goes up, then the activation down, each sent one slot ago."""
        stages, end = [Stage() for _ in range(self.pp)], {}
        slots: list[dict[int, Block]] = [{} for _ in range(2 * (self.ga + self.pp))]
        for stage in range(self.pp):
            for j in range(self.ga):
                slots[2 * j + stage][stage] = Block(stage, FORWARD, 0, j)
                slots[2 * j + 2 * self.pp - 1 - stage][stage] = Block(stage, BACKWARD, 0, j)
        for now, last in zip(slots, [{}, *slots[:-1]], strict=True):
            for up in range(self.pp - 1):
                gradient = last.get(up + 1) if up + 1 in last and last[up + 1].way == BACKWARD else None
                activation = last.get(up) if up in last and last[up].way == FORWARD else None
                cost = (self.into[BACKWARD][up] if gradient else 0.0) + (self.into[FORWARD][up + 1] if activation else 0.0)
                if not gradient and not activation:
                    continue
                through = max(stages[up].end, stages[up + 1].end) + cost
                for one in stages[up : up + 2]:
                    one.in_messages += cost
                    one.held_up_by_messages += min(through - one.end, cost)
                    one.idle += max(through - one.end - cost, 0.0)
                    one.end = through
            for block in now.values():
                end[block] = self._run_block(block, stages[block.stage])
        return stages, end

    def _needs(self, turn: tuple[int, Block | None, Block | None], before: dict[Block, Block | None]) -> list[Block]:
        """The blocks that must have ended before a turn (from a stage's last block to its next) can."""
        _, last, block = turn
        needed = [last, self.neighbour(block, -1) if block else None]
        target = self.neighbour(last, 1) if last and not self.background else None
        needed.append(before[target] if target else None)
        return [found for found in needed if found]

    def _take(
        self,
        turn: tuple[int, Block | None, Block | None],
        before: dict[Block, Block | None],
        end: dict[Block, float],
        stage: Stage,
    ) -> None:
        """Run one turn: messages, then the block."""
        _, last, block = turn

        def ended(found: Block | None) -> float:
            return end[found] if found else 0.0

        free = ended(last)
        through, longest, queued = free, 0.0, 0.0
        source = self.neighbour(block, -1) if block else None
        if block and source:
            cost = self.into[block.way][block.stage]
            posted, queued = self.nics[source.stage].message(source, ended(source))
            posted = posted if self.background else max(posted, free)
            through, longest = max(through, posted + cost), max(longest, cost)
        target = self.neighbour(last, 1) if last and not self.background else None
        if target:
            cost = self.into[target.way][target.stage]
            through, longest = max(through, max(free, ended(before[target])) + cost), max(longest, cost)
        waited = through - free
        stage.in_messages += longest
        queued = min(queued, waited)
        stage.queued += queued
        stage.held_up_by_messages += min(waited - queued, longest)
        stage.idle += max(waited - queued - longest, 0.0)
        stage.end = through
        if block:
            end[block] = self._run_block(block, stage)

    def _run_block(self, block: Block, stage: Stage) -> float:
        """Run a block that its stage has waited for; returns its end."""
        nics, way, chunk, start = self.nics[block.stage], block.way, block.chunk, stage.end
        alone = self.duration[way][block.stage][chunk]
        seconds = alone + nics.behind_message(way, chunk, start)
        if way == FORWARD and block.micro_batch == 0:
            stage.end = nics.first_forward(chunk, start, seconds, alone, self.gate[block.stage][chunk])
            stage.gated += stage.end - (start + seconds)
        elif way == FORWARD:
            stage.end = start + seconds + nics.later_forward(chunk, start)
        elif block.micro_batch == self.ga - 1:
            stage.end = start + seconds + nics.last_backward(chunk, start, seconds)
        else:
            stage.end = start + seconds + nics.earlier_backward(chunk, start)
        nics.sent = stage.end
        if nics.queue:
            nics.queue.pass_blocks([(way, chunk)], start, alone)
            late = nics.queue.leave([(way, chunk)], stage.end, nics)
            nics.left_at[block] = stage.end + late, late
        return stage.end
