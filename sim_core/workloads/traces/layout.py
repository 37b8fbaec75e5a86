"""The layout of a job's ranks: from the user's facts, else from file names, else from the operations."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sim_core.errors import FormatError
from sim_core.limits import LARGEST, whole_number
from sim_core.workloads.facts import Facts
from sim_core.workloads.traces.text import Shape, TraceText

LAST_STAGE: Final = "loss_func"
OWN: Final = ("tp", "pp", "vpp", "ep", "all_gpus", "layers", "micro_batch", "experts")
"""Facts about a job's plan."""
MOST_RANKS: Final = 2**20
"""Ranks of a job in traces; each number of ranks per stage up to this one is tried."""
_IN_NAME: Final = {
    "all_gpus": re.compile(r"(?:^|_)wd(\d{1,7})(?=_|\.|$)"),
    "tp": re.compile(r"(?:^|_)tp(\d{1,5})(?=_|\.|$)"),
    "pp": re.compile(r"(?:^|_)pp(\d{1,5})(?=_|\.|$)"),
    "ep": re.compile(r"(?:^|_)exp(\d{1,5})(?=_|\.|$)"),
    "experts": re.compile(r"(?:^|_)expNum(\d{1,5})(?=_|\.|$)"),
    "layers": re.compile(r"(?:^|_)(?:num)?l(\d{1,5})(?=_|\.|$)"),
    "micro_batch": re.compile(r"(?:^|_)bs(\d{1,6})(?=_|\.|$)"),
}
"""wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0_20250818090223.txt: world, tp, pp, ep, experts, layers, micro-batch, rank, time."""
_RANK_AND_TIME = re.compile(r"(?:^|_)rank\d+(?:_\d+)?")


@dataclass(frozen=True, kw_only=True)
class Layout:
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


def layout_of(files: Sequence[TraceText], stages: Sequence[int], given: Facts) -> Layout:
    """The layout of the job of `files` (at `stages`). `given` are the user's facts, which take precedence.

    Raises FormatError if facts contradict each other.
    """
    of_names = next((told for told in (facts_of_name(file.path) for file in files) if told), {})
    facts = {**of_names, **{key: getattr(given, key) for key in OWN if getattr(given, key)}}
    _check_places(files, stages)
    notes: list[str] = []
    ga, vpp = _micro_batches(files, stages, facts)
    pp = facts.get("pp") or _stages(files, stages, vpp, notes)
    if max(stages) >= pp:
        raise FormatError(files[0].path, 1, "stage_id", found=str(max(stages)), expected=f"less than pp {pp}")
    if given.pp and vpp == 1:
        _check_pipeline(files, stages, pp, ga)
    tp = facts.get("tp", 0)
    experts = any(
        row.name in ("ep_dp_allreduce", "exp_dp_allreduce") or any(call.group == "exp" for call in row.calls)
        for file in files
        for row in file.rows
    )
    per_stage = _ranks_per_stage(files, stages, facts, pp, notes)
    if not tp:
        tp = 1
        notes.append("tp is unknown: taken as 1 (set workload.tp)")
    if per_stage % tp:
        raise FormatError(files[0].path, 1, "tp", found=str(tp), expected=f"a divisor of the {per_stage} ranks of a stage")
    dp = per_stage // tp
    ep = facts.get("ep", 0)
    if not ep:
        ep = dp if experts else 1
        if experts:
            notes.append(f"ep is unknown: taken as dp {dp} (set workload.ep)")
    if dp % ep:
        raise FormatError(files[0].path, 1, "ep", found=str(ep), expected=f"a divisor of dp {dp}")
    micro_batch = facts.get("micro_batch") or message_shape(files)[1]
    if not micro_batch:
        notes.append("the micro-batch is unknown: taken as 1 (set workload.micro_batch)")
    layout = Layout(
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        dp=dp,
        ga=ga,
        micro_batch=micro_batch or 1,
        layers=facts.get("layers"),
        experts=facts.get("experts"),
        notes=tuple(notes),
    )
    for key in ("tp", "pp", "vpp", "ep", "dp", "ga", "micro_batch", "layers", "experts"):
        value = getattr(layout, key)
        if value is not None and not 1 <= value <= LARGEST[key]:
            raise FormatError(files[0].path, 1, key, found=str(value), expected=whole_number(1, LARGEST[key]))
    return layout


def _check_places(files: Sequence[TraceText], stages: Sequence[int]) -> None:
    """Raise FormatError for a rank or stage beyond any job, before anything is counted up to it."""
    for file, stage in zip(files, stages, strict=True):
        for what, value, most in (("stage_id", stage, LARGEST["pp"] - 1), ("rank", file.rank or 0, MOST_RANKS - 1)):
            if value > most:
                raise FormatError(file.path, file.line, what, found=str(value), expected=whole_number(0, most))


