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

from sim_core.metrics import MEMORY_ROWS, METRICS, check_order
from sweep.columns import COLUMNS, Column
from tests.conftest import GPT7B, ROOT


def blocks(recipe: str) -> list[str]:
    """The blocks of code of a recipe, without their indentation."""
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = text.split(f"**{recipe}")[1].split("\n**")[0]
    return [textwrap.dedent(block) for block in re.findall(r"```python\n(.*?)\s*```", section, re.DOTALL)]


HALF_WRITTEN = shutil.ignore_patterns("*.pyc.*")
"""Bytecode that another process is writing; what is written is copied: to compile 400 modules anew takes a second."""


class Copy:
    """A copy of the sources in which a recipe is followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sim_core", "sweep", "benchmarks", "docs"):
            shutil.copytree(ROOT / name, folder / name, ignore=HALF_WRITTEN)
        (folder / "tests").mkdir(exist_ok=True)
        shutil.copy(ROOT / "tests" / "__init__.py", folder / "tests")

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

    def run(self, *arguments: object, fails: bool = False) -> str:
        """What Python says with these arguments; a failure shows its errors. `fails`: it has to, and what it says then."""
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(self.folder)}
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr if fails else done.stdout

    def say(self, *lines: str | tuple[str, str]) -> list[str]:
        """What each of several lines says, in one process, which takes seconds to start: of `sweep`, or of a page with tables
        that are made from the code (its name and "")."""
        said: list[str] = json.loads(self.run("-c", SAYING, json.dumps(lines)))
        return said


SAYING = """
import io, json, shlex, sys
from contextlib import redirect_stdout
from docs.made import docs_tables
from sweep.cli import app
said = []
for line in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out:
        if isinstance(line, str):
            app(shlex.split(line), standalone_mode=False)
        else:
            print(docs_tables.page(line[0]))
    said.append(out.getvalue())
json.dump(said, sys.stdout)
"""


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
    (copy.folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    without = copy.run("-m", "sweep", "run", "spec.yaml", "--out", "result", fails=True)
    assert "column samples_per_gpu_hour: sweep/columns.py has a row for it, but nothing gives its value" in without
    copy.insert(
        "sweep/evaluation/evaluation.py", '    flops = values["tokens_per_s_per_gpu"]', textwrap.indent(value, "    ") + "\n"
    )
    name = "samples_per_gpu_hour"
    ran, ranked, _, results = copy.say(
        "run spec.yaml --out result",
        f"rank result --by {name} --format json --columns all",
        "report result --output report.html",
        ("results.md", ""),
    )
    assert "Results: " in ran
    rows = json.loads(ranked)
    rates = [row[name] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) > 1
    assert rates == [pytest.approx(3600 / row["gpu_s_per_sample"]) for row in rows]
    assert "samples/GPU-hour" in (copy.folder / "report.html").read_text(encoding="utf-8")
    assert f"| `{name}` | 1/h | high | " in results
    objective = f"from sweep.search.objective import Objective as O; O(column='{name}', descending=True, per=(), best=1)"
    copy.run("-c", f"from sweep.columns import SHORTER; assert {name!r} in SHORTER; {objective}")  # its plans may tie


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


ARGUMENT = """
from pathlib import Path
from sim_core import SpecError
from sweep.evaluation.preparation import prepare
from sweep.exporting.keeping import with_flags
from sweep.exporting.launched import launched
from sweep.exporting.megatron import megatron_text
from sweep.inputs.launches import read_launch
from sweep.inputs.log import read_log
from sweep.spec.other_names import our_name
from sweep.spec.spec import SweepSpec
from tests.sweep.inputs.specimens import megatron_log
fixed = {"all_gpus": 16, "global_batch": 32, "micro_batch": 1, "post_validation": True}
document = {"name": "late", "model": "llama3.1-8b", "workload": {"sequence": 2048}, "hardware": "H100-SXM", "fixed": fixed}
prepared = prepare(SweepSpec.model_validate(document | {"axes": {"pp": [2, 1]}}), Path("."))
text = megatron_text(launched(prepared, 0))
Path("flags.sh").write_text(text)
print("--pipeline-late-check" in text, "post_validation" in text, read_launch("flags.sh").plan["post_validation"])
try:
    megatron_text(launched(prepared, 1))
