"""Streams of messages on one NIC, from docs/shared_nics.md: what blocks and streams do to each
other, in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Busy:
    """Seconds for which NICs are needed: by all messages of a block, and by what nothing hides of them."""

    all: float = 0.0
    exposed: float = 0.0

    def add(self, other: Busy, times: float = 1.0) -> None:
        """Another block's too."""
        self.all += times * other.all
        self.exposed += times * other.exposed


def fair(one: float, other: float) -> tuple[float, float]:
    """What two flows that ask for these parts of a link get."""
    if one + other <= 1:
        return one, other
    if one <= 0.5:
        return one, 1 - one
    if other <= 0.5:
        return 1 - other, other
    return 0.5, 0.5


def longer(window: float, busy: Busy, beside: float) -> float:
    """Seconds by which a window becomes longer beside a stream that needs the NICs for `beside` of it.

    While both send, each has half: an exposed message waits once for what the other sends meanwhile, never for more.
    Then nothing is sent twice as fast as the NICs can.
    """
    if window <= 0 or busy.all <= 0 or beside <= 0:
        return 0.0
    waits = busy.exposed * min(beside / window, 1.0)
    too_full = busy.all + beside - window
    return min(max(waits, too_full, 0.0), beside)


@dataclass(frozen=True)
class Beside:
    """A block with a stream beside all of it, in seconds: what the block takes longer, of that for its pipeline message; of the
    stream what gets through; the block alone."""

    more: float = 0.0
    of_message: float = 0.0
    through: float = 0.0
    alone: float = 0.0

    def part(self, left: float) -> float:
        """The part that the block shares with a stream of which so much is left."""
        return min(left / self.through, 1.0) if self.through > 0 else 0.0


def beside(alone: float, busy: Busy, message: float, rate: float) -> Beside:
    """A block and a stream that asks for the part `rate` of the NICs, message by message of the block."""
    if rate <= 0:
        return Beside(alone=alone)
    exposed = min(busy.exposed, alone)
    rest = alone - exposed
    now = through = of_message = 0.0
    asked = min(max(busy.all - exposed, 0.0) / rest, 1.0) if rest > 0 else 0.0
    for seconds, asks in ((exposed, 1.0), (rest, asked)):
        got, left = fair(asks, rate)
        takes = seconds * asks / got if got > 0 else seconds
        now += takes
        through += takes * left / rate
    got, left = fair(1.0, rate)
    of_message = message / got - message
    return Beside(now + of_message - alone, of_message, through + of_message * left / rate, alone)


@dataclass(frozen=True)
class Gradients:
    """Of a chunk: seconds alone of all its buckets; the part of them that is ready before its last backward ends."""

    seconds: float = 0.0
    ready: float = 0.0


@dataclass
class Queue:
    """Pipeline messages of a stage, [way]: one of a way after another, beside those of the other way and beside a stream.

    `seconds[way][chunk]`: of NICs for what a block sends on; `busy[way][chunk]`: for its own messages; `asks[way]`: the part
    of them for which the stream asks. `free`: when all are sent; `later`: by what the latest was delayed after it had left.
    """

    seconds: list[list[float]]
    busy: list[list[float]]
    asks: list[float] = field(default_factory=lambda: [0.0, 0.0])
    free: list[float] = field(default_factory=lambda: [0.0, 0.0])
    later: list[float] = field(default_factory=lambda: [0.0, 0.0])
    latest: float = 0.0

    def pass_blocks(self, ran: list[tuple[int, int]], start: float, alone: float) -> None:
        """A block (way, chunk) or a pair begins, and sends for itself while messages of its stage are under way."""
        busy = sum(self.busy[way][chunk] for way, chunk in ran)
        for of in range(2):
            late = min(max(self.free[of] - start, 0.0), alone) * min(busy / alone, 1.0) if alone > 0 else 0.0
            self.free[of] += late
            self.later[of] += late

    def leave(self, sends: list[tuple[int, int]], end: float, nics: Nics) -> float:
        """By how much the messages of blocks (way, chunk) that have ended are later than alone."""
        before, known, most = list(self.free), list(self.later), 0.0
        for way, chunk in sends:
            if self.seconds[way][chunk] > 0:
                self.later[way] = 0.0
        for way, chunk in sends:
            seconds, other = self.seconds[way][chunk], 1 - way
            if seconds <= 0:
                continue
            both = min((self.seconds[of][at] for of, at in sends), default=0.0) if len(sends) == 2 else 0.0
            begin = max(end, before[way])
            halved = min(max(before[other] - begin, 0.0), seconds)  # both go at half their speed until one is through
            share, of_stream = fair(1.0, self.asks[way])
            slower = self.asks[way] / of_stream if self.asks[way] > 0 else 1.0
            together = min(nics.left(begin) * slower, seconds / share)
            nics.delay(way, together * (1 - 1 / slower))
            takes = seconds + halved + both + together * (1 - share)
            self.free[way] += max(begin + takes - before[way], 0.0)
            self.free[other] += halved
            most = max(most, begin - end + takes - seconds + min(known[way], seconds))
            self.later[other] += halved
        self.latest = most
        return most


