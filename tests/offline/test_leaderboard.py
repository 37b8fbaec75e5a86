"""The leaderboard of docs/leaderboard.md: each predictor by hand on runs whose figures follow from their numbers."""

import math

import pytest

from benchmarks.importing.table import Row as Told
from benchmarks.leaderboard import EVERYTHING, NAIVE, OURS, THUMB, leaderboard
from sweep.runs.simulation import Run
from sweep.runs.table import published_rows
from sweep.validation.figures import Figures
from tests.offline.free_text import imported

LLAMA = {
    "set": "mine", "framework": "Megatron-LM", "hw": "H100-80GB-SXM", "gpus": "8", "gpus_per_node": "8", "model": "llama2-7b",
    "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "32", "ffn": "11008", "vocab": "32000", "seq": "4096",
    "dtype": "bf16", "tp": "2", "pp": "2", "mbs": "1", "gbs": "32", "zero": "0", "iter_ms": "4000", "mem_kind": "allocated",
}  # fmt: skip
FLOPS_A_TOKEN = 3 * (32 * (2 * (4 * 4096**2 + 3 * 4096 * 11008) + 4 * 4096 * 4096) + 2 * 4096 * 32000)
PARAMETERS = 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 2 * 4096 * 32000 + 4096


def run(predicted_s: float = 4.0, *, fits: bool = True, **changes: str) -> Run:
    return Run(imported(Told("runs.csv:2", LLAMA | changes)), predicted_s, fits=fits, peak_bytes=30 * 2**30)


def standing(runs: list[Run], predictor: str, rows: str = EVERYTHING) -> Figures:
    return leaderboard(runs)[rows, predictor]


def test_a_rule_without_a_simulator_by_hand() -> None:
    """40 % of 989.4 TFLOP/s; pp 2 with 16 micro-batches waits for 1/16; ZeRO 0: 18 bytes of a quarter of the parameters."""
    seconds = FLOPS_A_TOKEN * 32 * 4096 / 8 / 989.4e12 / 0.4 * (1 + 1 / 16)
    found = standing([run(mem_gib="28")], NAIVE)
    assert found.mape == pytest.approx(abs(seconds / 4 - 1) * 100)
    assert found.memory_mape == pytest.approx(abs(18 * PARAMETERS / 4 / 2**30 / 28 - 1) * 100)
    spread = standing([run(mem_gib="28", zero="1")], NAIVE)  # the optimizer of two replicas
    assert spread.memory_mape == pytest.approx(abs(12 * PARAMETERS / 4 / 2**30 / 28 - 1) * 100)
    sharded = standing([run(mem_gib="10", zero="3", tp="1", pp="1")], NAIVE)
    assert sharded.memory_mape == pytest.approx(abs(18 * PARAMETERS / 8 / 2**30 / 10 - 1) * 100)


def test_experts_lie_on_the_ranks_of_their_group() -> None:
    """Mixtral 8x7B, 45.1 of 46.7 billion parameters are experts: of eight GPUs with ep 8 each holds one, for all replicas."""
    experts = 32 * 8 * 3 * 4096 * 14336
    others = 46_702_792_704 - experts
    moe = {"model": "mixtral-8x7b", "experts": "8", "topk": "2", "ffn": "14336", "moe_ffn": "14336", "kv_heads": "8"}
    moe |= {"tp": "1", "pp": "1", "ep": "8", "zero": "1", "mem_gib": "100"}
    found = standing([run(4.0, fits=True, **moe)], NAIVE)
    held = others * (6 + 12 / 8) + experts / 8 * (6 + 12)
    assert found.memory_mape == pytest.approx(abs(held / 2**30 / 100 - 1) * 100)


def test_a_rule_of_thumb_orders_plans_and_says_no_seconds() -> None:
    """It picks tp 1, pp 1, micro-batch 2, which is twice as slow as the fastest; of four plans it has two pairs wrong."""
    plans = [("1", "1", "2", "2000"), ("1", "1", "1", "1000"), ("2", "1", "1", "3000"), ("2", "2", "1", "4000")]
    runs = [run(tp=tp, pp=pp, mbs=mbs, iter_ms=ms) for tp, pp, mbs, ms in plans]
    found = standing(runs, THUMB)
    assert (found.mape, found.memory_mape, found.oom_recall, found.groups) == (None, None, None, 1)
    assert found.regret == pytest.approx(100)
    assert found.spearman == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_memory_calls_of_all_runs_that_could_not_run() -> None:
    """Of a run that is said not to fit, one that failed, and one that ran: two are called, one of them rightly."""
    runs = [
        run(fits=False, oom="1", iter_ms=""),
        run(quality="failed", iter_ms="", notes="did not finish: memory or unknown"),
        run(fits=False),
        run(fits=False, quality="sleep"),
    ]
    found = standing(runs, OURS)
    assert (found.oom_runs, found.oom_precision, found.oom_recall, found.runs_dense) == (2, 50, 50, 1)


def test_what_another_simulator_states_of_the_same_rows() -> None:
    """SimuMax's own errors of throughput on an A100-PCIe: -1.46 % of throughput is 1.48 % more time."""
    rows = [row for row in published_rows() if row.text("set") == "simumax-a100-pcie"]
    runs = [Run(row, row.number("step_time_s") or 0) for row in rows]
    ours, stated = standing(runs, OURS, "simumax-a100-pcie"), standing(runs, "SimuMax", "simumax-a100-pcie")
    assert (ours.mape, ours.regret, ours.runs) == (0, 0, stated.runs)
    assert stated.mape == pytest.approx(1.49, abs=0.05)
    assert stated.memory_mape == pytest.approx(1.43, abs=0.01)  # the mean of its table's 30 numbers
    alone = standing(runs[:1], "SimuMax", "simumax-a100-pcie")
    assert alone.mape is not None
    assert math.isclose(alone.mape, (1 / (1 - 0.0146) - 1) * 100, rel_tol=1e-9)
