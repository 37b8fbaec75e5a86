"""An axis of plans costs a row and a formula: the recipe in docs/recipes.md, followed in a copy of the sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from docs.made import plan_fields
from sim_core.planning.fields import FIELDS
from tests.conftest import GPT7B, ROOT
from tests.test_recipes import HALF_WRITTEN

OTHER_ROWS = """
    Field("tile", "number", "rows of a tile", default=128, least=16, most=1024, moves_split=True),
    Field("cooling", "word", "how the GPUs are cooled", default="air", words=("air", "water"), unusual=True, costs_layer=True),
    Field("jitters", "switch", "kernels vary", default=False, unusual=True, orders_blocks=True),
    Field("lossy", "ratio", "part of the messages that is lost", default=0.0, least=0),
"""
"""Rows of the other kinds that a user sets; nothing reads them."""
ASK = """
import json
from pathlib import Path
import numpy as np
import sim_core
from sim_core.planning.columns import ORDER_COLUMNS, SPLIT_COLUMNS
from sim_core.planning.keys import layer_columns
from sweep.columns import result_schema
from sweep.evaluation.preparation import prepare
from sweep.spec.spec import load_spec

def told(*sets):
    try:
        prepared = prepare(load_spec(Path("s.yaml"), sets), Path("."))
        return {column.name: str(column.type) for column in result_schema(prepared.sweep.space)}
    except sim_core.SimError as error:
        return str(error)

def refused(**given):
    try:
        return bool(sim_core.plans(workload, **given))
    except sim_core.SimError as error:
        return str(error)

workload, _ = sim_core.read_workload(Path("workload.txt"), sim_core.Facts(micro_batch=1, sequence=2048))
both = {"clock": [1.0, 1.5], "tile": [64, 128], "cooling": ["air", "water"], "fidelity": [0, 1]}
keys = {}
for name in ("clock", "tile", "cooling"):
    two = sim_core.plans(workload, **{name: both[name]})
    keys[name] = len(np.unique(np.stack(layer_columns(two, np.arange(2)), axis=1), axis=0))
