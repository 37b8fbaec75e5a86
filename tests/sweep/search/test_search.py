"""`sweep search` against the exhaustive sweep: the same best plans, ties included, in random spaces by any objective."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml

from sim_core import REASONS, Ints, SpecError, stack_yaml
from sweep.columns import NUMBERS, SIZES
from sweep.evaluation.evaluation import checked, evaluate
from sweep.evaluation.preparation import Prepared, Sweep, prepare
from sweep.evaluation.slices import Receipt, SliceQueue, SliceTask
from sweep.executors import InlineExecutor
from sweep.executors.local import LocalExecutor
from sweep.ranking.ranking import rank
from sweep.results.store import Store
from sweep.search import candidates
from sweep.search.ahead import Ahead, Frontier
from sweep.search.candidates import BEATEN, WORSE, Searched, search_among
from sweep.search.objective import Objective
from sweep.search.search import as_search, run_search
from sweep.spec.spec import load_spec
from tests.conftest import EXAMPLES, GPT7B, LLAMA405B, rest_long
from tests.stack_pages import random_stack
from tests.sweep.commands import sweep as sweep_command
from tests.sweep.conftest import files_of
from tests.sweep.test_execution import here

MOE = EXAMPLES / "workloads" / "moe8x_wd16_tp1_pp4_exp2_expNum8_l8_bs1_rank0.trace.txt"
WORKLOADS: dict[str, dict[str, Any]] = {
    "gpt7b": {"workload": {"path": str(GPT7B), "micro_batch": 1, "sequence": 2048}, "hardware": "H100-SXM"},
    "llama405b": {
        "workload": {"path": str(LLAMA405B), "micro_batch": 1, "sequence": 4096, "ffn": 53248},
        "hardware": "H100-SXM",
    },
    "moe": {"workload": {"path": str(MOE)}, "hardware": "A800-80G-SXM"},
    "mixtral": {"workload": {"model": "mixtral-8x7b", "sequence": 4096}, "hardware": "H100-SXM"},
    "llama3": {"workload": {"model": "llama3-8b", "sequence": 8192}, "hardware": "H100-SXM"},
    "gpt2": {"workload": {"model": "gpt2-xl", "sequence": 1024}, "hardware": "H100-SXM"},
}
AXES: dict[str, list[Any]] = {
    "tp": [1, 2, 4, 8],
    "pp": [1, 2, 4, 8],
    "vpp": [1, 2, 3],
    "ep": [1, 2, 4, 8],
    "all_gpus": [64, 128, 256],
    "ga": [4, 6, 8, 12, 16, 20, 24, 28, 32],
    "micro_batch": [1, 2, 4],
    "checkpointing": ["none", "full", "block:1"],
    "schedule": ["1f1b", "gpipe", "1f1b-deepspeed", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipev"],
    "hardware.nic_latency": ["5 us", "20 us"],
    "sharding": ["stack", "none", "optimizer", "gradients", "parameters"],
    "overlap_grad": [True, False],
    "overlap_tp": [True, False],
    "overlap_param": [True, False],
    "overlap_pp": [True, False],
    "bucket_bytes": ["25 MB", "200 MB"],
    "gradient_precision": ["recorded", "fp32", "bf16"],
    "post_validation": [True, False],
    "hardware.nic_bandwidth": ["100 Gb/s", "400 Gb/s"],
    "straggler_factor": [1.0, 1.2],
    "hardware.shared_nics": [True, False],
}
OBJECTIVES = [
    ("step_time_s", False),
    ("gpu_s_per_sample", False),
    ("tokens_per_s_per_gpu", True),
    ("mfu", True),
    ("usd", False),
]


def random_search(seed: int, folder: Path) -> tuple[Prepared, Objective]:
    """A space of a few hundred plans, of models on random pages of stacks, and what to look for in it."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(list(WORKLOADS)))
    axes: dict[str, list[Any]] = {}
    for key in ("tp", "pp", *rng.permutation([key for key in AXES if key not in ("tp", "pp")]).tolist()):
        if np.prod([len(values) for values in axes.values()]) > 300:
            break
        values = AXES[key]
        picked = sorted(rng.choice(len(values), int(rng.integers(2, len(values) + 1)), replace=False))
        axes[key] = [values[k] for k in picked]
    fixed = {"layer_split": "balanced", "all_gpus": 128, "ga": int(rng.choice([2, 8, 16]))}
    spec = {"name": "random", **WORKLOADS[name], "axes": axes, "fixed": {k: v for k, v in fixed.items() if k not in axes}}
    if "model" in spec["workload"]:
        (folder / "stack.yaml").write_text(stack_yaml(random_stack(rng)))
        spec["workload"] = {**spec["workload"], "stack": "stack.yaml"}
        spec["fixed"] |= {} if "sharding" in axes else {"sharding": str(rng.choice(["stack", "none", "none", "optimizer"]))}
    if name != "moe":
        spec["budget"] = {"tokens": "1T", "usd_per_gpu_hour": 2.5}
    path = folder / f"{seed}.yaml"
    path.write_text(yaml.safe_dump(spec))
    loaded = load_spec(path)
    column, descending = OBJECTIVES[int(rng.integers(len(OBJECTIVES)))]
    if name == "moe":  # its sequence and model are not known
        column, descending = OBJECTIVES[int(rng.integers(2))]
    per = tuple(key for key in ("pp", "tp", "all_gpus", "schedule") if rng.random() < 0.4)
    within = float(rng.choice([0, 0, 0.02, 0.2]))
    objective = Objective(column=column, descending=descending, per=per, best=int(rng.integers(1, 12)), within=within)
    if objective.follows_step and rng.random() < 0.5:
        rising = np.cumsum(rng.exponential(0.01, 101) * (rng.random(101) < 0.3))
        objective = replace(objective, dear=tuple((rising - rising[0]).tolist()))
    return prepare(loaded, folder), objective