def _check_pipeline(files: Sequence[TraceText], stages: Sequence[int], pp: int, ga: int) -> None:
    """Raise FormatError where the warm-up is that of another number of stages: with 1F1B as many forwards as stages follow."""
    for file, stage in zip(files, stages, strict=True):
        blocks = [name for name in file.names if name in ("forward_step", "backward_step")]
        ahead = blocks.index("backward_step") if "backward_step" in blocks else ga
        if ahead not in (min(pp - stage, ga), ga):
            found = f"{pp}, but {ahead} forwards before the first backward on stage {stage}"
            raise FormatError(file.path, file.line, "pp", found=found, expected=str(stage + ahead))


def _micro_batches(files: Sequence[TraceText], stages: Sequence[int], facts: Mapping[str, int]) -> tuple[int, int]:
    """Micro-batches per step and virtual stages, from the forwards of a rank and the batches that an end stage reads."""
    forwards = [file.names.count("forward_step") for file in files]
    most = max(forwards)
    if most == 0:
        raise FormatError(files[0].path, 1, "no forward_step in the trace", expected="at least one")
    for file in files:
        if "backward_step" not in file.names:
            raise FormatError(file.path, file.rows[-1].line, "no backward_step in the trace", expected="a complete step")
    if "vpp" in facts:
        vpp = facts["vpp"]
        if most % vpp:
            raise FormatError(files[0].path, 1, "vpp", found=str(vpp), expected=f"a divisor of {most} forwards")
        return most // vpp, vpp
    losses = [file.names.count(LAST_STAGE) for file in files]
    batches = [file.names.count("get_batch") for file, stage in zip(files, stages, strict=True) if stage == 0]
    read = max(losses) or max(batches, default=0)
    if read and most % read == 0:
        return read, most // read
    return most, 1


def _stages(files: Sequence[TraceText], stages: Sequence[int], vpp: int, notes: list[str]) -> int:
    """Pipeline stages: from the stage that computes the loss, else from the warm-up of 1F1B."""
    for file, stage in zip(files, stages, strict=True):
        if LAST_STAGE in file.names:
            return stage + 1
    file, stage = max(zip(files, stages, strict=True), key=lambda pair: pair[1])
    names = [name for name in file.names if name in ("forward_step", "backward_step")]
    sends = any(name in ("send_forward", "recv_backward") for name in file.names)
    if not sends:
        return stage + 1
    ahead = names.index("backward_step") if "backward_step" in names else 1
    if vpp > 1:
        raise FormatError(file.path, 1, "pp is unknown and the last stage has no trace", expected="workload.pp")
    pp = stage + max(ahead, 2)
    notes.append(f"pp is unknown: {ahead} forwards before the first backward on stage {stage} imply {pp} (set workload.pp)")
    return pp


def _ranks_per_stage(
    files: Sequence[TraceText], stages: Sequence[int], facts: Mapping[str, int], pp: int, notes: list[str]
) -> int:
    """tp * dp, from the world size, else from the ranks with a trace."""
    if "all_gpus" in facts:
        if facts["all_gpus"] % pp:
            found = f"all_gpus {facts['all_gpus']}, pp {pp}"
            raise FormatError(files[0].path, 1, "world size", found=found, expected="a multiple of pp")
        return facts["all_gpus"] // pp
    known = [(file.rank, stage) for file, stage in zip(files, stages, strict=True) if file.rank is not None]
    counts = [sum(stage == s for s in stages) for stage in set(stages)]
    most = max((rank for rank, _ in known), default=0) + 1
    fitting = [n for n in range(1, most + 1) if all(rank // n == stage for rank, stage in known)]
    if any(stages) and len(fitting) == 1:
        return max(fitting[0], *counts)
    reduces = any("dp_allreduce" in name for file in files for name in file.names)
    per_stage = max(*counts, most if not any(stages) else 1, 2 if reduces and len(files) <= pp else 1)
    tp = facts.get("tp", 1)
    per_stage = -(-per_stage // tp) * tp
    if len(known) < per_stage * pp:
        notes.append(f"the number of ranks is unknown: taken as {per_stage * pp} (set workload.all_gpus)")
    return per_stage


def message_shape(files: Sequence[TraceText]) -> Shape:
    """Sizes of a pipeline message [sequence, micro-batch, hidden]; 0 where none has them."""
    rows = (row for file in files for row in file.rows)
    return next((row.shape for row in rows if row.group == "pp" and len(row.shape) == 3), (0, 0, 0))
