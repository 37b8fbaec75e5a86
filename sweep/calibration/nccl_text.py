"""nccl-tests output (text of any version since 2017, or `-J` JSON) as tables: operation, ranks, seconds by size."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sim_core import FormatError, shown

ELEMENT_BYTES: Final = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2, "float": 4, "double": 8,
    "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "char": 1, "int": 4, "bf16": 2, "fp16": 2,
}  # fmt: skip
MOST_DIGITS: Final = 18
LONGEST_LINE: Final = 4000
ROUNDING: Final = 0.01
"""Printed bandwidths have two decimals: half a unit, and as much for hand-made copies; and this part of themselves."""

_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_STAMP = re.compile(r"^.{0,40}<std(?:out|err)>:")
_RANK_OF_LAUNCHER = re.compile(r"^\s*\d+:\s")
_NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?$")
OPERATIONS: Final = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter", "alltoall": "all_to_all", "all_to_all": "all_to_all",
    "sendrecv": "send_receive", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "hypercube": "hypercube", "alltoallv": "all_to_allv", "all_to_allv": "all_to_allv",
}  # fmt: skip
LARGEST_FILE: Final = 64 * 2**20
SHARED: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "all_to_allv")
"""Operations of which each rank has its part; of the others but all-reduce, both printed bandwidths are the same."""
SURE_RANKS: Final = 150
"""Ranks that follow from two printed decimals; of more, the rank list or the counts have to say."""
CLEAR: Final = 1.0
"""GB/s from which the ratio of two printed bandwidths is known to a few per cent; the fastest row is taken."""
_START = re.compile(r"Collective test starting:\s*(\w+?)(?:_perf)?(?:_mpi)?\s*$")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$", re.IGNORECASE
)
_VERSION = re.compile(r"NCCL version\s*:?\s*([0-9][\w.+-]*)|nccl-library=(\d+)")
_HEADER = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+|^#\s*size\s+count\s+type|bytes\s+N\s+type")


class Block(NamedTuple):
    """Time and bandwidths of one placement (out of place or in place), as printed."""

    time: float  # us, or ms before 2019
    algorithm: float  # GB/s
    bus: float
    wrong: str  # as printed; empty if absent


class Line(NamedTuple):
    """A row of a table."""

    number: int
    size: int  # bytes
    elements: int  # that each rank passes
    dtype: str
    operation: str  # reduction, or nothing
    blocks: tuple[Block, ...]
    milliseconds: bool  # the time agrees with the bandwidth only if it is in ms


def bare(line: str) -> str:
    """A line without the tags of launchers, which can stand in the middle of a row or a word."""
    if "<stderr>:" in line and "<stdout>:" not in line:
        return ""
    line = _TAG.sub("", line)
    return _RANK_OF_LAUNCHER.sub("", _STAMP.sub("", line)).strip()


def row_of(number: int, line: str) -> Line | None:
    """A row, or None if the line is none: size, count, type, then reduction and root as the version has them, then numbers."""
    tokens = line.split()
    if len(tokens) < 6 or len(line) > LONGEST_LINE or tokens[2] not in ELEMENT_BYTES:
        return None
    if not all(token.isascii() and token.isdigit() and len(token) <= MOST_DIGITS for token in tokens[:2]):
        return None
    size, rest = int(tokens[0]), tokens[3:]
    operation = rest[0] if rest[0][0].isalpha() and rest[0] != "N/A" else ""
    for milliseconds in (False, True):
        blocks = _blocks(size, rest, milliseconds)
        if blocks:
            return Line(number, size, int(tokens[1]), tokens[2], operation, blocks, milliseconds)
    return Line(number, size, int(tokens[1]), tokens[2], operation, (), False)


def _blocks(size: int, tokens: list[str], milliseconds: bool) -> tuple[Block, ...]:
    """Up to two placements: three numbers of which the second is size over the first."""
    blocks: list[Block] = []
    at = 0
    while at + 2 < len(tokens) and len(blocks) < 2:
        block = _block(tokens[at : at + 4])
        if block is not None and _agrees(size, block, milliseconds):
            blocks.append(block)
            at += 4
        else:
            at += 1
    return tuple(blocks)


def _block(tokens: list[str]) -> Block | None:
    if not all(_NUMBER.match(token) for token in tokens[:3]):
        return None
    time, algorithm, bus = (float(token) for token in tokens[:3])
    return Block(time, algorithm, bus, tokens[3] if len(tokens) > 3 else "")


def _agrees(size: int, block: Block, milliseconds: bool) -> bool:
    if block.time <= 0 or block.bus > 2 * block.algorithm + 0.02:
        return False
    rate = size / block.time / (1e6 if milliseconds else 1e3)
    return abs(rate - block.algorithm) <= ROUNDING + ROUNDING * rate and (block.algorithm > 0 or rate < ROUNDING)


class Measured(NamedTuple):
    """One size: bytes as nccl-tests counts them (of a gather or scatter the whole), and the faster placement."""

    size: int
    seconds: float


class Table(NamedTuple):
    """One operation over one set of ranks."""

    line: int  # of its first row
    operation: str
    ranks: int
    nodes: int | None  # hosts in the rank list
    gpu: str
    nccl: str
    dtype: str
    rows: tuple[Measured, ...]
    left_out: int  # rows with wrong results, without size or inconsistent


class _Head:
    """What stands above a table."""

    def __init__(self, ranks: int | None = None) -> None:
        self.ranks = ranks  # as the user states them
        self.operation = ""
        self.hosts: dict[int, str] = {}
        self.groups: Counter[str] = Counter()
        self.gpu = ""
        self.nccl = ""
        self.cpu_times = False


def read_nccl(path: Path, ranks: int | None = None) -> list[Table]:
    """The tables of a log; `ranks` where the log does not say how many they were.

    Raises FormatError (`path:line: what`): nothing is guessed, and a broken file is one line.
    """
    name = str(path)
    if path.stat().st_size > LARGEST_FILE:
        raise FormatError(name, 1, "file size", found=f"{path.stat().st_size:,} bytes", expected=f"at most {LARGEST_FILE:,}")
    text = path.read_bytes().decode("utf-8", errors="replace")
    if text.lstrip()[:1] == "{":
        return _from_json(name, text, ranks)
    tables: list[Table] = []
    head, rows, headers = _Head(ranks), list[Line](), 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = bare(raw)
        row = row_of(number, line)
        if row is not None:
            rows.append(row)
            continue
        if _HEADER.search(line):
            headers += 1
        if rows and _begins(line):
            tables.append(_table(name, head, rows))
            rows, head = [], _next_head(head, line)
        _take(head, line)
    if rows:
        tables.append(_table(name, head, rows))
    if not tables:
        what = "a heading of nccl-tests without rows" if headers else "no row of nccl-tests"
        raise FormatError(name, 1, "not nccl-tests output", found=what, expected="rows of size, count, type, time, bandwidths")
    return tables


def _begins(line: str) -> bool:
    """Whether a line is above the next table."""
    return bool(_START.search(line)) or "nThread" in line or line.replace("#", "").split()[:3] == ["size", "count", "type"]


def _next_head(old: _Head, line: str) -> _Head:
    """After a table: a new program lists its ranks anew; of a heading alone, the ranks are those before."""
    head = _Head(old.ranks)
    head.nccl = old.nccl
    if not (_START.search(line) or "nThread" in line):
        head.hosts, head.groups, head.gpu = old.hosts, old.groups, old.gpu
    return head


def _take(head: _Head, line: str) -> None:
    if match := _START.search(line):
        head.operation = OPERATIONS.get(match[1].lower(), match[1].lower())
    elif match := _RANK.search(line):
        head.hosts[int(match[1])] = match[3]
        head.groups[match[2] or "0"] += 1
        head.gpu = head.gpu or match[4].strip()
    elif match := _VERSION.search(line):
        head.nccl = head.nccl or match[1] or match[2]
    if "cputime" in line:
        head.cpu_times = True


def _table(name: str, head: _Head, lines: Sequence[Line]) -> Table:
    first = lines[0].number
    if head.cpu_times:
        raise FormatError(name, first, "times", found="CPU times (-C)", expected="times of the operation")
    kept = [line for line in lines if line.size and line.blocks]
    if not kept:
        raise FormatError(name, first, "rows", found="times and bandwidths that disagree", expected="size / time = algbw")
    if len({line.milliseconds for line in kept if line.blocks[0].algorithm > 0.1}) > 1:
        raise FormatError(name, first, "times", found="microseconds and milliseconds", expected="one unit")
    unit = 1e-3 if any(line.milliseconds for line in kept) else 1e-6
    ranks, operation = _meaning(name, first, head, kept)
    rows, wrong = [], len(lines) - len(kept)
    for line in kept:
        good = [block.time for block in line.blocks if not _is_wrong(block)]
        wrong += not good
        if good:
            rows.append(Measured(line.size, min(good) * unit))
    if not rows:
        raise FormatError(name, first, "#wrong", found="wrong results in every row", expected="rows to trust")
    # a list of other ranks is a part of them, or several groups
    nodes = len(set(head.hosts.values())) or None if len(head.hosts) == ranks else None
    return Table(first, operation, ranks, nodes, head.gpu, head.nccl, kept[0].dtype, tuple(rows), wrong)


def _is_wrong(block: Block) -> bool:
    """Results that the test found to be wrong; versions before 2.13 print the largest deviation there, a small fraction."""
    try:
        return float(block.wrong) >= 1
    except ValueError:
        return False


def _meaning(name: str, first: int, head: _Head, lines: Sequence[Line]) -> tuple[int, str]:
    """Ranks and operation, from the heading, the counts and the ratio of the bandwidths. Raises FormatError."""
    listed = max(head.hosts, default=0) + 1 if len(head.groups) <= 1 else max(head.groups.values())
    largest = max(lines, key=lambda line: line.size)
    elements = largest.size // ELEMENT_BYTES[largest.dtype]
    parts = elements / largest.elements if largest.elements else 0.0
    clear = max((block for line in lines for block in line.blocks), key=lambda block: block.algorithm)
    ratio = clear.bus / clear.algorithm if clear.algorithm >= CLEAR else None
    operation = head.operation or _operation(parts, ratio, listed, largest)
    if not operation:
        raise FormatError(name, first, "operation", found="none in the heading", expected="bandwidths of which one follows")
    off = 0.02 if ratio is None else 0.01 * (1 + 1 / clear.algorithm)
    ranks = head.ranks or (round(parts) if operation in SHARED and parts > 1.5 else listed)
    if ratio is not None and abs(ratio - bus_factor(operation, ranks)) > off and not head.ranks:
        ranks = _implied(operation, ratio, clear.algorithm) or ranks
    if ranks < 2:
        what = "1 (without MPI=1 each rank runs alone)" if head.hosts else "no list of them"
        raise FormatError(name, first, "ranks", found=what, expected="2 or more, or --ranks")
    if ratio is not None and abs(ratio - bus_factor(operation, ranks)) > off:
        expected = f"{bus_factor(operation, ranks):.3f} of {operation} over {ranks}"
        raise FormatError(name, first, "busbw / algbw", found=f"{ratio:.3f}", expected=expected)
    return ranks, operation


def _operation(parts: float, ratio: float | None, listed: int, line: Line) -> str:
    """The operation of a log before 2025, which does not name it; empty if it cannot be known.

    It follows from the ratio of the bandwidths, the share of a rank, the reduction, and how results are checked.
    """
    if ratio is None:
        return ""
    if ratio > 1.05:
        return "all_reduce"
    if ratio < 0.45:
        return ""  # of two ranks already half of it is sent: one rank alone
    if parts > 1.5 or ratio < 0.995:
        if line.operation not in ("none", ""):
            return "reduce_scatter"
        in_place = line.blocks[1].wrong if len(line.blocks) > 1 else ""
        return "all_to_all" if in_place == "N/A" and line.blocks[0].wrong != "N/A" else "all_gather"
    if listed == 2:
        return ""  # an all-reduce of two, or a send
    return "broadcast" if line.operation == "none" else "send_receive"


def _implied(operation: str, ratio: float, algorithm: float) -> int:
    """Ranks by the ratio of two bandwidths printed with two decimals; 0 where that does not say."""
    twice = 2 if operation == "all_reduce" else 1
    if ratio >= twice or operation not in ("all_reduce", *SHARED):
        return 0
    ranks = twice / (twice - ratio)
    sure = ranks * ranks / twice * 0.01 / algorithm < 0.45
    return round(ranks) if ranks <= SURE_RANKS and sure else 0


def bus_factor(operation: str, ranks: int) -> float:
    """busbw / algbw of nccl-tests (its doc/PERFORMANCE.md): bytes over a link for each byte of the whole message."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in SHARED else 1.0