def exhaustive(prepared: Prepared, objective: Objective) -> set[int]:
    """The plans of the answer, from a simulation of all: plain Python over rows. Of two costs what either keeps."""
    rows = evaluate(prepared.sweep, np.arange(prepared.sweep.space.count)).to_pylist()
    answer = best_of(rows, objective, [0.0] * 101)
    return answer | best_of(rows, objective, objective.dear) if objective.dear else answer


def best_of(rows: list[dict[str, Any]], objective: Objective, dear: Sequence[float]) -> set[int]:
    groups = defaultdict(list)
    for row in rows:
        if row["status"] == "ok" and row[objective.column] is not None:
            percent = 100 * (row["peak_memory_bytes"] or 0.0) / row["device_memory_bytes"]
            below = min(int(percent), 99)
            dearer = math.exp(dear[below] + (min(percent, 100) - below) * (dear[below + 1] - dear[below]))
            value = row[objective.column] / dearer if objective.descending else row[objective.column] * dearer
            numbers = tuple(None if row[name] is None else np.float32(row[name]) for name in (*SIZES, *NUMBERS))
            groups[tuple(row[name] for name in objective.per)].append((value, row["plan"], numbers))
    answer = set()
    for found in groups.values():
        by_numbers = {numbers: value for value, _, numbers in sorted(found, reverse=not objective.descending)}  # the best last
        ordered = sorted(by_numbers.values(), reverse=objective.descending)
        first, last = ordered[0], ordered[: objective.best][-1]
        near = first * (1 - objective.within if objective.descending else 1 + objective.within)
        if len(ordered) < objective.best:
            answer |= {plan for _, plan, _ in found}
        elif objective.descending:
            answer |= {plan for value, plan, _ in found if value >= min(last, near)}
        else:
            answer |= {plan for value, plan, _ in found if value <= max(last, near)}
    return answer


def searched(prepared: Prepared, objective: Objective, folder: Path, workers: int = 0) -> set[int]:
    """The plans that a search keeps."""
    store = Store(directory=folder)
    executor = LocalExecutor(workers) if workers else InlineExecutor()
    prepared = as_search(prepared, objective)
    answer = run_search(prepared, objective, store, executor)
    table = pa.concat_tables([pa.parquet.read_table(path) for path in files_of(store)])
    counts = store.counted()["plans"]
    assert sum(counts.values()) + len(table) == prepared.sweep.space.count == answer.plans
    assert answer.rows <= answer.simulated <= len(table) + counts.get(BEATEN, 0) + counts.get(WORSE, 0)
    plans = table.column("plan").to_pylist()
    assert len(set(plans)) == len(plans)
    return set(plans)


@pytest.mark.parametrize("seed", rest_long(range(16), 6))
def test_the_answer_is_that_of_the_exhaustive_sweep(seed: int, tmp_path: Path) -> None:
    prepared, objective = random_search(seed, tmp_path)
    assert searched(prepared, objective, tmp_path / "out") == exhaustive(prepared, objective)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_the_answer_is_that_of_the_exhaustive_sweep_in_many_spaces(seed: int, tmp_path: Path) -> None:
    prepared, objective = random_search(seed, tmp_path)
    assert searched(prepared, objective, tmp_path / "out") == exhaustive(prepared, objective)


