"""Which kind a path is, by what lies there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sim_core import SIMAI, TRACE, BasePlan, Facts, kind_of, read_workload
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
