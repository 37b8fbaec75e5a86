"""Random workloads, machines and legal plans, small enough for the oracle, with every feature that a workload can have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from sim_core import BasePlan, Hardware, HardwareTable, Ints, Plans, Workload, hardware_table, read_hardware
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DP,
    DP_EP,
    EMBEDDING,
    EP,
    GATHER_PARAMETERS,
    NO_COMM,
    ONCE_ON_FIRST_STAGE,
    REDUCE_GRADIENTS,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    TP,
    Arrays,
    Framework,
    Pieces,
    Shares,
    StepPieces,
    layers_by_unit,
)
from tests.conftest import make_plans
from tests.oracle.pipeline import DEEPSPEED, LOOPED_BFS, ONE_F_ONE_B
from tests.oracle.split import DUALPIPE, DUALPIPEV, IN_A_V, INTERLEAVED_ZB
from tests.oracle.step import (
    ALL_PARAMETERS,
    BLOCK,
    COMPUTE,
    EVERY,
    EXPERT_LOAD,
    EXPERT_PARAMETERS,
    FULL,
    PARAMETERS,
    SELECTIVE,
    Plan,
)

FIXED, ACTIVATION, SHARDED_ACTIVATION, VOCABULARY, EXPERT_WEIGHTS = 0, 2, 3, 6, 9
NODES = (2, 4, 7, 8)
EVEN, BALANCED, EMBEDDING_AS_LAYER, LOSS_AS_LAYER, BOTH_AS_LAYERS, BALANCED_COST, LISTED = range(7)
MAX_RANKS = 400
MAX_BLOCKS = 300

NO_SHARES = Shares()
ONE = BasePlan(tp=1, pp=1, vpp=1, ep=1, all_gpus=1, ga=1, micro_batch=1)


def size(rng: np.random.Generator, low: float, high: float) -> float:
    """Log-uniform, a whole number."""
    return float(np.round(np.exp(rng.uniform(np.log(low), np.log(high)))))


def flip(rng: np.random.Generator) -> bool:
    """A coin."""
    return bool(rng.integers(2))


def pick(rng: np.random.Generator, *values: int) -> int:
    """One of some."""
    return int(rng.choice(values))


def one_layer(kind: int = NO_COMM, group: int = TP, message: float = 0.0) -> Pieces:
    """One piece: a second forward, with one collective; backward a message of a byte on TP, so that tp > 1 is legal."""
    return Pieces(
        unit=np.zeros(1, np.int64),
        compute_s=np.array([[1.0, 0.0, 0.0]]),
        comm_kind=np.array([[kind, ALL_REDUCE, NO_COMM]]),
        comm_group=np.array([[group, TP, TP]]),
        comm_bytes=np.array([[message, 1.0, 0.0]]),
        comm_rule=np.array([[FIXED, FIXED, FIXED]]),
        rerun=np.zeros(1),
        rerun_s=np.zeros(1),
        attention_core=np.zeros(1, np.bool_),
        gradient_bytes=np.zeros(1),
    )


def pieces_of(rng: np.random.Generator, units: int, experts: bool, layered: bool) -> Pieces:
    """One to three pieces a unit, with collectives of all kinds on all groups of a layer."""
    unit = np.sort(np.concatenate([np.full(rng.integers(1, 4), u) for u in range(units)]).astype(np.int64))
    n = len(unit)
    kind, group, rule = (np.zeros((n, 3), np.int64) for _ in range(3))
    sizes = np.zeros((n, 3))
    choices = [(k, TP, ACTIVATION) for k in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER)]
    choices += [(SEND_RECEIVE, TP, SHARDED_ACTIVATION), (ALL_REDUCE, DP, VOCABULARY)]
    choices += 2 * [(ALL_TO_ALL, EP, SHARDED_ACTIVATION), (ALL_TO_ALL, EP, EXPERT_LOAD), (ALL_GATHER, DP_EP, FIXED)] * experts
    for k in range(n):
        for phase in range(3):
            if rng.random() < 0.6 or (k == 0 and phase == 0):  # plans with tp > 1 need a message on TP
                chosen = choices[0 if k == 0 and phase == 0 else rng.integers(len(choices))]
                kind[k, phase], group[k, phase], rule[k, phase] = chosen
                sizes[k, phase] = size(rng, 1e3, 6e7)
    return Pieces(
        unit=unit,
        compute_s=np.array([[size(rng, 2e4, 4e6) / 1e9 for _ in range(3)] for _ in range(n)]),
        comm_kind=kind,
        comm_group=group,
        comm_bytes=sizes,
        comm_rule=rule,
        rerun=rng.choice([0.0, 1.0, 2.0], n),
        rerun_s=np.array([size(rng, 2e4, 4e6) / 1e9 for _ in range(n)]),
        attention_core=rng.random(n) < 0.4,
        gradient_bytes=np.round(rng.uniform(1e5, 4e7, n)) * (rng.random(n) < 0.7) if layered else np.zeros(n),
    )


class Once(NamedTuple):
    """A step piece."""

    role: int
    kind: int
    group: int
    message: float
    rule: int
    compute_s: float = 0.0
    compute_rule: int = FIXED


def step_pieces(rows: list[Once]) -> StepPieces:
    """Once-per-step work, as columns."""

    def whole(values: list[int]) -> Ints:
        return np.array(values, np.int64)

    return StepPieces(
        role=whole([row.role for row in rows]),
        phase=whole([0 for row in rows]),
        compute_s=np.array([row.compute_s for row in rows], np.float64),
        compute_rule=whole([row.compute_rule for row in rows]),
        comm_kind=whole([row.kind for row in rows]),
        comm_group=whole([row.group for row in rows]),
        comm_bytes=np.array([row.message for row in rows], np.float64),
        comm_rule=whole([row.rule for row in rows]),
        forward_on_ep=np.zeros(len(rows), np.bool_),
    )


def step_of(rng: np.random.Generator, experts: bool, layered: bool) -> StepPieces:
    """Gathers and reductions of dense and expert parameters, and what follows the gradients."""
    sharded = not layered and rng.random() < 0.6
    rows = []
    for group, rule in ((DP, PARAMETERS), (DP_EP, EXPERT_PARAMETERS))[: 2 if experts else 1]:
        message = size(rng, 1e7, 2e9)
        if not layered:
            rows.append(Once(REDUCE_GRADIENTS, REDUCE_SCATTER if sharded else ALL_REDUCE, group, message, rule))
        if sharded:
            rows.append(Once(GATHER_PARAMETERS, ALL_GATHER, group, message / 2, rule))
        rows.append(Once(AFTER_GRADIENTS, NO_COMM, TP, 0.0, FIXED, size(rng, 1e3, 3e4) / 1e6, rule))
    rows.append(Once(AFTER_GRADIENTS, ALL_REDUCE, EMBEDDING, size(rng, 1e6, 1e9), VOCABULARY, size(rng, 1e3, 3e4) / 1e6))
    if experts:
        rows.append(Once(AFTER_GRADIENTS, ALL_REDUCE, EP, size(rng, 1e3, 1e8), EXPERT_PARAMETERS))
    if flip(rng):
        rows.append(Once(AFTER_GRADIENTS, ALL_REDUCE, TP, size(rng, 1e3, 1e8), PARAMETERS))
    if flip(rng):
        rows.append(Once(ONCE_ON_FIRST_STAGE, NO_COMM, TP, 0.0, FIXED, size(rng, 1e3, 3e4) / 1e6, PARAMETERS))
    if flip(rng):
        rows.append(Once(AFTER_GRADIENTS, ALL_GATHER, TP, size(rng, 1e3, 1e8), ALL_PARAMETERS))
    return step_pieces([rows[k] for k in rng.permutation(len(rows))])


def workload_of(
    pieces: Pieces,
    step: StepPieces,
    unit_of_layer: list[int],
    *,
    base: BasePlan = ONE,
    first_unit: int = -1,
    last_unit: int = -1,
    experts: int | None = None,
    layered: bool = False,
    p2p_bytes: float = 4e6,
    p2p_rule: int = ACTIVATION,
    gradient_width: float = 4.0,
    dtype: str = "bf16",
    state_width: tuple[float, float] = (6.0, 12.0),
    shares: Shares = NO_SHARES,
) -> Workload:
    """A workload of these columns."""
    units = int(pieces.unit.max()) + 1
    alike = len(set(unit_of_layer)) == 1
    return Workload(
        kind="synthetic",
        base=base,
        layers=len(unit_of_layer),
        names=tuple(f"piece {k}" for k in range(len(pieces.unit))),
        arrays=Arrays(
            base=base,
            pieces=pieces,
            step=step,
            unit_layers=layers_by_unit(np.array(unit_of_layer), units),
            first_unit=first_unit,
            last_unit=last_unit,
            p2p_bytes=p2p_bytes,
            p2p_rule=p2p_rule,
            micro_batches=float(base.ga),
            layer_unit=unit_of_layer[0] if alike else -1,
            gradient_width=gradient_width,
            layered_gradients=layered,
            shares=shares,
        ),
        sequence=None,
        measured_on=None,
        has_experts=experts is not None,
        experts=experts,
        dtype=dtype,
        state_width=state_width,
        notes=(),
    )


def random_workload(rng: np.random.Generator) -> Workload:
    """Layers of one to three kinds, with or without something before and after them, experts, gradients with the pieces."""
    experts = int(rng.choice([8, 12])) if flip(rng) else None
    layered = rng.random() < 0.3
    kinds = pick(rng, 1, 1, 2, 3)
    units = kinds + 2
    layers = int(rng.integers(kinds, 15))
    unit_of_layer = [*range(kinds), *rng.integers(0, kinds, layers - kinds).tolist()]
    tp, pp, ep = pick(rng, 1, 2, 4), pick(rng, 1, 2, 4), pick(rng, 1, 2) if experts else 1
    base = BasePlan(tp=tp, pp=pp, vpp=1, ep=ep, all_gpus=tp * pp * 8, ga=pick(rng, 1, 4), micro_batch=pick(rng, 1, 2))
    made = workload_of(
        pieces_of(rng, units, experts is not None and rng.random() < 0.7, layered),
        step_of(rng, experts is not None, layered),
        [int(u) for u in rng.permutation(unit_of_layer)],
        base=base,
        first_unit=kinds if rng.random() < 0.6 else -1,
        last_unit=kinds + 1 if rng.random() < 0.6 else -1,
        experts=experts,
        layered=layered,
        p2p_bytes=size(rng, 1e5, 6e7),
        p2p_rule=pick(rng, ACTIVATION, SHARDED_ACTIVATION),
        gradient_width=float(pick(rng, 2, 4)),
        dtype="bf16" if flip(rng) else "fp32",
        state_width=(float(pick(rng, 6, 8)), float(pick(rng, 8, 12))),
        shares=(random_shares(rng) if flip(rng) else Shares())._replace(whole_experts=layers % 2 == 0),
    )
    made = with_layers_apart(rng.spawn(1)[0], made)
    waits_s = float(np.random.default_rng(made.layers).choice([0.0, 5e-4, 2e-2]))
    made = replace(made, arrays=made.arrays._replace(framework=Framework(micro_batch_host_s=waits_s)))
    return moved_by_tokens(rng, made) if flip(rng) else made


def with_layers_apart(rng: np.random.Generator, made: Workload) -> Workload:
    """The same with parameters that tp or ep does not divide, and first layers without experts."""
    shares = made.arrays.shares
    if flip(rng):
        left = 1 - shares.ends - shares.head - shares.whole
        shares = shares._replace(replicated=float(rng.uniform(0, left)), shared=float(rng.uniform(0, 0.3)))
    most = (made.layers - 1) // made.base.pp if made.experts else 0
    return replace(made, arrays=made.arrays._replace(shares=shares, dense_layers=int(rng.integers(0, most + 1))))


def moved_by_tokens(rng: np.random.Generator, made: Workload) -> Workload:
    """The same as a trace, which may have another sequence, number of experts and load."""
    rules = [COMPUTE, COMPUTE, *([EXPERT_LOAD, EXPERT_WEIGHTS] if made.experts else [])]
    arrays = made.arrays._replace(compute_rule=rng.choice(rules, len(made.arrays.pieces.unit)), sequence=1024.0)
    if made.experts:
        table = rng.uniform(0.5, 2.0, made.experts + 1)
        arrays = arrays._replace(experts=float(made.experts), expert_load=table, recorded_load=float(rng.uniform(1, 3)))
    return replace(made, arrays=arrays)


def random_shares(rng: np.random.Generator) -> Shares:
    """Parts of the parameters that belong to the embedding, and to experts."""
    return Shares(
        ends=float(rng.uniform(0, 0.5)),
        whole=float(rng.uniform(0, 0.1)),
        vocabulary=float(pick(rng, 0, 1000, 50257)),
        experts=float(rng.uniform(0, 1)),
        head=float(pick(rng, 0, 1) * rng.uniform(0, 0.3)),
    )


@dataclass(frozen=True)
class Machines:
    """Some hardware, and what compute was measured on."""

    variants: tuple[Hardware, ...]
    measured_on: Hardware | None
    table: HardwareTable


def random_machines(rng: np.random.Generator, dtype: str, most_memory: float = 5e11) -> Machines:
    """Machines that differ in everything, memory too; NVLink is the faster network on all."""
    variants: list[Hardware] = []
    for _ in range(3):
        values = {
            "gpus_per_node": int(rng.choice(NODES)),
            "nics_per_node": pick(rng, 1, 2, 4, 8),
            "nvlink_bandwidth": f"{size(rng, 1e11, 9e11)} B/s",
            "nvlink_efficiency": round(float(rng.uniform(0.5, 1)), 3),
            "nvlink_latency": f"{rng.uniform(0.1, 2):.3f} us",
            "nic_bandwidth": f"{size(rng, 1e9, 1.2e10)} B/s",
            "nic_efficiency": round(float(rng.uniform(0.5, 1)), 3),
            "nic_latency": f"{rng.uniform(3, 12):.3f} us",
            **{switch: flip(rng) for switch in ("ll128", "pat", "nvls", "nvls_tree")},
            "nvls_efficiency": round(float(rng.uniform(0.5, 1)), 3),
            **{f"ll_bandwidth_{nodes}": f"{size(rng, 1e10, 1e11)} B/s" for nodes in ("one_node", "two_nodes", "more_nodes")},
            "net_overhead": f"{rng.uniform(0, 2):.3f} us",
            "shared_nics": len(variants) < 2,
            "memory": f"{size(rng, 2e9, most_memory)} B",
            "peak_flops_bf16": f"{size(rng, 1e14, 2e15)} FLOP/s",
            "peak_flops_fp32": f"{size(rng, 1e13, 2e14)} FLOP/s",
        }
        variants.append(read_hardware("H100-SXM").with_values(values))
    measured_on = read_hardware("A100-80G-SXM") if flip(rng) else None
    return Machines(tuple(variants), measured_on, hardware_table(variants, measured_on, dtype))


def ends(layer_split: int) -> tuple[int, int]:
    """Whether the embedding and the loss count as layers."""
    return int(layer_split in (EMBEDDING_AS_LAYER, BOTH_AS_LAYERS)), int(layer_split in (LOSS_AS_LAYER, BOTH_AS_LAYERS))


def legal(workload: Workload, plan: Plan) -> bool:
    """Whether a plan may run, memory aside, and is small enough for the oracle (docs: sim_core EXPLANATIONS)."""
    arrays, chunks = workload.arrays, plan.pp * plan.vpp
    slots = plan.layers + sum(ends(plan.layer_split))
    listed = plan.layer_split == LISTED
    before, after = ends(plan.layer_split)
    shares = [-(-slots // chunks)] * chunks
    shares[0] -= before
    shares[-1] -= after
    most = max(plan.virtual_layers if listed and plan.virtual_layers else shares)
    dense, of_experts = workload.gradients_known
    around = plan.dp * (plan.tp if workload.arrays.shares.whole_experts else 1)
    rules = (
        around % plan.ep == 0,
        plan.vpp == 1 or (plan.pp > 1 and plan.overlap_pp == 1),
        fits_schedule(plan),
        not plan.splits or (arrays.pieces.compute_s[:, 2].any() and not arrays.layered_gradients),
        listed or chunks <= slots,
        plan.layers == workload.layers or workload.arrays.layer_unit >= 0,
        listed or plan.layer_split == BALANCED or slots % chunks == 0,
        not listed or (len(plan.virtual_layers), sum(plan.virtual_layers)) == (chunks, plan.layers),
        plan.tp == 1 or workload.has_tp_messages,
        plan.pp == 1 or workload.arrays.p2p_bytes > 0,
        plan.ep == 1 or (workload.has_experts and plan.ep <= (plan.experts or workload.experts or plan.ep)),
        plan.experts % plan.ep == 0 and (not plan.experts or arrays.experts > 0),
        not plan.sequence or arrays.sequence > 0,
        not plan.expert_imbalance or len(arrays.expert_load) > 0,
        plan.expert_imbalance >= 0 or plan.ep in (1, plan.experts or workload.experts),  # drawn orders are not the oracle's
        plan.ep == 1 or workload.has_ep_messages,
        plan.dp == 1 or dense,
        around == plan.ep or of_experts or not workload.has_experts,
        workload.ends_known or (plan.pp, plan.layers) == (workload.base.pp, workload.layers),
        plan.checkpointing != SELECTIVE or workload.has_attention_core,
        plan.checkpointing not in (EVERY, BLOCK) or plan.checkpoint_layers <= most,
        plan.straggler_factor == 1 or plan.straggler_stage < plan.pp,
        not plan.overlap_ep or plan.ep == 1 or plan.schedule == DUALPIPE or pairs_experts(plan),
        plan.all_gpus <= MAX_RANKS,
        3 * chunks * plan.ga <= MAX_BLOCKS,
    )
    return all(rules)


def pairs_experts(plan: Plan) -> bool:
    """Whether another chunk's work lies beside dispatch and combine, and no layer runs again as a whole (Megatron-LM)."""
    return (plan.pp == 1 or plan.vpp > 1) and plan.checkpointing not in (FULL, EVERY, BLOCK)


