"""A plan as a SimAI text: a parsed text, unchanged or scaled to another plan by the rules, for SimAI's simulators."""

from __future__ import annotations

from typing import Final

import numpy as np

from sim_core.errors import SpecError
from sim_core.planning.columns import BALANCED, BLOCK, CHECKPOINTING, EVEN, EVERY, FILE, FULL, NONE, Plans
from sim_core.workloads import moving
from sim_core.workloads.readers.simai import rules_of
from sim_core.workloads.readers.simai_header import POLICY, Header
from sim_core.workloads.readers.simai_records import choices_of, with_records
from sim_core.workloads.readers.simai_sections import layer_starts, sections_of
from sim_core.workloads.readers.simai_text import Record, SimaiText, read_simai_text
from sim_core.workloads.workload import BasePlan, Workload

MAX_LINES: Final = 2_000_000
_NEUTRAL: Final = {"device_speed": 1, "straggler_factor": 1, "gradient_precision": 0}
"""Columns that a text cannot express, with the value that changes nothing."""


def export_simai(path: str, workload: Workload, plans: Plans, row: int = 0) -> str:
    """The text at `path`, from which `workload` was read, with its chosen records, under plan `row`. Raises SimError, OSError.

    If the file does not state a send, neither does the result with the file's own pp; otherwise it has the derived size.
    """
    arrays = workload.arrays
    own_pp = int(plans.pp[row]) == workload.base.pp
    sent = arrays.pp_comm_bytes if own_pp or arrays.pp_comm_bytes else arrays.p2p_bytes
    text = with_records(read_simai_text(path, all_gpus=workload.base.all_gpus), choices_of(workload.records))
    return write_simai_text(*move_text(text, workload.base, sent, plans, row))


def write_simai_text(header: Header, records: list[Record]) -> str:
    """The text of a header and its layer lines; `read_simai_text` restores both."""
    keys = {
        "model_parallel_NPU_group": header.tp,
        "ep": header.ep,
        "pp": header.pp,
        "vpp": header.vpp,
        "ga": header.ga,
        "all_gpus": header.all_gpus,
        "checkpoints": _ids(header.checkpoints),
        "checkpoint_initiates": _ids(header.checkpoint_initiates),
        "pp_comm": header.pp_comm,
    }
    lines = [" ".join([header.policy, *(f"{key}: {value}" for key, value in keys.items())]), str(len(records))]
    lines += ["\t".join(map(str, _columns(record))) for record in records]
    return "\n".join(lines) + "\n"


def _ids(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, (len(ids), *ids)))


def _columns(record: Record) -> list[object]:
    columns: list[object] = [record.name, record.dependency]
    for phase in range(3):
        collective = record.collective[phase] + record.suffix[phase]
        columns += [record.compute_ns[phase], collective, record.comm_bytes[phase]]
    return [*columns, record.update]


def move_text(text: SimaiText, base: BasePlan, pp_comm: float, plans: Plans, row: int = 0) -> tuple[Header, list[Record]]:
    """Header and lines of one stage of `text` under plan `row` of `plans`, with all micro-batches.

    Numbers are rounded to whole nanoseconds and bytes. `pp_comm`: bytes of a send under the base plan. Raises SpecError
    for a plan that this format cannot express.
    """
    plan = {name: column[row].item() for name, column in plans._asdict().items() if column.ndim == 1}
    if plan["layer_split"] not in (EVEN, BALANCED):
        raise SpecError("layer_split: one file cannot describe unequal stages; only even and balanced can be exported")
    for name, neutral in _NEUTRAL.items():
        if plan[name] != neutral:
            raise SpecError(f"{name}: cannot be expressed in this format")
    sections = sections_of(text, [])
    starts = layer_starts(text, sections)
    total = len(starts) * text.header.pp
    if plan["layers"] != total:
        raise SpecError(f"layers: the text has {total}, only these can be exported")
    if total % plan["pp"]:
        raise SpecError(f"pp {plan['pp']} does not divide {total} layers: one file cannot describe unequal stages")
    held = total // plan["pp"]
    scale = np.empty(moving.N_RULES)
    ratios = (plan["micro_batch"] / base.micro_batch, plan["tp"] / base.tp, plan["ep"] / base.ep)
    moving.rule_scales(*ratios, moving.EXPONENTS, scale)
    shares = scale * np.where(moving.BY_LAYERS, base.pp / plan["pp"], 1.0)
    line = [text.records[k] for k in text.order]
    before = [_moved(line[k], shares, in_layer=False) for k in sections.before]
    after = [_moved(line[k], shares, in_layer=False) for k in sections.after]
    micro_batches = []
    for lines in sections.repetitions[: plan["ga"]]:
        micro, spans = _micro_batch([line[k] for k in lines], sections.head, sections.tail, starts, held)
        micro_batches.append([_moved(record, scale, in_layer=True) for record in micro])
    if len(before) + plan["ga"] * len(micro) + len(after) > MAX_LINES:
        raise SpecError(f"ga {plan['ga']}: the text would have more than {MAX_LINES} lines")
    body = [record for k in range(plan["ga"]) for record in micro_batches[k % len(micro_batches)]]
    starting = [len(before) + k * len(micro) for k in range(plan["ga"])]
    stored, initiates = _checkpoints(text, plan, base, spans, starting)
    sent = pp_comm * (scale[moving.SHARDED_ACTIVATION] if _sharded(text) else scale[moving.ACTIVATION])
    header = Header(
        policy=text.header.policy,
        tp=plan["tp"],
        ep=plan["ep"],
        pp=plan["pp"],
        vpp=plan["vpp"],
        ga=plan["ga"],
        all_gpus=plan["all_gpus"],
        checkpoints=stored,
        checkpoint_initiates=initiates,
        pp_comm=round(sent),
    )
    return header, [*before, *body, *after]


