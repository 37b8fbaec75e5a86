"""Comparisons against pairing and sorting in Python; which inputs changed; and the output formats."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sim_core import PARTS, SpecError, hardware_yaml, read_hardware
from sweep.compare import pairs
from sweep.compare.changes import input_changes
from sweep.compare.comparison import QUANTILES, compare
from sweep.compare.report import percent, plan_text, sections
from sweep.compare.result import Comparison
from sweep.evaluation.preparation import prepare
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.results.sealing import sealed_text
from sweep.results.store import MANIFEST, OLD_MANIFEST, Store
from sweep.show.sections import markdown
from sweep.spec.spec import load_spec
from tests.conftest import GPT7B
from tests.sweep.commands import sweep
from tests.sweep.conftest import SMALL, rows

AXES: dict[str, Any] = {
    "checkpointing": ["none", "full"],
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 3, 4],
    "vpp": [1, 2],
    "all_gpus": [64, 96, 128],
    "ga": [1, 4, 8],
}
Row = dict[str, Any]
Runner = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run a sweep (SMALL over AXES with changes; None drops a key) into the folder `name`; returns it."""

    def run_one(name: str, workload: str | None = None, **changes: Any) -> Path:
        (tmp_path / "w.txt").write_text(GPT7B.read_text() if workload is None else workload)
        document = {**SMALL, "axes": AXES, "where": None, "per": "all_gpus", **changes}
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({k: v for k, v in document.items() if v is not None}, sort_keys=False))
        prepared = prepare(load_spec(path), path.parent)
        run_sweep(prepared, Store(directory=tmp_path / name), InlineExecutor())
        return tmp_path / name

    return run_one


def keyed(directory: Path) -> dict[tuple[Any, ...], Row]:
    """Rows by the values of their plan."""
    found = rows(directory).to_pylist()
    names = list(found[0])
    keys = [name for name in names[: names.index("status")] if name != "plan"]
    return {tuple(row[key] for key in keys): row for row in found}


def provenance(directory: Path) -> Row:
    return Store(directory=directory).provenance() or {}


def texts(found: Comparison) -> list[str]:
    return [change.text for change in found.inputs]


def slower_network(**more: Any) -> Row:
    return {"preset": "H100-SXM", "nic_bandwidth": "300 Gb/s", "memory": "30 GB", **more}


@pytest.mark.parametrize("plans_at_a_time", [100, 1 << 19])
def test_every_number_is_that_of_pairing_in_python(run: Runner, monkeypatch: pytest.MonkeyPatch, plans_at_a_time: int) -> None:
    monkeypatch.setattr(pairs, "_RANGE", plans_at_a_time)
    """A slower network and less memory, on a space that lost one tp and won another."""
    old = run("old")
    new = run("new", hardware=slower_network(), axes={**AXES, "tp": [1, 2, 4, 16]})
    found = compare(old, new, top=7)
    before, after = keyed(old), keyed(new)
    both = [(before[key], after[key]) for key in before if key in after]
    assert found.matched == len(both) == 432
    assert found.moved["new_plans"].plans == len(after) - len(both) == 144
    assert found.moved["vanished_plans"].plans == len(before) - len(both) == 144
    ok = [(a, b) for a, b in both if a["status"] == b["status"] == "ok"]
    changes = np.array([b["step_time_s"] / a["step_time_s"] - 1 for a, b in ok])
    assert found.steps.plans == len(ok) > 100
    assert (found.steps.slower, found.steps.faster) == ((changes > 1e-9).sum(), (changes < -1e-9).sum())
    assert found.steps.slower > 50
    assert found.steps.same == len(ok) - found.steps.slower - found.steps.faster
    assert [value for _, value in found.steps.quantiles] == pytest.approx(np.quantile(changes, QUANTILES), abs=1e-12)
    mean = {name: np.mean([b[name] - a[name] for a, b in ok]) for name in PARTS}
    assert found.steps.mean is not None
    assert dict(found.steps.mean.parts) == pytest.approx({n: v for n, v in mean.items() if abs(v) > 1e-12})
    lost = [b for a, b in both if a["status"] == "ok" and b["status"] == "infeasible"]
    assert found.moved["became_infeasible"].plans == len(lost) > 0
    assert dict(found.moved["became_infeasible"].reasons) == Counter(row["reason"] for row in lost)
    assert (found.moved["became_feasible"].plans, found.moved["became_failed"].plans) == (0, 0)
    back = compare(new, old)
    moved = (back.moved["became_feasible"].plans, back.moved["became_infeasible"].plans)
    assert (*moved, back.steps.faster) == (
        len(lost),
        0,
        found.steps.slower,
    )
    assert back.moved["became_feasible"].reasons == found.moved["became_infeasible"].reasons, "why they could not run then"


