"""Lines of nccl-tests output: what launchers put around them is taken off, rows are told from everything else."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

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
    found: list[Block] = []
    at = 0
    while at + 2 < len(tokens) and len(found) < 2:
        block = _block(tokens[at : at + 4])
        if block is not None and _agrees(size, block, milliseconds):
            found.append(block)
            at += 4
        else:
            at += 1
    return tuple(found)


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
