"""A SimAI/AICB text as a `Workload`: which lines are layers or once-per-step records, and how often a layer repeats."""

import re
from bisect import bisect
from collections.abc import Iterator, Sequence

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.documents import Words
from sim_core.terms import kinds_by
from sim_core.units import NS, short
from sim_core.workloads import moving
from sim_core.workloads.simai.file import EXPERTS, File
from sim_core.workloads.simai.text import RERUN_POLICY, Record
from sim_core.workloads.words import RULE_OF_GROUP
from sim_core.workloads.workload import (
    AFTER_GRADIENTS,
    ALL_GATHER,
    DP,
    DP_EP,
    EP,
    FORWARD,
    GATHER_PARAMETERS,
    LEAST_FORWARD,
    NO_COMM,
    ONCE_ON_FIRST_STAGE,
    REDUCE_GRADIENTS,
    REDUCE_SCATTER,
    TP,
    WEIGHT_GRADIENT,
    Arrays,
    BasePlan,
    Pieces,
    StepPieces,
    StepRow,
    Workload,
    layers_by_unit,
    no_work,
    step_pieces,
)

MAX_LAYER_TABLE = 300_000
"""Maximum of kinds of layers x layers of the model: the size of the table of counts (2 MB)."""
_KIND = kinds_by("simai")
_ATTENTION_CORE = re.compile(r"core_attention|attention_core|flash_attention|atten_core")


def workload_from_simai(file: File) -> Workload:
    """The workload of a text. Raises FormatError if the model has too many kinds of layers."""
    header, lines, size = file.header, file.repetitions, len(file.micro)
    vpp = header.vpp if header.pp > 1 else 1  # with pp 1, AICB writes the number of layers here
    base = BasePlan(header.tp, header.pp, vpp, header.ep, header.all_gpus, header.ga, file.facts.micro_batch or 1)
    compute_ns = np.array([r.compute_ns for r in file.text.records], float)[lines]
    compute_s = compute_ns.mean(0) * NS
    excess_ns, others_ns = file.first_excess_ns()
    if excess_ns > 0:
        compute_s[0, WEIGHT_GRADIENT] = others_ns * NS
    # how often the backward runs each line's forward again: from the nearest checkpoint up to, excluding, each initiate
    steps, reruns = np.zeros(len(file.text.records)), header.policy == RERUN_POLICY
    for initiate in header.checkpoint_initiates if reruns else ():
        steps[header.checkpoints[bisect(header.checkpoints, initiate) - 1]] += 1
        steps[initiate] -= 1
    again = np.cumsum(steps)[lines]
    again = np.stack([again, again * compute_ns[:, :, FORWARD]], axis=-1).mean(0) * (1.0, NS)
    units, unit_of_layer = _units(file, compute_s)
    places = [[file.places[k] for k in np.flatnonzero(unit_of_layer == unit)] for unit in range(units)]
    places += [[end] for end in (range(file.head), range(size - file.tail, size)) if end]
    pieces, names = _pieces(file, places, compute_s, again)
    step = _step_pieces(file.once, excess_ns * NS)
    # the first stage's layers without experts are the model's only ones
    others = np.resize(unit_of_layer[file.dense_layers :], file.layers)
    all_layers = np.append(unit_of_layer, np.tile(others, header.pp - 1))
    p2p_bytes, p2p_rule, note = _p2p(file, pieces)
    reduces_experts = bool((step.comm_group == DP_EP).any())
    on_experts = (pieces.comm_bytes[np.isin(pieces.comm_group, (EP, DP_EP))] > 0).any()
    has_experts = reduces_experts or bool(on_experts) or any("moe" in name for name in names)
    return Workload(
        kind="simai",
        base=base,
        layers=len(all_layers),
        names=names,
        arrays=Arrays(
            base=base,
            pieces=pieces,
            step=step,
            unit_layers=layers_by_unit(all_layers, len(places)),
            first_unit=units if file.head else -1,
            last_unit=len(places) - 1 if file.tail else -1,
            p2p_bytes=p2p_bytes,
            p2p_rule=p2p_rule,
            micro_batches=float(len(lines)),
            layer_unit=0 if units == 1 else -1,
            shares=file.shares,
            dense_layers=file.dense_layers,
            least_forward=LEAST_FORWARD if reruns else 0.0,
        ),
        sequence=file.facts.sequence,
        measured_on=file.facts.measured_on,
        has_experts=has_experts,
        gradients_known=(True, not has_experts or reduces_experts),
        ends_known=not file.why_unknown,
        replicated_known=file.replicated_known,
        notes=tuple(filter(None, (note, file.note, *_notes(file)))),
    )


def _notes(file: File) -> Iterator[str]:
    pp, vpp, dense = file.header.pp, file.header.vpp, file.dense_layers
    if file.why_unknown:
        axes = "pp or layers" if file.replicated_known else "tp, pp or layers"
        unknown = f"the embedding's part of the parameters is unknown ({file.why_unknown})"
        yield f"{unknown}: plans with other {axes} are infeasible"
    yield file.told
    if file.facts.micro_batch is None:
        yield "the file does not state its micro-batch: taken as 1 (set workload.micro_batch)"
    if pp > 1:
        such = "such layers each" if not dense else f"layers each, without the {dense} that have no experts"
        yield f"the file has one of {pp} stages; the others are assumed to have {file.layers} {such}"
    elif vpp > 1:
        yield f"vpp: {vpp} with pp: 1 is a number of layers, not of virtual stages: taken as 1"


