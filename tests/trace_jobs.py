"""Synthetic jobs as rank traces, by an engine of its own: programs of segments, worked off until every rank has ended.

The rule is the traces' own: a rank runs its operations in order; a communication ends at the last arrival plus its cost.
Schedules are Megatron's (1F1B; interleaved 1F1B with blocking exchanges of up to four messages).
Times here are milliseconds.
"""

from __future__ import annotations

import copy
import zlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

Key = tuple[object, ...]
Meeting = tuple[tuple[Key, ...], float]  # messages that a rank takes part in at once; cost
Segment = float | Meeting  # own work, or one exchange


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What is simulated. `moe`: exchanges between experts and their own reduction, a local optimizer; else a gradient norm."""

    tp: int = 1
    pp: int = 4
    vpp: int = 1
    dp: int = 2
    ep: int = 1
    ga: int = 8
    moe: bool = False
    layers: int = 8
    forward_ms: float = 12.0  # of a stage, all its chunks together
    backward_ms: float = 19.0
    head_ms: float = 2.0  # more in the last chunk's forward, and again in its backward
    jitter: float = 0.02
    gap_ms: float = 0.08
    p2p_ms: float = 0.25
    loss_ms: float = 0.9
    optimizer_ms: float = 20.0
    norm_ms: float = 0.3
    tied: bool = True
    embedding: int = 0  # parameters that the end stages hold besides layers
    popularity: tuple[float, ...] = ()  # of the experts: tokens go to ranks by it
    expert_ms: float = 4.0  # of a layer's forward on a rank with the mean of the tokens; with `popularity`
    expert_backward: float = 1.0  # times as long in its backward
    straggler: int | None = None
    straggler_factor: float = 1.3
    hosts: int = 2
    skew_ms: float = 0.0  # ranks start the step up to so much apart
    seed: int = 0

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def per_stage(self) -> int:
        return self.tp * self.dp

    @property
    def experts(self) -> int:
        return len(self.popularity) or (4 * self.ep if self.moe else 0)

    def load(self, replica: int) -> float:
        """Tokens that a replica's experts get, over the mean."""
        if not self.popularity:
            return 1.0
        held = len(self.popularity) // self.ep
        own = replica % self.ep
        return sum(self.popularity[own * held : (own + 1) * held]) * self.ep / sum(self.popularity)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica, tensor rank."""
        return rank // self.per_stage, rank % self.per_stage // self.tp, rank % self.tp

    def rank(self, stage: int, replica: int, tensor: int) -> int:
        return stage * self.per_stage + replica * self.tp + tensor


@dataclass(kw_only=True)
class Part:
    """A communication call inside an operation: which segment it is, and what is written of it."""

    segment: int
    text: str  # trace_src_func=...{time}...
    start_ms: float = 0.0
    end_ms: float = 0.0
    wait_ms: float = 0.0


@dataclass(kw_only=True)
class Op:
    """One operation: its segments in order, and the rows it is written as (more than one for an exchange)."""

    rows: tuple[str, ...]
    state: str
    segments: tuple[Segment, ...]
    gap_ms: float
    group: str = "None"
    shape: str = "None"
    dtype: str = "None"
    description: str = "None"
    parts: list[Part] = field(default_factory=list)
    start_ms: float = 0.0
    end_ms: float = 0.0
    wait_ms: float = 0.0  # in its own communication; that of a call inside is the call's


@dataclass(frozen=True, kw_only=True)
class SyntheticJob:
    """A finished job: the operations of each rank with their true times, and the true step."""

    spec: JobSpec
    programs: list[list[Op]]
    step_s: float

    @property
    def span_s(self) -> float:
        """The longest span of one rank."""
        return max(ops[-1].end_ms - ops[0].start_ms for ops in self.programs) / 1e3

    def rank_text(self, rank: int, *, start_ms: float = 0.0) -> str:
        """The file of a rank, by its host's clock."""
        host = rank * self.spec.hosts // self.spec.world
        origin_ms = (3_371_168_147.09, 16_109_898_840.42, 512.5, 88_000_000.0)[host % 4] + start_ms
        return rank_text(self.spec.place(rank)[0], rank, self.programs[rank], origin_ms)

    def stretched(self, rank: int, times: float) -> SyntheticJob:
        """The same job as if one rank had recorded each of its waits `times` longer: later stamps move, work does not."""
        later_ms = 0.0
        ops = copy.deepcopy(self.programs[rank])
        for op in ops:
            op.start_ms += later_ms
            later_ms += times * op.wait_ms
            for part in op.parts:
                part.start_ms += later_ms
                later_ms += times * part.wait_ms
                part.end_ms += later_ms
            op.end_ms += later_ms
        return replace(self, programs=[*self.programs[:rank], ops, *self.programs[rank + 1 :]])

    def write(self, folder: Path, *, ranks: Iterable[int] | None = None, named: bool = True) -> Path:
        """Files of the ranks (default all) into `folder`, with names that have the layout, or do not."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.spec.world) if ranks is None else ranks:
            (folder / file_name(self.spec, rank, named=named)).write_text(self.rank_text(rank))
        return folder


def file_name(spec: JobSpec, rank: int, *, named: bool = True) -> str:
    """wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0_20250818090223.txt; or a name without the layout."""
    if not named:
        return f"trace_{rank:03d}.txt"
    experts = spec.experts
    stamp = 20250818090223 + rank % 3
    size = f"wd{spec.world}_tp{spec.tp}_pp{spec.pp}_exp{spec.ep}_expNum{experts}"
    return f"{size}_l{spec.layers}_bs1_rank{rank}_{stamp}.txt"


def make_job(spec: JobSpec) -> SyntheticJob:
    """Build every rank's program, run them, return the times."""
    programs = [_Rank(spec, rank).program() for rank in range(spec.world)]
    starts = (
        np.random.default_rng([spec.seed, 77]).uniform(0.0, spec.skew_ms, spec.world) if spec.skew_ms else np.zeros(spec.world)
    )
    run(programs, starts.tolist())
    first = min(ops[0].start_ms for ops in programs)
    last = max(ops[-1].end_ms for ops in programs)
    return SyntheticJob(spec=spec, programs=programs, step_s=(last - first) / 1e3)


