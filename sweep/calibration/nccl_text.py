"""nccl-tests output (text of any version since 2017, or `-J` JSON) as tables: operation, ranks, seconds by size."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sim_core import FormatError, shown
from sim_core.places import read_input
from sweep.calibration.nccl_rows import ELEMENT_BYTES, Block, Line, bare, row_of
from sweep.frameworks.names import by_word

OPERATIONS = by_word(
    {
        "all_reduce": "all_reduce allreduce",
        "all_gather": "all_gather allgather",
        "reduce_scatter": "reduce_scatter reducescatter",
        "all_to_all": "alltoall all_to_all",
        "all_to_allv": "alltoallv all_to_allv",
        "send_receive": "sendrecv",
        **{word: word for word in ("broadcast", "reduce", "gather", "scatter", "hypercube")},
    }
)
LARGEST_FILE = 64 * 2**20
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "all_to_allv")
"""Operations of which each rank has its part; of the others but all-reduce, both printed bandwidths are the same."""
SURE_RANKS = 150
"""Ranks that follow from two printed decimals; of more, the rank list or the counts have to say."""
CLEAR = 1.0
"""GB/s from which the ratio of two printed bandwidths is known to a few per cent; the fastest row is taken."""
_START = re.compile(r"Collective test starting:\s*(\w+?)(?:_perf)?(?:_mpi)?\s*$")
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$", re.IGNORECASE
)
_HEADER = re.compile(r"nThread\s+\d+\s+nGpus\s+\d+|^#\s*size\s+count\s+type|bytes\s+N\s+type")


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
    rows: tuple[Measured, ...]
    left_out: int  # rows with wrong results, without size or inconsistent


@dataclass
class _Head:
    """What stands above a table."""

    ranks: int | None = None  # as the user states them
    operation: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    gpu: str = ""
    cpu_times: bool = False

    def take(self, line: str) -> None:
        """Read what a line above a table tells."""
        if match := _START.search(line):
            self.operation = OPERATIONS.get(match[1].lower(), match[1].lower())
        elif match := _RANK.search(line):
            self.hosts[int(match[1])] = match[3]
            self.groups[match[2] or "0"] += 1
            self.gpu = self.gpu or match[4].strip()
        self.cpu_times = self.cpu_times or "cputime" in line


def text_of(path: Path) -> str:
    """The text of a file. Raises FormatError if it is too large, OSError."""
    return read_input(path, LARGEST_FILE).decode("utf-8", errors="replace")


def read_nccl(path: Path, ranks: int | None = None) -> list[Table]:
    """The tables of a log; `ranks` where the log does not say how many they were.

    Raises FormatError (`path:line: what`): nothing is guessed, and a broken file is one line.
    """
    name, text = str(path), text_of(path)
    if text.lstrip()[:1] == "{":
        return [_from_json(name, text, ranks)]
    tables = []
    head, rows, what = _Head(ranks), [], "no row of nccl-tests"
    for number, raw in enumerate(text.splitlines(), 1):
        line = bare(raw)
        if (row := row_of(number, line)) is not None:
            rows.append(row)
            continue
        if _HEADER.search(line):
            what = "a heading of nccl-tests without rows"
        anew = bool(_START.search(line)) or "nThread" in line  # a program, which lists its ranks
        if rows and (anew or line.replace("#", "").split()[:3] == ["size", "count", "type"]):
            tables.append(_table(name, head, rows))
            rows, head = [], _Head(ranks) if anew else replace(head, operation="", cpu_times=False)
        head.take(line)
    if rows:
        tables.append(_table(name, head, rows))
    if not tables:
        raise FormatError(name, 1, "not nccl-tests output", what, "rows of size, count, type, time, bandwidths")
    return tables


def _table(name: str, head: _Head, lines: Sequence[Line]) -> Table:
    fault = partial(FormatError, name, lines[0].number)
    kept = [line for line in lines if line.size and line.blocks]
    if head.cpu_times:
        raise fault("times", "CPU times (-C)", "times of the operation")
    if not kept:
        raise fault("rows", "times and bandwidths that disagree", "size / time = algbw")
    if len({line.milliseconds for line in kept if line.blocks[0].algorithm > 0.1}) > 1:
        raise fault("times", "microseconds and milliseconds", "one unit")
    unit = 1e-3 if any(line.milliseconds for line in kept) else 1e-6
    ranks, operation = _meaning(head, kept, fault)
    good = [(line.size, [block.time for block in line.blocks if not _is_wrong(block)]) for line in kept]
    rows = tuple(Measured(size, min(times) * unit) for size, times in good if times)
    if not rows:
        raise fault("#wrong", "wrong results in every row", "rows to trust")
    # a list of other ranks is a part of them, or several groups
    nodes = len(set(head.hosts.values())) or None if len(head.hosts) == ranks else None
    return Table(lines[0].number, operation, ranks, nodes, head.gpu, rows, len(lines) - len(rows))


def _is_wrong(block: Block) -> bool:
    """Results that the test found to be wrong; versions before 2.13 print the largest deviation there, a small fraction."""
    try:
        return float(block.wrong) >= 1
    except ValueError:
        return False


def _meaning(head: _Head, lines: Sequence[Line], fault: Callable[[str, str, str], FormatError]) -> tuple[int, str]:
    """Ranks and operation, from the heading, the counts and the ratio of the bandwidths. Raises what `fault` makes."""
    listed = max(head.hosts, default=0) + 1 if len(head.groups) <= 1 else max(head.groups.values())
    largest = max(lines, key=lambda line: line.size)
    parts = largest.size // ELEMENT_BYTES[largest.dtype] / largest.elements if largest.elements else 0.0
    clear = max((block for line in lines for block in line.blocks), key=lambda block: block.algorithm)
    ratio = clear.bus / clear.algorithm if clear.algorithm >= CLEAR else None
    operation = head.operation or _operation(parts, ratio, listed, largest)
    if not operation:
        raise fault("operation", "none in the heading", "bandwidths of which one follows")
    ranks = head.ranks or (round(parts) if operation in SHARED and parts > 1.5 else listed)

    def differs() -> bool:
        return ratio is not None and abs(ratio - bus_factor(operation, ranks)) > 0.01 * (1 + 1 / clear.algorithm)

    if not head.ranks and ratio is not None and differs():
        ranks = _implied(operation, ratio, clear.algorithm) or ranks
    if ranks < 2:
        what = "1 (without MPI=1 each rank runs alone)" if head.hosts else "no list of them"
        raise fault("ranks", what, "2 or more, or --ranks")
    if differs():
        raise fault("busbw / algbw", f"{ratio:.3f}", f"{bus_factor(operation, ranks):.3f} of {operation} over {ranks}")
    return ranks, operation


def _operation(parts: float, ratio: float | None, listed: int, line: Line) -> str:
    """The operation of a log before 2025, which does not name it; empty if it cannot be known.

    It follows from the ratio of the bandwidths, the share of a rank, the reduction, and how results are checked.
    """
    if ratio is None or ratio < 0.45:  # of two ranks already half of it is sent: one rank alone
        return ""
    if ratio > 1.05:
        return "all_reduce"
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
    return round(ranks) if ranks <= SURE_RANKS and ranks * ranks / twice * 0.01 / algorithm < 0.45 else 0


def bus_factor(operation: str, ranks: int) -> float:
    """busbw / algbw of nccl-tests (its doc/PERFORMANCE.md): bytes over a link for each byte of the whole message."""
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in SHARED else 1.0


def _from_json(name: str, text: str, ranks: int | None) -> Table:
    """The file of `-J`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(name, 1, "not JSON", shown(text.partition("\n")[0]), "the file of -J, or the text") from None
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        keys = ", ".join(list(document)[:4]) if isinstance(document, dict) else type(document).__name__
        raise FormatError(name, 1, "not nccl-tests output", f"JSON with {shown(keys)}", "results, as -J writes them")
    head = _Head(ranks)
    if program := re.search(r"(\w+?)_perf", " ".join(map(str, document.get("args") or ()))):
        head.operation = OPERATIONS.get(program[1].lower(), "")
    config = document.get("config")
    for device in (config.get("devices") if isinstance(config, dict) else None) or ():
        if isinstance(device, dict):
            head.hosts[len(head.hosts)] = str(device.get("hostname", ""))
            head.groups[str(device.get("group", 0))] += 1
            head.gpu = head.gpu or str(device.get("device_info", ""))
    lines = []
    for number, result in enumerate(document["results"], 1):
        if not isinstance(result, dict) or str(result.get("type")) not in ELEMENT_BYTES:
            raise FormatError(name, 1, f"results[{number - 1}]", shown(result), "size, count, type, out_of_place")
        cells = [str(result.get(key, "")).strip() for key in ("size", "count", "type", "redop", "root")]
        for block in (result.get("out_of_place"), result.get("in_place")):
            if isinstance(block, dict):
                wrong = block.get("nwrong")
                cells += [str(block.get(key, "")) for key in ("time", "alg_bw", "bus_bw")]
                cells.append("N/A" if wrong is None else str(wrong))
        if (line := row_of(number, " ".join(filter(None, cells)))) is not None:
            lines.append(line)
    if not lines:
        raise FormatError(name, 1, "results", "no row of numbers", "size, count, type, out_of_place")
    return _table(name, head, lines)
