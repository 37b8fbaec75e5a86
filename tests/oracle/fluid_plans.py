"""Plans of the product for the fluid simulation: the same seconds of blocks and messages, and what they need the NICs for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sim_core import Floats, HardwareTable, Plans, SpecError, Workload, legality
from sim_core.compiled.jit import outer_kernel
from sim_core.costing.case import Tables, case_at
from sim_core.engine.codes import chunks_of
from sim_core.engine.program import DOWN, PAIR, UP, WEIGHT
from sim_core.engine.schedules import PAIRS, SPLITS
from sim_core.metrics import METRICS
from sim_core.planning.columns import Plan, plan_at
from sim_core.simulator import Ran, run_alone
from sim_core.step.gradients import list_layers
from sim_core.step.scratch import Layers
from sim_core.step.sharding import _cost_units, run_slowed
from sim_core.step.sharing import ALL, OPEN
from sim_core.terms import GRADIENTS_SHARDED
from sim_core.timelines.blocks import split_row
from sweep.evaluation.one_plan import plans_of, prepare_plan
from tests.oracle.fluid import Gather, Layer, Message, Step, Work, run
from tests.oracle.pipeline import DEEPSPEED
from tests.oracle.split import SplitPipeline

STEP = METRICS.index("step_time_s")


class Line(NamedTuple):
    """A plan as the user says it: `sweep simulate --model MODEL --hardware HARDWARE --set ...`, on a stack."""

    model: str
    sets: tuple[str, ...]
    hardware: str = "H100-SXM"
    stack: str = "megatron-core"

    def __str__(self) -> str:
        return " ".join([self.hardware, self.stack, self.model, *self.sets])


class Given(NamedTuple):
    """A plan of the product."""

    workload: Workload
    hardware: HardwareTable
    plans: Plans


class Steps(NamedTuple):
    """Seconds of a step: of the product, of the product without sharing, and of the fluid simulation."""

    shared: float
    alone: float
    fluid: float


def given(line: Line) -> Given:
    """The plan of a line."""
    prepared = prepare_plan({"model": line.model, "stack": line.stack}, line.hardware, "event", line.sets)
    return Given(prepared.sweep.workload, prepared.sweep.hardware, plans_of(prepared))


def without_sharing(plan: Given) -> Given:
    """The same plan where every message has NICs of its own."""
    columns = plan.hardware.columns._replace(shared_nics=np.zeros(len(plan.hardware), np.bool_))
    return plan._replace(hardware=replace(plan.hardware, columns=columns))


def steps(plan: Given) -> Steps:
    """The step of a plan, three times."""
    alone, shared = run_alone(*without_sharing(plan)), run_alone(*plan)
    step = lowered(plan, alone, shared)
    if step.lines:  # gradients after the pipeline are no part of the comparison
        fluid_s = float(shared.metrics[STEP] - shared.scratch.times.free_s[: step.pp].max() + max(run(step).ended))
        return Steps(float(shared.metrics[STEP]), float(alone.metrics[STEP]), fluid_s)
    after_s = alone.metrics[STEP] - (alone.scratch.once.reduced_s - alone.scratch.once.slower_s).max()
    fluid_s = float(after_s + barrier_s(step, alone))
    return Steps(float(shared.metrics[STEP]), float(alone.metrics[STEP]), fluid_s)


def causes(plan: Given) -> dict[str, float]:
    """Error of the product's step over the fluid one: of sends beside blocks alone, and what gathers and gradients add."""
    whole_s = steps(plan).fluid

    def off(**without: int) -> float:
        found = steps(plan._replace(plans=plan.plans._replace(**{name: np.array([value]) for name, value in without.items()})))
        return (found.shared - found.fluid) / whole_s

    sends = off(overlap_grad=0, overlap_param=0)
    return {"sends": sends, "gathers": off(overlap_grad=0) - sends, "gradients": off(overlap_param=0) - sends}


