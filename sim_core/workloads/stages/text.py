"""Stage durations of a pipeline as a user has them: Primus' dumps of some steps, or the durations as we write them."""

import json
import re
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sim_core.arrays import Floats, Ints
from sim_core.documents import Document, Values, Words
from sim_core.errors import FormatError, shown
from sim_core.places import read_input

GZIP = b"\x1f\x8b"
LARGEST_FILE = 64 * 2**20
MOST_STAGES = 4096
MOST_BLOCKS = 2**16
LARGEST_MS = 1e9
STATED = "stage_durations"
_HEAD = re.compile(r'^\ufeff?\s*\{\s*"rank\d+"\s*:\s*\{\s*"\d+"\s*:\s*\{')
_STATED_HEAD = re.compile(rf'^\ufeff?\s*\{{\s*"{STATED}"\s*:\s*\{{')
_RANK = re.compile(r"rank(\d{1,6})")
_TIMES = ("fwd_start", "fwd_end", "bwd_start", "bwd_end")
_KEYS = (*_TIMES, "total")


Fault = Callable[..., FormatError]
"""Makes the error of a file: what, found, expected."""


class StageDurations(NamedTuple):
    """What was recorded of a pipeline: seconds of a forward and of a backward by stage and chunk, and of the step.

    A chunk is a stage's part of the layers under interleaving; chunk c of stage s is virtual stage c x pp + s.
    """

    path: str
    micro_batches: int
    forward_s: Floats  # [pp, vpp]
    backward_s: Floats
    step_s: float
    spread: float  # (90 % - 10 %) / middle of the steps
    steps: int
    after_s: float = 0.0  # of the step after the pipeline: gradients, optimizer
    layers: int | None = None
    micro_batch: int | None = None
    notes: Words = ()

    @property
    def pp(self) -> int:
        return len(self.forward_s)

    @property
    def vpp(self) -> int:
        """Chunks of a stage."""
        return len(self.forward_s[0])


def looks_like_stages(head: str) -> bool:
    """Whether a file that begins with `head` holds stage durations, as Primus dumps them or as we write them."""
    return _STATED_HEAD.match(head) is not None or (_HEAD.match(head) is not None and '"fwd_start"' in head)


def read_stage_text(path: str, data: bytes | None = None) -> StageDurations:
    """Parse the file at `path` (or `data`, with `path` for messages), plain or gzip. Raises FormatError, OSError."""
    fault = partial(FormatError, path, 1)
    document = _document(path, read_input(path) if data is None else data, fault)
    if STATED in document:
        return _stated(path, document[STATED], fault)
    ranks = _ranks(document, fault)
    steps = sorted(set.intersection(*(set(each) for each in ranks.values())))
    return durations_of(path, ranks, steps[1:] or steps)  # the first one allocates memory and opens connections


def durations_of(path: str, ranks: Mapping[int, Mapping[int, Values]], steady: list[int]) -> StageDurations:
    """The durations of a pipeline from the times of its blocks by rank and step, over `steady` steps. Raises FormatError."""
    stages, fault = sorted(ranks), partial(FormatError, path, 1)
    if stages != list(range(len(stages))) or len(stages) > MOST_STAGES:
        raise fault("ranks", ", ".join(map(str, stages[:8])), "rank0, rank1, ..., one for each stage of the pipeline")
    if not steady:
        raise fault("steps", "none on all ranks", "at least one")
    blocks, vpp = _blocks(ranks, steady, fault)
    # a stage runs pp micro-batches of each chunk in turn, backwards from the last chunk on (NVIDIA/Megatron-LM,
    # core/pipeline_parallel/schedules.py, interleaved 1F1B)
    chunk = np.arange(blocks) % (len(stages) * vpp) // len(stages)

    def column(key: str) -> Floats:
        """Values by stage and step."""
        return np.array([[ranks[stage][step][key] for step in steady] for stage in stages])

    def by_chunk(phase: str, chunk_of: Ints) -> Floats:
        """Seconds by stage and chunk: of each block the middle of the steps, of the blocks of a chunk the mean; [pp, vpp]."""
        middle = np.median((column(f"{phase}_end") - column(f"{phase}_start")) * 1e-3, axis=1)
        return np.stack([middle[:, chunk_of == each].mean(axis=1) for each in range(vpp)], axis=1)

    total = column("total").max(axis=0) * 1e-3
    low, step_s, high = np.quantile(total, (0.1, 0.5, 0.9)).tolist()
    return StageDurations(
        path=path,
        micro_batches=blocks // vpp,
        forward_s=by_chunk("fwd", chunk),
        backward_s=by_chunk("bwd", vpp - 1 - chunk),
        step_s=step_s,
        spread=(high - low) / step_s if step_s else 0.0,
        steps=len(steady),
    )


