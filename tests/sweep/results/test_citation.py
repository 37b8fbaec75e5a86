"""A result's short name: the same for the same question and data, whoever runs it, wherever."""

from __future__ import annotations

import json
from pathlib import Path

from sweep.evaluation.preparation import prepare
from sweep.results.citation import citation_of
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep
from tests.sweep.conftest import spec_in

AXES = {"tp": [1, 2], "all_gpus": [64]}


def named(folder: Path, changes: tuple[str, ...] = (), path: str | None = None) -> str:
    folder.mkdir()
    more = {} if path is None else {"workload": {"path": path}}
    spec = spec_in(folder, axes=AXES, where=None, **more)
    return citation_of(prepare(load_spec(spec, changes), spec.parent).provenance).short_name


def test_a_short_name_follows_from_question_and_data_not_from_where_they_lie(tmp_path: Path) -> None:
    text = EXAMPLES / "workloads" / "gpt7b_tp4_dp128.simai.txt"
    (tmp_path / "copied.txt").write_bytes(text.read_bytes())
    own = named(tmp_path / "a", path=str(text))
    assert own == named(tmp_path / "b", path="../copied.txt")
    (tmp_path / "copied.txt").write_bytes(text.read_bytes().replace(b"\t", b" "))
    assert own != named(tmp_path / "c", path="../copied.txt")
    for number, same in enumerate(("store.writer=driver", "running={plan: {tp: 2}}")):
        assert own == named(tmp_path / f"d{number}", (same,), path=str(text))
    for number, other in enumerate(("axes.tp=[1,4]", "hardware=A100-80G-SXM", "where=[tp > 1]")):
        assert own != named(tmp_path / f"e{number}", (other,), path=str(text)), other


def test_show_prints_name_answer_and_citation(tmp_path: Path) -> None:
    ran = sweep("run", spec_in(tmp_path, axes=AXES, where=None), "--out", tmp_path / "out", "--quiet")
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(sweep("show", tmp_path / "out", "--json").stdout)
    lines = sweep("show", tmp_path / "out").stdout.splitlines()
    assert lines[0] == shown["short_name"]
    assert lines[1] == f"  {shown['launch']}."
    identity = prepare(load_spec(spec_in(tmp_path, axes=AXES, where=None)), tmp_path).sweep.identity
    assert shown["run"] == identity[:8], "as in the name of a folder that `run` chooses"
    assert lines[-2].startswith(f"  Run: {identity[:8]} in {tmp_path / 'out'}")
    assert lines[-1] == f"  Cite: {shown['cite']}"
    assert shown["cite"].startswith(f"{lines[0]}: 2 plans on ")
    assert all(f"{key} {shown[key]}" in shown["cite"] for key in ("spec", "data"))
    assert f"training-plan-sweep {shown['version']}" in shown["cite"]