def barrier_s(step: Step, alone: Ran) -> float:
    """When the last stage has reduced its gradients; the compute that their kernels slow (dp_contention) comes after it."""
    ran = run(step)
    contention = alone.workload.arrays.framework.dp_contention
    latest = 0.0
    for stage in range(step.pp):
        sent_s = sum(message.seconds for chunk in step.gradients[stage] for _, message in chunk)
        tail_s = ran.reduced[stage] - ran.ended[stage]
        latest = max(latest, ran.reduced[stage] + contention * max(sent_s - tail_s, 0.0))
    return latest


def lowered(plan: Given, alone: Ran, shared: Ran) -> Step:
    """The plan's blocks and messages alone, from a run without sharing, and their NICs, from one with it."""
    one, program, low = plan_at(alone.plans, 0), alone.scratch.program, shared.scratch.low
    assert one.schedule != DEEPSPEED, "meetings of neighbours are not simulated"
    pp, chunks, split = one.pp, chunks_of(one.schedule, one.vpp), bool(SPLITS[one.schedule])
    work: list[list[list[Work]]] = [[[] for _ in range(pp)] for _ in (DOWN, UP)]
    for way in (DOWN, UP):
        for cell in range(pp * chunks):
            of_all, exposed = (float(low.nic_s[way, cell, k]) for k in (ALL, OPEN))
            seconds = float(program.duration_s[way, cell])
            block = Work(seconds, exposed, of_all - exposed)
            work[way][cell // chunks].append(_of_layers(one, shared, way, cell, block))
    weights = [[Work(float(program.duration_s[WEIGHT, stage * chunks + k])) for k in range(chunks)] for stage in range(pp)]
    pairs = []
    for stage in range(pp if PAIRS[one.schedule] else 0):  # each hides the messages of the one behind the other
        nics = [sum(low.nic_s[way, stage * 2 + k, ALL] for way, k in ((DOWN, chunk), (UP, 1 - chunk))) for chunk in range(2)]
        seconds_of = [float(program.duration_s[PAIR, stage * 2 + chunk]) for chunk in range(2)]
        pairs.append([Work(max(seconds, float(nic)), 0.0, float(nic)) for seconds, nic in zip(seconds_of, nics, strict=True)])
    sends = low.send_nic_s
    into = [
        [Message(float(program.message_s[DOWN, stage]), float(sends[stage - 1])) for stage in range(pp)],
        [Message(float(program.message_s[UP, stage]), float(sends[stage])) for stage in range(pp)],
    ]
    gradients = _gradients(one, shared)
    return Step(
        schedule=one.schedule,
        pp=pp,
        vpp=chunks,
        ga=one.ga,
        work=work,
        into=into,
        gradients=gradients,
        gathers=_gathers(one, plan, shared),
        background=one.overlap_pp == 1 or split,
        overlap_grad=one.overlap_grad == 1,
        group=one.microbatch_group_size,
        lines=SplitPipeline(one.schedule, pp, chunks, one.ga, [], [], [], [], [], [], []) if split else None,
        weights=weights,
        pairs=pairs,
    )


@outer_kernel
def _layers_of(
    tables: Tables, layers: Layers, stage: int, chunk: int, way: int
) -> tuple[int, float, float, float, float, float]:
    """Lists the layers of a virtual stage if they are sharded: their number, the part of their messages that needs the NICs,
    the seconds of compute, of messages, of those that nothing hides, and when they end."""
    case = case_at(tables, 0)
    if case.sharding < GRADIENTS_SHARDED:
        return 0, 0.0, 0.0, 0.0, 0.0, 0.0
    of_nics = _cost_units(case, layers)
    count = list_layers(case, chunk * case.plan.pp + stage, layers)
    compute_s, sent_s, waited_s, slowed_s = run_slowed(case, stage, way, count, layers)
    window_s = compute_s + slowed_s
    opened_s = sent_s - min(max(sent_s - waited_s, 0.0), window_s)
    return count, of_nics, window_s, sent_s, opened_s, window_s + waited_s


def _of_layers(one: Plan, ran: Ran, way: int, cell: int, alone: Work) -> Work:
    """A block layer by layer, if they are sharded; `alone` with what it waits for them. Each layer has what they slow it."""
    layers = ran.scratch.layers
    count, of_nics, compute_s, sent_s, opened_s, end_s = _layers_of(ran.tables, layers, *divmod(cell, one.vpp), way)
    if not count:
        return alone

    def messages(seconds: Floats) -> list[Message]:
        return [Message(float(s), float(s) * of_nics) for s in seconds[:count]]

    rows = [
        Layer(float(s) / compute_s, gather, scatter)
        for s, gather, scatter in zip(
            layers.compute_s[:count], messages(layers.gather_s), messages(layers.scatter_s), strict=True
        )
    ]
    rows = rows if way == DOWN else rows[::-1]
    ahead = one.prefetch_layers if one.overlap_param == 1 else 0
    own = {"exposed": alone.exposed - opened_s * of_nics, "hidden": alone.hidden - (sent_s - opened_s) * of_nics}
    own["host"] = alone.seconds - end_s
    return replace(alone, seconds=compute_s, layers=tuple(rows), ahead=ahead, **{k: max(s, 0.0) for k, s in own.items()})


def _sizes(one: Plan, ran: Ran) -> list[list[int]]:
    """The row of the buckets of [stage][chunk]."""
    size = ran.tables.split.size
    chunks = chunks_of(one.schedule, one.vpp)
    return [[int(size[split_row(ran, one, stage, chunk)]) for chunk in range(chunks)] for stage in range(one.pp)]


def _gradients(one: Plan, ran: Ran) -> list[list[list[tuple[float, Message]]]]:
    """Buckets of [stage][chunk] by readiness. What they need of the NICs is known of all of them together."""
    buckets = ran.scratch.buckets

    def of_size(size: int) -> list[tuple[float, Message]]:
        part = float(buckets.nic_s[size] / buckets.total_s[size]) if buckets.total_s[size] > 0 else 0.0
        found = [
            ((j + 1) / float(number), Message(float(seconds), float(seconds) * part))
            for number, seconds in zip(buckets.number[size], buckets.bucket_s[size], strict=True)
            if seconds > 0
            for j in range(int(number))
        ]
        return sorted(found, key=lambda bucket: bucket[0])

    rows = _sizes(one, ran)
    known = {size: of_size(size) for row in rows for size in row}
    return [[known[size] for size in row] for row in rows]


def _gathers(one: Plan, plan: Given, ran: Ran) -> list[list[Gather]]:
    """Parameters of [stage][chunk] if they are gathered beside the pipeline."""
    if one.overlap_param == 0:
        return []
    early = ran.scratch.once.early_s
    return [_of_stage(ran, row, float(early_s)) for row, early_s in zip(_sizes(one, ran), early, strict=False)]


def _of_stage(ran: Ran, row: list[int], early_s: float) -> list[Gather]:
    """The gathers of a stage that began with them before the step."""
    buckets, found = ran.scratch.gathers, []
    for size in row:
        whole, nic = float(buckets.total_s[size]), float(buckets.nic_s[size])
        gone = min(early_s, whole)
        early_s -= gone
        left = 1 - gone / whole if whole > 0 else 0.0
        found.append(
            Gather(
                first=max(float(buckets.first_s[size]) - gone, 0.0),
                all=Message(whole - gone, nic * left),
                buckets=float(buckets.most[size]),
            )
        )
    return found


DENSE = ("gpt3-175b", "llama2-13b", "llama3-8b", "llama3-70b", "megatron-18.4b", "qwen2.5-72b")
EXPERTS = ("deepseek-v2", "glm-4.5-air", "mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "qwen3-235b-a22b")
MOST_BLOCKS = 1536
"""Forwards of a random plan at most."""


DEVICES = (
    *("A100-80G-SXM", "A800-80G-SXM", "B200-SXM", "B300-SXM", "GB200-NVL72", "H100-SXM", "H20-SXM", "H200-SXM", "H800-SXM"),
    *("MI300X", "MI355X", "TPU-v5p", "V100-32G-SXM"),
)
STACKS = (
    *("hai-llm", "llm-foundry", "maxtext", "megatron-2022", "megatron-core", "megatron-deepspeed", "nanotron", "nemo"),
    *("nemo-24", "nemo-automodel", "primus", "torchtitan"),
)
SPLIT = ("zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev")
IN_TWO = ("zb-v", "v-half", "v-min", "dualpipev")


def random_line(rng: np.random.Generator, schedules: Sequence[str] = ()) -> Line:
    """A plan that may be illegal: dense or with experts, any device and stack, vpp 1 to 12, one NIC a node to one a GPU, 10 to
    400 Gb/s; of one of `schedules`, or with whole backwards."""

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    with_experts = bool(rng.random() < 0.5)
    model = str(rng.choice(EXPERTS if with_experts else DENSE))
    pp, tp = pick(1, 2, 2, 4, 4, 8, 8, 16), pick(1, 2, 4, 8)
    cp = pick(1, 1, 2, 4) if with_experts else pick(1, 2, max(16 // tp, 2), max(16 // tp, 2), max(32 // tp, 2))
    vpp = int(rng.integers(1, 13)) if pp > 1 and rng.random() < 0.75 else 1
    ga = pp * pick(1, 1, 2, 4) if vpp > 1 else pick(1, 2, 4, 8, 16, 32)
    replicas = pick(2, 4, 8, 16, 32)
    values: dict[str, object] = {
        "tp": tp,
        "pp": pp,
        "vpp": vpp,
        "cp": cp,
        "ep": pick(2, 8, 16, 16, 32, 32, 64) if with_experts else 1,
        "all_gpus": tp * pp * cp * replicas,
        "micro_batch": pick(1, 1, 2),
        "ga": ga,
        "schedule": "1f1b" if rng.random() < 0.85 else str(rng.choice(["gpipe", "looped-bfs"])),
        "layer_split": "balanced",
        "checkpointing": str(rng.choice(["none", "full"])),
        "bucket_bytes": rng.choice(["0", "0", "32 MB", "128 MB"]),
        "overlap_grad": "true",
    }
    values |= {name: str(rng.random() < 0.5).lower() for name in ("overlap_param", "overlap_tp", "overlap_ep")}
    if vpp == 1:
        values["overlap_pp"] = str(rng.random() < 0.5).lower()
    if schedules:  # their gradients share nothing with their last backwards: compared without
        schedule = str(rng.choice(schedules))
        values |= {"schedule": schedule, "overlap_grad": "false", "overlap_param": "false"}
        values["vpp"] = 2 if schedule in IN_TWO else vpp if schedule == "interleaved-zb" else 1
        values.pop("overlap_pp", None)
    values["hardware.gpus_per_node"] = gpus = pick(4, 8, 8)
    values["hardware.nics_per_node"] = min(pick(1, 2, 3, 4, 8), gpus)
    values["hardware.nic_bandwidth"] = f"{pick(10, 25, 50, 100, 200, 400)} Gb/s"
    values["hardware.memory"] = "100 TB"
    sets = tuple(f"{name}={value}" for name, value in values.items())
    return Line(model, sets, str(rng.choice(DEVICES)), str(rng.choice(STACKS)))


def sharded_line(rng: np.random.Generator) -> Line:
    """A random plan with sharded gradients or parameters, whatever its stack shards."""
    line = random_line(rng)
    more = [f"sharding={rng.choice(['gradients', 'parameters'])}"]
    if more[0].endswith("parameters"):
        more.append(f"prefetch_layers={int(rng.integers(0, 3))}")
        more.append(f"reshard_after_forward={str(rng.random() < 0.6).lower()}")
    return line._replace(sets=(*line.sets, *more))


def random_lines(seed: int, count: int, schedules: Sequence[str] = (), *, sharded: bool = False) -> list[tuple[Line, Given]]:
    """The first `count` plans of a seed that can run, whose messages leave a node."""
    rng = np.random.default_rng(seed)
    found: list[tuple[Line, Given]] = []
    while len(found) < count:
        line = sharded_line(rng) if sharded else random_line(rng, schedules)
        try:
            plan = given(line)
        except SpecError:
            continue
        one = plan_at(plan.plans, 0)
        small = one.pp * one.vpp * one.ga <= MOST_BLOCKS
        if small and one.all_gpus > one.tp * one.pp and (one.pp > 1 or not schedules) and legality(*plan)[0][0] == 0:
            found.append((line, plan))
    return found
