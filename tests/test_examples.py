"""Every example runs, small; what the examples are there to show is there."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from sweep.evaluation.one_plan import row_of
from sweep.evaluation.preparation import prepare
from sweep.execution import run_sweep
from sweep.executors import InlineExecutor
from sweep.results.store import Store
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES, ROOT
from tests.trace_jobs import JobSpec, make_job

SPECS = [path for path in sorted(EXAMPLES.glob("*.yaml")) if "\naxes:" in path.read_text(encoding="utf-8")]


def run(path: Path, out: Path, *sets: str) -> str:
    """Run a spec with overrides; returns the glob of its files."""
    prepared = prepare(load_spec(path, sets), path.parent)
    run_sweep(prepared, Store(directory=out), InlineExecutor())
    return str(out / "*.parquet")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_every_example_runs_small(path: Path, tmp_path: Path) -> None:
    files = run(path, tmp_path / "out", "sample={n: 400}")
    counts = dict(duckdb.execute(f"SELECT status, count(*) FROM '{files}' GROUP BY status").fetchall())
    assert counts.get("failed", 0) == 0
    assert counts["ok"] > 0


OURS = re.compile(r"([a-z_0-9]+) ([\d.,]+)( %)? \(plan (\d+)\)")


@pytest.mark.parametrize(
    "path", [path for path in SPECS if "# Ours:" in path.read_text(encoding="utf-8")], ids=lambda p: p.name
)
def test_the_head_of_an_example_says_what_is_simulated(path: Path) -> None:
    """Within a per cent: the plans that it names, one by one."""
    head = path.read_text(encoding="utf-8").partition("\nname:")[0]
    prepared = prepare(load_spec(path), path.parent)
    figures = OURS.findall(head)
    assert figures
    for column, figure, percent, plan in figures:
        said = float(figure.rstrip(".").replace(",", "")) / (100 if percent else 1)
        assert row_of(prepared, int(plan))[column] == pytest.approx(said, rel=0.01), (column, plan)


def test_every_example_has_a_head_and_a_line_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("*.ipynb")):
        assert f"(examples/{path.name})" in readme, path.name
        assert path.suffix != ".yaml" or path.read_text(encoding="utf-8").startswith("# Question: "), path.name


def test_every_workload_has_its_example() -> None:
    texts = " ".join(path.read_text(encoding="utf-8") for path in SPECS)
    for workload in (EXAMPLES / "workloads").iterdir():
        assert workload.name in texts, workload.name


def test_gpt2_shows_where_communication_is_exposed_and_where_not(tmp_path: Path) -> None:
    """Small batches on slow fabrics show it; large ones on fast fabrics hide all but the last bucket."""
    files = run(EXAMPLES / "gpt2_ddp.yaml", tmp_path / "out", "axes.micro_batch=[2, 16]")
    share = "dp_exposed_s / step_time_s"
    worst, best = duckdb.execute(f"SELECT max({share}), min({share}) FROM '{files}' WHERE dp > 1").fetchall()[0]
    assert worst > 0.2
    assert best < 0.001


LLAMA3 = (
    "axes.pp=[16]", "axes.vpp=[8]", "axes.overlap_tp=[false]", "axes.sharding=[optimizer]", "axes.checkpointing=[none]",
)  # fmt: skip
LONG = ("workload.sequence=131072", "fixed.cp=16", "fixed.cp_comm_type=all_gather", "fixed.global_batch=128")
PUBLISHED_TFLOPS = [  # per GPU: arXiv 2407.21783, table 4
    (("axes.all_gpus=[8192]",), 430),
    (("axes.all_gpus=[16384]",), 400),
    (("axes.all_gpus=[16384]", *LONG), 380),
]


@pytest.mark.parametrize(("sets", "published"), PUBLISHED_TFLOPS)
def test_llama_405b_is_as_fast_as_published(sets: tuple[str, ...], published: float, tmp_path: Path) -> None:
    """No constant was chosen by it; ours are 423, 381 and 364."""
    files = run(EXAMPLES / "llama31_405b_16k_h100.yaml", tmp_path / "out", *LLAMA3, *sets)
    (mfu,) = duckdb.execute(f"SELECT mfu FROM '{files}'").fetchone() or (0.0,)
    assert mfu * 989.4 == pytest.approx(published, rel=0.06)


def test_deepseek_v3_takes_as_long_as_published(tmp_path: Path) -> None:
    """2.788 M GPU-hours, of which 2.664 M for 14.8 T tokens: 180 k per trillion (arXiv 2412.19437, table 1); ours 172 k."""
    plan = (
        "axes.schedule=[dualpipe]",
        "axes.precision=[fp8_blockwise]",
        "axes.dispatcher=[flex]",
        "axes.pp=[16]",
        "axes.ep=[64]",
    )
    layers = "axes.layer_split=[[4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1]]"
    recompute = "axes.checkpointing=[layernorm+mla_up_proj+moe_act]"
    files = run(EXAMPLES / "deepseek_v3_h800.yaml", tmp_path / "out", *plan, layers, recompute)
    hours, memory = duckdb.execute(f"SELECT gpu_hours, peak_memory_bytes FROM '{files}'").fetchone() or (0.0, 0.0)
    assert hours == pytest.approx(180e3, rel=0.05)
    assert memory < 82e9


@pytest.mark.parametrize(
    ("plan", "published"),
    [
        (("axes.precision=[mxfp8]", "axes.tp=[1]", "axes.checkpointing=[layernorm+moe_act]"), 6400),
        (("axes.precision=[nvfp4]", "axes.tp=[2]", "axes.checkpointing=[none]"), 5632),
    ],
)
def test_nemotron_3_super_is_as_fast_as_published(plan: tuple[str, ...], published: float, tmp_path: Path) -> None:
    """Tokens a second and GPU (Megatron-Bridge 26.04.01, docs/performance-summary-archive.md); ours 6,373 and 6,410."""
    sets = ("axes.ep=[64]", "axes.micro_batch=[1]", "axes.dispatcher=[flex]", *plan)
    files = run(EXAMPLES / "nemotron3_super_b200.yaml", tmp_path / "out", *sets)
    (rate,) = duckdb.execute(f"SELECT tokens_per_s_per_gpu FROM '{files}'").fetchone() or (0.0,)
    assert rate == pytest.approx(published, rel=0.15)


def test_streams_of_deepseek_v4_are_what_recompute_saves(tmp_path: Path) -> None:
    """The first of 8 stages keeps 8 micro-batches of 5 layers: 10 h elements of streams a layer and token, with `mhc` 4 h."""
    plan = (
        "axes.precision=[bf16]",
        "axes.micro_batch=[1]",
        "axes.pp=[8]",
        "axes.vpp=[1]",
        "axes.ep=[8]",
        "axes.overlap_ep=[false]",
    )
    sets = (*plan, "axes.dispatcher=[flex]", "axes.checkpointing=[none, mhc]", "fixed.all_gpus=64", "fixed.tp=1")
    files = run(EXAMPLES / "deepseek_v4_flash_gb200.yaml", tmp_path / "out", *sets)
    kept, fewer = duckdb.execute(f"SELECT activation_bytes FROM '{files}' ORDER BY activation_bytes DESC").fetchall()
    saved = 4096 * 4096 * 2 * (10 - 4)
    assert (kept[0] - fewer[0]) / saved == pytest.approx(8 * 5, rel=0.2)  # less what the streams of one layer work on


def test_a_folder_of_ranks_is_swept(tmp_path: Path) -> None:
    """By the folder and by a glob; what it was made from covers every file."""
    make_job(JobSpec(pp=2, dp=2, ga=4)).write(tmp_path / "ranks")
    digests = []
    for number, path in enumerate(("ranks", "ranks/*rank*.txt")):
        spec = tmp_path / f"{number}.yaml"
        spec.write_text(f"name: folder\nworkload: {{path: '{path}'}}\nhardware: A800-80G-SXM\naxes: {{ga: [2, 4, 8]}}\n")
        files = run(spec, tmp_path / f"out{number}")
        assert duckdb.execute(f"SELECT count(*) FROM '{files}' WHERE status = 'ok'").fetchall() == [(3,)]
        digests.append(prepare(load_spec(spec, []), tmp_path).provenance["inputs"]["files"]["workload"]["sha256"])
    assert digests[0] == digests[1]
