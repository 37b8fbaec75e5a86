"""The plans around one: what each change of one axis gives, simulated, also where the sweep has no such value."""

from collections.abc import Callable, Iterator

from sim_core import Stack, schedules_to_try
from sim_core.hardware.kernels.device import load_kernels, precisions
from sweep.answers.variation import NETWORK, STEP, Change, PlanOfResult, Variation, plan_of, vary
from sweep.reopening import Reopened
from sweep.wording import Values

ELSEWHERE = ("all_gpus", "global_batch", NETWORK, "precision", "expert_imbalance")
"""Changes of the job or its machine, not of the plan alone."""
MXFP8 = "mxfp8"
TENSORWISE = ("torchtitan",)
"""Stacks whose usual recipe in 8 bits scales each tensor anew (torchao.float8); the others have delayed scales."""
BESIDE_BLOCKS = {"overlap_grad": "gradients", "overlap_param": "parameters", "overlap_pp": "pipeline messages"}
"""What an overlap sends beside blocks."""
HARM = 0.001
"""Part of the step that an overlap must cost to be told so."""
WORTH = 0.02
"""Part of the step below which a gain outside the space is not worth a word."""


def neighbours(plan: PlanOfResult, wanted: Callable[[Change], bool] = lambda _: True) -> list[Variation]:
    """A plan under each change of one axis that is wanted. Raises SimError."""
    changes = [(axis, change) for axis, change in _changes(plan) if wanted(change)]
    return [
        Variation(axis=axis, change=_told(change, after, plan.stack), before=plan.row, after=after)
        for (axis, change), after in zip(changes, vary(plan, [change for _, change in changes]), strict=True)
    ]


def of_plan(change: Variation) -> bool:
    """Whether the changed plan trains the same job on the same machine."""
    return change.axis not in ELSEWHERE


def harm(change: Variation, stack: Stack | None) -> str:
    """What the overlap of a change costs, and why, where the plan is faster without it; else empty."""
    steps = (change.before[STEP], change.after[STEP]) if change.runs and change.axis.startswith("overlap_") else (1.0, 1.0)
    on_s, off_s = steps if change.before.get(change.axis) else steps[::-1]
    if on_s < off_s * (1 + HARM):
        return ""
    why = f"the host launches layers of experts {stack.host_overlap_ep if stack else 1:g} x as long, and that hides less"
    if change.axis in BESIDE_BLOCKS:
        why = f"{BESIDE_BLOCKS[change.axis]} and messages of the blocks beside them wait for each other on the NICs"
    return f"{change.axis} costs {on_s / off_s - 1:.1%} here: {why}"


def best_outside(opened: Reopened, number: int) -> Variation | None:
    """The fastest plan outside the space that differs from plan `number` in one axis: what a wider space would find.

    None where none is faster by more than WORTH. It trains the same job on the same machine, and the stack has its schedule.
    Raises SimError.
    """
    plan = plan_of(opened, number)
    if not plan.runs:
        return None
    stack = plan.stack

    def outside(change: Change) -> bool:
        known = stack is None or change.get("schedule", stack.schedules[0]) in stack.schedules
        return known and any(str(value) not in _held(plan, name) for name, value in change.items())

    running = [each for each in neighbours(plan, outside) if of_plan(each) and each.runs and each.gain(STEP) > WORTH]
    return max(running, key=lambda each: each.gain(STEP), default=None)


def _held(plan: PlanOfResult, name: str) -> set[str]:
    """The values that a plan's sweep has of a field, as texts."""
    spec = plan.opened.spec
    for key, values in spec.axes.items():
        names = key.split(",")
        if name in names:
            return {str(value[names.index(name)] if len(names) > 1 else value) for value in values}
    return {str(spec.fixed.get(name, plan.row.get(name)))}


