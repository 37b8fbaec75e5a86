"""A fluid simulation of one step: the messages of a stage share its NICs by max-min fairness, event by event.

Written from the physics, not from docs/shared_nics.md; it knows nothing of the product but the order of blocks (tests/oracle).

- **NICs.** A stage has one pool of capacity 1: its ranks' share of their nodes' NICs. Sending counts, receiving does not: links
  are full duplex; rings, all-to-alls and a stage between two others receive as much as they send.
- **Flows.** A message takes `seconds` alone, in which it needs the NICs for `nic`. Alone it asks for nic/seconds of the pool,
  evenly; given a part of what it asks for, it goes on at that part of its speed. Where the flows ask for more than 1, shares
  are max-min fair: none gets more than it asks for, and who gets less gets as much as any other.
- **Blocks.** A forward or backward takes `seconds` alone. For `exposed` of them it sends at full speed, and stands still until
  that is through; during the others it computes, and sends `hidden` evenly beside the compute, which waits when that
  falls behind. Both alternate in slices so small that only their means count (the fluid limit): with e = exposed/seconds,
  h = hidden/(seconds - exposed), and shares of s_e of 1 in the one kind of slice and s_h of h in the other, a second of
  its own takes e/s_e + (1 - e) h/s_h, and others get the mean of their shares over these two times.
- **Pipeline.** Blocks run in the schedule's order, each after the one before it on its stage and after its message; two of a
  pair run as one. In the background a message leaves at the end of its block, and when the one before it over the same link
  has left the NICs (NCCL sends those of two ranks in the order in which they were posted); its latency keeps no other.
  Blocking, when its sender has ended the block and its receiver the block before the one that needs it, and the sender goes
  on when it is through. Each message is a flow of its sender.
- **Gradients.** Bucket j of n of a chunk is ready when its last backward has done (j + 1)/n of its own work. One stream of each
  stage sends bucket after bucket as they become ready, beside whatever the stage does then; without overlap all of
  them after its last block. A stage is through when its blocks and its stream are, and the barrier is the last stage.
- **Parameters.** With overlap one stream of each stage gathers chunk after chunk from the start. The first forward of a chunk
  begins when the first bucket is there, and ends no sooner than the compute of a bucket after the last.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.oracle.pipeline import BACKWARD, FORWARD, INPUT, WEIGHTS, Block, order
from tests.oracle.split import Item, SplitPipeline

DONE = 1e-12


@dataclass(frozen=True)
class Message:
    """Seconds that a message takes alone, and those of the NICs in them."""

    seconds: float = 0.0
    nic: float = 0.0

    @property
    def demand(self) -> float:
        """The part of the NICs that it asks for."""
        return min(self.nic / self.seconds, 1.0) if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Work:
    """A block alone: its seconds, and those of the NICs for messages that nothing hides, and that compute hides. Of sharded
    layers it is their compute alone, in the order in which they run; `ahead`: gathered layers that may wait to run; `host`:
    seconds before the first."""

    seconds: float
    exposed: float = 0.0
    hidden: float = 0.0
    layers: tuple[Layer, ...] = ()
    ahead: int = 0
    host: float = 0.0


@dataclass(frozen=True)
class Layer:
    """A layer: its part of the compute of a block, the gather of its parameters before, the scatter of its gradients after."""

    part: float
    gather: Message
    scatter: Message


@dataclass(frozen=True)
class Gather:
    """Parameters of a chunk: seconds until the first buckets are there, of all, of the NICs; and the number of buckets."""

    first: float
    all: Message
    buckets: float = 1.0


@dataclass(frozen=True)
class Step:
    """A pipeline to run: `work[way][stage][chunk]`, `into[way][stage]` the message into a stage,
    `gradients[stage][chunk]` buckets of (part of the backward after which it is ready, message)."""

    schedule: int
    pp: int
    vpp: int
    ga: int
    work: list[list[list[Work]]]
    into: list[list[Message]]
    gradients: list[list[list[tuple[float, Message]]]]
    gathers: list[list[Gather]] = field(default_factory=list)
    background: bool = True
    overlap_grad: bool = True
    group: int = 0
    lines: SplitPipeline | None = None
    """Where backwards are split: who runs when, and who sends to whom; its weight gradients and pairs as `Work`."""
    weights: list[list[Work]] = field(default_factory=list)
    pairs: list[list[Work]] = field(default_factory=list)


@dataclass(frozen=True)
class Ran:
    """Seconds after which each stage has ended its last block, and its reduction; and the end of each block."""

    ended: list[float]
    reduced: list[float]
    block: dict[Block, float]


def fair(demands: Sequence[float]) -> list[float]:
    """Max-min fair shares of a capacity of 1."""
    if sum(demands) <= 1:
        return list(demands)
    shares, left = [0.0] * len(demands), 1.0
    waiting = sorted(range(len(demands)), key=demands.__getitem__)
    for turn, k in enumerate(waiting):
        shares[k] = min(demands[k], left / (len(waiting) - turn))
        left -= shares[k]
    return shares


Speeds = tuple[float, list[float]]


def speeds(work: Work | None, demands: tuple[float, ...]) -> Speeds:
    """Speeds of a block and of the flows beside it, over those alone."""
    if work is None:
        return 0.0, [s / d if d > 0 else 1.0 for s, d in zip(fair(demands), demands, strict=True)]
    exposed = min(work.exposed / work.seconds, 1.0)
    computed = 1 - exposed
    hidden = min(work.hidden / (work.seconds - work.exposed), 1.0) if computed > 0 else 0.0
    open_share, *open_shares = fair((1.0, *demands))
    share, *shares = fair((hidden, *demands))
    open_s = exposed / open_share
    computed_s = computed * (hidden / share if share > 0 else 1.0)
    mean = [(open_s * one + computed_s * two) / (open_s + computed_s) for one, two in zip(open_shares, shares, strict=True)]
    return 1 / (open_s + computed_s), [s / d if d > 0 else 1.0 for s, d in zip(mean, demands, strict=True)]


@dataclass
class Flow:
    """A message under way: its seconds alone that are left, and what follows."""

    left: float
    demand: float
    then: Callable[[], None]


class Pool:
    """The NICs and the block of one stage, up to a time."""

    def __init__(self, known: dict[tuple[Work | None, tuple[float, ...]], Speeds]) -> None:
        self.now = 0.0
        self.work: Work | None = None
        self.left = 0.0
        """Seconds alone until the block has ended, or its next bucket is ready."""
        self.reached: Callable[[], None] | None = None
        self.flows: list[Flow] = []
        self._known = known
        self._block_speed = 0.0
        self._speeds: list[float] = []

    def advance(self, to: float) -> None:
        """Let what is under way go on until a time, at the speeds that it has."""
        past = to - self.now
        if past > 0:
            self.left -= past * self._block_speed
            for flow, speed in zip(self.flows, self._speeds, strict=True):
                flow.left -= past * speed
        self.now = to

    def next_at(self) -> float:
        """Share anew; when the next of what is under way is through."""
        demands = tuple([flow.demand for flow in self.flows])
        key = (self.work, demands)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = speeds(self.work, demands)
        self._block_speed, self._speeds = found
        soonest = self.left / self._block_speed if self.work else float("inf")
        for flow, speed in zip(self.flows, self._speeds, strict=True):
            soonest = min(soonest, flow.left / speed)
        return self.now + max(soonest, 0.0)

    def through(self) -> list[Callable[[], None]]:
        """Take out what is through; what follows it."""
        found = [flow.then for flow in self.flows if flow.left <= DONE]
        if found:
            self.flows = [flow for flow in self.flows if flow.left > DONE]
        if self.work and self.left <= DONE and self.reached:
            found.append(self.reached)
        return found


def as_sent(block: Block) -> Block:
    """A block as those know it that wait for its message: an input gradient as its backward."""
    return block._replace(way=BACKWARD) if block.way == INPUT else block


class Fluid:
    """One run of a step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        known: dict[tuple[Work | None, tuple[float, ...]], Speeds] = {}
        self.pools = [Pool(known) for _ in range(step.pp)]
        self.orders: list[list[Item]] = [
            [(block,) for block in order(step.schedule, s, step.pp, step.vpp, step.ga, step.group)] for s in range(step.pp)
        ]
        if step.lines:
            self.orders = step.lines.rows()
        every = [as_sent(block) for row in self.orders for item in row for block in item if block.way != WEIGHTS]
        self.source = {block: self._sender(block) for block in every}
        self.target = {source: block for block, source in self.source.items() if source}
        self.turn = [0] * step.pp
        self.running = [False] * step.pp
        self.sending = [False] * step.pp
        """Whether a stage waits for what it sends, where sending blocks."""
        self.arrived: set[Block] = set()
        self.posted: dict[Block, int] = {}
        self.end: dict[Block, float] = {}
        self.ended = [0.0] * step.pp
        self.reduced = [0.0] * step.pp
        self.queue: list[deque[Message]] = [deque() for _ in range(step.pp)]
        self.streaming = [False] * step.pp
        self.begun = [[not step.gathers] * step.vpp for _ in range(step.pp)]
        self.gathered: dict[tuple[int, int], float] = {}
        self.held: dict[int, Item] = {}
        self.links: dict[tuple[int, int], deque[Block]] = {}
        self.touched: set[int] = set()
        self.now = 0.0

    def run(self) -> Ran:
        """Event after event until nothing is under way."""
        for stage in range(self.step.pp):
            if not self.step.background:
                self._post(self.orders[stage][0][0])
            if self.step.gathers:
                self._gather(stage, 0)
            self._start(stage)
        heap: list[tuple[float, int, int]] = []
        version = [0] * self.step.pp
        self.touched = set(range(self.step.pp))
        while True:
            for stage in self.touched:
                version[stage] += 1
                at = self.pools[stage].next_at()
                if at < float("inf"):
                    heapq.heappush(heap, (at, stage, version[stage]))
            self.touched = set()
            while heap and heap[0][2] != version[heap[0][1]]:
                heapq.heappop(heap)
            if not heap:
                break
            self.now, stage, _ = heapq.heappop(heap)
            pool = self._pool(stage)
            for then in pool.through():
                then()
        blocks = sum(len(item) for row in self.orders for item in row)
        assert len(self.end) == blocks, f"{len(self.end)} of {blocks} blocks ran"
        return Ran(self.ended, [max(r, e) for r, e in zip(self.reduced, self.ended, strict=True)], self.end)

    def _pool(self, stage: int) -> Pool:
        pool = self.pools[stage]
        if stage not in self.touched:
            pool.advance(self.now)
            self.touched.add(stage)
        return pool

    def _send(self, stage: int, message: Message, then: Callable[[], None]) -> None:
        if message.seconds <= DONE:
            then()
            return
        self._pool(stage).flows.append(Flow(message.seconds, message.demand, then))

    def _sender(self, block: Block) -> Block | None:
        if self.step.lines:
            return self.step.lines.sender(block)
        virtual = block.chunk * self.step.pp + block.stage + (-1 if block.way == FORWARD else 1)
        if not 0 <= virtual < self.step.pp * self.step.vpp:
            return None
        return Block(virtual % self.step.pp, block.way, virtual // self.step.pp, block.micro_batch)

    def _start(self, stage: int) -> None:
        """Run the next block of a stage if it can."""
        row = self.orders[stage]
        if self.running[stage] or self.sending[stage] or self.turn[stage] == len(row):
            return
        item = row[self.turn[stage]]
        block = item[0]
        if any(self.source.get(as_sent(each)) and as_sent(each) not in self.arrived for each in item):
            return
        if block.way == FORWARD and block.micro_batch == 0 and not self.begun[stage][block.chunk]:
            return
        self.running[stage] = True
        work, pool = self._work(item), self._pool(stage)
        if work.seconds <= DONE:
            self._go_on(item, self._buckets(block), 0.0)
            return
        pool.work, pool.left = work, 0.0
        if work.layers:
            self._send(stage, Message(work.host), Layered(self, item, work).go_on)
            return
        self._go_on(item, self._buckets(block), 0.0)

    def _work(self, item: Item) -> Work:
        stage, chunk, way = item[0].stage, item[0].chunk, item[0].way
        if len(item) == 2:
            return self.step.pairs[stage][chunk]
        if way == WEIGHTS:
            return self.step.weights[stage][chunk]
        work = self.step.work[FORWARD if way == FORWARD else BACKWARD][stage][chunk]
        return replace(work, seconds=work.seconds - self.step.weights[stage][chunk].seconds) if way == INPUT else work

    def _buckets(self, block: Block) -> deque[tuple[float, Message]]:
        last = block.way == BACKWARD and block.micro_batch == self.step.ga - 1
        return deque(self.step.gradients[block.stage][block.chunk] if last else ())

    def _go_on(self, item: Item, buckets: deque[tuple[float, Message]], done: float) -> None:
        """A block has done a part of its work: send the buckets that are ready, and go on to the next, or to the end."""
        block = item[0]
        pool = self._pool(block.stage)
        while buckets and buckets[0][0] <= done + DONE:
            self.queue[block.stage].append(buckets.popleft()[1])
        if self.step.overlap_grad:
            self._stream(block.stage)
        if done >= 1 or not pool.work:
            while buckets:
                self.queue[block.stage].append(buckets.popleft()[1])
            pool.work, pool.reached = None, None
            self._hold(item)
            return
        until = min(buckets[0][0], 1.0) if buckets and self.step.overlap_grad else 1.0
        pool.left += (until - done) * pool.work.seconds
        pool.reached = lambda: self._go_on(item, buckets, until)

    def _hold(self, item: Item) -> None:
        """A first forward ends no sooner than a bucket's compute after its last parameters."""
        block = item[0]
        stage = block.stage
        if self.step.gathers and block.way == FORWARD and block.micro_batch == 0:
            at = self.gathered.get((stage, block.chunk))
            if at is None:
                self.held[stage] = item
                return
            rest = self.step.work[FORWARD][stage][block.chunk].seconds / self.step.gathers[stage][block.chunk].buckets
            self._send(stage, Message(at + rest - self.now), lambda: self._finish(item))
            return
        self._finish(item)

    def _finish(self, item: Item) -> None:
        """A block has ended: its message leaves, its stage goes on."""
        stage = item[0].stage
        self.running[stage] = False
        self.turn[stage] += 1
        for block in item:
            self.end[block] = self.now
            target = self.target.get(as_sent(block)) if block.way != WEIGHTS else None
            if target and self.step.background:
                self._leave(stage, target)
            elif target:
                self.sending[stage] = True
                self._post(target)
        if not self.step.background and self.turn[stage] < len(self.orders[stage]):
            self._post(self.orders[stage][self.turn[stage]][0])
        self._end(stage)
        self._start(stage)

    def _leave(self, stage: int, target: Block) -> None:
        """A message joins those of its link, which go one after another; the time that needs no NICs keeps no other."""
        if target.stage == stage:
            self._arrive(target)
            return
        link = self.links.setdefault((stage, target.way), deque())
        link.append(target)
        if len(link) == 1:
            self._send_next(stage, target.way)

    def _send_next(self, stage: int, way: int) -> None:
        link = self.links[stage, way]
        target = link[0]
        message = self._message(stage, target)

        def sent() -> None:
            self._send(stage, Message(message.seconds - message.nic), lambda: self._arrive(target))
            link.popleft()
            if link:
                self._send_next(stage, way)

        self._send(stage, Message(message.nic, message.nic), sent)

    def _message(self, stage: int, target: Block) -> Message:
        if not self.step.lines:
            return self.step.into[target.way][target.stage]
        link = self.step.lines.link(stage, target)
        return self.step.into[FORWARD][link] if target.way == FORWARD else self.step.into[BACKWARD][link - 1]

    def _post(self, block: Block) -> None:
        """One of both ends of the message of a block is there."""
        source = self.source[block]
        if not source:
            return
        self.posted[block] = self.posted.get(block, 0) + 1
        if self.posted[block] < 2:
            return

        def through() -> None:
            self.sending[source.stage] = False
            self._end(source.stage)
            self._start(source.stage)
            self._arrive(block)

        self._send(source.stage, self.step.into[block.way][block.stage], through)

    def _arrive(self, block: Block) -> None:
        self.arrived.add(block)
        self._start(block.stage)

    def _end(self, stage: int) -> None:
        """After its last block, and what this sends where sending blocks, a stage has gradients left at most."""
        if self.turn[stage] == len(self.orders[stage]) and not self.sending[stage]:
            self.ended[stage] = self.now
            self._stream(stage)

    def _stream(self, stage: int) -> None:
        """Send the next bucket if there is one."""
        if self.streaming[stage] or not self.queue[stage]:
            return
        self.streaming[stage] = True

        def sent() -> None:
            self.streaming[stage] = False
            self.reduced[stage] = self.now
            self._stream(stage)

        self._send(stage, self.queue[stage].popleft(), sent)

    def _gather(self, stage: int, chunk: int) -> None:
        """Gather the parameters of a chunk, and then of the next: its first buckets, the others."""
        if chunk == self.step.vpp:
            return
        gather = self.step.gathers[stage][chunk]
        first = min(gather.first, gather.all.seconds)
        rest = gather.all.seconds - first

        def begun() -> None:
            self.begun[stage][chunk] = True
            self._start(stage)
            self._send(stage, Message(rest, gather.all.demand * rest), gathered)

        def gathered() -> None:
            self.gathered[stage, chunk] = self.now
            if stage in self.held and self.held[stage][0].chunk == chunk:
                self._hold(self.held.pop(stage))
            self._gather(stage, chunk + 1)

        self._send(stage, Message(first, gather.all.demand * first), begun)


class Layered:
    """A block of sharded layers that runs: one stream gathers and scatters beside the compute, as PyTorch's FSDP does.

    A gather begins when at most `ahead` gathered layers wait to run; the scatter of a layer goes before the gather that its end
    allows. A layer that is there already waits for neither, but without overlap for the scatter before it. The block ends with
    its last scatter.
    """

    def __init__(self, fluid: Fluid, item: Item, work: Work) -> None:
        self.fluid, self.item, self.work = fluid, item, work
        self.stage = item[0].stage
        self.gathered = self.computed = self.scattered = 0
        self.buckets, self.done = fluid._buckets(item[0]), 0.0
        self.computing = self.streaming = False
        fluid.pools[self.stage].work = None

    def go_on(self) -> None:
        """Begin what can begin."""
        layers, pool = self.work.layers, self.fluid._pool(self.stage)
        if self.scattered == len(layers):
            self.fluid._go_on(self.item, self.buckets, 1.0)
            return
        while self.gathered < len(layers) and layers[self.gathered].gather.seconds <= DONE:
            self.gathered += 1
        waits = not self.fluid.step.overlap_grad and self.scattered < self.computed
        if not self.computing and self.gathered > self.computed and not waits:
            part = layers[self.computed].part
            self.computing, pool.work, pool.left, pool.reached = True, self.work, part * self.work.seconds, self._end_layer
        if self.streaming:
            return
        allowed = self.gathered < len(layers) and self.gathered <= self.computed + self.work.ahead
        if self.scattered < self.computed and (not allowed or self.gathered > self.scattered + self.work.ahead):
            self._stream(layers[self.scattered].scatter, self._end_scatter)
        elif allowed:
            self._stream(layers[self.gathered].gather, self._end_gather)

    def _stream(self, message: Message, then: Callable[[], None]) -> None:
        self.streaming = True
        self.fluid._send(self.stage, message, then)

    def _end_layer(self) -> None:
        pool = self.fluid._pool(self.stage)
        pool.work, pool.reached, self.computing = None, None, False
        self.done += self.work.layers[self.computed].part
        self.computed += 1
        while self.buckets and self.buckets[0][0] <= self.done + DONE:
            self.fluid.queue[self.stage].append(self.buckets.popleft()[1])
        if self.fluid.step.overlap_grad:
            self.fluid._stream(self.stage)
        self.go_on()

    def _end_gather(self) -> None:
        self.streaming = False
        self.gathered += 1
        self.go_on()

    def _end_scatter(self) -> None:
        self.streaming = False
        self.scattered += 1
        self.go_on()


def run(step: Step) -> Ran:
    """Run a step."""
    return Fluid(step).run()