def _units(file: File, compute_s: Floats) -> tuple[int, Ints]:
    """Kinds of distinct layers, and the kind of each layer of the stage."""
    layers, shapes = file.layers * file.header.pp, [record.shape for record in file.micro]
    for timed in (True, False):
        kinds = [(*(shapes[k] for k in layer), compute_s[layer].tobytes() if timed else b"") for layer in file.places]
        ids = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        if len(ids) * layers <= MAX_LAYER_TABLE:
            return len(ids), np.array([ids[kind] for kind in kinds])
        if timed:
            file.warn(0, "too many kinds of layers; those that differ only in times are averaged")
    found = f"{layers} layers of {len(ids)} kinds (pp {file.header.pp} stages of {file.layers})"
    raise file.text.fault(-1, "too many layers", found, f"layers x kinds of at most {MAX_LAYER_TABLE}")


def _pieces(file: File, places: list[list[range]], compute_s: Floats, again: Floats) -> tuple[Pieces, Words]:
    """The columns of all units' pieces, with the means over a unit's `places` in a micro-batch; `again[line]`: re-runs of its
    forward, and their seconds."""
    # for each piece its unit, and the lines that it stands for
    lines = [(unit, list(at)) for unit, of_unit in enumerate(places) for at in zip(*of_unit, strict=True)]
    records = [file.micro[at[0]] for _, at in lines]
    rerun, rerun_s = np.array([again[at].mean(0) for _, at in lines]).T.copy()
    pieces = no_work(len(records))._replace(
        unit=np.array([unit for unit, _ in lines]),
        # equal times give exactly that time
        compute_s=np.array([t[0] if (t == t[0]).all() else t.mean(axis=0) for t in (compute_s[at] for _, at in lines)]),
        comm_kind=np.array([[_KIND[c] for c in r.collective] for r in records]),
        comm_group=np.array([r.groups for r in records]),
        comm_bytes=np.array([r.comm_bytes for r in records], float),
        comm_rule=np.array([rules_of(r, in_layer=True)[1] for r in records]),
        rerun=rerun,
        rerun_s=rerun_s,
        attention_core=np.array([bool(_ATTENTION_CORE.search(r.name)) for r in records]),
    )
    return pieces, tuple(r.name for r in records)


def _step_pieces(records: Sequence[Record], first_s: float) -> StepPieces:
    """The once-per-step records, each as one row for its compute and one for each of its collectives.

    `first_s`: seconds that the embedding has in its first micro-batch only.
    """
    rows = []
    if first_s > 0:
        rows.append(StepRow(ONCE_ON_FIRST_STAGE, WEIGHT_GRADIENT, compute_s=first_s, compute_rule=moving.PARAMETERS))
    for record in records:
        rule, comm_rules = rules_of(record, in_layer=False)
        compute_s = sum(record.compute_ns) * NS
        if compute_s > 0:
            rows.append(StepRow(AFTER_GRADIENTS, compute_s=compute_s, compute_rule=rule))
        for phase, (word, group, size) in enumerate(zip(record.collective, record.groups, record.comm_bytes, strict=True)):
            kind, role = _KIND[word], AFTER_GRADIENTS
            if group in (DP, DP_EP):
                role = GATHER_PARAMETERS if kind == ALL_GATHER else REDUCE_GRADIENTS
            if kind != NO_COMM and size:
                on_ep = record.groups[FORWARD] == EP
                rows.append(StepRow(role, phase, 0.0, moving.FIXED, kind, group, float(size), comm_rules[phase], on_ep))
    return step_pieces(rows)


def rules_of(record: Record, *, in_layer: bool) -> tuple[int, tuple[int, ...]]:
    """Rules of a record's compute, and of its collectives in the three phases (docs/moving.md)."""
    comm = [RULE_OF_GROUP[group] for group in record.groups]
    if record.name == "embedding_norm":  # the whole vocabulary at any tp
        return moving.COMPUTE, (moving.FIXED,) * 3
    if in_layer:
        counts = record.name == EXPERTS and record.collective[:2] == ("ALLGATHER", "NONE")
        return moving.COMPUTE, (moving.EXPERT_COUNTS if counts else comm[0], *comm[1:])
    if record.name == "grad_norm":
        return moving.FIXED, (moving.ALL_PARAMETERS,) * 3
    on_tp = moving.ACTIVATION if record.name.startswith("cross_entropy") else moving.FIXED
    if record.name == "layernorm":  # its size is the rank's parameters, 2 bytes each
        on_tp = moving.PARAMETERS
    compute = moving.PARAMETERS if record.name == "grad_param_compute" else moving.FIXED
    return compute, tuple(rule if group in (DP, DP_EP) else on_tp for rule, group in zip(comm, record.groups, strict=True))


def _p2p(file: File, pieces: Pieces) -> tuple[float, int, str]:
    """Bytes that one rank sends to the next stage: `pp_comm`, else the activation that the TP collectives carry; the rule that
    moves them, and a note."""
    header = file.header
    on_tp = pieces.comm_kind[(pieces.comm_kind != NO_COMM) & (pieces.comm_group == TP) & (pieces.comm_bytes > 0)]
    # a text of tp 1 has no message that tells
    sharded = bool(np.isin(on_tp, (ALL_GATHER, REDUCE_SCATTER)).any()) if len(on_tp) else file.has_columns()
    rule = moving.SHARDED_ACTIVATION if sharded else moving.ACTIVATION
    if header.pp_comm:
        return float(header.pp_comm), rule, ""
    if not file.activation:
        return 0.0, rule, "the size of a pipeline send is unknown (no pp_comm, no TP message): plans with pp > 1 are infeasible"
    size = file.activation / (header.tp if sharded else 1)
    why = f"its TP message / tp {header.tp}" if sharded else "its TP message"
    return size, rule, f"pp_comm is not stated: a pipeline send is taken as {short(size, 'B')}, {why}"
