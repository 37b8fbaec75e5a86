"""The SimAI/AICB workload text: its grammar, with a `path:line:` message for every fault; equal lines are stored once.

Source of the grammar: aliyun/SimAI and aliyun/aicb, format of `*.txt` workloads, in its three generations; docs/formats.md.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.arrays import Ints
from sim_core.errors import FormatError, nearest, shown
from sim_core.limits import LARGEST, whole_number
from sim_core.terms import kinds_by
from sim_core.workloads.lines import text_lines
from sim_core.workloads.words import words_of

POLICY: Final = "HYBRID_TRANSFORMER"
RERUN_POLICY: Final = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
_MICRO: Final = "AICB's benchmark of single collectives: no sizes of groups, no training step"
_ASTRA: Final = "ASTRA-sim 1.0: groups are dimensions of a network that the file does not describe"
REFUSED_POLICIES: Final = {
    **dict.fromkeys(("MICRO", "MICRO_BENCHMARK"), _MICRO),
    **dict.fromkeys(("ALL", "DATA", "MODEL", "HYBRID", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED"), _ASTRA),
    **dict.fromkeys(("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "DLRM"), f"{_ASTRA}; a recommendation model"),
    "DISTRIBUTED_INFERENCE": f"{_ASTRA}; inference",
}
"""Policies of other generations and tools, and what such a file is."""
LIST_KEYS: Final = ("checkpoints", "checkpoint_initiates")
TP_KEY: Final = "model_parallel_NPU_group"
HEADER_KEYS: Final = (TP_KEY, "ep", "pp", "vpp", "ga", "all_gpus", *LIST_KEYS, "pp_comm")
_SAME_KEY: Final = {"expert_parallel_npu_group": "ep"}
"""Keys under another name: AICB writes this one into benchmarks of all-reduces."""
_FIRST: Final = "first generation of AICB, whose header states only the TP group"
_INT64_MAX: Final = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}:?\Z", re.ASCII)


class Header(NamedTuple):
    """Line 1. `vpp` is 1 and `pp_comm` 0 if the line lacks them; in the first generation, `ep`, `pp` and `ga` are 1."""

    policy: str
    tp: int
    ep: int
    pp: int
    vpp: int
    ga: int
    all_gpus: int
    checkpoints: tuple[int, ...]
    checkpoint_initiates: tuple[int, ...]
    pp_comm: int


def integer(text: str, path: str, line: int, what: str, *, least: int, most: int = _INT64_MAX) -> int:
    """A decimal integer from `least` to `most`, by default of 64 bits. Raises FormatError that names `what` it is."""
    bounded = most < _INT64_MAX
    expected = whole_number(least, most) if bounded else f"a whole number of at least {least}"
    if _INTEGER.match(text):
        too_long = len(text) > 64 or len(text.lstrip("+-0")) > 19 or abs(int(text)) > _INT64_MAX
        if not too_long and least <= int(text) <= most:
            return int(text)
        if too_long and not bounded and not text.startswith("-"):
            expected = "a number below 2^63"
    raise FormatError(path, line, what, found=shown(text), expected=expected)


class HeaderLine:
    """Parser of line 1."""

    def __init__(self, path: str, line: int, text: str, all_gpus: int | None) -> None:
        self.path, self.line, self.tokens, self.all_gpus = path, line, text.split(), all_gpus
        self.values: dict[str, int] = {}
        self.lists: dict[str, tuple[int, ...]] = {}
        self.unknown: list[str] = []
        self.warnings: list[str] = []
        self.first_generation = False

    def fail(self, what: str, *, found: str = "", expected: str = "") -> FormatError:
        return FormatError(self.path, self.line, what, found=found, expected=expected)

    def parse(self) -> Header:
        policy = self._policy()
        position = 1
        while position < len(self.tokens):
            position = self._entry(position)
        self._complete()
        return self._header(policy)

    def _policy(self) -> str:
        policy = self.tokens[0]
        if policy in (POLICY, RERUN_POLICY):
            return policy
        if policy in REFUSED_POLICIES:
            what = f"policy {policy} is not supported ({REFUSED_POLICIES[policy]})"
            raise self.fail(what, expected=f"{RERUN_POLICY} or {POLICY}")
        raise self.fail("unknown policy", found=shown(policy), expected=f"{RERUN_POLICY} or {POLICY}")

    def _entry(self, position: int) -> int:
        """Read the key at `position` with its value; returns the position of the next key."""
        token = self.tokens[position]
        key = _SAME_KEY.get(token.removesuffix(":"), token.removesuffix(":"))
        if not _KEY.match(token):
            if self.unknown:
                raise self.fail(f"unknown key `{self.unknown[-1]}` ({nearest(self.unknown[-1], HEADER_KEYS)})")
            raise self.fail("a header key is missing", found=shown(token), expected="`key: value`")
        if not token.endswith(":") and key != "pp_comm":  # some generators omit this colon
            raise self.fail("key without a colon", found=shown(token), expected=f"`{key}:`")
        if key in self.values or key in self.lists:
            raise self.fail(f"key `{key}` is repeated")
        if position + 1 >= len(self.tokens) or self.tokens[position + 1].endswith(":"):
            raise self.fail(f"key `{key}` without a value", expected="a number")
        value = self.tokens[position + 1]
        if key in LIST_KEYS:
            return self._ids(key, value, position + 2)
        if key not in HEADER_KEYS:
            self.unknown.append(key)
            self.warnings.append(f"{self.path}:{self.line}: unknown key `{key}` is ignored ({nearest(key, HEADER_KEYS)})")
            return position + 2
        self.values[key] = self._value(key, value)
        return position + 2

    def _value(self, key: str, text: str) -> int:
        if key == "pp_comm":
            whole = re.fullmatch(r"([0-9]+)\.0*", text)  # written as a float by some generators
            return self._number("`pp_comm`", whole[1] if whole else text, least=0)
        return self._number(f"`{key}`", text, least=1, most=LARGEST["tp" if key == TP_KEY else key])

    def _number(self, what: str, text: str, *, least: int, most: int = _INT64_MAX) -> int:
        return integer(text, self.path, self.line, what, least=least, most=most)

    def _ids(self, key: str, text: str, start: int) -> int:
        """`N id...`: the ids follow the count."""
        count = self._number(f"count of `{key}`", text, least=0)
        ids = self.tokens[start : start + count]
        short = next((k for k, token in enumerate(ids) if token.endswith(":")), len(ids))
        if short < count:
            raise self.fail(f"`{key}` has too few ids", found=f"{short} of {count}", expected=f"{count} layer ids")
        self.lists[key] = tuple(self._number(f"id of `{key}`", token, least=0) for token in ids)
        after = self.tokens[start + count : start + count + 1]
        if after and _INTEGER.match(after[0]):
            raise self.fail(f"`{key}` has more ids than its count", found=shown(after[0]), expected=f"{count} layer ids")
        return start + count

    def _complete(self) -> None:
        """Complete a header of the first generation, which describes one micro-batch on one stage of TP x DP."""
        stated = self.values.get("all_gpus")
        if stated is not None and self.all_gpus not in (None, stated):
            raise self.fail("`all_gpus`", found=f"{stated}", expected=f"{self.all_gpus}, as workload.all_gpus")
        self.first_generation = set(self.values) == {TP_KEY} and not self.unknown
        if self.first_generation:
            if self.all_gpus is None:
                raise self.fail(f"{_FIRST}; the number of GPUs is missing", expected="workload.all_gpus")
            self.values |= {"ep": 1, "pp": 1, "vpp": 1, "ga": 1, "all_gpus": self.all_gpus}
            self.warnings.append(f"{self.path}:{self.line}: {_FIRST}: taken as one micro-batch on one stage, without experts")

    def _header(self, policy: str) -> Header:
        needed = [TP_KEY, "ep", "pp", "ga", "all_gpus"]
        needed += list(LIST_KEYS) if policy == RERUN_POLICY else []
        missing = [key for key in needed if key not in self.values and key not in self.lists]
        if missing:
            unknown = f"the unknown key `{self.unknown[0]}`" if self.unknown else ""
            expected = " ".join(f"{k}:" for k in needed)
            raise self.fail(f"header key `{missing[0]}:` is missing", found=unknown, expected=expected)
        v = self.values
        tp, pp, ep, gpus = v[TP_KEY], v["pp"], v["ep"], v["all_gpus"]
        if gpus % (tp * pp):
            how = "exceeds" if tp * pp > gpus else "does not divide"
            raise self.fail(f"model_parallel_NPU_group({tp}) * pp({pp}) = {tp * pp} {how} all_gpus({gpus})")
        if gpus // (tp * pp) % ep:
            raise self.fail(f"ep({ep}) does not divide the data-parallel size {gpus // (tp * pp)}")
        if policy == POLICY and any(self.lists.values()):
            self.warnings.append(f"{self.path}:{self.line}: {POLICY} runs nothing again: the checkpoint ids have no effect")
        if "vpp" not in v:
            self.warnings.append(f"{self.path}:{self.line}: the header has no `vpp:`, taken as 1")
        return Header(
            policy=policy,
            tp=tp,
            ep=ep,
            pp=pp,
            vpp=v.get("vpp", 1),
            ga=v["ga"],
            all_gpus=gpus,
            checkpoints=tuple(sorted(set(self.lists.get("checkpoints", ())))),
            checkpoint_initiates=tuple(sorted(set(self.lists.get("checkpoint_initiates", ())))),
            pp_comm=v.get("pp_comm", 0),
        )


COLLECTIVES: Final = tuple(kinds_by("simai"))
BROADCAST: Final = "BROADCAST"
"""In files of the first generation."""
_WORDS: Final = words_of((*COLLECTIVES, BROADCAST))
COLUMNS: Final = (
    "name",
    "dependency",
    *(f"{phase}_{column}" for phase in ("fwd", "ig", "wg") for column in ("ns", "comm", "bytes")),
    "update",
)
_NAME_LENGTH: Final = 100


class Record(NamedTuple):
    """One distinct layer line: per phase (fwd, ig, wg) nanoseconds, collective, group suffix and bytes."""

    name: str
    dependency: int
    compute_ns: tuple[int, ...]
    collective: tuple[str, ...]
    suffix: tuple[str, ...]
    comm_bytes: tuple[int, ...]
    update: int


@dataclass(frozen=True, kw_only=True)
class SimaiText:
    """A whole file: the distinct records, and `order[k]`, the record in layer line k (line `k_line[k]`)."""

    path: str
    header: Header
    records: tuple[Record, ...]
    order: npt.NDArray[np.int32]
    line_of: Ints
    warnings: tuple[str, ...]

    def at(self, lines: Iterable[int]) -> list[Record]:
        """The records in some layer lines."""
        return [self.records[self.order[k]] for k in lines]


def read_simai_text(path: str, data: bytes | None = None, *, all_gpus: int | None = None) -> SimaiText:
    """Parse the file at `path` (or `data`, with `path` for messages). Raises FormatError, OSError.

    `all_gpus` is for files of the first generation, which lack it; one that contradicts the header is an error.
    """
    if data is None:
        data = Path(path).read_bytes()
    lines = text_lines(path, data, expected=f"a header that begins with {RERUN_POLICY}")
    line = HeaderLine(path, lines[0][0], lines[0][1], all_gpus)
    header = line.parse()
    if len(lines) < 2:
        raise FormatError(path, lines[0][0] + 1, "the number of layers is missing", expected="a whole number above 0")
    kinds = (*COLLECTIVES, BROADCAST) if line.first_generation else COLLECTIVES
    records, order = _body(path, lines, kinds)
    line_of = np.array([number for number, _ in lines[2:]], np.int64)
    _check_ids(path, lines[0][0], header, len(order))
    first_lines = line_of[np.unique(order, return_index=True)[1]].tolist()
    if line.first_generation:
        _refuse_zero3(path, header, records, first_lines)
        records = _without_broadcasts(path, records, first_lines, line.warnings)
    return SimaiText(path=path, header=header, records=records, order=order, line_of=line_of, warnings=tuple(line.warnings))


def _body(path: str, lines: list[tuple[int, str]], kinds: tuple[str, ...]) -> tuple[tuple[Record, ...], npt.NDArray[np.int32]]:
    """Line 2 and the layer lines; a repeated line costs only a look-up."""
    (number, text), what = lines[1], "the number of layers"
    tokens = text.split()
    if len(tokens) != 1:
        raise FormatError(path, number, what, found=shown(text.strip()), expected="one whole number")
    count = integer(tokens[0], path, number, what, least=1)
    if count != len(lines) - 2:
        where = lines[-1][0] if count > len(lines) - 2 else lines[2 + count][0]
        raise FormatError(path, where, "layer lines", found=f"{len(lines) - 2}", expected=f"{count} (line {number})")
    ids: dict[str, int] = {}
    records: list[Record] = []
    order = np.empty(count, np.int32)
    for k, (line, raw) in enumerate(lines[2:]):
        index = ids.get(raw)
        if index is None:
            index = ids[raw] = len(records)
            records.append(_record(path, line, raw, kinds))
        order[k] = index
    return tuple(records), order


def _record(path: str, line: int, raw: str, kinds: tuple[str, ...]) -> Record:
    """One layer line of 12 columns."""
    fields = raw.split()
    if len(fields) != len(COLUMNS):
        blank = next((cell.strip() for cell in raw.split("\t") if len(cell.split()) > 1), None) if "\t" in raw else None
        hint = f" (a blank inside {shown(blank)}?)" if blank and len(fields) > len(COLUMNS) else ""
        raise FormatError(path, line, "columns", found=f"{len(fields)}{hint}", expected=f"12: {' '.join(COLUMNS)}")

    def number(column: int, least: int) -> int:
        return integer(fields[column], path, line, f"column {column + 1} ({COLUMNS[column]})", least=least)

    if not fields[0].isprintable() or len(fields[0]) > _NAME_LENGTH:
        raise FormatError(path, line, "column 1 (name)", found=shown(fields[0]), expected="up to 100 printable characters")
    dependency = number(1, -1)
    phases = [
        (number(column, 0), *_collective(path, line, column + 1, fields[column + 1], kinds), number(column + 2, 0))
        for column in (2, 5, 8)
    ]
    compute_ns, collective, suffix, comm_bytes = zip(*phases, strict=True)
    return Record(fields[0], dependency, compute_ns, collective, suffix, comm_bytes, update=number(11, 0))


def _collective(path: str, line: int, column: int, text: str, kinds: tuple[str, ...]) -> tuple[str, str]:
    """Collective and group suffix of a column such as `ALLTOALL_EP`."""
    if text in _WORDS and _WORDS[text][0] in kinds:
        return _WORDS[text]
    what = f"column {column + 1} ({COLUMNS[column]})"
    stem, _, rest = text.partition("_")
    if stem in kinds[1:]:
        raise FormatError(path, line, f"{what}: unknown group", found=shown("_" + rest), expected="none, _EP or _DP_EP")
    hint = nearest(text.upper(), kinds)
    found = f"{shown(text)} ({hint})" if hint.startswith("nearest") else shown(text)
    raise FormatError(path, line, f"{what}: unknown collective", found=found, expected=" ".join(kinds))


def _refuse_zero3(path: str, header: Header, records: tuple[Record, ...], lines: Sequence[int]) -> None:
    """Raise FormatError for DeepSpeed ZeRO-3, which gathers parameters over DP in columns that belong to the TP group."""
    for record, line in zip(records, lines, strict=True):
        if header.tp == 1 and record.collective[:2] == ("NONE", "ALLGATHER"):
            found = f"{record.name} gathers {record.comm_bytes[1]} bytes in the column of a TP group of 1"
            expected = "work of TP and DP; a gather of parameters layer by layer cannot be told in this format"
            raise FormatError(path, line, "DeepSpeed ZeRO-3 sample of AICB's first generation", found=found, expected=expected)


def _without_broadcasts(
    path: str, records: tuple[Record, ...], lines: Sequence[int], warnings: list[str]
) -> tuple[Record, ...]:
    """The records with their broadcasts as all-gathers, and a warning at the first of them."""
    told = [
        record._replace(collective=tuple("ALLGATHER" if kind == BROADCAST else kind for kind in record.collective))
        for record in records
    ]
    first = next((line for old, new, line in zip(records, told, lines, strict=True) if old != new), None)
    if first is not None:
        warnings.append(f"{path}:{first}: BROADCAST is taken as ALLGATHER: both send every byte once round a ring")
    return tuple(told)


def _check_ids(path: str, line: int, header: Header, records: int) -> None:
    """Checkpoint ids are layer lines (from 0), each initiate has a checkpoint at or before it."""
    for key, ids in (("checkpoints", header.checkpoints), ("checkpoint_initiates", header.checkpoint_initiates)):
        for value in ids:
            if value >= records:
                raise FormatError(path, line, f"id of `{key}`", found=str(value), expected=f"0 to {records - 1}")
    first = min(header.checkpoints, default=None)
    for value in header.checkpoint_initiates:
        if first is None or value < first:
            raise FormatError(
                path, line, "id of `checkpoint_initiates`", found=f"{value}", expected="a checkpoint at or before it"
            )
