"""Streams of messages on one NIC, from docs/network.md (Groups that send at the same time): bytes counted rank by rank."""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from sim_core.workloads.workload import ALL_REDUCE, ALL_TO_ALL, EP, SEND_RECEIVE, TP
from tests.oracle.groups import Placement
from tests.oracle.pipeline import BACKWARD, DEEPSPEED, FORWARD, Block, Pipeline
from tests.oracle.split import DUALPIPE, DUALPIPEV, SplitPipeline

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
class Busy:
    """Seconds for which NICs are needed: by all messages of a block, and by what nothing hides of them."""

    all: float = 0.0
    exposed: float = 0.0

    def add(self, other: Busy, times: float = 1.0) -> None:
        """Another block's too."""
        self.all += times * other.all
        self.exposed += times * other.exposed


def longer(window: float, busy: Busy, beside: float) -> float:
    """Seconds by which a window becomes longer beside a stream that needs the NICs for `beside` of it.

    While both send, each has half: an exposed message waits once for what the other sends meanwhile. Then nothing is sent twice
    as fast as the NICs can.
    """
    if window <= 0 or busy.all <= 0 or beside <= 0:
        return 0.0
    waits = busy.exposed * min(beside / window, 1.0)
    too_full = busy.all + beside - window
    return max(waits, too_full, 0.0)


@dataclass
class Shared:
    """What sharing does to a plan: of [way][stage][chunk] a block's NICs and those of the message that it sends on."""

    blocks: list[list[list[Busy]]]
    sends: list[list[list[float]]]
    late: list[list[float]] = field(default_factory=list)
    """[stage][chunk]: how much later the last backward ends."""
    gathered: list[float] = field(default_factory=list)
    """[stage]: seconds of NICs for parameters gathered during the pipeline."""

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
    found = Shared(blocks, sends, [[0.0] * chunks for _ in range(pp)], [0.0] * pp)
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


def share(oracle: Oracle, lines: Pipeline | SplitPipeline, out: dict[str, float]) -> Shared:
    """Lengthens blocks and messages of a pipeline that are sent in the background, each block beside the message of another.

    What makes blocks longer is added to `out` as a part of the messages in them.
    """
    plan = oracle.plan
    found, linked = sent_by(oracle, lines)
    if not plan.splits and (not plan.overlap_pp or plan.schedule == DEEPSPEED):
        return found
    pairs = plan.schedule in (DUALPIPE, DUALPIPEV)
    between = [group for group in (EP, TP) if any(len(where) > 1 for where, _ in oracle.placements[group])]
    part = "ep" if pairs or EP in between else "tp" if between else "dp"
    before = deepcopy(lines.duration)
    for (way, link), senders in linked.items():
        for stage, chunk in senders:
            block_s, busy, sent = before[way][stage][chunk], found.blocks[way][stage][chunk], found.sends[way][stage][chunk]
            if busy.all <= 0 or sent <= 0:
                continue
            more = longer(block_s, busy, sent)
            lines.duration[way][stage][chunk] += more
            lines.into[way][link if way == FORWARD else link - 1] += sent * min(busy.all / block_s, 1.0) / len(senders)
            for name in (f"{part}_total_s", f"{part}_exposed_s"):
                out[name] += more * (plan.ga // plan.copies)
    if isinstance(lines, SplitPipeline) and pairs and plan.pp > 1:
        for stage, chunk in product(range(plan.pp), range(2)):
            ran = ((FORWARD, chunk), (BACKWARD, 1 - chunk))
            full = sum(found.blocks[way][stage][of].all + found.sends[way][stage][of] for way, of in ran)
            lines.pair[stage][chunk] = max(lines.pair[stage][chunk], full)
    return found


def slow_last_backwards(oracle: Oracle, lines: Pipeline | SplitPipeline, shared: Shared) -> None:
    """How much later the last backward of each chunk ends because its gradients are reduced beside it.

    The stream begins with the first of its buckets; a stage's first chunk has no backward left, others one of each stage's.
    """
    plan = oracle.plan
    if not oracle.network.shared or not plan.overlap_grad or plan.splits:
        return
    for stage, chunk in product(range(plan.pp), range(plan.chunks)):
        kinds = oracle.gradients_of(stage, chunk)
        count = max((len(kind) for kind in kinds if kind[0][0] > 0), default=1)
        whole, of_nics = (sum(bucket[k] for kind in kinds for bucket in kind) for k in (0, 1))
        if whole <= 0 or of_nics <= 0:
            continue
        first = 1 / count
        backwards = 1 - first + (min(plan.pp, plan.ga) - 1 if chunk else 0)
        window = backwards * lines.duration[BACKWARD][stage][chunk]
        beside = min(whole * (1 - first), window) * of_nics / whole
        sent, own = shared.sends[BACKWARD][stage][chunk], shared.blocks[BACKWARD][stage][chunk]
        busy = Busy(backwards * (own.all + sent), backwards * (own.exposed + sent))
        shared.late[stage][chunk] = longer(window, busy, beside)
