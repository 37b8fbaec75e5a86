"""The layout of a job's ranks: from the user's facts, else from file names, else from the operations."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim_core.errors import FormatError
from sim_core.limits import LARGEST, whole_number
from sim_core.workloads.facts import Facts
from sim_core.workloads.traces.text import BLOCKS, EXPERT_REDUCTIONS, Shape, TraceText

Files = Sequence[TraceText]
"""Of a job."""

LAST_STAGE = "loss_func"
OWN = ("tp", "pp", "vpp", "ep", "all_gpus", "layers", "micro_batch", "experts")
"""Facts about a job's plan."""
MOST_RANKS = 2**20
"""Ranks of a job in traces; each number of ranks per stage up to this one is tried."""
_IN_NAME = {
    key: re.compile(rf"(?:^|_){word}(\d{{1,{digits}}})(?=_|\.|$)")
    for key, word, digits in (
        *(("all_gpus", "wd", 7), ("tp", "tp", 5), ("pp", "pp", 5), ("ep", "exp", 5)),
        *(("experts", "expNum", 5), ("layers", "(?:num)?l", 5), ("micro_batch", "bs", 6)),
    )
}
"""wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0_20250818090223.txt: world, tp, pp, ep, experts, layers, micro-batch, rank, time."""
_RANK_AND_TIME = re.compile(r"(?:^|_)rank\d+(?:_\d+)?")


class Layout(NamedTuple):
    """The job's plan. `layers` is None if unknown; `notes` are the assumptions."""

    tp: int
    pp: int
    vpp: int
    ep: int
    dp: int
    ga: int
    micro_batch: int
    layers: int | None
    experts: int | None
    notes: tuple[str, ...]

    @property
    def ranks_per_stage(self) -> int:
        return self.tp * self.dp


def job_of_name(path: str) -> str:
    """The part of a file's name that all ranks of a job share; "" if the name does not describe a job."""
    return _RANK_AND_TIME.sub("", os.path.basename(path)) if facts_of_name(path) else ""


def facts_of_name(path: str) -> dict[str, int]:
    """The facts in a file's name; invalid values (0) are ignored."""
    matches = {key: pattern.search(os.path.basename(path)) for key, pattern in _IN_NAME.items()}
    return {key: int(match[1]) for key, match in matches.items() if match and int(match[1]) > 0}


def layout_of(files: Files, given: Facts) -> Layout:
    """The layout of the job of `files`. `given` are the user's facts, which take precedence.

    Raises FormatError if facts contradict each other.
    """
    path, notes = files[0].path, list[str]()
    of_names = next(filter(None, (facts_of_name(file.path) for file in files)), {})
    facts = of_names | {key: getattr(given, key) for key in OWN if getattr(given, key)}
    for file in files:  # a rank or stage beyond any job, before anything is counted up to it
        for what, value, most in (("stage_id", file.stage, LARGEST["pp"] - 1), ("rank", file.rank or 0, MOST_RANKS - 1)):
            if value > most:
                raise FormatError(file.path, file.line, what, str(value), whole_number(0, most))
    ga, vpp = _micro_batches(files, facts)
    pp = facts.get("pp") or _stages(files, vpp, notes)
    if (last := max(file.stage for file in files)) >= pp:
        raise FormatError(path, 1, "stage_id", str(last), f"less than pp {pp}")
    if given.pp and vpp == 1:
        _check_pipeline(files, pp, ga)
    per_stage = _ranks_per_stage(files, facts, pp, notes)
    if "tp" not in facts:
        notes.append("tp is unknown: taken as 1 (set workload.tp)")
    tp = facts.get("tp", 1)
    dp = _share_of(per_stage, tp, path, "tp", f"the {per_stage} ranks of a stage")
    unknown = "ep" not in facts and any(map(has_experts, files))
    ep = dp if unknown else facts.get("ep", 1)
    if unknown:
        notes.append(f"ep is unknown: taken as dp {dp} (set workload.ep)")
    _share_of(dp, ep, path, "ep", f"dp {dp}")
    micro_batch = facts.get("micro_batch") or message_shape(files)[1]
    if not micro_batch:
        notes.append("the micro-batch is unknown: taken as 1 (set workload.micro_batch)")
    known = tp, pp, vpp, ep, dp, ga, micro_batch or 1, facts.get("layers"), facts.get("experts")
    layout = Layout(*known, tuple(notes))
    for key, found in zip(layout._fields, known, strict=False):
        if found is not None and not 1 <= found <= LARGEST[key]:
            raise FormatError(path, 1, key, str(found), whole_number(1, LARGEST[key]))
    return layout


