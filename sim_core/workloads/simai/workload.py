"""A SimAI/AICB text as a `Workload`: which lines are layers or once-per-step records, and how often a layer repeats."""

import itertools
import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from sim_core.arrays import Bools, Floats, Ints
from sim_core.errors import FormatError
from sim_core.terms import kinds_by
from sim_core.units import NS, short
from sim_core.workloads import moving
from sim_core.workloads.facts import Facts
from sim_core.workloads.simai.sections import EXPERTS, Sections, dense_layers, layer_starts, sections_of, shape_of
from sim_core.workloads.simai.sizes import first_excess_ns, has_columns, messages_of, parameters_of
from sim_core.workloads.simai.text import RERUN_POLICY, Header, Record, SimaiText
from sim_core.workloads.words import RULE_OF_GROUP, group_of
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
    step_pieces,
)

MAX_LAYER_TABLE: Final = 300_000
"""Maximum of kinds of layers x layers of the model: the size of the table of counts (2 MB)."""
_KIND: Final = kinds_by("simai")
_ATTENTION_CORE = re.compile(r"core_attention|attention_core|flash_attention|atten_core")


def workload_from_simai(text: SimaiText, facts: Facts) -> tuple[Workload, tuple[str, ...]]:
    """The workload of a parsed text, and warnings.

    Raises FormatError if the lines do not form micro-batches of layers.
    """
    warnings = list(text.warnings)
    sections = sections_of(text, warnings)
    starts = layer_starts(text, sections)
    header, micro_batch = text.header, facts.micro_batch
    rerun = _rerun_counts(header, len(text.order))
    compute_ns = np.array([r.compute_ns for r in text.records], np.float64)[text.order[sections.repetitions]]
    compute_s = compute_ns.mean(0) * NS
    excess_ns, others_ns = first_excess_ns(text, sections)
    if excess_ns > 0:
        compute_s[0, WEIGHT_GRADIENT] = others_ns * NS
    again = rerun[sections.repetitions]
    again = np.stack([again, again * compute_ns[:, :, FORWARD]], axis=-1).mean(0) * (1.0, NS)
    dense = dense_layers(text, sections, starts)
    units, unit_of_layer, first, last = _units(text, sections, starts, compute_s, warnings)
    occurrences = _occurrences(units, unit_of_layer, starts)
    pieces, names = _pieces(text, sections, units, occurrences, compute_s, again)
    layers = len(starts) * header.pp
    step = _step_pieces(text.at(sections.once), excess_ns * NS)
    messages = messages_of(text, sections, facts)
    parameters = parameters_of(text, sections, messages, len(starts), facts)
    p2p_bytes, p2p_rule, notes = _p2p(text, sections, pieces, messages.activation)
    arrays = Arrays(
        base=_base(header, micro_batch),
        pieces=pieces,
        step=step,
        unit_layers=layers_by_unit(_all_layers(unit_of_layer, header.pp, dense), len(units)),
        first_unit=first,
        last_unit=last,
        p2p_bytes=p2p_bytes,
        p2p_rule=p2p_rule,
        micro_batches=float(len(sections.repetitions)),
        layer_unit=int(unit_of_layer[0]) if (unit_of_layer == unit_of_layer[0]).all() else -1,
        gradient_width=4.0,
        layered_gradients=False,
        shares=parameters.shares,
        dense_layers=dense,
        least_forward=LEAST_FORWARD if header.policy == RERUN_POLICY else 0.0,
    )
    has_experts = _has_experts(pieces, step, names)
    workload = Workload(
        kind="simai",
        base=_base(header, micro_batch),
        layers=layers,
        names=names,
        arrays=arrays,
        sequence=facts.sequence,
        measured_on=facts.measured_on,
        has_experts=has_experts,
        gradients_known=(True, not has_experts or bool((step.comm_bytes[step.comm_group == DP_EP] > 0).any())),
        ends_known=parameters.known,
        replicated_known=parameters.replicated_known,
        notes=(
            *notes,
            *([messages.note] if messages.note else []),
            *parameters.notes,
            *_notes(header, micro_batch, starts, dense),
        ),
    )
    return workload, tuple(warnings)


def _base(header: Header, micro_batch: int | None) -> BasePlan:
    """The header's plan. With pp 1, AICB writes the number of layers into `vpp`, which is then taken as 1."""
    vpp = header.vpp if header.pp > 1 else 1
    return BasePlan(
        tp=header.tp, pp=header.pp, vpp=vpp, ep=header.ep, all_gpus=header.all_gpus, ga=header.ga, micro_batch=micro_batch or 1
    )


def _all_layers(unit_of_layer: Ints, pp: int, dense: int) -> Ints:
    """The units of all layers, from those of the first stage; its `dense` layers without experts are the model's only ones."""
    others: Ints = np.resize(unit_of_layer[dense:], len(unit_of_layer))
    return np.concatenate([unit_of_layer, *([others] * (pp - 1))])