def test_rings_that_wait_beside_backwards_are_among_the_best(tmp_path: Path) -> None:
    """nanotron without sharding: gradients are summed tensor by tensor, each waits, and most of it is hidden."""
    spec = {
        "name": "rings",
        "workload": {"model": "llama3-8b", "sequence": 4096, "stack": "nanotron"},
        "hardware": "H100-SXM",
        "axes": {
            "schedule": ["1f1b", "gpipe"], "tp": [1, 2, 4, 8], "pp": [2, 4, 8], "bucket_bytes": ["0 B", "200 MB"],
            "gradient_precision": ["recorded", "bf16"], "overlap_grad": [True, False],
        },
        "fixed": {"layer_split": "balanced", "all_gpus": 256, "ga": 8, "sharding": "none", "overlap_pp": True},
    }  # fmt: skip
    (tmp_path / "rings.yaml").write_text(yaml.safe_dump(spec))
    prepared = prepare(load_spec(tmp_path / "rings.yaml"), tmp_path)
    objective = Objective(column="step_time_s", descending=False, per=("schedule", "tp"), best=1)
    assert searched(prepared, objective, tmp_path / "out") == exhaustive(prepared, objective)


WITHOUT_BLOCKS: dict[str, Any] = {
    "name": "experts",
    "workload": {"model": "mixtral-8x7b", "sequence": 4096},
    "hardware": "H100-SXM",
    "axes": {
        "tp": [1, 2, 4, 3], "overlap_tp": [False, True], "pp": [1, 2, 4], "ep": [1, 8], "vpp": [1, 2],
        "layer_split": ["even", "balanced_cost"], "checkpointing": ["none", "full"],
    },
    "fixed": {"all_gpus": 64, "global_batch": 128, "micro_batch": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"where": ["overlap_tp or tp < 4"]},
        {"axes": {**WITHOUT_BLOCKS["axes"], "stack": ["megatron-core", "nemo"]}},
        {
            "hardware": "A100-80G-SXM",
            "axes": {"pp": [1, 2, 4], "tp": [2, 4], "precision": ["bf16", "fp8_blockwise"]},
        },
    ],
)
def test_of_plans_that_are_no_blocks_few_are_bounded_one_by_one(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experts.yaml").write_text(yaml.safe_dump({**WITHOUT_BLOCKS, **changed}, sort_keys=False))
    prepared = prepare(load_spec(tmp_path / "experts.yaml"), tmp_path)
    every = np.arange(prepared.sweep.space.count)
    told = np.array(evaluate(prepared.sweep, every).column("reason").to_pylist())
    named = np.array(REASONS)[checked(prepared.sweep, every)]
    assert (named == told)[(named != "")].all()
    if not (prepared.sweep.where or prepared.sweep.others):  # with these some are found out later
        assert set(told[named == ""]) <= {"", "memory_exceeds_device", "precision_not_on_device"}
    bounded_alone: list[int] = []

    def among(sweep: Sweep, positions: Ints, frontier: Frontier) -> Searched:
        bounded_alone.extend(positions.tolist())
        return search_among(sweep, positions, frontier)

    objective = Objective(column="mfu", descending=True, per=(), best=3)
    monkeypatch.setattr(candidates, "search_among", among)
    assert searched(prepared, objective, tmp_path / "out") == exhaustive(prepared, objective)
    assert len(bounded_alone) < 0.5 * (named == "").sum() or len(every) < 50


LARGER = {
    "name": "larger",
    "workload": {"path": str(GPT7B), "micro_batch": 1, "sequence": 2048},
    "hardware": "H100-SXM",
    "axes": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4], "vpp": [1, 2], "all_gpus": [64, 128, 256], "ga": {"range": [4, 256, 4]}},
    "fixed": {"layer_split": "balanced"},
    "per": ["all_gpus"],
}
"""4,608 plans: several slices."""


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    path = tmp_path / "larger.yaml"
    path.write_text(yaml.safe_dump(LARGER))
    return path


class Stopped(InlineExecutor):
    """Is interrupted after its first slice."""

    def run(self, task: SliceTask, queue: SliceQueue) -> Iterator[Receipt]:
        yield next(super().run(task, queue))
        raise KeyboardInterrupt


