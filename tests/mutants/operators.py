"""Mutations that Cosmic Ray does not have, as operators of its kind: on parso's trees, one place at a time.

Its own replace one sign, number or keyword by another. These lose a part: an operand, a statement, an index, an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.operators.operator import Example, Operator

Node = Any
"""A node of parso's tree, which has no types."""
Span = tuple[tuple[int, int], tuple[int, int]]

SUMS = ("arith_expr", "term", "and_test", "or_test")


def _span(node: Node) -> Span:
    return node.start_pos, node.end_pos


class _Replaced(Operator):  # type: ignore[misc]
    """An operator that puts a text in the place of one child of a node; `_children` names the children and the texts."""

    def _children(self, node: Node) -> Iterator[tuple[int, str]]:
        raise NotImplementedError

    def mutation_positions(self, node: Node) -> Iterator[Span]:
        """See `Operator`."""
        for child, _ in self._children(node):
            yield _span(node.children[child])

    def mutate(self, node: Node, index: int) -> Node:
        """See `Operator`."""
        child, text = list(self._children(node))[index]
        prefix = node.children[child].get_first_leaf().prefix
        node.children[child] = parso.parse(prefix + text)
        return node


class DropOperand(Operator):  # type: ignore[misc]
    """`a * b + c` without one of its operands."""

    def mutation_positions(self, node: Node) -> Iterator[Span]:
        """See `Operator`."""
        if node.type in SUMS:
            for operand in node.children[::2]:
                yield _span(operand)

    def mutate(self, node: Node, index: int) -> Node:
        """See `Operator`."""
        operand = 2 * index
        del node.children[operand - 1 if operand else 0 : operand + 1 if operand else 2]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See `Operator`."""
        return (
            Example("x = a * b - c", "x = a * b", occurrence=1),
            Example("x = a // b", "x = b"),
            Example("x = a // b", "x = a", occurrence=1),
            Example("x = a and b", "x = a", occurrence=1),
        )


class DropStatement(Operator):  # type: ignore[misc]
    """A statement that assigns in place or calls becomes `pass`; so does `raise`, `continue` and `break`."""

    def mutation_positions(self, node: Node) -> Iterator[Span]:
        """See `Operator`."""
        if node.type == "simple_stmt":
            statement = node.children[0]
            if statement.type == "expr_stmt":
                if statement.children[0].type != "name" or statement.children[1].get_code().strip() not in ("=", ":"):
                    yield _span(statement)
            elif statement.type in ("power", "atom_expr", "raise_stmt", "del_stmt"):
                yield _span(statement)

    def mutate(self, node: Node, index: int) -> Node:
        """See `Operator`."""
        prefix = node.get_first_leaf().prefix
        node.children[0] = parso.parse(prefix + "pass")
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See `Operator`."""
        return (
            Example("x += 1\n", "pass\n"),
            Example("x[0] = 1\n", "pass\n"),
            Example("f(x)\n", "pass\n"),
            Example("if x:\n    raise E(y)\n", "if x:\n    pass\n"),
        )


class ZeroForIndex(_Replaced):
    """`rows[k]` becomes `rows[0]`."""

    def _children(self, node: Node) -> Iterator[tuple[int, str]]:
        if (
            node.type == "trailer"
            and node.children[0].value == "["
            and node.children[1].type in ("name", "arith_expr", "atom_expr")
        ):
            yield 1, "0"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See `Operator`."""
        return (Example("x = rows[k]", "x = rows[0]"), Example("x = rows[k + 1]", "x = rows[0]"))


class OneForArgument(_Replaced):
    """`f(a, b)` becomes `f(1, b)`."""

    def _children(self, node: Node) -> Iterator[tuple[int, str]]:
        if node.type == "arglist":
            for k, child in enumerate(node.children):
                if child.type in ("name", "arith_expr", "term"):
                    yield k, "1"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See `Operator`."""
        return (Example("f(a, b)", "f(1, b)"), Example("f(a, b // c)", "f(a, 1)", occurrence=1))


class OtherExtreme(Operator):  # type: ignore[misc]
    """`min` for `max`, `floor` for `ceil`, and the other way."""

    SWAPS = {"min": "max", "max": "min", "ceil": "floor", "any": "all", "all": "any"}  # noqa: RUF012

    def mutation_positions(self, node: Node) -> Iterator[Span]:
        """See `Operator`."""
        if node.type == "name" and node.value in self.SWAPS and node.parent.type in ("atom_expr", "trailer"):
            yield _span(node)

    def mutate(self, node: Node, index: int) -> Node:
        """See `Operator`."""
        node.value = self.SWAPS[node.value]
        return node

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        """See `Operator`."""
        return (Example("x = max(a, b)", "x = min(a, b)"), Example("x = np.ceil(a)", "x = np.floor(a)"))


OWN = {operator.__name__: operator for operator in (DropOperand, DropStatement, ZeroForIndex, OneForArgument, OtherExtreme)}
