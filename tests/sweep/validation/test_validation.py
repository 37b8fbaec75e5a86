"""`sweep validate`: tables of runs, the figures, and the margins they are held to."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest

from benchmarks.leaderboard import leaderboard, leaderboard_table
from docs.made import recorded_figures, tables
from docs.made.recorded_figures import worse
from sweep.commands import validate_command
from sweep.runs.simulation import Run, run_rows
from sweep.runs.table import QUALITIES, Row, published_rows
from sweep.validation.figures import as_objects, by_release, figures, rankings
from tests.offline.free_text import RUN, row, table
from tests.sweep.commands import sweep


@pytest.fixture
def simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published runs, simulated for the first command that needs them."""
    monkeypatch.setattr(validate_command, "published_rows", published)
    monkeypatch.setattr(validate_command, "run_rows", lambda rows: runs_of(frozenset(row.where for row in rows)))


@cache
def published() -> list[Row]:
    """The published rows, read once."""
    return published_rows()


@cache
def runs_of(places: frozenset[str]) -> list[Run]:
    return run_rows([row for row in published() if row.where in places])


def all_runs() -> list[Run]:
    return runs_of(frozenset(row.where for row in published()))


@pytest.mark.usefixtures("simulated_once")
def test_the_published_runs_are_as_near_as_recorded() -> None:
    """The whole table; the three runs of tr11 that did not fit are called, and no run is lost."""
    done = sweep("validate", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert worse(figures(all_runs())) == []
    for one in found:
        assert {"set", "hw", "runs", "simulated", "mape", "bias", "spearman", "regret", "memory_mape"} <= set(one)
        assert one["runs"] == one["simulated"] + sum(one["not_simulated"].values())
        assert (one["mape"] is None) == (one["simulated"] == 0)
    assert sum(one["runs"] + sum(one["other_quality"].values()) for one in found) == len(published())
    tr11 = next(one for one in found if one["set"] == "bigscience-tr11-prequel")
    assert (tr11["oom_runs"], tr11["oom_recall"], tr11["oom_precision"]) == (3, 100, 100)
    mpt = [one for one in found if one["set"] == "llm-foundry-mpt"]
    assert [one["oom_called"] for one in mpt] == [0, 0, 0], "each ran: a GPU of 80 GB holds 79.1 GiB, not 80e9 bytes"


def test_the_table_of_the_leaderboard_is_what_is_printed() -> None:
    """To half a point: `make validation` writes it, and some runs of a stack may move by less."""
    printed = cells(leaderboard_table(leaderboard(all_runs())))
    page = tables.read("leaderboard")
    assert [row[:3] for row in printed] == [row[:3] for row in page]
    for now, then in zip(printed, page, strict=True):
        for name in ("MAPE %", "memory %"):
            at = printed[0].index(name)
            assert (now[at] == "-") == (then[at] == "-")
            if now is not printed[0] and now[at] != "-":
                assert float(now[at]) == pytest.approx(float(then[at]), abs=0.5), (now, name)


def cells(text: str) -> list[list[str]]:
    """The rows of a table in Markdown, without the line below its heading."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def test_every_published_run_has_source_licence_and_a_known_quality() -> None:
    for given in published():
        assert "@" in given.text("source") or "huggingface.co/" in given.text("source"), given.where
        assert given.text("licence"), given.where
        assert given.text("quality") in QUALITIES


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    """Its figures are told, however bad, with exit code 0; what cannot be simulated has a reason."""
    rows = [
        {},
        {"tp": "4", "iter_ms": "1000"},
        {"hw": "TPUv2", "iter_ms": "10"},
        {"model": "my-model", "layers": "16"},
        {"model": "my-model", "ffn": ""},
        {"framework": "my framework"},
        {"zero": "3"},
        {"mbs": ""},
        {"iter_ms": ""},
        {"quality": "erratic"},
    ]
    done = sweep("validate", table(tmp_path / "mine.csv", rows), "--format", "json")
    assert done.returncode == 0, done.stderr
    h100, tpu = json.loads(done.stdout)
    assert tpu["not_simulated"] == {"no preset of device TPUv2": 1}
    assert tpu["mape"] is None
    assert (h100["runs"], h100["other_quality"]) == (8, {"erratic": 1})
    assert {"not stated: ffn", "micro-batch or batch not stated", "time not stated"} <= set(h100["not_simulated"])
    text = sweep("validate", tmp_path / "mine.csv", "--rows").stdout
    assert "1 of my framework as megatron-core" in text


def test_only_ok_is_scored_and_the_others_are_reported(tmp_path: Path) -> None:
    """Three qualities, one of which is put together and not simulated; as lines, as objects by quality, and run by run."""
    rows = [{"id": "7"}, {"quality": "sleep", "iter_ms": "4000"}, {"quality": "composed"}, {"hw": "TPUv2", "release": "26.04"}]
    path = table(tmp_path / "mine.csv", rows)
    text = sweep("validate", path).stdout
    assert text.startswith("1 of 2 sound runs are simulated")
    assert "| sleep | 1 | 1 |" in text
    assert "| composed | 1 | 0 | - | - | put together from profiles of single layers, not measured |" in text
    by_quality = {one["quality"]: one for one in json.loads(sweep("validate", path, "--json", "--by", "quality").stdout)}
    assert (by_quality["ok"]["runs"], by_quality["ok"]["simulated"], by_quality["ok"]["measured_s"]) == (2, 1, 2.0)
    assert by_quality["sleep"]["mape"] == pytest.approx(abs(by_quality["ok"]["predicted_s"] / 4 - 1) * 100, abs=1e-3)
    of_h100 = next(one for one in json.loads(sweep("validate", path, "--json").stdout) if one["hw"] == RUN["hw"])
    assert of_h100["classes"]["sleep"]["mape"] == by_quality["sleep"]["mape"]
    assert of_h100["classes"]["composed"]["simulated"] == 0
    of_runs = json.loads(sweep("validate", path, "--json", "--rows").stdout)
    assert [one["quality"] for one in of_runs] == ["ok", "sleep", "composed", "ok"]
    assert [one["scored"] for one in of_runs] == [True, False, False, False]
    assert (of_runs[0]["id"], of_runs[0]["measured_s"], of_runs[1]["measured_s"]) == ("7", 2.0, 4.0)
    assert of_runs[0]["predicted_s"] == of_runs[1]["predicted_s"] == pytest.approx(by_quality["ok"]["predicted_s"], abs=1e-3)
    assert of_runs[0]["plan"] == {"gpus": 8, "tp": 2, "pp": 1, "mbs": 1}
    assert (of_runs[2]["reason"], of_runs[3]["reason"]) == ("quality composed", "no preset of device TPUv2")
    assert of_runs[3]["release"] == "26.04"
    assert of_runs[3]["predicted_s"] is None
    assert "--rows: found beside --by" in sweep("validate", path, "--by", "quality", "--rows").stderr


def test_figures_by_release_tell_experts_from_others() -> None:
    """Predicted 2 s: measured in 1, 4 and 2.5 s."""
    stated = [{"release": "26.04"}, {"release": "26.04", "experts": "8"}, {"release": "26.02"}, {}]
    times = ("1000", "4000", "2500", "2000")
    runs = [Run(row(iter_ms=ms, **given), 2.0) for ms, given in zip(times, stated, strict=True)]
    older, newer = by_release(runs)
    assert (older.set, newer.set) == ("26.02", "26.04")
    assert (newer.mape_dense, newer.bias_experts, newer.runs_dense, newer.runs_experts) == (100, -50, 1, 1)
    assert older.bias_dense == pytest.approx(-20)


def test_the_tables_that_ship() -> None:
    """Cells that all runs of a grid share and annotations are part of the rows."""
    rows = {one.text("id"): one for one in published()}
    assert len(rows) == len(published()), "each run has a number of its own"
    grid = [one for one in rows.values() if one.text("set") == "ultrascale"]
    assert len(grid) == 1127 + 503
    assert sum(one.quality == "ok" for one in grid) == 839
    assert sum(one.out_of_memory for one in grid) == 286
    first = rows["90001"]
    assert (first.text("framework"), first.model.sequence, first.number("step_time_s"), first.text("licence")) == (
        "nanotron", 4096, 3.26456, "Apache-2.0",
    )  # fmt: skip
    assert rows["2609"].text("release") == "26.04.01"
    assert (rows["100110"].text("dispatcher_library"), rows["100110"].plan["dispatcher"]) == ("hybridep", "flex")


def ran(tp: int, measured_s: float, predicted_s: float) -> Run:
    return Run(row(tp=str(tp), iter_ms=str(measured_s * 1e3)), predicted_s)


def test_rankings_by_hand() -> None:
    """Four plans; we pick the third best. Ranks 1 2 3 4 against 2 3 1 4: 1 - 6 * 6 / (4 * 15) = 0.4; 4 of 6 pairs are right."""
    (found,) = rankings([ran(1, 1.0, 2.0), ran(2, 2.0, 3.0), ran(4, 3.0, 1.0), ran(8, 4.0, 9.0)])
    assert found.spearman is not None
    assert math.isclose(found.spearman, 0.4)
    assert (found.right, found.pairs) == (4, 6)
    assert math.isclose(found.regret, 200.0)


def test_of_plans_that_tie_any_may_be_picked() -> None:
    """Two of three are predicted to be the fastest: one is, the other takes twice as long."""
    (found,) = rankings([ran(1, 1.0, 1.0), ran(2, 2.0, 1.0), ran(4, 3.0, 5.0)])
    assert math.isclose(found.regret, 50.0)
    (four,) = rankings([ran(1, 1.0, 1.1), ran(2, 2.0, 1.0), ran(4, 3.0, 5.0), ran(8, 4.0, 4.0)])
    assert four.fastest == pytest.approx((10.0,))


def test_a_plan_measured_twice_is_one_plan() -> None:
    (found,) = rankings([ran(1, 1.0, 1.0), ran(1, 3.0, 1.0), ran(2, 3.0, 2.0)])
    assert (found.pairs, found.spearman, found.regret) == (1, None, 0.0)


def test_worse_figures_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = figures(run_rows([row(), row(tp="4", iter_ms="1000")]))
    path = tmp_path / "recorded.json"
    monkeypatch.setattr(recorded_figures, "RECORDED", path)
    path.write_text(json.dumps(as_objects(now)))
    assert worse(now) == []
    recorded = json.loads(path.read_text())
    recorded[0]["mape"] -= 0.6
    path.write_text(json.dumps(recorded))
    (line,) = worse(now)
    assert "mape" in line
    recorded[0] |= {"mape": now[0].mape, "oom_precision": 0.0}
    path.write_text(json.dumps(recorded))
    assert worse(now) == [], "a run was called out of memory once, and none is now"
    recorded[0]["simulated"] = 3
    path.write_text(json.dumps(recorded))
    assert worse(now) == ["mine, H100-80GB-SXM: simulated 2, recorded 3"]


HEAD = "set,model,stack,hardware,all_gpus,micro_batch,step_time_s"
NEEDED = "set, model, stack, hardware, all_gpus, micro_batch, step_time_s"
ROW = "a,llama3-8b,nemo,H100-SXM"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"1: empty file: expected a heading with at least {NEEDED}"),
        ("\n\n", f"1: empty file: expected a heading with at least {NEEDED}"),
        (HEAD, "1: no runs: expected a row a run below the heading"),
        ("set,model\na,b", "1: column stack: found 'set, model', expected it in the heading"),
        (HEAD + ",precison\na", "1: column: found 'precison', expected precision"),
        (HEAD + ",stack\na", "1: column 'stack': found it twice, expected each name once"),
        (f"{HEAD}\n{ROW},1,1", "2: cells: found 6, expected 7 as in the heading"),
        (f"{HEAD}\n{ROW},x,1,1", "2: all_gpus: found 'x', expected a whole number from 1 to"),
        (f"{HEAD}\n{ROW},,1,1", "2: all_gpus: found '', expected a number"),
        (f"{HEAD}\n{ROW},8,1,-5", "2: step_time_s: found '-5', expected a number above 0 and up to 1e+15"),
        (f"{HEAD}\n{ROW},8,1,nan", "2: step_time_s: found 'nan', expected a number above 0 and up to 1e+15"),
        (f"{HEAD},precision\n{ROW},8,1,5,fp7", "2: precision: found 'fp7', expected one of bf16"),
        (f"{HEAD},overlap_tp\n{ROW},8,1,5,1", "2: overlap_tp: found '1', expected true or false"),
        (f"{HEAD},state\n{ROW},8,1,5,good", "2: state: found 'good', expected one of ok, oom"),
        (f"{HEAD},quality\n{ROW},8,1,5,good", f"2: quality: found 'good', expected one of {', '.join(QUALITIES)}"),
        (f"{HEAD}\na,{{preset: x,nemo,H100-SXM,8,1,5", "2: model: found '{preset: x', expected a name or a mapping"),
        (HEAD + '\n"a,b', "2: not a CSV row: found unexpected end of data"),
        (HEAD + "\na\0,b", "2: not text: found a null byte, expected a CSV table"),
        ("set,framework,hw,gpus,dtype,model,iter_ms\n", "1: heading: found columns in free text"),
    ],
)  # fmt: skip
def test_a_broken_table_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    done = sweep("validate", path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"error: {path}:{message}")


def test_a_binary_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(HEAD.encode() + b"\n\xff\xfe")
    assert sweep("validate", path).stderr == f"error: {path}:2: not UTF-8: found byte 0xff, expected a CSV table\n"


def test_unusable_requests_are_refused() -> None:
    assert "valid: automodel, bigscience-1b3" in sweep("validate", "--set", "nothing").stderr


NANOTRON = {
    "framework": "nanotron", "model": "llama-small", "layers": "16", "hidden": "2048", "heads": "32", "kv_heads": "32",
    "ffn": "8192", "vocab": "131072", "seq": "4096", "dtype": "bf16", "hw": "H100-80GB-SXM", "gpus": "8", "tp": "1", "pp": "4",
    "dp": "2", "mbs": "1", "gbs": "32", "zero": "1", "interconnect": "NVSwitch; 3200 Gb/s per node (EFA, AWS p5)",
}  # fmt: skip


def test_a_run_that_failed_is_called_by_its_structure_or_its_memory() -> None:
    failed = {"quality": "failed", "iter_ms": "", "notes": "did not finish: memory or unknown"}
    runs = run_rows(
        [
            row(**NANOTRON, **failed),
            row(**NANOTRON | {"mbs": "8", "tp": "1", "pp": "1", "dp": "8", "gbs": "64"}, **failed),
            row(**NANOTRON | {"pp": "8", "dp": "1", "gbs": "4"}, **failed),
            row(**NANOTRON | {"gpus": "16", "pp": "16", "dp": "1"}, **failed),
            row(**NANOTRON, **failed | {"notes": "did not finish: inconsistent"}),
            row(**NANOTRON, quality="sleep"),
        ]
    )
    assert [run.reason or run.fits for run in runs] == [
        True,
        False,
        "plan: fewer_microbatches_than_stages",
        "plan: stage_without_layers",
        "did not finish: inconsistent",
        True,
    ]
    of_failed = figures(runs)
    assert (of_failed[0].runs, of_failed[0].mape) == (0, None)
    assert of_failed[0].failed["runs"] == of_failed[0].failed["out of memory"] == 1
    assert (of_failed[0].oom_runs, of_failed[0].oom_recall, of_failed[0].oom_precision) == (2, 50, 100)
    named = [{"notes": "did not finish: empty stage"}, {"notes": "did not finish: micro-batches < pp-1"}]
    structural = figures(
        run_rows(
            [
                row(**NANOTRON | {"gpus": "16", "pp": "16", "dp": "1"}, **failed | named[0]),
                row(**NANOTRON, **failed | named[0]),
                row(**NANOTRON | {"pp": "8", "dp": "1", "gbs": "4"}, **failed | named[1]),
            ]
        )
    )
    assert (structural[0].structural, structural[0].structural_named, structural[0].oom_runs) == (3, 2, 0)


def test_memory_of_the_first_stage_is_read_where_the_row_says_so() -> None:
    kinds = "peak GPU memory of the first pipeline stage, reserved", "peak GPU memory, reserved"
    wide = NANOTRON | {"pp": "2", "dp": "4", "mbs": "8"}
    first, fullest = run_rows([row(**wide, mem_gib="10", mem_kind=kind) for kind in kinds])
    assert first.peak_bytes < fullest.peak_bytes  # the last stage has the logits


def test_rows_together_are_as_each_alone() -> None:
    rows = [
        row(**NANOTRON | changes)
        for changes in ({}, {"tp": "2", "dp": "1"}, {"pp": "2", "dp": "4", "mbs": "2"}, {"gpus": "16", "dp": "4"})
    ]
    assert run_rows(rows) == [run_rows([one])[0] for one in rows]
