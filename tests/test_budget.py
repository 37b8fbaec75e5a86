"""The budget of the house: what is above it, has no row, or has no file is named; width and docstrings change no count."""

import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT

BUDGET = runpy.run_path(str(ROOT / ".ci" / "budget.py"))
faults, room_of, tokens_of = BUDGET["faults"], BUDGET["room_of"], BUDGET["tokens_of"]
ROWS = {
    "sweep/show": {"lines": "100", "tokens": "900", "words": ""},
    "sim_core + sweep": {"lines": "150", "tokens": "", "words": ""},
    "Markdown": {"lines": "", "tokens": "", "words": "50"},
}


def test_each_room_is_held_to_its_own_row() -> None:
    within = {
        "sweep/show": Counter(lines=100, tokens=900),
        "sim_core + sweep": Counter(lines=150, tokens=5000),
        "Markdown": Counter(words=50),
    }
    assert faults(within, ROWS) == []
    over = {**within, "sweep/show": Counter(lines=101, tokens=900), "Markdown": Counter(words=52)}
    assert faults(over, ROWS) == [
        "sweep/show: 101 lines, 1 above its budget of 100",
        "Markdown: 52 words, 2 above its budget of 50",
    ]


def test_a_room_without_a_row_and_a_row_without_a_room_are_named() -> None:
    found = {"sweep/show": Counter(lines=1), "sweep/new": Counter(lines=1), "Markdown": Counter(words=1)}
    assert faults(found, ROWS) == [
        "sweep/new: is in no row of budget.csv",
        "sim_core + sweep: has a row in budget.csv, but no file",
    ]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="tokens are those of Python 3.11")
def test_width_and_words_change_no_count() -> None:
    wide = 'def f(a, b):\n    """What it is."""\n    return a + b  # the sum\n'
    tall = "def f(\n    a,\n    b\n):\n\n    return a + b\n"
    assert tokens_of(wide) == tokens_of(tall) == 12


def test_a_file_counts_in_its_room_and_in_the_whole() -> None:
    assert room_of(Path("sweep/show/sections.py")) == ("sweep/show", "sim_core + sweep")
    assert room_of(Path("sim_core/batch.py")) == ("sim_core/*", "sim_core + sweep")
    assert room_of(Path("docs/tune.md")) == ("Markdown",)