def stage_document(recorded: StageDurations) -> str:
    """Stage durations as the text of a file that `read_stage_text` reads back."""

    def ms(seconds: float) -> float:
        return round(seconds * 1e3, 6)

    values = {
        "micro_batches": recorded.micro_batches,
        "forward_ms": [list(map(ms, stage)) for stage in recorded.forward_s.tolist()],
        "backward_ms": [list(map(ms, stage)) for stage in recorded.backward_s.tolist()],
        "step_ms": ms(recorded.step_s),
        "after_ms": ms(recorded.after_s),
        "spread": round(recorded.spread, 6),
        "steps": recorded.steps,
        "layers": recorded.layers,
        "micro_batch": recorded.micro_batch,
        "notes": list(recorded.notes),
    }
    return json.dumps({STATED: values}, indent=1) + "\n"


def _stated(path: str, values: object, fault: Fault) -> StageDurations:
    """Durations as `stage_document` writes them, or a user by hand. Raises FormatError."""
    if not isinstance(values, dict):
        raise fault(STATED, type(values).__name__, "micro_batches, forward_ms, backward_ms, step_ms")
    if unknown := [key for key in values if key not in (*_TIMED, *_OTHERS)]:
        raise fault(f"{STATED}: key", shown(unknown[0]), ", ".join((*_TIMED, *_OTHERS)))
    forward, backward = (_chunks(key, values.get(key), fault) for key in _TIMED)
    if forward.shape != backward.shape:
        raise fault("backward_ms", f"{backward.shape}", f"{forward.shape}, as forward_ms has")
    given = {key: values.get(key, usual) for key, (usual, *_) in _OTHERS.items()}
    for key, (_, fits, expected) in _OTHERS.items():
        if not fits(given[key]):
            raise fault(key, shown(given[key]), expected)
    if not given["after_ms"] < given["step_ms"]:
        raise fault("step_ms", shown(given["step_ms"]), "more than after_ms")
    pp, vpp = forward.shape
    if vpp > 1 and given["micro_batches"] % pp:
        raise fault("micro_batches", str(given["micro_batches"]), f"a multiple of {pp}")
    return StageDurations(
        path=path,
        forward_s=forward,
        backward_s=backward,
        step_s=given["step_ms"] * 1e-3,
        after_s=given["after_ms"] * 1e-3,
        notes=tuple(given["notes"]),
        **{key: given[key] for key in ("micro_batches", "spread", "steps", "layers", "micro_batch")},
    )


