"""Distinct rows against a dictionary of tuples."""

from __future__ import annotations

import numpy as np
import pytest

from sim_core.distinct import distinct_rows


@pytest.mark.parametrize(("rows", "columns", "values"), [(0, 3, 5), (1, 1, 1), (200, 3, 3), (3000, 2, 40), (500, 6, 2**62)])
def test_rows_get_the_keys_of_their_first_appearance(rows: int, columns: int, values: int) -> None:
    table = np.random.default_rng(rows).integers(-values, values, (rows, columns))
    table = np.concatenate([table, table[::-1]])
    key_of, first = distinct_rows(table)
    seen: dict[tuple[int, ...], int] = {}
    expected = [seen.setdefault(tuple(row), len(seen)) for row in table.tolist()]
    assert key_of.tolist() == expected
    assert [expected.index(key) for key in range(len(seen))] == first.tolist()


def test_rows_that_differ_far_up_or_in_sign_are_told_apart() -> None:
    table = np.array([[1], [1 + 2**31], [1 + 2**40], [-1], [1], [2**62 + 1]])
    key_of, first = distinct_rows(table)
    assert key_of.tolist() == [0, 1, 2, 3, 0, 4]
    assert first.tolist() == [0, 1, 2, 3, 5]