except SpecError as error:
    print(error)
Path("own.sh").write_text("python x.py --num-layers 2 --pipeline-late-check --seed 1")
print(*read_launch("own.sh").kept, our_name("pipeline_late_check"), with_flags(text, Path("own.sh")).count("late-check"))
Path("run.log").write_text(megatron_log() + megatron_log({"pipeline_late_check": True}))
print(*read_log("run.log").notes)
"""


def test_an_argument_of_a_framework_from_its_recipe(copy: Copy) -> None:
    """One row in one file: it is written, read, refused, told apart in a log, and no flag of the user's own."""
    (row,) = blocks("An argument of a framework")
    file = "sweep/frameworks/megatron_choices.py"
    shutil.copytree(ROOT / "tests" / "sweep" / "inputs", copy.folder / "tests" / "sweep" / "inputs")
    shutil.copy(ROOT / "tests" / "sweep" / "__init__.py", copy.folder / "tests" / "sweep")
    copy.insert(file, "MUON_TP: Choice = Choice(", f"{row}\n")
    written, refused, kept, log = copy.run("-c", ARGUMENT).splitlines()
    assert written == "True False True"
    assert refused.endswith("Megatron-LM refuses it: --pipeline-late-check needs pp > 1")
    assert kept == "seed post_validation 1"
    assert log == "several runs: the last counts, with another post_validation"


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
    shutil.copy(ROOT / "tests" / "pipelines.py", copy.folder / "tests")
    tested = [f"test_schedules.py::test_the_{what}_of_every_row[1f1b-eager]" for what in ("closed_form", "order")]
    assert "2 passed" in copy.run("-m", "pytest", "-p", "no:cacheprovider", "--noconftest", *tested)
    told = copy.run("-c", PIPELINE.format(path=str(GPT7B))).splitlines()
    step, bubble = map(float, told[0].split())  # over those of 1F1B
    assert step <= 1 + 1e-9  # messages hide where there are more micro-batches in flight
    assert 0.95 < bubble <= 1 + 1e-9
    assert told[1] == "vpp_needs_1f1b;schedule_needs_overlap_pp;"
    (table,) = copy.say(("schedules.md", ""))
    assert "| `1f1b-eager` | 1 | any | always in the background |" in table


def test_a_metric_from_its_recipe(copy: Copy) -> None:
    """The oracle fails until it knows the metric, which then is in results and docs."""
    row, value, in_simai, second = blocks("A metric")
    metric, index = row.split("\n")
    copy.insert("sim_core/metrics.py", '    Metric("bubble_s"', f"    {metric},\n")
    copy.insert("sim_core/metrics.py", "MEMORY_ROWS = ", f"{index}\n")
    once, model = "sim_core/step/once.py", "sim_core/simai/model.py"
    copy.replace(once, "DP_TOTAL, OFFLOAD_S, OPTIMIZER\n", "DP_TOTAL, GATHER_TOTAL, OFFLOAD_S, OPTIMIZER\n")
    copy.insert(once, "        if not overlapped:\n", f"        {value}\n")
    copy.replace(model, "    FORWARD_S,\n", "    FORWARD_S,\n    GATHER_TOTAL,\n")
    copy.insert(model, "        metrics[STEP_TIME, i] = step_s", f"        {in_simai}\n")
    shutil.copytree(ROOT / "tests" / "oracle", copy.folder / "tests" / "oracle")
    for name in ("conftest.py", "simulating.py"):
        shutil.copy(ROOT / "tests" / name, copy.folder / "tests")
    oracle = "tests/oracle/test_oracle.py::test_random_plans_of_random_workloads"
    compared = ("-m", "pytest", "-p", "no:cacheprovider", *(f"{oracle}[{seed}]" for seed in (3, 7)))
    assert "gather_total_s" in copy.run(*compared, fails=True)
    step = "tests/oracle/step.py"
    copy.insert(step, '            out["dp_exposed_s"] += after[-1]', f"            {second}\n")
    copy.replace(step, 'names += ("optimizer_s", ', 'names += ("gather_total_s", "optimizer_s", ')
    assert "2 passed" in copy.run(*compared)
    (copy.folder / "spec.yaml").write_text(SPEC.split("objectives")[0], encoding="utf-8")
    _, ranked, results = copy.say(
        "run spec.yaml --set 'axes.fidelity=[event, simai]' --out result",
        "rank result --format json --columns all",
        ("results.md", ""),
    )
    rows = json.loads(ranked)
    assert {row["fidelity"]: row["gather_total_s"] > 0 for row in rows} == {"event": True, "simai": False}
    assert "| `gather_total_s` | s | low | " in results