def _is_ms(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < LARGEST_MS


def _is_count(value: object) -> bool:
    return type(value) is int and 0 < value <= MOST_BLOCKS


_TIMED = ("forward_ms", "backward_ms")
_MS, _COUNT = "a number from 0 on", f"a whole number, 1 to {MOST_BLOCKS:,}"
_OTHERS: Mapping[str, tuple[object, Callable[[Any], bool], str]] = {
    "micro_batches": (None, _is_count, _COUNT),
    "step_ms": (None, _is_ms, _MS),
    "after_ms": (0.0, _is_ms, _MS),
    "spread": (0.0, _is_ms, _MS),
    "steps": (1, _is_count, _COUNT),
    **dict.fromkeys(("layers", "micro_batch"), (None, lambda value: value is None or _is_count(value), _COUNT)),
    "notes": (
        [],
        lambda value: isinstance(value, list) and len(value) < 20 and all(isinstance(n, str) and len(n) < 500 for n in value),
        "a short list of texts",
    ),
}
"""Further values of a file of ours: each with its default, what it has to fulfil, and that in words."""


def _chunks(key: str, value: object, fault: Fault) -> Floats:
    """Seconds by stage and chunk; a number for a stage of one chunk. Raises FormatError."""
    rows = [each if isinstance(each, list) else [each] for each in value] if isinstance(value, list) else []
    if (
        not 0 < len(rows) <= MOST_STAGES
        or len({len(row) for row in rows}) != 1
        or not rows[0]
        or not all(_is_ms(each) for row in rows for each in row)
    ):
        raise fault(key, shown(value), "milliseconds for each stage, a list of chunks in each")
    return np.array(rows, float) * 1e-3


def _document(path: str, data: bytes, fault: Fault) -> Document:
    """The JSON of a file. Raises FormatError."""
    if data[:2] == GZIP:
        try:
            data = zlib.decompressobj(wbits=31).decompress(data, LARGEST_FILE + 1)
        except zlib.error as error:
            raise fault("gzip", str(error), "a whole file") from None
    if len(data) > LARGEST_FILE:
        raise fault("file size", f"more than {LARGEST_FILE:,} bytes", "a dump of durations")
    try:
        document = json.loads(data.decode("utf-8-sig", "replace"))
    except json.JSONDecodeError as error:
        raise FormatError(path, error.lineno, f"column {error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise fault(f"not JSON: {str(error).partition(';')[0]}") from None
    if not isinstance(document, dict):
        raise fault("stage durations", type(document).__name__, '{"rank0": {"1": ...}}')
    return document


def _ranks(document: Values, fault: Fault) -> dict[int, dict[int, Values]]:
    """Steps of each rank, checked. Raises FormatError."""
    ranks: dict[int, dict[int, Values]] = {}
    for name, steps in document.items():
        match = _RANK.fullmatch(name)
        if match is None or not isinstance(steps, dict):
            raise fault("ranks", shown(name), "rank0, rank1, ...")
        of_rank = ranks[int(match[1])] = {}
        for key, step in steps.items():
            if not (key.isascii() and key.isdecimal() and len(key) < 12):
                raise fault(f"{name}: step", shown(key), "a number")
            of_rank[int(key)] = _checked(f"{name} {key}", step, fault)
    if not ranks:
        raise fault("ranks", "none", "rank0, rank1, ...")
    return ranks


def _checked(where: str, step: object, fault: Fault) -> Values:
    if not isinstance(step, dict) or any(key not in step for key in _KEYS):
        keys = ", ".join(map(str, step)) if isinstance(step, dict) else type(step).__name__
        raise fault(where, shown(keys), ", ".join(_KEYS))
    if not _is_ms(step["total"]) or not step["total"] > 0:
        raise fault(f"{where}: total", shown(step["total"]), "milliseconds")
    for key in _TIMES:
        times = step[key]
        if not isinstance(times, list) or not 0 < len(times) <= MOST_BLOCKS or not all(map(_is_ms, times)):
            raise fault(f"{where}: {key}", shown(times), "a list of milliseconds")
    for phase in ("fwd", "bwd"):
        start, end = step[f"{phase}_start"], step[f"{phase}_end"]
        if len(start) != len(end) or any(last < first for first, last in zip(start, end, strict=False)):
            raise fault(f"{where}: {phase}_end", "times that do not follow", "ends after starts")
    return step


def _blocks(ranks: Mapping[int, Mapping[int, Values]], steps: list[int], fault: Fault) -> tuple[int, int]:
    """Forwards of a stage in a step, and chunks of a stage by their order. Raises FormatError."""
    counts = {len(ranks[rank][step][key]) for rank in ranks for step in steps for key in _TIMES}
    if len(counts) != 1:
        raise fault("forwards and backwards", ", ".join(map(str, sorted(counts)[:6])), "as many on each rank and in each step")
    blocks, pp = counts.pop(), len(ranks)
    first = ranks[0][steps[0]]
    before = int(np.searchsorted(np.array(first["fwd_start"]), first["bwd_start"][0]))  # forwards before the first backward
    # 1F1B: pp. Interleaved: (vpp - 1) x pp + 2 (pp - 1) + 1; all of them where there are no more, which is taken as 1F1B
    vpp = max(1, round((before - 2 * (pp - 1) - 1) / pp) + 1) if pp > 1 and pp < before < blocks else 1
    if blocks % (vpp * pp if vpp > 1 else 1):
        raise fault("forwards", f"{blocks} of each stage", f"a multiple of {vpp * pp}")
    return blocks, vpp