def _from_json(name: str, text: str, ranks: int | None) -> list[Table]:
    """The file of `-J`, or one object a line as rccl-tests writes them."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return [_json_lines(name, text)]
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        keys = ", ".join(list(document)[:4]) if isinstance(document, dict) else type(document).__name__
        what = f"JSON with {shown(keys)}"
        raise FormatError(name, 1, "not nccl-tests output", found=what, expected="results, as -J writes them")
    head = _Head(ranks)
    arguments = " ".join(map(str, document.get("args") or ()))
    if program := re.search(r"(\w+?)_perf", arguments):
        head.operation = OPERATIONS.get(program[1].lower(), "")
    config = document.get("config")
    for device in (config.get("devices") if isinstance(config, dict) else None) or ():
        if isinstance(device, dict):
            head.hosts[len(head.hosts)] = str(device.get("hostname", ""))
            head.groups[str(device.get("group", 0))] += 1
            head.gpu = head.gpu or str(device.get("device_info", ""))
    head.nccl = str(document.get("nccl_version", ""))
    return [_table(name, head, _json_rows(name, document["results"]))]


def _json_rows(name: str, results: Iterable[Any]) -> list[Line]:
    lines = []
    for number, result in enumerate(results, 1):
        if not isinstance(result, dict) or str(result.get("type")) not in ELEMENT_BYTES:
            where, expected = f"results[{number - 1}]", "size, count, type, out_of_place"
            raise FormatError(name, 1, where, found=shown(result), expected=expected)
        cells = [str(result.get(key, "")).strip() for key in ("size", "count", "type", "redop", "root")]
        for place in ("out_of_place", "in_place"):
            block = result.get(place)
            if isinstance(block, dict):
                wrong = block.get("nwrong")
                cells += [str(block.get(key, "")) for key in ("time", "alg_bw", "bus_bw")]
                cells.append("N/A" if wrong is None else str(wrong))
        row = row_of(number, " ".join(cell for cell in cells if cell))
        if row is not None:
            lines.append(row)
    if not lines:
        raise FormatError(name, 1, "results", found="no row of numbers", expected="size, count, type, out_of_place")
    return lines


def _json_lines(name: str, text: str) -> Table:
    head, lines, line = _Head(), list[Line](), 1
    for line, raw in enumerate(text.splitlines(), 1):
        if not raw.strip():
            continue
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError):
            expected = "one object a line, or the file of -J"
            raise FormatError(name, line, "not JSON", found=shown(raw), expected=expected) from None
        if not isinstance(row, dict) or "busBw" not in row:
            raise FormatError(name, line, "not a row", found=shown(raw), expected="size, time, algBw, busBw")
        head.operation = OPERATIONS.get(str(row.get("name", "")).lower(), "")
        ranks = row.get("gpus")
        if isinstance(ranks, int) and 0 < ranks < 10**6:
            head.hosts = dict.fromkeys(range(ranks), "")
        dtype = str(row.get("type"))
        count = str(int(row["size"]) // ELEMENT_BYTES.get(dtype, 1)) if str(row.get("size", "")).isdigit() else ""
        numbers = [row.get(key) for key in ("redop", "time", "algBw", "busBw", "#wrong")]
        measured = row_of(line, " ".join(map(str, (row.get("size"), count, dtype, *numbers))))
        if measured is not None:
            lines.append(measured)
    if not lines:
        raise FormatError(name, line, "not nccl-tests output", found="no row of numbers", expected="size, time, algBw, busBw")
    return _table(name, head, lines)
