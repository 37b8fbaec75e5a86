"""Which kind a path is, by what lies there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sim_core import SIMAI, TRACE, BasePlan, Facts, SpecError, kind_of, read_workload
from tests.conftest import EXAMPLES, GPT7B

WORKLOADS = EXAMPLES / "workloads"


def test_files_folders_and_globs_are_told_apart(tmp_path: Path) -> None:
    odd = tmp_path / "d[1]"
    odd.mkdir()
    shutil.copy(GPT7B, odd / "w*.txt")
    assert kind_of(str(odd / "w*.txt")) == SIMAI  # a file of that name lies there
    assert kind_of(str(tmp_path)) == TRACE
    assert kind_of(str(tmp_path / "*.txt")) == TRACE
    assert kind_of(str(WORKLOADS / "gpt_small_wd4_tp1_pp2_bs1_rank2.trace.txt")) == TRACE
    assert kind_of(str(WORKLOADS / "gpt2_large_layer0.optable.tsv")) not in (SIMAI, TRACE)
    with pytest.raises(FileNotFoundError):
        kind_of(str(tmp_path / "gone.txt"))


def test_a_table_was_recorded_under_the_plain_plan() -> None:
    table = str(WORKLOADS / "gpt2_large_layer0.optable.tsv")
    plan = {"tp": 1, "pp": 1, "vpp": 1, "ep": 1, "ga": 1}
    assert read_workload(table, Facts(micro_batch=16, bytes_per_element=4))[0].base == BasePlan(
        **plan, all_gpus=1, micro_batch=16
    )
    assert read_workload(table, Facts(all_gpus=8, bytes_per_element=4))[0].base == BasePlan(**plan, all_gpus=8, micro_batch=1)


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"sequence": "a"}, r"workload\.sequence: found 'a', expected a whole number from 1 to 2,147,483,647"),
        ({"micro_batch": 0}, r"workload\.micro_batch: found '0', expected a whole number from 1"),
        ({"tp": True}, r"workload\.tp: found 'True', expected a whole number from 1"),
        ({"pp": 2.0}, r"workload\.pp: found '2\.0', expected a whole number from 1"),
        ({"ep": 2**31}, r"workload\.ep: found '2147483648', expected a whole number from 1"),
        ({"bytes_per_element": 3}, r"workload\.bytes_per_element: found '3', expected 1, 2, 4 or 8"),
        ({"measured_on": 100}, r"workload\.measured_on: found '100', expected the name of a hardware preset"),
        ({"repeat": ("a", "b", 2)}, r"workload\.repeat: found .*, expected a Repeat"),
    ],
)
def test_a_fact_that_is_none_is_refused(fact: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Facts(**fact)
