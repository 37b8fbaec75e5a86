"""Pipelines with weight gradients apart: orders as lists, as the papers say them, then blocks by what they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter

from tests.oracle.pipeline import BACKWARD, FORWARD, INPUT, WEIGHTS, Block, Stage
from tests.oracle.streams import Nics

ZB_H1, ZB_H2, INTERLEAVED_ZB, ZB_V, V_HALF, V_MIN, DUALPIPE, DUALPIPEV = range(4, 12)
IN_A_V = (ZB_V, V_HALF, V_MIN, DUALPIPEV)

Item = tuple[Block, ...]
"""One block, or a forward and a backward at the same time."""


def late_weights(schedule: int, stage: int, pp: int, vpp: int, ga: int) -> list[Item]:
    """1F1B order whose W's start some B's late (Qi et al. 2023, figures 2 and 3; PyTorch's interleaved zero bubble)."""
    times = 2 if schedule == ZB_H2 else 1
    group = ga // max(1, ga // pp)
    turns = [(chunk, j) for first in range(0, ga, group) for chunk in range(vpp) for j in range(first, min(first + group, ga))]
    forwards = [Block(stage, FORWARD, chunk, j) for chunk, j in turns]
    inputs = [Block(stage, INPUT, vpp - 1 - chunk, j) for chunk, j in turns]
    weights = [Block(stage, WEIGHTS, vpp - 1 - chunk, j) for chunk, j in turns]
    warm_up = min((vpp - 1) * group + times * (pp - 1 - stage), len(turns))
    row, forwards = forwards[:warm_up], forwards[warm_up:]
    for k, block in enumerate(inputs):
        row += [*forwards[:1], block]
        forwards = forwards[1:]
        if k >= times * stage:
            row.append(weights.pop(0))
    return [(block,) for block in [*row, *weights]]


def zb_v(stage: int, pp: int, ga: int) -> list[Item]:
    """As PyTorch writes it down for at least 2 pp - 1 micro-batches."""
    many = max(ga, 2 * pp - 1)
    following = {(way, chunk): iter(range(many + 1)) for way in (FORWARD, INPUT, WEIGHTS) for chunk in (0, 1)}
    done = dict.fromkeys(following, 0)
    row: list[Block] = []

    def add(words: str) -> None:
        for word in words.split():
            key = {"F": FORWARD, "B": INPUT, "W": WEIGHTS}[word[0]], int(word[1])
            row.append(Block(stage, *key, next(following[key])))
            done[key] += 1

    for words, times in (("F0", 2 * (pp - stage) - 1), ("F1 F0", stage), ("F1 B1 W1", pp - stage)):
        add(" ".join([words] * times))
    while done[FORWARD, 0] < many or done[FORWARD, 1] < done[FORWARD, 0]:
        add(("F0 " if done[FORWARD, 0] < many else "") + "B0 W0 F1 B1 W1")
    for words, times in (("B0 B1", stage), ("B0 W0", pp - stage)):
        add(" ".join([words] * times))
    add(" ".join(["W1"] * (many - done[WEIGHTS, 1]) + ["W0"] * (many - done[WEIGHTS, 0])))
    return [(block,) for block in row if block.micro_batch < ga]


def slots_of(schedule: int, stage: int, pp: int) -> dict[tuple[int, int], int]:
    """First slot of each (way, chunk) of the building blocks (Qi et al. 2024)."""
    if schedule == V_MIN:
        gap = 0 if pp % 3 else 2
        starts = stage, 2 * pp - 1 - stage, 2 * pp + gap + stage, 4 * pp + gap - 1 - stage
    else:
        gap = 0 if pp % 2 else 3
        starts = 2 * stage, 3 * pp - 2 - stage, 3 * pp + gap - 1 + 2 * stage, 6 * pp + gap - 2 - stage
    return dict(zip(((FORWARD, 0), (FORWARD, 1), (INPUT, 1), (INPUT, 0)), starts, strict=True))


def with_weights(row: dict[int, Block]) -> tuple[list[Block], int]:
    """A stage's blocks by slot, the oldest W's in the free slots and at the end; and the most chunks held."""
    found: list[Block] = []
    waiting: list[Block] = []
    held = most = slot = 0
    while slot <= max(row) or waiting:
        if slot in row:
            found.append(row[slot])
            if row[slot].way == FORWARD:
                held += 1
                most = max(most, held)
            else:
                waiting.append(row[slot]._replace(way=WEIGHTS))
        elif waiting:
            found.append(waiting.pop(0))
            held -= 1
        slot += 1
    return found, most


def compacted(schedule: int, pp: int, ga: int) -> list[list[Item]]:
    """Warm-up and cool-down of V-Half and V-Min moved together: to the earliest slot that keeps a stage's peak."""
    at = {
        Block(stage, way, chunk, j): slot + 6 * j
        for stage in range(pp)
        for (way, chunk), slot in slots_of(schedule, stage, pp).items()
        for j in range(ga)
    }
    rows: list[dict[int, Block]] = [{} for _ in range(pp)]
    for block, slot in at.items():
        assert slot not in rows[block.stage]
        rows[block.stage][slot] = block
    peaks = [with_weights(row)[1] for row in rows]
    lines = SplitPipeline.places(schedule, pp, 2)
    first, last = at[Block(0, INPUT, 0, 0)], at[Block(0, FORWARD, 0, ga - 1)]

    def move(blocks: list[Block]) -> None:
        for block in blocks:
            row, source, slot = rows[block.stage], lines.sender(block), at[block]
            if not source and block.way == INPUT:
                source = block._replace(way=FORWARD)
            for new in range(at[source] + 1 if source else 0, slot):
                if new in row:
                    continue
                del row[slot]
                row[new] = block
                if with_weights(row)[1] <= peaks[block.stage]:
                    at[block] = new
                    break
                del row[new]
                row[slot] = block

    before = dict(at)
    for chosen in ([b for b in at if before[b] < first], [b for b in at if before[b] > last]):
        move(sorted(chosen, key=lambda b: (at[b], b.stage)))
    return [[(block,) for block in with_weights(row)[0]] for row in rows]


def dual(schedule: int, stage: int, pp: int, ga: int) -> list[Item]:
    """The eight steps of DeepSeek's dualpipe.py and dualpipev.py."""
    both = schedule == DUALPIPE
    half, many = (pp // 2, ga // 2) if both else (pp, ga)
    deep = min(stage, pp - 1 - stage) if both else stage
    near, far = (1, 0) if both and stage >= half else (0, 1)
    row: list[Item] = []
    counts: dict[tuple[int, int], int] = {}
    late: list[Block] = []

    def block(way: int, chunk: int) -> Block:
        counts[way, chunk] = counts.get((way, chunk), -1) + 1
        return Block(stage, way, chunk, counts[way, chunk])

    def forward(chunk: int) -> None:
        row.append((block(FORWARD, chunk),))

    def backward(chunk: int, *, split: bool = False) -> None:
        found = block(BACKWARD, chunk)
        row.append((found._replace(way=INPUT) if split else found,))
        if split:
            late.append(found._replace(way=WEIGHTS))

    def pair(one: int, other: int) -> None:
        row.append((block(FORWARD, one), block(BACKWARD, other)))

    def weights() -> None:
        row.append((late.pop(0),))

    for _ in range(2 * (half - deep - 1)):
        forward(near)
    for _ in range(deep + 1):
        forward(near)
        forward(far)
    for _ in range(half - deep - 1):
        backward(far, split=True)
        weights()
        forward(far)
    for k in range(many - 2 * half + deep + 1):
        if k == 0 and deep == half - 1:
            forward(near)
            backward(far)
        else:
            pair(near, far)
        pair(far, near)
    for _ in range(half - deep - 1):
        backward(far)
        pair(far, near)
    splits = False
    for k in range(deep + 1):
        splits = splits or (k == (deep + 1) // 2 and deep % 2 == 1)
        backward(far, split=splits)
        splits = splits or (k == (deep + 1) // 2 and deep % 2 == 0)
        backward(near, split=splits)
    for _ in range(half - deep - 1):
        weights()
        backward(near, split=True)
    for _ in range(deep + 1):
        weights()
    return row


@dataclass(frozen=True)
class SplitPipeline:
    """A pipeline to run, all in seconds, as Pipeline; `weights[stage][chunk]` is the part of a backward that runs apart, and
    `pair[stage][chunk]` a forward of the chunk beside a backward of the other; `crowded_pair`: what it takes longer, its NICs
    being full."""

    schedule: int
    pp: int
    chunks: int
    ga: int
    duration: list[list[list[float]]]
    weights: list[list[float]]
    pair: list[list[float]]
    into: list[list[float]]
    gate: list[list[tuple[float, float]]]
    nics: list[Nics]
    crowded_pair: list[list[float]]

    @staticmethod
    def places(schedule: int, pp: int, chunks: int) -> SplitPipeline:
        """One that only knows where its virtual stages are."""
        return SplitPipeline(schedule, pp, chunks, 0, [], [], [], [], [], [], [])

    def sender(self, block: Block) -> Block | None:
        """The block whose end a block waits for, on another stage or its own."""
        step = -1 if block.way == FORWARD else 1
        stage, chunk = block.stage, block.chunk
        last = self.pp - 1
        if self.schedule == DUALPIPE:
            there = stage + (step if chunk == 0 else -step)
            return block._replace(stage=there) if 0 <= there <= last else None
        in_model = chunk * self.pp + (last - stage if self.schedule in IN_A_V and chunk else stage) + step
        if not 0 <= in_model < self.pp * self.chunks:
            return None
        chunk, stage = divmod(in_model, self.pp)
        return block._replace(stage=last - stage if self.schedule in IN_A_V and chunk else stage, chunk=chunk)

    def rows(self) -> list[list[Item]]:
        """The order of each stage."""
        if self.schedule in (V_HALF, V_MIN):
            return compacted(self.schedule, self.pp, self.ga)
        if self.schedule == ZB_V:
            return [zb_v(stage, self.pp, self.ga) for stage in range(self.pp)]
        if self.schedule in (DUALPIPE, DUALPIPEV):
            return [dual(self.schedule, stage, self.pp, self.ga) for stage in range(self.pp)]
        return [late_weights(self.schedule, stage, self.pp, self.chunks, self.ga) for stage in range(self.pp)]

    def run(self) -> tuple[list[Stage], dict[Block, float], list[float]]:
        """The stages; the end of each block, and of both parts of a whole backward; the start of each stage."""
        rows = self.rows()
        item_of = {block: item for row in rows for item in row for block in item}
        whole = {block._replace(way=way): block for block in item_of if block.way == BACKWARD for way in (INPUT, WEIGHTS)}
        before = {item: (row[k - 1] if k else None) for row in rows for k, item in enumerate(row)}
        graph: dict[Item, set[Item]] = {}
        for item, last in before.items():
            graph[item] = {last} if last else set()
            for block in item:
                source = self.source(block)
                if source:
                    graph[item].add(item_of[whole.get(source, source)])
        stages, begun = [Stage() for _ in range(self.pp)], [-1.0] * self.pp
        end: dict[Block, float] = {}
        for item in TopologicalSorter(graph).static_order():
            at = item[0].stage
            self._take(item, stages[at], end)
            if begun[at] < 0:
                begun[at] = stages[at].end - self.seconds(item)
        return stages, end, begun

    def source(self, block: Block) -> Block | None:
        """What a block waits for, as the end of an input gradient where it is a backward's; none for a weight gradient."""
        found = None if block.way == WEIGHTS else self.sender(block)
        return found._replace(way=INPUT) if found and found.way == BACKWARD else found

    def seconds(self, item: Item) -> float:
        """Seconds of one block or a pair."""
        block = item[0]
        stage, chunk = block.stage, block.chunk
        if len(item) == 2:
            return self.pair[stage][chunk] + self.crowded_pair[stage][chunk]
        if block.way == WEIGHTS:
            return self.weights[stage][chunk]
        whole = self.duration[FORWARD if block.way == FORWARD else BACKWARD][stage][chunk]
        return whole - self.weights[stage][chunk] if block.way == INPUT else whole

    def _take(self, item: Item, stage: Stage, end: dict[Block, float]) -> None:
        """Wait for messages, then run."""
        free = through = stage.end
        longest = queued = 0.0
        for block in item:
            source = self.source(block)
            if not source:
                continue
            cost = self.cost(source.stage, block) if source.stage != block.stage else 0.0
            left, held = self.nics[source.stage].message(source, end[source])
            through, longest, queued = max(through, left + cost), max(longest, cost), max(queued, held)
            stage.in_messages += cost
        queued = min(queued, through - free)
        stage.queued += queued
        stage.held_up_by_messages += min(through - free - queued, longest)
        stage.idle += max(through - free - queued - longest, 0.0)
        block, alone = item[0], self.seconds(item)
        nics, seconds = self.nics[block.stage], alone
        if len(item) == 1 and block.way != WEIGHTS:
            seconds += nics.behind_message(FORWARD if block.way == FORWARD else BACKWARD, block.chunk, through)
        done = through + seconds
        if block.way == FORWARD and block.micro_batch == 0:
            gated = nics.first_forward(block.chunk, through, seconds, alone, self.gate[block.stage][block.chunk])
            stage.gated += gated - done
            done = gated
        stage.end = done
        for each in item:
            end[each] = done
            if each.way == BACKWARD:
                end[each._replace(way=INPUT)] = end[each._replace(way=WEIGHTS)] = done
        if block.way != WEIGHTS:
            nics.sent = done
        if nics.queue:
            ways = [(FORWARD if each.way == FORWARD else BACKWARD, each.chunk) for each in item if each.way != WEIGHTS]
            nics.queue.pass_blocks(ways, through, alone)
            late = nics.queue.leave(ways, done, nics) if ways else 0.0
            for each in item:
                if each.way != WEIGHTS:
                    sent = each if each.way == FORWARD else each._replace(way=INPUT)
                    nics.left_at[sent] = done + late, late

    def cost(self, sender: int, block: Block) -> float:
        """Seconds of a message from another stage, over the link between the two."""
        link = self.link(sender, block)
        return self.into[FORWARD][link] if block.way == FORWARD else self.into[BACKWARD][link - 1]

    def link(self, sender: int, block: Block) -> int:
        """The stage below the link between two others; 0: that of the last and the first."""
        ring = {sender, block.stage} == {0, self.pp - 1} and self.pp > 2
        here = self.pp == 2 and self.schedule not in (DUALPIPE, *IN_A_V) and (sender > block.stage) == (block.way == FORWARD)
        return 0 if ring or here else max(sender, block.stage)