def _told(change: Change, row: Values, stack: Stack | None) -> str:
    """A change in words, with what the stack does not have."""
    words = []
    for name, value in change.items():
        if name == NETWORK:
            words.append(f"NIC {row['nic_bandwidth'] / 1e9:g} GB/s")
        elif name == "all_gpus":
            words.append(f"{value} GPUs (dp {row['dp']})")
        elif name == "global_batch":
            words.append(f"global batch {value} (ga {row['ga']})")
        elif name == "schedule" and stack and value not in stack.schedules:
            words.append(f"schedule {value} ({stack.name} lacks it)")
        else:
            words.append(f"{name} {('on' if value else 'off') if isinstance(value, bool) else value}")
    return ", ".join(words)


def _changes(plan: PlanOfResult) -> Iterator[tuple[str, Change]]:
    """Changes worth a look, each with the name of its axis; a size is halved and doubled."""
    row, workload = plan.row, plan.sweep.workload
    own = {**plan.fields, **row}
    tp, pp, vpp, ep, dp = (int(own[name]) for name in ("tp", "pp", "vpp", "ep", "dp"))
    from_file = workload.from_file  # which does not tell what context parallelism changes
    for name in ("tp", *([] if from_file else ["cp"]), "pp", *(["ep"] if workload.has_experts else []), "micro_batch"):
        for value in _both_ways(int(own[name])):
            yield name, {name: value, **({"vpp": 1} if name == "pp" and value == 1 and vpp > 1 else {})}
    for value in _chunks(pp, vpp, workload.layers, str(row["layer_split"])):
        yield "vpp", {"vpp": value}
    known_load = len(workload.arrays.expert_load) > 0 or not from_file
    # of precisions 16 bits, the usual 8 bits of the stack, and those of the device with scales of blocks
    recipes: tuple[str, ...] = ("bf16",)
    if plan.hardware.value("peak_flops_fp8") > 0:
        recipes += ("fp8_tensorwise" if plan.stack and plan.stack.name in TENSORWISE else "fp8_delayed",)
    recipes += (MXFP8,) * (not from_file and MXFP8 in precisions(load_kernels(plan.hardware)))
    switch = (True, False)
    hosts = not from_file and plan.hardware.value("host_bandwidth") > 0
    worth: dict[str, tuple[bool, tuple[str | bool | float, ...]]] = {
        "checkpointing": (True, ("none", "selective", "full", f"block:{max(workload.layers // (pp * vpp) // 2, 1)}")),
        "schedule": (pp > 1, schedules_to_try(vpp)),
        "layer_split": (pp > 1, ("balanced", "balanced_cost", "embedding_and_loss_as_layer")),
        "overlap_tp": (tp > 1, switch),
        "overlap_ep": (ep > 1, switch),
        "overlap_pp": (pp > 1, switch),
        "overlap_grad": (dp > 1, switch),
        "overlap_param": (dp > 1, switch),
        "expert_imbalance": (ep > 1 and known_load, ("recorded", "balanced", "zipf:1")),
        "sharding": (dp > 1 and not from_file, ("none", "optimizer", "gradients", "parameters")),
        "activation_offload": (hosts, ("0", "0.5", "1")),
        "optimizer_offload": (hosts and own["sharding"] != "none", (0.0, 1.0)),
        "dispatcher": (ep > 1 and not from_file, ("alltoall", "flex")),
        "precision": (not from_file, recipes),
    }
    for name, (where, values) in worth.items():
        yield from ((name, {name: value}) for value in values if where and value != own[name])
    for name in ("all_gpus", "global_batch"):
        yield from ((name, {name: value}) for value in _both_ways(int(row[name])))
    yield from ((NETWORK, {NETWORK: plan.network(times)}) for times in (0.5, 2.0))


def _both_ways(value: int) -> list[int]:
    """Half of it, if that is whole, and twice as much."""
    return [value // 2, value * 2] if value % 2 == 0 else [value * 2]


def _chunks(pp: int, vpp: int, layers: int, split: str) -> list[int]:
    """The next smaller and larger numbers of chunks; of an even split, those that divide the layers."""
    if pp == 1:
        return []
    if split != "even":
        return _both_ways(vpp)
    fitting = [each for each in range(1, layers // pp + 1) if layers % (pp * each) == 0]
    return [each for each in fitting if each < vpp][-1:] + [each for each in fitting if each > vpp][:1]
