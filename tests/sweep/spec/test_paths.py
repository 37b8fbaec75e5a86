"""Contents count, paths do not: a spec and its files, moved, renamed, or named from another folder, are the same sweep."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from sim_core import hardware_yaml, model_yaml, read_hardware, read_model
from sweep.compare.changes import input_changes
from sweep.evaluation.preparation import Prepared, prepare
from sweep.reopening import reopened
from sweep.spec.spec import load_spec
from sweep.starting.starter import starter_name
from tests.conftest import EXAMPLES, GPT7B, GPT7B_MODEL
from tests.sweep.commands import sweep

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 4, "intermediate_size": 1024,
    "vocab_size": 1000, "num_key_value_heads": 8, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
ARGUMENTS = (
    "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --vocab-size 1000 "
    "--max-position-embeddings 1024\n"
)
MOE = "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
WORKLOADS = EXAMPLES / "workloads"
TRACE = (WORKLOADS / MOE).read_text(encoding="utf-8")
TABLE = (WORKLOADS / "gpt2_large_layer0.optable.tsv").read_text(encoding="utf-8")
H20 = hardware_yaml(read_hardware("H20-SXM")).replace("name: H20-SXM", "name: mine")
NODE, HALF = (f"  gpus_per_node:\n    value: {count}.0" for count in (8, 4))
PEAK = "  peak_flops_bf16:\n    value: 1"
FORWARD = "duration=12."
TEXT = {"path": str(GPT7B), "micro_batch": 1, "sequence": 2048}
MODEL: dict[str, Any] = {"workload": {"sequence": 1024}, "fixed": {"all_gpus": 8}}


class Named(NamedTuple):
    """A file that a spec names by a path: its name and text, the keys that name it, a change of it that can move a row."""

    file: str
    text: str
    keys: Callable[[str], dict[str, Any]]
    old: str
    new: str


NAMED = {
    "config.json": Named("config.json", json.dumps(CONFIG), lambda at: {**MODEL, "model": at}, "1024", "2048"),
    "a folder of one": Named(
        "m/config.json", json.dumps(CONFIG), lambda at: {**MODEL, "model": str(Path(at).parent)}, "1024", "2048"
    ),
    "numbers over one": Named(
        "config.json", json.dumps(CONFIG), lambda at: {**MODEL, "model": {"preset": at, "layers": 8}}, "1024", "2048"
    ),
    "a model": Named("m.yaml", model_yaml(read_model("gpt2")), lambda at: {**MODEL, "model": at}, "ffn: 3072", "ffn: 4096"),
    "arguments": Named("a.sh", ARGUMENTS, lambda at: {**MODEL, "model": at}, "--num-layers 4", "--num-layers 8"),
    "hardware": Named("h.yaml", H20, lambda at: {"workload": TEXT, "hardware": at}, NODE, HALF),
    "hardware and numbers": Named(
        "h.yaml", H20, lambda at: {"workload": TEXT, "hardware": {"preset": at, "nic_efficiency": 0.5}}, NODE, HALF
    ),
    "hardware of a model": Named("h.yaml", H20, lambda at: {**MODEL, "model": "gpt2", "hardware": at}, NODE, HALF),
    "an axis of hardware": Named(
        "h.yaml",
        H20,
        lambda at: {"workload": TEXT, "hardware": None, "axes": {"hardware": ["H100-SXM", at], "tp": [1, 2]}},
        NODE,
        HALF,
    ),
    "an axis of hardware and tp": Named(
        "h.yaml",
        H20,
        lambda at: {"workload": TEXT, "hardware": None, "axes": {"tp,hardware": [[1, at], [2, "H100-SXM"], [4, at]]}},
        NODE,
        HALF,
    ),
    "measured on": Named("h.yaml", H20, lambda at: {"workload": {**TEXT, "measured_on": at}}, PEAK, PEAK + "5"),
    "the model of a file": Named(
        "m.yaml",
        model_yaml(GPT7B_MODEL),
        lambda at: {"workload": {"path": str(GPT7B), "micro_batch": 1, "model": at, "measured_on": "A100-80G-SXM"}},
        "vocabulary: ",
        "vocabulary: 1",
    ),
    "a workload": Named(
        "w.txt", GPT7B.read_text(encoding="utf-8"), lambda at: {"workload": {**TEXT, "path": at}}, "355767", "355768"
    ),
    "a table": Named(
        "t.tsv", TABLE, lambda at: {"workload": {"path": at, "micro_batch": 1, "sequence": 1024}}, "0.0502804", "0.0602804"
    ),
    "a trace": Named(MOE, TRACE, lambda at: {"workload": {"path": at}}, FORWARD, FORWARD + "9"),
    "a folder of traces": Named(
        f"t/{MOE}", TRACE, lambda at: {"workload": {"path": str(Path(at).parent)}}, FORWARD, FORWARD + "9"
    ),
    "a glob": Named(f"t/{MOE}", TRACE, lambda at: {"workload": {"path": f"{Path(at).parent}/*.txt"}}, FORWARD, FORWARD + "9"),
}


def written(folder: Path, of: Named, name: str = "", text: str = "") -> Path:
    """A spec in a folder beside its file, which may have another name or text; the path of the spec."""
    file = folder / (name or of.file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text or of.text, encoding="utf-8")
    plain = {"name": "s", "hardware": "H100-SXM", "axes": {"tp": [1, 2]}, **of.keys(str(file.relative_to(folder)))}
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in plain.items() if value is not None}), encoding="utf-8")
    return path


def prepared_at(path: Path) -> Prepared:
    return prepare(load_spec(path), path.parent)


@pytest.mark.parametrize("what", NAMED)
def test_paths_do_not_count_and_contents_do(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = NAMED[what]
    path = written(tmp_path / "here", of)
    before = prepared_at(path)
    monkeypatch.chdir(tmp_path)
    assert prepared_at(Path("here/s.yaml")).sweep.identity == before.sweep.identity, "from the parent folder"
    monkeypatch.chdir(tmp_path / "here")
    assert prepared_at(Path("s.yaml")).sweep.identity == before.sweep.identity, "from its own folder"
    file = Path(of.file)
    named = file.name if MOE in of.file else f"other{file.suffix}"  # the name of a trace says its plan
    if file.name == "config.json" and len(file.parts) > 1:
        named = file.name
    moved = prepared_at(written(tmp_path / "there" / "deep", of, str(file.parent / "again" / named)))
    assert moved.sweep.identity == before.sweep.identity, "moved and renamed"
    assert not [change for change in input_changes(before.provenance, moved.provenance) if change.moves_results]
    assert of.old in of.text
    changed = prepared_at(written(tmp_path / "changed", of, text=of.text.replace(of.old, of.new)))
    assert changed.sweep.identity != before.sweep.identity, "of another content"
    assert [change for change in input_changes(before.provenance, changed.provenance) if change.moves_results]


def test_a_result_of_a_model_file_is_resumed_and_explained_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`model: config.json`: no word of changed files, nothing to do again."""
    path = written(tmp_path / "here", NAMED["config.json"])
    monkeypatch.chdir(tmp_path / "here")
    first = sweep("run", "s.yaml", "--workers", 0, "--top", 0)
    assert first.returncode == 0, first.stderr
    (out,) = (tmp_path / "here" / "results").iterdir()
    for folder, spec in ((tmp_path / "here", "s.yaml"), (tmp_path, "here/s.yaml"), (Path("/"), str(path))):
        monkeypatch.chdir(folder)
        again = sweep("run", spec, "--workers", 0, "--top", 0, "--out", out)
        assert (again.returncode, again.stderr) == (0, "")
        assert "Nothing to do" in again.stdout
        assert reopened(out).notes == ()
    explained = sweep("explain", out, "best")
    assert explained.returncode == 0
    assert "changed" not in explained.stdout
    shutil.move(tmp_path / "here", tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert reopened(tmp_path / "there" / "results" / out.name).notes == ()
    (tmp_path / "there" / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 8}))
    moved = tmp_path / "there" / "results" / out.name
    assert "have changed since" in str(reopened(moved, tmp_path / "there" / "s.yaml").notes)
    refused = sweep("run", tmp_path / "there" / "s.yaml", "--out", moved)
    assert (refused.returncode, "holds results of another workload" in refused.stderr) == (1, True)


def test_the_files_of_a_workload_and_of_its_model_are_both_recorded(tmp_path: Path) -> None:
    path = written(tmp_path, NAMED["the model of a file"])
    files = prepared_at(path).provenance["inputs"]["files"]
    assert {role: Path(file["path"]).name for role, file in files.items()} == {"workload": GPT7B.name, "model": "m.yaml"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("config.json", "llama"),
        ("./config.json", "llama"),
        (".", "llama"),
        ("Small-4L/config.json", "Small-4L"),
        ("Small-4L", "Small-4L"),
        ("mistral-7b-v0.1", "mistral-7b-v0.1"),
    ],
)
def test_a_sweep_is_named_by_what_was_given_not_by_the_folder_it_lies_in(
    given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "Small-4L"):
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    assert read_model(given).name == name
    assert starter_name(given) == name


def test_the_result_of_a_search_is_of_the_same_files(tmp_path: Path) -> None:
    path = written(tmp_path, NAMED["config.json"])
    assert sweep("search", path, "--workers", 0, "--out", tmp_path / "out").returncode == 0
    assert reopened(tmp_path / "out", path).notes == ()
