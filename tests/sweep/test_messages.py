"""What a user reads after a mistake: our words, never those of a library; and in any locale."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from sim_core import SpecError, hardware_yaml, nearest, read_hardware
from sweep.conditions import check_condition
from sweep.nightly.spec import NightlySpec, load_nightly
from sweep.spec.budget import Budget
from sweep.spec.document import first_error
from sweep.spec.failures import Failures
from sweep.spec.spec import SweepSpec, load_spec
from sweep.spec.workloads import WorkloadSpec
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep
from tests.sweep.conftest import SpecWriter
from tests.sweep.test_execution import command

THEIRS = re.compile(
    r"Input should|it should|valid (dict|tuple|list|string|integer|number|bool)|String should|instance of"
    r"|should (be|match|have)|unable to parse|Unable to|pydantic|Value error|fractional part|another value"
)
"""Phrases of pydantic, and our last resort."""
WHOLE: dict[str, Any] = {
    "name": "x",
    "workload": {
        "path": "w.txt", "sequence": 2048, "model": {"preset": "llama3-8b"}, "measured_on": "A100-80G",
        "repeat": {"from": "a", "to": "b", "times": 2},
    },
    "hardware": {"preset": "H100-SXM"},
    "axes": {"tp": [1, 2]},
    "fixed": {"pp": 1},
    "where": ["tp > 0"],
    "objectives": [{"minimize": "step_time_s"}],
    "per": ["tp"],
    "sample": {"n": 1, "seed": 1},
    "store": {"writer": "auto"},
    "budget": {"tokens": "1T"},
    "failures": {"interval": "1 s"},
}  # fmt: skip
WRONG: tuple[Any, ...] = (
    5, -1, 2.5, True, None, "", "x", [], [5], ["x"], [None], {}, {"x": 1}, {5: 5}, [[1]], float("nan"), float("inf"), "x" * 70,
    10**30, [{"minimize": 5}], [{"column": 5, "direction": "x"}], [{"a": 1, "b": 2}],
)  # fmt: skip
PLACES: tuple[tuple[Any, ...], ...] = (
    *((key,) for key in SweepSpec.model_fields), ("model",), ("fidelity",),
    *(("workload", key) for key in WorkloadSpec.model_fields),
    *(("workload", "repeat", key) for key in ("from", "to", "times")),
    *(("budget", key) for key in Budget.model_fields), *(("failures", key) for key in Failures.model_fields),
    ("hardware", "preset"), ("sample", "n"), ("sample", "seed"), ("store", "writer"), ("objectives", 0),
    ("objectives", 0, "minimize"), ("where", 0), ("per", 0), ("axes", "tp"), ("axes", "checkpointing"), ("fixed", "tp"),
    ("fixed", "bucket_bytes"),
)  # fmt: skip


def test_no_wrong_type_anywhere_in_a_spec_is_told_in_words_of_a_library() -> None:
    refused = 0
    for place in PLACES:
        for wrong in WRONG:
            document = copy.deepcopy(WHOLE)
            section: Any = document
            for key in place[:-1]:
                section = section[key]
            section[place[-1]] = wrong
            try:
                SweepSpec.model_validate(document)
            except ValidationError as error:
                refused += 1
                told = str(first_error(error, "s.yaml", {}, SweepSpec))
                assert not THEIRS.search(told), (place, wrong, told)
                assert "\n" not in told
    assert refused > 800


def test_nor_in_a_nightly_file(tmp_path: Path) -> None:
    path = tmp_path / "nightly.yaml"
    for key in NightlySpec.model_fields:
        for wrong in WRONG:
            path.write_text(yaml.safe_dump({"sweeps": ["a.yaml"], "out": "x", key: wrong}), encoding="utf-8")
            try:
                load_nightly(path)
            except SpecError as error:
                assert not THEIRS.search(str(error)), (key, wrong, str(error))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("axes.seq_len=[1,2]", "axes.seq_len: unknown name, set workload.sequence, the same for all plans"),
        ("workload.seqlen=8", "workload.seqlen: unknown key, nearest valid: sequence"),
        ("axes.world_size=[8]", "axes.world_size: unknown name, nearest valid: all_gpus"),
        ("fixed.micro_batch_size=8", "fixed.micro_batch_size: unknown name, nearest valid: micro_batch"),
        ("axes.checkpointing=[fulll]", "axes.checkpointing: found 'fulll', nearest valid: full"),
        ("objectives=5", "objectives: found '5', expected a list"),
        ("fixed.bucket_bytes=100", "fixed.bucket_bytes: found '100', expected a size with its unit, such as '100 MB' (or 0)"),
        ("axes.bucket_bytes=[0, 100]", "axes.bucket_bytes: found '100', expected a size with its unit"),
        ("axes.bucket_bytes={range: [100, 300, 100]}", "axes.bucket_bytes: found '100', expected a size with its unit"),
    ],
)
def test_a_name_or_a_value_that_was_meant(changed: str, said: str, write_spec: SpecWriter) -> None:
    spec = write_spec(axes={"tp": [1, 2]}, fixed={"pp": 1})
    done = sweep("run", spec, "--dry-run", "--set", changed)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"error: --set {changed}: {said}" in done.stderr


MISTAKES = [  # an argument of `run SPEC --dry-run`, and the words that have to be in the answer
    ("axes.precision=fp8", "fp8_blockwise, fp8_delayed, fp8_tensorwise"),
    ("fixed.precision=bfloat16", "expected bf16"),
    ("fixed.zero_stage=3", "nearest valid: sharding"),
    ("fixed.sharding=zero3", "expected parameters"),
    ("fixed.sharding=1", "expected optimizer"),
    ("fixed.dispatcher=deepep", "expected flex"),
    ("fixed.schedule=interleaved", "expected 1f1b, which interleaves where vpp > 1"),
    ("fixed.schedule=ZeroBubble", "expected zb-h1"),
    ("fixed.checkpointing=true", "expected full"),
    ("fixed.layer_split=uniform", "expected even"),
    ("budget={tokens: 1T, price: 2}", "nearest valid: usd_per_gpu_hour"),
    ("fixed.world_size=16", "nearest valid: all_gpus"),
    ("fixed.tensor-model-parallel-size=4", "nearest valid: tp"),
    ("fixed.tensor_parallel_degree=4", "nearest valid: tp"),
    ("fixed.per_device_train_batch_size=4", "nearest valid: micro_batch"),
    ("fixed.train_micro_batch_size_per_gpu=4", "nearest valid: micro_batch"),
    ("fixed.gradient_accumulation_steps=4", "nearest valid: ga"),
    ("fixed.recompute-granularity=full", "nearest valid: checkpointing"),
    ("tp=[1,2]", "expected axes.tp or fixed.tp"),
    ("micro_batch_size=2", "expected axes.micro_batch or fixed.micro_batch"),
    ("axes.tp=2", "such as [2]"),
    ("axes.tp=1,2", "such as [1,2]"),
    ("failures={restart: 600}", "such as '600 s'"),
    ("where=ckpt = none", "a text needs quotes: 'none'"),
    ("where=tp*pp => 8", "at least is >="),
    ("where=tp == 4 && pp < 2", "cannot be read, expected a condition on the columns of one plan; both is AND"),
    ("where=tp > 'a'", "found the text 'a' beside a column of numbers"),
    ("objectives=[{maximize: throughput}]", "nearest valid: samples_per_s"),
    ("per=gpu", "nearest valid: all_gpus"),
    ("hardware=H100", "H100-SXM"),
    ("hardware=A100", "A100-80G-SXM"),
    ("hardware.nic_bandwidth=200", "such as '200 Gb/s'"),
    ("axes.nope=[1]", " in all)"),
]


def test_mistakes_of_new_users_are_answered_with_what_was_meant(write_spec: SpecWriter) -> None:
    """In one line, with no more than five names, and nothing that a library wrote."""
    spec = write_spec(axes={"tp": [1, 2]}, fixed={"pp": 1})
    for changed, words in MISTAKES:
        done = sweep("run", spec, "--dry-run", "--set", changed)
        assert (done.returncode in (1, 2), done.stderr.count("\n"), words in done.stderr) == (True, 1, True), done.stderr
        named = done.stderr.partition("nearest valid: ")[2]
        assert named.count(",") < 5, done.stderr
    assert sweep("run", spec, "--dry-run", "--set", "fixed.all_gpus=null").returncode == 0


def test_what_is_no_spec_is_told_what_it_is(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "odd.yaml").write_text("a: [1", encoding="utf-8")
    text = EXAMPLES / "workloads" / "gpt7b_tp4_dp128.simai.txt"
    for given, words in (
        (("run", tmp_path / "config.json"), f"`sweep init {tmp_path / 'config.json'}` writes one for it"),
        (("search", tmp_path), f"`sweep init {tmp_path}` writes one for it"),
        (("run", "llama3-70b"), "`sweep init llama3-70b` writes one for it"),
        (("run", text), f"is a SimAI text, not a sweep; `sweep init {text}`"),
        (("run", tmp_path / "nope.yaml"), "no such file, expected the spec of a sweep"),
        (("run", tmp_path / "odd.yaml"), ":1: not valid YAML: look at the colons, indentation, brackets and quotes"),
        (("rank", text), "is a file, expected the folder of a result"),
        (("rank", "--sort", "mfu"), "--sort: is no option of sweep rank, expected --by"),
        (("simulate", "llama3-8b"), "expected a workload file; of a model: --model llama3-8b"),
    ):
        done = sweep(*given)
        assert (done.returncode in (1, 2), done.stderr.count("\n"), words in done.stderr) == (True, 1, True), done.stderr


def test_an_empty_out_is_refused_in_a_dry_run_as_well(write_spec: SpecWriter) -> None:
    for more in ((), ("--dry-run",)):
        done = sweep("run", write_spec(), "--out", "", *more)
        assert (done.returncode, done.stderr) == (
            2,
            "error: --out: found '', expected a value (Folder for the results, a path or URI)\n",
        )


def test_a_locale_that_is_not_utf_8_knows_every_path_and_shows_what_it_can(tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}
    folder = tmp_path / "ü→"
    folder.mkdir()
    done = subprocess.run(command("rank", folder), capture_output=True, env={**os.environ, **locale}, check=False)
    assert done.returncode == 1
    assert done.stderr.decode("latin-1") == f"error: {tmp_path}/ü\\u2192: holds no results of a sweep\n"


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "a\u2028b", "a\rb"])
def test_a_name_that_breaks_a_line_is_quoted_wherever_a_spec_can_hold_it(write_spec: SpecWriter, name: str) -> None:
    """Keys and names, those of files among them, also in the note of a sweep that runs."""
    model = {"preset": "gpt2", name: 1}
    for changes in (
        {name: 1}, {"axes": {name: [1]}}, {"fixed": {name: 1}}, {"budget": {name: 1}}, {"failures": {name: 1}}, {"per": [name]},
        {"workload": {"path": "w.txt", "micro_batch": 1, "records": {name: 0}}}, {"workload": {"path": "w.txt", name: 0}},
        {"workload": {"model": model, "sequence": 1024}}, {"workload": {"model": name}}, {"objectives": [{"minimize": name}]},
        {"hardware": {"preset": "H100-SXM", name: 1}}, {"hardware": name}, {"store": {"writer": name}}, {"where": [name]},
    ):  # fmt: skip
        told = sweep("run", write_spec(**changes), "--workers", 0).stderr
        assert told.endswith("\n")
        assert told[:-1].isprintable(), told
        assert ascii(name) in told, told
    told = sweep("run", write_spec(), "--set", f"workload.path={name}").stderr
    assert told[:-1].isprintable()
    document = yaml.safe_load(hardware_yaml(read_hardware("H100-SXM"))) | {"name": name}
    del document["nccl"]
    shown = sweep("run", write_spec(hardware=document), "--dry-run").stdout
    assert f"note: hardware {ascii(name)[1:-1]}: not given, taken as" in shown


MEANT = EXAMPLES / "llama3_70b_h100.yaml"


@pytest.mark.parametrize(
    ("assignment", "hint"),
    [
        ("fixed.precision=fp8", "nearest valid: fp8_blockwise, fp8_delayed, fp8_tensorwise"),
        ("fixed.zero_stage=1", "nearest valid: sharding"),
        ("fixed.world_size=8", "nearest valid: all_gpus"),
        ("fixed.tensor_model_parallel_size=8", "nearest valid: tp"),
        ("fixed.pipeline_parallel_degree=8", "nearest valid: pp"),
        ("fixed.per_device_train_batch_size=1", "nearest valid: micro_batch"),
        ("fixed.num_layers_per_virtual_pipeline_stage=2", "nearest valid: vpp"),
        ("fixed.moe_token_dispatcher_type=flex", "nearest valid: dispatcher"),
        ("fixed.seq_length=4096", "set workload.sequence, the same for all plans (a trace has the axis sequence, too)"),
        ("budget.price=2", "nearest valid: usd_per_gpu_hour"),
        ("failures.restart=600", "expected a number with its unit, such as '600 s' or '600 ms' or '600 us'"),
    ],
)
def test_the_name_that_was_meant_is_said(assignment: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        load_spec(MEANT, [assignment])
    assert str(error.value).endswith(hint)


def test_null_takes_a_fixed_value_away() -> None:
    assert "all_gpus" not in load_spec(MEANT, ["fixed.all_gpus=null", "fixed.dp=8"]).fixed


@pytest.mark.parametrize(
    ("condition", "hint"),
    [
        ("checkpointing = none", "unknown column 'none', a text needs quotes: 'none'"),
        ("tp * pp => 8", "at least is >="),
    ],
)
def test_a_condition_is_corrected(condition: str, hint: str) -> None:
    with pytest.raises(SpecError) as error:
        check_condition(condition, ["checkpointing", "tp", "pp"])
    assert str(error.value).endswith(hint)


def test_many_words_are_cut_to_the_nearest() -> None:
    assert nearest("none", [f"column_{k}" for k in range(30)]).endswith("(30 in all)")
    assert nearest("zzz", ["a", "b"]) == "valid: a, b"


def test_a_model_handed_to_run_is_sent_to_init(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "hidden_size": 4096}')
    done = sweep("run", path)
    assert done.returncode != 0
    assert (
        done.stderr == f"error: {path}: is a config.json of Hugging Face, not a sweep; `sweep init {path}` writes one for it\n"
    )


def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = sweep("init", "llama3-8b", "--gpus", 8, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert "model: llama3-8b" in done.stdout
    assert not list(tmp_path.iterdir())