def test_the_widest_changes_come_first_with_their_cause(run: Runner) -> None:
    old, new = run("old"), run("new", hardware=slower_network())
    found = compare(old, new, top=5)
    before, after = keyed(old), keyed(new)
    ok = [(before[k], after[k]) for k in before if before[k]["status"] == after[k]["status"] == "ok"]
    widest = sorted(ok, key=lambda pair: (-abs(np.log(pair[1]["step_time_s"] / pair[0]["step_time_s"])), pair[1]["plan"]))[:5]
    assert [shift.values["plan"] for shift in found.largest] == [b["plan"] for _, b in widest]
    for shift, (a, b) in zip(found.largest, widest, strict=True):
        deltas = {name: b[name] - a[name] for name in PARTS}
        assert shift.cause == max(deltas, key=lambda name: deltas[name])
        assert shift.new_s - shift.old_s == pytest.approx(sum(delta for _, delta in shift.parts))
    causes = Counter(
        max(PARTS, key=lambda name: (b[name] - a[name]) * np.sign(b["step_time_s"] - a["step_time_s"]))
        for a, b in ok
        if abs(b["step_time_s"] / a["step_time_s"] - 1) > 1e-9
    )
    assert dict(found.steps.causes) == causes


def test_the_best_plan_of_each_group_then_and_now(run: Runner) -> None:
    old, new = run("old"), run("new", hardware=slower_network(memory="20 GB"))
    found = compare(old, new)
    before, after = (rows(path).to_pylist() for path in (old, new))
    statuses = set()
    assert [group.group for group in found.groups] == [{"all_gpus": n} for n in AXES["all_gpus"]]
    for group in found.groups:
        sides = [[row for row in table if row["all_gpus"] == group.group["all_gpus"]] for table in (before, after)]
        ranked = [
            sorted((row for row in side if row["status"] == "ok"), key=lambda row: (row["gpu_s_per_sample"], row["plan"]))
            for side in sides
        ]
        assert group.old is not None
        assert (group.old.plan, group.old.value) == (ranked[0][0]["plan"], ranked[0][0]["gpu_s_per_sample"])
        assert group.new is not None
        assert (group.new.plan, group.new.value) == (ranked[1][0]["plan"], ranked[1][0]["gpu_s_per_sample"])
        assert group.worse == pytest.approx(group.new.value / group.old.value - 1)
        now = next(row for row in sides[1] if row["plan"] == group.old.plan)  # the same space: the same numbers
        assert group.old_plan_status == now["status"]
        statuses.add(now["status"])
        if now["status"] == "ok":
            better = [row for row in ranked[1] if row["gpu_s_per_sample"] < now["gpu_s_per_sample"]]
            assert group.old_plan_rank == 1 + len(better)
        else:
            assert group.old_plan_rank is None
    assert "infeasible" in statuses, "the case is not in the data"


def test_a_maximized_objective_is_worse_when_it_is_less(run: Runner) -> None:
    objectives = [{"maximize": "samples_per_s"}]
    found = compare(run("old"), run("new", hardware=slower_network(), objectives=objectives))
    assert (found.by, found.descending) == ("samples_per_s", True)
    values = [(group.worse, group.new.value / group.old.value) for group in found.groups if group.new and group.old]
    assert all(worse == pytest.approx(1 - ratio) for worse, ratio in values)
    assert any(worse > 0 for worse, _ in values if worse is not None)


def test_plans_are_matched_by_value_not_by_number(run: Runner) -> None:
    turned = {key: list(reversed(values)) for key, values in reversed(AXES.items())}
    old, new = run("old"), run("new", axes=turned)
    tied = compare(old, new, by="pp").groups
    assert {group.old_plan_rank for group in tied} == {1}, "plans that tie share their rank, whatever their numbers"
    assert {group.old and group.new and group.old.plan == group.new.plan for group in tied} == {False}
    found = compare(old, new)
    assert found.matched == found.old_rows == found.new_rows
    assert (found.steps.same, found.steps.plans) == (found.old_feasible, found.old_feasible)
    assert (found.moved["new_plans"].plans, found.moved["vanished_plans"].plans, found.largest) == (0, 0, ())
    assert not [change for change in found.inputs if change.moves_results]
    assert {group.worse for group in found.groups} == {0.0}


def test_where_numbers_become_those_of_other_plans_all_are_matched_by_value(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "_RANGE", 100)
    test_plans_are_matched_by_value_not_by_number(run)