hardware = sim_core.hardware_table([sim_core.read_hardware("H100-SXM")], None)
simai = sim_core.plans(workload, fidelity="simai", overlap_pp=False, clock=[1.0, 1.5], cooling=["air", "water"])
print(json.dumps({
    "keys": keys,
    "order": ORDER_COLUMNS, "split": SPLIT_COLUMNS,
    "reasons": [sim_core.REASONS[code] for code in sim_core.legality(workload, hardware, simai)[0]],
    "explanation": sim_core.EXPLANATIONS["not_in_simai"],
    "schemas": [told(), told("axes.cooling=[air,water]", "fixed.jitters=true")],
    "faults": [told("axes.clock=[3]"), told("axes.clok=[1]"), told("fixed.cooling=oil"), told("fixed.tile=8"),
               told("fixed.jitters=2"), told("fixed.lossy=1.5")],
    "refused": [refused(clock=0.1), refused(cooling="oil"), refused(tile=2048), refused(clok=1)],
}))
"""
SPEC = """
name: clocks
workload: {path: workload.txt, micro_batch: 1, sequence: 2048}
hardware: H100-SXM
axes: {clock: [0.5, 1.0, 2.0]}
fixed: {tp: 4, pp: 1, vpp: 1, all_gpus: 8, ga: 1, micro_batch: 1}
"""


def python(folder: Path, *arguments: str) -> str:
    """What Python prints in the copy; kernels as plain Python."""
    env = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the axis of the recipe, and with rows of the other kinds."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("sim_core", "sweep"):
        shutil.copytree(ROOT / name, folder / name, ignore=HALF_WRITTEN)
    for name in ("docs/made/plan_fields.py", "docs/axes.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    recipe = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").partition("**An axis of plans")[2]
    row, formula = (textwrap.dedent(code) for code in re.findall(r" *```text\n(.*?) *```", recipe, re.DOTALL)[:2])
    replace(folder / "sim_core/planning/fields.py", r"_ROWS = \(\n", "\\g<0>" + row + OTHER_ROWS)
    replace(folder / "sim_core/costing/case.py", r"(def compute_factor.*?\n    )return .*?\n", "\\g<1>" + formula)
    python(folder, "-m", "docs.made.plan_fields")
    shutil.copy(GPT7B, folder / "workload.txt")
    (folder / "s.yaml").write_text(SPEC, encoding="utf-8")
    return folder


def replace(path: Path, pattern: str, by: str) -> None:
    text, times = re.subn(pattern, by, path.read_text(encoding="utf-8"), count=1, flags=re.DOTALL)
    assert times == 1, path
    path.write_text(text, encoding="utf-8")


def test_keys_of_orders_and_splits_are_whole_numbers() -> None:
    """A table of whole numbers holds them (`_kinds` in planning/split.py, costing/stage_activations.py)."""
    assert [field.name for field in FIELDS.values() if field.is_real and (field.orders_blocks or field.moves_split)] == []


def test_what_is_made_from_the_rows_is_current() -> None:
    assert plan_fields.columns_file() == plan_fields.COLUMNS.read_text(encoding="utf-8"), "make reference"
    assert plan_fields.page() == plan_fields.PAGE.read_text(encoding="utf-8"), "make reference"


def test_the_recipe_gives_an_axis_that_changes_steps(extended: Path) -> None:
    python(extended, "-m", "sweep", "run", "s.yaml", "--out", "out", "--workers", "0")
    rows = pq.read_table(extended / "out").sort_by("clock")
    assert rows["clock"].to_pylist() == [0.5, 1.0, 2.0]
    assert set(rows["status"].to_pylist()) == {"ok"}
    compute_s = rows["compute_forward_s"].to_pylist()
    assert compute_s == pytest.approx([2 * compute_s[1], compute_s[1], compute_s[1] / 2])


def test_all_that_follows_from_a_row(extended: Path) -> None:
    told = json.loads(python(extended, "-c", ASK))
    assert told["keys"] == {"clock": 2, "tile": 1, "cooling": 2}  # rows of the block table of two plans
    assert "jitters" in told["order"]
    assert "tile" in told["split"]
    assert told["reasons"] == ["", "", "not_in_simai", "not_in_simai"]
    assert "clock" in told["explanation"]
    plain, with_others = told["schemas"]
    assert (plain["clock"], plain["tile"], plain["lossy"]) == ("double", "int64", "double")
    assert "cooling" not in plain
    assert "jitters" not in plain
    assert (with_others["cooling"], with_others["jitters"]) == ("dictionary<values=string, indices=int32, ordered=0>", "bool")
    assert told["faults"] == [
        "--set axes.clock=[3]: axes.clock: found '3', expected a number from 0.5 to 2",
        "--set axes.clok=[1]: axes.clok: unknown name, nearest valid: clock",
        "--set fixed.cooling=oil: fixed.cooling: found 'oil', valid: air, water",
        "--set fixed.tile=8: fixed.tile: found '8', expected a whole number from 16 to 1,024",
        "--set fixed.jitters=2: fixed.jitters: found '2', expected true or false",
        "--set fixed.lossy=1.5: fixed.lossy: found '1.5', expected a number from 0 to 1",
    ]
    assert told["refused"] == [
        "plans.clock: found 0.1 in row 0, expected 0.5 to 2",
        "plans: cooling: found 'oil', valid: air, water",
        "plans.tile: found 2048 in row 0, expected 16 to 1,024",
        "plans: unknown name 'clok', nearest valid: clock",
    ]
    table = (extended / "docs" / "axes.md").read_text(encoding="utf-8")
    assert "| `clock` | 0.5 to 2 | `1.0` | clock of the GPUs over the one at which kernels were timed |" in table
    assert "| `cooling` | `air`, `water` | `air` | how the GPUs are cooled |" in table
