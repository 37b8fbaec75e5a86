"""`make bench`: what it prints and keeps, with figures made up; nothing is measured here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench
from benchmarks.calculon_rates import calculon_rows
from benchmarks.measuring import Figure, Rows


def figures(value: float) -> Rows:
    """One figure with a part, and a line."""
    yield Figure("space a", value, "plans/CPU-s", ">= 850", f"{value} plans are legal")
    yield Figure("  positions", 2 * value, "positions/CPU-s")
    yield "no compiler"


def run(monkeypatch: pytest.MonkeyPatch, value: float, *words: str) -> None:
    monkeypatch.setattr(bench, "GROUPS", {"some": lambda: figures(value), "other": lambda: figures(3.0)})
    monkeypatch.setattr("sys.argv", ["bench", *words])
    bench.main()


def test_figures_are_kept_with_the_machine_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = tmp_path / "recorded.json"
    monkeypatch.setattr(bench, "RECORDED", recorded)
    run(monkeypatch, 1000.0, "some", "--record")
    assert "nothing is recorded" in capsys.readouterr().out
    kept = json.loads(recorded.read_text(encoding="utf-8"))
    assert kept["machine"] == bench.machine()
    assert kept["figures"] == {"some: space a": 1000.0, "some: space a  positions": 2000.0}
    run(monkeypatch, 1500.0)  # another note, the same figure
    told = capsys.readouterr().out
    assert "space a 1,500 plans/CPU-s x 1.50 >= 850" in " ".join(told.split())
    assert "no compiler" in told
    assert json.loads(recorded.read_text(encoding="utf-8")) == kept
    run(monkeypatch, 1000.0, "other", "--record")
    assert set(json.loads(recorded.read_text(encoding="utf-8"))["figures"]) == {
        "some: space a",
        "some: space a  positions",
        "other: space a",
        "other: space a  positions",
    }


def test_an_unknown_group(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, 1.0, "sume")
    assert ended.value.code == 2
    assert "unknown group 'sume', expected one of some, other" in capsys.readouterr().err


def test_another_package_of_the_name_is_not_calculon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "calculon").mkdir()
    (tmp_path / "calculon" / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "github.com/calculon-ai/calculon" in str(next(calculon_rows()))