def test_a_number_that_is_an_axis_on_one_side_is_held_on_the_other(run: Runner) -> None:
    old = run("old")
    new = run("new", axes={"hardware.nic_bandwidth": ["100 Gb/s", "400 Gb/s"], **AXES})
    found = compare(old, new)
    assert (found.matched, found.moved["new_plans"].plans, found.moved["vanished_plans"].plans) == (576, 576, 0)
    assert found.steps.same == found.steps.plans == found.old_feasible
    back = compare(new, old)
    assert (back.matched, back.moved["new_plans"].plans, back.moved["vanished_plans"].plans) == (576, 0, 576)


def test_other_hardware_is_a_changed_input_not_another_plan(run: Runner) -> None:
    found = compare(run("old"), run("new", hardware="A100-80G-SXM"))
    assert found.matched_without == ("hardware",)
    assert found.matched == found.new_rows
    assert {"hardware H100-SXM: H100-SXM, removed", "hardware A100-80G-SXM: A100-80G-SXM, added"} <= set(texts(found))


def test_two_fidelities_are_two_plans(run: Runner) -> None:
    """The ratios of the model stand in the result of the other fidelity only; events do not know them."""
    found = compare(run("old"), run("new", fixed={"layer_split": "balanced", "fidelity": "simai"}))
    assert found.matched == 0
    assert sections(found)[0].lines[0].startswith("warning: no plan is on both sides: are these the same job?")
    assert compare(run("old"), run("both", axes={"fidelity": ["event", "simai"], **AXES})).steps.same > 100


def test_one_plan_against_one_plan(run: Runner) -> None:
    one = {"axes": {"tp": [4]}, "per": None}
    found = compare(run("old", **one), run("new", hardware=slower_network(), **one))
    assert (found.matched, found.steps.slower) == (1, 1)
    assert plan_text(found.largest[0].values) == "the only plan"


def test_which_value_of_a_preset_changed(run: Runner) -> None:
    old, new = run("old"), run("new", hardware={"preset": "H100-SXM", "nic_bandwidth": "300 Gb/s"})
    assert texts(compare(old, new)) == ["hardware H100-SXM nic_bandwidth: 50 GB/s -> 37.5 GB/s"]


def test_defaults_are_compared_field_by_field(run: Runner) -> None:
    old, new = (run(name, axes=AXES | axes) for name, axes in (("old", {"micro_batch": [1]}), ("new", {"overlap_tp": [False]})))
    assert {"default micro_batch: 1 (of the workload file), added", "default overlap_tp: false, removed"} <= set(
        texts(compare(old, new))
    )


def test_the_job_that_runs_moves_no_result(run: Runner) -> None:
    changes = compare(run("old"), run("new", running={"plan": {"tp": 4}, "step_time_s": 2.0})).inputs
    assert [(change.name, change.moves_results) for change in changes] == [("running", False)]