def run(programs: list[list[Op]], starts: list[float]) -> None:
    """Set the times of all operations. Raises RuntimeError where ranks wait for each other in a cycle."""
    members: dict[Key, int] = {}
    for ops in programs:
        for op in ops:
            for segment in op.segments:
                for key in segment[0] if isinstance(segment, tuple) else ():
                    members[key] = members.get(key, 0) + 1
    arrived: dict[Key, list[tuple[int, float]]] = {}
    clock = list(starts)
    place = [(0, 0)] * len(programs)  # operation, segment
    ready = deque(range(len(programs)))
    while ready:
        rank = ready.popleft()
        woken = _advance(rank, programs[rank], place, clock, arrived, members)
        ready.extend(woken)
    stuck = [rank for rank, (k, _) in enumerate(place) if k < len(programs[rank])]
    if stuck:
        raise RuntimeError(f"ranks {stuck} wait for each other")


def _advance(
    rank: int,
    ops: list[Op],
    place: list[tuple[int, int]],
    clock: list[float],
    arrived: dict[Key, list[tuple[int, float]]],
    members: dict[Key, int],
) -> set[int]:
    """Run a rank until it must wait; the ranks that its arrivals may have woken."""
    woken: set[int] = set()
    while place[rank][0] < len(ops):
        k, j = place[rank]
        op = ops[k]
        if j == 0 and not _posted(rank, op, arrived):
            op.start_ms = clock[rank] + op.gap_ms if k else clock[rank]
            clock[rank] = op.start_ms
        if j == len(op.segments):
            op.end_ms = clock[rank]
            place[rank] = (k + 1, 0)
            continue
        segment = op.segments[j]
        start = clock[rank]
        if isinstance(segment, tuple):
            keys, cost = segment
            for key in keys:
                met = arrived.setdefault(key, [])
                if all(other != rank for other, _ in met):
                    met.append((rank, start))
                    if len(met) == members[key]:
                        woken |= {other for other, _ in met if other != rank}
            if any(len(arrived[key]) < members[key] for key in keys):
                return woken
            clock[rank] = max(at for key in keys for _, at in arrived[key]) + cost
            wait_ms = clock[rank] - start - cost
        else:
            clock[rank] += segment
            wait_ms = 0.0
        part = next((part for part in op.parts if part.segment == j), None)
        if part is None:
            op.wait_ms += wait_ms
        else:
            part.start_ms, part.end_ms, part.wait_ms = start, clock[rank], wait_ms
        place[rank] = (k, j + 1)
    return woken