def _notes(header: Header, micro_batch: int | None, starts: list[int], dense: int) -> list[str]:
    layers = len(starts)
    notes = []
    if micro_batch is None:
        notes.append("the file does not state its micro-batch: taken as 1 (set workload.micro_batch)")
    if header.pp > 1:
        such = "such layers each" if not dense else f"layers each, without the {dense} that have no experts"
        notes.append(f"the file has one of {header.pp} stages; the others are assumed to have {layers} {such}")
    if header.pp == 1 and header.vpp > 1:
        notes.append(f"vpp: {header.vpp} with pp: 1 is a number of layers, not of virtual stages: taken as 1")
    return notes


def _units(
    text: SimaiText, sections: Sections, starts: list[int], compute_s: Floats, warnings: list[str]
) -> tuple[list[range], Ints, int, int]:
    """Distinct layers as ranges of positions in a repetition, the unit of each layer, and the units of first and last stage."""
    size = sections.repetitions.shape[1]
    stop = size - sections.tail
    layers = len(starts) * text.header.pp
    units, unit_of_layer = _alike(text, sections, starts, stop, compute_s)
    if len(units) * layers > MAX_LAYER_TABLE:
        units, unit_of_layer = _alike(text, sections, starts, stop, None)
        warnings.append(
            f"{text.path}:{text.line_of[0]}: too many kinds of layers; those that differ only in times are averaged"
        )
    if len(units) * layers > MAX_LAYER_TABLE:
        found = f"{layers} layers of {len(units)} kinds (pp {text.header.pp} stages of {len(starts)})"
        expected = f"layers x kinds of at most {MAX_LAYER_TABLE}"
        raise FormatError(text.path, int(text.line_of[-1]), "too many layers", found=found, expected=expected)
    first = last = -1
    if sections.head:
        first = len(units)
        units.append(range(sections.head))
    if sections.tail:
        last = len(units)
        units.append(range(stop, size))
    return units, unit_of_layer, first, last


def _alike(
    text: SimaiText, sections: Sections, starts: list[int], stop: int, compute_s: Floats | None
) -> tuple[list[range], Ints]:
    """Units of layers with equal records (and times, if given), as positions of the first one; and the unit of each layer."""
    ids: dict[object, int] = {}
    units: list[range] = []
    unit_of_layer = np.empty(len(starts), np.int64)
    shapes = [shape_of(record) for record in text.at(sections.repetitions[0])]
    for layer, (begin, end) in enumerate(itertools.pairwise([*starts, stop])):
        times = compute_s[begin:end].tobytes() if compute_s is not None else b""
        unit = ids.setdefault((tuple(shapes[begin:end]), times), len(units))
        if unit == len(units):
            units.append(range(begin, end))
        unit_of_layer[layer] = unit
    return units, unit_of_layer


def _occurrences(units: list[range], unit_of_layer: Ints, starts: list[int]) -> list[list[int]]:
    """Start positions of all occurrences of each unit."""
    places_of: list[list[int]] = [[] for _ in units]
    for layer, unit in enumerate(unit_of_layer):
        places_of[unit].append(starts[layer])
    return [places or [unit.start] for places, unit in zip(places_of, units, strict=True)]


def _rerun_counts(header: Header, lines: int) -> Floats:
    """How often the backward runs each line's forward again: from the nearest checkpoint up to, excluding, each initiate."""
    steps = np.zeros(lines + 1, np.float64)
    if header.policy == RERUN_POLICY and header.checkpoint_initiates:
        stored = np.sort(np.array(header.checkpoints, np.int64))
        for initiate in header.checkpoint_initiates:
            steps[stored[np.searchsorted(stored, initiate, side="right") - 1]] += 1
            steps[initiate] -= 1
    return np.cumsum(steps)[:lines]


def _pieces(
    text: SimaiText, sections: Sections, units: list[range], occurrences: list[list[int]], compute_s: Floats, again: Floats
) -> tuple[Pieces, tuple[str, ...]]:
    """The columns of all units' pieces; `again[line]`: re-runs of its forward, and their seconds; a unit has the mean."""
    positions = [(unit, k) for unit, span in enumerate(units) for k in span]
    records = text.at(sections.repetitions[0, k] for _, k in positions)
    group = np.array([[group_of(r.suffix[p], p) for p in range(3)] for r in records], np.int64)
    rerun = np.array([again[[s + k - units[u].start for s in occurrences[u]]].mean(0) for u, k in positions])
    pieces = Pieces(
        unit=np.array([unit for unit, _ in positions], np.int64),
        compute_s=np.array([_mean(compute_s[[s + k - units[u].start for s in occurrences[u]]]) for u, k in positions]),
        comm_kind=np.array([[_KIND[c] for c in r.collective] for r in records], np.int64),
        comm_group=group,
        comm_bytes=np.array([r.comm_bytes for r in records], np.float64),
        comm_rule=np.array([rules_of(r, in_layer=True)[1] for r in records], np.int64),
        rerun=rerun[:, 0].copy(),
        rerun_s=rerun[:, 1].copy(),
        attention_core=np.array([bool(_ATTENTION_CORE.search(r.name)) for r in records], np.bool_),
        gradient_bytes=np.zeros(len(records)),
    )
    return pieces, tuple(r.name for r in records)