KNOWN_SCHEDULES = 12
"""How many schedules, from the first row of the ledger on, `order` (tests/oracle/pipeline.py) or `rows` (split.py) knows."""


def fits_schedule(plan: Plan) -> bool:
    """Whether the schedule takes the plan's stages, chunks, micro-batches and switches."""
    pp, ga, group = plan.pp, plan.ga, plan.microbatch_group_size or plan.pp
    if plan.splits and pp > 1 and not plan.overlap_pp:
        return False
    if plan.schedule == ONE_F_ONE_B:
        return plan.vpp == 1 or (pp <= group <= ga and (ga % group == 0 or ga % group >= pp))
    if plan.schedule == DEEPSPEED:
        return plan.vpp == 1 and not plan.overlap_pp and not plan.overlap_grad
    if plan.schedule == INTERLEAVED_ZB:
        return ga % max(1, ga // pp) == 0
    if plan.schedule == DUALPIPE:
        return plan.vpp == 1 and pp % 2 == 0 and ga % 2 == 0 and ga >= 2 * pp
    if plan.schedule in IN_A_V:
        return plan.vpp == 2 and (plan.schedule != DUALPIPEV or ga >= 2 * pp)
    return plan.vpp == 1 or plan.schedule == LOOPED_BFS


def any_schedule(rng: np.random.Generator, pp: int) -> dict[str, int]:
    """A schedule with chunks, micro-batches and switches that often suit it."""
    schedule = int(rng.integers(KNOWN_SCHEDULES))
    vpp = 2 if schedule in IN_A_V else pick(rng, 1, 2, 3) if schedule in (ONE_F_ONE_B, LOOPED_BFS, INTERLEAVED_ZB) else 1
    vpp = vpp if pp > 1 else 1
    rounds = int(rng.integers(1, 9))
    ga = rounds * (pp if schedule in (ONE_F_ONE_B, INTERLEAVED_ZB) and vpp > 1 else 1)
    if schedule in (DUALPIPE, DUALPIPEV):
        ga = 2 * pp + 2 * int(rng.integers(3))
    group = int(rng.integers(pp, ga + 1)) if ga >= pp and flip(rng) else 0
    switch = 1 if vpp > 1 or schedule > LOOPED_BFS else 0 if schedule == DEEPSPEED else pick(rng, 0, 1)
    return {"schedule": schedule, "vpp": vpp, "ga": ga, "microbatch_group_size": group, "overlap_pp": switch}


def random_plans(rng: np.random.Generator, workload: Workload, machines: int) -> Iterator[Plan]:
    """Legal plans without end."""
    step = workload.arrays.step
    reduced = float(step.comm_bytes[step.role == REDUCE_GRADIENTS].max(initial=2e8)) * workload.base.pp
    while True:
        tp, pp, ep = pick(rng, 1, 1, 2, 3, 4, 8), int(rng.integers(1, 7)), pick(rng, 1, 2, 3, 4, 8)
        chosen = any_schedule(rng, pp)
        vpp = chosen["vpp"]
        dp = ep * int(rng.integers(1, 7))
        if workload.arrays.shares.whole_experts and flip(rng):
            dp = int(rng.integers(1, 7))
        layers = workload.layers if rng.random() < 0.7 else max(workload.layers + int(rng.integers(-2, 4)), 1)
        layer_split = pick(rng, EVEN, BALANCED, BALANCED, BALANCED, EMBEDDING_AS_LAYER, LOSS_AS_LAYER, BOTH_AS_LAYERS, LISTED)
        cuts = np.sort(rng.integers(0, layers + 1, pp * vpp - 1))
        listed = np.diff(cuts, prepend=0, append=layers).tolist() if layer_split == LISTED else []
        plan = Plan(
            tp=tp,
            pp=pp,
            ep=ep,
            all_gpus=tp * pp * dp,
            micro_batch=pick(rng, 1, 2, 3),
            **chosen,
            layer_split=layer_split,
            virtual_layers=tuple(listed),
            checkpointing=int(rng.integers(6)),
            checkpoint_layers=int(rng.integers(1, 4)),
            overlap_tp=pick(rng, 0, 1),
            overlap_ep=pick(rng, 0, 1),
            overlap_grad=0 if chosen["schedule"] == DEEPSPEED else pick(rng, 0, 1),
            overlap_param=pick(rng, 0, 1),
            post_validation=pick(rng, 0, 0, 1),
            bucket_bytes=0 if flip(rng) else int(size(rng, reduced / 12, 2 * reduced)),
            hardware=int(rng.integers(machines)),
            layers=layers,
            straggler_stage=int(rng.integers(pp)),
            gradient_precision=pick(rng, 0, 0, 1, 2),
            straggler_factor=pick(rng, 1, 1, 2) * 0.75 + 0.25,
            device_speed=pick(rng, 2, 2, 3) / 2,
            expert_imbalance=pick(rng, 0, 0, 4, 5, -2) / 4 if len(workload.arrays.expert_load) else 0.0,
            sequence=pick(rng, 0, 512, 4096) if workload.arrays.sequence else 0,
            experts=pick(rng, 0, 8, 24) if workload.arrays.experts else 0,
        )
        if legal(workload, plan):
            yield plan


OTHERS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4),
    "pp": (1, 2, 3),
    "vpp": (1, 2),
    "ep": (1, 2),
    "micro_batch": (1, 2),
    "ga": (2, 4, 6),
    "schedule": tuple(range(KNOWN_SCHEDULES)),
    "microbatch_group_size": (0, 3, 4, 5),
    "layer_split": (EVEN, BALANCED, EMBEDDING_AS_LAYER, LOSS_AS_LAYER, BOTH_AS_LAYERS),
    "checkpointing": (0, 1, 2, 3, 4, 5),
    "checkpoint_layers": (1, 2),
    "overlap_tp": (0, 1),
    "overlap_ep": (0, 1),
    "overlap_pp": (0, 1),
    "overlap_grad": (0, 1),
    "overlap_param": (0, 1),
    "post_validation": (0, 1),
    "bucket_bytes": (0, 10_000_000, 100_000_000),
    "hardware": (0, 1, 2),
    "straggler_stage": (0, 1),
    "gradient_precision": (0, 1, 2),
    "straggler_factor": (1.0, 1.5),
    "device_speed": (1.0, 1.5),
    "expert_imbalance": (0.0, 1.0, 1.75, -1.0),
    "sequence": (0, 512, 2048),
    "experts": (0, 8, 24),
}
"""Values that a twin may have instead."""