def _posted(rank: int, op: Op, arrived: dict[Key, list[tuple[int, float]]]) -> bool:
    """Whether the rank already waits in the first segment of this operation."""
    first = op.segments[0] if op.segments else 0.0
    return isinstance(first, tuple) and any(other == rank for other, _ in arrived.get(first[0][0], []))


_CALL = "trace_src_func={},{{}},input__shape={},input__dtype=torch.{},{}group={},comm_func={}"
_ALL_TO_ALL = _CALL.format("_profiled_all_to_all_single", "[2048, 4096]", "bfloat16", "", "exp", "all_to_all")
_ALL_REDUCE = _CALL.format("_reduce", "[1024, 1, 1024]", "bfloat16", "", "tp", "allreduce")
_LOSS_REDUCE = _CALL.format("allreduce", "[1]", "float32", "func_name=loss_func,", "dp", "allreduce")


class _Rank:
    """The program of one rank."""

    def __init__(self, spec: JobSpec, rank: int) -> None:
        self.spec = spec
        self.rank = rank
        self.stage, self.replica, self.tensor = spec.place(rank)
        self.random = np.random.default_rng([spec.seed, rank])
        self.speed = spec.straggler_factor if rank == spec.straggler else 1.0
        self.ops: list[Op] = []
        self.calls: dict[str, int] = {}

    def program(self) -> list[Op]:
        if self.spec.vpp == 1:
            self._one_f_one_b()
        else:
            self._interleaved()
        self._finalize()
        return self.ops

    # --- the pieces -----------------------------------------------------------------------------------------------

    def _noise(self, ms: float) -> float:
        return ms * max(0.1, 1.0 + self.spec.jitter * float(self.random.standard_normal()))

    def _gap(self) -> float:
        return self.spec.gap_ms * float(self.random.uniform(0.5, 1.5))

    def _add(self, op: Op) -> None:
        self.ops.append(op)

    def _next(self, what: str) -> int:
        self.calls[what] = self.calls.get(what, -1) + 1
        return self.calls[what]

    def _tensor_group(self, what: str, cost: float) -> Segment:
        """A call of the TP group; in a group of one it is written, too, with no duration."""
        return ((("tp", self.stage, self.replica, what),), cost) if self.spec.tp > 1 else 0.0

    def _expert_group(self, what: str, cost: float) -> Segment:
        if self.spec.ep == 1:
            return self._noise(cost)
        return ((("exp", self.stage, self.replica // self.spec.ep, self.tensor, what),), self._cost(cost, what))

    def _cost(self, ms: float, what: str) -> float:
        """The cost of one communication: the same for all its members."""
        chance = zlib.crc32(f"{self.spec.seed} {what}".encode()) / 2**32
        return ms * (1.0 + 2.0 * self.spec.jitter * chance)

    def _compute(self, name: str, state: str, chunk: int, work_ms: float) -> None:
        """forward_step or backward_step: work cut by the calls inside it."""
        calls: list[tuple[Segment, str]] = []
        at = f"{name}-{self._next(name)}"
        spec = self.spec
        load = spec.load(self.replica)
        got = _ALL_TO_ALL.replace("[2048,", f"[{round(2048 * load)},")
        between: list[float] = []  # work of experts before each call
        expert_ms = spec.expert_ms * (spec.expert_backward if name == "backward_step" else 1.0)
        if spec.moe:
            for layer in range(2):
                for half in ("dispatch", "combine"):
                    calls.append((self._expert_group(f"{at}-{layer}-{half}", 0.15), got if half == "combine" else _ALL_TO_ALL))
                    between.append(expert_ms * load if spec.popularity and half == "combine" else 0.0)
        if self.spec.tp > 1 or not self.spec.moe:
            calls += [(self._tensor_group(f"{at}-{turn}", self._cost(0.2, at)), _ALL_REDUCE) for turn in range(2)]
        each = self._noise(work_ms * self.speed) / (len(calls) + 1)
        segments: list[Segment] = [each]
        parts = []
        for k, (segment, text) in enumerate(calls):
            if k < len(between) and between[k]:
                segments[-1] = each + between[k]
            parts.append(Part(segment=len(segments), text=text))
            segments += [segment, each]
        self._add(Op(rows=(name,), state=state, segments=tuple(segments), gap_ms=self._gap(), parts=parts))

    def _forward(self, state: str, chunk: int) -> None:
        spec = self.spec
        last = self.stage == spec.pp - 1 and chunk == spec.vpp - 1
        if last or (self.stage == 0 and chunk == 0):
            self._add(Op(rows=("get_batch",), state=state, segments=(self._noise(0.2),), gap_ms=self._gap()))
        self._compute("forward_step", state, chunk, spec.forward_ms / spec.vpp + (spec.head_ms if last else 0.0))
        if last:
            what = f"loss-{self._next('loss')}"
            call: Segment = ((("dp", self.stage, self.tensor, what),), 0.1) if spec.dp > 1 else 0.1
            segments = (self._noise(spec.loss_ms * 0.6), call, self._noise(spec.loss_ms * 0.4))
            self._add(
                Op(
                    rows=("loss_func",),
                    state=state,
                    segments=segments,
                    gap_ms=self._gap(),
                    description="loss_func, calculate and DP allreduce for the last stage",
                    parts=[Part(segment=1, text=_LOSS_REDUCE)],
                )
            )

    def _backward(self, state: str, chunk: int) -> None:
        spec = self.spec
        last = self.stage == spec.pp - 1 and chunk == spec.vpp - 1
        self._compute("backward_step", state, chunk, spec.backward_ms / spec.vpp + (spec.head_ms if last else 0.0))

    def _exchange(self, state: str, *messages: tuple[str, Key] | None) -> None:
        """One batch of sends and receives; what is None is not there."""
        there = [message for message in messages if message is not None]
        if not there:
            return
        keys = tuple(("p2p", self.replica, self.tensor, *key) for _, key in there)
        cost = max(self._cost(self.spec.p2p_ms, repr(key)) for key in keys)
        self._add(
            Op(
                rows=tuple(name for name, _ in there),
                state=state,
                segments=((keys, cost),),
                gap_ms=self._gap(),
                group="pp",
                shape="[1024, 1, 1024]",
                dtype="torch.bfloat16",
            )
        )

    # --- schedules ------------------------------------------------------------------------------------------------

    def _one_f_one_b(self) -> None:
        s, last, ga = self.stage, self.spec.pp - 1, self.spec.ga
        warmup = min(last - s, ga)

        def send_forward(m: int) -> tuple[str, Key] | None:
            return ("send_forward", ("f", s, m)) if s < last else None

        def recv_forward(m: int) -> tuple[str, Key] | None:
            return ("recv_forward", ("f", s - 1, m)) if s else None

        def send_backward(m: int) -> tuple[str, Key] | None:
            return ("send_backward", ("b", s, m)) if s else None

        def recv_backward(m: int) -> tuple[str, Key] | None:
            return ("recv_backward", ("b", s + 1, m)) if s < last else None

        for m in range(warmup):
            self._exchange("warmup", recv_forward(m))
            self._forward("warmup", 0)
            self._exchange("warmup", send_forward(m))
        if warmup < ga:
            self._exchange("help", recv_forward(warmup))
        for m in range(warmup, ga):
            self._forward("steady", 0)
            self._exchange("steady", send_forward(m), recv_backward(m - warmup))
            self._backward("steady", 0)
            self._exchange("steady", send_backward(m - warmup), recv_forward(m + 1) if m + 1 < ga else None)
        for m in range(ga - warmup, ga):
            self._exchange("cooldown", recv_backward(m))
            self._backward("cooldown", 0)
            self._exchange("cooldown", send_backward(m))

    def _interleaved(self) -> None:
        """Megatron's order: groups of pp micro-batches, chunk by chunk; all messages of a turn are one blocking exchange."""
        s, pp, vpp = self.stage, self.spec.pp, self.spec.vpp
        total = self.spec.ga * vpp
        warmup = total if self.spec.ga == pp else min((pp - s - 1) * 2 + (vpp - 1) * pp, total)

        def of(k: int, *, forward: bool) -> tuple[int, int]:  # virtual stage and micro-batch of the k-th forward or backward
            chunk = k % (pp * vpp) // pp
            return (chunk if forward else vpp - 1 - chunk) * pp + s, k // (pp * vpp) * pp + k % pp

        def send(name: str, k: int) -> tuple[str, Key] | None:
            forward = name == "send_forward"
            at, m = of(k, forward=forward)
            there = at + 1 < pp * vpp if forward else at > 0
            return (name, ("f" if forward else "b", at, m)) if there else None

        def recv(name: str, k: int) -> tuple[str, Key] | None:
            forward = name == "recv_forward"
            if k >= total:
                return None
            at, m = of(k, forward=forward)
            if forward:
                return (name, ("f", at - 1, m)) if at > 0 else None
            return (name, ("b", at + 1, m)) if at + 1 < pp * vpp else None

        self._exchange("warmup", recv("recv_forward", 0))
        for k in range(warmup):
            self._forward("warmup", of(k, forward=True)[0] // pp)
            turn = k == warmup - 1 and warmup < total
            ahead = recv("recv_backward", 0) if turn else None
            self._exchange("warmup", send("send_forward", k), recv("recv_forward", k + 1), ahead)
        for k in range(total - warmup):
            ahead_k = k + warmup
            self._forward("steady", of(ahead_k, forward=True)[0] // pp)
            self._backward("steady", of(k, forward=False)[0] // pp)
            forward = (send("send_forward", ahead_k), recv("recv_forward", ahead_k + 1))
            self._exchange("steady", *forward, send("send_backward", k), recv("recv_backward", k + 1))
        if warmup == total:
            self._exchange("cooldown", recv("recv_backward", 0))
        for k in range(total - warmup, total):
            self._backward("cooldown", of(k, forward=False)[0] // pp)
            self._exchange("cooldown", send("send_backward", k), recv("recv_backward", k + 1))

    def _finalize(self) -> None:
        spec, s, d, t = self.spec, self.stage, self.replica, self.tensor
        size = 290_013_184 // (spec.pp * spec.tp)
        dense = size + (spec.embedding if s in (0, spec.pp - 1) else 0)
        if spec.dp > 1:
            took_ms = 11.9 * dense / size
            self._reduce(
                "dp_allreduce", "dp", ("dp", s, t), took_ms, dense, "All-reduce / reduce-scatter, across (DP) replicas"
            )
        if spec.moe and spec.dp > spec.ep:
            self._reduce("ep_dp_allreduce", "ep_dp", ("ep_dp", s, t, d % spec.ep), 20.0, 4 * size, "Expert DP gradients")
        if spec.tied and spec.pp > 1 and s in (0, spec.pp - 1):
            self._reduce("ep_allreduce", "ep", ("embedding", d, t), 3.0, 50304 * 1024, "_allreduce_word_embedding_grads")
        experts = 4 * size if spec.moe else 0
        update = (
            spec.optimizer_ms * (dense + experts) / (size + experts) * (1.0 + 0.1 * (self._noise(1.0) - 1.0))
        )  # memory-bound: steadier than the blocks
        norm: tuple[Segment, ...] = () if spec.moe else ((((("norm", d),), self._cost(spec.norm_ms, "norm"))),)
        self._add(Op(rows=("optimizer_step",), state="finalize", segments=(*norm, update), gap_ms=self._gap()))

    def _reduce(self, name: str, group: str, key: Key, cost_ms: float, elements: int, description: str) -> None:
        self._add(
            Op(
                rows=(name,),
                state="finalize",
                segments=(((("reduce", *key),), self._cost(cost_ms, repr(key))),),
                gap_ms=self._gap(),
                group=group,
                shape=f"[{elements}]",
                dtype="torch.float32",
                description=description,
            )
        )


def rank_text(stage: int, rank: int, ops: list[Op], origin_ms: float) -> str:
    """The lines of one rank."""
    lines = []
    counts: dict[str, int] = {}
    for op in ops:
        parts = ", ".join(
            "'" + part.text.replace("{}", _times(part.start_ms, part.end_ms, origin_ms)) + "'" for part in op.parts
        )
        for name in op.rows:
            counts[name] = counts.get(name, -1) + 1
            batch = 0 if op.state == "finalize" else counts[name]
            times = f"duration={_ms(op.end_ms - op.start_ms)},description={op.description},group_kind={op.group}"
            times += f",input__shape={op.shape},input__dtype={op.dtype},timestamp={_ms(op.end_ms + origin_ms)}"
            head = f"rank:{rank}:{name}(stage_id={stage},batch_id={batch},mg_state={op.state}"
            lines.append(f"{head},{times},sub_operations=[{parts}])")
    return "\n".join(lines) + "\n"


def _times(start_ms: float, end_ms: float, origin_ms: float) -> str:
    return f"duration={_ms(end_ms - start_ms)},timestamp={_ms(end_ms + origin_ms)}"


def _ms(value: float) -> str:
    return repr(round(value, 2))