def _mean(rows: Floats) -> Floats:
    """Mean over the rows; equal rows give exactly that row."""
    mean: Floats = rows[0] if (rows == rows[0]).all() else rows.mean(axis=0)
    return mean


def _step_pieces(records: Sequence[Record], first_s: float) -> StepPieces:
    """The once-per-step records, each as one row for its compute and one for each of its collectives.

    `first_s`: seconds that the embedding has in its first micro-batch only.
    """
    rows: list[StepRow] = []
    if first_s > 0:
        rows.append(StepRow(ONCE_ON_FIRST_STAGE, WEIGHT_GRADIENT, compute_s=first_s, compute_rule=moving.PARAMETERS))
    for record in records:
        rule, comm_rules = rules_of(record, in_layer=False)
        compute_s = sum(record.compute_ns) * NS
        if compute_s > 0:
            rows.append(StepRow(AFTER_GRADIENTS, compute_s=compute_s, compute_rule=rule))
        for phase in range(3):
            kind = _KIND[record.collective[phase]]
            if kind == NO_COMM or record.comm_bytes[phase] == 0:
                continue
            group = group_of(record.suffix[phase], phase)
            role = AFTER_GRADIENTS
            if group in (DP, DP_EP):
                role = GATHER_PARAMETERS if kind == ALL_GATHER else REDUCE_GRADIENTS
            rows.append(
                StepRow(
                    role,
                    phase,
                    comm_kind=kind,
                    comm_group=group,
                    comm_bytes=float(record.comm_bytes[phase]),
                    comm_rule=comm_rules[phase],
                    forward_on_ep=group_of(record.suffix[FORWARD], FORWARD) == EP,
                )
            )
    return step_pieces(rows)


def rules_of(record: Record, *, in_layer: bool) -> tuple[int, tuple[int, ...]]:
    """Rules of a record's compute, and of its collectives in the three phases (docs/moving.md)."""
    groups = [group_of(record.suffix[phase], phase) for phase in range(3)]
    comm = [RULE_OF_GROUP[group] for group in groups]
    if record.name == "embedding_norm":  # the whole vocabulary at any tp
        return moving.COMPUTE, (moving.FIXED,) * 3
    if in_layer:
        counts = record.name == EXPERTS and record.collective[:2] == ("ALLGATHER", "NONE")
        return moving.COMPUTE, (moving.EXPERT_COUNTS if counts else comm[0], *comm[1:])
    if record.name == "grad_norm":
        return moving.FIXED, (moving.ALL_PARAMETERS,) * 3
    if record.name == "layernorm":  # its size is the rank's parameters, 2 bytes each
        on_tp = moving.PARAMETERS
    else:
        on_tp = moving.ACTIVATION if record.name.startswith("cross_entropy") else moving.FIXED
    comm = [rule if group in (DP, DP_EP) else on_tp for rule, group in zip(comm, groups, strict=True)]
    compute = moving.PARAMETERS if record.name == "grad_param_compute" else moving.FIXED
    return compute, tuple(comm)


def _has_experts(pieces: Pieces, step: StepPieces, names: Sequence[str]) -> bool:
    in_layers: Bools = (pieces.comm_group >= EP) & (pieces.comm_group != DP) & (pieces.comm_bytes > 0)
    once: Bools = (step.comm_group == DP_EP) & (step.comm_bytes > 0)
    return bool(in_layers.any() or once.any() or any("moe" in name for name in names))


def _p2p(text: SimaiText, sections: Sections, pieces: Pieces, activation: float) -> tuple[float, int, list[str]]:
    """Bytes that one rank sends to the next stage: `pp_comm`, else the activation that the TP collectives carry."""
    header = text.header
    on_tp = (pieces.comm_kind != NO_COMM) & (pieces.comm_group == TP) & (pieces.comm_bytes > 0)
    scattered = on_tp & ((pieces.comm_kind == ALL_GATHER) | (pieces.comm_kind == REDUCE_SCATTER))
    columns = has_columns(text.at(sections.repetitions[0]))
    sharded = bool(scattered.any()) if on_tp.any() else columns  # a text of tp 1 has no message that tells
    rule = moving.SHARDED_ACTIVATION if sharded else moving.ACTIVATION
    if header.pp_comm:
        return float(header.pp_comm), rule, []
    if not activation:
        note = "the size of a pipeline send is unknown (no pp_comm, no TP message): plans with pp > 1 are infeasible"
        return 0.0, rule, [note]
    size = activation / (header.tp if sharded else 1)
    why = f"its TP message / tp {header.tp}" if sharded else "its TP message"
    return size, rule, [f"pp_comm is not stated: a pipeline send is taken as {short(size, 'B')}, {why}"]
