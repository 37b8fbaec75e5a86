"""`sweep report`: its numbers are those of the result; a browser draws every chart, filters, and nothing overflows."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import duckdb
import pytest

from sim_core import PARTS, FormatError, short
from sweep.report.content import content_of
from sweep.report.page import report_page
from tests.sweep.commands import sweep
from tests.sweep.conftest import spec_in
from tests.sweep.show.test_page import CHROMIUM, Outline

CHARTS = ("ranking", "trade-offs", "parallel", "breakdown", "heat", "reasons")
NAME = "a </script><script>alert(1)</script>"
PROBE = """<script>
const chip = document.querySelector("#filters button"), rows = () => document.querySelectorAll("#ranking tr").length;
const told = document.getElementById("shown").textContent;
const plans = () => [...document.querySelectorAll("#ranking tr.plan")].map(row => Number(row.dataset.plan));
const best = plans();
for (const turn of [1, 2]) document.querySelector("th[data-sort=plan]").click();
const sorted = plans();
document.getElementById("unsort").click();
document.querySelector("#ranking tr.plan").click();
const detail = document.querySelector(".beside").textContent;
const values = [...document.querySelectorAll("#filters .filter")].map(row => row.querySelectorAll("button").length);
chip.click();
const none = [...document.querySelectorAll("#filters button")].filter(one => one.disabled).length;
const after = document.getElementById("shown").textContent;
const inside = node => node.closest(".scroll") || node.getBoundingClientRect().right <= innerWidth + 1;
const wide = [...document.querySelectorAll("body *")].filter(node => !inside(node));
const scrolled = [...document.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth);
const beyond = text => {
  const own = text.getBoundingClientRect(), all = text.ownerSVGElement.getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1;
};
const cut = [...document.querySelectorAll("svg text")].filter(beyond).map(text => text.textContent);
document.body.dataset.probe = JSON.stringify({
  cut, best, sorted, detail, values, none, back: getComputedStyle(document.body).backgroundColor,
  told, after, pressed: chip.getAttribute("aria-pressed"), rows: rows(), errors: window.errors, width: innerWidth,
  overflow: document.documentElement.scrollWidth - innerWidth, scrolled: scrolled.map(box => box.innerText),
  wide: wide.map(node => node.tagName + "#" + node.id).slice(0, 5),
  drawn: [...document.querySelectorAll("[data-drawn]")].map(node => node.id || node.dataset.drawn),
  points: document.querySelectorAll("#trade-offs .point").length,
  front: document.querySelectorAll("#trade-offs .on-front").length,
});
</script>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("report")
    path = spec_in(place, per=["all_gpus"], budget={"tokens": "1T", "usd_per_gpu_hour": 2.5})
    assert sweep("run", path, "--out", place / "out", "--workers", 0, "--top", 0).returncode == 0
    return place / "out"


@pytest.fixture(scope="module")
def content(folder: Path) -> dict[str, Any]:
    return content_of(folder)


def _query(folder: Path, query: str) -> list[tuple[Any, ...]]:
    return duckdb.connect().execute(query.replace("RESULTS", f"'{folder}/part-*.parquet'")).fetchall()


def test_counts_and_best_values_are_those_of_the_result(folder: Path, content: dict[str, Any]) -> None:
    total, ran = _query(folder, "SELECT count(*), count(*) FILTER (status = 'ok') FROM RESULTS")[0]
    assert (content["rows_total"], content["ran"]) == (total, ran)
    for one in content["sensitivity"]:
        name = one["axis"]
        found = _query(
            folder,
            f"SELECT {name}, min(gpu_s_per_sample), count(*) FILTER (status = 'ok'), count(*) FROM RESULTS "
            "GROUP BY 1 ORDER BY 1",
        )
        assert [row[2] for row in found] == one["ran"], name
        assert [row[3] for row in found] == one["all"], name
        assert [row[1] for row in found] == pytest.approx(one["best"], rel=1e-4), name
    reasons = dict(_query(folder, "SELECT reason, count(*) FROM RESULTS WHERE reason <> '' GROUP BY 1"))
    assert {one["reason"]: one["n"] for one in content["reasons"] if one["reason"] != "ok"} == reasons


