"""The `where` of a spec on a slice of plans: what is kept, row by row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from sim_core import SpecError
from sweep.conditions import satisfied
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec
from tests.sweep.conftest import SpecWriter

PLANS = {"plan": pa.array([0, 1, 2, 3]), "tp": pa.array([1, 2, 4, 8]), "pp": pa.array([2, 2, 1, 1])}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((), [True, True, True, True]),
        (("tp > 1",), [False, True, True, True]),
        (("tp > 1", "pp = 1"), [False, False, True, True]),
        (("tp = 1 or tp = 8", "pp = 1"), [False, False, False, True]),
        (("nullif(tp, 2) > 0",), [True, False, True, True]),
        (("nullif(tp, 2) > 2", "pp = 1"), [False, False, True, True]),
        (("NULL::BOOLEAN",), [False, False, False, False]),
    ],
)
def test_a_row_is_kept_where_all_are_true_and_null_is_not_true(where: tuple[str, ...], expected: list[bool]) -> None:
    assert satisfied(where, PLANS).tolist() == expected


def test_a_condition_that_fails_on_one_row_names_itself() -> None:
    with pytest.raises(SpecError, match=r"where: \(CAST\('x' \|\| tp AS INTEGER\) > 0\): found the text 'x1'"):
        satisfied(("CAST('x' || tp AS INTEGER) > 0",), PLANS)


def test_a_plan_of_which_a_condition_is_unknown_is_excluded(write_spec: SpecWriter) -> None:
    path = write_spec(axes={"tp": [1, 2, 4], "ga": [4]}, where=["nullif(tp, 2) > 0"])
    batch = evaluate(prepare(load_spec(path), path.parent).sweep, np.arange(3))
    reasons = dict(zip(batch.column("tp").to_pylist(), batch.column("reason").to_pylist(), strict=True))
    assert reasons == {1: "", 2: "excluded_by_where", 4: ""}
