"""The recipes of docs/recipes.md, followed: their code goes into a copy of the sources, which then does what they say.

The copy runs without compiling, so it is given small plans.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from sweep.columns import COLUMNS, Column
from tests.conftest import GPT7B, ROOT


def blocks(recipe: str) -> list[str]:
    """The blocks of code of a recipe, without their indentation."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = text.split(f"**{recipe}")[1].split("\n**")[0]
    return [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)\s*```", section, re.DOTALL)]


class Copy:
    """A copy of the sources in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sim_core", "sweep", "benchmarks", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def insert(self, file: str, before: str, text: str) -> None:
        """Put text before a line that stands once in a file, indented like it."""
        path = self.folder / file
        source = path.read_text(encoding="utf-8")
        assert source.count(before) == 1, (file, before)
        path.write_text(source.replace(before, f"{text}{before}"), encoding="utf-8")

    def replace(self, file: str, old: str, new: str) -> None:
        """Put other words in the place of some that stand once in a file."""
        self.insert(file, old, new)
        path = self.folder / file
        path.write_text(path.read_text(encoding="utf-8").replace(new + old, new), encoding="utf-8")

    def run(self, *arguments: object) -> str:
        """What Python says with these arguments; a failure shows its errors."""
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


SPEC = f"""
name: small
workload: {{path: {GPT7B}, micro_batch: 1, sequence: 2048}}
hardware: H100-SXM
axes: {{tp: [2, 4], pp: [1, 2]}}
fixed: {{all_gpus: 128, micro_batch: 1, ga: 4, layer_split: balanced}}
objectives: [{{maximize: samples_per_gpu_hour}}]
"""


def test_a_rate_from_its_recipe(copy: Copy) -> None:
    """It is in the schema, ranks best first, is in the report and in the docs, and a search may look for it."""
    row, value = blocks("A rate")
    copy.insert(
        "sweep/columns.py", ')  # fmt: skip\n"""All measures', textwrap.indent(row, "    ").replace("  # fmt: skip", ",\n")
    )
    copy.insert("sweep/evaluation.py", '    flops = values["tokens_per_s_per_gpu"]', textwrap.indent(value, "    ") + "\n")
    (copy.folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    copy.run("-m", "sweep", "run", "spec.yaml", "--out", "result")
    name = "samples_per_gpu_hour"
    rows = json.loads(copy.run("-m", "sweep", "rank", "result", "--by", name, "--format", "json", "--columns", "all"))
    rates = [row[name] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) > 1
    assert rates == [pytest.approx(3600 / row["gpu_s_per_sample"]) for row in rows]
    copy.run("-c", f"from sweep.columns import SHORTER; assert {name!r} in SHORTER")  # so its plans may tie
    copy.run("-m", "sweep", "report", "result", "--output", "report.html")
    assert "samples/GPU-hour" in (copy.folder / "report.html").read_text(encoding="utf-8")
    copy.run("-m", "benchmarks.docs_tables")
    assert f"| `{name}` | 1/h | high | " in (copy.folder / "docs" / "results.md").read_text(encoding="utf-8")
    copy.run("-c", f"from sweep.search.objective import Objective as O; O(column='{name}', descending=True, per=(), best=1)")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"better": None}, "better: found None"),
        ({"better": "higher"}, "better: found 'higher'"),
        ({"with_time": "proportional"}, "column samples_per_s: proportional with time, but high is better"),
    ],
)
def test_a_column_without_a_direction_or_with_the_wrong_one_is_refused(changed: dict[str, object], message: str) -> None:
    said = vars(COLUMNS["samples_per_s"])
    with pytest.raises(ValueError, match=message):
        Column(**said | changed)
    for field in ("better", "with_time", "of", "unit"):
        with pytest.raises(TypeError, match=field):
            Column(**{name: value for name, value in said.items() if name != field})


PIPELINE = """
import numpy as np
from sim_core import METRICS, REASONS, Facts, hardware_table, legality, plans, read_hardware, read_workload, simulate
workload = read_workload({path!r}, Facts(micro_batch=1, sequence=2048))[0]
hardware = hardware_table([read_hardware("H100-SXM")], None)
asked = dict(tp=2, pp=4, all_gpus=64, ga=8, micro_batch=1)
eager = plans(workload, schedule="1f1b-eager", **asked)
assert eager.overlap_pp.tolist() == [1]  # in the background, as its row says
def seconds(of, name):
    return float(simulate(workload, hardware, of).metrics[METRICS.index(name), 0])
def reason(**more):
    return REASONS[legality(workload, hardware, plans(workload, schedule="1f1b-eager", **asked | more))[0][0]]
one_f_one_b = plans(workload, schedule="1f1b", overlap_pp=1, **asked)
print(*(seconds(eager, name) / seconds(one_f_one_b, name) for name in ("step_time_s", "bubble_s")))
print(reason(vpp=3), reason(overlap_pp=0), reason(), sep=";")
"""


def test_a_schedule_from_its_recipe(copy: Copy) -> None:
    """It runs with its own sends, its bubble is its closed form, what it cannot run is refused, and the docs have it."""
    row, order = blocks("A schedule")
    schedules, orders = "sim_core/engine/schedules.py", "sim_core/engine/orders.py"
    copy.replace(schedules, "HALFWAY = range(8)", "HALFWAY, EAGER = range(9)")
    copy.insert(schedules, ')  # fmt: skip\n"""All schedules', textwrap.indent(row, "    ").replace("  # fmt: skip", ",\n"))
    copy.insert(orders, "    if vpp == 1:\n        return min(pp", textwrap.indent(order, "    ") + "\n")
    copy.replace(orders, "    HALFWAY: _fill_halfway,\n", "    HALFWAY: _fill_halfway,\n    EAGER: _fill_whole,\n")
    copy.replace(orders, "    BOTH_WAYS,\n    FORWARDS", "    BOTH_WAYS,\n    EAGER,\n    FORWARDS")
    shutil.copy(ROOT / "tests" / "sim_core" / "test_schedules.py", copy.folder)
    (copy.folder / "tests").mkdir()
    for name in ("__init__.py", "pipelines.py"):
        shutil.copy(ROOT / "tests" / name, copy.folder / "tests")
    closed_form = "test_schedules.py::test_the_closed_form_of_every_row[1f1b-eager]"
    assert "1 passed" in copy.run("-m", "pytest", "-p", "no:cacheprovider", "--noconftest", closed_form)
    told = copy.run("-c", PIPELINE.format(path=str(GPT7B))).splitlines()
    step, bubble = map(float, told[0].split())  # over those of 1F1B
    assert step <= 1 + 1e-9  # messages hide where there are more micro-batches in flight
    assert 0.95 < bubble <= 1 + 1e-9
    assert told[1] == "vpp_needs_1f1b;schedule_needs_overlap_pp;"
    copy.run("-m", "benchmarks.docs_tables")
    table = (copy.folder / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert "| `1f1b-eager` | 1 | any | always in the background |" in table