def test_a_cell_of_the_heat_map_is_the_best_of_its_plans(folder: Path, content: dict[str, Any]) -> None:
    axes = {axis["name"]: axis["values"] for axis in content["axes"]}
    cells = content["heat"]["tp|pp"]
    for i, tp in enumerate(axes["tp"]):
        for j, pp in enumerate(axes["pp"]):
            best = _query(folder, f"SELECT min(gpu_s_per_sample) FROM RESULTS WHERE tp = {tp} AND pp = {pp}")[0][0]
            assert cells[i * len(axes["pp"]) + j] == (None if best is None else pytest.approx(best, rel=1e-4))


def test_the_front_is_what_no_plan_beats(folder: Path, content: dict[str, Any]) -> None:
    one = next(each for each in content["density"] if each["x"] == "all_gpus")
    assert sum(cell[2] for cell in one["cells"]) == content["ran"]
    worse = _query(folder, "SELECT all_gpus, min(step_time_s) FROM RESULTS WHERE status = 'ok' GROUP BY 1 ORDER BY 1")
    least, expected = float("inf"), []
    for gpus, step_s in worse:
        if step_s < least:
            expected.append((gpus, step_s))
            least = step_s
    assert [(x, y) for _, x, y in one["front"]] == [(gpus, pytest.approx(step_s, rel=1e-4)) for gpus, step_s in expected]


def test_every_group_has_its_best_plans(folder: Path, content: dict[str, Any]) -> None:
    rows = content["rows"]
    assert 0.9 * 3000 <= len(rows["plan"]) <= 3000
    best = dict(_query(folder, "SELECT all_gpus, arg_min(plan, gpu_s_per_sample) FROM RESULTS WHERE status = 'ok' GROUP BY 1"))
    assert set(best.values()) <= set(rows["plan"])
    for k in range(0, len(rows["plan"]), 97):
        parts = sum(rows[part][k] for part in PARTS)
        assert parts == pytest.approx(rows["step_time_s"][k], rel=1e-4)


def test_the_head_says_job_winner_and_interval(folder: Path, content: dict[str, Any]) -> None:
    rows = json.loads(sweep("rank", folder, "--format", "json", "--columns", "all").stdout)
    page = Outline(report_page(content)).text
    for row, winner in zip(rows, content["head"]["winners"], strict=False):
        assert winner["plan"] == row["plan"]
        assert winner["name"] == f"Best plan of gpus {row['all_gpus']}: plan"
        assert short(row["step_time_s"], "s") in winner["told"]
        assert row["step_time_low_s"] is None or f"90%: {short(row['step_time_low_s'], 's')} to" in winner["told"]
        assert f"sweep export {folder} --plan {row['plan']}" in page
        assert all(line in page for line in winner["words"])
    assert content["head"]["heading"] == "small on 64 to 512 H100-SXM"
    assert "H100-SXM" in page.partition("Ranking")[0]


def test_measured_plans_have_both_numbers(folder: Path, tmp_path: Path) -> None:
    plan, slow = _query(folder, "SELECT plan, step_time_s FROM RESULTS WHERE status = 'ok' ORDER BY step_time_s DESC")[0]
    full = _query(folder, "SELECT plan FROM RESULTS WHERE status <> 'ok' LIMIT 1")[0][0]
    table = tmp_path / "tune.csv"
    table.write_text(f"plan,state,step_time_s,peak_memory_gib\n{plan},ok,{1.25 * slow},40\n{full},oom,,\n")
    content = content_of(folder, table)
    assert [(run["plan"], run["state"]) for run in content["measured"]] == [(plan, "ok"), (full, "oom")]
    assert content["rows"]["measured_s"][content["rows"]["plan"].index(plan)] == pytest.approx(1.25 * slow)
    text = Outline(report_page(content)).text
    assert short(1.25 * slow, "s") in text
    assert "1.250" in text
    table.write_text("plan,step_time_s\nx,1\n")
    with pytest.raises(FormatError, match=r"tune.csv:2: plan: found 'x'"):
        content_of(folder, table)