def test_which_file_changed(run: Runner, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(hardware_yaml(read_hardware("H100-SXM")))
    old = run("old", hardware="mine.yaml")
    mine.write_text(re.sub(r"(nic_bandwidth:.*?) 50000000000.0 B/s", r"\1 37.5 GB/s", mine.read_text(), flags=re.DOTALL))
    text = GPT7B.read_text().replace("355767", "455767")
    told = texts(compare(old, run("new", hardware="mine.yaml", workload=text)))
    assert told[0] == "hardware H100-SXM nic_bandwidth: 50 GB/s -> 37.5 GB/s"
    assert [line.partition(":")[0] for line in told[1:]] == ["file w.txt", "file mine.yaml"]
    assert "forward_s" in told[1] or "backward_s" in told[1], "what is different in it"


def test_a_changed_file_is_described_by_its_totals() -> None:
    """Names of totals are stored as in the first version, and printed as a reader expects them."""

    def result(sha256: str, traffic: float) -> dict[str, Any]:
        inputs = {
            "files": {"workload": {"path": "w.txt", "sha256": sha256, "bytes": 9}},
            "workload": {"layers": 36.0, "TP all-reduce a micro-batch, bytes": traffic},
        }
        return {"workload": sha256, "inputs": inputs}

    (change,) = input_changes(result("a", 1e6), result("b", 2e6))
    assert change.text == "file w.txt: a (9 bytes) -> b (9 bytes); TP all-reduce per micro-batch, bytes 1 MB -> 2 MB"


def test_a_file_of_other_bytes_but_the_same_content_moves_nothing(run: Runner) -> None:
    found = compare(run("old"), run("new", workload=GPT7B.read_text() + "\n\n"))
    (change,) = found.inputs
    assert (change.kind, change.moves_results) == ("file", False)
    assert "but its content as read is the same" in change.text
    assert found.steps.same == found.steps.plans


def test_what_changed_in_the_spec(run: Runner) -> None:
    fixed = {"layer_split": "even", "bucket_bytes": "25 MB"}
    told = texts(compare(run("old"), run("new", axes={**AXES, "tp": [1, 2, 4, 16]}, fixed=fixed, where=["pp < 4"], per="ga")))
    assert "spec axes.tp: 8 -> 16" in told
    assert "spec fixed.layer_split: balanced -> even" in told
    assert "spec fixed.bucket_bytes: 25000000, added" in told
    assert "spec where: none -> pp < 4" in told
    assert "spec per: all_gpus -> ga" in told


def test_a_new_model_is_named_with_its_sources(run: Runner) -> None:
    new = provenance(run("old"))
    old = json.loads(json.dumps(new)) | {"model": "0123456789abcdef"}
    old["inputs"]["model"]["engine/lanes.py"] = "0"
    (change,) = input_changes(old, new)
    assert change.text == f"model version: 0123456789abcdef -> {new['model']} (engine/lanes.py)"
    same = new["inputs"]["model"]["engine/lanes.py"]
    old["inputs"]["model"] |= {"engine/lanes.py": same, "hardware/presets/H20-SXM.yaml": "0"}
    (change,) = input_changes(old, new)
    assert (change.name, change.moves_results) == ("presets", False)
    del old["inputs"]
    assert [change.kind for change in input_changes(old, new)] == ["model"], "a result of a version that recorded less"


def test_an_incomplete_result_says_so(run: Runner) -> None:
    old, new = run("old"), run("new", hardware=slower_network())
    manifest = provenance(new) | {"rows": 10_000}
    (new / MANIFEST).unlink()
    (new / OLD_MANIFEST).write_bytes(sealed_text(manifest))
    assert compare(old, new).incomplete == (f"{new}: 576 of 10,000 plans are computed",)


def test_faults_are_one_line(run: Runner, tmp_path: Path) -> None:
    old = run("old")
    (tmp_path / "spec.yaml").write_text("name: x\n")
    for other, told in (("spec.yaml", "is a file, expected the folder of a result"), ("gone", "no such folder, expected that")):
        assert sweep("compare", old, tmp_path / other).stderr.startswith(f"error: {tmp_path / other}: {told}")
    with pytest.raises(SpecError, match="gone: holds no results of a sweep"):
        compare(old, tmp_path / "gone")
    with pytest.raises(SpecError, match="unknown column 'tpp', nearest valid: "):
        compare(old, old, by="tpp")
    with pytest.raises(SpecError, match="--per: found gpus, which is not a column of both results, "):
        compare(old, old, per=["gpus"])
    damaged = run("damaged", hardware="A100-80G-SXM")
    part = next(damaged.glob("part-*"))
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(SpecError, match="damaged; the same `sweep run` computes damaged slices again"):
        compare(old, damaged)


def test_markdown_shows_names_as_they_are(run: Runner) -> None:
    old = run("old")
    (tmp := old.parent / "d_<b>*[x]").mkdir()
    old.rename(tmp / "old")
    text = markdown(sections(compare(tmp / "old", tmp / "old")))
    assert r"d\_\<b\>\*\[x\]" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in tables}) == 1


@pytest.mark.parametrize(
    ("change", "told"), [(0.0, "0 %"), (0.0231, "+2.31 %"), (-0.5, "-50 %"), (1.5, "+150 %"), (6e-6, "+0.0006 %")]
)
def test_percent(change: float, told: str) -> None:
    assert percent(change) == told


def test_the_command_writes_every_form(run: Runner, tmp_path: Path) -> None:
    old, new = run("old"), run("new", hardware=slower_network())
    told = sweep("compare", old, new)
    assert (told.returncode, told.stderr) == (0, "")
    for text in ("hardware H100-SXM nic_bandwidth: 50 GB/s -> 37.5 GB/s", "Became infeasible", "dp_exposed_s", "gpus 128"):
        assert text in told.stdout
    data = json.loads(sweep("compare", old, new, "--format", "json", "--top", 2).stdout)
    assert "hardware H100-SXM nic_bandwidth: 50 GB/s -> 37.5 GB/s" in [change["text"] for change in data["inputs"]]
    assert len(data["largest"]) == 2
    assert data["largest"][0]["cause"] == data["largest"][0]["parts"][0][0]
    assert sweep("compare", old, new, "-o", tmp_path / "c.md").returncode == 0
    assert (tmp_path / "c.md").read_text().startswith("## small: what changed\n")
    assert sweep("compare", old, new, "-o", tmp_path / "c.html").returncode == 0
    page = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert "Charts.draw" in page
    assert "night" not in page
    assert all(str(folder) in page for folder in (old, new))
    assert sweep("compare", old, new, "-o", tmp_path / "c.txt").returncode == 0
    assert "Best plan" in (tmp_path / "c.txt").read_text()
    refused = sweep("compare", old, new, "--format", "html")
    assert (refused.returncode, refused.stderr) == (2, "error: --format html needs --output FILE\n")