def _sharded(text: SimaiText) -> bool:
    """Whether the layers use sequence parallelism: a rank sends 1/tp of the activation."""
    return any(r.collective[p] in ("ALLGATHER", "REDUCESCATTER") and not r.suffix[p] for r in text.records for p in (0, 1))


def _micro_batch(
    records: list[Record], head: int, tail: int, starts: list[int], held: int
) -> tuple[list[Record], list[tuple[int, int]]]:
    """Records of one micro-batch with `held` layers (the file's own, repeated), and the position of each layer in it."""
    stop = len(records) - tail
    layers = [records[begin:end] for begin, end in zip(starts, [*starts[1:], stop], strict=True)]
    micro = records[:head]
    spans = []
    for k in range(held):
        spans.append((len(micro), len(micro) + len(layers[k % len(layers)])))
        micro = micro + layers[k % len(layers)]
    return micro + records[stop:], spans


def _moved(record: Record, scale: np.ndarray[tuple[int], np.dtype[np.float64]], *, in_layer: bool) -> Record:
    """One record with its times and sizes scaled."""
    compute, comm = rules_of(record, in_layer=in_layer)
    times = [round(t * scale[compute]) if scale[compute] != 1 else t for t in record.compute_ns]
    sizes = [round(b * scale[r]) if scale[r] != 1 else b for b, r in zip(record.comm_bytes, comm, strict=True)]
    return record._replace(compute_ns=(times[0], times[1], times[2]), comm_bytes=(sizes[0], sizes[1], sizes[2]))


def _checkpoints(
    text: SimaiText, plan: dict[str, int], base: BasePlan, spans: list[tuple[int, int]], starting: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The id lists for the plan's recompute: checkpoint at the first record of a span of layers, run again up to its last."""
    kind, span = plan["checkpointing"], plan["checkpoint_layers"]
    if kind == NONE:
        return (), ()
    if text.header.policy == POLICY and kind != FILE:
        raise SpecError(f"the file's policy {POLICY} runs nothing again")
    if kind == FILE:
        if not text.header.checkpoints:
            return (), ()
        if (plan["pp"], plan["ga"]) != (base.pp, base.ga) or len(text.order) != starting[-1] + _rest(text, starting):
            raise SpecError("checkpointing: file keeps line numbers, which are valid only with the file's own pp and ga")
        return text.header.checkpoints, text.header.checkpoint_initiates
    if kind not in (FULL, EVERY, BLOCK):
        raise SpecError(f"checkpointing: {CHECKPOINTING[kind]} cannot be expressed in this format")
    step = span if kind == EVERY else 1
    layers = spans[: span if kind == BLOCK else None]
    ends = [(layers[k][0], layers[min(k + step, len(layers)) - 1][1] - 1) for k in range(0, len(layers), step)]
    ids = [(start + first, start + last) for start in starting for first, last in ends]
    return tuple(first for first, _ in ids), tuple(last for _, last in ids)


def _rest(text: SimaiText, starting: list[int]) -> int:
    """Lines from the last micro-batch's start to the end of the file."""
    sections = sections_of(text, [])
    return int(sections.repetitions.shape[1]) + len(sections.after)