def test_nothing_comes_from_elsewhere(content: dict[str, Any]) -> None:
    head = content["head"] | {"title": NAME, "heading": NAME}
    page = report_page(content | {"head": head})
    outline = Outline(page)
    assert outline.loads == []
    assert outline.text.count(NAME) == 2
    assert len(outline.scripts) == 3, "data, charts, report"
    assert len(page) < 3_000_000


def test_it_says_what_rank_says_of_errors(folder: Path, content: dict[str, Any]) -> None:
    told = sweep("rank", folder, "-v").stdout.splitlines()
    assert content["error"] == [line for line in told if line.startswith(("error bars: ", "ties: "))]
    assert all(html.escape(line) in report_page(content) for line in content["error"])


def test_the_command_writes_the_page(folder: Path, tmp_path: Path) -> None:
    told = sweep("report", folder, "-o", tmp_path / "r.html")
    assert told.returncode == 0, told.stderr
    assert re.fullmatch(rf"{tmp_path}/r.html: 11,520 plans of {folder}, [0-9.]+ [kM]B\n", told.stdout)
    told = sweep("report", tmp_path, "-o", tmp_path / "r.html")
    assert (told.returncode, told.stderr) == (1, f"error: {tmp_path}: holds no results of a sweep\n")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_browser_draws_it_and_filters(content: dict[str, Any], tmp_path: Path, width: int, dark: bool) -> None:
    errors = "<script>window.errors = []; addEventListener('error', event => errors.push(event.message));</script>"
    page = report_page(content).replace("<style>", f"{errors}<style>", 1).replace("</body>", f"{PROBE}</body>")
    inner = tmp_path / "page.html"
    inner.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         f"--blink-settings=preferredColorScheme={int(not dark)}", f"--window-size={width},900",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", "--dump-dom",
         inner.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'data-probe="([^"]+)"', done.stdout)
    assert found, done.stdout[-2000:]
    probe = json.loads(found[1].replace("&quot;", '"'))
    assert probe["errors"] == []
    assert probe["overflow"] <= 0, probe
    assert probe["wide"] == [], probe
    assert probe["cut"] == [], "labels of charts"
    assert probe["scrolled"] == [], "columns of tables"
    assert set(CHARTS) - {"ranking"} <= set(probe["drawn"])
    assert probe["drawn"].count("bars") == len(content["sensitivity"])
    assert probe["told"] != probe["after"], "a filter chooses"
    assert probe["pressed"] == "true"
    assert probe["back"] == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")
    assert probe["best"] == content["rows"]["plan"][:20]
    assert probe["sorted"] == sorted(probe["best"], reverse=True), "the best stay the best"
    assert f"sweep explain {content['place']} {probe['best'][0]}" in probe["detail"]
    assert "step " in probe["detail"]
    names = {name: set(content["rows"][name]) for name in (axis["name"] for axis in content["axes"])}
    several = [name for name, codes in names.items() if len(codes) > 1]
    assert probe["values"] == [len(names[name]) for name in several]
    match = [k for k, code in enumerate(content["rows"][several[0]]) if code == min(names[several[0]])]
    left = {name: {content["rows"][name][k] for k in match} for name in several[1:]}
    assert probe["none"] == sum(len(names[name] - left[name]) for name in several[1:]), (
        "values that no plan has beside the chosen one"
    )
    assert probe["rows"] > 10
    assert probe["points"] > 10
    assert probe["front"] >= 1
