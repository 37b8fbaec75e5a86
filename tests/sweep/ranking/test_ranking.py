"""Ranking against sorting in Python; ties, groups, conditions, formats, and what is said of the rest."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import sweep.ranking.selection as selection
from sim_core import PARTS, SpecError
from sweep.api import run
from sweep.columns import RUNS
from sweep.evaluation.preparation import prepare
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.ranking.error_bars import COLUMNS as BARS
from sweep.ranking.ranking import rank
from sweep.ranking.worlds import worlds_beside
from sweep.results.store import MANIFEST, Store
from sweep.show.checks import plausibility_lines
from sweep.show.ranked import MORE_AXES, MOST_BRIEF, print_ranking
from sweep.spec.spec import SweepSpec, load_spec
from sweep.uncertainty.highest import above_measured
from sweep.uncertainty.memory import chance_before_runs, guesses_of, likely_part
from tests.conftest import EXAMPLES
from tests.sweep.commands import sweep
from tests.sweep.conftest import files_of, rows

ROWS = list[dict[str, Any]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample of the GPT-7B example."""
    out = tmp_path_factory.mktemp("results")
    spec = EXAMPLES / "gpt7b.yaml"
    prepared = prepare(load_spec(spec, ["sample.n=6000"]), spec.parent)
    run_sweep(prepared, Store(directory=out), InlineExecutor())
    return out


@pytest.fixture(scope="module")
def table(results: Path) -> ROWS:
    return list(rows(results).to_pylist())


def plans(found: Any) -> list[int]:
    return list(found.rows["plan"].to_pylist())


def test_the_best_come_first_and_ties_go_to_the_lower_number(results: Path, table: ROWS) -> None:
    ok = [row for row in table if row["status"] == "ok"]
    expected = [row["plan"] for row in sorted(ok, key=lambda row: (row["step_time_s"], row["plan"]))]
    assert plans(rank(results, by="step_time", top=50, per=[])) == expected[:50]
    highest = [row["plan"] for row in sorted(ok, key=lambda row: (-row["samples_per_s"], row["plan"]))]
    assert plans(rank(results, by="samples_per_s", top=50, per=[])) == highest[:50]
    tied = [row["plan"] for row in sorted(ok, key=lambda row: (row["pp"], row["plan"]))]
    assert plans(rank(results, by="pp", top=200, per=[])) == tied[:200]


def test_the_spec_s_objective_and_groups_are_the_default(results: Path, table: ROWS) -> None:
    found = rank(results)
    assert (found.by, found.descending) == ("gpu_s_per_sample", False)
    sizes = sorted({row["all_gpus"] for row in table if row["status"] == "ok"})
    assert found.rows["all_gpus"].to_pylist() == sizes  # the best of each


