"""The nightly file: every fault is one line with file, line, key and value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sim_core import SpecError
from sweep.nightly.spec import NightlySpec, Thresholds, load_nightly

GOOD: dict[str, Any] = {"name": "n", "sweeps": ["a.yaml"], "root": "r"}


def write(path: Path, **changes: Any) -> Path:
    document = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def test_what_is_not_given_has_its_default(tmp_path: Path) -> None:
    spec = load_nightly(write(tmp_path / "n.yaml"))
    assert spec == NightlySpec.model_validate(GOOD)
    assert (spec.executor, spec.baseline, spec.keep.nights, spec.notify) == ("local", "previous", None, ())
    assert (spec.thresholds.best, spec.thresholds.infeasible, spec.thresholds.champion_rank) == (0.01, 0, None)


def test_short_forms(tmp_path: Path) -> None:
    given = write(
        tmp_path / "n.yaml",
        sweeps=["x/a.yaml", {"spec": "a.yaml", "name": "again", "set": "axes.tp=[1]"}],
        notify={"command": ["true"], "timeout": "2.5 s"},
        thresholds={"best": "2.5 %", "median_step": None},
    )
    spec = load_nightly(given, ["keep.nights=3", "root=s3://bucket/x"])
    assert [(entry.label, entry.set) for entry in spec.sweeps] == [("a", ()), ("again", ("axes.tp=[1]",))]
    assert (spec.notify[0].timeout, spec.keep.nights, spec.root) == (2.5, 3, "s3://bucket/x")
    assert (spec.thresholds.best, spec.thresholds.median_step) == (0.025, None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"root": None}, ": root: missing"),
        ({"sweeps": []}, ":2: sweeps: found '[]', "),
        ({"sweep": ["a.yaml"]}, ":5: sweep: unknown key, nearest valid: sweeps"),
        ({"sweeps": [{"spec": "a.yaml", "sett": "x"}]}, ":4: sweeps.0.sett: unknown key, nearest valid: set"),
        ({"sweeps": ["a.yaml", "b/a.yaml"]}, ": sweeps: two are named 'a'; give one of them another `name:`"),
        ({"sweeps": ["my sweep.yaml"]}, ": sweeps.0: name: found 'my sweep', expected letters, digits and _.-, up to 64"),
        ({"name": "a/b"}, ":1: name: found 'a/b', "),
        ({"executor": "slurm"}, ":5: executor: found 'slurm', expected 'local' or 'ray'"),
        ({"keep": {"nights": 0}}, ":6: keep.nights: found '0', expected a number of at least 1"),
        ({"keep": {"night": 3}}, ":6: keep.night: unknown key, nearest valid: nights"),
        ({"thresholds": {"best": 1}}, ":6: thresholds.best: found '1', expected a fraction, such as '1 %' or 0.01"),
        ({"thresholds": {"best": "-1 %"}}, ":6: thresholds.best: found '-1 %', expected a fraction"),
        ({"thresholds": {"best": True}}, ":6: thresholds.best: found 'True', expected a fraction"),
        ({"thresholds": {"best": float("nan")}}, ":6: thresholds.best: found '.nan', expected a fraction"),
        ({"notify": {"when": "always"}}, ": notify.0: webhook, command: give exactly one of them"),
        ({"notify": {"webhook": "ftp://x"}}, "webhook: found another address, expected http(s)://..., or $NAME"),
        ({"notify": {"command": []}}, "notify.0.command: found '[]', "),
        ({"notify": {"command": ["x"], "timeout": 5}}, "timeout: found '5', expected seconds with their unit, such as '10 s'"),
        ({"notify": [{"webhok": "http://x"}]}, "notify.0.webhok: unknown key, nearest valid: webhook"),
    ],
)
def test_faults_are_one_line(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = write(tmp_path / "n.yaml", **changes)
    with pytest.raises(SpecError) as caught:
        load_nightly(path)
    assert str(caught.value).startswith(f"{path}:")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "n.yaml").write_text("")
    with pytest.raises(SpecError, match="the file is empty, expected keys such as name, sweeps, root"):
        load_nightly(tmp_path / "n.yaml")


def test_thresholds_are_parts() -> None:
    assert Thresholds.model_validate({"best": "0 %"}).best == 0.0
