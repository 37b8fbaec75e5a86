"""`sweep whatif`: a question about a plan equals a sweep of its own; what cannot be asked is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweep.answers.whatif import Question, what_if
from sweep.options import OptionError
from sweep.reopening import Reopened, reopened
from sweep.results.folder import folder_at
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep

SPEC: dict[str, Any] = {
    "name": "small",
    "model": "llama3-8b",
    "workload": {"sequence": 4096, "stack": "megatron-core"},
    "hardware": "H100-SXM",
    "axes": {"hardware.nic_bandwidth": ["400 Gb/s", "100 Gb/s"], "tp": [1, 2, 4], "pp": [1, 2], "micro_batch": [1, 2]},
    "fixed": {"all_gpus": 32, "global_batch": 64},
    "objectives": [{"minimize": "step_time_s"}],
}


def run(folder: Path, spec: dict[str, Any]) -> Path:
    """The result of a spec."""
    (folder / "s.yaml").write_text(yaml.safe_dump(spec))
    out = folder / "out"
    done = sweep("run", folder / "s.yaml", "--out", out, "--quiet", "--workers", 0)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Reopened:
    """A small result."""
    folder = tmp_path_factory.mktemp("whatif")
    return reopened(folder_at(run(folder, SPEC)), folder / "s.yaml")


def test_the_best_plan_then_is_that_of_a_sweep_of_its_own(result: Reopened, tmp_path: Path) -> None:
    answer = what_if(result, 0, Question(gpus=16, nic="100 Gb/s"))
    axes = {name: values for name, values in SPEC["axes"].items() if not name.startswith("hardware")}
    hardware = {"preset": "H100-SXM", "nic_bandwidth": "100 Gb/s"}
    own = SPEC | {"axes": axes, "hardware": hardware, "fixed": {"all_gpus": 16, "global_batch": 64}}
    rows = json.loads(sweep("rank", run(tmp_path, own), "--format", "json", "--top", 100, "--columns", "all").stdout)
    assert answer.best.runs
    assert answer.best.after["step_time_s"] == min(row["step_time_s"] for row in rows)
    (same,) = [row for row in rows if (row["tp"], row["pp"], row["micro_batch"]) == (1, 1, 1)] or [None]
    assert answer.same.after["step_time_s"] == (same and same["step_time_s"])


def test_a_step_keeps_its_tokens_with_another_sequence(result: Reopened) -> None:
    answer = what_if(result, 0, Question(sequence=8192))
    assert (answer.same.before["global_batch"], answer.same.after["global_batch"]) == (64, 32)
    told = "32 sequences of 8,192 tokens a step, as many tokens as 64 of 4,096"
    assert answer.notes == (told, "the sequence is 2 x as long: cp 2 searched, too")
    assert (answer.same.before["sequence"], answer.same.after["sequence"]) == (4096, 8192)
    assert answer.searched == 2 * 3 * 2 * 2, "the axes of the plan with both cp, on the plan's own network"


def test_rows_say_what_changes_and_how_sure_they_are(result: Reopened) -> None:
    answer = what_if(result, 1, Question(nic="100 Gb/s", device="B200-SXM"))
    assert answer.best.runs
    assert (answer.same.before["plan"], "plan" in answer.same.after, "plan" in answer.best.after) == (1, False, False)
    assert [row["nic_bandwidth"] for row in (answer.same.before, answer.same.after, answer.best.after)] == [
        50e9,
        12.5e9,
        12.5e9,
    ]
    for row in (answer.best.before, answer.best.after):
        assert row["step_time_low_s"] < row["step_time_s"] < row["step_time_high_s"]


def test_a_file_of_an_unknown_device_is_not_moved(tmp_path: Path) -> None:
    workload = {"path": str(EXAMPLES / "workloads" / "gpt7b_tp4_dp128.simai.txt"), "micro_batch": 1, "sequence": 2048}
    records = {"embedding_layer": "0.05 ms", "grad_param_compute": "0.25 ms", "layernorm": "0 B"}
    fixed = {"all_gpus": 32, "ga": 8, "pp": 2}
    spec = {"name": "file", "workload": workload | {"records": records}, "hardware": "H100-SXM", "axes": {"tp": [2, 4]}}
    opened = reopened(folder_at(run(tmp_path, spec | {"fixed": fixed})), tmp_path / "s.yaml")
    with pytest.raises(OptionError, match=r"^--device B200-SXM: the file does not say on which device"):
        what_if(opened, 0, Question(device="B200-SXM"))
    answer = what_if(opened, 1, Question(gpus=64))
    assert answer.best.runs
    assert answer.same.before["step_time_s"] > answer.best.after["step_time_s"]
    assert answer.same.before["global_batch"] == answer.best.after["global_batch"]


def test_what_tokens_cost_is_their_time_on_all_gpus(result: Reopened) -> None:
    answer = what_if(result, 0, Question(tokens="1T", price=2.0))
    hours = 1e12 / (64 * 4096) * answer.same.after["step_time_s"] * 32 / 3600
    assert answer.same.after["usd"] == pytest.approx(2 * hours, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "OPTIONS: found none, expected one of --gpus, --nic, --device, --sequence, --tokens, --price"),
        (["--device", "H100"], "unknown hardware preset 'H100', nearest valid: H100-SXM"),
        (["--nic", "0"], "nic_bandwidth: found 0, expected a number above 0"),
        (["--nic", "50"], "found '50', expected a number with its unit, such as '50 Gb/s'"),
        (["--price", "2"], "--price: the result has no budget; say --tokens, too"),
    ],
)
def test_a_wrong_question_is_one_line(result: Reopened, options: list[str], message: str) -> None:
    done = sweep("whatif", result.folder, 0, "--spec", result.base / "s.yaml", *options)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