def test_an_interrupted_search_goes_on_and_any_executor_finds_the_same(larger: Path, tmp_path: Path) -> None:
    prepared = prepare(load_spec(larger), tmp_path)
    objective = Objective(column="gpu_s_per_sample", descending=False, per=("all_gpus",), best=5)
    expected = exhaustive(prepared, objective)
    with pytest.raises(KeyboardInterrupt):
        run_search(as_search(prepared, objective), objective, Store(directory=tmp_path / "a"), Stopped())
    assert len(files_of(Store(directory=tmp_path / "a"))) == 1
    assert searched(prepared, objective, tmp_path / "a") == expected
    assert searched(prepared, objective, tmp_path / "b", workers=1) == expected


def test_few_plans_are_simulated(larger: Path, tmp_path: Path) -> None:
    prepared = prepare(load_spec(larger), tmp_path)
    objective = Objective(column="gpu_s_per_sample", descending=False, per=("all_gpus",), best=1)
    answer = run_search(as_search(prepared, objective), objective, Store(directory=tmp_path / "a"), InlineExecutor())
    legal = int(np.sum(evaluate(prepared.sweep, np.arange(prepared.sweep.space.count)).column("reason").to_numpy(False) == ""))
    assert answer.simulated < 0.2 * legal
    assert 0.9 < answer.tightness <= 1


def test_a_search_is_a_result_like_any_other(larger: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "out", tmp_path / "run"
    text = here("search", larger, "--out", out, "--workers", 0, "--best", 3)
    assert "the bounds of the others prove that they are worse" in text
    assert "Incomplete" not in text
    assert "4,608 plans searched" in here("search", larger, "--out", out, "--workers", 0, "--best", 3)
    here("run", larger, "--out", run, "--workers", 0, "--top", 0)
    ours, theirs = rank(out, top=3).rows, rank(run, top=3).rows
    assert ours.select(["plan", "step_time_s"]) == theirs.select(["plan", "step_time_s"])
    assert rank(out).total == rank(run).total
    assert here("rank", out, "--top", 3, "--format", "csv") == here("rank", run, "--top", 3, "--format", "csv")
    here("compact", out)
    assert rank(out).total == rank(run).total
    assert "holds a search of this sweep for other plans" in here("search", larger, "--out", out, "--workers", 0, expect=1)
    assert "--out: found ''" in here("search", larger, "--out", "", expect=2)
    manifest = Store(directory=out).provenance()
    assert manifest is not None
    assert manifest["search"]["best"] == 3


def test_an_objective_that_no_bound_bounds_is_refused() -> None:
    for column, descending in (("bubble_s", False), ("step_time_s", True), ("mfu", False), ("hfu", True)):
        with pytest.raises(SpecError, match="cannot be bounded without simulating every plan"):
            Objective(column=column, descending=descending, per=(), best=1)
    Objective(column="peak_memory_bytes", descending=False, per=(), best=1)


@pytest.mark.filterwarnings("error")
def test_plans_that_never_end_are_searched_without_a_warning(tmp_path: Path) -> None:
    """GPUs that fail so often that nothing is left of the work: no number of days is enough for any plan."""
    spec = {
        "name": "never",
        "model": "gpt2",
        "hardware": "H100-SXM",
        "axes": {"tp": [1, 2], "micro_batch": [1, 2]},
        "fixed": {"all_gpus": 16384, "global_batch": 65536},
        "failures": {"per_gpu_hour": 1, "restart": "18000 s"},
        "budget": "1T",
        "objectives": [{"minimize": "training_days"}],
    }
    (tmp_path / "never.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    assert "Warning" not in here("search", tmp_path / "never.yaml", "--out", tmp_path / "out", "--workers", 0)
    assert set(rank(tmp_path / "out").rows["training_days"].to_pylist()) == {np.inf}


@pytest.mark.filterwarnings("error")
def test_plans_of_unknown_cost_come_last() -> None:
    objective = Objective(column="step_time_s", descending=False, per=("tp",), best=1)
    cost, group = np.array([3.0, np.nan, np.inf, 1.0, 5.0, 9.0]), np.array([0, 0, 0, 0, 1, 1])
    ahead = Ahead(reason=np.zeros(6, np.int64), cost=cost, keys=[b"a", b"b"], group=group)
    assert ahead.promising(Frontier(objective=objective)).tolist() == [3, 4, 0, 5, 1, 2]


def test_a_dry_search_says_how_long_it_takes_and_stores_nothing(tmp_path: Path) -> None:
    done = sweep_command("search", EXAMPLES / "llama3_70b_h100.yaml", "--dry-run", "--out", tmp_path / "out")
    assert re.search(r"plans take about \d:\d\d:\d\d \(h:min:s\) .*, \d:\d\d:\d\d of it until the search begins", done.stdout)
    assert not (tmp_path / "out").exists()