COLLECTIVE = """
from pathlib import Path
from sim_core import METRICS, Facts, hardware_table, plans, read_hardware, read_workload, simulate
from sim_core.costing.one_collective import collective_seconds
device = read_hardware("H100-SXM")
seconds = [collective_seconds(name, [1e9, 2e9], 8, 1, device) for name in ("broadcast", "all_gather")]
print(*(float(taken[1] - taken[0]) for taken in seconds))
columns = ["name", *(f"forward_{what}" for what in ("compute_time", "comm_type", "comm_size"))]
rows = [columns, ["one", "1e-3", "BROADCAST", "1000000"], ["two", "1e-3", "None", "0"]]
Path("table.tsv").write_text("".join("\\t".join(row) + "\\n" for row in rows))
workload = read_workload("table.tsv", Facts(bytes_per_element=4, micro_batch=1))[0]
metrics = simulate(workload, hardware_table([device], None), plans(workload, tp=2, all_gpus=2)).metrics
print(*(float(metrics[METRICS.index(name), 0]) for name in ("tp_total_s", "step_time_s")))
"""


def test_a_collective_from_its_recipe(copy: Copy) -> None:
    """Without seconds of its own it is an error; with them it is read, and costed by what its links carry."""
    row, seconds, of_nics = blocks("A collective")
    terms, collectives, fabric = "sim_core/terms.py", "sim_core/costing/collectives.py", "sim_core/costing/fabric.py"
    copy.insert(terms, ')\n"""All kinds of messages', f"    {row},\n")
    copy.replace(terms, "SEND_RECEIVE = range(", "SEND_RECEIVE, BROADCAST = range(")
    assert "collective broadcast: collective_s has no seconds for it" in copy.run(
        "-c", "from sim_core import simulate", fails=True
    )
    copy.replace(collectives, "ALL_TO_ALL, SEND_RECEIVE}", "ALL_TO_ALL, SEND_RECEIVE, BROADCAST}")
    copy.replace(collectives, "from sim_core.terms import ", "from sim_core.terms import BROADCAST, ")
    copy.insert(
        collectives,
        "    message, fastest = message_of(kind, size, at, device), np.inf\n",
        textwrap.indent(seconds, "    ") + "\n",
    )
    copy.replace(fabric, "from sim_core.terms import ", "from sim_core.terms import BROADCAST, ")
    copy.insert(fabric, "    passes = min(at.nodes", textwrap.indent(of_nics, "    ") + "\n")
    alone, in_plan = (list(map(float, line.split())) for line in copy.run("-c", COLLECTIVE).splitlines())
    assert alone[0] == pytest.approx(8 / 7 * alone[1], rel=0.01)  # large ones: by bandwidth alone
    assert 0 < in_plan[0] < in_plan[1]