@dataclass
class Nics:
    """What a stage sends in the background while its blocks run, block after block: what is left of it, and how late it is.

    Of each chunk: its forward and its backward beside the stream; its gradients; by [way], what it takes longer beside a whole
    pipeline message, and seconds of this message; and of its last backward, once it has run, what it took longer, what its
    buckets are later by, and what those before them were by then.
    """

    forward: list[Beside]
    backward: list[Beside]
    gradients: list[Gradients]
    crowd: list[list[tuple[float, float]]]
    until: float = 0.0
    gathers_late: float = 0.0
    gradients_late: float = 0.0
    crowded: float = 0.0
    slowed: float = 0.0
    begun: set[int] = field(default_factory=set)
    reducing: bool = False
    last: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    queue: Queue | None = None
    sent: float = 0.0
    """When the latest block ended that may send."""
    left_at: dict[object, tuple[float, float]] = field(default_factory=dict)
    """Of a block whose message waited: when that left, and for how long it had waited."""

    def delay(self, way: int, seconds: float) -> None:
        """Messages of a way delay the stream."""
        self.until += seconds
        if way == 0:
            self.gathers_late += seconds
        else:
            self.gradients_late += seconds

    def message(self, block: object, end: float) -> tuple[float, float]:
        """When the message of a block that ended at `end` left, and for how long it had waited."""
        return self.left_at.get(block, (end, 0.0))

    @staticmethod
    def none(chunks: int) -> Nics:
        """Of a stage whose messages share nothing."""
        nothing = [Beside() for _ in range(chunks)]
        return Nics(nothing, nothing, [Gradients()] * chunks, [[(0.0, 0.0)] * chunks for _ in range(2)])

    def left(self, now: float) -> float:
        """Seconds of the stream that are left."""
        return max(self.until - now, 0.0)

    def behind_message(self, way: int, chunk: int, start: float) -> float:
        """What a block takes longer that starts while the latest pipeline message of its stage may be under way."""
        whole, seconds = self.crowd[way][chunk]
        gone = start - self.sent
        if self.queue:
            gone = max(gone - self.queue.latest, 0.0)
        more = whole * max(1 - gone / seconds, 0.0) if seconds > 0 else 0.0
        self.crowded += more
        return more

    def first_forward(self, chunk: int, ready: float, seconds: float, alone: float, gate: tuple[float, float]) -> float:
        """End of a first forward that nothing but its parameters keeps after `ready`; it takes `seconds`, `alone` without
        pipeline messages beside it."""
        block = self.forward[chunk]
        start = max(ready, gate[0] + self.gathers_late)
        part = block.part(self.left(start))
        late = part * (alone + block.more - block.through)
        self.until += late
        self.gathers_late += late
        self.begun.add(chunk)
        return max(start + seconds + part * block.more, gate[1] + self.gathers_late + part * block.of_message)

    def later_forward(self, chunk: int, start: float) -> float:
        """What another forward takes longer while parameters of further chunks are on their way."""
        if len(self.begun) == len(self.forward):
            return 0.0
        more, late = self._beside(self.forward[chunk], start)
        self.gathers_late += late
        return more

    def earlier_backward(self, chunk: int, start: float) -> float:
        """What another backward takes longer while gradients of chunks before are on their way."""
        if not self.reducing:
            return 0.0
        more, late = self._beside(self.backward[chunk], start)
        self.gradients_late += late
        return more

    def _beside(self, block: Beside, start: float) -> tuple[float, float]:
        """What a block takes longer, and what the stream is later."""
        part = block.part(self.left(start))
        late = part * (block.alone + block.more - block.through)
        self.until += late
        self.slowed += part * block.more
        return part * block.more, late

    def last_backward(self, chunk: int, start: float, seconds: float) -> float:
        """What the last backward of a chunk takes longer, whose own gradients join those that are left."""
        block, own = self.backward[chunk], self.gradients[chunk]
        ready, found = own.ready * min(own.seconds, block.through), self.left(start) if self.reducing else 0.0
        left = ready + found
        part = block.part(left)
        more = part * block.more
        self.until = start + seconds + more + left - min(left, block.through) + own.seconds - ready

        def waiting(through: float) -> float:
            """What was ready before the last bucket, and is not sent when that comes, if so much gets through meanwhile."""
            return max(found + own.ready * own.seconds - through, own.ready * (own.seconds - through), 0.0)

        self.last[chunk] = more, more + waiting(block.through) - waiting(block.alone), self.gradients_late
        self.gradients_late, self.reducing = 0.0, True
        self.slowed += more
        return more
