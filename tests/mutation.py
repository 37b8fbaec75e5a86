"""Mutants for the fuzz of readers and specs: tokens, bytes, bits, lines changed, lost, doubled, swapped; extreme integers."""

from __future__ import annotations

import random
import re

from hypothesis import strategies as st

from sim_core.limits import LARGEST

KINDS = (
    *("token to hostile", "token deleted", "token twice", "tokens swapped", "hostile between"),
    *("bit flipped", "byte inserted", "byte deleted"),
    *("line deleted", "line twice", "lines swapped", "cut"),
)
Mutation = tuple[str, int, int, bytes]
"""Kind, two places (taken modulo what there is to choose from), hostile token."""


def random_mutations(chance: random.Random, hostile: tuple[bytes, ...]) -> list[Mutation]:
    """One to three mutations, without hypothesis."""
    return [
        (chance.choice(KINDS), chance.randrange(4096), chance.randrange(4096), chance.choice(hostile))
        for _ in range(chance.randint(1, 3))
    ]


def extreme(chance: random.Random) -> int:
    """An integer that is small, or at the edge of a bound of ours or of the machine's."""
    kind = chance.randrange(4)
    if kind < 2:
        return chance.choice((1, 2, 3, 4, 6, 8, 16))
    most = chance.choice(tuple(LARGEST.values())) if kind == 2 else 2 ** chance.randrange(66)
    return max(most + chance.choice((-1, 0, 1)), 0)


def mutation_lists(hostile: tuple[bytes, ...]) -> st.SearchStrategy[list[Mutation]]:
    """One to four mutations."""
    place = st.integers(0, 4095)
    return st.lists(st.tuples(st.sampled_from(KINDS), place, place, st.sampled_from(hostile)), min_size=1, max_size=4)


def mutated(data: bytes, mutation: Mutation, gaps: re.Pattern[bytes]) -> bytes:
    """`data` with one mutation; its tokens stand between `gaps`, a pattern of one group."""
    kind, a, b, hostile = mutation
    if not data:
        return hostile
    if "byte" in kind or "bit" in kind or kind == "cut":
        place = a % len(data)
        middle = {
            "bit flipped": bytes([data[place] ^ 1 << b % 8]),
            "byte inserted": bytes([b % 256, data[place]]),
        }.get(kind, b"")
        return data[:place] + middle + (b"" if kind == "cut" else data[place + 1 :])
    lines = data.splitlines(keepends=True)
    if "line" in kind:
        _change(lines, kind, a, b, hostile)
        return b"".join(lines)
    # half of the token mutations go to the header, which is one line of many
    at = 0 if b % 2 else a % len(lines)
    words = gaps.split(lines[at])
    tokens = words[::2]
    _change(tokens, kind, a, b // 2, hostile)
    between = [*words[1::2], *[b" "] * len(tokens)]
    lines[at] = b"".join(token + gap for token, gap in zip(tokens, between, strict=False)).rstrip(b" ")
    return b"".join(lines)


def _change(items: list[bytes], kind: str, a: int, b: int, hostile: bytes) -> None:
    """The mutation of a list of tokens or lines, in place."""
    a, b = a % len(items), b % len(items)
    if kind.endswith("to hostile"):
        items[b] = hostile
    elif kind.endswith("deleted"):
        del items[b]
    elif kind.endswith("twice"):
        items.insert(b, items[b])
    elif kind.endswith("swapped"):
        items[a], items[b] = items[b], items[a]
    else:
        items.insert(b, hostile)