MEMORY = """
from sim_core import MEMORY, hardware_table, plans, read_hardware, read_model, read_stack, simulate, workload_from_model
workload = workload_from_model(read_model("llama3-8b", {"sequence": 2048}), read_stack("megatron-core"), sequence_parallel=True)
found = simulate(workload, hardware_table([read_hardware("H100-SXM")], None), plans(workload, tp=[2, 4], all_gpus=8))
print(*found.memory[MEMORY.index("peak_memory_bytes")])
print(*(found.memory[MEMORY.index("workspace_bytes")] if "workspace_bytes" in MEMORY else ()))
"""


def test_a_memory_term_from_its_recipe(copy: Copy) -> None:
    """Nobody fills it, or it is no tensor among them: an error. Filled, it is in the peak and in the docs."""
    row, value = blocks("A memory term")
    term, index = row.split("\n")
    before = list(map(float, copy.run("-c", MEMORY).split()))
    metrics, peak = "sim_core/metrics.py", "sim_core/costing/peak.py"
    copy.insert(metrics, '    MemoryTerm("peak_memory_bytes"', f"    {term},\n")
    assert "memory terms: found tensors, tensors" in copy.run("-c", "from sim_core import simulate", fails=True)
    copy.replace(metrics, f"    {term},\n", "")
    copy.insert(metrics, '    MemoryTerm("allocator_bytes"', f"    {term},\n")
    copy.insert(metrics, "ALLOCATED = ", f"{index}\n")
    assert "memory term workspace_bytes: sim_core/metrics.py has a row" in copy.run("-c", MEMORY, fails=True)
    copy.replace(peak, "    STATE_BYTES,\n", "    STATE_BYTES,\n    WORKSPACE_BYTES,\n")
    copy.insert(peak, "    memory[ALLOCATOR_BYTES] = (", f"    {value}\n")
    peaks, own = (list(map(float, line.split())) for line in copy.run("-c", MEMORY).splitlines())
    assert own == [2.0**25] * 2
    assert [after - least for after, least in zip(peaks, before, strict=True)] == pytest.approx([1.05 * 2**25] * 2)
    assert "| `workspace_bytes` | bytes | low | " in copy.say(("results.md", ""))[0]


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (("launch_s", *METRICS[:3], *METRICS[4:]), "found launch_s, compute_forward_s"),
        ((*METRICS[:5], *METRICS[6:], METRICS[5]), f"metric {METRICS[4]}: expected {METRICS[5]} in the row after it"),
    ],
)
def test_metrics_out_of_order_are_refused(metrics: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_order(metrics, MEMORY_ROWS)


def test_a_question_about_a_plan_from_its_recipe(copy: Copy) -> None:
    """Its variation and its section, in one file: told on a terminal, in JSON and on the page."""
    asked, row = "sweep/answers/asked.py", blocks("A question about a plan")
    known = "from sweep.answers.variation import Variation\n"
    copy.replace(asked, known, "from sweep.answers.variation import NETWORK, Variation, vary\n")
    copy.insert(asked, "class Asked(NamedTuple)", f"{row[0]}\n\n\n")
    copy.insert(asked, "    Asked(of_rivals),\n", f"    {row[1]},\n")
    (copy.folder / "spec.yaml").write_text(SPEC.split("objectives")[0], encoding="utf-8")
    _, told, as_json, _ = copy.say(
        "run spec.yaml --out result --quiet", "explain result", "explain result --json", "report result --output report.html"
    )
    gain = json.loads(as_json)["twice_the_nics"]
    assert gain > 0
    assert f"\nwith twice the NICs\n  {gain:+.1%} per GPU\n" in told
    page = (copy.folder / "report.html").read_text(encoding="utf-8")
    assert f"<h4>with twice the NICs</h4><ul><li>{gain:+.1%} per GPU</li></ul>" in page
