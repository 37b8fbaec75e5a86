"""Results of the previous version: ranked, compared, a baseline of a night; not mixed with rows of this version.

`previous/` was made by version 0.1.0 (before the modules of sweep were renamed) with `sweep nightly nightly.yaml`: a spec of
96 plans, the record of one night, its result. Reports and locks are left out, and so is the workload, which is an example.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sim_core import SpecError
from sweep.compare.comparison import compare
from sweep.evaluation.preparation import prepare
from sweep.ranking.ranking import rank
from sweep.report.content import content_of
from sweep.report.page import report_page
from sweep.results.store import Store
from sweep.spec.spec import load_spec
from tests.conftest import GPT7B
from tests.sweep.commands import sweep

NIGHT = "20261121T163516Z-0f1b3b88"
RESULT = "root/results/small-a5d1cdb4"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the previous version, with their workload."""
    shutil.copytree(Path(__file__).parent / "previous", tmp_path / "previous")
    shutil.copy(GPT7B, tmp_path / "previous" / "w.txt")
    return tmp_path / "previous"


def test_it_is_ranked(folder: Path) -> None:
    found = rank(folder / RESULT)
    assert (found.total, found.missing, found.by) == (96, 0, "gpu_s_per_sample")
    assert found.rows["all_gpus"].to_pylist() == [64, 128], "the best plan of each group of its spec"
    assert all(row["step_time_s"] > 0 for row in found.rows.to_pylist())


def test_a_person_can_rank_explain_and_cite_it(folder: Path) -> None:
    """Its rows lack parts of the step that came later."""
    for name in ("rank", "explain", "show", "status"):
        done = sweep(name, folder / RESULT)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip(), name


def test_it_has_a_page(folder: Path) -> None:
    """Without the columns that came later."""
    content = content_of(folder / RESULT)
    assert (content["rows_total"], content["rows_missing"]) == (96, 0)
    for part in ("cp_exposed_s", "launch_s"):
        assert part not in content["rows"]
        assert part not in content["parts"]
    assert "<title>small: " in report_page(content)


def test_it_is_compared_with_a_result_of_this_version(folder: Path, tmp_path: Path) -> None:
    assert sweep("run", folder / "small.yaml", "--workers", 0, "--top", 0, "--out", tmp_path / "new").returncode == 0
    found = compare(folder / RESULT, tmp_path / "new")
    assert (found.matched, found.old_rows, found.new_rows) == (96, 96, 96)
    assert {change.kind for change in found.inputs} <= {"model", "hardware", "default"}, "no spec or file changed"
    assert all(group.old and group.new for group in found.groups)


def test_its_night_is_the_baseline_of_the_next(folder: Path) -> None:
    told = sweep("nightly", folder / "nightly.yaml", "--set", "thresholds={best: null, median_step: null, infeasible: null}")
    assert told.returncode == 0, told.stdout + told.stderr
    (record,) = (path for path in (folder / "root" / "nights").glob("*/night.json") if path.parent.name != NIGHT)
    (done,) = json.loads(record.read_text())["sweeps"]
    assert (done["status"], done["baseline"], done["rows"]) == ("done", NIGHT, 96)


def test_rows_of_another_version_are_not_added_to_it(folder: Path) -> None:
    """One line says what to do. A change of sim_core changes a sweep's identity; here the identity is set by hand."""
    provenance = prepare(load_spec(folder / "small.yaml"), folder).provenance | {"sweep": "other", "model": "other"}
    with pytest.raises(
        SpecError, match="holds results of another version of the simulator; choose another --out, or start over with --fresh"
    ):
        Store(directory=folder / RESULT).check(provenance)
