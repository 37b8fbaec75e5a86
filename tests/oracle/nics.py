"""What of a plan shares NICs, from docs/shared_nics.md: bytes counted rank by rank."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from sim_core.workloads.workload import ALL_REDUCE, ALL_TO_ALL, EP, SEND_RECEIVE, TP
from tests.oracle.groups import Placement
from tests.oracle.pipeline import BACKWARD, DEEPSPEED, FORWARD, ONE_F_ONE_B, Block, Pipeline
from tests.oracle.split import DUALPIPE, DUALPIPEV, SplitPipeline
from tests.oracle.streams import Busy, Gradients, Queue, beside, longer

if TYPE_CHECKING:
    from tests.oracle.step import Oracle


def bytes_out(kind: int, size: float, where: Placement) -> float:
    """Most bytes that a member's NIC sends to other nodes in one collective."""
    ranks = sum(where)
    if len(where) == 1:
        return 0.0
    if kind == SEND_RECEIVE:
        return size
    if kind == ALL_TO_ALL:  # 1/ranks of the size to each rank elsewhere
        return max(sum(there for k, there in enumerate(where) if k != at) * size / ranks for at in range(len(where)))
    # a ring passes on all parts but one, and leaves a node once, by the NICs of its members; a tree of two nodes sums up first
    around = size - size / ranks
    if kind == ALL_REDUCE and len(where) > 2:
        around *= 2
    return max(around / members for members in where)


@dataclass
class Shared:
    """What sharing does to a plan: of [way][stage][chunk] a block's NICs and those of the message that it sends on."""

    blocks: list[list[list[Busy]]]
    sends: list[list[list[float]]]
    gathered: list[float] = field(default_factory=list)
    """[stage]: seconds of NICs for parameters gathered from the begin of the step on."""

    def carried(self, stage: int, rounds: int) -> float:
        """Seconds for which a stage's NICs are needed in all blocks and sends of a pipeline."""
        of_blocks = sum(busy.all for way in self.blocks for busy in way[stage])
        return rounds * (of_blocks + sum(sum(way[stage]) for way in self.sends)) + self.gathered[stage]


Linked = dict[tuple[int, int], list[tuple[int, int]]]
"""The (stage, chunk) of all senders of (way, the stage behind a link: the second of those at its ends)."""


def sent_by(oracle: Oracle, lines: Pipeline | SplitPipeline) -> tuple[Shared, Linked]:
    """What needs the NICs in and after each block, and which blocks send over which link."""
    pp, chunks = oracle.plan.pp, oracle.plan.chunks
    blocks = [[[Busy() for _ in range(chunks)] for _ in range(pp)] for _ in (FORWARD, BACKWARD)]
    sends = [[[0.0] * chunks for _ in range(pp)] for _ in (FORWARD, BACKWARD)]
    linked: Linked = defaultdict(list)
    found = Shared(blocks, sends, [0.0] * pp)
    if not oracle.network.shared:
        return found, linked
    of_link = oracle.sends(of_nics=True)[FORWARD]
    for way, stage, chunk in product((FORWARD, BACKWARD), range(pp), range(chunks)):
        for unit, again in oracle.units(stage, chunk):
            for piece in oracle.passes[unit]:
                blocks[way][stage][chunk].add(piece.busy[way])
                if way == BACKWARD and again:
                    blocks[way][stage][chunk].add(piece.busy[2])
        block = Block(stage, way, chunk, 0)
        source = lines.sender(block) if isinstance(lines, SplitPipeline) else lines.neighbour(block, -1)
        if source and source.stage != stage:
            link = stage if way == FORWARD else (stage + 1) % pp
            if isinstance(lines, SplitPipeline):
                link = lines.link(source.stage, block)
            sends[way][source.stage][source.chunk] = of_link[link]
            linked[way, link].append((source.stage, source.chunk))
    return found, linked


def owner(oracle: Oracle) -> str:
    """The part of a step that blocks are longer by beside pipeline messages: that of the messages in them between nodes."""
    for group in (EP, TP):
        if any(len(where) > 1 for where, _ in oracle.placements[group]):
            return {EP: "ep", TP: "tp"}[group]
    return "pp" if oracle.plan.schedule in (DUALPIPE, DUALPIPEV) else "dp"