def test_groups_and_conditions(results: Path, table: ROWS) -> None:
    kept = [r for r in table if r["status"] == "ok" and r["all_gpus"] <= 512 and r["checkpointing"] == "none"]
    kept.sort(key=lambda r: (r["all_gpus"], r["step_time_s"], r["plan"]))
    expected = [r["plan"] for _, group in groupby(kept, lambda r: r["all_gpus"]) for r in list(group)[:3]]
    found = rank(results, by="step_time", top=3, per=["all_gpus"], where="all_gpus <= 512 and checkpointing = 'none'")
    assert plans(found) == expected
    assert found.rows["rank"].to_pylist() == [1, 2, 3] * (len(expected) // 3)


def test_every_row_is_ranked_or_told_why_not(results: Path, table: ROWS) -> None:
    found = rank(results, where="tp > 1")
    assert found.total == len(table) == found.ranked + found.filtered + sum(found.reasons.values())
    assert found.reasons == dict(Counter(row["reason"] for row in table if row["status"] != "ok"))
    assert found.filtered == sum(row["status"] == "ok" and row["tp"] == 1 for row in table)
    assert found.held["hardware"] == "H100-SXM"
    assert "tp" in found.varying


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "stp_time"}, "unknown column 'stp_time', nearest valid: step_time_s"),
        ({"per": ["gpuz"]}, "unknown column 'gpuz', nearest valid: goodput, all_gpus"),
        ({"columns": ["tpp"]}, "unknown column 'tpp', nearest valid: tp"),
        ({"where": "all_gpu < 3"}, "--where 'all_gpu < 3': unknown column 'all_gpu', nearest valid: all_gpus"),
        ({"where": "tp +"}, "--where 'tp +': cannot be read"),
        ({"where": "tp"}, "--where 'tp': found a value of type BIGINT, expected a condition"),
    ],
)
def test_faults_name_the_nearest_column(results: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        rank(results, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_results(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(SpecError, match="holds no results of a sweep"):
            rank(path)


def test_formats_hold_the_same_rows(results: Path, tmp_path: Path) -> None:
    options = ("rank", results, "--by", "step_time", "--top", 7, "--per", "", "--columns", "tp,pp,step_time,hardware")
    as_csv = list(csv.DictReader(io.StringIO(sweep(*options, "--format", "csv").stdout)))
    as_json = json.loads(sweep(*options, "--format", "json").stdout)
    assert sweep(*options, "--format", "parquet", "-o", tmp_path / "r.parquet").returncode == 0
    as_parquet = pq.read_table(tmp_path / "r.parquet").to_pylist()
    expected = rank(results, by="step_time", top=7, per=[], columns=["tp", "pp", "step_time", "hardware"]).rows.to_pylist()
    assert as_json == as_parquet == expected
    assert [{k: str(v) for k, v in row.items()} for row in expected] == as_csv
    assert list(expected[0]) == ["rank", "plan", "tp", "pp", "step_time_s", "hardware"]
    refused = sweep(*options, "--format", "parquet")
    assert (refused.returncode, refused.stderr) == (2, "error: --format parquet needs --output FILE\n")


def test_the_heads_of_the_table_name_columns_too(results: Path) -> None:
    assert rank(results, by="step", per=["gpus"]).rows.equals(rank(results, by="step_time_s", per=["all_gpus"]).rows)


def test_an_unfinished_sweep_is_ranked_and_said_to_be_unfinished(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "part"
    shutil.copytree(results, out)
    files = files_of(Store(directory=out))
    files[0].unlink()
    found = rank(out)
    assert found.missing == 6000 - found.total > 0
    told = sweep("rank", out).stdout
    assert f"Incomplete: {found.total:,} of 6,000 plans are computed" in told


def test_a_damaged_slice_is_one_line(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "damaged"
    shutil.copytree(results, out)
    files_of(Store(directory=out))[0].write_bytes(b"PAR1 no more")
    told = sweep("rank", out)
    assert told.returncode == 1
    assert told.stderr.count("\n") == 1
    assert "damaged; the same `sweep run` computes damaged slices again" in told.stderr


def test_a_condition_that_fails_on_a_value_is_one_line(results: Path) -> None:
    with pytest.raises(SpecError, match=r"--where .*found the text .* beside a column of numbers"):
        rank(results, where="tp = '8x'")


def test_further_objectives_break_ties(tmp_path: Path) -> None:
    spec = EXAMPLES / "gpt7b.yaml"
    sets = ["sample.n=2000", "objectives=[{minimize: pp}, {maximize: samples_per_s}]", "per=[]"]
    prepared = prepare(load_spec(spec, sets), spec.parent)
    run_sweep(prepared, Store(directory=tmp_path), InlineExecutor())
    ok = [row for row in rows(tmp_path).to_pylist() if row["status"] == "ok"]
    expected = sorted(ok, key=lambda row: (row["pp"], -row["samples_per_s"], row["plan"]))
    assert plans(rank(tmp_path, top=100)) == [row["plan"] for row in expected[:100]]


def test_unlike_batches_are_not_compared_without_a_word(results: Path) -> None:
    assert "different global batches are compared" in sweep("rank", results, "--by", "step_time").stdout
    assert "different global batches" not in sweep("rank", results, "--by", "step_time", "--per", "batch").stdout


def test_the_file_s_suffix_chooses_the_format(results: Path, tmp_path: Path) -> None:
    assert sweep("rank", results, "-o", tmp_path / "r.csv").returncode == 0
    assert (tmp_path / "r.csv").read_text().startswith("rank,plan,")


def test_the_table_shows_shares_of_the_step_that_add_up(results: Path) -> None:
    told = sweep("rank", results, "--top", 3, "-v").stdout
    assert "gpu-s/sample" in told
    assert "bubble%" in told or "fwd%" in told
    assert "of 6,000 plans ranked, lowest gpu_s_per_sample first." in told
    assert "\x1b" not in told


def test_one_line_of_duckdb_reads_the_result(results: Path) -> None:
    parts = " + ".join(PARTS)
    query = f"SELECT max(abs({parts} - step_time_s) / step_time_s) FROM '{results}/*.parquet' WHERE status = 'ok'"
    assert duckdb.execute(query).fetchall()[0][0] < 1e-9


def test_without_a_folder_the_newest_result_is_ranked(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("rank", "--top", 1, "--per", "")
    none = sweep(*command)
    assert (none.returncode, none.stderr) == (1, "error: results: holds no results of a sweep\n")
    for name, age in (("old", 100), ("new", 0)):
        shutil.copytree(results, tmp_path / "results" / name)
        manifest = tmp_path / "results" / name / MANIFEST
        moment = manifest.stat().st_mtime - age
        os.utime(manifest, (moment, moment))
    told = sweep(*command)
    assert told.returncode == 0
    assert told.stdout.startswith("results/new:\n")


def test_the_utilisation_is_the_model_s_work_over_the_peak(results: Path, table: ROWS) -> None:
    """6 x 7.43 G parameters x tokens: 36 layers of 4 x 4096^2 + 3 x 4096 x 10880, the embedding once; H100: 989.4 TFLOP/s."""
    parameters = 36 * (4 * 4096**2 + 3 * 4096 * 10880) + 50257 * 4096
    found = rank(results, per=[], top=3)
    by_plan = {row["plan"]: row for row in table}
    for row, known in zip(found.rows.to_pylist(), found.utilisation, strict=True):
        of = by_plan[row["plan"]]
        flops = 6 * parameters * of["samples_per_s"] * 2048 / of["all_gpus"]
        assert known["tflops_per_gpu"] == pytest.approx(flops / 1e12, rel=1e-9)
        assert row["mfu"] == known["mfu"] == pytest.approx(flops / 989.4e12, rel=1e-3)
    assert "mfu" not in rank(results, columns=["step"]).rows.column_names
    assert "MFU" in sweep("rank", results).stdout
    best = rank(results, by="mfu", per=[], top=1, where="mfu < 0.2 and tp > 1")
    assert best.descending
    rated = [
        6 * parameters * row["tokens_per_s"] / row["all_gpus"] / 989.4e12
        for row in table
        if row["status"] == "ok" and row["tp"] > 1
    ]
    assert best.rows["mfu"][0].as_py() == pytest.approx(max(mfu for mfu in rated if mfu < 0.2), rel=1e-3)


def test_a_result_that_no_one_reaches_is_doubted(tmp_path: Path) -> None:
    """The untouched file is at 7 % MFU: one record has 72 % of the compute. A device ten times as fast is beyond 75 %."""
    spec = EXAMPLES / "gpt7b_as_recorded.yaml"
    for name, path, sets in (
        ("slow", spec, []),
        ("fast", EXAMPLES / "gpt7b.yaml", ["fixed.device_speed=10"]),
    ):
        prepared = prepare(load_spec(path, ["sample.n=400", *sets]), path.parent)
        run_sweep(prepared, Store(directory=tmp_path / name), InlineExecutor())
    slow = sweep("rank", tmp_path / "slow", "--per", "", "--top", 1).stdout
    assert "warning: embedding_layer has 72% of the compute of a micro-batch of the file" in slow
    assert "is below 15% MFU" in slow
    assert "6 doubtful records of the workload file" in slow
    fast = sweep("rank", tmp_path / "fast", "--per", "", "--top", 1).stdout
    assert "is above 75% MFU" in fast
    assert "doubtful" not in fast


@pytest.mark.parametrize(("precision", "highest"), [("bf16", 0.75), ("fp8_delayed", 1.5), ("nvfp4", 3.0)])
def test_what_narrow_operands_reach_is_not_doubted(precision: str, highest: float, tmp_path: Path) -> None:
    """Megatron-Bridge's 405B reaches 2,617 TFLOP/s in FP8 and 3,653 in NVFP4 on GB300s, whose peak in 16 bits is 2,500."""
    spec = {"name": "narrow", "model": "llama3-8b", "hardware": "GB200-NVL72", "axes": {"precision": [precision]}}
    facts = prepare(SweepSpec.model_validate(spec | {"fixed": {"global_batch": 8}}), tmp_path).provenance["plausibility"]
    for mfu, doubted in ((0.99 * highest, False), (1.01 * highest, True)):
        assert (
            any("no training reaches" in line for line in plausibility_lines(facts, [{"tflops_per_gpu": 1.0, "mfu": mfu}]))
            is doubted
        )


def test_the_utilisation_is_unknown_where_the_layers_are_changed(tmp_path: Path) -> None:
    spec = EXAMPLES / "gpt7b.yaml"
    prepared = prepare(load_spec(spec, ["sample.n=400", "fixed.layers=72"]), spec.parent)
    run_sweep(prepared, Store(directory=tmp_path), InlineExecutor())
    assert not [row for row in rank(tmp_path).utilisation if row["mfu"] is not None]
    assert "MFU is unknown, it needs the model of each number of layers" in sweep("rank", tmp_path).stdout


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Llama 3 8B, where the size of a bucket often makes no difference."""
    out = tmp_path_factory.mktemp("alike")
    spec = out / "alike.yaml"
    spec.write_text(
        "name: alike\nmodel: llama3-8b\nworkload: {sequence: 2048}\nhardware: H100-SXM\n"
        "axes: {tp: [1, 2, 4], pp: [1, 2], ga: [2, 4], micro_batch: [1, 2], bucket_bytes: [0, 50 MB, 100 MB],"
        " hardware.nic_bandwidth: [200 Gb/s, 400 Gb/s]}\n"
        "fixed: {all_gpus: 8}\nwhere: [gpus = 8 and hardware.nic_bandwidth > 1e9]\n"
    )
    run_sweep(prepare(load_spec(spec), out), Store(directory=out / "r"), InlineExecutor())
    return out / "r"


def numbers(row: dict[str, Any]) -> tuple[float, ...]:
    """What plans that are one row have in common."""
    names = (*PARTS, "step_time_s", "peak_memory_bytes", "all_gpus", "global_batch")
    return tuple(float(f"{row[name] or 0:.5g}") for name in names)


def test_plans_with_the_same_numbers_are_one_row(alike: Path) -> None:
    """Against a dictionary in Python: on one node neither network nor (here) buckets matter."""
    ok = [row for row in rows(alike).to_pylist() if row["status"] == "ok"]
    ok.sort(key=lambda row: (row["gpu_s_per_sample"], row["plan"]))
    kinds: dict[tuple[float, ...], list[dict[str, Any]]] = {}
    for row in ok:
        kinds.setdefault(numbers(row), []).append(row)
    found = rank(alike, top=1000)
    told = found.rows.to_pylist()
    assert len(told) == len(kinds) < len(ok) == found.ranked == sum(row["alike"] for row in told)
    assert {numbers(row): (row["plan"], row["alike"]) for row in told} == {
        key: (min(row["plan"] for row in same), len(same)) for key, same in kinds.items()
    }
    assert all("nic_bandwidth" in row["alike_but_for"].split() for row in told)
    assert set(found.differing) >= {"nic_bandwidth"}
    assert found.alike == len(ok) - len(kinds)
    best = rank(alike, top=3).rows.to_pylist()
    assert best == told[:3]
    assert plans(rank(alike, top=1000, every=True)) == [row["plan"] for row in ok]
    screen = sweep("rank", alike, "--top", 3).stdout
    more = sum(row["alike"] - 1 for row in best)
    assert f"alike: {more:,} more plans with the same numbers, which differ in " in screen
    assert "alike:" not in sweep("rank", alike, "--top", 3, "--all").stdout


@pytest.mark.parametrize("per", [[], ["all_gpus"]])
def test_a_front_holds_the_plans_that_none_beats(results: Path, table: ROWS, per: list[str]) -> None:
    """Against every pair of rows."""
    ok = [row for row in table if row["status"] == "ok" and row["tp"] > 1]
    points = [(row["gpu_s_per_sample"], -row["mfu"], row["pp"]) for row in ok]
    groups = [tuple(row[name] for name in per) for row in ok]
    expected = {
        row["plan"]
        for row, point, group in zip(ok, points, groups, strict=True)
        if not any(
            other != point and group == of and all(a <= b for a, b in zip(other, point, strict=True))
            for other, of in zip(points, groups, strict=True)
        )
    }
    front = ("gpu-s/sample", "mfu", "pp")
    found = rank(results, pareto=front, per=per, where="tp > 1", every=True)
    assert set(plans(found)) == expected
    assert found.front == ("gpu_s_per_sample", "mfu", "pp")
    costs = rank(results, pareto=front, per=[], where="tp > 1").rows["gpu_s_per_sample"].to_pylist()
    assert costs == sorted(costs)


def test_a_front_has_no_other_order(results: Path) -> None:
    with pytest.raises(SpecError, match="--pareto and --by: expected one of them"):
        rank(results, by="mfu", pareto=["step_time"])


def test_machine_formats_have_every_column_of_a_result(results: Path, table: ROWS) -> None:
    """Whatever the rows hold: constant columns and unknown ones, too."""
    expected = ["rank", *(name for name in table[0] if name not in ("status", "reason")), *BARS, RUNS, "alike", "alike_but_for"]
    for where in ("tp = 1", "tp = 1 and pp = 1 and vpp = 1", "tp > 99"):
        told = sweep("rank", results, "--where", where, "--format", "csv").stdout
        assert told.splitlines()[0].split(",") == expected
    assert json.loads(sweep("rank", results, "--where", "tp > 99", "--format", "json").stdout) == []


@pytest.mark.parametrize(
    ("given", "column"),
    [
        ("gpus", "all_gpus"),
        ("step", "step_time_s"),
        ("peak_memory", "peak_memory_bytes"),
        ("fwd%", "compute_forward_s"),
        ("TP", "tp_exposed_s"),
        ("hardware.nic_bandwidth", "nic_bandwidth"),
    ],
)
def test_a_column_has_the_same_names_everywhere(results: Path, given: str, column: str) -> None:
    assert rank(results, by=given, per=[given], columns=[given]).by == column
    if given not in ("TP", "fwd%"):  # SQL has its own meaning of these
        plain = rank(results, where=f"{column} > 500", per=[], top=10)
        assert rank(results, where=f"{given} > 500", per=[], top=10).rows.equals(plain.rows)


def test_a_condition_may_name_the_chance_that_a_plan_runs(results: Path) -> None:
    """No row holds it: it follows from the memory, where that is known; it is no column to rank by."""
    every = rank(results, per=[], top=6000).rows
    chosen = rank(results, where="runs_probability > 0.9 and tp < 100", per=[], top=6000)
    expected = [
        plan for plan, chance in zip(*(every[name].to_pylist() for name in ("plan", RUNS)), strict=True) if chance > 0.9
    ]
    assert chosen.rows["plan"].to_pylist() == expected
    assert 0 < len(expected) < every.num_rows
    assert rank(results, where="Runs_Probability > 2").rows.num_rows == 0
    for asked in ({"where": "runs_probability > 0.5", "by": RUNS}, {"by": RUNS}):
        with pytest.raises(SpecError, match=r"no row holds runs_probability: .* `sweep rank --where 'runs_probability > 0.5'`"):
            rank(results, **asked)  # type: ignore[arg-type]


def test_a_best_plan_that_hardly_fits_is_said(tmp_path: Path) -> None:
    """Memory is predicted within 6 % in the mean: a plan that leaves less may not run."""
    spec: dict[str, Any] = {
        "name": "tight",
        "workload": {"model": "llama3-8b", "stack": "megatron-core"},
        "hardware": "H100-SXM",
        "axes": {"tp": [2, 4]},
        "fixed": {"dp": 4, "pp": 1, "global_batch": 16},
    }
    best = run(spec, tmp_path / "roomy").rank()
    for part, first in ((0.8, 0), (0.999, 1)):
        memory = f"{best['peak_memory_bytes'][0].as_py() / part:.0f} B"
        run(spec | {"hardware": {"preset": "H100-SXM", "memory": memory}}, tmp_path / memory)
        told = " ".join(sweep("rank", tmp_path / memory, "--try-cost", "0.5").stdout.split())
        assert f"Launch plan {first}" in told
        if first:  # what is likelier to fail is not to be launched
            assert re.search(r"Launch plan 1 \(\d+\.\d% behind the fastest, plan 0\): tp 4, ", told)
            assert re.search(r"the fastest, plan 0 \(tp 2, gpus 8\), needs 100% and runs with \d\d%", told)
        else:
            assert f"it needs {part:.0%} of the memory and runs with a chance of 9" in told
    alone = run(spec | {"hardware": {"preset": "H100-SXM", "memory": memory}, "axes": {"tp": [2]}}, tmp_path / "alone")
    told = " ".join(sweep("rank", alone.folder).stdout.split())
    assert "Best if it fits: plan 0: " in told
    assert "no plan needs 90% or less" in told


def test_who_names_no_stack_is_told_what_naming_it_would_change(tmp_path: Path) -> None:
    """The page of Megatron-Core is simulated either way; who names it has its evidence (issue: names are beliefs)."""
    spec: dict[str, Any] = {
        "name": "named",
        "workload": {"model": "llama3-8b", "stack": "megatron-core"},
        "hardware": "H100-SXM",
        "axes": {"tp": [4]},
        "fixed": {"dp": 4, "pp": 1, "global_batch": 16},
    }
    roomy = run(spec, tmp_path / "roomy").rank()
    spec["hardware"] = {"preset": "H100-SXM", "memory": f"{roomy['peak_memory_bytes'][0].as_py() / 0.75:.0f} B"}
    named = run(spec, tmp_path / "named").rank()
    unnamed = run(spec | {"workload": {"model": "llama3-8b"}}, tmp_path / "unnamed").rank()
    assert named["step_time_s"] == unnamed["step_time_s"]
    assert named[RUNS][0].as_py() > 0.9 > unnamed[RUNS][0].as_py()
    told = " ".join(sweep("rank", tmp_path / "unnamed").stdout.split())
    own = f"no stack is named: if megatron-core runs it is {named[RUNS][0].as_py():.0%} (workload: {{stack: megatron-core}})"
    assert own in told
    assert "no stack is named" not in sweep("rank", tmp_path / "named").stdout


@pytest.mark.parametrize("axes", [{"stack": ["megatron-core", "nemo"]}, {"stack,tp": [["megatron-core", 2], ["nemo", 4]]}])
def test_chances_of_stacks_on_an_axis_are_a_condition(axes: dict[str, Any], tmp_path: Path) -> None:
    fixed = {"dp": 4, "pp": 1, "global_batch": 16} | ({"tp": 4} if "stack" in axes else {})
    spec = {"name": "stacks", "model": "llama3-8b", "hardware": "H100-SXM", "axes": axes, "fixed": fixed}
    table = run(spec, tmp_path / "out").rank(top=2)
    least = min(table[RUNS].to_pylist())
    assert rank(tmp_path / "out", where=f"runs_probability > {least - 0.001}").rows.num_rows == 2
    assert rank(tmp_path / "out", where="runs_probability > 0.99").rows.num_rows == 0
    assert "no stack is named" not in " ".join(sweep("rank", tmp_path / "out").stdout.split())


def test_a_likely_part_is_where_the_chance_crosses() -> None:
    for stack in ("megatron-core", "nemo", "torchtitan"):
        part = likely_part(guesses_of(stack), 0.5)
        chances = chance_before_runs(np.array([part, part + 0.01]), guesses_of(stack))
        assert chances[0] >= 0.5 > chances[1]


def test_every_axis_that_tells_rows_apart_is_shown_and_none_is_called_assumed(tmp_path: Path) -> None:
    """Sizes were counted twice, so that an axis that is none of them was left out; and Megatron-Core has no DualPipe."""
    spec: dict[str, Any] = {
        "name": "axes",
        "workload": {"model": "llama3-8b", "stack": "megatron-core"},
        "hardware": "H200-SXM",
        "axes": {"schedule": ["dualpipe"], "micro_batch": [1, 2], "tp": [2, 4], "optimizer": ["adamw", "muon"]},
        "fixed": {"dp": 4, "pp": 2, "global_batch": 64},
    }
    run(spec, tmp_path / "out")
    told = sweep("rank", tmp_path / "out").stdout
    assert "Left out: " not in told
    heads = next(line for line in told.splitlines() if line.startswith(" rank")).split()
    assert {"tp", "mbs", "optimizer", "peak_memory"} <= set(heads)
    assert "schedule" not in next(line for line in told.splitlines() if line.startswith("Assumed: "))
    assert "megatron-core has no schedule dualpipe (1f1b): it is simulated as if it had" in told
    assert (
        "has no schedule" not in sweep("rank", tmp_path / "out", "--by", "peak_memory", "--where", "schedule = '1f1b'").stdout
    )


@pytest.mark.parametrize("width", [80, 250])
def test_no_two_rows_of_a_table_look_like_one_plan(tmp_path: Path, width: int) -> None:
    """Axes came in the order of the result, so that a narrow table left out the only one in which two rows differ."""
    spec: dict[str, Any] = {
        "name": "apart",
        "model": "llama3-8b",
        "hardware": "H200-SXM",
        "axes": {
            "tp": [2, 4],
            "pp": [1, 2],
            "cp": [1, 2],
            "micro_batch": [1, 2],
            "checkpointing": ["none", "full"],
            "vpp": [1, 2],
            "overlap_grad": [True, False],
            "optimizer": ["adamw", "muon"],
        },
        "fixed": {"all_gpus": 64, "global_batch": 64},
    }
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, no_color=True, markup=False, highlight=False, soft_wrap=True)
    run(spec, tmp_path / "out")
    shown = rank(tmp_path / "out", top=24)
    print_ranking(shown, console, folder=tmp_path / "out")
    lines = out.getvalue().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith(" ──"))
    heads, rows = lines[at - 1].split(), [line.split() for line in lines[at + 1 : at + 1 + len(shown.rows)]]
    axes = [k for k, name in enumerate(heads) if name in ("tp", "pp", "cp", "vpp", "mbs", "ckpt", "overlap_grad", "optimizer")]
    assert len({tuple(row[k] for k in axes) for row in rows}) == len(rows), "\n".join(lines)


def test_a_best_plan_that_megatron_refuses_is_not_called_one_to_launch(tmp_path: Path) -> None:
    """megatron/training/arguments.py at d98e8a64; sharding none has no gather to overlap, and takes any optimizer."""
    spec: dict[str, Any] = {
        "name": "refused",
        "workload": {"model": "llama3-8b", "stack": "megatron-core", "sequence_parallel": False},
        "hardware": "H200-SXM",
        "axes": {"overlap_tp": [True, False], "optimizer": ["adamw", "sgd_momentum"]},
        "fixed": {"dp": 4, "pp": 1, "tp": 2, "global_batch": 16},
    }
    run(spec, tmp_path / "out")
    told = sweep("rank", tmp_path / "out", "--top", 4).stdout
    refused = "Megatron-LM refuses it: --tp-comm-overlap needs --sequence-parallel"
    assert re.search(rf"Launch plan 2 \(\S+ behind the fastest, plan \d; {refused}", told.replace("\n", " "))
    both = f"{refused}; --optimizer sgd does not go with --use-distributed-optimizer"
    assert both in sweep("rank", tmp_path / "out", "--where", "optimizer != 'adamw'").stdout
    assert "Launch plan 2: " in sweep("rank", tmp_path / "out", "--where", "not overlap_tp and optimizer = 'adamw'").stdout
    free = {**spec, "axes": {"optimizer": ["adamw", "sgd_momentum"], "sharding": ["none"]}}
    run(free, tmp_path / "free")
    assert "refuses" not in sweep("rank", tmp_path / "free").stdout, "sharding none takes any optimizer"


def test_a_best_plan_that_rather_fails_has_a_likelier_one_beside_it(tmp_path: Path) -> None:
    """A launch that rather fails is no answer alone; where a failed one costs much, it is the other that is launched."""
    spec: dict[str, Any] = {
        "name": "unlikely",
        "workload": {"model": "llama3-8b", "stack": {"preset": "megatron-core", "host_step": "7 ms"}},
        "hardware": "H100-SXM",
        "axes": {"checkpointing": ["none", "full"]},
        "fixed": {"dp": 4, "pp": 1, "tp": 8, "global_batch": 16},
    }
    table = run(spec, tmp_path / "roomy").rank(top=2)
    memory = f"{table['peak_memory_bytes'][0].as_py() / 0.99:.0f} B"
    run(spec | {"hardware": {"preset": "H100-SXM", "memory": memory}}, tmp_path / "unlikely")
    told = sweep("rank", tmp_path / "unlikely").stdout
    first, likelier = table["plan"].to_pylist()
    assert f"Best if it fits: plan {first}: " in told
    assert f"the next with room is plan {likelier} (" in " ".join(told.split())
    dear = " ".join(sweep("rank", tmp_path / "unlikely", "--try-cost", 1).stdout.split())
    assert f"Launch plan {likelier} (" in dear
    assert re.search(rf"the fastest, plan {first} \(.*\), needs 99% and runs with [34]\d%", dear)
    assert "Assumed: stack megatron-core (host_step 7 ms), " in told, "what was changed of a page is told with the answer"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_table_fits_its_terminal(results: Path, width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, no_color=True, markup=False, highlight=False, soft_wrap=True)
    for verbose in (False, True):
        out.truncate(0)
        print_ranking(rank(results), console, folder=results, verbose=verbose)
        lines = out.getvalue().lstrip("\0").splitlines()
        rule = next(line for line in lines if line.startswith(" ──"))
        heads = lines[lines.index(rule) - 1].split()
        assert {"plan", "gpus", "gpu-s/sample"} <= set(heads)
        assert verbose or all(len(line) <= width for line in lines), "sentences are broken between words"
        assert len(rule) <= width
        assert verbose or len(heads) <= MOST_BRIEF + MORE_AXES
        left_out = " ".join(lines).partition("Left out: ")[2].partition(" (")[0]
        assert left_out or (width == 120 and not verbose)
        assert not set(heads) & set(left_out.split(", "))


def test_the_first_lines_say_what_to_launch_how_sure_that_is_and_what_next(results: Path, tmp_path: Path) -> None:
    best = rank(results, per=[]).best
    assert best is not None
    told = sweep("rank", results, "--per", "").stdout.splitlines()
    assert told[1].startswith(f"Launch plan {best['plan']}: tp {best['tp']}, pp {best['pp']}, ")
    assert f"on {best['all_gpus']:,} x H100-SXM, {best['global_batch']:,} sequences a step; " in told[1]
    assert told[2].startswith("How sure: no measured runs say how near a file of this kind is")
    assert told[3] == f"Next: `sweep explain {results} {best['plan']}` says where its step goes."
    heads = told[5].split()
    assert len(heads) <= MOST_BRIEF + MORE_AXES
    rows = rank(results, per=[]).rows
    assert [name for name in ("tp", "pp", "vpp") if name in heads] == [
        name for name in ("tp", "pp", "vpp") if len(rows[name].unique()) > 1
    ]
    fewest = sweep("rank", results, "--by", "peak_memory", "--ascending").stdout.splitlines()[1]
    assert fewest.startswith("Lowest peak_memory: plan ")
    none = sweep("rank", results, "--where", "tp > 99").stdout.splitlines()
    assert none[1].startswith("The condition is false for all ")
    assert none[2] == "Next: loosen the condition; of plans that run tp is between 1 and 16."
    percent = sweep("rank", results, "--where", "mfu > 40 and checkpointing = 'none'").stdout.splitlines()
    assert percent[2].startswith("Next: loosen the condition; of plans that run mfu is between 0.")


@pytest.mark.parametrize(("factor", "above"), [(0.999, False), (1.001, True)])
def test_a_plan_above_every_measured_mfu_is_doubted(factor: float, above: bool) -> None:
    """dgxc-benchmarking's Llama 3 8B on 8 H100s: 62.21 % as published, 62.27 % by the FLOPs of the model."""
    row = {"hardware": "H100-SXM+EFA-v2", "mfu": 0.6227 * factor}
    told = above_measured(row, {})
    assert bool(told) == above
    assert not above or told.endswith("measured runs of dense models on H100-SXM in 16 bits: at most 62.3% (llama3-8b)")
    assert above_measured(row | {"precision": "fp8_delayed"}, {}) == ""
    assert above_measured({"hardware": "mine", "mfu": 0.99}, {}) == ""


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("values", [2, 5, 1000])
def test_a_front_is_what_the_definition_says(columns: int, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few values: many points are equal in one column or in all. A small sample, so that all points are held against it."""
    monkeypatch.setattr(selection, "_SAMPLE", 8)
    rng = np.random.default_rng(values)
    for n in (0, 1, 2, 7, 17, 200):
        points = rng.integers(0, values, (n, columns)).astype(np.float64)
        beaten = [
            any((other <= point).all() and (other < point).any() for other in points) for point in points
        ]  # by the definition, point by point
        assert selection.best_of(points).tolist() == [k for k in range(n) if not beaten[k]]


def test_plans_of_no_named_stack_are_simulated_with_all_that_may_run(tmp_path: Path) -> None:
    """Their interval holds the step of each likely stack, as its own spec has it; without the files it is the usual one."""
    spec: dict[str, Any] = {
        "name": "worlds",
        "workload": {"model": "llama3-8b"},
        "hardware": "H100-SXM",
        "axes": {"tp": [4, 8]},
        "fixed": {"dp": 4, "pp": 1, "global_batch": 64},
    }
    unnamed = run(spec, tmp_path / "unnamed").rank(top=2)
    named = run(spec | {"workload": spec["workload"] | {"stack": "megatron-core"}}, tmp_path / "named").rank(top=2)
    other = run(spec | {"workload": spec["workload"] | {"stack": "nanotron"}}, tmp_path / "other").rank(top=2)
    steps = dict(zip(other["plan"].to_pylist(), other["step_time_s"].to_pylist(), strict=True))
    for row, own in zip(unnamed.to_pylist(), named.to_pylist(), strict=True):
        assert row["plan"] == own["plan"]
        assert row["step_time_low_s"] < own["step_time_low_s"]
        assert own["step_time_high_s"] < row["step_time_high_s"]
        assert own["step_time_high_s"] < steps[row["plan"]], "nanotron is slower than Megatron-Core may be"
        assert steps[row["plan"]] < 1.3 * row["step_time_high_s"]
    provenance = json.loads(json.dumps(Store(directory=tmp_path / "unnamed").provenance()))
    usual = worlds_beside(tmp_path / "nowhere", provenance, unnamed["plan"].to_numpy())
    assert usual is not None
    assert usual.step == {}


def test_a_plan_is_called_simpler_only_if_it_is(tmp_path: Path) -> None:
    """Two plans that differ in the micro-batch alone have as many groups and options; no TPU is told to run Megatron-LM."""
    spec: dict[str, Any] = {
        "name": "alike",
        "workload": {"model": "llama3-8b", "sequence": 4096},
        "hardware": "H100-SXM",
        "axes": {"tp": [1, 2, 4], "micro_batch": [1, 2]},
        "fixed": {"all_gpus": 64, "global_batch": 128, "checkpointing": "full"},
    }
    run(spec, tmp_path / "alike")
    told = " ".join(sweep("rank", tmp_path / "alike").stdout.split())
    assert re.search(r"Launch plan 1 \(0\.\d% behind the fastest, plan 0, but expected to be as fast\): tp 1, ", told)
    assert "if megatron-core runs it is" in told
    run(spec | {"hardware": "TPU-v5p"}, tmp_path / "tpu")
    assert "if megatron-core runs" not in " ".join(sweep("rank", tmp_path / "tpu").stdout.split())
