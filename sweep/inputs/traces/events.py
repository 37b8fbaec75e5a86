"""The events of one rank as columns: what its GPU ran, what launched it, operators, steps, memory, and how it was made."""

from typing import NamedTuple

from sim_core import Bools, Fields, Floats, Ints

NONE = -1
"""The number of a row that the file does not tell."""


class Collective(NamedTuple):
    """What the file says of one collective: as Kineto writes it, all or none of it."""

    name: str
    elements_in: int
    elements_out: int
    dtype: str
    group_size: int
    description: str


class GpuEvents(NamedTuple):
    """Columns of what a GPU ran; ids are -1 where the file has none."""

    us: Floats
    dur_us: Floats
    name: Ints  # into `Events.names`
    memory: Ints  # 1: copies or fills memory
    stream: Ints
    correlation: Ints
    external: Ints


class Launches(NamedTuple):
    """Columns of the calls of the host that launch something on a GPU."""

    us: Floats
    dur_us: Floats
    name: Ints
    thread: Ints
    correlation: Ints


class Operators(NamedTuple):
    """Columns of the operators that the host ran."""

    us: Floats
    dur_us: Floats
    name: Ints
    thread: Ints
    external: Ints


class Events:
    """A rank's events; times in microseconds since the first of them. Rows of each kind in file order."""

    gpu: GpuEvents
    host: Launches
    ops: Operators
    # of each GPU event its launch, operator and step as row numbers (joins.join), and its `Kind` (timeline.kinds)
    launch: Ints
    operator: Ints
    step: Ints
    kind: Ints

    def __init__(self, name: str) -> None:
        self.name = name
        self.about: Fields = {}  # the keys of the file that say how it was made
        self.names: list[str] = []  # each name once
        self.collectives: dict[int, Collective] = {}  # by GPU event
        self.op_collectives: dict[int, Collective] = {}  # by operator
        # annotations of the host: (name, start, duration, thread), and steps: (number, start, duration)
        self.annotations: list[tuple[str, float, float, int]] = []
        self.steps: list[tuple[int, float, float]] = []
        # memory: most bytes allocated and reserved on the GPU, number of events
        self.allocated_bytes = self.reserved_bytes = self.memory_events = 0
        self.doubtful = 0  # events whose times are no numbers
        # operators as the profiler numbered them ("Ev Idx"): how many, the lowest and the highest
        self.numbered = 0, 0, 0

    @property
    def linked(self) -> Bools:
        """GPU events whose launch is in the file; the others were launched before the window opened."""
        mask: Bools = self.launch != NONE
        return mask