def share(oracle: Oracle, lines: Pipeline | SplitPipeline) -> Shared:
    """Says what blocks take longer beside a pipeline message like the one that they send on; lengthens these, and pairs."""
    plan = oracle.plan
    found, linked = sent_by(oracle, lines)
    if not plan.splits and (not plan.overlap_pp or plan.schedule == DEEPSPEED):
        return found
    if plan.chunks == plan.ga == 1:  # a stage has one forward and one backward, which comes when its message is long through
        return found
    # 1F1B without chunks waits 2 c (p - 1) m / p for messages of c in m micro-batches: two blocks each, all but 1 of p of which
    # begin when the message before them is through
    part = 1 / plan.pp if plan.schedule == ONE_F_ONE_B and plan.chunks == 1 else 1.0
    later: dict[tuple[int, int, int], float] = {}
    for (way, _), senders in linked.items():
        mean = 0.0
        for stage, chunk in senders:
            alone, busy, sent = (
                lines.duration[way][stage][chunk],
                found.blocks[way][stage][chunk],
                found.sends[way][stage][chunk],
            )
            if busy.all <= 0 or sent <= 0:
                continue
            lines.nics[stage].crowd[way][chunk] = longer(alone, busy, min(sent, alone)), sent
            mean += part * sent * min(busy.all / alone, 1.0) / len(senders)
        later |= {(way, stage, chunk): mean for stage, chunk in senders}
    if waits(oracle, lines, found, later):
        for stage, nics in enumerate(lines.nics):
            nics.queue = Queue(
                [found.sends[way][stage] for way in (FORWARD, BACKWARD)],
                [[busy.all for busy in found.blocks[way][stage]] for way in (FORWARD, BACKWARD)],
            )
    else:
        for (way, link), senders in linked.items():
            lines.into[way][link if way == FORWARD else link - 1] += later[(way, *senders[0])]
    if isinstance(lines, SplitPipeline) and plan.schedule in (DUALPIPE, DUALPIPEV) and plan.pp > 1:
        for stage, chunk in product(range(plan.pp), range(2)):
            ran = ((FORWARD, chunk), (BACKWARD, 1 - chunk))
            full = sum(found.blocks[way][stage][of].all for way, of in ran)
            if not lines.nics[stage].queue:
                full += sum(found.sends[way][stage][of] for way, of in ran)
            lines.crowded_pair[stage][chunk] = max(full - lines.pair[stage][chunk], 0.0)
    return found


def waits(oracle: Oracle, lines: Pipeline | SplitPipeline, found: Shared, later: dict[tuple[int, int, int], float]) -> bool:
    """Whether a message can still be under way when a block of the same stage sends the next one."""
    plan = oracle.plan
    for stage in range(plan.pp):
        took, blocks = [], []
        for way, chunk in product((FORWARD, BACKWARD), range(plan.chunks)):
            sent = found.sends[way][stage][chunk]
            if sent <= 0:
                continue
            took.append(sent + later.get((way, stage, chunk), 0.0))
            apart = lines.weights[stage][chunk] if isinstance(lines, SplitPipeline) and way == BACKWARD else 0.0
            blocks.append(lines.duration[way][stage][chunk] - apart)
        if isinstance(lines, SplitPipeline) and plan.schedule in (DUALPIPE, DUALPIPEV):
            took += [found.sends[FORWARD][stage][k] + found.sends[BACKWARD][stage][1 - k] for k in range(2)]
            blocks += lines.pair[stage]
        if took and max(took) > min(blocks, default=float("inf")):
            return True
    return False


def beside_gathers(lines: Pipeline | SplitPipeline, shared: Shared, stage: int, until: float, rate: float) -> None:
    """The forwards of a stage beside its parameters, which have all come at `until` if nothing is beside them, and ask for the
    part `rate` of the NICs."""
    if rate <= 0:
        return
    nics = lines.nics[stage]
    nics.until = until
    if nics.queue:
        nics.queue.asks[FORWARD] = rate
    last = len(nics.forward) - 1
    nics.forward = [
        beside(
            lines.duration[FORWARD][stage][chunk],
            shared.blocks[FORWARD][stage][chunk],
            shared.sends[FORWARD][stage][chunk] if chunk < last and not nics.queue else 0.0,
            rate,
        )
        for chunk in range(last + 1)
    ]


def beside_gradients(oracle: Oracle, lines: Pipeline | SplitPipeline, shared: Shared) -> None:
    """The backwards of each stage beside its gradients."""
    plan = oracle.plan
    if not oracle.network.shared or not plan.overlap_grad or plan.splits:
        return
    for stage, nics in enumerate(lines.nics):
        kinds = [oracle.gradients_of(stage, chunk) for chunk in range(plan.chunks)]
        seconds = [sum(bucket[0] for kind in each for bucket in kind) for each in kinds]
        of_nics = sum(bucket[1] for each in kinds for kind in each for bucket in kind)
        if of_nics <= 0:
            continue
        for chunk, each in enumerate(kinds):
            count = max((len(kind) for kind in each if kind[0][0] > 0), default=1)
            nics.gradients[chunk] = Gradients(seconds[chunk], 1 - 1 / count)
        if nics.queue:
            nics.queue.asks[BACKWARD] = of_nics / sum(seconds)
        nics.backward = [
            beside(
                lines.duration[BACKWARD][stage][chunk],
                shared.blocks[BACKWARD][stage][chunk],
                0.0 if nics.queue else shared.sends[BACKWARD][stage][chunk],
                of_nics / sum(seconds),
            )
            for chunk in range(plan.chunks)
        ]