def _share_of(total: int, number: int, path: str, name: str, of: str) -> int:
    """What each of `number` has of a total. Raises FormatError where that is no whole number."""
    if total % number:
        raise FormatError(path, 1, name, str(number), f"a divisor of {of}")
    return total // number


def forwards_ahead(names: Sequence[str]) -> int:
    """Forwards before the first backward of a rank, by the names of its operations."""
    return [name for name in names if name in BLOCKS].index(BLOCKS[1])


def _check_pipeline(files: Files, pp: int, ga: int) -> None:
    """Raise FormatError where the warm-up is that of another number of stages: with 1F1B as many forwards as stages follow."""
    for file in files:
        ahead = forwards_ahead(file.names)
        if ahead not in (min(pp - file.stage, ga), ga):
            found = f"{pp}, but {ahead} forwards before the first backward on stage {file.stage}"
            raise FormatError(file.path, file.line, "pp", found, str(file.stage + ahead))


def has_experts(file: TraceText) -> bool:
    """Whether a rank has experts: their gradients or tokens are communicated."""
    return any(row.name in EXPERT_REDUCTIONS or any(call.group == "exp" for call in row.calls) for row in file.rows)


def _micro_batches(files: Files, facts: Mapping[str, int]) -> tuple[int, int]:
    """Micro-batches per step and virtual stages, from the forwards of a rank and the batches that an end stage reads."""
    most = max(file.names.count(BLOCKS[0]) for file in files)
    if most == 0:
        raise FormatError(files[0].path, 1, "no forward_step in the trace", expected="at least one")
    for file in files:
        if BLOCKS[1] not in file.names:
            raise FormatError(file.path, file.rows[-1].line, "no backward_step in the trace", expected="a complete step")
    if "vpp" in facts:
        return _share_of(most, facts["vpp"], files[0].path, "vpp", f"{most} forwards"), facts["vpp"]
    read = max(file.names.count(LAST_STAGE) for file in files)
    read = read or max((file.names.count("get_batch") for file in files if file.stage == 0), default=0)
    return (read, most // read) if read and most % read == 0 else (most, 1)


def _stages(files: Files, vpp: int, notes: list[str]) -> int:
    """Pipeline stages: from the stage that computes the loss, else from the warm-up of 1F1B."""
    for file in files:
        if LAST_STAGE in file.names:
            return file.stage + 1
    file = max(files, key=lambda each: each.stage)
    if not {"send_forward", "recv_backward"} & set(file.names):
        return file.stage + 1
    if vpp > 1:
        raise FormatError(file.path, 1, "pp is unknown and the last stage has no trace", expected="workload.pp")
    ahead = forwards_ahead(file.names)
    pp = file.stage + max(ahead, 2)
    where = f"{ahead} forwards before the first backward on stage {file.stage}"
    notes.append(f"pp is unknown: {where} imply {pp} (set workload.pp)")
    return pp


def _ranks_per_stage(files: Files, facts: Mapping[str, int], pp: int, notes: list[str]) -> int:
    """tp * dp, from the world size, else from the ranks with a trace."""
    if "all_gpus" in facts:
        if facts["all_gpus"] % pp:
            raise FormatError(files[0].path, 1, "world size", f"all_gpus {facts['all_gpus']}, pp {pp}", "a multiple of pp")
        return facts["all_gpus"] // pp
    stages = [file.stage for file in files]
    known = [(file.rank, file.stage) for file in files if file.rank is not None]
    of_a_stage = max(map(stages.count, stages))
    most = max((rank for rank, _ in known), default=0) + 1
    fitting = [n for n in range(1, most + 1) if all(rank // n == stage for rank, stage in known)]
    if any(stages) and len(fitting) == 1:
        return max(fitting[0], of_a_stage)
    reduces = any("dp_allreduce" in name for file in files for name in file.names)
    per_stage = max(of_a_stage, most if not any(stages) else 1, 2 if reduces and len(files) <= pp else 1)
    tp = facts.get("tp", 1)
    per_stage = -(-per_stage // tp) * tp
    if len(known) < per_stage * pp:
        notes.append(f"the number of ranks is unknown: taken as {per_stage * pp} (set workload.all_gpus)")
    return per_stage


def message_shape(files: Files) -> Shape:
    """Sizes of a pipeline message [sequence, micro-batch, hidden]; 0 where none has them."""
    rows = (row for file in files for row in file.rows)
    return next((row.shape for row in rows if row.group == "pp" and len(row.shape) == 3), (0, 0, 0))
