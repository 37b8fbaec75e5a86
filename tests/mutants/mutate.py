"""The mutants of a file: every place where an operator applies, but for annotations, imports and decorators."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Any, Final

import parso
from cosmic_ray.ast import ast_nodes
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

from tests.mutants.operators import OWN, Node

ARITHMETIC: Final = ("Add", "Sub", "Mul", "Div", "FloorDiv", "Mod")
COMPARISONS: Final = ("Eq", "NotEq", "Lt", "LtE", "Gt", "GtE")
BINARY: Final = (*permutations(ARITHMETIC, 2), ("Pow", "Mul"), *permutations(("LShift", "RShift"), 2))
BITS: Final = tuple(permutations(("BitOr", "BitAnd"), 2))
FROM_COSMIC_RAY: Final = (
    *(f"ReplaceBinaryOperator_{a}_{b}" for a, b in (*BINARY, *BITS)),
    *(f"ReplaceComparisonOperator_{a}_{b}" for a, b in (*permutations(COMPARISONS, 2), *permutations(("Is", "IsNot"), 2))),
    *(f"ReplaceUnaryOperator_Delete_{sign}" for sign in ("USub", "Not", "Invert")),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot", "ExceptionReplacer", "NumberReplacer", "ZeroIterationForLoop"),
)
"""Cosmic Ray's operators that suit the types in use: `a << b` of two floats only shows that tests run at all."""

LEFT_ALONE: Final = ("decorator", "import_name", "import_from", "annassign", "tfpdef")
"""Parts of a source that are never evaluated, or that only say how."""
Place = tuple[int, int]


@dataclass(frozen=True, order=True)
class Mutant:
    """One fault: occurrence number `occurrence` of an operator in a file, at `place` (line, column).

    `lines` are the first and last line of its statement.
    """

    file: str
    place: Place
    operator: str
    occurrence: int
    lines: tuple[int, int]

    def source(self, original: str) -> str:
        """The file with the fault."""
        mutated = mutate_code(original, _operator(self.operator), self.occurrence)
        if mutated is None:
            raise LookupError(f"{self.file}: no occurrence {self.occurrence} of {self.operator}")
        return str(mutated)


@cache
def _operator(name: str) -> Any:
    return OWN[name]() if name in OWN else get_operator(f"core/{name}")()


def mutants(file: str, source: str) -> list[Mutant]:
    """All mutants of a source, by place."""
    nodes = list(ast_nodes(parso.parse(source)))
    found = [
        Mutant(file, start, name, occurrence, _lines(node, start))
        for name in (*FROM_COSMIC_RAY, *OWN)
        for occurrence, (node, start) in enumerate(_places(name, nodes))
        if not _left_alone(node, start)
    ]
    return sorted(found)


def _places(name: str, nodes: Sequence[Node]) -> Iterator[tuple[Node, Place]]:
    for node in nodes:
        for start, _ in _operator(name).mutation_positions(node):
            yield node, start


def _left_alone(node: Node, place: Place) -> bool:
    """Whether a place is in an annotation (never evaluated), an import, a decorator or a type alias."""
    while node is not None:
        if node.type == "annassign" and len(node.children) == 4 and place >= node.children[3].start_pos:
            return False  # the value behind an annotation
        if node.type in LEFT_ALONE:
            return True
        if node.type == "funcdef" and node.annotation is not None and _within(place, node.annotation):
            return True
        if node.type == "expr_stmt" and node.children[0].get_code().strip().istitle():
            return True  # Ints = npt.NDArray[np.int64]
        if node.type == "param" and node.annotation is not None and _within(place, node.annotation):
            return True
        if node.type == "operator" and node.parent.type == "parameters":
            return True  # the * before keywords
        node = node.parent
    return False


def _within(place: Place, node: Node) -> bool:
    return bool(node.start_pos <= place < node.end_pos)


def _lines(node: Node, place: Place) -> tuple[int, int]:
    """First and last line of the statement around a node; of a compound one, of its head up to the place."""
    while node.parent is not None:
        if node.type in ("simple_stmt", "expr_stmt", "return_stmt"):
            return node.start_pos[0], node.end_pos[0]
        if node.type in ("if_stmt", "while_stmt", "for_stmt", "with_stmt", "try_stmt", "funcdef", "classdef"):
            return (place[0], place[0]) if node.type == "if_stmt" else (node.start_pos[0], place[0])
        node = node.parent
    return place[0], place[0]


def sample(every: Sequence[Mutant], count: int | None, rng: random.Random) -> list[Mutant]:
    """One mutant of each of `count` places drawn at random, of all places where None: so no sign with many replacements
    outweighs the rest. Mutants that differ in the occurrence alone (5 -> 6, 5 -> 4) share a place."""
    by_place = _by_place(every)
    drawn = list(by_place) if count is None or count >= len(by_place) else sorted(rng.sample(list(by_place), count))
    return [rng.choice(by_place[place]) for place in drawn]


def places(every: Sequence[Mutant]) -> int:
    """How many places a sample is drawn from."""
    return len(_by_place(every))


def _by_place(every: Sequence[Mutant]) -> dict[tuple[str, Place, bool], list[Mutant]]:
    by_place: dict[tuple[str, Place, bool], list[Mutant]] = defaultdict(list)
    for mutant in sorted(every):
        by_place[mutant.file, mutant.place, mutant.operator in OWN].append(mutant)
    return by_place
