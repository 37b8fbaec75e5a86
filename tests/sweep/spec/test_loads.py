"""Specs beyond any use: a trillion plans, thousands of conditions, endless lists. Little work, or one line that says so."""

import time
from collections import deque

import pyarrow as pa
import pytest

from sim_core import Ints, SpecError
from sim_core.documents import MOST_CHARACTERS, parse_yaml
from sweep import execution
from sweep.conditions import MOST_CONDITIONS, MOST_IN_ALL, check_constraints
from sweep.evaluation.evaluation import evaluate
from sweep.evaluation.preparation import Sweep, prepare
from sweep.evaluation.slices import SliceQueue
from sweep.execution import DryRun, dry_run
from sweep.results.slice_file import Slice
from sweep.spec.space import _codes
from sweep.spec.spec import MAX_AXIS_VALUES, load_spec
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter


@pytest.mark.parametrize("plans", [0, 1, 5_000, 10**6, 3 * 10**8])
@pytest.mark.parametrize(("workers", "rate"), [(1, 20.0), (2, 1e3), (100, 1e5)])
def test_slices_are_counted_as_they_would_be_cut(plans: int, workers: int, rate: float) -> None:
    queue = SliceQueue(gaps=deque([Slice(0, plans)] if plans else []), workers=workers)
    expected = queue.expected(rate)
    queue.rows_per_s, cut = rate, 0
    while queue.take():
        cut += 1
    assert expected == pytest.approx(cut, rel=0.05, abs=2)


def test_the_slices_of_a_trillion_plans_are_counted_without_cutting_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SliceQueue, "take", lambda queue: pytest.fail("cuts slices"))
    estimate = DryRun(probed=1, reasons={}, start_s=1, seconds_per_plan=1e-3, bytes_per_plan=1, bytes_per_file=0)
    assert estimate.size(3 * 10**12, 16) == 3 * 10**12


def test_a_dry_run_of_plans_that_take_long_tries_few(write_spec: SpecWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    clock = [0.0]

    def evaluated(sweep: Sweep, positions: Ints) -> pa.RecordBatch:
        tried.extend(positions.tolist())
        clock[0] += 0.01 * len(positions)
        return evaluate(sweep, positions)

    prepared = prepare(load_spec(spec := write_spec()), spec.parent)
    monkeypatch.setattr(execution, "evaluate", evaluated)
    monkeypatch.setattr(time, "process_time", lambda: clock[0])
    estimate = dry_run(prepared)
    assert 50 <= len(tried) == len(set(tried)) == estimate.probed <= 101, "a second of them"
    assert estimate.seconds_per_plan == pytest.approx(0.01)
    assert sum(estimate.reasons.values()) == estimate.probed


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (["tp < 9"] * 5_000, f"where: found 5,000 conditions, expected at most {MOST_CONDITIONS}"),
        (
            [f"tp < {'1' * 9_000}"] * 12,
            f"where: found {12 * 9_005:,} characters, expected at most {MOST_IN_ALL:,} in all conditions",
        ),
    ],
)
def test_thousands_of_conditions_are_one_line(where: list[str], told: str) -> None:
    with pytest.raises(SpecError) as refused:
        check_constraints(where, {})
    assert str(refused.value) == told


class Counted(str):
    """A text that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_the_values_of_an_axis_are_coded_without_searching_each() -> None:
    values = [Counted(k) for k in range(2_000)]
    codes = _codes("hardware.nic_bandwidth", [*values, *map(Counted, range(2_000))], {})
    assert codes.tolist() == [*range(2_000)] * 2
    assert Counted.compared < 20_000


@pytest.mark.parametrize("values", [{"range": [1, 10**6]}, {"range": [1, MAX_AXIS_VALUES + 1]}, [*range(1, 100_050)]])
def test_an_axis_of_a_million_values_is_one_line(write_spec: SpecWriter, values: object) -> None:
    spec = write_spec(axes={"ga": values})
    told = sweep("run", spec, "--dry-run")
    assert told.returncode == 1
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith(f"error: {spec}:")
    assert "100,000" in told.stderr or f"{MOST_CHARACTERS:,}" in told.stderr


def test_a_spec_of_megabytes_is_one_line() -> None:
    with pytest.raises(SpecError, match=r"\Aspec.yaml: found 600,000 characters of YAML, expected at most 524,288\Z"):
        parse_yaml("x" * 600_000, "spec.yaml")
