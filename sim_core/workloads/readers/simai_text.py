"""The SimAI/AICB workload text: its grammar, with a `path:line:` message for every fault; equal lines are stored once.

Source of the grammar: aliyun/SimAI and aliyun/aicb, format of `*.txt` workloads; docs/formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from sim_core.errors import FormatError, nearest, shown
from sim_core.workloads.readers.lines import text_lines

POLICY: Final = "HYBRID_TRANSFORMER"
RERUN_POLICY: Final = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
REFUSED_POLICIES: Final = (
    "ALL",
    "DATA",
    "MODEL",
    "HYBRID",
    "HYBRID_DATA_MODEL",
    "HYBRID_MODEL_DATA",
    "HYBRID_CUSTOMIZED",
    "HYBRID_DLRM",
    "HYBRID_DLRM_ENHANCED",
    "DLRM",
    "MICRO",
    "MICRO_BENCHMARK",
    "DISTRIBUTED_INFERENCE",
)
COLLECTIVES: Final = ("NONE", "ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL")
SUFFIXES: Final = ("_DP_EP", "_EP")
LIST_KEYS: Final = ("checkpoints", "checkpoint_initiates")
HEADER_KEYS: Final = ("model_parallel_NPU_group", "ep", "pp", "vpp", "ga", "all_gpus", *LIST_KEYS, "pp_comm")
COLUMNS: Final = (
    "name",
    "dependency",
    *(f"{phase}_{column}" for phase in ("fwd", "ig", "wg") for column in ("ns", "comm", "bytes")),
    "update",
)
_INT64_MAX: Final = 2**63 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+\Z", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}:?\Z", re.ASCII)
_NAME_LENGTH: Final = 100


class Header(NamedTuple):
    """Line 1. `vpp` is 1 and `pp_comm` 0 if the line lacks them."""

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


class Record(NamedTuple):
    """One distinct layer line: per phase (fwd, ig, wg) nanoseconds, collective, group suffix and bytes."""

    name: str
    dependency: int
    compute_ns: tuple[int, int, int]
    collective: tuple[str, str, str]
    suffix: tuple[str, str, str]
    comm_bytes: tuple[int, int, int]
    update: int


@dataclass(frozen=True, kw_only=True)
class SimaiText:
    """A whole file: the distinct records, and `order[k]`, the record in layer line k (line `k_line[k]`)."""

    path: str
    header: Header
    records: tuple[Record, ...]
    order: npt.NDArray[np.int32]
    line_of: npt.NDArray[np.int64]
    warnings: tuple[str, ...]


def read_simai_text(path: str, data: bytes | None = None) -> SimaiText:
    """Parse the file at `path` (or `data`, with `path` for messages). Raises FormatError, OSError."""
    if data is None:
        data = Path(path).read_bytes()
    lines = text_lines(path, data, expected=f"a header that begins with {RERUN_POLICY}")
    header, warnings = _Header(path, lines[0][0], lines[0][1]).parse()
    if len(lines) < 2:
        raise FormatError(path, lines[0][0] + 1, "the number of layers is missing", expected="a whole number above 0")
    records, order = _body(path, lines)
    _check_ids(path, lines[0][0], header, len(order))
    return SimaiText(
        path=path,
        header=header,
        records=records,
        order=order,
        line_of=np.array([number for number, _ in lines[2:]], np.int64),
        warnings=tuple(warnings),
    )


def _integer(text: str, fail: Callable[[str, str], FormatError], *, least: int) -> int:
    """A decimal integer of 64 bits, at least `least`."""
    expected = f"a whole number of at least {least}"
    if not _INTEGER.match(text):
        raise fail(shown(text), expected)
    if len(text) > 64 or len(text.lstrip("+-0")) > 19 or abs(int(text)) > _INT64_MAX:
        raise fail(shown(text), expected if text.startswith("-") else "a number below 2^63")
    if int(text) < least:
        raise fail(shown(text), expected)
    return int(text)


class _Header:
    """Parser of line 1."""

    def __init__(self, path: str, line: int, text: str) -> None:
        self.path, self.line, self.tokens = path, line, text.split()
        self.values: dict[str, int] = {}
        self.lists: dict[str, tuple[int, ...]] = {}
        self.unknown: list[str] = []
        self.warnings: list[str] = []

    def fail(self, what: str, *, found: str = "", expected: str = "") -> FormatError:
        return FormatError(self.path, self.line, what, found=found, expected=expected)

    def parse(self) -> tuple[Header, list[str]]:
        policy = self._policy()
        position = 1
        while position < len(self.tokens):
            position = self._entry(position)
        return self._header(policy), self.warnings

    def _policy(self) -> str:
        policy = self.tokens[0]
        if policy in (POLICY, RERUN_POLICY):
            return policy
        if policy in REFUSED_POLICIES:
            raise self.fail(f"policy {policy} is not supported", expected=f"{RERUN_POLICY} or {POLICY}")
        raise self.fail("unknown policy", found=shown(policy), expected=f"{RERUN_POLICY} or {POLICY}")

    def _entry(self, position: int) -> int:
        """Read the key at `position` with its value; returns the position of the next key."""
        token = self.tokens[position]
        key = token.removesuffix(":")
        if not _KEY.match(token):
            if self.unknown:
                raise self.fail(f"unknown key `{self.unknown[-1]}` ({nearest(self.unknown[-1], HEADER_KEYS)})")
            raise self.fail("a header key is missing", found=shown(token), expected="`key: value`")
        if token == key and key != "pp_comm":  # some generators omit this colon
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
            text = whole[1] if whole else text
        return self._number(f"`{key}`", text, least=0 if key == "pp_comm" else 1)

    def _number(self, what: str, text: str, *, least: int) -> int:
        return _integer(text, lambda found, expected: self.fail(what, found=found, expected=expected), least=least)

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

    def _header(self, policy: str) -> Header:
        needed = ["model_parallel_NPU_group", "ep", "pp", "ga", "all_gpus"]
        needed += list(LIST_KEYS) if policy == RERUN_POLICY else []
        missing = [key for key in needed if key not in self.values and key not in self.lists]
        if missing:
            unknown = f"the unknown key `{self.unknown[0]}`" if self.unknown else ""
            expected = " ".join(f"{k}:" for k in needed)
            raise self.fail(f"header key `{missing[0]}:` is missing", found=unknown, expected=expected)
        v = self.values
        tp, pp, ep, gpus = v["model_parallel_NPU_group"], v["pp"], v["ep"], v["all_gpus"]
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


def _body(path: str, lines: list[tuple[int, str]]) -> tuple[tuple[Record, ...], npt.NDArray[np.int32]]:
    """Line 2 and the layer lines; a repeated line costs only a look-up."""
    number, text = lines[1]
    tokens = text.split()
    if len(tokens) != 1:
        raise FormatError(path, number, "the number of layers", found=shown(text.strip()), expected="one whole number")

    def fail(found: str, expected: str) -> FormatError:
        return FormatError(path, number, "the number of layers", found=found, expected=expected)

    count = _integer(tokens[0], fail, least=1)
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
            records.append(_record(path, line, raw))
        order[k] = index
    return tuple(records), order


def _record(path: str, line: int, raw: str) -> Record:
    """One layer line of 12 columns."""
    fields = raw.split()
    if len(fields) != len(COLUMNS):
        blank = next((cell.strip() for cell in raw.split("\t") if len(cell.split()) > 1), None) if "\t" in raw else None
        hint = f" (a blank inside {shown(blank)}?)" if blank and len(fields) > len(COLUMNS) else ""
        raise FormatError(path, line, "columns", found=f"{len(fields)}{hint}", expected=f"12: {' '.join(COLUMNS)}")

    def number(column: int, least: int) -> int:
        def fail(found: str, expected: str) -> FormatError:
            return FormatError(path, line, f"column {column + 1} ({COLUMNS[column]})", found=found, expected=expected)

        return _integer(fields[column], fail, least=least)

    if not fields[0].isprintable() or len(fields[0]) > _NAME_LENGTH:
        raise FormatError(path, line, "column 1 (name)", found=shown(fields[0]), expected="up to 100 printable characters")
    dependency = number(1, -1)
    phases = []
    for column in (2, 5, 8):
        compute_ns = number(column, 0)
        phases.append((compute_ns, _collective(path, line, column + 1, fields[column + 1]), number(column + 2, 0)))
    (fwd_ns, fwd_comm, fwd_bytes), (ig_ns, ig_comm, ig_bytes), (wg_ns, wg_comm, wg_bytes) = phases
    return Record(
        name=fields[0],
        dependency=dependency,
        compute_ns=(fwd_ns, ig_ns, wg_ns),
        collective=(fwd_comm[0], ig_comm[0], wg_comm[0]),
        suffix=(fwd_comm[1], ig_comm[1], wg_comm[1]),
        comm_bytes=(fwd_bytes, ig_bytes, wg_bytes),
        update=number(11, 0),
    )


def _collective(path: str, line: int, column: int, text: str) -> tuple[str, str]:
    """Collective and group suffix of a column such as `ALLTOALL_EP`."""
    suffix = next((s for s in SUFFIXES if text.endswith(s)), "")
    kind = text.removesuffix(suffix)
    if kind in COLLECTIVES and not (kind == "NONE" and suffix):
        return kind, suffix
    what = f"column {column + 1} ({COLUMNS[column]})"
    stem, _, rest = text.partition("_")
    if stem in COLLECTIVES[1:]:
        raise FormatError(path, line, f"{what}: unknown group", found=shown("_" + rest), expected="none, _EP or _DP_EP")
    hint = nearest(text.upper(), COLLECTIVES)
    found = f"{shown(text)} ({hint})" if hint.startswith("nearest") else shown(text)
    raise FormatError(path, line, f"{what}: unknown collective", found=found, expected=" ".join(COLLECTIVES))


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
