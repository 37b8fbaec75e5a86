"""What a user reads after a mistake: our words, never those of a library; and in any locale."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from sim_core import SpecError, hardware_yaml, read_hardware
from sweep.budget import Budget
from sweep.document import first_error
from sweep.failures import Failures
from sweep.nightly.spec import NightlySpec, load_nightly
from sweep.spec import SweepSpec
from sweep.workloads import WorkloadSpec
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
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"error: --set {changed}: {said}" in done.stderr


def test_an_empty_out_is_refused_in_a_dry_run_as_well(write_spec: SpecWriter) -> None:
    for more in ((), ("--dry-run",)):
        done = sweep("run", write_spec(), "--out", "", *more)
        assert (done.returncode, done.stderr) == (1, "error: --out: found '', expected a folder or a URI\n")


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