def twins(workload: Workload, plan: Plan) -> list[Plan]:
    """A plan and all legal ones that differ from it in one column (with its replicas, or with its GPUs)."""
    found = [plan]
    for name, values in OTHERS.items():
        for value in values:
            one = replace(plan, **{name: value})
            whole = replace(one, all_gpus=one.tp * one.pp * plan.dp)
            found += [twin for twin in (one, whole) if twin not in found and twin.all_gpus % (twin.tp * twin.pp) == 0]
    listed = (0,) * (plan.pp * plan.vpp - 1)
    found += [replace(plan, layers=plan.layers + 1), replace(plan, all_gpus=2 * plan.all_gpus)]
    found += [replace(plan, layer_split=LISTED, virtual_layers=row) for row in ((*listed, plan.layers), (plan.layers, *listed))]
    return [twin for twin in found if legal(workload, twin)]


def columns(plans: list[Plan]) -> Plans:
    """The same as columns."""
    names = [f.name for f in fields(Plan) if f.name != "virtual_layers"]
    table = make_plans(**{name: [getattr(plan, name) for plan in plans] for name in names})
    listed = np.full((len(plans), max(len(plan.virtual_layers) for plan in plans)), -1, np.int64)
    for k, plan in enumerate(plans):
        listed[k, : len(plan.virtual_layers)] = plan.virtual_layers
    return table._replace(virtual_layers=listed)
