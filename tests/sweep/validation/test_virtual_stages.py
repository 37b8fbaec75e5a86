"""What one more virtual stage costs: pairs of runs that differ in vpp alone, and plans that win only if it is free."""

from __future__ import annotations

import csv
from math import log
from pathlib import Path
from typing import Final

import pytest

from sweep.runs.simulation import UNCHANGED, Change, run_rows
from sweep.runs.table import Row

PAIRS: Final = Path(__file__).parents[3] / "docs" / "data" / "vpp_pairs.csv"
GPT: Final = "source: x, gated: false, activation: gelu, norm: layernorm, position: learned, positions: 1024, tied: false"
ZB: Final = {"1.5B": (24, 2304, 24), "6.2B": (32, 4096, 32), "14.6B": (48, 5120, 40), "28.3B": (64, 6144, 48)}
"""Layers, hidden size and heads (arXiv 2401.10241, table 3); a layer's share of its head is not stated: a small vocabulary."""
MODELS: Final = {
    "llama3-70b": "{preset: llama3-70b, source: x, sequence: 4096}",
    "qwen3-32b": "{preset: qwen3-32b, source: x, vocabulary: 262144, sequence: 4096}",
} | {
    f"zb-{name}": (
        f"{{name: zb, {GPT}, vocabulary: 512, sequence: 1024, "
        f"layers: {layers}, hidden: {hidden}, heads: {heads}, ffn: {4 * hidden}}}"
    )
    for name, (layers, hidden, heads) in ZB.items()
}
MACHINES: Final = {
    "A100": "{preset: A100-80G-SXM+RoCE, nic_bandwidth: 200 Gb/s}",
    "H100": "H100-SXM",
    "GH200": "{preset: H100-SXM, gpus_per_node: 4, nics_per_node: 4, nic_bandwidth: 200 Gb/s, memory: 95 GiB}",
}
PLAN: Final = ("all_gpus", "tp", "pp", "micro_batch", "global_batch", "precision", "checkpointing")
FREE: Final = Change({}, {"host_micro_batch": 0.0})


def row(pair: dict[str, str], vpp: str) -> Row:
    """One run of a pair; without interleaving a stage waits for its messages."""
    values = {key: pair[key] for key in PLAN}
    modern = pair["model"] in ("llama3-70b", "qwen3-32b")
    values |= {
        "set": "pairs", "model": MODELS[pair["model"]], "stack": pair["stack"], "hardware": MACHINES[pair["machine"]],
        "vpp": vpp, "layer_split": "even", "overlap_pp": str(vpp != "1").lower(), "overlap_tp": str(modern).lower(),
        "overlap_grad": "true", "overlap_param": "true", "sequence_parallel": str(modern).lower(), "cp": "1", "ep": "1",
        "step_time_s": "1", "state": "ok",
    }  # fmt: skip
    return Row("pairs", values)


def ratios(pairs: list[dict[str, str]], change: Change) -> list[float]:
    """Simulated step with more virtual stages over that with fewer."""
    runs = run_rows([row(pair, pair[key]) for pair in pairs for key in ("vpp", "to")], change)
    assert not [run.reason for run in runs if run.reason]
    return [more.step_s / fewer.step_s for fewer, more in zip(runs[::2], runs[1::2], strict=True)]


def test_pairs_that_differ_in_vpp_alone_are_as_far_apart_as_measured() -> None:
    """The page's figures are those of the product; a free virtual stage would be too good in every pair."""
    with PAIRS.open(encoding="utf-8", newline="") as file:
        pairs = list(csv.DictReader(file))
    measured = [float(pair["measured"]) for pair in pairs]
    found, free = ratios(pairs, UNCHANGED), ratios(pairs, FREE)
    assert found == pytest.approx([float(pair["simulated"]) for pair in pairs], abs=0.003)
    assert free == pytest.approx([float(pair["free"]) for pair in pairs], abs=0.003)
    assert all(each < true for each, true in zip(free, measured, strict=True))
    off = [abs(log(each / true)) for each, true in zip(found, measured, strict=True)]
    assert sum(off) / len(off) < 0.015, "5 % with free ones"


def test_llama_3_70b_is_not_cut_into_single_layers_for_a_hair() -> None:
    """64 H100s, 256 micro-batches: the bubble of pp 4 is 1 % without interleaving, so vpp 10 or 20 has nothing to win."""
    plan = dict(zip(PLAN, ("64", "4", "4", "1", "1024", "bf16", "none"), strict=True))
    pair = plan | {"model": "llama3-70b", "stack": "megatron-core", "machine": "H100"}
    vpps = ("1", "2", "4", "5", "10", "20")
    seconds = [run.step_s for run in run_rows([row(pair, vpp) for vpp in vpps])]
    assert int(vpps[seconds.index(min(seconds))]) <= 5
    assert seconds[-1] > 1.01 * min(seconds)
