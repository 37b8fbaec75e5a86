"""A SimAI text under another plan: header and lines of one stage, which read back to the plan's numbers."""

import math
from functools import cache

import numpy as np

from sim_core.arrays import Floats
from sim_core.costing.memory import first_stage_dense, stage_factor
from sim_core.errors import SpecError
from sim_core.planning.columns import BALANCED, BLOCK, CHECKPOINTING, EVEN, EVENT, FILE, NONE, SELECTIVE, SIMAI, Plan
from sim_core.planning.fields import FIELDS
from sim_core.units import NS
from sim_core.workloads import moving
from sim_core.workloads.simai.file import File
from sim_core.workloads.simai.text import Header, Record, SimaiText
from sim_core.workloads.simai.workload import rules_of
from sim_core.workloads.workload import FORWARD, NO_COMM, ONCE_ON_FIRST_STAGE, WEIGHT_GRADIENT, Workload

MAX_LINES = 2_000_000
MAX_NUMBER = 2**63 - 1
RECOMPUTE = "_recompute"
"""Ends the name of a record that holds a forward which the backward runs again."""
_NAME_LENGTH = 100 - len(RECOMPUTE)


_Part = tuple[int, float]
"""The layer, head or tail of a micro-batch: its unit, and how often the backward runs it again."""


def move_text(text: SimaiText, workload: Workload, plan: Plan) -> tuple[Header, list[Record]]:
    """Header and lines of one stage of `text`, from which `workload` was read, under `plan`.

    Reading them gives the plan's numbers, with `checkpointing: file`. Raises SpecError for a plan that this format
    cannot express.
    """
    if plan.layer_split not in (EVEN, BALANCED):
        raise SpecError("layer_split: one file cannot describe unequal stages; only even and balanced can be exported")
    for field in FIELDS.values():
        if not field.in_text and getattr(plan, field.name) != field.codes_of([field.default or 0])[0]:
            raise SpecError(f"{field.name}: cannot be expressed in this format")
    base = workload.base
    sizes = "tp", "pp", "ep", "ga", "micro_batch"
    own = plan.layers == workload.layers and all(getattr(plan, name) == getattr(base, name) for name in sizes)
    scale = np.empty(moving.N_RULES)
    moving.rule_scales(
        plan.micro_batch / base.micro_batch, plan.tp / base.tp, plan.ep / base.ep, 1.0, 1.0, moving.EXPONENTS, scale
    )
    header = text.header._replace(
        **{name: getattr(plan, name) for name in ("tp", "ep", "pp", "vpp", "ga", "all_gpus")},
        pp_comm=_moved_bytes(workload.arrays.p2p_bytes, scale[workload.arrays.p2p_rule]) if plan.pp > 1 else 0,
    )
    if not (own and plan.checkpointing == FILE):
        header = header._replace(checkpoints=(), checkpoint_initiates=())
    unchanged = own and plan.checkpointing in (NONE, FILE)
    records = list(text.records) if unchanged else _Moved(text, workload, plan, scale).records()
    largest = max(max(*record.compute_ns, *record.comm_bytes) for record in set(records))
    if max(largest, header.pp_comm) > MAX_NUMBER:
        raise SpecError(f"the text would hold the number {largest}: the format's numbers are below 2^63")
    return header, records


