"""A row of a table of nccl-tests: size, count, type, and the times and bandwidths that agree with them."""

import math
import re
from typing import NamedTuple

from sweep.frameworks.names import by_word

ELEMENT_BYTES = by_word(
    {
        1: "int8 uint8 f8e4m3 f8e5m2 fp8_e4m3 fp8_e5m2 char",
        2: "half bfloat16 bf16 fp16",
        4: "int32 uint32 float int",
        8: "int64 uint64 double",
    }
)
MOST_DIGITS = 18
LONGEST_LINE = 4000
ROUNDING = 0.01
"""Printed bandwidths have two decimals: half a unit, and as much for hand-made copies; and this part of themselves."""

_TAG = re.compile(r"\[\d+,\d+\]<std(?:out|err)>:")
_STAMP = re.compile(r"^.{0,40}<std(?:out|err)>:")
_RANK_OF_LAUNCHER = re.compile(r"^\s*\d+:\s")
_NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,2})?$")


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
    in_us, in_ms = (_blocks(size, rest, unit) for unit in (1e3, 1e6))
    return Line(number, size, int(tokens[1]), tokens[2], operation, in_us or in_ms, bool(in_ms and not in_us))


def _blocks(size: int, tokens: list[str], unit: float) -> tuple[Block, ...]:
    """Up to two placements: a time, a bandwidth that is the size over it, and that of the bus."""
    blocks: list[Block] = []
    at = 0
    while at + 2 < len(tokens) and len(blocks) < 2:
        at += 1
        if all(_NUMBER.match(token) for token in tokens[at - 1 : at + 2]):
            time, algorithm, bus = map(float, tokens[at - 1 : at + 2])
            rate = size / time / unit if time > 0 else math.nan
            known = algorithm > 0 or rate < ROUNDING
            if known and bus <= 2 * algorithm + 0.02 and abs(rate - algorithm) <= ROUNDING + ROUNDING * rate:
                blocks.append(Block(time, algorithm, bus, "".join(tokens[at + 2 : at + 3])))
                at += 3
    return tuple(blocks)
