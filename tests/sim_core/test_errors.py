"""Messages: one line with the place, the value found and the valid values."""

from __future__ import annotations

import pytest

from sim_core import FormatError, SimError, SpecError, nearest, shown


@pytest.mark.parametrize(
    ("found", "expected", "text"),
    [
        ("", "", "f.txt:3: width"),
        ("4", "", "f.txt:3: width: found 4"),
        ("", "5", "f.txt:3: width: expected 5"),
        ("4", "5", "f.txt:3: width: found 4, expected 5"),
    ],
)
def test_a_fault_of_a_file_says_where_and_what(found: str, expected: str, text: str) -> None:
    error = FormatError("f.txt", 3, "width", found=found, expected=expected)
    assert (str(error), error.path, error.line) == (text, "f.txt", 3)


def test_every_fault_of_the_user_is_of_one_family() -> None:
    assert issubclass(FormatError, SimError)
    assert issubclass(SpecError, SimError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp", "'tp'"),
        (16, "'16'"),
        (None, "'None'"),
        ("t\u200bp\n", "'t\\u200bp\\n'"),
        ("x" * 58, "'" + "x" * 58 + "'"),
        ("x" * 59, "'" + "x" * 55 + "...'"),
    ],
)
def test_what_was_found_is_one_short_line_of_ascii(text: object, expected: str) -> None:
    assert shown(text) == expected
    assert len(shown(text)) <= 60


def test_a_limit_of_ones_own() -> None:
    assert shown("x" * 100, limit=10) == "'" + "x" * 5 + "...'"


@pytest.mark.parametrize(
    ("name", "valid", "expected"),
    [
        ("schedul", ("tp", "schedule", "pp"), "nearest valid: schedule"),
        ("overlap", ("overlap_tp", "overlap_ep", "overlap_pp", "overlap_dp"), "nearest valid: overlap_"),
        ("zzz", ("tp", "pp", "tp"), "valid: pp, tp"),
        ("mem", ("mfu", "ep", "peak_memory_bytes", "optimizer"), "nearest valid: peak_memory_bytes"),
        ("tp", (), ""),
        ("schedule" + "e" * 10_000, ("schedule", "pp"), "valid: pp, schedule"),
    ],
)
def test_the_nearest_valid_names_are_told(name: str, valid: tuple[str, ...], expected: str) -> None:
    assert nearest(name, valid).startswith(expected)
    assert nearest(name, valid).count(",") <= 2