class _Moved:
    """The lines of one text under one plan, from the means that its workload holds."""

    def __init__(self, text: SimaiText, workload: Workload, plan: Plan, scale: Floats) -> None:
        self.arrays, self.plan, self.scale = workload.arrays, plan, scale
        self.file = file = File(text)
        self.kinds = np.diff(self.arrays.unit_layers, axis=1).argmax(axis=0)  # [layers] the unit of each
        # the records of each unit, as they stand in the file
        self.of_unit: dict[int, list[Record]] = {}
        size = len(file.micro)
        units = (self.arrays.first_unit, self.arrays.last_unit, *self.kinds.tolist())
        for unit, places in zip(units, (range(file.head), range(size - file.tail, size), *file.places), strict=False):
            self.of_unit.setdefault(unit, [file.micro[k] for k in places])

    def records(self) -> list[Record]:
        """All lines, in the order of the text."""
        file, step, parts = self.file, self.arrays.step, self._parts()
        work = {part: self._work(part) for part in dict.fromkeys(parts)}
        # micro-batches to write: fidelity simai counts those in the file, in proportion to `ga`
        in_file, of, ga = round(self.arrays.micro_batches), self.arrays.base.ga, self.plan.ga
        repetitions, rest = divmod(ga * in_file, of)
        if rest and self.plan.fidelity == SIMAI:
            held = f"the file holds {in_file} of its {of} micro-batches"
            raise SpecError(f"ga {ga}: {held}, so this plan counts {ga * in_file / of:g} of them")
        repetitions = ga if rest else repetitions
        if repetitions * sum(len(work[part][0]) for part in parts) + len(file.once) > MAX_LINES:
            raise SpecError(f"ga {ga}: the text would have more than {MAX_LINES} lines")
        # the embedding of the first micro-batch has a time that it has there only
        rows = np.flatnonzero(step.role == ONCE_ON_FIRST_STAGE)
        excess = {parts[0]: round(sum(step.compute_s[k] / NS * self._factor(step.compute_rule[k]) for k in rows))}
        lines = {part: _in_whole_ns(*each, repetitions, excess.get(part, 0)) for part, each in work.items()}
        body = (record for k in range(repetitions) for part in parts for record in lines[part][k])
        return [*map(self._once, file.before), *body, *map(self._once, file.after)]

    def _parts(self) -> list[_Part]:
        """What a micro-batch consists of."""
        plan, units = self.plan, self._units_of_a_stage()
        how, chunk = plan.checkpointing, len(units) // plan.vpp
        again = [float(how != NONE)] * len(units)
        if how == BLOCK and plan.fidelity == SIMAI:
            again = [min(plan.checkpoint_layers * plan.vpp / len(units), 1.0)] * len(units)
        elif how == BLOCK:
            if len(units) % plan.vpp:
                raise SpecError(f"checkpointing block: vpp {plan.vpp} does not divide the {len(units)} layers of a stage")
            again = [float(k % chunk < plan.checkpoint_layers) for k in range(len(units))]
        head, tail = (
            [(unit, float(how in (FILE, SELECTIVE)))] * (unit >= 0) for unit in (self.arrays.first_unit, self.arrays.last_unit)
        )
        return [*head, *zip(units, again, strict=True), *tail]

    def _units_of_a_stage(self) -> list[int]:
        """The unit of each layer of a stage; every stage must have the same ones, in the same order."""
        layers, pp = self.plan.layers, self.plan.pp
        if layers % pp:
            raise SpecError(f"pp {pp} does not divide {layers} layers: one file cannot describe unequal stages")
        kinds, of_stage = np.resize(self.kinds, layers), layers // pp  # a plan has other layers only where all are alike
        rest = kinds[self.arrays.dense_layers :]
        # a file with dense layers is read as the first stage, others have none
        as_first = self.arrays.dense_layers and (rest == rest[0]).all()
        units = kinds[:of_stage]
        if not (as_first or (kinds[of_stage:] == kinds[:-of_stage]).all()):
            alike, counts = np.unique(kinds, return_counts=True)
            if self.plan.fidelity != SIMAI or (counts % pp).any():
                raise SpecError(f"pp {pp}: the stages hold different layers; one file cannot describe unequal stages")
            units = np.repeat(alike, counts // pp)  # fidelity simai counts the mean stage
        return list(map(int, units))

    def _factor(self, rule: int) -> float:
        """Factor of a once-per-step quantity. Fidelity simai counts one end of the model, wherever the stage stands."""
        ends = 2 if self.plan.pp == 1 and self.plan.fidelity == EVENT else 1
        arrays, pp = self.arrays, self.plan.pp
        return stage_factor(arrays, self.scale, self.plan.tp, rule, self.plan.layers / pp, ends, first_stage_dense(arrays, pp))

    def _once(self, record: Record) -> Record:
        """A once-per-step record."""
        compute, comm = rules_of(record, in_layer=False)
        factor = self._factor(compute)
        return record._replace(
            compute_ns=tuple(round(ns * factor) if factor != 1 else ns for ns in record.compute_ns),
            comm_bytes=tuple(map(_moved_bytes, record.comm_bytes, map(self._factor, comm))),
        )

    def _work(self, part: _Part) -> tuple[list[Record], Floats]:
        """Records of a part with their sizes, and nanoseconds [records, 3].

        Forwards that run again are work of the backward, as SimAI uses one checkpoint at most. Their collectives, which
        fidelity event counts, need records of their own.
        """
        pieces, factor = self.arrays.pieces, self.scale[moving.COMPUTE] / NS
        unit, part_again = part
        rows = np.flatnonzero(pieces.unit == unit)
        times = pieces.compute_s[rows] * factor
        # how often the backward runs the forward of each piece again, and its nanoseconds in that
        again = part_again * (pieces.attention_core[rows] if self.plan.checkpointing == SELECTIVE else np.ones(len(rows)))
        again_ns = again * times[:, FORWARD]
        if self.plan.checkpointing == FILE:
            again, again_ns = pieces.rerun[rows], pieces.rerun_s[rows] * factor
        records, columns = list[Record](), list[tuple[float, ...]]()
        for row, record, (forward, of_input, of_weights), runs, ns in zip(
            rows.tolist(), self.of_unit[unit], times.tolist(), again.tolist(), again_ns.tolist(), strict=True
        ):
            sizes = map(_moved_bytes, record.comm_bytes, self.scale[pieces.comm_rule[row]].tolist())
            moved = record._replace(comm_bytes=tuple(sizes))
            apart = self._apart(row, moved, runs, unit)
            # its collective hides behind its compute, as in the forward
            sent = (record.collective[FORWARD], record.suffix[FORWARD], moved.comm_bytes[FORWARD]) if runs else ("NONE", "", 0)
            rerun = moved._replace(
                name=record.name[:_NAME_LENGTH] + RECOMPUTE,
                collective=("NONE", sent[0], "NONE"),
                suffix=("", sent[1], ""),
                comm_bytes=(0, sent[2], 0),
            )
            records += [moved, *[rerun] * apart]
            columns += [(forward, of_input + (0.0 if apart else ns), of_weights), *[(0.0, 0.0, ns / max(apart, 1))] * apart]
        return records, np.array(columns)

    def _apart(self, row: int, record: Record, again: float, unit: int) -> int:
        """Records needed for forwards that run again; all layers of a text have equally many, to be told apart."""
        arrays, how = self.arrays, self.plan.checkpointing
        if self.plan.fidelity != EVENT or arrays.pieces.comm_kind[row, FORWARD] == NO_COMM:
            return 0
        if again == 0:
            return int(how == BLOCK and unit not in (arrays.first_unit, arrays.last_unit))
        told = f"checkpointing {CHECKPOINTING[how]}: the collective of {record.name} runs again"
        if unit == arrays.first_unit:
            raise SpecError(f"{told}, for which the format has no place")
        if not again.is_integer():
            raise SpecError(f"{told} {again:g} times in the mean of its layers")
        return int(again)


def _in_whole_ns(records: list[Record], times: Floats, repetitions: int, excess: int) -> list[list[Record]]:
    """The records of each repetition in whole nanoseconds; what is rounded off is carried on to the next number.

    So a forward, and a backward, keep their sum over all repetitions within half a nanosecond. `excess`: what the weight
    gradient of the first record has in the first repetition besides.
    """
    whole = np.empty((repetitions, *times.shape))
    for columns in (slice(0, 1), slice(1, 3)):
        ends = np.rint(np.cumsum(np.tile(times[:, columns].ravel(), repetitions)))
        whole[:, :, columns] = np.diff(ends, prepend=0.0).reshape(repetitions, len(records), -1)
    whole[0, 0, WEIGHT_GRADIENT] += excess

    @cache  # lines are few, repetitions many
    def timed(times_ns: bytes) -> list[Record]:
        rows = np.frombuffer(times_ns).reshape(-1, 3).tolist()
        return [record._replace(compute_ns=tuple(map(int, row))) for record, row in zip(records, rows, strict=True)]

    return [timed(times_ns.tobytes()) for times_ns in whole]


def _moved_bytes(recorded: float, factor: float) -> int:
    """Bytes moved by a rule: unchanged ones keep all digits, a message stays a message, on the same side of the one byte that
    SimAI takes for none."""
    size = recorded * factor if factor != 1 else recorded
    return round(size) if size >= 2 else math.ceil(size)
