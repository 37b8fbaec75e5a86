"""The HTML page: nothing in it comes from elsewhere, names are shown as they are, and a browser draws it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sweep.answers.section import Section
from sweep.compare.report import paged
from sweep.compare.result import Point
from sweep.show import sections

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NIGHTS = tuple(
    Point(
        label=f"2026-11-{k + 1:02d} 02:30",
        feasible=100 - k,
        best_step_s={"gpus 64": 1.0 + k / 10, "gpus </script>128": None if k == 3 else 0.5},
        champion_rank={"gpus 64": None if k == 0 else 1 + 7 * (k == 5)},
    )
    for k in range(8)
)


@pytest.fixture(scope="module")
def page() -> str:
    table = (("name", "value"), ("</script><script>alert(1)</script>", "a & b"))
    parts = (Section(heading="first <i>", lines=("one </script>",), table=table), Section(heading="second"))
    return sections.page("title <x>", [paged(parts, NIGHTS), paged(parts, ())], lead=["lead"])


class Outline(HTMLParser):
    """Attributes that load something, the figures, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.loads += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "srcset", "data", "action")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.text += data


def test_nothing_comes_from_elsewhere(page: str) -> None:
    outline = Outline(page)
    assert outline.loads == []
    assert "@import" not in page.partition("</style>")[0]
    assert len(outline.scripts) == 3, "the figures, the charts, the call"
    assert len(page) < 60_000


def test_names_are_shown_as_they_are(page: str) -> None:
    text = Outline(page).text
    for shown in ("title <x>", "first <i>", "one </script>", "</script><script>alert(1)</script>", "a & b"):
        assert shown in text


def test_the_figures_are_the_nights(page: str) -> None:
    figures = json.loads(Outline(page).scripts[0])
    assert len(figures) == 3
    best, rank, feasible = figures
    assert [line["name"] for line in best["series"]] == ["gpus 64", "gpus </script>128"]
    assert best["series"][1]["values"] == [0.5, 0.5, 0.5, None, 0.5, 0.5, 0.5, 0.5]
    assert rank["series"][0]["values"] == [None, 1, 1, 1, 1, 8, 1, 1]
    assert feasible["values"] == [point.feasible for point in NIGHTS]
    assert len(set(re.findall(r'id="(plot\d+)"', page))) == 3


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_draws_it_without_network(page: str, tmp_path: Path) -> None:
    """Without network the plots are still there, and no script inside a name has run."""
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    drawn = done.stdout
    assert drawn.count("<svg") == drawn.count("data-drawn=") == 3
    assert drawn.count('data-drawn="lines"') == 2
    assert drawn.count('class="bar"') == len(NIGHTS)
    assert drawn.count('class="line"') == 3
    assert "gpus 64" in drawn
